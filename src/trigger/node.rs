//! Triggers that go to the target's node: it is drained, or it stops.

use k8s_openapi::api::core::v1::{Node as NodeObject, Pod};
use kube::api::{Api, ListParams, Patch, PatchParams};
use serde_json::json;

use super::{Aim, Unfit, pod};
use crate::cluster::{Node, NodeControl};

/// The trial's pods on the target's node, the target first.
pub(super) async fn pods_on(client: &kube::Client, aim: &Aim) -> Result<Vec<String>, kube::Error> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &aim.namespace);
    let ours =
        ListParams::default().labels(&aim.selector).fields(&format!("spec.nodeName={}", aim.node));
    let listed = pods.list_metadata(&ours).await?;
    let names = listed.items.into_iter().filter_map(|pod| pod.metadata.name);
    let others = names.filter(|name| *name != aim.pod);
    Ok(std::iter::once(aim.pod.clone()).chain(others).collect())
}

/// Cordons the node, then evicts the pods, each once; the first refusal is the answer.
pub(super) async fn drain(
    client: &kube::Client,
    aim: &Aim,
    pods: &[String],
) -> Result<(), kube::Error> {
    cordon(client, &aim.node, true).await?;
    for pod in pods {
        pod::evict(client, &aim.namespace, pod).await?;
    }
    Ok(())
}

/// Whether the scheduler passes the node over.
pub(super) async fn cordon(
    client: &kube::Client,
    node: &str,
    unschedulable: bool,
) -> Result<(), kube::Error> {
    let nodes: Api<NodeObject> = Api::all(client.clone());
    let patch = Patch::Merge(json!({"spec": {"unschedulable": unschedulable}}));
    nodes.patch(node, &PatchParams::default(), &patch).await.map(drop)
}

/// Whether the target's node is none that the flows or the API need.
pub(super) fn may_stop<'a>(
    control: &'a dyn NodeControl,
    nodes: &[Node],
    aim: &Aim,
) -> Result<&'a dyn NodeControl, Unfit> {
    let unfit = |why| Unfit::Node { node: aim.node.clone(), why };
    if aim.node == aim.entry_node {
        return Err(unfit("the flows enter by"));
    }
    match nodes.first() {
        Some(first) if first.name == aim.node => Err(unfit("is the control plane")),
        _ => Ok(control),
    }
}
