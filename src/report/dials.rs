//! Rows about new connections: what an arm's dials met after the trigger.
//!
//! Takes an arm's trials; gives rows of text, for whoever puts them into a table.

use super::arms::Arm;
use super::stats::Stats;
use super::words;
use crate::observation::{DialOutcome, Protocol};
use crate::record::Trial;
use crate::verdict::DialRecord;

/// A row for each protocol of which dials were made.
pub(super) fn rows(arm: &Arm) -> impl Iterator<Item = Vec<String>> {
    [Protocol::Tcp, Protocol::Udp].into_iter().filter_map(|protocol| row(arm, protocol))
}

/// The same in short: what failed, and when.
pub(super) fn failures(arm: &Arm) -> impl Iterator<Item = Vec<String>> {
    rows(arm).map(|row| [0, 2, 3, 4, 6, 7, 9].map(|column| row[column].clone()).to_vec())
}

fn row(arm: &Arm, protocol: Protocol) -> Option<Vec<String>> {
    let n = arm.measured.len();
    let made = arm.stats(|trial| {
        let made = after_trigger(trial, protocol).map(|dial| dial.count).sum::<u64>();
        (made > 0).then_some(made as f64)
    })?;
    let name = protocol.name().to_lowercase();
    let of = |figure: &str| figure.replace('*', &name);
    let finding = |figure: &str| words::finding(arm, &of(figure));
    Some(vec![
        arm.name.to_owned(),
        n.to_string(),
        protocol.name().to_owned(),
        words::counts(Some(made), n),
        words::counts(arm.finding(&of("failed_*_dials")), n),
        met(arm, protocol),
        finding("first_failed_*_dial_ms"),
        finding("last_failed_*_dial_ms"),
        words::finding(arm, "endpoint_removed_ms"),
        words::finding(arm, "rules_removed_ms"),
        finding("first_*_dial_by_replacement_ms"),
        words::stats(slowest(arm, protocol), n),
    ])
}

/// The dials of a trial that were started after its trigger and say something of the cluster.
fn after_trigger(trial: &Trial, protocol: Protocol) -> impl Iterator<Item = &DialRecord> {
    trial.dials.iter().filter(move |dial| {
        dial.kind.protocol == protocol && dial.to_ms >= 0.0 && dial.kind.outcome.is_of_the_cluster()
    })
}

/// `24 refused, 3 unanswered`: what dials met that failed, over all measured trials.
fn met(arm: &Arm, protocol: Protocol) -> String {
    let dials = || arm.measured.iter().flat_map(|trial| after_trigger(trial, protocol));
    let failures = DialOutcome::ALL.into_iter().filter(|outcome| outcome.is_failure());
    let counts = failures.filter_map(|outcome| {
        let of = dials().filter(|dial| dial.kind.outcome == outcome);
        let count = of.fold(0_u64, |sum, dial| sum.saturating_add(dial.count));
        (count > 0).then(|| format!("{count} {}", outcome.name()))
    });
    let counts: Vec<_> = counts.collect();
    if counts.is_empty() { words::NOT_MEASURED.to_owned() } else { counts.join(", ") }
}

/// The longest that a dial that was accepted waited for its answer, in each trial.
fn slowest(arm: &Arm, protocol: Protocol) -> Option<Stats> {
    arm.stats(|trial| {
        let accepted = after_trigger(trial, protocol)
            .filter(|dial| dial.kind.outcome == DialOutcome::Accepted);
        accepted.filter_map(|dial| Some(dial.took?.greatest_ms)).max_by(f64::total_cmp)
    })
}
