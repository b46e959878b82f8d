//! A node's own paths, as seen in its mount namespace: the same in every node.

/// All of drainwatch's own.
pub(super) const TOP: &str = "/run/drainwatch";
pub(super) const KUBERNETES: &str = "/run/drainwatch/kubernetes";
pub(super) const ETCD: &str = "/run/drainwatch/etcd";
pub(super) const CONTAINERD: &str = "/run/drainwatch/containerd";
pub(super) const CNI: &str = "/run/drainwatch/cni";
pub(super) const COREDNS: &str = "/run/drainwatch/coredns";
pub(super) const RUNC: &str = "/run/drainwatch/runc";
/// The node's keys and configuration.
pub(super) const CONF: &str = "/run/drainwatch/conf";
/// The node's logs: a folder of the host, so that they outlive the node.
pub(super) const LOGS: &str = "/run/drainwatch/logs";
pub(super) const CONTAINERD_SOCKET: &str = "/run/containerd/containerd.sock";
/// Where the system's own tools are looked for.
pub(super) const SYSTEM: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
