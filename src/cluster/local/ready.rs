//! When a cluster whose processes are up can be used: every node Ready and not tainted as if it
//! were not, and what a first pod needs is there.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{ConfigMap, Node as KubeNode, ServiceAccount};
use kube::Client;
use kube::api::{Api, ListParams, Patch, PatchParams};
use serde_json::json;

use super::dns;
use crate::cluster::{ClusterError, Node};

const ASK_EVERY: Duration = Duration::from_millis(25);
const BOUND: Duration = Duration::from_secs(180);
const NOT_READY: &str = "node.kubernetes.io/not-ready";
const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";

/// Waits for all of it, and labels the control plane as kubeadm does (a kubelet may not label
/// itself so).
pub(super) async fn wait(client: &Client, nodes: &[Node], dns: bool) -> Result<(), ClusterError> {
    let deadline = Instant::now() + BOUND;
    loop {
        // A call that fails is as good as an answer that says no, until the time is over.
        let missing = match missing(client, nodes, dns).await {
            Ok(None) => return Ok(()),
            Ok(Some(missing)) => missing,
            Err(error) => error.to_string(),
        };
        if Instant::now() > deadline {
            return Err(ClusterError::Component {
                component: "cluster".into(),
                reason: format!("{missing} after {} s", BOUND.as_secs()),
                logs: None,
            });
        }
        tokio::time::sleep(ASK_EVERY).await;
    }
}

/// Something that is still missing.
async fn missing(client: &Client, nodes: &[Node], dns: bool) -> kube::Result<Option<String>> {
    let kube_nodes: Api<KubeNode> = Api::all(client.clone());
    let listed = kube_nodes.list(&ListParams::default()).await?.items;
    let unready = nodes.iter().find(|node| !listed.iter().any(|n| is_ready(n, &node.name)));
    if let Some(node) = unready {
        return Ok(Some(format!("{} is not Ready", node.name)));
    }
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "default");
    if accounts.get_opt("default").await?.is_none() {
        return Ok(Some("there is no default service account".into()));
    }
    let configs: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    if configs.get_opt("kube-root-ca.crt").await?.is_none() {
        return Ok(Some("there is no kube-root-ca.crt".into()));
    }
    let labels = Patch::Merge(json!({"metadata": {"labels": {CONTROL_PLANE: ""}}}));
    kube_nodes.patch(&nodes[0].name, &PatchParams::default(), &labels).await?;
    if dns {
        dns::expose(client, nodes[0].address).await?;
        // kube-proxy takes a moment to lead there.
        for node in nodes {
            let Some(pid) = node.pid else { continue };
            let asked = tokio::task::spawn_blocking(move || dns::answers(pid));
            if !asked.await.unwrap_or(false) {
                return Ok(Some(format!("no answer by DNS on {}", node.name)));
            }
        }
    }
    Ok(None)
}

fn is_ready(node: &KubeNode, name: &str) -> bool {
    let conditions = node.status.as_ref().and_then(|s| s.conditions.as_ref());
    let ready =
        conditions.is_some_and(|all| all.iter().any(|c| c.type_ == "Ready" && c.status == "True"));
    let taints = node.spec.as_ref().and_then(|s| s.taints.as_ref());
    let tainted = taints.is_some_and(|all| all.iter().any(|t| t.key == NOT_READY));
    node.metadata.name.as_deref() == Some(name) && ready && !tainted
}
