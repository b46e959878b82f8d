//! The binaries that a local cluster is made of, by version: where they are and how to get them.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// The components of one Kubernetes version, all present.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Components {
    /// Folder with kube-apiserver, kube-controller-manager, kube-scheduler, kube-proxy, kubelet.
    pub kubernetes: PathBuf,
    /// Folder with etcd.
    pub etcd: PathBuf,
    /// Folder with containerd, containerd-shim-runc-v2, ctr.
    pub containerd: PathBuf,
    /// Folder with the CNI plugins ptp, loopback, host-local, portmap.
    pub cni: PathBuf,
    /// The host's runc.
    pub runc: PathBuf,
    /// What each is: `kubernetes` → `v1.34.0`, `containerd` → `v2.1.5`, and where from
    /// (`kubernetes source` → `built from Go modules`).
    pub versions: BTreeMap<String, String>,
}
