//! A node's own view of the file system, in a mount namespace that ends with the node.
//!
//! Takes the host's folders that a node needs and puts them below /run/drainwatch; covers every
//! path that Kubernetes fixes with memory, so that nodes share none of them with each other or
//! with the host, and makes the host's root read-only to the node. The host needs no mount point
//! for any of it: parents that each system has are covered. Must not run outside a mount namespace
//! of its own.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, open};
use nix::mount::{MsFlags, mount};
use nix::sys::stat::Mode;

use super::paths;

/// Covered with memory: what Kubernetes, containerd and runc write lies below.
const COVERED: [&str; 4] = ["/run", "/var/lib", "/var/log", "/tmp"];

/// Folders that must be there before anything starts.
const FOLDERS: [&str; 8] = [
    "/run/netns",
    "/run/lock",
    "/run/containerd",
    "/var/lib/kubelet",
    "/var/lib/cni",
    "/var/lib/containerd",
    "/var/log/pods",
    "/var/log/containers",
];

/// Sysctls of the whole host that kubelet sets: it gets files of its own in their place.
const HOST_SYSCTLS: [&str; 6] = [
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
];

/// A folder or file of the host, and where the node sees it.
pub(super) struct Bind {
    pub from: PathBuf,
    pub to: &'static str,
    pub writable: bool,
}

/// Builds the node's view. The caller is in a new mount and pid namespace.
pub(super) fn build(binds: &[Bind]) -> io::Result<()> {
    // Nothing mounted here reaches the host; what the host unmounts is let go of here. Then
    // shared anew below this namespace, as on any node, for pods that ask for propagation.
    change("/", MsFlags::MS_REC | MsFlags::MS_SLAVE)?;
    change("/", MsFlags::MS_REC | MsFlags::MS_SHARED)?;
    // Held open, since the mounts below may cover them.
    let sources: Vec<OwnedFd> = binds
        .iter()
        .map(|bind| {
            open(&bind.from, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())
                .map_err(|e| context(&bind.from, e.into()))
        })
        .collect::<io::Result<_>>()?;

    let nosuid = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    fresh("proc", "/proc", nosuid | MsFlags::MS_NOEXEC, None)?;
    for path in COVERED {
        fresh("tmpfs", path, nosuid, Some("mode=0755"))?;
    }
    for path in FOLDERS {
        fs::create_dir_all(path).map_err(|e| context(path, e))?;
    }
    for (bind, source) in binds.iter().zip(&sources) {
        let from = PathBuf::from(format!("/proc/self/fd/{}", source.as_raw_fd()));
        let to = Path::new(bind.to);
        if fs::metadata(&from)?.is_dir() {
            fs::create_dir_all(to)?;
        } else {
            fs::create_dir_all(to.parent().unwrap_or(to))?;
            fs::write(to, "")?;
        }
        over(&from, to)?;
        if !bind.writable {
            read_only(to)?;
        }
    }
    for name in HOST_SYSCTLS {
        let file = Path::new("/proc/sys").join(name);
        // Kernels without the feature have no such file, and kubelet can't write it either.
        let Ok(value) = fs::read_to_string(&file) else { continue };
        let own = Path::new(paths::TOP).join("sysctl").join(name.replace('/', "."));
        fs::create_dir_all(own.parent().unwrap_or(&own))?;
        fs::write(&own, value)?;
        over(&own, &file)?;
    }
    read_only(Path::new("/"))
}

fn context(path: impl AsRef<Path>, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.as_ref().display()))
}

const NONE: Option<&str> = None;

fn change(path: &str, flags: MsFlags) -> io::Result<()> {
    mount(NONE, path, NONE, flags, NONE).map_err(|e| context(path, e.into()))
}

fn fresh(kind: &str, path: &str, flags: MsFlags, data: Option<&str>) -> io::Result<()> {
    mount(Some(kind), path, Some(kind), flags, data).map_err(|e| context(path, e.into()))
}

fn over(from: &Path, to: &Path) -> io::Result<()> {
    mount(Some(from), to, NONE, MsFlags::MS_BIND, NONE).map_err(|e| context(to, e.into()))
}

fn read_only(path: &Path) -> io::Result<()> {
    let flags = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY;
    mount(NONE, path, NONE, flags, NONE).map_err(|e| context(path, e.into()))
}
