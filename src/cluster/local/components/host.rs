//! What this machine has: its tools, its user, its disks.
//!
//! Reads only. Knows nothing of components or where they come from.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::cluster::ClusterError;

/// The tools of the distribution that a local cluster calls, each with its package. (The names of
/// packages are the same in Debian, Ubuntu and their relatives.)
pub const TOOLS: [(&str, &str); 10] = [
    ("runc", "runc"),
    ("iptables", "iptables"),
    ("ip6tables", "iptables"),
    ("iptables-restore", "iptables"),
    ("nft", "nftables"),
    ("conntrack", "conntrack"),
    ("ip", "iproute2"),
    ("nsenter", "util-linux"),
    ("unshare", "util-linux"),
    ("mount", "mount"),
];

/// Replaces the folders in which tools are looked for, in the form of `PATH`: for hosts that have
/// them elsewhere, and for tests.
pub const SEARCH_VARIABLE: &str = "DRAINWATCH_HOST_PATH";

/// The folders in which tools are looked for.
#[derive(Clone, Debug)]
pub struct Search(Vec<PathBuf>);

impl Search {
    /// `PATH`, and where the tools usually are: a plain user's `PATH` lacks the sbin folders, and
    /// sudo's lacks Go.
    pub fn of_environment() -> Self {
        if let Some(only) = std::env::var_os(SEARCH_VARIABLE) {
            return Self::of(&only);
        }
        let mut search = Self::of(&std::env::var_os("PATH").unwrap_or_default());
        for more in
            ["/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin", "/usr/local/go/bin"]
        {
            search.0.push(more.into());
        }
        search
    }

    /// The folders of a value of `PATH`.
    pub fn of(path: &OsStr) -> Self {
        // A relative folder would make the answer depend on where drainwatch is called.
        Self(std::env::split_paths(path).filter(|folder| folder.is_absolute()).collect())
    }

    /// The first executable file of this name.
    pub fn find(&self, name: &str) -> Option<PathBuf> {
        self.0.iter().map(|folder| folder.join(name)).find(|path| is_executable(path))
    }

    /// As a value for `PATH`, so that a tool that is found also finds its fellows.
    pub fn as_path(&self) -> OsString {
        // Folders that came out of split_paths hold no colon.
        std::env::join_paths(&self.0).unwrap_or_default()
    }

    /// Tools that are not here, with their packages.
    pub fn missing_tools(&self) -> Vec<(&'static str, &'static str)> {
        TOOLS.iter().copied().filter(|(tool, _)| self.find(tool).is_none()).collect()
    }
}

/// Whether this is a file with an execute bit.
pub fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// Whether packages can be installed and the like.
pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Who this process runs as: `root`.
pub fn user() -> String {
    let uid = nix::unistd::geteuid();
    match nix::unistd::User::from_uid(uid) {
        Ok(Some(user)) => user.name,
        _ => format!("uid {uid}"),
    }
}

/// The user's home folder, by `HOME` or the user database.
pub fn home() -> Option<PathBuf> {
    let named = std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute());
    named.or_else(|| {
        nix::unistd::User::from_uid(nix::unistd::geteuid()).ok().flatten().map(|user| user.dir)
    })
}

/// The name that Go and release pages have for this processor: `amd64`.
///
/// # Errors
/// [`ClusterError::Missing`] on a processor or system that no local cluster was written for.
pub fn architecture() -> Result<&'static str, ClusterError> {
    match (std::env::consts::OS, std::env::consts::ARCH) {
        ("linux", "x86_64") => Ok("amd64"),
        ("linux", "aarch64") => Ok("arm64"),
        (os, arch) => Err(ClusterError::Missing {
            what: format!("local clusters need Linux on x86_64 or aarch64; this is {os} on {arch}"),
            remedy: "Use a Linux machine, or another provider: kind or context.".into(),
        }),
    }
}

/// Free bytes for this user where a path is or would be, and that file system's device number.
pub fn free_space(path: &Path) -> Option<(u64, u64)> {
    let existing = path.ancestors().find(|folder| folder.exists())?;
    let device = existing.metadata().ok()?.dev();
    let stat = nix::sys::statvfs::statvfs(existing).ok()?;
    Some((device, stat.blocks_available() * stat.fragment_size()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_folders_and_plain_files_are_not_searched() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("nft"), "").unwrap();
        let runc = folder.path().join("runc");
        std::fs::write(&runc, "").unwrap();
        std::fs::set_permissions(&runc, PermissionsExt::from_mode(0o755)).unwrap();

        let mut path = OsString::from(".::");
        path.push(folder.path());
        let search = Search::of(&path);
        assert_eq!(search.as_path(), folder.path());
        assert_eq!(search.find("runc"), Some(runc));
        let missing = search.missing_tools();
        assert!(missing.contains(&("nft", "nftables")), "{missing:?}");
        assert_eq!(missing.len(), TOOLS.len() - 1);
    }

    #[test]
    fn space_is_told_for_a_path_that_is_yet_to_be_made() {
        let (device, free) = free_space(Path::new("/tmp/not/there/yet")).unwrap();
        assert_eq!(device, Path::new("/tmp").metadata().unwrap().dev());
        assert!(free > 0);
    }
}
