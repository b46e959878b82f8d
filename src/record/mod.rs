//! The trial record: the JSON that holds one trial, whole.
//!
//! Everything that reports, comparisons and exit codes say is read from here. Written atomically;
//! a reader refuses a newer major version.

mod io;
mod layout;
mod run;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::config::Scenario;
use crate::observation::{Bound, Identity, Observation};

pub use io::{ReadError, WriteError, read_json, write_atomic, write_json};
pub use run::{ArmStage, ArmState, LoadError, RUN_FILE, RUN_FORMAT, Run, RunFolder, load_run_dir};

/// The format of a trial's record.
pub const TRIAL_FORMAT: &str = "drainwatch.trial/1";

/// One trial.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
    /// The pod that was terminated.
    pub target: Option<Target>,
    /// Every observation, in the order of time.
    pub observations: Vec<Observation>,
    /// What became of each flow; judged from `observations`.
    pub flows: Vec<FlowRecord>,
    /// The trial's figures; judged from `observations`.
    pub findings: Findings,
    /// How exact each finding that was measured is, by its name; judged from `observations`.
    #[serde(default)]
    pub finding_bounds: BTreeMap<String, FindingBound>,
    /// What a reader should know before using the figures; judged from `observations`.
    pub warnings: Vec<String>,
    /// The same, from the runner and the timeline: kept when the trial is judged anew.
    #[serde(default)]
    pub runner_warnings: Vec<String>,
}

impl Trial {
    /// Every warning: the runner's, then the verdict's.
    pub fn all_warnings(&self) -> impl Iterator<Item = &str> {
        self.runner_warnings.iter().chain(&self.warnings).map(String::as_str)
    }
}

/// How exact a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct FindingBound {
    /// Whether the finding is the figure itself or its upper bound.
    pub bound: Bound,
    /// Added by relating clocks; 0 on one clock, null where no bound is known.
    pub plus_minus_ms: Option<f64>,
}

/// How a trial went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It was measured.
    Measured,
    /// A precondition failed or it was interrupted: it is never averaged.
    Aborted,
    /// The API refused the trigger.
    TriggerRefused,
}

impl Outcome {
    /// As in the record.
    pub fn name(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::Aborted => "aborted",
            Self::TriggerRefused => "trigger-refused",
        }
    }
}

/// The build that measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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

/// Where a trial was measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnvironmentRef {
    /// The environment record, relative to the run's folder.
    pub file: String,
    /// Digest of what must not change within an arm.
    pub digest: String,
    /// The cluster's name.
    pub cluster: String,
}

/// How a source's clock relates to the runner's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClockRelation {
    /// `pod:UID`.
    pub source: String,
    /// Whether both report the same `boot_id`: one kernel, one `CLOCK_MONOTONIC`.
    pub same_clock: bool,
    /// Its time less the runner's; 0 on the same clock.
    pub offset_ms: Option<f64>,
    /// Bound of `offset_ms`.
    pub plus_minus_ms: Option<f64>,
}

/// The pod that was terminated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// Its name.
    pub pod: String,
    /// Its UID.
    pub uid: String,
    /// The process in it.
    pub instance: String,
    /// The node it ran on.
    pub node: String,
    /// The node that the flows entered by.
    pub entry_node: String,
}

/// Which protocol a flow speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    /// TCP
    Tcp,
    /// UDP
    Udp,
}

impl Protocol {
    /// As people write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
        }
    }
}

/// What became of a flow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FlowRecord {
    /// `tcp-1`, `udp-10`.
    pub id: String,
    /// Its protocol.
    pub protocol: Protocol,
    /// How it ended.
    pub fate: Fate,
    /// When its fate befell it, milliseconds from the trigger: the FIN or RST, the first answer
    /// of the replacement, the first refusal, the last answer before silence. Null for a flow
    /// that survived or was not measured.
    pub ended_ms: Option<f64>,
    /// Who answered, from when to when.
    pub spans: Vec<FlowSpan>,
    /// Milliseconds without an answer between the target's last and another instance's first,
    /// for a flow that was re-homed.
    pub outage_ms: Option<f64>,
    /// Refusals that it met, at any time after the trigger.
    pub refusals: u64,
    /// Why, as far as is known.
    pub cause: Option<Cause>,
}

/// A stretch of a flow in which one instance answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FlowSpan {
    /// Who.
    #[serde(flatten)]
    pub by: Identity,
    /// The first answer.
    pub from_ms: f64,
    /// The last answer.
    pub to_ms: f64,
    /// How many.
    pub answers: u64,
}

/// How a flow ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fate {
    /// TCP: the app's `bye`, then FIN.
    Drained,
    /// TCP: FIN without `bye`.
    Closed,
    /// TCP: RST before any FIN.
    Reset,
    /// UDP: another pod or process instance answers.
    Rehomed,
    /// UDP: ICMP port unreachable, and nobody answers after it.
    Refused,
    /// Host or network unreachable, and nobody answers after it.
    Unreachable,
    /// No answer for `silent_after`, and nobody answers after it.
    Silent,
    /// The same instance answers at the end of the observation.
    Survived,
    /// Severed in a way that its report does not tell (imports from the Go tool only).
    Severed,
    /// A flow of an aborted trial that has no other fate.
    NotMeasured,
}

impl Fate {
    /// Every fate, in the order in which tables list them.
    pub const ALL: [Self; 10] = [
        Self::Drained,
        Self::Closed,
        Self::Reset,
        Self::Rehomed,
        Self::Refused,
        Self::Unreachable,
        Self::Silent,
        Self::Survived,
        Self::Severed,
        Self::NotMeasured,
    ];

    /// As in the record.
    pub fn name(self) -> &'static str {
        match self {
            Self::Drained => "drained",
            Self::Closed => "closed",
            Self::Reset => "reset",
            Self::Rehomed => "rehomed",
            Self::Refused => "refused",
            Self::Unreachable => "unreachable",
            Self::Silent => "silent",
            Self::Survived => "survived",
            Self::Severed => "severed",
            Self::NotMeasured => "not-measured",
        }
    }
}

/// Why a flow ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cause {
    /// In words.
    pub text: String,
    /// Whether each link of the chain was recorded in this trial.
    pub basis: Basis,
}

/// What a cause rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Basis {
    /// Each link of the chain was recorded in this trial.
    Measured,
    /// It fits what was recorded; no link proves it.
    Inferred,
}

impl Basis {
    /// As in the record.
    pub fn name(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::Inferred => "inferred",
        }
    }
}

/// The figures of one trial, in milliseconds from the trigger (`_ms`) or as named; null where
/// not measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Findings {
    /// The target's app received SIGTERM (its own clock).
    pub sigterm_ms: Option<f64>,
    /// The target's endpoint was seen with ready=false or gone (at most).
    pub endpoint_not_ready_ms: Option<f64>,
    /// The target's endpoint was seen with serving=false or gone (at most).
    pub endpoint_not_serving_ms: Option<f64>,
    /// The target's endpoint was seen gone (at most).
    pub endpoint_removed_ms: Option<f64>,
    /// The entry node's rules no longer name the target (kernel evidence; null without).
    pub rules_removed_ms: Option<f64>,
    /// The last TCP flow's end.
    pub last_tcp_end_ms: Option<f64>,
    /// The first UDP flow's first answer by another instance.
    pub first_rehomed_ms: Option<f64>,
    /// The last UDP flow's first answer by another instance.
    pub last_rehomed_ms: Option<f64>,
    /// The first refusal that any UDP flow met after the trigger.
    pub first_refused_ms: Option<f64>,
    /// Another pod's endpoint was seen ready after the trigger (at most).
    pub replacement_ready_ms: Option<f64>,
    /// The target's container was seen terminated (at most).
    pub container_exit_ms: Option<f64>,
    /// Its exit code.
    pub container_exit_code: Option<i32>,
    /// `container_exit_ms` less `sigterm_ms` less the grace period, for a container that was
    /// killed (137): how late the kill was.
    pub sigkill_after_grace_ms: Option<f64>,
    /// Last TCP end to endpoint removal (exit behaviour): the Service still lists a dead pod.
    pub dead_endpoint_window_ms: Option<f64>,
    /// Last TCP end to ready=false (exit behaviour): the Service still calls it ready; negative
    /// when it stopped doing so before.
    pub dead_ready_window_ms: Option<f64>,
    /// Last TCP end to the entry node's rules (kernel evidence; null without).
    pub dead_rule_window_ms: Option<f64>,
    /// What is left of the drain window when the last UDP flow has moved (drain behaviour).
    pub unused_drain_ms: Option<f64>,
    /// SIGTERM to the container's exit as seen by the probe: the app's own shutdown time.
    pub app_shutdown_ms: Option<f64>,
}

impl Findings {
    /// Each figure by its name in the record, in its order; a code is a figure too.
    pub fn figures(&self) -> [(&'static str, Option<f64>); 18] {
        [
            ("sigterm_ms", self.sigterm_ms),
            ("endpoint_not_ready_ms", self.endpoint_not_ready_ms),
            ("endpoint_not_serving_ms", self.endpoint_not_serving_ms),
            ("endpoint_removed_ms", self.endpoint_removed_ms),
            ("rules_removed_ms", self.rules_removed_ms),
            ("last_tcp_end_ms", self.last_tcp_end_ms),
            ("first_rehomed_ms", self.first_rehomed_ms),
            ("last_rehomed_ms", self.last_rehomed_ms),
            ("first_refused_ms", self.first_refused_ms),
            ("replacement_ready_ms", self.replacement_ready_ms),
            ("container_exit_ms", self.container_exit_ms),
            ("container_exit_code", self.container_exit_code.map(f64::from)),
            ("sigkill_after_grace_ms", self.sigkill_after_grace_ms),
            ("dead_endpoint_window_ms", self.dead_endpoint_window_ms),
            ("dead_ready_window_ms", self.dead_ready_window_ms),
            ("dead_rule_window_ms", self.dead_rule_window_ms),
            ("unused_drain_ms", self.unused_drain_ms),
            ("app_shutdown_ms", self.app_shutdown_ms),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_named_and_ordered_as_in_the_record() {
        let json = serde_json::to_string(&Findings::default()).unwrap();
        let names = Findings::default().figures().map(|(name, _)| format!("\"{name}\":null"));
        assert_eq!(json, format!("{{{}}}", names.join(",")));
    }

    #[test]
    fn fates_are_named_as_in_the_record() {
        for fate in Fate::ALL {
            assert_eq!(serde_json::to_value(fate).unwrap(), fate.name());
        }
    }
}
