//! What terminates the pod, or only parts it from its clients, and what each trigger takes.
//!
//! Resolved values, as they stand in a trial's record.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What is done to the pod, its Service or its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Trigger {
    /// DELETE of the pod.
    Delete,
    /// An Eviction of the pod.
    Evict,
    /// The Deployment's scale set to 0.
    ScaleToZero,
    /// The Deployment's scale set to less than it was; the target is the first that goes.
    ScaleDown,
    /// A change of the Deployment's pod template.
    Rollout,
    /// The target's node is cordoned and the workload's pods on it are evicted.
    DrainNode,
    /// DELETE of the pod with a grace period of 0.
    ForceDelete,
    /// DELETE of the pod with a grace period of its own.
    DeleteGrace,
    /// The pod's label is changed: it leaves the Service and lives on.
    Relabel,
    /// The pod's readiness begins to fail.
    ReadinessFail,
    /// SIGKILL of the app's process.
    Crash,
    /// DELETE of the Service.
    DeleteService,
    /// kube-proxy is ended and started anew on each node.
    RestartKubeProxy,
    /// The target's node goes: its link is cut and its processes are killed.
    NodeStop,
}

/// What a trigger brings to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// The pod, by its kubelet.
    Pod,
    /// The app's process; the kubelet starts another in the same pod.
    Process,
    /// The pod's node, of which nobody tells.
    Node,
    /// None of them.
    Nothing,
}

impl Trigger {
    /// The name as in TOML.
    pub fn name(self) -> &'static str {
        match self {
            Self::Delete => "delete",
            Self::Evict => "evict",
            Self::ScaleToZero => "scale-to-zero",
            Self::ScaleDown => "scale-down",
            Self::Rollout => "rollout",
            Self::DrainNode => "drain-node",
            Self::ForceDelete => "force-delete",
            Self::DeleteGrace => "delete-grace",
            Self::Relabel => "relabel",
            Self::ReadinessFail => "readiness-fail",
            Self::Crash => "crash",
            Self::DeleteService => "delete-service",
            Self::RestartKubeProxy => "restart-kube-proxy",
            Self::NodeStop => "node-stop",
        }
    }

    /// What it brings to its end.
    pub fn ends(self) -> Ends {
        match self {
            Self::Delete
            | Self::Evict
            | Self::ScaleToZero
            | Self::ScaleDown
            | Self::Rollout
            | Self::DrainNode
            | Self::ForceDelete
            | Self::DeleteGrace => Ends::Pod,
            Self::Crash => Ends::Process,
            Self::NodeStop => Ends::Node,
            Self::Relabel | Self::ReadinessFail | Self::DeleteService | Self::RestartKubeProxy => {
                Ends::Nothing
            }
        }
    }

    /// Whether nothing need ever end, so that the observation takes its own time.
    pub fn is_open(self) -> bool {
        matches!(self.ends(), Ends::Node | Ends::Nothing)
    }

    /// Whether the cluster is another one afterwards, of no use to a next trial.
    pub fn spends_the_cluster(self) -> bool {
        self == Self::NodeStop
    }
}

/// How a rollout goes on: the Deployment's `rollingUpdate`. Not both of them nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Rollout {
    /// How many pods may be there beyond the replicas.
    pub max_surge: Share,
    /// How many of the replicas may be missing.
    pub max_unavailable: Share,
}

impl Default for Rollout {
    /// Kubernetes' own.
    fn default() -> Self {
        Self { max_surge: Share::Percent(25), max_unavailable: Share::Percent(25) }
    }
}

impl Rollout {
    /// Whether so many replicas stay until others are ready: none may be missing, rounded down as
    /// Kubernetes does. (Of two shares that both come to nothing it takes this one as 1.)
    pub(super) fn keeps_all(self, replicas: u32) -> bool {
        let unavailable = match self.max_unavailable {
            Share::Count(count) => count,
            Share::Percent(percent) => replicas * percent / 100,
        };
        unavailable == 0 && !self.max_surge.is_nothing()
    }
}

/// A number of pods, or a share of the replicas; written as in Kubernetes: `1`, `"25%"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(try_from = "Written", into = "Written")]
pub enum Share {
    /// Pods.
    Count(u32),
    /// Hundredths of the replicas, at most 100.
    Percent(u32),
}

impl Share {
    /// `25%`; `None` for anything else, and for more than all.
    pub(super) fn percent(text: &str) -> Option<Self> {
        let digits = text.strip_suffix('%')?;
        let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        let percent = digits.parse().ok().filter(|percent| plain && *percent <= 100)?;
        Some(Self::Percent(percent))
    }

    /// Whether it is no pod at all, of any number.
    pub fn is_nothing(self) -> bool {
        matches!(self, Self::Count(0) | Self::Percent(0))
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => write!(f, "{count}"),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

/// As it stands in a file.
#[derive(Serialize, Deserialize, schemars::JsonSchema)]
#[serde(untagged)]
enum Written {
    Count(u32),
    Percent(String),
}

impl TryFrom<Written> for Share {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        match written {
            Written::Count(count) => Ok(Self::Count(count)),
            Written::Percent(text) => {
                Self::percent(&text).ok_or_else(|| format!("{text:?} is no share such as \"25%\""))
            }
        }
    }
}

impl From<Share> for Written {
    fn from(share: Share) -> Self {
        match share {
            Share::Count(count) => Self::Count(count),
            Share::Percent(_) => Self::Percent(share.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_written_as_kubernetes_has_it() {
        for (share, json) in [(Share::Count(2), "2"), (Share::Percent(25), "\"25%\"")] {
            assert_eq!(serde_json::to_string(&share).unwrap(), json);
            assert_eq!(serde_json::from_str::<Share>(json).unwrap(), share);
        }
        for wrong in ["\"101%\"", "\"+5%\"", "\"25\"", "\"%\"", "-1"] {
            assert!(serde_json::from_str::<Share>(wrong).is_err(), "{wrong}");
        }
    }
}
