//! The pod and the Service, and what they contradict.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{At, Resolver, is_local, secs, time};
use crate::config::scenario::{ClusterSpec, EnterBy, Flows, Vantage, Via};
use crate::config::schema;
use crate::config::trigger::Rollout;
use crate::config::value::Value;
use crate::config::workload::{Pod, PreStop, Service, ServiceType, SessionAffinity, TrafficPolicy};

impl Resolver<'_> {
    pub(super) fn pod(&mut self, pre_stop: Option<Option<PreStop>>) -> Option<Pod> {
        let budget = self.get("pod.disruption_budget", None, |value| match value {
            Value::Count(count) => Some(Some(*count)),
            _ => None,
        });
        Some(Pod {
            readiness_period: self.time("pod.readiness_period", secs(1))?,
            readiness_failures: self.count("pod.readiness_failures", 1)?,
            pre_stop: pre_stop?,
            replicas: self.count("pod.replicas", 1)?,
            disruption_budget: budget?,
            sysctls: self.sysctls(schema::POD_SYSCTLS)?,
            shell: self.truth("pod.shell", false)?,
        })
    }

    /// The preStop hook, which is one of two kinds.
    pub(super) fn pre_stop(&mut self, grace: Option<Duration>) -> Option<Option<PreStop>> {
        let (sleep, exec) = ("pod.pre_stop", "pod.pre_stop_exec");
        if self.is_given(sleep) && self.is_given(exec) {
            let message =
                "a pod has one preStop hook, and both pod.pre_stop and pod.pre_stop_exec are set";
            let help = "keep one of the two";
            self.blame([exec, sleep], At::Key, message.into(), help);
            return None;
        }
        if self.setting(exec).is_some() {
            let command = self.get(exec, Vec::new(), |value| match value {
                Value::Words(words) => Some(words.clone()),
                _ => None,
            });
            return Some(Some(PreStop::Exec(command?)));
        }
        let slept = self.time(sleep, Duration::ZERO)?;
        let grace = grace?;
        if slept > grace {
            let message = format!(
                "pre_stop ({}) is longer than the grace_period ({}{})",
                time(slept),
                time(grace),
                self.by_default("grace_period"),
            );
            let help = "the grace period runs during the hook, and Kubernetes takes no longer one";
            self.blame([sleep, "grace_period"], At::Value, message, help);
            return None;
        }
        Some((!slept.is_zero()).then_some(PreStop::Sleep(slept)))
    }

    /// The sysctls of one table.
    pub(super) fn sysctls(&self, table: &str) -> Option<BTreeMap<String, String>> {
        let mut sysctls = BTreeMap::new();
        for (name, setting) in self.settings {
            let Some(name) = schema::sysctl_of(table, name) else { continue };
            let Some(Value::Text(text)) = &setting.value else { return None };
            sysctls.insert(name.to_owned(), text.clone());
        }
        Some(sysctls)
    }

    pub(super) fn service(
        &mut self,
        flows: Option<&Flows>,
        cluster: Option<&ClusterSpec>,
    ) -> Option<Service> {
        let kind = self.word("service.type", ServiceType::NodePort);
        let external = self.word("service.external_traffic_policy", TrafficPolicy::Cluster);
        let service = Service {
            session_affinity: self.word("service.session_affinity", SessionAffinity::None)?,
            internal_traffic_policy: self
                .word("service.internal_traffic_policy", TrafficPolicy::Cluster)?,
            kind: kind?,
            external_traffic_policy: external?,
        };
        let fits = self.node_ports(&service, flows?) && self.policies(&service, flows?, cluster?);
        fits.then_some(service)
    }

    /// Whether flows that go to a NodePort find one.
    fn node_ports(&mut self, service: &Service, flows: &Flows) -> bool {
        let kind = "service.type";
        if service.kind == ServiceType::ClusterIp && flows.via == Via::NodePort {
            let message =
                "service.type = \"cluster-ip\" with flows that go to a NodePort: there is none";
            let help = "take it out, or have the flows go elsewhere";
            self.blame([kind, "flows.via"], At::Value, message.into(), help);
            return false;
        }
        true
    }

    /// Whether flows find their target behind a policy that keeps a node to its own endpoints. The
    /// external one counts for clients outside alone: kube-proxy lets those within the cluster go on to
    /// all endpoints.
    fn policies(&mut self, service: &Service, flows: &Flows, cluster: &ClusterSpec) -> bool {
        let (key, policy) = match (flows.via, flows.from) {
            (Via::NodePort, Vantage::Outside) => {
                ("service.external_traffic_policy", service.external_traffic_policy)
            }
            (Via::ClusterIp, _) => {
                ("service.internal_traffic_policy", service.internal_traffic_policy)
            }
            _ => return true,
        };
        let by_another = match &flows.enter_by {
            EnterBy::OtherNode => true,
            EnterBy::PodNode => false,
            // The control plane takes no pods beside other nodes.
            EnterBy::Named(name) => {
                is_local(cluster.provider) && cluster.nodes >= 2 && name == "node-1"
            }
        };
        if policy != TrafficPolicy::Local || !by_another {
            return true;
        }
        let message = format!(
            "{} = \"local\" with flows that enter by another node than the pod's{}: that one has no \
             endpoint of its own",
            key.trim_start_matches("service."),
            self.by_default("flows.enter_by")
        );
        let help = "set flows.enter_by to \"pod-node\"";
        self.blame([key, "flows.enter_by"], At::Value, message, help);
        false
    }

    /// Tells that there is no node for each pod, where each takes its node's hostPort.
    pub(super) fn host_ports(
        &mut self,
        replicas: u32,
        rollout: Option<Rollout>,
        flows: &Flows,
        cluster: &ClusterSpec,
    ) {
        if flows.via != Via::HostPort || !is_local(cluster.provider) {
            return;
        }
        // The first node takes pods only when it is alone.
        let nodes = cluster.nodes.saturating_sub(1).max(1);
        let have = if nodes == 1 { "node takes pods" } else { "nodes take pods" };
        if replicas > nodes {
            let message = format!(
                "{replicas} replicas with via = \"host-port\", and {nodes} {have}: each takes one with \
                 this hostPort"
            );
            let help = "have fewer replicas, or more nodes: the first of several takes no pods";
            self.blame(["pod.replicas", "flows.via"], At::Value, message, help);
        } else if replicas == nodes && rollout.is_some_and(|rollout| rollout.keeps_all(replicas)) {
            let message = format!(
                "a rollout that takes no pod away first with via = \"host-port\", and {nodes} {have}: \
                 none has its hostPort left for a new pod"
            );
            let help = "set rollout.max_unavailable to 1, or have more nodes";
            self.blame(["flows.via", "trigger"], At::Value, message, help);
        }
    }
}
