//! `summary.md`: the run on one page, with what disagrees above what is averaged.
//!
//! Takes trial records and, where there is one, the run's; gives Markdown. The words stand in
//! `summary.md.j2`, the figures come from here.

use minijinja::{Environment, context};

use super::arms::{Arm, arms, count, finding, flows};
use super::chain;
use super::part::{Part, are_told_apart};
use super::provenance::{build, clocks, imported, mixed, place, unique};
use super::words;
use super::{ReportError, dials};
use crate::config::Sigterm;
use crate::observation::Protocol;
use crate::record::disagreements;
use crate::record::{ArmStage, Trial};
use crate::verdict::{Cause, Fate, FlowRecord, Outcome};

/// The page.
pub fn markdown(parts: &[Part]) -> Result<String, ReportError> {
    render(parts).map_err(|error| ReportError::Render {
        file: "summary.md",
        // The alternate form names the template's line.
        reason: format!("{error:#}"),
    })
}

pub(super) type Row = Vec<String>;

fn render(parts: &[Part]) -> Result<String, minijinja::Error> {
    let arms = arms(parts);
    let trials = || parts.iter().flat_map(|part| part.trials);
    // Each row begins with its run where there are several.
    let apart = are_told_apart(parts);
    let of = |part: &Part, row: Row| {
        if apart { std::iter::once(part.origin()).chain(row).collect() } else { row }
    };
    let named = |part: &Part| if apart { format!("{}: ", part.name) } else { String::new() };
    let with = |protocol| arms.iter().filter(move |arm| has(arm, protocol));
    let number = |outcome| trials().filter(|t| t.outcome == outcome).count();
    let mut tcp: Vec<&Arm> = with(Protocol::Tcp).collect();
    tcp.sort_by_key(|arm| arm.any().map(|trial| trial.config.sigterm as u8));
    let context = context! {
        run => if apart { vec!["run"] } else { Vec::new() },
        title => unique(trials().map(|trial| trial.matrix.clone())).join(", "),
        measured => number(Outcome::Measured),
        aborted => number(Outcome::Aborted),
        refused => number(Outcome::TriggerRefused),
        superseded => parts.iter().filter_map(|part| part.run).flat_map(|run| &run.arms)
            .map(|arm| arm.trials_superseded).sum::<u32>(),
        interrupted => parts.iter().filter_map(|part| interrupted(part, apart)).collect::<Vec<_>>(),
        builds => unique(trials().filter(|trial| trial.imported.is_none()).map(build)),
        imported => unique(trials().filter_map(imported)),
        arms => rows(arms.iter().map(|arm| of(arm.part, place(arm)))),
        mixed => mixed(&arms).map(|(arm, line)| named(arm.part) + &line).collect::<Vec<_>>(),
        disagreements => parts.iter().flat_map(|part| {
            disagreements(part.trials).into_iter().map(move |line| named(part) + &line)
        }).collect::<Vec<_>>(),
        clocks => clocks(trials()),
        every => rows(arms.iter().map(|arm| of(arm.part, every(arm)))),
        tcp => rows(tcp.into_iter().map(|arm| of(arm.part, tcp_row(arm)))),
        dead => rows(arms.iter().flat_map(|arm| {
            arm.measured.iter().filter_map(move |t| Some(of(arm.part, dead(t)?)))
        })),
        dead_arms => rows(arms.iter().filter_map(|arm| Some(of(arm.part, dead_arm(arm)?)))),
        udp => rows(with(Protocol::Udp).map(|arm| of(arm.part, udp_row(arm)))),
        new_connections => rows(arms.iter().flat_map(|arm| {
            dials::rows(arm).map(move |row| of(arm.part, row))
        })),
        others => rows(arms.iter().flat_map(|arm| {
            arm.others.iter().map(move |t| of(arm.part, other(t)))
        })),
        unfinished => rows(parts.iter().flat_map(|part| {
            unfinished(part).into_iter().map(move |row| of(part, row))
        })),
        warnings => rows(parts.iter().flat_map(|part| {
            let warnings = part.warnings(|_| true).into_iter();
            warnings.map(move |(who, text)| of(part, vec![who, text.to_owned()]))
        })),
        chains => rows(arms.iter().flat_map(|arm| {
            chain::rows(arm).into_iter().map(move |row| of(arm.part, row))
        })),
        causes => rows(arms.iter().flat_map(|arm| {
            causes(arm).into_iter().map(move |row| of(arm.part, row))
        })),
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

/// Whether its measured trials held such flows.
fn has(arm: &Arm, protocol: Protocol) -> bool {
    arm.measured.iter().any(|trial| flows(trial, protocol).next().is_some())
}

fn interrupted(part: &Part, apart: bool) -> Option<String> {
    let signal = part.run?.interrupted.as_ref()?;
    let name = if apart { format!(" {}", part.name) } else { String::new() };
    Some(format!("The run{name} was interrupted: {signal}."))
}

/// The arms of which not every trial was run.
fn unfinished(part: &Part) -> Vec<Row> {
    let arms = part.run.iter().flat_map(|run| &run.arms);
    let arms = arms.filter(|arm| arm.state != ArmStage::Done);
    let row = |arm: &crate::record::ArmState| {
        vec![arm.name.clone(), words::of(&arm.state), arm.reason.clone().unwrap_or_default()]
    };
    arms.map(row).collect()
}

/// A row of the table of all arms.
fn every(arm: &Arm) -> Row {
    let finding = |name| words::finding(arm, name);
    vec![
        arm.name.to_owned(),
        arm.measured.len().to_string(),
        words::fates(arm, Protocol::Tcp),
        finding("last_tcp_end_ms"),
        words::fates(arm, Protocol::Udp),
        words::udp_ends(arm),
        finding("endpoint_removed_ms"),
        words::exit(arm),
    ]
}

fn tcp_row(arm: &Arm) -> Row {
    let n = arm.measured.len();
    let finding = |name| words::finding(arm, name);
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
    let finding = |name| words::finding(arm, name);
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
    let finding = |name| words::finding(arm, name);
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
pub(super) fn kind(cause: &Cause) -> String {
    let words =
        cause.text.split_whitespace().filter(|word| !word.contains(|c: char| c.is_ascii_digit()));
    words.fold(cause.basis.name().to_owned(), |kind, word| kind + " " + word)
}
