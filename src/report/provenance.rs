//! By what build, where and on which clocks trials were measured: what the page says before figures.
//!
//! Takes trials and arms; gives words. Judges nothing.

use super::arms::Arm;
use super::markdown::Row;
use super::words::{self, NOT_MEASURED};
use crate::config::{EnterBy, PreStop, Scenario, Vantage, Via};
use crate::record::{InstantError, Trial};
use crate::verdict::Outcome;

pub(super) fn unique(values: impl Iterator<Item = String>) -> Row {
    let mut seen = Vec::new();
    for value in values {
        if !seen.contains(&value) {
            seen.push(value);
        }
    }
    seen
}

pub(super) fn build(trial: &Trial) -> String {
    let tool = &trial.tool;
    let changed = if tool.dirty == Some(true) { ", with local changes" } else { "" };
    let commit: String = tool.commit.chars().take(12).collect();
    format!("{} (commit {commit}{changed})", tool.version)
}

/// Whose measurements they are, where they are not this tool's.
pub(super) fn imported(trial: &Trial) -> Option<String> {
    let commit: String = trial.tool.commit.chars().take(12).collect();
    Some(format!("{} (commit {commit})", trial.imported.as_ref()?.from))
}

/// What an arm was and where it was measured.
pub(super) fn place(arm: &Arm) -> Row {
    let Some(trial) = arm.any() else { return Vec::new() };
    let planned = arm.part.run.and_then(|run| run.plan.arms.iter().find(|a| a.name == arm.name));
    let told = || trial.imported.as_ref().map(|imported| imported.cluster.clone());
    let cluster = planned.map_or_else(
        || told().unwrap_or(NOT_MEASURED.to_owned()),
        |planned| {
            let cluster = &planned.cluster;
            format!(
                "Kubernetes {}, {} {}, {}, {}",
                cluster.kubernetes,
                cluster.nodes,
                if cluster.nodes == 1 { "node" } else { "nodes" },
                words::of(&cluster.proxy_mode),
                words::of(&cluster.provider),
            )
        },
    );
    let all = || arm.measured.iter().chain(&arm.others);
    let entry = unique(all().filter_map(|t| Some((t, t.target.as_ref()?))).map(|(t, target)| {
        if let (true, EnterBy::Named(name)) =
            (target.entry_node.is_empty(), &t.config.flows.enter_by)
        {
            return name.clone();
        }
        let side = if target.node == target.entry_node { "the pod's node" } else { "another node" };
        let how = match (t.config.flows.via, t.config.flows.from) {
            (Via::NodePort, Vantage::Outside) => String::new(),
            (via, from) => format!(", {} from {}", words::of(&via), words::of(&from)),
        };
        format!("{} ({side}){how}", target.entry_node)
    }));
    let digests = unique(all().map(|t| t.environment.digest.chars().take(12).collect()));
    vec![
        arm.name.to_owned(),
        arm.measured.len().to_string(),
        format!("{}{}", words::of(&trial.config.sigterm), hook(&trial.config)),
        words::of(&trial.config.trigger),
        words::figure(Some(trial.config.grace_period.as_secs_f64() * 1e3)),
        or_not_measured(entry.join(", ")),
        cluster,
        or_not_measured(digests.join(", ")),
    ]
}

fn or_not_measured(text: String) -> String {
    if text.is_empty() { NOT_MEASURED.to_owned() } else { text }
}

/// Arms whose measured trials were not of one build, configuration and environment.
pub(super) fn mixed<'a>(arms: &'a [Arm<'a>]) -> impl Iterator<Item = (&'a Arm<'a>, String)> {
    let differs = |arm: &Arm, part: &str, of: &dyn Fn(&Trial, &Trial) -> bool| {
        let first = arm.measured.first()?;
        arm.measured.iter().any(|trial| !of(first, trial)).then(|| {
            format!(
                "{}: its trials differ in their {part}: no figure over them means anything.",
                arm.name
            )
        })
    };
    let one_place = |a: &Trial, b: &Trial| {
        a.environment.digest == b.environment.digest && a.imported == b.imported
    };
    // Of readiness only an import's log tells, and a line of that may be lost.
    let told = |trial: &Trial| Scenario {
        readiness: trial.config.readiness.filter(|_| trial.imported.is_none()),
        ..trial.config.clone()
    };
    let one_configuration = move |a: &Trial, b: &Trial| told(a) == told(b);
    arms.iter().flat_map(move |arm| {
        let lines = [
            differs(arm, "environment", &one_place),
            differs(arm, "build", &|a, b| a.tool == b.tool),
            differs(arm, "configuration", &one_configuration),
        ];
        lines.into_iter().flatten().map(move |line| (arm, line))
    })
}

fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

/// `, after a preStop of 2s`: what comes before SIGTERM, where something does.
pub(super) fn hook(config: &Scenario) -> String {
    match &config.pod.pre_stop {
        None => String::new(),
        Some(PreStop::Sleep(time)) => {
            format!(", after a preStop of {}", humantime::format_duration(*time))
        }
        Some(PreStop::Exec(command)) => {
            format!(", after a preStop of {}", command.first().map_or("", String::as_str))
        }
    }
}

/// How far a trial's instants may be off, by the calibration that it carries.
pub(super) fn exactness(trial: &Trial) -> Option<String> {
    let exactness = trial.exactness.as_ref()?;
    let load = &exactness.load;
    let most = |of: fn(&InstantError) -> f64| load.instants.iter().map(of).reduce(f64::max);
    let (p99, worst) = (most(|i| i.p99_ms)?, most(|i| i.max_ms)?);
    let day: String = exactness.calibrated_at.chars().take(10).collect();
    Some(format!(
        "by this machine's calibration of {day} with {0} + {0} flows, 99 of 100 instants of each kind that \
         flows tell are within {p99:.3} ms of their packets, and the worst was {worst:.3} ms off",
        load.flows
    ))
}

/// What relating clocks added to any figure, and what a calibration says.
pub(super) fn clocks<'a>(trials: impl Iterator<Item = &'a Trial>) -> String {
    let measured: Vec<_> = trials.filter(|trial| trial.outcome == Outcome::Measured).collect();
    let calibrations = unique(measured.iter().filter_map(|trial| exactness(trial)));
    let calibrated = calibrations.iter().map(|text| format!(" {}.", capitalized(text)));
    let calibrated: String = calibrated.collect();
    related(&measured) + &calibrated
}

fn related(measured: &[&Trial]) -> String {
    let all = |own: bool| {
        let of = measured.iter().filter(move |trial| own == trial.imported.is_none());
        of.flat_map(|t| t.finding_bounds.values().map(|b| b.plus_minus_ms))
    };
    let bounds: Vec<_> = all(true).collect();
    let most = bounds.iter().flatten().copied().fold(0.0, f64::max);
    if bounds.contains(&None) || all(false).any(|bound| bound.is_none()) {
        "≈ was read on a clock of which the distance to the runner's has no known bound.".into()
    } else if bounds.is_empty() {
        String::new()
    } else if most > 0.0 {
        format!("Relating clocks adds up to {} ms.", words::plus_minus(most))
    } else {
        "All were read on one clock.".into()
    }
}
