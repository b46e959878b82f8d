//! Where fates differ: between the repeats of an arm, or between the flows of one trial.
//!
//! Takes judged trials; gives sentences that stand above all statistics, since a median over
//! trials that do not agree says little.

use std::collections::BTreeMap;

use crate::record::{Fate, Outcome, Protocol, Trial};

/// A line for each arm and protocol of which the fates of measured trials differ, in the order in
/// which the arms come.
pub fn disagreements(trials: &[Trial]) -> Vec<String> {
    let mut arms: Vec<&str> = Vec::new();
    for trial in trials {
        if !arms.contains(&trial.arm.as_str()) {
            arms.push(&trial.arm);
        }
    }
    let measured = |arm: &str| {
        let of_arm = |t: &&Trial| t.arm == arm && t.outcome == Outcome::Measured;
        trials.iter().filter(of_arm).collect::<Vec<_>>()
    };
    let lines = arms.iter().flat_map(|arm| {
        let trials = measured(arm);
        [Protocol::Tcp, Protocol::Udp].map(|protocol| line(arm, protocol, &trials))
    });
    lines.flatten().collect()
}

fn line(arm: &str, protocol: Protocol, trials: &[&Trial]) -> Option<String> {
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
fn fates(trial: &Trial, protocol: Protocol) -> BTreeMap<Fate, usize> {
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
