//! A trial's client pod: it does nothing, and lends its net namespace to the flows' sockets.
//!
//! Takes the node that it is to stand on; gives its UID once it runs. The trial's Service does not
//! select it.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, PostParams};
use serde_json::{Value, json};

use super::manifests::{container_security, pod_security};
use super::{NAMESPACE, Workload, WorkloadError, image, typed};

/// How long it may take to run.
pub(super) const RUNS_WITHIN: Duration = Duration::from_secs(30);
/// The label that names the workload whose client a pod is.
const LABEL: &str = "client-of";

impl Workload {
    /// The label selector of its client pods.
    pub(super) fn client_selector(&self) -> String {
        format!("{LABEL}={}", self.name)
    }

    /// The client pod, on a node: by name and past its taints, since it may be the control plane.
    fn client(&self, node: &str) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": format!("client-of-{}", self.name), "labels": {LABEL: self.name}},
            "spec": {
                "nodeName": node,
                "tolerations": [{"operator": "Exists"}],
                "terminationGracePeriodSeconds": 0,
                "automountServiceAccountToken": false,
                "enableServiceLinks": false,
                "securityContext": pod_security(),
                "containers": [{
                    "name": "client",
                    "image": image::image_name(),
                    "imagePullPolicy": "Never",
                    "args": ["pause"],
                    "securityContext": container_security(),
                }],
            },
        })
    }

    /// Creates the client pod and waits until it runs; gives its UID.
    ///
    /// # Errors
    /// The API's, and [`WorkloadError::ClientDoesNotRun`].
    pub async fn create_client(
        &self,
        client: &kube::Client,
        node: &str,
    ) -> Result<String, WorkloadError> {
        let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
        let made = pods.create(&PostParams::default(), &typed(self.client(node))?).await?;
        let name = made.metadata.name.unwrap_or_default();
        let mut phase = "no phase".to_owned();
        let runs = async {
            loop {
                let status = pods.get_status(&name).await?.status;
                phase = status.and_then(|status| status.phase).unwrap_or_default();
                if phase == "Running" {
                    return Ok(made.metadata.uid.unwrap_or_default());
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        match tokio::time::timeout(RUNS_WITHIN, runs).await {
            Ok(result) => result,
            Err(_) => Err(WorkloadError::ClientDoesNotRun(name, node.to_owned(), phase)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Sigterm, Trigger};

    #[test]
    fn the_service_does_not_select_the_client() {
        let workload = Workload::new(1);
        let client = workload.client("node-1");
        let labels = client["metadata"]["labels"].as_object().unwrap();
        let scenario = crate::stories::scenario(Sigterm::Exit, Trigger::Delete);
        let service = workload.service(&scenario);
        let selector = service["spec"]["selector"].as_object().unwrap();
        assert!(selector.iter().all(|(key, value)| labels.get(key) != Some(value)));
        typed::<Pod>(client).unwrap();
    }
}
