//! The environment record: what a cluster was, read from it.
//!
//! Takes any [`Cluster`], gives an [`Environment`] whose digest covers what must be the same for
//! all trials of an arm. What can't be read is `unknown`, with a warning. Knows nothing of trials.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node as KubeNode, NodeSystemInfo};
use kube::api::{Api, ListParams};
use serde::{Deserialize, Serialize};

use super::{Cluster, ClusterError};
use crate::digest::sha256;

/// The format of an environment record.
pub const ENVIRONMENT_FORMAT: &str = "drainwatch.environment/1";

/// What stands in `environment/<arm>.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    /// [`ENVIRONMENT_FORMAT`]
    pub format: String,
    /// The first cluster's name: `dw-3f9a1c`.
    pub cluster: String,
    /// Who made it: `local`.
    pub provider: String,
    /// SHA-256 of `fixed` as compact JSON, in lowercase hexadecimal.
    pub digest: String,
    /// What must be the same for all trials of an arm, by stable keys: `server`, `nodes`,
    /// `node/node-1/kubelet`, `node/node-1/net.ipv4.icmp_ratelimit`, `proxy mode`, …
    pub fixed: BTreeMap<String, String>,
    /// What differs from cluster to cluster.
    pub varying: BTreeMap<String, String>,
    /// What could not be read, and why.
    pub warnings: Vec<String>,
    /// The arm's other clusters, in their order, all of this digest: those that resuming started.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub later_clusters: Vec<LaterCluster>,
}

/// What stands in an environment record of a cluster after the first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LaterCluster {
    /// Its name.
    pub cluster: String,
    /// What differs from cluster to cluster.
    pub varying: BTreeMap<String, String>,
    /// What could not be read, and why.
    pub warnings: Vec<String>,
}

impl Environment {
    /// The record of the arm's earlier clusters with this one, of the same digest, after them.
    pub fn after(self, mut earlier: Environment) -> Self {
        let Self { cluster, varying, warnings, .. } = self;
        earlier.later_clusters.push(LaterCluster { cluster, varying, warnings });
        earlier
    }
}

/// The value of what could not be read.
pub const UNKNOWN: &str = "unknown";

/// Reads the environment of a cluster that is up.
///
/// Fails where the API does not list the nodes: of such a cluster there is nothing to record.
pub async fn read(cluster: &dyn Cluster, provider: &str) -> Result<Environment, ClusterError> {
    let client = cluster.client();
    let facts = cluster.facts().await?;
    let (mut fixed, mut warnings) = (facts.fixed, facts.warnings);
    let mut put = |key: String, value: Result<String, String>| {
        let value = value.unwrap_or_else(|why| {
            warnings.push(format!("{key} could not be read: {why}"));
            UNKNOWN.into()
        });
        fixed.insert(key, value);
    };

    let server = client.apiserver_version().await;
    put("server".into(), server.map(|v| v.git_version).map_err(|e| e.to_string()));
    let nodes: Api<KubeNode> = Api::all(client);
    let listed = nodes.list(&ListParams::default()).await?.items;
    put("nodes".into(), Ok(listed.len().to_string()));
    for node in &listed {
        let name = node.metadata.name.as_deref().unwrap_or(UNKNOWN);
        let info = node.status.as_ref().and_then(|s| s.node_info.as_ref());
        for (key, read) in NODE_INFO {
            let value = info.map(read).filter(|v| !v.is_empty()).ok_or("the node does not say");
            put(format!("node/{name}/{key}"), value.map_err(Into::into));
        }
    }
    for key in ["cni", "proxy mode", "cgroup version"] {
        if !fixed.contains_key(key) {
            warnings.push(format!("{key} is not known of clusters of the provider {provider}"));
            fixed.insert(key.into(), UNKNOWN.into());
        }
    }
    // Another boot of the same kernel is the same environment.
    let mut varying = facts.varying;
    let boot = crate::clock::boot_id().unwrap_or_else(|| UNKNOWN.into());
    varying.insert("runner/boot_id".into(), boot);
    Ok(Environment {
        format: ENVIRONMENT_FORMAT.into(),
        cluster: cluster.name().into(),
        provider: provider.into(),
        digest: digest(&fixed),
        fixed,
        varying,
        warnings,
        later_clusters: Vec::new(),
    })
}

type ReadInfo = fn(&NodeSystemInfo) -> String;

const NODE_INFO: [(&str, ReadInfo); 5] = [
    ("kubelet", |info| info.kubelet_version.clone()),
    ("container runtime", |info| info.container_runtime_version.clone()),
    ("kernel", |info| info.kernel_version.clone()),
    ("os", |info| info.os_image.clone()),
    ("architecture", |info| info.architecture.clone()),
];

fn digest(fixed: &BTreeMap<String, String>) -> String {
    // A map of strings always has a JSON form.
    let bytes = serde_json::to_vec(fixed).unwrap_or_default();
    sha256(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_covers_keys_and_values() {
        let map = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect()
        };
        let one = digest(&map(&[("a", "1"), ("b", "2")]));
        assert_eq!(one.len(), 64);
        assert_eq!(one, digest(&map(&[("b", "2"), ("a", "1")])));
        assert_ne!(one, digest(&map(&[("a", "2"), ("b", "1")])));
        assert_ne!(one, digest(&map(&[("a", "1b"), ("", "2")])));
    }
}
