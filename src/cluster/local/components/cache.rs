//! The cache: where finished components stand, what is known of each, and how they get there
//! whole or not at all.
//!
//! ```text
//! ~/.cache/drainwatch/                     $XDG_CACHE_HOME/drainwatch/ where that is set
//!   lock                                   held while something is made
//!   components/<name>/<version>/<os-arch>/ the binaries, manifest.json
//!   logs/<name>-<version>.log              the latest build's output
//!   tmp/                                   what is being made; emptied by the next setup
//! ```
//!
//! Takes folders of verified binaries; gives them back by item. Knows nothing of their sources.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::host;
use super::process::Stop;
use super::versions::Item;
use super::{io_error, stopped};
use crate::cluster::ClusterError;
use crate::digest::sha256_of_file;

const FORMAT: &str = "drainwatch.component/1";
const MANIFEST: &str = "manifest.json";

/// The cache of this user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    root: PathBuf,
}

/// What stands beside the binaries of one item.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// `drainwatch.component/1`
    pub format: String,
    /// [`super::versions::Part::name`]
    pub name: String,
    /// `v1.34.0`
    pub version: String,
    /// `linux-amd64`
    pub platform: String,
    /// Where from, and when.
    #[serde(flatten)]
    pub origin: Origin,
    /// When it was put here, RFC 3339 in UTC.
    pub made_at: String,
    /// The drainwatch that did.
    pub made_by: String,
    /// The binaries.
    pub files: BTreeMap<String, FileEntry>,
}

/// Where a component came from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// In words: `built from Go modules with go1.26.8`.
    pub source: String,
    /// Addresses, module or folder.
    pub from: String,
    /// The Go that built it, where that was done here.
    pub go: Option<String>,
}

/// A binary as it was when it was put into the cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Of its content, lower-case hexadecimal.
    pub sha256: String,
    /// In bytes.
    pub size: u64,
    /// Modification time in whole seconds since 1970: what archives of a cache preserve.
    pub modified: i64,
}

/// What the cache has of an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// All of it, unchanged since it was put there.
    Ready(Box<Manifest>),
    /// Nothing.
    Absent,
    /// Something that can't be relied on, and why.
    Damaged(String),
}

/// Held while something is made; given back when dropped.
#[derive(Debug)]
pub struct Lock(#[expect(dead_code, reason = "dropping it closes the file, which unlocks")] File);

impl Cache {
    /// Where this user's cache is or would be.
    ///
    /// # Errors
    /// [`ClusterError::Missing`] where the user has neither a cache nor a home folder.
    pub fn of_user() -> Result<Self, ClusterError> {
        // The base directory specification has relative values ignored.
        let named = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        let base = named.filter(|path| path.is_absolute());
        match base.or_else(|| host::home().map(|home| home.join(".cache"))) {
            Some(base) => Ok(Self::at(base.join("drainwatch"))),
            None => Err(ClusterError::Missing {
                what: "this user has no home folder to keep components in".into(),
                remedy: "Set XDG_CACHE_HOME to a folder for them.".into(),
            }),
        }
    }

    /// The one in this folder.
    pub fn at(root: PathBuf) -> Self {
        Self { root }
    }

    /// Its folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Where an item's binaries are or would be.
    pub fn folder(&self, item: &Item) -> Result<PathBuf, ClusterError> {
        let folder = self.root.join("components").join(item.part.name()).join(&item.version);
        Ok(folder.join(platform()?))
    }

    /// What the cache has of an item, by the sizes and times of its files: their content is read
    /// only where a time differs.
    pub fn state(&self, item: &Item) -> Result<State, ClusterError> {
        let folder = self.folder(item)?;
        let text = match fs::read_to_string(folder.join(MANIFEST)) {
            Ok(text) => text,
            Err(_) if !folder.exists() => return Ok(State::Absent),
            Err(error) => return Ok(State::Damaged(format!("{MANIFEST}: {error}"))),
        };
        let manifest: Manifest = match serde_json::from_str(&text) {
            Ok(manifest) => manifest,
            Err(error) => return Ok(State::Damaged(format!("{MANIFEST}: {error}"))),
        };
        if manifest.format != FORMAT || manifest.version != item.version {
            return Ok(State::Damaged(format!("{MANIFEST} is of another kind")));
        }
        for binary in item.part.binaries() {
            let Some(entry) = manifest.files.get(*binary) else {
                return Ok(State::Damaged(format!("{MANIFEST} does not know {binary}")));
            };
            if let Err(reason) = entry.holds(&folder.join(binary)) {
                return Ok(State::Damaged(format!("{binary} {reason}")));
            }
        }
        Ok(State::Ready(Box::new(manifest)))
    }

    /// Waits until no other setup works in this cache, calling `waiting` once if it has to, and
    /// removes what an earlier one left behind.
    ///
    /// # Errors
    /// [`ClusterError::Io`]; the one of [`stopped`].
    pub fn lock(&self, stop: &Stop, waiting: &mut dyn FnMut()) -> Result<Lock, ClusterError> {
        let path = self.root.join("lock");
        let mut told = false;
        let file = loop {
            create(&self.root)?;
            let file = File::options()
                .create(true)
                .truncate(false)
                .write(true)
                .open(&path)
                .map_err(|error| io_error("could not open", &path, error))?;
            match file.try_lock() {
                // A cache that was removed took its lock along; then this one is nobody's.
                Ok(()) if is_at(&file, &path) => break file,
                Ok(()) => {}
                Err(TryLockError::Error(error)) => {
                    return Err(io_error("could not lock", &path, error));
                }
                Err(TryLockError::WouldBlock) if stop.is_stopped() => return Err(stopped()),
                Err(TryLockError::WouldBlock) => {
                    if !told {
                        waiting();
                        told = true;
                    }
                    std::thread::sleep(Duration::from_millis(100));
                }
            }
        };
        self.clear_temporary()?;
        Ok(Lock(file))
    }

    /// An empty folder for making an item; only with the lock.
    pub fn temporary(&self, item: &Item) -> Result<PathBuf, ClusterError> {
        let folder = self.root.join("tmp").join(item.part.name());
        remove(&folder)?;
        create(&folder)?;
        Ok(folder)
    }

    /// Removes all that is being made; only with the lock.
    pub fn clear_temporary(&self) -> Result<(), ClusterError> {
        remove(&self.root.join("tmp"))
    }

    /// An empty log for making an item.
    pub fn log(&self, item: &Item) -> Result<PathBuf, ClusterError> {
        let folder = self.root.join("logs");
        create(&folder)?;
        let path = folder.join(format!("{}-{}.log", item.part.name(), item.version));
        File::create(&path).map_err(|error| io_error("could not write", &path, error))?;
        Ok(path)
    }

    /// Takes a folder of verified binaries (below [`Cache::temporary`]) over as an item, whole or
    /// not at all; only with the lock.
    pub fn keep(&self, item: &Item, staged: &Path, origin: Origin) -> Result<(), ClusterError> {
        let mut files = BTreeMap::new();
        for binary in item.part.binaries() {
            let path = staged.join(binary);
            let entry = FileEntry::of(&path);
            let entry = entry.map_err(|error| io_error("could not read", &path, error))?;
            files.insert((*binary).to_owned(), entry);
        }
        let manifest = Manifest {
            format: FORMAT.into(),
            name: item.part.name().into(),
            version: item.version.clone(),
            platform: platform()?,
            origin,
            made_at: jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            made_by: format!("drainwatch {}", env!("CARGO_PKG_VERSION")),
            files,
        };
        let path = staged.join(MANIFEST);
        let mut text = serde_json::to_string_pretty(&manifest)
            .map_err(|error| io_error("could not write", &path, error.into()))?;
        text.push('\n');
        fs::write(&path, text).map_err(|error| io_error("could not write", &path, error))?;

        let folder = self.folder(item)?;
        // What stood there was damaged; running processes keep their open files.
        remove(&folder)?;
        if let Some(parent) = folder.parent() {
            create(parent)?;
        }
        fs::rename(staged, &folder).map_err(|error| io_error("could not make", &folder, error))
    }
}

impl FileEntry {
    fn of(path: &Path) -> io::Result<Self> {
        let meta = path.metadata()?;
        Ok(Self { sha256: sha256_of_file(path)?, size: meta.len(), modified: meta.mtime() })
    }

    /// Whether a file is still this one; the reason otherwise.
    fn holds(&self, path: &Path) -> Result<(), String> {
        let meta = path.metadata().map_err(|error| format!("can't be read: {error}"))?;
        if !host::is_executable(path) {
            return Err("is not executable".into());
        }
        if meta.len() != self.size {
            return Err(format!("has {} bytes instead of {}", meta.len(), self.size));
        }
        // A cache that was copied without its times is as good as before, only slower to check.
        if meta.mtime() != self.modified
            && sha256_of_file(path).map_err(|error| format!("can't be read: {error}"))?
                != self.sha256
        {
            return Err("has changed since it was made".into());
        }
        Ok(())
    }
}

fn platform() -> Result<String, ClusterError> {
    Ok(format!("{}-{}", std::env::consts::OS, host::architecture()?))
}

/// Whether an open file is the one of this name.
fn is_at(file: &File, path: &Path) -> bool {
    let inode = |meta: fs::Metadata| (meta.dev(), meta.ino());
    file.metadata().map(inode).ok() == fs::metadata(path).map(inode).ok()
}

/// Makes a folder and those above it.
pub fn create(folder: &Path) -> Result<(), ClusterError> {
    fs::create_dir_all(folder).map_err(|error| io_error("could not make", folder, error))
}

/// Removes a folder where there is one.
fn remove(folder: &Path) -> Result<(), ClusterError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(io_error("could not remove", folder, error))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::cluster::local::components::versions::{Part, Release};

    fn filled() -> (tempfile::TempDir, Cache, Item) {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path().join("drainwatch"));
        let item = Release::parse("1.34.0").unwrap().item(Part::Containerd);
        assert_eq!(cache.state(&item).unwrap(), State::Absent);
        let _lock = cache.lock(&Stop::default(), &mut || panic!("nobody else is here")).unwrap();
        let staged = cache.temporary(&item).unwrap();
        for binary in item.part.binaries() {
            fs::write(staged.join(binary), binary).unwrap();
            fs::set_permissions(staged.join(binary), PermissionsExt::from_mode(0o755)).unwrap();
        }
        let origin = Origin { source: "made up".into(), from: "here".into(), go: None };
        cache.keep(&item, &staged, origin).unwrap();
        (folder, cache, item)
    }

    fn damage(cache: &Cache, item: &Item) -> Option<String> {
        match cache.state(item).unwrap() {
            State::Ready(_) => None,
            State::Absent => panic!("it is there"),
            State::Damaged(why) => Some(why),
        }
    }

    #[test]
    fn what_is_kept_is_found_again_with_its_origin() {
        let (_folder, cache, item) = filled();
        let State::Ready(manifest) = cache.state(&item).unwrap() else { panic!("not ready") };
        assert_eq!(manifest.origin.source, "made up");
        // sha256 of "ctr"
        let sum = "2752ea5db34c1dc718967086526c49d5f55793678e2002db3f7a3e45a4a97b2a";
        assert_eq!(manifest.files["ctr"].sha256, sum);
        assert_eq!(manifest.files["ctr"].size, 3);
    }

    #[test]
    fn a_copied_cache_is_read_once_more_and_a_changed_one_is_refused() {
        let (_folder, cache, item) = filled();
        let ctr = cache.folder(&item).unwrap().join("ctr");
        let touch = |seconds| {
            let file = File::options().write(true).open(&ctr).unwrap();
            file.set_modified(std::time::UNIX_EPOCH + Duration::from_secs(seconds)).unwrap();
        };
        touch(1_000_000_000);
        assert_eq!(damage(&cache, &item), None);
        fs::write(&ctr, "rtc").unwrap();
        touch(1_000_000_000);
        assert_eq!(damage(&cache, &item).unwrap(), "ctr has changed since it was made");
        fs::write(&ctr, "longer").unwrap();
        assert_eq!(damage(&cache, &item).unwrap(), "ctr has 6 bytes instead of 3");
        fs::remove_file(&ctr).unwrap();
        assert!(damage(&cache, &item).unwrap().starts_with("ctr can't be read"));
        fs::write(cache.folder(&item).unwrap().join(MANIFEST), "{").unwrap();
        assert!(damage(&cache, &item).unwrap().starts_with("manifest.json: "));
    }

    #[test]
    fn the_second_setup_waits_for_the_first() {
        let (_folder, cache, _) = filled();
        let first = cache.lock(&Stop::default(), &mut || panic!("nobody else is here")).unwrap();
        let stop = Stop::default();
        let mut waited = 0;
        let error = cache.lock(&stop, &mut || {
            waited += 1;
            stop.stop();
        });
        assert!(error.is_err());
        assert_eq!(waited, 1);
        drop(first);
        cache.lock(&Stop::default(), &mut || panic!("nobody else is here")).unwrap();
    }
}
