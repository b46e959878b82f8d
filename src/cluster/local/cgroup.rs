//! Control groups of clusters, on version 1 (and hybrid) and version 2: the difference is here
//! and nowhere else.
//!
//! Each node has one folder, the same path in every hierarchy: below it `daemons` for the node's
//! own processes, and beside that what its kubelet makes for pods. Two kubelets below one folder
//! would kill each other's pods, since each removes the pod folders that it does not know.
//!
//! On version 2 a folder's controllers have to be turned on in each folder above it, up to the
//! root, which is systemd's where there is systemd: it lets others' folders stand there, and the
//! kernel lets nobody turn off what a folder below hands on. What was off at the root before the
//! first cluster is off again after the last.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::unistd::Pid;

/// The folder of all clusters below each hierarchy's root.
pub(super) const TOP: &str = "drainwatch";
/// The folder of a node's own processes below the node's.
const DAEMONS: &str = "daemons";
/// Where kubelet, containerd and runc look; they take it for version 2 when that is mounted here.
const MOUNT: &str = "/sys/fs/cgroup";
/// Controllers of version 2: io, and those that kubelet refuses a folder without where the root
/// has them (`getSupportedUnifiedControllers` in its pkg/kubelet/cm).
const CONTROLLERS: [&str; 6] = ["cpu", "cpuset", "hugetlb", "io", "memory", "pids"];
/// The file that says, and sets, which controllers a folder hands on to those below it.
const SUBTREE: &str = "cgroup.subtree_control";

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
    /// Version 2 where everybody looks for it: the only one that counts.
    V2,
    /// Version 2 at another place, beside version 1, without controllers.
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

/// Makes a cluster's folders. The caller holds the lock of all clusters. What is turned on for
/// the whole host is added to the file `note`, for [`remove_top`].
pub(super) fn create_cluster(cluster: &str, note: &Path) -> io::Result<()> {
    let below = Path::new(TOP).join(cluster);
    for hierarchy in hierarchies()? {
        let mut tries = 0;
        loop {
            if hierarchy.kind == Kind::V2 {
                note_what_is_off(&hierarchy.mount, note)?;
            }
            match make(&hierarchy, &below) {
                // systemd turned off what it has no use for itself, between our two steps.
                Err(error) if error.kind() == io::ErrorKind::NotFound && tries < 20 => tries += 1,
                result => break result?,
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    Ok(())
}

/// Makes the folders of a node's pods (`node`, as in `/drainwatch/dw-3f9a1c/node-1`) and daemons,
/// below its cluster's.
///
/// Daemons, and all of a node that takes no pods, come after pods where both want a processor: on
/// machines of their own they would not take the pods'.
pub(super) fn create(node: &str, takes_pods: bool) -> io::Result<()> {
    let node = Path::new(node.trim_start_matches('/'));
    let daemons = node.join(DAEMONS);
    for hierarchy in hierarchies()? {
        make(&hierarchy, &daemons)?;
        yield_to_others(&hierarchy.mount.join(&daemons))?;
        if !takes_pods {
            yield_to_others(&hierarchy.mount.join(node))?;
        }
    }
    Ok(())
}

/// Gives a folder about a tenth of the weight that a folder has by default, where its hierarchy
/// shares processors out. Pods weigh as kubelet has it, by the node's processors: daemons still get
/// a twentieth of two from pods that never rest.
fn yield_to_others(folder: &Path) -> io::Result<()> {
    for (file, weight) in [("cpu.shares", "100"), ("cpu.weight", "10")] {
        let file = folder.join(file);
        if file.exists() {
            fs::write(file, weight)?;
        }
    }
    Ok(())
}

fn make(hierarchy: &Hierarchy, below: &Path) -> io::Result<()> {
    let mut folder = hierarchy.mount.clone();
    for part in below.iter() {
        if hierarchy.kind == Kind::V2 {
            turn_on(&hierarchy.mount, &folder)?;
        }
        let parent = folder.clone();
        folder.push(part);
        fs::create_dir_all(&folder)?;
        if hierarchy.kind == (Kind::V1 { cpuset: true }) {
            inherit_cpuset(&parent, &folder)?;
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
    let containers = pod_folder(node, uid).and_then(|folder| fs::read_dir(folder).ok());
    let folders = containers.into_iter().flatten().flatten();
    folders.flat_map(|container| processes_in(&container.path())).collect()
}

/// The processes of one of a pod's containers, whose folder bears its id.
pub(super) fn processes_of_container(node: &str, uid: &str, id: &str) -> Vec<i32> {
    pod_folder(node, uid).map(|folder| processes_in(&folder.join(id))).unwrap_or_default()
}

fn processes_in(folder: &Path) -> Vec<i32> {
    let list = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
    list.lines().filter_map(|pid| pid.parse().ok()).collect()
}

/// The folder that a node's kubelet made for a pod, in the first hierarchy that has it.
fn pod_folder(node: &str, uid: &str) -> Option<PathBuf> {
    let pods = |hierarchy: &Hierarchy| {
        let node = hierarchy.mount.join(node.trim_start_matches('/')).join("kubepods");
        // A pod whose requests are its limits has no class of its own.
        ["besteffort", "burstable", ""].map(|class| node.join(class).join(format!("pod{uid}")))
    };
    let folders = hierarchies().unwrap_or_default();
    folders.iter().flat_map(pods).find(|folder| folder.is_dir())
}

/// Removes a cluster's folders, deepest first, for as long as that takes but at most `bound`
/// (the last processes of a node may take a moment to go). Gives what is left.
pub(super) fn remove(cluster: &str, bound: Duration) -> Vec<String> {
    let deadline = Instant::now() + bound;
    let Ok(hierarchies) = hierarchies() else { return Vec::new() };
    let mut left = Vec::new();
    for hierarchy in hierarchies {
        let folder = hierarchy.mount.join(TOP).join(cluster);
        while folder.exists() && !remove_tree(&folder) {
            if Instant::now() > deadline {
                left.push(folder.display().to_string());
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    left
}

/// The folder of all clusters in each hierarchy, whether it is there or not.
pub(super) fn tops() -> io::Result<Vec<PathBuf>> {
    Ok(hierarchies()?.into_iter().map(|hierarchy| hierarchy.mount.join(TOP)).collect())
}

/// Removes the folder of all clusters where none is left in it, and turns off what was off before
/// them. The caller holds the lock of all clusters.
pub(super) fn remove_top(note: &Path) {
    for hierarchy in hierarchies().unwrap_or_default() {
        let top = hierarchy.mount.join(TOP);
        let _ = fs::remove_dir(&top); // it stays where another cluster is up
        if hierarchy.kind == Kind::V2 && !top.exists() {
            for name in fs::read_to_string(note).unwrap_or_default().lines() {
                // The kernel refuses where somebody else has come to hand it on.
                let _ = fs::write(hierarchy.mount.join(SUBTREE), format!("-{name}"));
            }
            let _ = fs::remove_file(note);
        }
    }
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

/// Version 1: a cpuset takes no process before it has processors and memory.
fn inherit_cpuset(parent: &Path, folder: &Path) -> io::Result<()> {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        if fs::read_to_string(folder.join(file))?.trim().is_empty() {
            fs::write(folder.join(file), fs::read_to_string(parent.join(file))?.trim())?;
        }
    }
    Ok(())
}

/// Version 2: hands on to the folders below `folder` what the root `mount` has of [`CONTROLLERS`].
fn turn_on(mount: &Path, folder: &Path) -> io::Result<()> {
    let mut off = off(mount, folder)?;
    off.retain(|name| CONTROLLERS.contains(&name.as_str()));
    if off.is_empty() {
        return Ok(());
    }
    let words: Vec<String> = off.iter().map(|name| format!("+{name}")).collect();
    // ENOENT is the kernel's word for a controller that the folder above does not hand on.
    fs::write(folder.join(SUBTREE), words.join(" ")).map_err(|e| {
        let place = folder.display();
        io::Error::new(e.kind(), format!("cgroup controllers {} in {place}: {e}", off.join(", ")))
    })
}

/// The controllers that the root has and `folder` does not hand on.
fn off(mount: &Path, folder: &Path) -> io::Result<Vec<String>> {
    let there = fs::read_to_string(mount.join("cgroup.controllers"))?;
    let on = fs::read_to_string(folder.join(SUBTREE))?;
    let off = there.split_whitespace().filter(|name| !has(&on, name));
    Ok(off.map(Into::into).collect())
}

/// Written before anything is turned on, so that the note holds however this process goes. All of
/// them: runc turns on more than [`CONTROLLERS`], whatever there is, from the root down.
fn note_what_is_off(mount: &Path, note: &Path) -> io::Result<()> {
    let noted = match fs::read_to_string(note) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        result => result?,
    };
    let mut file = fs::OpenOptions::new().create(true).append(true).open(note)?;
    for name in off(mount, mount)?.iter().filter(|name| !has(&noted, name)) {
        file.write_all(format!("{name}\n").as_bytes())?;
    }
    Ok(())
}

fn has(list: &str, name: &str) -> bool {
    list.split_whitespace().any(|word| word == name)
}

fn hierarchies() -> io::Result<Vec<Hierarchy>> {
    let found = parse(&fs::read_to_string("/proc/self/mountinfo")?);
    if found.is_empty() { Err(io::Error::other("no cgroups are mounted")) } else { Ok(found) }
}

/// Reads a mountinfo: the first mount of each hierarchy's root. Version 2 at its usual place is
/// all that counts, whatever of version 1 somebody has mounted beside it; at any other place it
/// counts beside version 1 only.
fn parse(mountinfo: &str) -> Vec<Hierarchy> {
    let mut found: Vec<(&str, Hierarchy)> = Vec::new();
    for line in mountinfo.lines() {
        let Some((left, right)) = line.split_once(" - ") else { continue };
        let left: Vec<&str> = left.split(' ').collect();
        let right: Vec<&str> = right.split(' ').collect();
        let (Some(&root), Some(&mount)) = (left.get(3), left.get(4)) else { continue };
        let (Some(&kind), Some(&options)) = (right.first(), right.get(2)) else { continue };
        let kind = match kind {
            "cgroup" => Kind::V1 { cpuset: options.split(',').any(|o| o == "cpuset") },
            "cgroup2" if mount == MOUNT => Kind::V2,
            "cgroup2" => Kind::Hybrid,
            _ => continue,
        };
        let known = |(o, h): &(&str, Hierarchy)| *o == options && h.kind == kind;
        if root == "/" && !found.iter().any(known) {
            found.push((options, Hierarchy { mount: mount.into(), kind }));
        }
    }
    let mut found: Vec<Hierarchy> = found.into_iter().map(|(_, hierarchy)| hierarchy).collect();
    if found.iter().any(|h| h.kind == Kind::V2) {
        found.retain(|h| h.kind == Kind::V2);
    } else if found.iter().all(|h| h.kind == Kind::Hybrid) {
        found.clear();
    }
    found
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

    #[test]
    fn what_of_version_1_is_mounted_beside_a_unified_host_does_not_count() {
        let found = parse(
            "30 23 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate\n\
             98 23 0:41 / /run/vpn/net_cls rw - cgroup net_cls rw,net_cls\n\
             99 30 0:42 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd\n",
        );
        assert_eq!(found, [Hierarchy { mount: "/sys/fs/cgroup".into(), kind: Kind::V2 }]);
    }

    #[test]
    fn version_2_where_nobody_looks_for_it_is_no_cgroup_to_have() {
        assert_eq!(parse("99 23 0:26 / /mnt/cgroup rw - cgroup2 cgroup2 rw\n"), []);
        assert_eq!(parse("99 23 0:26 / /mnt rw - tmpfs tmpfs rw\n"), []);
    }

    /// A root of version 2, as files: the kernel's side of it is in tests/vm.
    fn root(controllers: &str, on: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("cgroup.controllers"), controllers).unwrap();
        fs::write(root.path().join(SUBTREE), on).unwrap();
        root
    }

    #[test]
    fn what_the_root_has_is_handed_on_and_nothing_else() {
        let root = root("cpuset cpu io memory pids rdma misc\n", "memory pids\n");
        turn_on(root.path(), root.path()).unwrap();
        assert_eq!(fs::read_to_string(root.path().join(SUBTREE)).unwrap(), "+cpuset +cpu +io");
    }

    #[test]
    fn what_is_on_is_left_alone() {
        let root = root("cpu memory pids\n", "cpu memory pids\n");
        turn_on(root.path(), root.path()).unwrap();
        assert_eq!(fs::read_to_string(root.path().join(SUBTREE)).unwrap(), "cpu memory pids\n");
    }

    #[test]
    fn the_note_keeps_what_was_off_before_the_first_cluster() {
        let root = root("cpu io memory pids misc\n", "memory pids\n");
        let note = root.path().join("note");
        note_what_is_off(root.path(), &note).unwrap();
        // Another cluster comes: now it is on, or something more is off.
        for on in ["cpu io memory pids misc\n", "cpu io memory\n"] {
            fs::write(root.path().join(SUBTREE), on).unwrap();
            note_what_is_off(root.path(), &note).unwrap();
        }
        assert_eq!(fs::read_to_string(note).unwrap(), "cpu\nio\nmisc\npids\n");
    }
}
