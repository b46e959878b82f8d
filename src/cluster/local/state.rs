//! The folder of clusters on this host, `/run/drainwatch`: one folder a cluster, which its
//! supervisor holds locked for as long as it lives. A folder whose lock is free belonged to a
//! supervisor that was killed or to an earlier boot; the next cluster's start removes it and what
//! it stands for, and so does `drainwatch clean`.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::mount::{MntFlags, umount2};
use nix::sys::stat::{major, minor};

use super::files::private_dir;
use super::layout::host_link;
use super::{cgroup, network};

/// Where the folders are: memory on most systems, and short enough for unix sockets.
pub(super) const ROOT: &str = "/run/drainwatch";
/// What clusters turned on for the whole host, for the last one's end: beside their folder, which
/// holds nothing but them.
const CGROUP_NOTE: &str = "/run/drainwatch.cgroup-controllers";

/// In a cluster's folder: the paths of copies of its kubeconfig, each with a zero byte at its end.
const COPIES: &str = "copies";

/// One cluster's folder, locked.
pub(super) struct State {
    pub path: PathBuf,
    _lock: File,
}

/// The lock of all clusters: held while a cluster takes its name and subnet.
pub(super) struct RootLock {
    _lock: File,
}

/// What an entry of the folder of clusters is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// Locked: a cluster, and the process that holds the lock where the kernel tells.
    Running { name: String, owner: Option<i32> },
    /// A cluster's folder whose lock is free.
    Abandoned { name: String },
    /// Nothing that a cluster makes, and why.
    Foreign { path: PathBuf, why: &'static str },
}

/// Whether a cluster can have this name: `dw-3f9a1c`. Nothing of any other name is ever removed.
pub(super) fn is_cluster_name(name: &str) -> bool {
    name.strip_prefix("dw-").is_some_and(|id| {
        id.len() == 6 && id.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    })
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
        if is_current(&lock) {
            return Ok(RootLock { _lock: lock });
        }
    }
}

/// Takes the lock of all clusters where their folder is there, waiting for it at most `patience`.
pub(super) fn lock_root_if_there(patience: Duration) -> io::Result<Option<RootLock>> {
    let deadline = Instant::now() + patience;
    loop {
        let lock = match open_folder(Path::new(ROOT)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            result => result?,
        };
        match lock.try_lock() {
            Ok(()) if is_current(&lock) => return Ok(Some(RootLock { _lock: lock })),
            Err(TryLockError::Error(error)) => return Err(error),
            Ok(()) | Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Ok(()) | Err(TryLockError::WouldBlock) => {
                let by = owner(&lock).map(|pid| format!(" (process {pid})")).unwrap_or_default();
                return Err(io::Error::other(format!("another drainwatch{by} holds its lock")));
            }
        }
    }
}

/// Takes the lock of all clusters, waiting for it at most `patience`.
pub(super) fn lock_root_within(patience: Duration) -> io::Result<RootLock> {
    loop {
        private_dir(Path::new(ROOT))?;
        if let Some(lock) = lock_root_if_there(patience)? {
            return Ok(lock);
        }
    }
}

/// Gives it back. Where no cluster is left, their folders go.
pub(super) fn leave_root(root: RootLock) {
    cgroup::remove_top(Path::new(CGROUP_NOTE));
    let _ = fs::remove_dir(ROOT); // stays where a cluster is
    drop(root);
}

/// Whether this is still the folder of clusters: the last cluster's end removes it, and then its
/// lock is nobody's.
fn is_current(lock: &File) -> bool {
    fs::metadata(ROOT).is_ok_and(|m| lock.metadata().is_ok_and(|l| l.ino() == m.ino()))
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

    /// Makes the cluster's folders of cgroups.
    pub(super) fn create_cgroups(&self, _root: &RootLock, name: &str) -> io::Result<()> {
        cgroup::create_cluster(name, Path::new(CGROUP_NOTE))
    }

    /// Removes the folder, and the folders of all clusters with the last. Gives what is left.
    pub(super) fn remove(self) -> Vec<String> {
        remove_copies(&self.path);
        let gone = fs::remove_dir_all(&self.path);
        // Under the lock: nobody is about to make a folder below one that goes away.
        if let Ok(_root) = lock_root() {
            cgroup::remove_top(Path::new(CGROUP_NOTE));
            let _ = fs::remove_dir(ROOT); // stays where another cluster is up
        }
        match gone {
            Err(error) if self.path.exists() => vec![format!("{}: {error}", self.path.display())],
            _ => Vec::new(),
        }
    }
}

/// Removes what clusters left whose supervisor is gone.
pub(super) fn sweep(root: &RootLock) {
    for entry in look(root) {
        let Entry::Abandoned { name } = entry else { continue };
        network::disconnect_host(&host_link(&name));
        cgroup::remove(&name, Duration::from_secs(1));
        for mount in mounts_below(&Path::new(ROOT).join(&name)).into_iter().flatten() {
            let _ = unmount(&mount);
        }
        let _ = remove_folder(&name); // the next sweep, or `drainwatch clean`, tries again
    }
    cgroup::remove_top(Path::new(CGROUP_NOTE));
}

/// What is in the folder of clusters. Under the lock of all: whoever takes a cluster's lock, if
/// only for a moment, must not meet a cluster that is about to take it.
pub(super) fn look(_root: &RootLock) -> Vec<Entry> {
    look_in(Path::new(ROOT))
}

fn look_in(root: &Path) -> Vec<Entry> {
    let entries = fs::read_dir(root).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths.into_iter().map(entry).collect()
}

fn entry(path: PathBuf) -> Entry {
    let name = path.file_name().and_then(|name| name.to_str()).filter(|name| is_cluster_name(name));
    let Some(name) = name.map(str::to_owned) else {
        return Entry::Foreign { path, why: "no cluster has such a name" };
    };
    let Ok(lock) = open_folder(&path) else {
        return Entry::Foreign { path, why: "a cluster's name, but no folder that can be opened" };
    };
    match lock.try_lock() {
        Ok(()) => Entry::Abandoned { name },
        Err(_) => Entry::Running { name, owner: owner(&lock) },
    }
}

/// Removes an abandoned cluster's folder; under the lock of all clusters.
///
/// # Errors
/// It could not be removed, is in use again, or something is mounted in it: what lies there is
/// not the cluster's.
pub(super) fn remove_folder(name: &str) -> io::Result<()> {
    remove_folder_in(Path::new(ROOT), name)
}

fn remove_folder_in(root: &Path, name: &str) -> io::Result<()> {
    let path = root.join(name);
    let lock = open_folder(&path)?;
    lock.try_lock().map_err(|_| io::Error::other("a cluster uses it"))?;
    if let Some(mount) = mounts_below(&path)?.first() {
        return Err(io::Error::other(format!("{} is a mount point", mount.display())));
    }
    remove_copies(&path);
    fs::remove_dir_all(path)
}

/// Notes that there is (or will be) a copy of the cluster's kubeconfig elsewhere.
pub(super) fn note_copy(state: &Path, copy: &Path) -> io::Result<()> {
    let mut file =
        OpenOptions::new().create(true).append(true).mode(0o600).open(state.join(COPIES))?;
    file.write_all(copy.as_os_str().as_bytes())?;
    file.write_all(b"\0")
}

/// Removes the copies of a cluster's kubeconfig that are still what they were.
fn remove_copies(state: &Path) {
    let Ok(copies) = fs::read(state.join(COPIES)) else { return };
    let Ok(original) = fs::read(state.join("kubeconfig")) else { return };
    for copy in copies.split(|byte| *byte == 0).filter(|copy| !copy.is_empty()) {
        let copy = Path::new(OsStr::from_bytes(copy));
        let is_file = fs::symlink_metadata(copy).is_ok_and(|meta| meta.is_file());
        if is_file && fs::read(copy).is_ok_and(|text| text == original) {
            let _ = fs::remove_file(copy);
        }
    }
}

/// Mount points at or below a folder, in the order in which they can be unmounted.
pub(super) fn mounts_below(folder: &Path) -> io::Result<Vec<PathBuf>> {
    Ok(parse_mounts(&fs::read("/proc/self/mountinfo")?, folder))
}

fn parse_mounts(mountinfo: &[u8], folder: &Path) -> Vec<PathBuf> {
    let lines = mountinfo.split(|byte| *byte == b'\n');
    let points = lines.filter_map(|line| line.split(|byte| *byte == b' ').nth(4)).map(unescape);
    let mut below: Vec<PathBuf> = points.filter(|path| path.starts_with(folder)).collect();
    below.reverse();
    below
}

/// A path as the kernel writes it: blanks, newlines and backslashes as `\040`.
fn unescape(text: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, more @ ..] = rest {
        let octal = (*first == b'\\').then(|| more.get(..3)).flatten();
        let code = octal.and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &more[3..];
            }
            None => {
                bytes.push(*first);
                rest = more;
            }
        }
    }
    std::ffi::OsString::from_vec(bytes).into()
}

/// Unmounts what is mounted there.
pub(super) fn unmount(path: &Path) -> io::Result<()> {
    Ok(umount2(path, MntFlags::UMOUNT_NOFOLLOW)?)
}

/// Opens a folder; what a symbolic link leads to is nobody's business here.
fn open_folder(path: &Path) -> io::Result<File> {
    let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW;
    OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)
}

/// The process that holds the lock of an open file, where the kernel tells.
pub(super) fn owner(of: &File) -> Option<i32> {
    let meta = of.metadata().ok()?;
    let locks = fs::read_to_string("/proc/locks").ok()?;
    find_owner(&locks, major(meta.dev()), minor(meta.dev()), meta.ino())
}

fn find_owner(locks: &str, major: u64, minor: u64, inode: u64) -> Option<i32> {
    let file = format!("{major:02x}:{minor:02x}:{inode}");
    locks.lines().find_map(|line| {
        // 1: FLOCK  ADVISORY  WRITE 6763 fe:00:10035207 0 EOF; with "->" it only waits.
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [_, "FLOCK", _, _, pid, of, ..] if of == file => {
                pid.parse().ok().filter(|pid| *pid > 0)
            }
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_clusters_have_are_theirs() {
        assert!(is_cluster_name("dw-3f9a1c"));
        for name in ["dw-", "dw-3f9a1", "dw-3f9a1c0", "dw-3F9A1C", "dw-../..", "dw3f9a1c", "..", ""]
        {
            assert!(!is_cluster_name(name), "{name}");
        }
    }

    #[test]
    fn a_lock_tells_a_cluster_from_what_one_left_and_links_are_not_followed() {
        let root = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        for name in ["dw-000001", "dw-000002", "dw-x", "other"] {
            fs::create_dir(path(name)).unwrap();
        }
        fs::write(path("dw-000003"), "").unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), path("dw-000004")).unwrap();
        let lock = File::open(path("dw-000001")).unwrap();
        lock.lock().unwrap();

        let not_a_folder = "a cluster's name, but no folder that can be opened";
        let strange = "no cluster has such a name";
        let own = std::process::id().cast_signed();
        assert_eq!(
            look_in(root.path()),
            [
                Entry::Running { name: "dw-000001".into(), owner: Some(own) },
                Entry::Abandoned { name: "dw-000002".into() },
                Entry::Foreign { path: path("dw-000003"), why: not_a_folder },
                Entry::Foreign { path: path("dw-000004"), why: not_a_folder },
                Entry::Foreign { path: path("dw-x"), why: strange },
                Entry::Foreign { path: path("other"), why: strange },
            ]
        );

        fs::write(elsewhere.path().join("file"), "").unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), path("dw-000002/link")).unwrap();
        remove_folder_in(root.path(), "dw-000002").unwrap();
        assert!(!path("dw-000002").exists());
        assert!(elsewhere.path().join("file").exists());
        for name in ["dw-000001", "dw-000003", "dw-000004"] {
            remove_folder_in(root.path(), name).unwrap_err();
            assert!(path(name).exists(), "{name}");
        }
    }

    #[test]
    fn mounts_are_found_by_whole_names_the_deepest_first() {
        let mountinfo = b"30 23 0:26 / / rw - ext4 /dev/vda rw\n\
            31 30 0:27 / /run/drainwatch/dw-000001 rw - tmpfs tmpfs rw\n\
            32 31 0:28 / /run/drainwatch/dw-000001/a\\040b\\134c rw - tmpfs tmpfs rw\n\
            33 30 0:29 / /run/drainwatch/dw-0000012 rw - tmpfs tmpfs rw\n";
        let found = parse_mounts(mountinfo, Path::new("/run/drainwatch/dw-000001"));
        let [deep, top] = ["/run/drainwatch/dw-000001/a b\\c", "/run/drainwatch/dw-000001"];
        assert_eq!(found, [Path::new(deep), Path::new(top)]);
    }

    #[test]
    fn the_holder_of_a_lock_is_told_and_not_who_waits_for_it() {
        let locks = "1: FLOCK  ADVISORY  WRITE 812 00:19:77 0 EOF\n\
                     1: -> FLOCK  ADVISORY  WRITE 900 00:1a:78 0 EOF\n\
                     2: POSIX  ADVISORY  WRITE 813 00:1a:78 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 814 00:1a:78 0 EOF\n\
                     4: FLOCK  ADVISORY  WRITE 0 00:1a:79 0 EOF\n";
        assert_eq!(find_owner(locks, 0, 0x1a, 78), Some(814));
        assert_eq!(find_owner(locks, 0, 0x1a, 79), None);
    }
}
