//! Triggers that part a pod that lives on from its Service.

use http::Request;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use serde_json::json;

use super::Aim;
use drainwatch_probe::{FAIL_PATH, READYZ_PORT};

/// Changes the label that the Service and the ReplicaSet go by: the pod leaves both.
pub(super) async fn relabel(client: &kube::Client, aim: &Aim) -> Result<(), kube::Error> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &aim.namespace);
    let labels = json!({"app": format!("{}-relabelled", aim.workload)});
    let patch = Patch::Merge(json!({"metadata": {"labels": labels}}));
    pods.patch(&aim.pod, &PatchParams::default(), &patch).await.map(drop)
}

/// Tells the probe to fail its readiness from now on, by the API server's way to pods: it needs no
/// more than the right to `pods/proxy`, and works wherever the API server reaches pods.
pub(super) async fn fail_readiness(client: &kube::Client, aim: &Aim) -> Result<(), kube::Error> {
    let Aim { namespace, pod, .. } = aim;
    let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}:{READYZ_PORT}/proxy{FAIL_PATH}");
    let request = Request::post(path).body(Vec::new());
    let request = request.map_err(|error| kube::Error::Service(error.into()))?;
    client.request_text(request).await.map(drop)
}

/// DELETE of the Service.
pub(super) async fn delete(client: &kube::Client, aim: &Aim) -> Result<(), kube::Error> {
    let services: Api<Service> = Api::namespaced(client.clone(), &aim.namespace);
    services.delete(&aim.workload, &DeleteParams::default()).await.map(drop)
}
