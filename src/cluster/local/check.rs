//! What a local cluster needs of this machine, looked at before anything is started.

use super::components::{self, Components};
use super::layout::MOST_NODES;
use crate::cluster::ClusterError;
use crate::config::{ClusterSpec, ProxyMode};

/// Memory that a cluster takes, less what is shared: 700 MiB for the control plane, 300 a node.
const MEMORY_MIB: (u64, u64) = (700, 300);
/// What the logs and keys of a run may take where the clusters' folder is.
const DISK_MIB: u64 = 64;

/// inotify instances of a cluster that is up, seen with v1.34: 5 for the control plane, 9 a node.
const INOTIFY: (u64, u64) = (5, 9);

/// Gives the components where a cluster like this can be made here.
pub(super) fn check(spec: &ClusterSpec) -> Result<Components, ClusterError> {
    if !nix::unistd::geteuid().is_root() {
        return missing(
            "local clusters need root, for namespaces, cgroups and mounts",
            "run drainwatch as root, for example with sudo",
        );
    }
    if spec.nodes == 0 || spec.nodes > MOST_NODES {
        return missing(
            &format!("a local cluster of {} nodes", spec.nodes),
            &format!("set cluster.nodes to 1 … {MOST_NODES}"),
        );
    }
    if let Some(name) = spec.sysctls.keys().find(|name| !namespaced(name)) {
        return missing(
            &format!("cluster.sysctls: {name} is no sysctl of a net namespace"),
            "only names that start with \"net.\" can be set for a node alone",
        );
    }
    if spec.proxy_mode == ProxyMode::Ipvs && !ipvs() {
        return missing(
            "this kernel has no IPVS (no module ip_vs)",
            "use cluster.proxy_mode = \"iptables\" or \"nftables\", or another machine",
        );
    }
    if let Err(error) = super::cgroup::version() {
        return missing(&format!("cgroups: {error}"), "mount cgroup version 2 at /sys/fs/cgroup");
    }
    room(spec)?;
    components::locate(&spec.kubernetes)
}

fn room(spec: &ClusterSpec) -> Result<(), ClusterError> {
    let needed = MEMORY_MIB.0 + MEMORY_MIB.1 * u64::from(spec.nodes);
    if let Some(available) = available_mib()
        && available < needed
    {
        return missing(
            &format!(
                "a cluster of {} nodes needs {needed} MiB of memory, {available} are available",
                spec.nodes
            ),
            "end something, or set cluster.nodes lower",
        );
    }
    let needed = INOTIFY.0 + INOTIFY.1 * u64::from(spec.nodes);
    let limit = std::fs::read_to_string("/proc/sys/fs/inotify/max_user_instances");
    if let Some(limit) = limit.ok().and_then(|text| text.trim().parse::<u64>().ok())
        && limit < needed
    {
        return missing(
            &format!(
                "a cluster of {} nodes needs {needed} inotify instances, root may have {limit}",
                spec.nodes
            ),
            "raise it: sysctl -w fs.inotify.max_user_instances=1024",
        );
    }
    let place = std::path::Path::new(super::state::ROOT).parent().unwrap_or("/run".as_ref());
    if let Ok(stat) = nix::sys::statvfs::statvfs(place) {
        let free = stat.blocks_available() * stat.fragment_size() / (1024 * 1024);
        if free < DISK_MIB {
            return missing(
                &format!("{} has {free} MiB left, a cluster needs {DISK_MIB}", place.display()),
                "make room there",
            );
        }
    }
    Ok(())
}

fn available_mib() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().trim_end_matches(" kB").parse::<u64>().ok()? / 1024)
}

fn namespaced(sysctl: &str) -> bool {
    sysctl.starts_with("net.") && !sysctl.contains(['/', ' ']) && !sysctl.contains("..")
}

fn ipvs() -> bool {
    std::path::Path::new("/sys/module/ip_vs").exists()
        || std::process::Command::new("modprobe")
            .args(["--dry-run", "--quiet", "ip_vs"])
            .status()
            .is_ok_and(|status| status.success())
}

fn missing<T>(what: &str, remedy: &str) -> Result<T, ClusterError> {
    Err(ClusterError::Missing { what: what.into(), remedy: remedy.into() })
}
