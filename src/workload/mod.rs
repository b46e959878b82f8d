//! The workload: the probe's Deployment and Service, fresh for each trial.
//!
//! Takes a scenario and a trial's name; creates and removes objects. Knows nothing of flows, watches
//! or verdicts.

mod client;
pub mod image;
mod manifests;

use std::time::Duration;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::{Namespace, Pod, Service};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::config::{Scenario, Via};

/// The namespace of every trial in a cluster of our own.
pub const NAMESPACE: &str = "drainwatch";
/// The name of the probe's container.
pub const CONTAINER: &str = "probe";
/// The label that all objects of a trial have for as long as they are there; its value is the
/// workload's name.
const TRIAL_LABEL: &str = "trial";
/// What the controller goes by that removes pods of a set: the lowest cost first.
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
/// How long the budget's controller may take to count its pods.
const COUNT_LIMIT: Duration = Duration::from_secs(10);
/// How long a trial's objects may take to go.
const REMOVAL_LIMIT: Duration = Duration::from_secs(20);

/// A trial's workload by name: nothing of it is shared with another trial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// The Deployment's and the Service's name: `probe-001`.
    pub name: String,
}

/// The node ports that the API gave to the Service; none to one of type ClusterIP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodePorts {
    /// For TCP flows.
    pub tcp: Option<u16>,
    /// For UDP flows.
    pub udp: Option<u16>,
}

impl Workload {
    /// The workload of an arm's trial, by its repeat.
    pub fn new(repeat: u32) -> Self {
        Self { name: format!("probe-{repeat:03}") }
    }

    /// The label selector of its objects and their pods, those that have left the Service too.
    pub fn selector(&self) -> String {
        format!("{TRIAL_LABEL}={}", self.name)
    }

    /// Creates the Service, the budget and the Deployment, of one pod, and gives the node ports.
    pub async fn create(
        &self,
        client: &kube::Client,
        scenario: &Scenario,
    ) -> Result<NodePorts, WorkloadError> {
        let services: Api<Service> = Api::namespaced(client.clone(), NAMESPACE);
        let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
        let service =
            services.create(&PostParams::default(), &typed(self.service(scenario))?).await?;
        if let Some(budget) = self.budget(scenario) {
            let budgets: Api<PodDisruptionBudget> = Api::namespaced(client.clone(), NAMESPACE);
            budgets.create(&PostParams::default(), &typed(budget)?).await?;
        }
        let deployment = typed(self.deployment(scenario))?;
        deployments.create(&PostParams::default(), &deployment).await?;
        let ports = service.spec.and_then(|spec| spec.ports).unwrap_or_default();
        let node_port = |name: &str| {
            let port = ports.iter().find(|port| port.name.as_deref() == Some(name))?;
            u16::try_from(port.node_port?).ok()
        };
        Ok(NodePorts { tcp: node_port("tcp"), udp: node_port("udp") })
    }

    /// Has the Deployment make the others of its pods, and the target the first of them to go.
    pub async fn scale_up(
        &self,
        client: &kube::Client,
        target: &str,
        replicas: u32,
    ) -> Result<(), WorkloadError> {
        let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
        let cost = json!({"metadata": {"annotations": {DELETION_COST: "-1000"}}});
        pods.patch(target, &PatchParams::default(), &Patch::Merge(cost)).await?;
        let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
        let scale = Patch::Merge(json!({"spec": {"replicas": replicas}}));
        deployments.patch_scale(&self.name, &PatchParams::default(), &scale).await?;
        Ok(())
    }

    /// Waits until the budget's controller has counted this many pods as healthy: until then the API
    /// refuses evictions for want of a count. Gives how many disruptions the budget allows.
    pub async fn budget_counts(
        &self,
        client: &kube::Client,
        replicas: u32,
    ) -> Result<i32, WorkloadError> {
        let budgets: Api<PodDisruptionBudget> = Api::namespaced(client.clone(), NAMESPACE);
        let counted = async {
            loop {
                let budget = budgets.get(&self.name).await?;
                let status = budget.status.unwrap_or_default();
                let current = status.observed_generation == budget.metadata.generation;
                let healthy = u32::try_from(status.current_healthy).ok() == Some(replicas);
                if current && healthy {
                    return Ok(status.disruptions_allowed);
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        match tokio::time::timeout(COUNT_LIMIT, counted).await {
            Ok(result) => result,
            Err(_) => Err(WorkloadError::NotCounted(self.name.clone(), COUNT_LIMIT)),
        }
    }

    /// Removes all of it at once, its pods without grace, and waits until the API lists none of it.
    pub async fn remove(&self, client: &kube::Client) -> Result<(), WorkloadError> {
        let services: Api<Service> = Api::namespaced(client.clone(), NAMESPACE);
        let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
        let sets: Api<ReplicaSet> = Api::namespaced(client.clone(), NAMESPACE);
        let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
        let budgets: Api<PodDisruptionBudget> = Api::namespaced(client.clone(), NAMESPACE);
        let ours = ListParams::default().labels(&self.selector());
        let clients = ListParams::default().labels(&self.client_selector());
        let at_once = DeleteParams::default().grace_period(0);
        let removal = async {
            let background = DeleteParams::background();
            gone_is_fine(services.delete(&self.name, &background).await.map(drop))?;
            gone_is_fine(deployments.delete(&self.name, &background).await.map(drop))?;
            budgets.delete_collection(&background, &ours).await?;
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

/// Creates the trials' namespace and waits for its default service account, without which no pod
/// is admitted.
pub async fn prepare(client: &kube::Client, scenario: &Scenario) -> Result<(), WorkloadError> {
    use k8s_openapi::api::core::v1::ServiceAccount;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    // At any other level pods with a hostPort or with sysctls of their own are turned away.
    let plain = scenario.pod.sysctls.is_empty() && scenario.flows.via != Via::HostPort;
    let level = if plain { "restricted" } else { "privileged" };
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
    /// The namespace has no default service account.
    #[error("namespace {NAMESPACE} has no default service account after {REMOVAL_LIMIT:?}")]
    NoServiceAccount,
    /// The budget's controller did not count its pods.
    #[error("the disruption budget {0} has not counted its pods after {1:?}")]
    NotCounted(String, Duration),
    /// The client pod does not run.
    #[error("pod {0} on {1} does not run after {RUNS_WITHIN:?}: {2}", RUNS_WITHIN = client::RUNS_WITHIN)]
    ClientDoesNotRun(String, String, String),
    /// Objects did not go.
    #[error("pods of {0} are still listed after {1:?}")]
    Stays(String, Duration),
}
