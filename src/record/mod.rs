//! The trial record: the JSON that holds one trial, whole.
//!
//! Everything that reports, comparisons and exit codes say is read from here. Written atomically;
//! a reader refuses a newer major version.

mod calibration;
mod claim;
mod folders;
mod go_v01;
mod io;
mod layout;
mod packed;
mod run;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::clock::ClockRelation;
use crate::config::Scenario;
use crate::observation::{Observation, Target};
use crate::verdict::{self, DialRecord, FindingBound, Findings, FlowRecord, Outcome, Repeat};

pub use calibration::{
    CALIBRATION_FORMAT, Calibration, Exactness, InstantError, Load, Machine, exactness,
};
pub use claim::{Claim, ClaimError, UNFINISHED_LOGS};
pub use folders::name as folder_name;
pub use go_v01::read as read_go_report;
pub use io::{ReadError, WriteError, make_folder, read_json, write_atomic, write_json};
pub use run::{ArmStage, ArmState, LoadError, RUN_FILE, RUN_FORMAT, Run, RunFolder, load_run_dir};

/// The format of a trial's record.
pub const TRIAL_FORMAT: &str = "drainwatch.trial/1";

/// One trial.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Trial {
    /// [`TRIAL_FORMAT`].
    pub format: String,
    /// `ARM/001`.
    pub id: String,
    /// The matrix's name.
    pub matrix: String,
    /// The arm's name.
    pub arm: String,
    /// The scenario's name.
    pub scenario: String,
    /// The axes' values: key as in TOML, value as text.
    pub axes: BTreeMap<String, String>,
    /// From 1.
    pub repeat: u32,
    /// How it went.
    pub outcome: Outcome,
    /// Why it was aborted or its trigger refused.
    pub reason: Option<String>,
    /// The build that measured.
    pub tool: Tool,
    /// The scenario, resolved.
    pub config: Scenario,
    /// `--set` and `--only`, as given.
    pub overrides: Vec<String>,
    /// Where it was measured.
    pub environment: EnvironmentRef,
    /// The clocks that the observations were read on, related to the runner's.
    pub clocks: Vec<ClockRelation>,
    /// Wall-clock time of the trigger, UTC, RFC 3339 (of the start, where there was no trigger).
    pub started_at: String,
    /// The zero of the trial's times on the runner's `CLOCK_MONOTONIC`, nanoseconds since its boot.
    #[serde(default)]
    pub zero_ns: Option<i64>,
    /// The pod that was terminated.
    pub target: Option<Target>,
    /// The checks that held before the trigger, in their order, with their figures.
    #[serde(default)]
    pub checks: Vec<Check>,
    /// Every observation, in the order of time. What kernels told of many flows at a time stands on one
    /// line, with each one's own time.
    #[serde(with = "packed")]
    #[schemars(with = "Vec<packed::Line>")]
    pub observations: Vec<Observation>,
    /// What became of each flow; judged from `observations`.
    pub flows: Vec<FlowRecord>,
    /// What new connections met, TCP before UDP, in the order of their starts; judged from
    /// `observations`.
    #[serde(default)]
    pub dials: Vec<DialRecord>,
    /// The trial's figures; judged from `observations`.
    pub findings: Findings,
    /// How exact each finding that was measured is, by its name; judged from `observations`.
    #[serde(default)]
    pub finding_bounds: BTreeMap<String, FindingBound>,
    /// How far the flows' instants may be off, as it was measured on this machine; null where no
    /// calibration of it covers this trial (see `drainwatch calibrate`).
    #[serde(default)]
    pub exactness: Option<Exactness>,
    /// What a reader should know before using the figures; judged from `observations`.
    pub warnings: Vec<String>,
    /// The same, from the runner and the timeline: kept when the trial is judged anew.
    #[serde(default)]
    pub runner_warnings: Vec<String>,
    /// Where another tool measured and judged it; null for trials of this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub imported: Option<Imported>,
}

impl Trial {
    /// Every warning: the runner's, then the verdict's.
    pub fn all_warnings(&self) -> impl Iterator<Item = &str> {
        self.runner_warnings.iter().chain(&self.warnings).map(String::as_str)
    }

    /// Judges it anew from its observations; what its runner had to say is kept. An import stays
    /// as its own tool judged it, and so does a record that has no observations.
    pub fn judge_anew(&mut self) {
        if self.imported.is_some() || self.observations.is_empty() {
            return;
        }
        let target = self.target.as_ref();
        let verdict = verdict::judge(&self.observations, &self.config, target, self.outcome);
        self.flows = verdict.flows;
        self.dials = verdict.dials;
        self.findings = verdict.findings;
        self.finding_bounds = verdict.finding_bounds;
        self.warnings = verdict.warnings;
    }
}

/// A check of preflight or settle that held.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Check {
    /// Its name: `kept-up`.
    pub check: String,
    /// What had to hold.
    pub invariant: String,
    /// What was found, with figures.
    pub found: String,
}

/// Where the fates of an arm's measured trials differ, in sentences.
pub fn disagreements(trials: &[Trial]) -> Vec<String> {
    let measured = trials.iter().filter(|trial| trial.outcome == Outcome::Measured);
    let repeats =
        measured.map(|trial| Repeat { arm: &trial.arm, repeat: trial.repeat, flows: &trial.flows });
    verdict::disagreements(&repeats.collect::<Vec<_>>())
}

/// The build that measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Tool {
    /// The package's version.
    pub version: String,
    /// The commit it was built from, or `"unknown"`.
    pub commit: String,
    /// Whether the checkout had changes that were not committed; `None` where unknown.
    pub dirty: Option<bool>,
    /// SHA-256 of the running binary.
    pub runner_sha256: String,
    /// SHA-256 of the probe binary within it.
    pub probe_sha256: String,
}

/// What another tool measured and judged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Imported {
    /// The tool and its version: `drainwatch (Go) 0.1.0`.
    pub from: String,
    /// The cluster, as far as it was told: `Kubernetes 1.34.0, 2 nodes, iptables, kindnet`.
    pub cluster: String,
}

/// Where a trial was measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct EnvironmentRef {
    /// The environment record, relative to the run's folder.
    pub file: String,
    /// Digest of what must not change within an arm.
    pub digest: String,
    /// The cluster's name.
    pub cluster: String,
}
