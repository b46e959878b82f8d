//! Where fates differ: between the repeats of an arm, or between the flows of one trial.
//!
//! Takes the judged flows of measured trials; gives sentences that stand above all statistics, since a median over
//! trials that do not agree says little.

use std::collections::BTreeMap;

use super::{Fate, FlowRecord};
use crate::observation::Protocol;

/// A measured trial's flows, and which trial it was.
#[derive(Clone, Copy, Debug)]
pub struct Repeat<'a> {
    /// The arm's name.
    pub arm: &'a str,
    /// The trial's number in it.
    pub repeat: u32,
    /// What became of its flows.
    pub flows: &'a [FlowRecord],
}

/// A line for each arm and protocol of which the fates of measured trials differ, in the order in
/// which the arms come.
pub fn disagreements(repeats: &[Repeat<'_>]) -> Vec<String> {
    let mut arms: Vec<&str> = Vec::new();
    for repeat in repeats {
        if !arms.contains(&repeat.arm) {
            arms.push(repeat.arm);
        }
    }
    let lines = arms.iter().flat_map(|arm| {
        let of_arm: Vec<_> = repeats.iter().filter(|repeat| repeat.arm == *arm).collect();
        [Protocol::Tcp, Protocol::Udp].map(|protocol| line(arm, protocol, &of_arm))
    });
    lines.flatten().collect()
}

fn line(arm: &str, protocol: Protocol, trials: &[&Repeat<'_>]) -> Option<String> {
    let name = protocol.name();
    let counts: Vec<_> = trials.iter().map(|trial| fates(trial, protocol)).collect();
    let first = counts.first()?;
    if counts.iter().any(|count| count != first) {
        let each = trials.iter().zip(&counts);
        let each = each.map(|(trial, count)| format!("{:03} {}", trial.repeat, words(count)));
        let each = each.collect::<Vec<_>>().join("; ");
        return Some(format!("{arm}: {name} fates differ between repeats: {each}"));
    }
    (first.len() > 1).then(|| {
        let among = words(first);
        match trials.len() {
            1 => format!("{arm}: {name} flows of one trial differ: {among}"),
            n => format!("{arm}: {name} flows of one trial differ, alike in {n} repeats: {among}"),
        }
    })
}

/// How many flows met each fate.
fn fates(trial: &Repeat<'_>, protocol: Protocol) -> BTreeMap<Fate, usize> {
    let mut counts = BTreeMap::new();
    for flow in trial.flows.iter().filter(|flow| flow.protocol == protocol) {
        *counts.entry(flow.fate).or_default() += 1;
    }
    counts
}

fn words(counts: &BTreeMap<Fate, usize>) -> String {
    if counts.is_empty() {
        return "no flow".to_owned();
    }
    let each = counts.iter().map(|(fate, n)| format!("{} {n}", fate.name()));
    each.collect::<Vec<_>>().join(", ")
}
