//! The verdict: what became of each flow, the trial's figures, and where repeats disagree.
//!
//! Takes observations on the trial's time, the scenario and the target; gives fates, findings and
//! warnings. Pure and total: no clock, no file, no order of arrival, and no observation that makes
//! it fail.

use std::collections::BTreeMap;

use crate::config::Scenario;
use crate::observation::Observation;
use crate::record::{FindingBound, Findings, FlowRecord, Outcome, Target, Trial};

/// What one trial's observations say.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verdict {
    /// One for each flow that was observed, `tcp-2` before `tcp-10`.
    pub flows: Vec<FlowRecord>,
    /// The trial's figures.
    pub findings: Findings,
    /// How exact each figure that was measured is, by its name.
    pub finding_bounds: BTreeMap<String, FindingBound>,
    /// What a reader should know before using the figures.
    pub warnings: Vec<String>,
}

/// Judges one trial.
pub fn judge(
    observations: &[Observation],
    config: &Scenario,
    target: Option<&Target>,
    outcome: Outcome,
) -> Verdict {
    let _ = (observations, config, target, outcome);
    todo!()
}

/// Judges a recorded trial anew from its observations; what its runner had to say is kept.
pub fn rejudge(trial: &mut Trial) {
    let verdict = judge(&trial.observations, &trial.config, trial.target.as_ref(), trial.outcome);
    trial.flows = verdict.flows;
    trial.findings = verdict.findings;
    trial.finding_bounds = verdict.finding_bounds;
    trial.warnings = verdict.warnings;
}

/// Where the fates of an arm's measured trials differ, between its repeats or between the flows
/// of one trial: a line each, to stand above the statistics.
pub fn disagreements(trials: &[Trial]) -> Vec<String> {
    let _ = trials;
    todo!()
}
