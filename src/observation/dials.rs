//! What new connections meet, as observations and the record say it.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::{Identity, Protocol};

/// What became of a dial: a new connection, one question and its first answer.
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
pub enum DialOutcome {
    /// It was answered.
    Accepted,
    /// ICMP port unreachable; for TCP also a RST instead of a connection.
    Refused,
    /// ICMP host or net unreachable, prohibited and the like, or no route.
    Unreachable,
    /// TCP: it connected, and was reset before an answer.
    Reset,
    /// TCP: it connected, and was closed without an answer.
    Closed,
    /// TCP: timed out, not connected within `dials.timeout`.
    NotConnected,
    /// Timed out: no answer within `dials.timeout`, for TCP although it had connected.
    Unanswered,
    /// It failed on this machine: out of descriptors, buffers, ports.
    FailedHere,
    /// The trial was broken off before it was known.
    Unfinished,
}

impl DialOutcome {
    /// Every outcome, in the order in which tables list them.
    pub const ALL: [Self; 9] = [
        Self::Accepted,
        Self::Refused,
        Self::Unreachable,
        Self::Reset,
        Self::Closed,
        Self::NotConnected,
        Self::Unanswered,
        Self::FailedHere,
        Self::Unfinished,
    ];

    /// As in the record.
    pub fn name(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Refused => "refused",
            Self::Unreachable => "unreachable",
            Self::Reset => "reset",
            Self::Closed => "closed",
            Self::NotConnected => "not-connected",
            Self::Unanswered => "unanswered",
            Self::FailedHere => "failed-here",
            Self::Unfinished => "unfinished",
        }
    }

    /// Whether the cluster failed a client: it was not accepted, and that was not our own doing.
    pub fn is_failure(self) -> bool {
        self != Self::Accepted && self.is_of_the_cluster()
    }

    /// Whether it says something of the cluster; else only of this machine or of the trial.
    pub fn is_of_the_cluster(self) -> bool {
        !matches!(self, Self::FailedHere | Self::Unfinished)
    }
}

/// What several dials have in common.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct DialKind {
    /// What they spoke.
    pub protocol: Protocol,
    /// What they met.
    pub outcome: DialOutcome,
    /// Who answered; null unless they were accepted.
    pub by: Option<Identity>,
    /// Who sent the ICMP message that refused them, if the kernel said so (`IP_RECVERR`). TCP that
    /// was refused without one was refused by a RST.
    pub sender: Option<IpAddr>,
    /// That message's type.
    pub icmp_type: Option<u8>,
    /// Its code.
    pub icmp_code: Option<u8>,
    /// What failed on this machine.
    pub error: Option<String>,
}

/// How long something took in several dials, milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct DialTimes {
    /// The shortest.
    pub least_ms: f64,
    /// The middle one, within 2 %.
    pub median_ms: f64,
    /// The longest.
    pub greatest_ms: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_named_as_in_the_record() {
        for outcome in DialOutcome::ALL {
            assert_eq!(serde_json::to_value(outcome).unwrap(), outcome.name());
        }
    }
}
