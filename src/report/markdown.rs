//! `summary.md`: the run on one page, with what disagrees above what is averaged.
//!
//! Takes trial records and, where there is one, the run's; gives Markdown. The words stand in
//! `summary.md.j2`, the figures come from here.

use minijinja::{Environment, context};

use super::ReportError;
use super::arms::{Arm, arms, count, finding, flows};
use super::words::{self, NOT_MEASURED};
use crate::config::Sigterm;
use crate::observation::Protocol;
use crate::record::disagreements;
use crate::record::{ArmStage, Run, Trial};
use crate::verdict::{Cause, Fate, FlowRecord, Outcome};

/// The page.
pub fn markdown(trials: &[Trial], run: Option<&Run>) -> Result<String, ReportError> {
    render(trials, run).map_err(|error| ReportError::Render {
        file: "summary.md",
        // The alternate form names the template's line.
        reason: format!("{error:#}"),
    })
}

type Row = Vec<String>;

fn render(trials: &[Trial], run: Option<&Run>) -> Result<String, minijinja::Error> {
    let arms = arms(trials);
    let with = |protocol| arms.iter().filter(move |arm| has(arm, protocol));
    let number = |outcome| trials.iter().filter(|t| t.outcome == outcome).count();
    let mut tcp: Vec<&Arm> = with(Protocol::Tcp).collect();
    tcp.sort_by_key(|arm| arm.any().map(|trial| trial.config.sigterm as u8));
    let context = context! {
        title => unique(trials.iter().map(|trial| trial.matrix.clone())).join(", "),
        measured => number(Outcome::Measured),
        aborted => number(Outcome::Aborted),
        refused => number(Outcome::TriggerRefused),
        superseded => run.map_or(0, |run| run.arms.iter().map(|a| a.trials_superseded).sum::<u32>()),
        interrupted => run.and_then(|run| run.interrupted.clone()),
        builds => unique(trials.iter().map(build)),
        arms => rows(arms.iter().map(|arm| place(arm, run))),
        mixed => mixed(&arms),
        disagreements => disagreements(trials),
        clocks => clocks(trials),
        every => rows(arms.iter().map(every)),
        tcp => rows(tcp.into_iter().map(tcp_row)),
        dead => rows(arms.iter().flat_map(|arm| arm.measured.iter().filter_map(|t| dead(t)))),
        dead_arms => rows(arms.iter().filter_map(dead_arm)),
        udp => rows(with(Protocol::Udp).map(udp_row)),
        others => rows(arms.iter().flat_map(|arm| arm.others.iter().map(|t| other(t)))),
        unfinished => rows(run.iter().flat_map(|run| &run.arms).filter(|a| a.state != ArmStage::Done)
            .map(|a| vec![a.name.clone(), words::of(&a.state), a.reason.clone().unwrap_or_default()])),
        warnings => rows(trials.iter().flat_map(|trial| {
            trial.all_warnings().map(|warning| vec![trial.id.clone(), warning.to_owned()])
        })),
        causes => rows(arms.iter().flat_map(causes)),
    };
    let mut environment = Environment::new();
    // A bar or a line break in a reason must not end its cell.
    environment.add_filter("cell", |text: String| {
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        text.replace('|', "\\|").replace('<', "&lt;")
    });
    let page =
        environment.render_named_str("summary.md", include_str!("summary.md.j2"), context)?;
    Ok(page.trim_end().to_owned() + "\n")
}

fn rows(rows: impl Iterator<Item = Row>) -> Vec<Row> {
    rows.collect()
}

fn unique(values: impl Iterator<Item = String>) -> Row {
    let mut seen = Vec::new();
    for value in values {
        if !seen.contains(&value) {
            seen.push(value);
        }
    }
    seen
}

/// Whether its measured trials held such flows.
fn has(arm: &Arm, protocol: Protocol) -> bool {
    arm.measured.iter().any(|trial| flows(trial, protocol).next().is_some())
}

fn build(trial: &Trial) -> String {
    let tool = &trial.tool;
    let changed = if tool.dirty == Some(true) { ", with local changes" } else { "" };
    let commit: String = tool.commit.chars().take(12).collect();
    format!("{} (commit {commit}{changed})", tool.version)
}

/// What an arm was and where it was measured.
fn place(arm: &Arm, run: Option<&Run>) -> Row {
    let Some(trial) = arm.any() else { return Vec::new() };
    let planned = run.and_then(|run| run.plan.arms.iter().find(|a| a.name == arm.name));
    let cluster = planned.map_or(NOT_MEASURED.to_owned(), |planned| {
        let cluster = &planned.cluster;
        format!(
            "Kubernetes {}, {} {}, {}, {}",
            cluster.kubernetes,
            cluster.nodes,
            if cluster.nodes == 1 { "node" } else { "nodes" },
            words::of(&cluster.proxy_mode),
            words::of(&cluster.provider),
        )
    });
    let all = || arm.measured.iter().chain(&arm.others);
    let entry = unique(all().filter_map(|t| t.target.as_ref()).map(|target| {
        let side = if target.node == target.entry_node { "the pod's node" } else { "another node" };
        format!("{} ({side})", target.entry_node)
    }));
    let digests = unique(all().map(|t| t.environment.digest.chars().take(12).collect()));
    vec![
        arm.name.to_owned(),
        arm.measured.len().to_string(),
        words::of(&trial.config.sigterm),
        words::of(&trial.config.trigger),
        words::figure(Some(trial.config.grace_period.as_secs_f64() * 1e3)),
        if entry.is_empty() { NOT_MEASURED.to_owned() } else { entry.join(", ") },
        cluster,
        digests.join(", "),
    ]
}

/// Arms whose measured trials were not of one build, configuration and environment.
fn mixed(arms: &[Arm]) -> Row {
    let differs = |arm: &Arm, part: &str, of: &dyn Fn(&Trial, &Trial) -> bool| {
        let first = arm.measured.first()?;
        arm.measured.iter().any(|trial| !of(first, trial)).then(|| {
            format!(
                "{}: its trials differ in their {part}: no figure over them means anything.",
                arm.name
            )
        })
    };
    let lines = arms.iter().flat_map(|arm| {
        [
            differs(arm, "environment", &|a, b| a.environment.digest == b.environment.digest),
            differs(arm, "build", &|a, b| a.tool == b.tool),
            differs(arm, "configuration", &|a, b| a.config == b.config),
        ]
    });
    lines.flatten().collect()
}

/// What relating clocks added to any figure.
fn clocks(trials: &[Trial]) -> String {
    let measured = trials.iter().filter(|trial| trial.outcome == Outcome::Measured);
    let bounds: Vec<_> =
        measured.flat_map(|t| t.finding_bounds.values().map(|b| b.plus_minus_ms)).collect();
    let most = bounds.iter().flatten().copied().fold(0.0, f64::max);
    if bounds.is_empty() {
        String::new()
    } else if bounds.contains(&None) {
        "Some were read on a clock of which the distance to the runner's has no known bound.".into()
    } else if most > 0.0 {
        format!("Relating clocks adds up to ±{most:.3} ms.")
    } else {
        "All were read on one clock.".into()
    }
}

/// A row of the table of all arms.
fn every(arm: &Arm) -> Row {
    let n = arm.measured.len();
    vec![
        arm.name.to_owned(),
        n.to_string(),
        words::fates(arm, Protocol::Tcp),
        words::stats(arm.finding("last_tcp_end_ms"), n),
        words::fates(arm, Protocol::Udp),
        words::udp_ends(arm),
        words::stats(arm.finding("endpoint_removed_ms"), n),
        words::exit(arm),
    ]
}

fn tcp_row(arm: &Arm) -> Row {
    let n = arm.measured.len();
    let finding = |name| words::stats(arm.finding(name), n);
    vec![
        arm.any().map_or_else(String::new, |trial| words::of(&trial.config.sigterm)),
        arm.name.to_owned(),
        n.to_string(),
        words::fates(arm, Protocol::Tcp),
        finding("sigterm_ms"),
        finding("last_tcp_end_ms"),
        finding("app_shutdown_ms"),
        words::exit(arm),
        finding("sigkill_after_grace_ms"),
    ]
}

fn dead(trial: &Trial) -> Option<Row> {
    let figure = |name| words::figure(finding(trial, name));
    (trial.config.sigterm == Sigterm::Exit && finding(trial, "last_tcp_end_ms").is_some()).then(
        || {
            vec![
                trial.id.clone(),
                figure("last_tcp_end_ms"),
                figure("endpoint_not_ready_ms"),
                figure("endpoint_removed_ms"),
                figure("dead_ready_window_ms"),
                figure("dead_endpoint_window_ms"),
            ]
        },
    )
}

fn dead_arm(arm: &Arm) -> Option<Row> {
    let n = arm.measured.len();
    let finding = |name| words::stats(arm.finding(name), n);
    arm.measured.iter().any(|trial| dead(trial).is_some()).then(|| {
        vec![
            arm.name.to_owned(),
            n.to_string(),
            finding("dead_ready_window_ms"),
            finding("dead_endpoint_window_ms"),
        ]
    })
}

fn udp_row(arm: &Arm) -> Row {
    let n = arm.measured.len();
    let finding = |name| words::stats(arm.finding(name), n);
    let fate = |fate| arm.count(Protocol::Udp, fate);
    let named = [Fate::Rehomed, Fate::Refused, Fate::Silent];
    let others = Fate::ALL.into_iter().filter(|f| !named.contains(f) && fate(*f) > 0);
    let others: Vec<_> = others.map(|f| format!("{} {}", fate(f), f.name())).collect();
    let udp = |trial: &Trial, figure: fn(&FlowRecord) -> Option<f64>| {
        flows(trial, Protocol::Udp).filter_map(figure).max_by(f64::total_cmp)
    };
    let refused = arm.measured.iter().flat_map(|t| flows(t, Protocol::Udp));
    vec![
        arm.name.to_owned(),
        n.to_string(),
        arm.any().map_or_else(String::new, |trial| words::of(&trial.config.sigterm)),
        arm.any().map_or_else(String::new, |trial| words::of(&trial.config.readiness)),
        fate(Fate::Rehomed).to_string(),
        fate(Fate::Refused).to_string(),
        fate(Fate::Silent).to_string(),
        if others.is_empty() { "0".to_owned() } else { others.join(", ") },
        finding("endpoint_not_serving_ms"),
        finding("replacement_ready_ms"),
        finding("first_rehomed_ms"),
        finding("last_rehomed_ms"),
        words::stats(arm.stats(|trial| udp(trial, |flow| flow.outage_ms)), n),
        finding("first_refused_ms"),
        refused.filter(|flow| flow.refusals > 0).count().to_string(),
        finding("unused_drain_ms"),
    ]
}

fn other(trial: &Trial) -> Row {
    let reason = trial.reason.clone().unwrap_or_else(|| "no reason was recorded".to_owned());
    vec![trial.id.clone(), words::of(&trial.outcome).replace('-', " "), reason]
}

/// A line for each fate that an arm's flows met and each kind of cause that it has: the first such
/// flow's words, and how many flows have the same but for their figures.
fn causes(arm: &Arm) -> Vec<Row> {
    let mut lines = Vec::new();
    for (protocol, fate) in super::fates() {
        let met =
            || arm.measured.iter().flat_map(move |t| flows(t, protocol)).filter(|f| f.fate == fate);
        let all: usize = arm.measured.iter().map(|t| count(t, protocol, fate)).sum();
        let mut kinds: Vec<(String, &Cause, usize)> = Vec::new();
        for cause in met().filter_map(|flow| flow.cause.as_ref()) {
            let kind = kind(cause);
            match kinds.iter_mut().find(|(known, ..)| *known == kind) {
                Some((.., count)) => *count += 1,
                None => kinds.push((kind, cause, 1)),
            }
        }
        lines.extend(kinds.into_iter().map(|(_, cause, count)| {
            vec![
                arm.name.to_owned(),
                protocol.name().to_owned(),
                fate.name().to_owned(),
                cause.basis.name().to_owned(),
                cause.text.clone(),
                format!("{count} of {all}"),
            ]
        }));
    }
    lines
}

/// A cause without its figures: what two flows of one kind share.
fn kind(cause: &Cause) -> String {
    let words =
        cause.text.split_whitespace().filter(|word| !word.contains(|c: char| c.is_ascii_digit()));
    words.fold(cause.basis.name().to_owned(), |kind, word| kind + " " + word)
}
