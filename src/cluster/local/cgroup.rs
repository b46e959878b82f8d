//! Control groups of clusters, on version 1 (and hybrid) and version 2: the difference is here
//! and nowhere else.
//!
//! Each node has one folder, the same path in every hierarchy: below it `daemons` for the node's
//! own processes, and beside that what its kubelet makes for pods. Two kubelets below one folder
//! would kill each other's pods, since each removes the pod folders that it does not know.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::unistd::Pid;

/// The folder of all clusters below each hierarchy's root.
pub(super) const TOP: &str = "drainwatch";
/// The folder of a node's own processes below the node's.
const DAEMONS: &str = "daemons";
/// What kubelet wants of version 2; the rest is there or not.
const NEEDED: [&str; 4] = ["cpu", "cpuset", "memory", "pids"];
const WELCOME: [&str; 2] = ["io", "hugetlb"];

/// A mounted hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Hierarchy {
    mount: PathBuf,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Version 1, with the controller cpuset or without.
    V1 { cpuset: bool },
    /// Version 2, the only one.
    V2,
    /// Version 2 without controllers, beside version 1.
    Hybrid,
}

/// Which versions are mounted: `v1`, `v1 (hybrid)` or `v2`.
pub(super) fn version() -> io::Result<&'static str> {
    let mountinfo = fs::read_to_string("/proc/self/mountinfo")?;
    version_by(&mountinfo).ok_or_else(|| io::Error::other("no cgroups are mounted"))
}

/// The same, by a mountinfo; `None` where it has none.
pub(super) fn version_by(mountinfo: &str) -> Option<&'static str> {
    let kinds: Vec<Kind> = parse(mountinfo).iter().map(|h| h.kind).collect();
    if kinds.is_empty() {
        return None;
    }
    Some(match (kinds.contains(&Kind::V2), kinds.contains(&Kind::Hybrid)) {
        (true, _) => "v2",
        (_, true) => "v1 (hybrid)",
        _ => "v1",
    })
}

/// Makes the folders of a node's pods (`node`, as in `/drainwatch/dw-3f9a1c/node-1`) and daemons.
pub(super) fn create(node: &str) -> io::Result<()> {
    for hierarchy in hierarchies()? {
        let daemons = Path::new(node.trim_start_matches('/')).join(DAEMONS);
        let mut folder = hierarchy.mount.clone();
        for part in daemons.iter() {
            if hierarchy.kind == Kind::V2 {
                delegate(&folder)?;
            }
            let parent = folder.clone();
            folder.push(part);
            // Another cluster's end may remove a parent that is empty for a moment.
            create_dir(&folder)?;
            if hierarchy.kind == (Kind::V1 { cpuset: true }) {
                inherit_cpuset(&parent, &folder)?;
            }
        }
    }
    Ok(())
}

/// Moves a process, and with it what it will start, into a node's folder of daemons.
pub(super) fn enter(node: &str, pid: Pid) -> io::Result<()> {
    for hierarchy in hierarchies()? {
        let procs = hierarchy.mount.join(node.trim_start_matches('/')).join(DAEMONS);
        fs::write(procs.join("cgroup.procs"), pid.to_string())?;
    }
    Ok(())
}

/// The processes of a pod on a node: those in the folders that its kubelet made for the pod.
pub(super) fn processes_of_pod(node: &str, uid: &str) -> Vec<i32> {
    let pods = |hierarchy: &Hierarchy| {
        let node = hierarchy.mount.join(node.trim_start_matches('/')).join("kubepods");
        // A pod whose requests are its limits has no class of its own.
        ["besteffort", "burstable", ""].map(|class| node.join(class).join(format!("pod{uid}")))
    };
    let folders = hierarchies().unwrap_or_default();
    let found = folders.iter().flat_map(pods).find(|folder| folder.is_dir());
    let Some(containers) = found.and_then(|folder| fs::read_dir(folder).ok()) else {
        return Vec::new();
    };
    containers
        .flatten()
        .filter_map(|container| fs::read_to_string(container.path().join("cgroup.procs")).ok())
        .flat_map(|list| list.lines().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

/// Removes a cluster's folders, deepest first, for as long as that takes but at most `bound`
/// (the last processes of a node may take a moment to go). Gives what is left.
pub(super) fn remove(cluster: &str, bound: Duration) -> Vec<String> {
    let deadline = Instant::now() + bound;
    let Ok(hierarchies) = hierarchies() else { return Vec::new() };
    let mut left = Vec::new();
    for hierarchy in hierarchies {
        let top = hierarchy.mount.join(TOP);
        let folder = top.join(cluster);
        while folder.exists() && !remove_tree(&folder) {
            if Instant::now() > deadline {
                left.push(folder.display().to_string());
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        // It stays where another cluster is up.
        let _ = fs::remove_dir(&top);
    }
    left
}

/// The folder of all clusters in each hierarchy, whether it is there or not.
pub(super) fn tops() -> io::Result<Vec<PathBuf>> {
    Ok(hierarchies()?.into_iter().map(|hierarchy| hierarchy.mount.join(TOP)).collect())
}

/// Whether the folder is gone.
fn remove_tree(folder: &Path) -> bool {
    let Ok(entries) = fs::read_dir(folder) else { return !folder.exists() };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            remove_tree(&entry.path());
        }
    }
    match fs::remove_dir(folder) {
        Ok(()) => true,
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

fn create_dir(folder: &Path) -> io::Result<()> {
    let mut tries = 0;
    loop {
        match fs::create_dir_all(folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && tries < 20 => tries += 1,
            result => return result,
        }
    }
}

/// Version 1: a cpuset takes no process before it has processors and memory.
fn inherit_cpuset(parent: &Path, folder: &Path) -> io::Result<()> {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        if fs::read_to_string(folder.join(file))?.trim().is_empty() {
            fs::write(folder.join(file), fs::read_to_string(parent.join(file))?.trim())?;
        }
    }
    Ok(())
}

/// Version 2: hands a folder's controllers on to the folders below it.
fn delegate(folder: &Path) -> io::Result<()> {
    let file = folder.join("cgroup.subtree_control");
    let on = fs::read_to_string(&file)?;
    let there = fs::read_to_string(folder.join("cgroup.controllers"))?;
    let has = |list: &str, name: &str| list.split_whitespace().any(|c| c == name);
    for name in NEEDED.iter().chain(&WELCOME) {
        if has(&on, name) {
            continue;
        }
        if has(&there, name) {
            fs::write(&file, format!("+{name}"))?;
        } else if NEEDED.contains(name) {
            return Err(io::Error::other(format!(
                "the cgroup controller {name} is not available in {}",
                folder.display()
            )));
        }
    }
    Ok(())
}

fn hierarchies() -> io::Result<Vec<Hierarchy>> {
    let found = parse(&fs::read_to_string("/proc/self/mountinfo")?);
    if found.is_empty() { Err(io::Error::other("no cgroups are mounted")) } else { Ok(found) }
}

/// Reads a mountinfo: the first mount of each hierarchy's root.
fn parse(mountinfo: &str) -> Vec<Hierarchy> {
    let mut found: Vec<(String, Hierarchy)> = Vec::new();
    for line in mountinfo.lines() {
        let Some((left, right)) = line.split_once(" - ") else { continue };
        let left: Vec<&str> = left.split(' ').collect();
        let right: Vec<&str> = right.split(' ').collect();
        let (Some(&root), Some(&mount)) = (left.get(3), left.get(4)) else { continue };
        let (Some(&kind), Some(&options)) = (right.first(), right.get(2)) else { continue };
        if root != "/" || found.iter().any(|(o, _)| o == options) {
            continue;
        }
        let kind = match kind {
            "cgroup" => Kind::V1 { cpuset: options.split(',').any(|o| o == "cpuset") },
            "cgroup2" => Kind::V2,
            _ => continue,
        };
        found.push((options.to_owned(), Hierarchy { mount: mount.into(), kind }));
    }
    let hybrid = found.iter().any(|(_, h)| matches!(h.kind, Kind::V1 { .. }));
    found
        .into_iter()
        .map(|(_, h)| match h.kind {
            Kind::V2 if hybrid => Hierarchy { kind: Kind::Hybrid, ..h },
            _ => h,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hybrid_host_has_version_1_hierarchies_and_a_bare_version_2() {
        let found = parse(
            "31 30 0:25 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset\n\
             32 30 0:26 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
             33 30 0:27 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n\
             34 30 0:28 / /tmp rw,relatime shared:5 - tmpfs tmpfs rw\n",
        );
        let kinds: Vec<Kind> = found.iter().map(|h| h.kind).collect();
        assert_eq!(kinds, [Kind::V1 { cpuset: true }, Kind::V1 { cpuset: false }, Kind::Hybrid]);
    }

    #[test]
    fn a_unified_host_has_version_2_only_and_bind_mounts_of_parts_do_not_count() {
        let found = parse(
            "30 23 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate\n\
             99 23 0:26 /kubepods /mnt/part rw - cgroup2 cgroup2 rw,nsdelegate\n",
        );
        assert_eq!(found, [Hierarchy { mount: "/sys/fs/cgroup".into(), kind: Kind::V2 }]);
    }
}
