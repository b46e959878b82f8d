//! Triggers that go to the pod itself: its deletion, its eviction, its process's end.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::Eviction;
use kube::api::{Api, DeleteParams, ObjectMeta, PostParams};
use nix::sys::signal::{Signal, kill as send_signal};
use nix::unistd::Pid;

use super::{Aim, Unfit};
use crate::cluster::Cluster;

/// DELETE, with a grace period of its own or with the pod's.
pub(super) async fn delete(
    client: &kube::Client,
    aim: &Aim,
    grace_s: Option<u32>,
) -> Result<(), kube::Error> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &aim.namespace);
    let params = DeleteParams { grace_period_seconds: grace_s, ..DeleteParams::default() };
    pods.delete(&aim.pod, &params).await.map(drop)
}

/// An Eviction without delete options. (`Api::evict` of kube 5.0 always sends some.)
pub(super) async fn evict(
    client: &kube::Client,
    namespace: &str,
    pod: &str,
) -> Result<(), kube::Error> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let eviction = Eviction {
        metadata: ObjectMeta { name: Some(pod.to_owned()), ..ObjectMeta::default() },
        delete_options: None,
    };
    let created: Result<serde_json::Value, _> =
        pods.create_subresource("eviction", pod, &PostParams::default(), &eviction).await;
    created.map(drop)
}

/// The app's process, as this machine numbers processes.
pub(super) async fn process(cluster: &dyn Cluster, aim: &Aim) -> Result<i32, Unfit> {
    let pods: Api<Pod> = Api::namespaced(cluster.client(), &aim.namespace);
    let status = pods.get(&aim.pod).await?.status.unwrap_or_default();
    let mut containers = status.container_statuses.into_iter().flatten();
    let id = containers.find(|status| status.name == aim.container).and_then(|c| c.container_id);
    // `containerd://ID`
    let id = id.as_deref().and_then(|id| id.rsplit('/').next()).unwrap_or_default();
    let process = cluster.container_process(&aim.node, &aim.uid, id);
    process
        .ok_or_else(|| Unfit::NoProcess { pod: aim.pod.clone(), container: aim.container.clone() })
}

/// SIGKILL.
pub(super) fn kill(pid: i32) -> nix::Result<()> {
    send_signal(Pid::from_raw(pid), Signal::SIGKILL)
}
