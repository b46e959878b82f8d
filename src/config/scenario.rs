//! A scenario: what the app does on SIGTERM, what terminates its pod, and the flows held to it.
//!
//! These are resolved values, with every default filled in and every contradiction excluded.
//! They serialise as they stand in a trial's record (durations in milliseconds, named so).

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::trigger::{Rollout, Trigger};
use super::workload::{Pod, Service};

/// One scenario, resolved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Scenario {
    /// What it shows, in its author's words.
    pub description: Option<String>,
    /// What the app does on SIGTERM.
    pub sigterm: Sigterm,
    /// How long the app serves held flows after SIGTERM: with [`Sigterm::Drain`] only, and then
    /// below the grace period.
    #[serde(rename = "drain_window_ms", with = "opt_ms", default)]
    #[schemars(with = "Option<f64>")]
    pub drain_window: Option<Duration>,
    /// What `/readyz` says once SIGTERM has arrived; `None` with [`Sigterm::Exit`] only.
    pub readiness: Option<Readiness>,
    /// What terminates the pod, or parts it from its clients.
    pub trigger: Trigger,
    /// The grace period of the deletion itself: whole seconds, with [`Trigger::DeleteGrace`] only.
    #[serde(rename = "delete_grace_ms", with = "opt_ms", default)]
    #[schemars(with = "Option<f64>")]
    pub delete_grace: Option<Duration>,
    /// The replicas that are left, below those of the pod: with [`Trigger::ScaleDown`] only.
    #[serde(default)]
    pub scale_to: Option<u32>,
    /// With [`Trigger::Rollout`] only.
    #[serde(default)]
    pub rollout: Option<Rollout>,
    /// How long to observe where nothing need end ([`Trigger::is_open`]), and only there.
    #[serde(rename = "observe_for_ms", with = "opt_ms", default)]
    #[schemars(with = "Option<f64>")]
    pub observe_for: Option<Duration>,
    /// `terminationGracePeriodSeconds`: whole seconds.
    #[serde(rename = "grace_period_ms", with = "ms")]
    #[schemars(with = "f64")]
    pub grace_period: Duration,
    /// How long flows must live before the trigger.
    #[serde(rename = "settle_ms", with = "ms")]
    #[schemars(with = "f64")]
    pub settle: Duration,
    /// How long to go on once every flow's story has ended and the container is gone.
    #[serde(rename = "observe_after_ms", with = "ms")]
    #[schemars(with = "f64")]
    pub observe_after: Duration,
    /// Trials an arm, at least 1.
    pub repeats: u32,
    /// Whether the nodes' kernels are listened to.
    #[serde(default)]
    pub evidence: bool,
    /// The flows.
    pub flows: Flows,
    /// New connections made beside them.
    #[serde(default)]
    pub dials: Dials,
    /// The pod.
    pub pod: Pod,
    /// The Service.
    #[serde(default)]
    pub service: Service,
}

impl Scenario {
    /// From the start of the pod's termination to SIGKILL: the grace period of the deletion.
    pub fn grace(&self) -> Duration {
        self.delete_grace.unwrap_or(self.grace_period)
    }
}

impl Scenario {
    /// How many heartbeats the flows send in a second.
    pub fn heartbeats_a_second(&self) -> f64 {
        let flows = &self.flows;
        f64::from(flows.tcp) / flows.tcp_interval.as_secs_f64()
            + f64::from(flows.udp) / flows.udp_interval.as_secs_f64()
    }
}

/// What the app does on SIGTERM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Sigterm {
    /// Resets its connections and exits with 0 at once.
    Exit,
    /// Accepts nothing new, serves what it holds for the drain window, closes it cleanly, exits with 0.
    Drain,
    /// Goes on as if nothing had happened, until SIGKILL.
    Ignore,
}

/// What `/readyz` says once SIGTERM has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Readiness {
    /// 503.
    Fail,
    /// 200.
    Pass,
}

/// The flows of a scenario: at least one in all.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Flows {
    /// TCP flows.
    pub tcp: u32,
    /// UDP flows.
    pub udp: u32,
    /// One heartbeat a TCP flow in each.
    #[serde(rename = "tcp_interval_ms", with = "ms")]
    #[schemars(with = "f64")]
    pub tcp_interval: Duration,
    /// One heartbeat a UDP flow in each.
    #[serde(rename = "udp_interval_ms", with = "ms")]
    #[schemars(with = "f64")]
    pub udp_interval: Duration,
    /// No answer for this long is silence; longer than both intervals.
    #[serde(rename = "silent_after_ms", with = "ms")]
    #[schemars(with = "f64")]
    pub silent_after: Duration,
    /// What address the flows go to.
    #[serde(default)]
    pub via: Via,
    /// Where the flows' clients stand.
    #[serde(default)]
    pub from: Vantage,
    /// The node that the flows enter by: whose NodePort they go to, and on which clients stand that do
    /// not stand outside.
    pub enter_by: EnterBy,
    /// The family of the addresses that they go to and come from.
    #[serde(default)]
    pub ip: IpFamily,
    /// The first of the flows' source ports, where they are fixed: `tcp-1` and `udp-1` have this one,
    /// the next ones the next.
    #[serde(default)]
    pub source_port: Option<u16>,
}

/// New connections that are made from settle on: each asks once, and ends with its first answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Dials {
    /// TCP connections a second, evenly spaced.
    pub tcp: u32,
    /// First datagrams of new sockets a second, evenly spaced.
    pub udp: u32,
    /// No answer for this long, and a dial has timed out.
    #[serde(rename = "timeout_ms", with = "ms")]
    #[schemars(with = "f64")]
    pub timeout: Duration,
}

impl Dials {
    /// How long a dial may go without an answer where nothing else is said.
    pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(1);

    /// Whether any are made.
    pub fn any(&self) -> bool {
        self.tcp > 0 || self.udp > 0
    }
}

impl Default for Dials {
    fn default() -> Self {
        Self { tcp: 0, udp: 0, timeout: Self::DEFAULT_TIMEOUT }
    }
}

/// What address the flows go to.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Via {
    /// A node's address and the Service's NodePort.
    #[default]
    NodePort,
    /// The Service's own address in the cluster.
    ClusterIp,
    /// The address of the pod's node and a port of that node that leads to the pod.
    HostPort,
    /// The pod's own address.
    Pod,
}

impl Via {
    /// Whether the Service, and so kube-proxy, leads there.
    pub fn is_of_service(self) -> bool {
        matches!(self, Self::NodePort | Self::ClusterIp)
    }
}

/// A family of addresses.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum IpFamily {
    /// IPv4
    #[default]
    Ipv4,
    /// IPv6
    Ipv6,
}

/// Where the flows' clients stand.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Vantage {
    /// Outside the cluster's nodes, where the runner is.
    #[default]
    Outside,
    /// In the net namespace of the node that the flows enter by.
    Node,
    /// In the net namespace of a pod on that node.
    Pod,
}

/// The node that the flows enter by. Written as in TOML: `"other-node"`, `"pod-node"`
/// or a node's name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(from = "String", into = "String")]
pub enum EnterBy {
    /// A node that the target pod does not run on.
    OtherNode,
    /// The node that the target pod runs on.
    PodNode,
    /// This node.
    Named(String),
}

impl From<String> for EnterBy {
    fn from(text: String) -> Self {
        match text.as_str() {
            "other-node" => Self::OtherNode,
            "pod-node" => Self::PodNode,
            _ => Self::Named(text),
        }
    }
}

impl From<EnterBy> for String {
    fn from(value: EnterBy) -> Self {
        match value {
            EnterBy::OtherNode => "other-node".into(),
            EnterBy::PodNode => "pod-node".into(),
            EnterBy::Named(name) => name,
        }
    }
}

/// The cluster that an arm runs on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ClusterSpec {
    /// Who makes it.
    pub provider: ProviderKind,
    /// The Kubernetes version without a `v`: `1.34.0`.
    pub kubernetes: String,
    /// Nodes, at least 1; the first is the control plane and takes pods only when it is alone.
    pub nodes: u32,
    /// kube-proxy's mode.
    pub proxy_mode: ProxyMode,
    /// Sysctls set in each node's net namespace before anything starts.
    pub sysctls: std::collections::BTreeMap<String, String>,
    /// Whether pods have the cluster's DNS (CoreDNS).
    #[serde(default)]
    pub dns: bool,
    /// Sysctls that pods may set although Kubernetes does not call them safe, by name: those that the
    /// scenario's pod sets.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub pod_sysctls: BTreeSet<String>,
    /// Whether nodes, pods and Services have addresses of IPv6 beside those of IPv4.
    #[serde(default)]
    pub dual_stack: bool,
}

/// Who makes the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ProviderKind {
    /// kind where it can be had, else local.
    Auto,
    /// Processes in namespaces of this host.
    Local,
    /// kind.
    Kind,
    /// A context of the user's kubeconfig.
    Context,
}

/// kube-proxy's mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ProxyMode {
    /// iptables
    Iptables,
    /// nftables
    Nftables,
    /// ipvs
    Ipvs,
}

/// A duration in the record, as decimal milliseconds.
pub(super) mod ms {
    use super::*;
    pub fn serialize<S: serde::Serializer>(d: &Duration, s: S) -> Result<S::Ok, S::Error> {
        let ms = d.as_nanos() as f64 / 1e6;
        if ms.fract() == 0.0 { s.serialize_u64(ms as u64) } else { s.serialize_f64(ms) }
    }
    pub fn deserialize<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Duration, D::Error> {
        let ms = f64::deserialize(d)?;
        Duration::try_from_secs_f64(ms / 1e3).map_err(serde::de::Error::custom)
    }
}

/// The same, or null.
mod opt_ms {
    use super::*;
    pub fn serialize<S: serde::Serializer>(d: &Option<Duration>, s: S) -> Result<S::Ok, S::Error> {
        match d {
            Some(d) => ms::serialize(d, s),
            None => s.serialize_none(),
        }
    }
    pub fn deserialize<'de, D: serde::Deserializer<'de>>(
        d: D,
    ) -> Result<Option<Duration>, D::Error> {
        let ms = Option::<f64>::deserialize(d)?;
        ms.map(|ms| Duration::try_from_secs_f64(ms / 1e3).map_err(serde::de::Error::custom))
            .transpose()
    }
}
