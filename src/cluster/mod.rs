//! Clusters: the [`Provider`] seam.
//!
//! A provider brings a cluster up and takes it down, hands out a client, the nodes, the facts of
//! the environment record, a way to load an image and, where it can, entry to a node's
//! namespaces. Providers know nothing of each other, of workloads or of trials.

pub mod environment;
pub mod local;
pub mod machine;

use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

use async_trait::async_trait;

use crate::config::ClusterSpec;

/// Makes clusters of one kind.
#[async_trait]
pub trait Provider: Send + Sync {
    /// Its name as in TOML: `local`.
    fn name(&self) -> &'static str;

    /// Checks, without starting or changing anything, that a cluster like this can be made here.
    fn check(&self, spec: &ClusterSpec) -> Result<(), ClusterError>;

    /// Brings a cluster up: returns once its API answers and each node is Ready. On failure
    /// nothing is left but the components' logs below `logs`.
    async fn up(&self, spec: &ClusterSpec, logs: &Path) -> Result<Box<dyn Cluster>, ClusterError>;
}

/// A cluster that is up.
#[async_trait]
pub trait Cluster: Send + Sync {
    /// Unique on this host: `dw-3f9a1c`.
    fn name(&self) -> &str;

    /// A client with an administrator's rights. It does not retry by itself.
    fn client(&self) -> kube::Client;

    /// A kubeconfig with an administrator's rights, readable by its owner only.
    fn kubeconfig(&self) -> &Path;

    /// The nodes; the first is the control plane.
    fn nodes(&self) -> &[Node];

    /// Makes the images of an archive (OCI layout with a Docker `manifest.json`) known to each node:
    /// a client pod may stand on one that takes no other pods.
    async fn load_image(&self, archive: &Path) -> Result<(), ClusterError>;

    /// A process in a pod's namespaces, as this machine numbers processes: the one of them that was
    /// there first, which is the last to go. `None` where the provider can't tell one (yet).
    fn pod_process(&self, node: &str, uid: &str) -> Option<i32> {
        let _ = (node, uid);
        None
    }

    /// The first process of a pod's container, by the container's id as its runtime names it, as this
    /// machine numbers processes. `None` where the provider can't tell it, or it has gone.
    fn container_process(&self, node: &str, uid: &str, id: &str) -> Option<i32> {
        let _ = (node, uid, id);
        None
    }

    /// Power over what runs on the nodes; `None` where the provider has none.
    fn control(&self) -> Option<&dyn NodeControl> {
        None
    }

    /// What the provider knows of the environment that the API does not tell.
    async fn facts(&self) -> Result<ProviderFacts, ClusterError>;

    /// Copies the components' logs into a folder.
    async fn keep_logs(&self, into: &Path) -> std::io::Result<()>;

    /// Waits until a part of the cluster ends although nobody asked it to; gives which and why.
    /// Whoever calls it again hears of the next. May be called off.
    async fn broken(&mut self) -> String {
        // A provider that does not watch its cluster never tells.
        std::future::pending().await
    }

    /// Removes all of it. Dropping the cluster does the same, without waiting.
    async fn down(self: Box<Self>) -> Result<(), ClusterError>;
}

/// Power over what runs on the nodes, past the API. What is ended so is no part of the cluster that
/// ends although nobody asked it to.
#[async_trait]
pub trait NodeControl: Send + Sync {
    /// Ends kube-proxy on each node, with SIGTERM, and starts it anew; returns once each is up.
    ///
    /// # Errors
    /// One did not come up again.
    async fn restart_kube_proxy(&self) -> Result<(), ClusterError>;

    /// Cuts a node off the network, then ends all of its processes at once: nobody says goodbye, and
    /// the cluster is one without it from then on. Returns once they are gone.
    ///
    /// # Errors
    /// There is no such node, or it is still there.
    async fn stop_node(&self, node: &str) -> Result<(), ClusterError>;
}

/// A node of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its name in Kubernetes.
    pub name: String,
    /// Where clients outside the cluster reach its NodePorts.
    pub address: Ipv4Addr,
    /// The same, where the cluster has IPv6.
    pub address6: Option<Ipv6Addr>,
    /// Whether pods of workloads are scheduled on it.
    pub takes_pods: bool,
    /// A process in the node's namespaces, where the provider can tell one.
    pub pid: Option<i32>,
}

/// What a provider knows of the environment; part of the environment record. Keys are stable,
/// values as read, `"unknown"` where reading failed.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct ProviderFacts {
    /// What must be the same for all trials of an arm: versions of components and tools, modes,
    /// sysctls (`"node/dw-1/net.ipv4.icmp_ratelimit": "1000"`), cgroup version.
    pub fixed: std::collections::BTreeMap<String, String>,
    /// What differs from cluster to cluster: subnets, names.
    pub varying: std::collections::BTreeMap<String, String>,
    /// What could not be read, and why.
    pub warnings: Vec<String>,
}

/// Why a cluster could not be had or used.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// This machine lacks something; nothing was started.
    #[error("{what}\n  {remedy}")]
    Missing {
        /// What is lacking.
        what: String,
        /// What the user can do about it.
        remedy: String,
    },
    /// A component did not come up or ended.
    #[error("the cluster could not be had: {component}: {reason}{}", logs.as_ref().map(|l| format!("\n  logs: {}", l.display())).unwrap_or_default())]
    Component {
        /// Which one: `kubelet on dw-1`.
        component: String,
        /// Why.
        reason: String,
        /// Where its logs were kept.
        logs: Option<PathBuf>,
    },
    /// A call to the cluster's API failed.
    #[error("the cluster's API: {0}")]
    Api(#[from] kube::Error),
    /// A file or process could not be handled.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// What the system said.
        source: std::io::Error,
    },
}
