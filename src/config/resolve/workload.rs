//! The pod and the Service, and what they contradict.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{At, Resolver, secs, time};
use crate::config::scenario::{EnterBy, Flows, Via};
use crate::config::schema;
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

    pub(super) fn service(&mut self, flows: Option<&Flows>) -> Option<Service> {
        let kind = self.word("service.type", ServiceType::NodePort);
        let external = self.word("service.external_traffic_policy", TrafficPolicy::Cluster);
        let service = Service {
            session_affinity: self.word("service.session_affinity", SessionAffinity::None)?,
            internal_traffic_policy: self
                .word("service.internal_traffic_policy", TrafficPolicy::Cluster)?,
            kind: kind?,
            external_traffic_policy: external?,
        };
        self.node_ports(&service, flows?).then_some(service)
    }

    /// Whether flows that go to a NodePort find one, and their target behind it.
    fn node_ports(&mut self, service: &Service, flows: &Flows) -> bool {
        let (kind, policy) = ("service.type", "service.external_traffic_policy");
        if service.kind == ServiceType::ClusterIp && flows.via == Via::NodePort {
            let message =
                "service.type = \"cluster-ip\" with flows that go to a NodePort: there is none";
            let help = "take it out, or have the flows go elsewhere";
            self.blame([kind, "flows.via"], At::Value, message.into(), help);
            return false;
        }
        if service.external_traffic_policy == TrafficPolicy::Local
            && flows.via == Via::NodePort
            && flows.enter_by == EnterBy::OtherNode
        {
            let message = format!(
                "external_traffic_policy = \"local\" with flows that enter by another node than the \
                 pod's{}: that one has no endpoint of its own",
                self.by_default("flows.enter_by")
            );
            let help = "set flows.enter_by to \"pod-node\"";
            self.blame([policy, "flows.enter_by"], At::Value, message, help);
            return false;
        }
        true
    }
}
