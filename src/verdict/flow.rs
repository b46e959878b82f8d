//! What became of a flow, as the record says it.
//!
//! Types and their names; which fate a flow has is for [`super::judge`] to say.

use serde::{Deserialize, Serialize};

use crate::observation::{Bound, Identity, Protocol, Source};

/// How a trial went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
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

/// What became of a flow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
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
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
)]
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
    /// It can't be told: the trial was aborted, the flow failed on our side, or our own buffers
    /// dropped what may have been its answers.
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Cause {
    /// In words.
    pub text: String,
    /// Whether each link of the chain was recorded in this trial.
    pub basis: Basis,
    /// The links that were recorded, in the order of cause and effect. Times that are upper bounds
    /// can stand before those of what they led to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub chain: Vec<Link>,
}

/// One link of the chain that led to a flow's end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Link {
    /// What happened.
    pub what: LinkKind,
    /// When, in milliseconds from the trigger.
    pub t_ms: f64,
    /// How that time relates to the instant of the thing itself.
    pub bound: Bound,
    /// What relating two clocks adds, in milliseconds.
    pub plus_minus_ms: Option<f64>,
    /// Who saw it.
    pub source: Source,
    /// At which node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}

/// What a link of a chain tells of.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum LinkKind {
    /// The trigger's request was sent.
    Trigger,
    /// The app got SIGTERM.
    Sigterm,
    /// The app's drain ended.
    DrainEnded,
    /// The target's endpoint was no longer ready.
    EndpointNotReady,
    /// The target's endpoint no longer served.
    EndpointNotServing,
    /// A node's rules no longer led new flows to the target.
    RulesWithoutTarget,
    /// A node's rules led new flows to the pod that then answered.
    RulesToReplacement,
    /// A node's rules rejected new flows to the Service.
    RulesReject,
    /// The flow's entry to the target was destroyed.
    EntryDestroyed,
    /// An entry of the flow that leads elsewhere was made.
    EntryMade,
    /// The flow's entry to the target was found when the observation ended.
    EntryStands,
    /// The app said that it exits.
    AppExits,
    /// The first process of the target's container ended.
    ProcessExit,
    /// The container was seen terminated.
    ContainerExit,
    /// The app was started anew.
    AppStarted,
    /// The target's network namespace sent the packet that ended the flow.
    SentByPod,
    /// The packet that refused the flow was sent.
    Refusal,
    /// The flow met the refusal.
    Refused,
    /// The flow was answered by another than the target.
    Answered,
    /// The flow read the packet that ended it.
    Ended,
}

/// What a cause rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fates_are_named_as_in_the_record() {
        for fate in Fate::ALL {
            assert_eq!(serde_json::to_value(fate).unwrap(), fate.name());
        }
    }
}
