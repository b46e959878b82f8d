//! The table that stands at the end of a run: a line an arm, then what to know before using it.
//!
//! Takes trial records; gives text without colour, for whoever prints it.

use super::arms::{Arm, arms};
use super::words;
use crate::observation::Protocol;
use crate::record::Trial;
use crate::record::disagreements;
use crate::verdict::Outcome;

const HEADER: [&str; 8] =
    ["arm", "n", "TCP", "last TCP end", "UDP", "UDP from", "endpoint removed", "container exit"];

/// The text, with a newline at its end. Figures are milliseconds from the trigger: median
/// (least–greatest).
pub fn terminal(trials: &[Trial]) -> String {
    let arms = arms(trials);
    let mut rows = vec![HEADER.map(str::to_owned)];
    rows.extend(arms.iter().map(row));
    let mut text = aligned(&rows);
    text +=
        "milliseconds from the trigger, median (least–greatest); endpoint and container: at most\n";
    let mut notes: Vec<String> = Vec::new();
    notes.extend(disagreements(trials).into_iter().map(|line| format!("disagreement: {line}")));
    for trial in arms.iter().flat_map(|arm| &arm.others) {
        let reason = trial.reason.as_deref().unwrap_or("no reason was recorded");
        let outcome = match trial.outcome {
            Outcome::TriggerRefused => "trigger refused",
            _ => "aborted",
        };
        notes.push(format!("{outcome}: {}: {reason}", trial.id));
    }
    for trial in trials.iter().filter(|trial| trial.outcome == Outcome::Measured) {
        notes.extend(
            trial.all_warnings().map(|warning| format!("warning: {}: {warning}", trial.id)),
        );
    }
    if !notes.is_empty() {
        text.push('\n');
        notes.iter().for_each(|note| text += &format!("{note}\n"));
    }
    text
}

fn row(arm: &Arm) -> [String; 8] {
    let n = arm.measured.len();
    let finding = |name| words::stats(arm.finding(name), n);
    [
        arm.name.to_owned(),
        n.to_string(),
        words::fates(arm, Protocol::Tcp),
        finding("last_tcp_end_ms"),
        words::fates(arm, Protocol::Udp),
        words::udp_ends(arm),
        finding("endpoint_removed_ms"),
        words::exit(arm),
    ]
}

/// Columns as wide as their widest cell, two spaces between them, none at a line's end.
fn aligned<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: [usize; N] = std::array::from_fn(|column| width(column).unwrap_or(0));
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}
