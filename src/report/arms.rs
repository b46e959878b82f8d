//! Trials by arm: what every table of arms is made from.
//!
//! Takes trial records; gives counts and statistics over an arm's measured trials. Aborted trials
//! and refused triggers are kept apart and never counted in.

use super::part::Part;
use super::stats::Stats;
use crate::observation::Protocol;
use crate::record::Trial;
use crate::verdict::{Fate, FlowRecord, Outcome};

/// An arm's trials, in the order in which they were given.
#[derive(Debug)]
pub(super) struct Arm<'a> {
    pub name: &'a str,
    /// The folder that they are of.
    pub part: &'a Part<'a>,
    /// Those that count.
    pub measured: Vec<&'a Trial>,
    /// Aborted ones and those of which the trigger was refused.
    pub others: Vec<&'a Trial>,
}

/// The arms, in the order in which their first trials come; those of several folders that do the
/// same to the same app stand beside each other, those of one name first. Arms of one name in two folders are two arms.
pub(super) fn arms<'a>(parts: &'a [Part<'a>]) -> Vec<Arm<'a>> {
    let mut arms: Vec<Arm> = Vec::new();
    for part in parts {
        let before = arms.len();
        for trial in part.trials {
            let name = trial.arm.as_str();
            let known = arms[before..].iter().position(|arm| arm.name == name);
            let at = known.map_or(arms.len(), |at| before + at);
            if known.is_none() {
                arms.push(Arm { name, part, measured: Vec::new(), others: Vec::new() });
            }
            match trial.outcome {
                Outcome::Measured => arms[at].measured.push(trial),
                Outcome::Aborted | Outcome::TriggerRefused => arms[at].others.push(trial),
            }
        }
    }
    if parts.len() > 1 {
        let kind = |arm: &Arm| arm.any().map(|t| (t.config.sigterm, t.config.trigger));
        let known: Vec<_> = arms.iter().map(|arm| (kind(arm), arm.name)).collect();
        arms.sort_by_key(|arm| {
            let kind = kind(arm);
            let first = known.iter().position(|(known, _)| *known == kind);
            (first, known.iter().position(|known| *known == (kind, arm.name)))
        });
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

    /// Whether a finding of some trial was read on a clock of which the distance to the runner's
    /// has no known bound.
    pub fn approximate(&self, name: &str) -> bool {
        let mut bounds = self.measured.iter().filter_map(|t| t.finding_bounds.get(name));
        bounds.any(|bound| bound.plus_minus_ms.is_none())
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
