//! The pod and the Service of a scenario.
//!
//! Resolved values, as they stand in a trial's record.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::scenario::ms;

/// The pod, and how many there are of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Pod {
    /// The readiness probe's `periodSeconds`: whole seconds, at least 1.
    #[serde(rename = "readiness_period_ms", with = "ms")]
    #[schemars(with = "f64")]
    pub readiness_period: Duration,
    /// The readiness probe's `failureThreshold`, at least 1.
    pub readiness_failures: u32,
    /// What is done before SIGTERM is sent.
    #[serde(default)]
    pub pre_stop: Option<PreStop>,
    /// How many pods the Deployment has when the trigger comes, at least 1.
    #[serde(default = "one")]
    pub replicas: u32,
    /// `minAvailable` of the pods' PodDisruptionBudget; null: there is none.
    #[serde(default)]
    pub disruption_budget: Option<u32>,
    /// Sysctls of the pod's own net namespace.
    #[serde(default)]
    pub sysctls: BTreeMap<String, String>,
    /// Whether the app's parent, the container's first process, is one that passes no signals on.
    #[serde(default)]
    pub shell: bool,
}

impl Pod {
    /// One pod with this readiness probe and nothing else.
    pub fn plain(readiness_period: Duration, readiness_failures: u32) -> Self {
        Self {
            readiness_period,
            readiness_failures,
            pre_stop: None,
            replicas: 1,
            disruption_budget: None,
            sysctls: BTreeMap::new(),
            shell: false,
        }
    }

    /// How long the preStop hook takes, where that is known beforehand.
    pub fn pre_stop_sleep(&self) -> Option<Duration> {
        match self.pre_stop {
            Some(PreStop::Sleep(time)) => Some(time),
            _ => None,
        }
    }
}

/// The preStop hook: what the kubelet does before it sends SIGTERM. The grace period runs meanwhile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub enum PreStop {
    /// `lifecycle.preStop.sleep`: whole seconds, at least 1.
    #[serde(rename = "sleep_ms", with = "ms")]
    #[schemars(with = "f64")]
    Sleep(Duration),
    /// `lifecycle.preStop.exec`: a command in the app's container, not empty.
    #[serde(rename = "exec")]
    Exec(Vec<String>),
}

/// The Service in front of the pods.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(default)]
pub struct Service {
    /// Its `type`.
    #[serde(rename = "type")]
    pub kind: ServiceType,
    /// Its `sessionAffinity`.
    pub session_affinity: SessionAffinity,
    /// Its `externalTrafficPolicy`; counts for node ports.
    pub external_traffic_policy: TrafficPolicy,
    /// Its `internalTrafficPolicy`; counts for its cluster IP.
    pub internal_traffic_policy: TrafficPolicy,
}

/// A Service's type.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum ServiceType {
    /// A cluster IP, and a port of each node.
    #[default]
    NodePort,
    /// A cluster IP.
    ClusterIp,
}

/// Whether a client stays with the pod that it got first.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum SessionAffinity {
    /// It does not.
    #[default]
    None,
    /// By its address.
    ClientIp,
}

/// Which endpoints a node sends traffic to.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum TrafficPolicy {
    /// All of the cluster.
    #[default]
    Cluster,
    /// Its own.
    Local,
}

fn one() -> u32 {
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What records of before these keys say of a pod.
    #[test]
    fn a_pod_of_an_old_record_is_a_plain_one() {
        let old = r#"{"readiness_period_ms": 1000, "readiness_failures": 1}"#;
        let plain = Pod::plain(Duration::from_secs(1), 1);
        assert_eq!(serde_json::from_str::<Pod>(old).unwrap(), plain);
    }

    #[test]
    fn a_hook_tells_what_it_does() {
        let sleep = PreStop::Sleep(Duration::from_secs(5));
        assert_eq!(serde_json::to_string(&sleep).unwrap(), r#"{"sleep_ms":5000}"#);
        let exec = PreStop::Exec(vec!["/a".into(), "b".into()]);
        let json = serde_json::to_string(&exec).unwrap();
        assert_eq!(json, r#"{"exec":["/a","b"]}"#);
        assert_eq!(serde_json::from_str::<PreStop>(&json).unwrap(), exec);
    }
}
