//! Triggers that go to the Deployment, whose controllers then choose pods.

use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;

use super::Aim;

/// Sets the Deployment's scale.
pub(super) async fn scale(
    client: &kube::Client,
    aim: &Aim,
    replicas: u32,
) -> Result<(), kube::Error> {
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), &aim.namespace);
    let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
    deployments.patch_scale(&aim.workload, &PatchParams::default(), &patch).await.map(drop)
}

/// Changes the pod template by an annotation, as `kubectl rollout restart` does: the new pods are
/// as the old ones.
pub(super) async fn change_template(client: &kube::Client, aim: &Aim) -> Result<(), kube::Error> {
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), &aim.namespace);
    let annotations = json!({"drainwatch/rollout": "1"});
    let template = json!({"spec": {"template": {"metadata": {"annotations": annotations}}}});
    let patch = Patch::Merge(template);
    deployments.patch(&aim.workload, &PatchParams::default(), &patch).await.map(drop)
}
