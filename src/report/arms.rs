//! Trials by arm: what every table of arms is made from.
//!
//! Takes trial records; gives counts and statistics over an arm's measured trials. Aborted trials
//! and refused triggers are kept apart and never counted in.

use super::stats::Stats;
use crate::observation::Protocol;
use crate::record::Trial;
use crate::verdict::{Fate, FlowRecord, Outcome};

/// An arm's trials, in the order in which they were given.
#[derive(Debug)]
pub(super) struct Arm<'a> {
    pub name: &'a str,
    /// Those that count.
    pub measured: Vec<&'a Trial>,
    /// Aborted ones and those of which the trigger was refused.
    pub others: Vec<&'a Trial>,
}

/// The arms, in the order in which their first trials come.
pub(super) fn arms(trials: &[Trial]) -> Vec<Arm<'_>> {
    let mut arms: Vec<Arm> = Vec::new();
    for trial in trials {
        let name = trial.arm.as_str();
        let at = arms.iter().position(|arm| arm.name == name).unwrap_or_else(|| {
            arms.push(Arm { name, measured: Vec::new(), others: Vec::new() });
            arms.len() - 1
        });
        match trial.outcome {
            Outcome::Measured => arms[at].measured.push(trial),
            Outcome::Aborted | Outcome::TriggerRefused => arms[at].others.push(trial),
        }
    }
    arms
}

impl<'a> Arm<'a> {
    /// Any of its trials: they share a scenario.
    pub fn any(&self) -> Option<&'a Trial> {
        self.measured.first().or(self.others.first()).copied()
    }

    /// How many flows of its measured trials met this fate.
    pub fn count(&self, protocol: Protocol, fate: Fate) -> usize {
        self.measured.iter().map(|trial| count(trial, protocol, fate)).sum()
    }

    /// A finding over the measured trials that have it.
    pub fn finding(&self, name: &str) -> Option<Stats> {
        self.stats(|trial| finding(trial, name))
    }

    /// A figure of each measured trial.
    pub fn stats(&self, figure: impl Fn(&Trial) -> Option<f64>) -> Option<Stats> {
        Stats::of(self.measured.iter().filter_map(|trial| figure(trial)))
    }

    /// When the first flow of a trial met this fate.
    pub fn first_end(&self, protocol: Protocol, fate: Fate) -> Option<Stats> {
        self.stats(|trial| {
            let ends = flows(trial, protocol).filter(|f| f.fate == fate).filter_map(|f| f.ended_ms);
            ends.min_by(f64::total_cmp)
        })
    }
}

/// A trial's flows of one protocol.
pub(super) fn flows(trial: &Trial, protocol: Protocol) -> impl Iterator<Item = &FlowRecord> {
    trial.flows.iter().filter(move |flow| flow.protocol == protocol)
}

/// How many flows of a trial met this fate.
pub(super) fn count(trial: &Trial, protocol: Protocol, fate: Fate) -> usize {
    flows(trial, protocol).filter(|flow| flow.fate == fate).count()
}

/// A trial's finding by its name.
pub(super) fn finding(trial: &Trial, name: &str) -> Option<f64> {
    trial.findings.figures().into_iter().find(|(n, _)| *n == name).and_then(|(_, value)| value)
}
