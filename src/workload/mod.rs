//! The workload: the probe's Deployment and Service, fresh for each trial.
//!
//! Takes a scenario and a trial's name; gives objects and creates and removes them. Knows nothing
//! of flows, watches or verdicts.

mod client;
pub mod image;

use std::time::Duration;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::{Namespace, Pod, Service};
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use serde_json::{Value, json};

use crate::config::{IpFamily, Readiness, Scenario, Sigterm, Via};
use drainwatch_probe::{READYZ_PORT, TCP_PORT, UDP_PORT};

/// The namespace of every trial in a cluster of our own.
pub const NAMESPACE: &str = "drainwatch";
/// The name of the probe's container.
pub const CONTAINER: &str = "probe";
/// How long a trial's objects may take to go.
const REMOVAL_LIMIT: Duration = Duration::from_secs(20);

/// A trial's workload by name: nothing of it is shared with another trial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// The Deployment's and the Service's name: `probe-001`.
    pub name: String,
}

/// The node ports that the API gave to the Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodePorts {
    /// For TCP flows.
    pub tcp: u16,
    /// For UDP flows.
    pub udp: u16,
}

impl Workload {
    /// The workload of an arm's trial, by its repeat.
    pub fn new(repeat: u32) -> Self {
        Self { name: format!("probe-{repeat:03}") }
    }

    /// The label selector of its pods and EndpointSlices.
    pub fn selector(&self) -> String {
        format!("app={}", self.name)
    }

    /// The Deployment: one pod, as restricted as Pod Security asks.
    pub fn deployment(&self, scenario: &Scenario) -> Value {
        json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": self.name, "labels": {"app": self.name}},
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": {"app": self.name}},
                "template": {
                    "metadata": {"labels": {"app": self.name}},
                    "spec": self.pod(scenario),
                },
            },
        })
    }

    fn pod(&self, scenario: &Scenario) -> Value {
        let field = |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}});
        let mut tcp = json!({"name": "tcp", "containerPort": TCP_PORT, "protocol": "TCP"});
        let mut udp = json!({"name": "udp", "containerPort": UDP_PORT, "protocol": "UDP"});
        if scenario.flows.via == Via::HostPort {
            tcp["hostPort"] = json!(TCP_PORT);
            udp["hostPort"] = json!(UDP_PORT);
        }
        json!({
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
        })
    }

    /// The Service: a NodePort for each protocol, chosen by the API.
    pub fn service(&self, scenario: &Scenario) -> Value {
        let family = match scenario.flows.ip {
            IpFamily::Ipv4 => "IPv4",
            IpFamily::Ipv6 => "IPv6",
        };
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": self.name, "labels": {"app": self.name}},
            "spec": {
                "type": "NodePort",
                "ipFamilyPolicy": "SingleStack",
                "ipFamilies": [family],
                "selector": {"app": self.name},
                "ports": [
                    {"name": "tcp", "port": TCP_PORT, "targetPort": TCP_PORT, "protocol": "TCP"},
                    {"name": "udp", "port": UDP_PORT, "targetPort": UDP_PORT, "protocol": "UDP"},
                ],
            },
        })
    }

    /// Creates the Service and the Deployment and gives the node ports.
    pub async fn create(
        &self,
        client: &kube::Client,
        scenario: &Scenario,
    ) -> Result<NodePorts, WorkloadError> {
        let services: Api<Service> = Api::namespaced(client.clone(), NAMESPACE);
        let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
        let service =
            services.create(&PostParams::default(), &typed(self.service(scenario))?).await?;
        let deployment = typed(self.deployment(scenario))?;
        deployments.create(&PostParams::default(), &deployment).await?;
        let ports = service.spec.and_then(|spec| spec.ports).unwrap_or_default();
        let node_port = |name: &str| {
            let port = ports.iter().find(|port| port.name.as_deref() == Some(name))?;
            u16::try_from(port.node_port?).ok()
        };
        match (node_port("tcp"), node_port("udp")) {
            (Some(tcp), Some(udp)) => Ok(NodePorts { tcp, udp }),
            _ => Err(WorkloadError::NoNodePort(self.name.clone())),
        }
    }

    /// Removes all of it at once, its pods without grace, and waits until the API lists none of it.
    pub async fn remove(&self, client: &kube::Client) -> Result<(), WorkloadError> {
        let services: Api<Service> = Api::namespaced(client.clone(), NAMESPACE);
        let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
        let sets: Api<ReplicaSet> = Api::namespaced(client.clone(), NAMESPACE);
        let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
        let ours = ListParams::default().labels(&self.selector());
        let clients = ListParams::default().labels(&self.client_selector());
        let at_once = DeleteParams::default().grace_period(0);
        let removal = async {
            let background = DeleteParams::background();
            gone_is_fine(services.delete(&self.name, &background).await.map(drop))?;
            gone_is_fine(deployments.delete(&self.name, &background).await.map(drop))?;
            sets.delete_collection(&background, &ours).await?;
            loop {
                pods.delete_collection(&at_once, &ours).await?;
                pods.delete_collection(&at_once, &clients).await?;
                if pods.list_metadata(&ours).await?.items.is_empty()
                    && pods.list_metadata(&clients).await?.items.is_empty()
                    && sets.list_metadata(&ours).await?.items.is_empty()
                {
                    return Ok(());
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        match tokio::time::timeout(REMOVAL_LIMIT, removal).await {
            Ok(result) => result,
            Err(_) => Err(WorkloadError::Stays(self.name.clone(), REMOVAL_LIMIT)),
        }
    }
}

/// Creates the namespace of a scenario's trials and waits for its default service account, without
/// which no pod is admitted.
pub async fn prepare(client: &kube::Client, scenario: &Scenario) -> Result<(), WorkloadError> {
    use k8s_openapi::api::core::v1::ServiceAccount;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    // Any other level turns pods with a hostPort away.
    let level = if scenario.flows.via == Via::HostPort { "privileged" } else { "restricted" };
    let labels = json!({"pod-security.kubernetes.io/enforce": level});
    let namespace = json!({"metadata": {"name": NAMESPACE, "labels": labels}});
    namespaces.create(&PostParams::default(), &typed(namespace)?).await?;
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), NAMESPACE);
    let wait = async {
        while accounts.get_metadata_opt("default").await?.is_none() {
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        Ok(())
    };
    match tokio::time::timeout(REMOVAL_LIMIT, wait).await {
        Ok(result) => result,
        Err(_) => Err(WorkloadError::NoServiceAccount),
    }
}

/// What Pod Security's level "restricted" asks of a pod.
fn pod_security() -> Value {
    json!({
        "runAsNonRoot": true,
        "runAsUser": 65532,
        "runAsGroup": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    })
}

/// What it asks of a container.
fn container_security() -> Value {
    json!({
        "allowPrivilegeEscalation": false,
        "readOnlyRootFilesystem": true,
        "capabilities": {"drop": ["ALL"]},
    })
}

/// The probe's arguments for a scenario.
fn probe_arguments(scenario: &Scenario) -> Vec<String> {
    let sigterm = match scenario.sigterm {
        Sigterm::Exit => "exit",
        Sigterm::Drain => "drain",
        Sigterm::Ignore => "ignore",
    };
    let mut arguments = vec!["serve".to_owned(), format!("--sigterm={sigterm}")];
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

fn typed<T: serde::de::DeserializeOwned>(value: Value) -> Result<T, WorkloadError> {
    serde_json::from_value(value).map_err(WorkloadError::Manifest)
}

fn gone_is_fine(result: Result<(), kube::Error>) -> Result<(), kube::Error> {
    match result {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => other,
    }
}

/// Why a trial's objects could not be made or removed.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadError {
    /// The API said no, or nothing.
    #[error("the cluster's API: {0}")]
    Api(#[from] kube::Error),
    /// A manifest of ours is not what the API's types say.
    #[error("a manifest does not fit its type: {0}")]
    Manifest(serde_json::Error),
    /// The Service came back without node ports.
    #[error("Service {0} was given no node ports")]
    NoNodePort(String),
    /// The namespace has no default service account.
    #[error("namespace {NAMESPACE} has no default service account after {REMOVAL_LIMIT:?}")]
    NoServiceAccount,
    /// The client pod does not run.
    #[error("pod {0} on {1} does not run after {RUNS_WITHIN:?}: {2}", RUNS_WITHIN = client::RUNS_WITHIN)]
    ClientDoesNotRun(String, String, String),
    /// Objects did not go.
    #[error("pods of {0} are still listed after {1:?}")]
    Stays(String, Duration),
}
