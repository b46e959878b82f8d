//! The table that stands at the end of a run: a line an arm, then what to know before using it.
//!
//! Takes trial records; gives text without colour, for whoever prints it.

use super::arms::{Arm, arms};
use super::dials;
use super::part::{Part, are_told_apart};
use super::words;
use crate::observation::Protocol;
use crate::record::disagreements;
use crate::verdict::Outcome;

const HEADER: [&str; 9] = [
    "run",
    "arm",
    "n",
    "TCP",
    "last TCP end",
    "UDP",
    "UDP from",
    "endpoint removed",
    "container exit",
];

/// The same, of new connections.
const DIALS: [&str; 8] = [
    "run",
    "new connections",
    "",
    "made",
    "failed",
    "first failed",
    "last failed",
    "rules removed",
];

/// The findings among them.
const SHOWN: [&str; 3] = ["last_tcp_end_ms", "endpoint_removed_ms", "container_exit_ms"];

/// The text, with a newline at its end. Figures are milliseconds from the trigger: median
/// (least–greatest).
pub fn terminal(parts: &[Part]) -> String {
    let arms = arms(parts);
    let apart = are_told_apart(parts);
    let mut rows = vec![HEADER.map(str::to_owned).to_vec()];
    rows.extend(arms.iter().map(row));
    if !apart {
        rows.iter_mut().for_each(|row| drop(row.remove(0)));
    }
    let mut text = aligned(&rows);
    if arms.iter().any(|arm| SHOWN.iter().any(|name| arm.approximate(name))) {
        text += "≈ was read on a clock of which the distance to the runner's has no known bound\n";
    }
    text +=
        "milliseconds from the trigger, median (least–greatest); endpoint and container: at most\n";
    text += &new_connections(&arms, apart);
    let mut notes: Vec<String> = Vec::new();
    let of = |part: &Part| if parts.len() > 1 { format!("{}: ", part.name) } else { String::new() };
    for part in parts {
        if let Some(signal) = part.run.and_then(|run| run.interrupted.as_ref()) {
            notes.push(format!("interrupted: {}: {signal}", part.name));
        }
    }
    for part in parts {
        let lines = disagreements(part.trials).into_iter();
        notes.extend(lines.map(|line| format!("disagreement: {}{line}", of(part))));
    }
    let others = arms.iter().flat_map(|arm| arm.others.iter().map(move |trial| (arm, trial)));
    for (arm, trial) in others {
        let reason = trial.reason.as_deref().unwrap_or("no reason was recorded");
        let outcome = match trial.outcome {
            Outcome::TriggerRefused => "trigger refused",
            _ => "aborted",
        };
        notes.push(format!("{outcome}: {}{}: {reason}", of(arm.part), trial.id));
    }
    for part in parts {
        let warnings = part.warnings(|trial| trial.outcome == Outcome::Measured).into_iter();
        notes.extend(warnings.map(|(who, text)| format!("warning: {}{who}: {text}", of(part))));
    }
    if !notes.is_empty() {
        text.push('\n');
        notes.iter().for_each(|note| text += &format!("{note}\n"));
    }
    text
}

/// What new connections met, where some were made.
fn new_connections(arms: &[Arm], apart: bool) -> String {
    let mut rows = vec![Vec::from(DIALS.map(str::to_owned))];
    for arm in arms {
        let of_run = |row: Vec<String>| std::iter::once(arm.part.origin()).chain(row).collect();
        rows.extend(dials::failures(arm).map(of_run));
    }
    if !apart {
        rows.iter_mut().for_each(|row| drop(row.remove(0)));
    }
    if rows.len() == 1 { String::new() } else { format!("\n{}", aligned(&rows)) }
}

fn row(arm: &Arm) -> Vec<String> {
    let finding = |name| words::finding(arm, name);
    vec![
        arm.part.origin(),
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

/// Columns as wide as their widest cell, two spaces between them, none at a line's end.
fn aligned(rows: &[Vec<String>]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let columns = rows.first().map_or(0, Vec::len);
    let widths: Vec<usize> = (0..columns).filter_map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}
