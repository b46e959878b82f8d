//! The folder of clusters on this host, `/run/drainwatch`: one folder a cluster, which its
//! supervisor holds locked for as long as it lives. A folder whose lock is free belonged to a
//! supervisor that was killed or to an earlier boot; the next cluster's start removes it and what
//! it stands for.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::files::private_dir;
use super::layout::host_link;
use super::{cgroup, network};

/// Where the folders are: memory on most systems, and short enough for unix sockets.
pub(super) const ROOT: &str = "/run/drainwatch";

/// One cluster's folder, locked.
pub(super) struct State {
    pub path: PathBuf,
    _lock: File,
}

/// The lock of all clusters: held while a cluster takes its name and subnet.
pub(super) struct RootLock {
    _lock: File,
}

/// Takes the lock of all clusters.
pub(super) fn lock_root() -> io::Result<RootLock> {
    loop {
        private_dir(Path::new(ROOT))?;
        let lock = match File::open(ROOT) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            result => result?,
        };
        lock.lock()?;
        // The last cluster's end removes the folder; then this lock is nobody's.
        if fs::metadata(ROOT).is_ok_and(|m| lock.metadata().is_ok_and(|l| l.ino() == m.ino())) {
            return Ok(RootLock { _lock: lock });
        }
    }
}

impl State {
    /// Makes and locks a cluster's folder.
    pub(super) fn create(_root: &RootLock, name: &str) -> io::Result<Self> {
        let path = Path::new(ROOT).join(name);
        private_dir(&path)?;
        let lock = File::open(&path)?;
        lock.try_lock().map_err(|_| io::Error::other(format!("the name {name} is taken")))?;
        Ok(Self { path, _lock: lock })
    }

    /// Removes the folder, and the folder of all clusters with the last. Gives what is left.
    pub(super) fn remove(self) -> Vec<String> {
        let gone = fs::remove_dir_all(&self.path);
        // Under the lock: nobody is about to make a folder below one that goes away.
        if let Ok(_root) = lock_root() {
            let _ = fs::remove_dir(ROOT); // stays where another cluster is up
        }
        match gone {
            Err(error) if self.path.exists() => vec![format!("{}: {error}", self.path.display())],
            _ => Vec::new(),
        }
    }
}

/// Removes what clusters left whose supervisor is gone.
pub(super) fn sweep(_root: &RootLock) {
    for entry in fs::read_dir(ROOT).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Ok(lock) = File::open(entry.path()) else { continue };
        if name.starts_with("dw-") && lock.try_lock().is_ok() {
            network::disconnect_host(&host_link(&name));
            cgroup::remove(&name, Duration::from_secs(1));
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
