//! What is asked of the API for a trial: the Deployment, its pod, the Service, the budget.
//!
//! Takes a workload's name and a scenario; gives objects as JSON. Asks nobody.

use serde_json::{Value, json};

use super::{CONTAINER, TRIAL_LABEL, Workload, image};
use crate::config::{
    IpFamily, PreStop, Readiness, Rollout, Scenario, ServiceType, SessionAffinity, Share, Sigterm,
    TrafficPolicy, Via,
};
use drainwatch_probe::{READYZ_PORT, TCP_PORT, UDP_PORT};

impl Workload {
    /// The Deployment: one pod at first, as restricted as Pod Security asks.
    pub fn deployment(&self, scenario: &Scenario) -> Value {
        let Rollout { max_surge, max_unavailable } = scenario.rollout.unwrap_or_default();
        json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": self.name, "labels": self.labels()},
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": {"app": self.name}},
                "strategy": {
                    "type": "RollingUpdate",
                    "rollingUpdate": {
                        "maxSurge": share(max_surge), "maxUnavailable": share(max_unavailable),
                    },
                },
                "template": {
                    "metadata": {"labels": self.labels()},
                    "spec": self.pod(scenario),
                },
            },
        })
    }

    /// Those of all its objects. The Service and the controllers go by `app`; the other one stays
    /// with a pod that has left them.
    fn labels(&self) -> Value {
        json!({"app": self.name, TRIAL_LABEL: self.name})
    }

    fn pod(&self, scenario: &Scenario) -> Value {
        let field = |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}});
        let sysctls = scenario.pod.sysctls.iter();
        let sysctls: Vec<_> = sysctls.map(|(n, v)| json!({"name": n, "value": v})).collect();
        let mut tcp = json!({"name": "tcp", "containerPort": TCP_PORT, "protocol": "TCP"});
        let mut udp = json!({"name": "udp", "containerPort": UDP_PORT, "protocol": "UDP"});
        if scenario.flows.via == Via::HostPort {
            tcp["hostPort"] = json!(TCP_PORT);
            udp["hostPort"] = json!(UDP_PORT);
        }
        let mut pod = json!({
            "terminationGracePeriodSeconds": scenario.grace_period.as_secs(),
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "securityContext": pod_security(),
            "containers": [{
                "name": CONTAINER,
                "image": image::image_name(),
                "imagePullPolicy": "Never",
                "args": probe_arguments(scenario),
                "env": [
                    field("POD_NAME", "metadata.name"),
                    field("POD_UID", "metadata.uid"),
                ],
                "ports": [
                    tcp,
                    udp,
                    {"name": "readyz", "containerPort": READYZ_PORT, "protocol": "TCP"},
                ],
                "readinessProbe": {
                    "httpGet": {"path": "/readyz", "port": READYZ_PORT},
                    "periodSeconds": scenario.pod.readiness_period.as_secs(),
                    "failureThreshold": scenario.pod.readiness_failures,
                },
                "securityContext": container_security(),
            }],
        });
        if let Some(hook) = &scenario.pod.pre_stop {
            pod["containers"][0]["lifecycle"] = json!({"preStop": pre_stop(hook)});
        }
        if !sysctls.is_empty() {
            pod["securityContext"]["sysctls"] = json!(sysctls);
        }
        pod
    }

    /// The Service: a port for each protocol, and of each node one that the API chooses.
    pub fn service(&self, scenario: &Scenario) -> Value {
        let crate::config::Service {
            kind,
            session_affinity,
            external_traffic_policy,
            internal_traffic_policy,
        } = scenario.service;
        let policy = |policy| match policy {
            TrafficPolicy::Cluster => "Cluster",
            TrafficPolicy::Local => "Local",
        };
        let mut spec = json!({
            "type": match kind {
                ServiceType::NodePort => "NodePort",
                ServiceType::ClusterIp => "ClusterIP",
            },
            "ipFamilyPolicy": "SingleStack",
            "ipFamilies": [match scenario.flows.ip {
                IpFamily::Ipv4 => "IPv4",
                IpFamily::Ipv6 => "IPv6",
            }],
            "selector": {"app": self.name},
            "sessionAffinity": match session_affinity {
                SessionAffinity::None => "None",
                SessionAffinity::ClientIp => "ClientIP",
            },
            "internalTrafficPolicy": policy(internal_traffic_policy),
            "ports": [
                {"name": "tcp", "port": TCP_PORT, "targetPort": TCP_PORT, "protocol": "TCP"},
                {"name": "udp", "port": UDP_PORT, "targetPort": UDP_PORT, "protocol": "UDP"},
            ],
        });
        // The API takes it for Services only that can be reached from outside.
        if kind != ServiceType::ClusterIp {
            spec["externalTrafficPolicy"] = json!(policy(external_traffic_policy));
        }
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": self.name, "labels": self.labels()},
            "spec": spec,
        })
    }

    /// The PodDisruptionBudget, where the scenario has one.
    pub fn budget(&self, scenario: &Scenario) -> Option<Value> {
        let available = scenario.pod.disruption_budget?;
        Some(json!({
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": self.name, "labels": self.labels()},
            "spec": {
                "minAvailable": available,
                "selector": {"matchLabels": {"app": self.name}},
            },
        }))
    }
}

/// What Pod Security's level "restricted" asks of a pod.
pub(super) fn pod_security() -> Value {
    json!({
        "runAsNonRoot": true,
        "runAsUser": 65532,
        "runAsGroup": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    })
}

/// What it asks of a container.
pub(super) fn container_security() -> Value {
    json!({
        "allowPrivilegeEscalation": false,
        "readOnlyRootFilesystem": true,
        "capabilities": {"drop": ["ALL"]},
    })
}

fn pre_stop(hook: &PreStop) -> Value {
    match hook {
        PreStop::Sleep(time) => json!({"sleep": {"seconds": time.as_secs()}}),
        PreStop::Exec(command) => json!({"exec": {"command": command}}),
    }
}

fn share(share: Share) -> Value {
    match share {
        Share::Count(count) => json!(count),
        Share::Percent(_) => json!(share.to_string()),
    }
}

/// The probe's arguments for a scenario.
fn probe_arguments(scenario: &Scenario) -> Vec<String> {
    let sigterm = match scenario.sigterm {
        Sigterm::Exit => "exit",
        Sigterm::Drain => "drain",
        Sigterm::Ignore => "ignore",
    };
    let mut arguments = vec!["serve".to_owned(), format!("--sigterm={sigterm}")];
    if scenario.pod.shell {
        arguments.insert(0, "shell".to_owned());
    }
    if let Some(window) = scenario.drain_window {
        arguments.push(format!("--drain-window-ms={}", window.as_millis()));
    }
    match scenario.readiness {
        Some(Readiness::Fail) => arguments.push("--readiness=fail".to_owned()),
        Some(Readiness::Pass) => arguments.push("--readiness=pass".to_owned()),
        None => {}
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Service, Trigger};
    use crate::stories;
    use k8s_openapi::api::apps::v1::Deployment;
    use k8s_openapi::api::policy::v1::PodDisruptionBudget;
    use std::time::Duration;

    fn scenario() -> Scenario {
        stories::scenario(Sigterm::Exit, Trigger::Delete)
    }

    fn pod_of(scenario: &Scenario) -> k8s_openapi::api::core::v1::PodSpec {
        let deployment = Workload::new(1).deployment(scenario);
        let deployment: Deployment = serde_json::from_value(deployment).expect("it fits its type");
        deployment.spec.and_then(|spec| spec.template.spec).expect("a pod")
    }

    #[test]
    fn a_plain_pod_has_neither_hook_nor_sysctls() {
        let pod = pod_of(&scenario());
        assert_eq!(pod.containers[0].lifecycle, None);
        assert_eq!(pod.security_context.unwrap().sysctls, None);
        assert_eq!(Workload::new(1).budget(&scenario()), None);
    }

    #[test]
    fn hook_and_sysctls_are_the_pods() {
        let mut scenario = scenario();
        scenario.pod.pre_stop = Some(PreStop::Sleep(Duration::from_secs(5)));
        scenario.pod.sysctls.insert("net.ipv4.icmp_ratelimit".into(), "0".into());
        let pod = pod_of(&scenario);
        let hook = pod.containers[0].lifecycle.as_ref().and_then(|l| l.pre_stop.as_ref());
        assert_eq!(hook.and_then(|hook| hook.sleep.as_ref()).map(|sleep| sleep.seconds), Some(5));
        let sysctls = pod.security_context.unwrap().sysctls.unwrap();
        let sysctls: Vec<_> = sysctls.iter().map(|s| (&*s.name, &*s.value)).collect();
        assert_eq!(sysctls, [("net.ipv4.icmp_ratelimit", "0")]);

        scenario.pod.pre_stop = Some(PreStop::Exec(vec!["/drainwatch-probe".into()]));
        let pod = pod_of(&scenario);
        let hook = pod.containers[0].lifecycle.as_ref().and_then(|l| l.pre_stop.as_ref());
        let command = hook.and_then(|hook| hook.exec.as_ref()?.command.clone());
        assert_eq!(command, Some(vec!["/drainwatch-probe".to_owned()]));
    }

    #[test]
    fn a_rollout_goes_on_as_the_scenario_says() {
        let mut scenario = scenario();
        scenario.rollout =
            Some(Rollout { max_surge: Share::Count(0), max_unavailable: Share::Percent(50) });
        let deployment = Workload::new(1).deployment(&scenario);
        let rolling = &deployment["spec"]["strategy"]["rollingUpdate"];
        assert_eq!(*rolling, json!({"maxSurge": 0, "maxUnavailable": "50%"}));
    }

    #[test]
    fn a_service_that_nobody_outside_reaches_has_no_policy_for_them() {
        let mut scenario = scenario();
        scenario.service = Service {
            kind: ServiceType::ClusterIp,
            session_affinity: SessionAffinity::ClientIp,
            internal_traffic_policy: TrafficPolicy::Local,
            ..Service::default()
        };
        let spec = &Workload::new(1).service(&scenario)["spec"];
        assert_eq!(spec["externalTrafficPolicy"], Value::Null);
        assert_eq!(
            [&spec["type"], &spec["sessionAffinity"], &spec["internalTrafficPolicy"]],
            ["ClusterIP", "ClientIP", "Local"]
        );
        scenario.service = Service::default();
        let spec = &Workload::new(1).service(&scenario)["spec"];
        assert_eq!(spec["externalTrafficPolicy"], "Cluster");
    }

    #[test]
    fn a_budget_counts_the_pods_that_the_service_has() {
        let mut scenario = scenario();
        scenario.pod.disruption_budget = Some(2);
        let budget = Workload::new(1).budget(&scenario).expect("a budget");
        let budget: PodDisruptionBudget = serde_json::from_value(budget).expect("it fits its type");
        let labels = budget.spec.and_then(|spec| spec.selector?.match_labels).expect("a selector");
        assert_eq!(labels.into_iter().collect::<Vec<_>>(), [("app".into(), "probe-001".into())]);
    }
}
