//! What the cache holds, piece by piece, and how pieces leave it.
//!
//! Looking changes nothing and makes nothing. Follows no symbolic link below the cache's folder
//! (that itself may well be one, to a larger disk). Knows nothing of who uses a piece.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;

use super::cache::{Cache, Lock, Manifest, State};
use super::process::Stop;
use super::versions::{Part, Release};
use super::{io_error, user_folder, verify};
use crate::cluster::ClusterError;
use crate::cluster::local::state;

/// What a cache holds.
#[derive(Debug, Default)]
pub struct Contents {
    /// Components and logs.
    pub pieces: Vec<Piece>,
    /// What was being made when a setup did not end, or is being made: where, and how much.
    pub unfinished: Option<(PathBuf, u64)>,
    /// What no setup puts there.
    pub foreign: Vec<PathBuf>,
}

/// A component of one version, or the logs of setups.
#[derive(Debug)]
pub struct Piece {
    /// `Kubernetes v1.34.0`
    pub what: String,
    /// Its folder.
    pub path: PathBuf,
    /// The sizes of its files.
    pub bytes: u64,
    /// Whether it was built with Go, here.
    pub built_with_go: bool,
}

/// Which Kubernetes versions local clusters can be made of here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// The cache, or the folder of the user's.
    pub place: PathBuf,
    /// Versions of which all is here, without a `v`; of a folder of the user's the only one.
    pub versions: Vec<String>,
    /// What is lacking or damaged of versions that are here in part.
    pub faults: Vec<String>,
}

/// Looks into the folder that the user names, or into the cache.
///
/// # Errors
/// The user has no cache.
pub fn ready() -> Result<Ready, ClusterError> {
    match user_folder() {
        Some(folder) => Ok(ready_in_folder(folder)),
        None => Ok(ready_in_cache(&Cache::of_user()?)),
    }
}

fn ready_in_folder(folder: PathBuf) -> Ready {
    let mut ready = Ready { place: folder.clone(), ..Ready::default() };
    ready.faults.extend(
        Part::ALL
            .iter()
            .filter_map(|part| verify::lacking(*part, &folder))
            .map(|binary| format!("it has no executable {binary}")),
    );
    if ready.faults.is_empty() {
        match verify::version(&folder.join("kube-apiserver")) {
            Ok(Some(version)) => ready.versions.push(version.trim_start_matches('v').to_owned()),
            Ok(None) => ready.faults.push("its kube-apiserver does not tell its version".into()),
            Err(why) => ready.faults.push(why),
        }
    }
    ready
}

fn ready_in_cache(cache: &Cache) -> Ready {
    let mut ready = Ready { place: cache.root().to_owned(), ..Ready::default() };
    let kubernetes = cache.root().join("components").join(Part::Kubernetes.name());
    for folder in list(&kubernetes).unwrap_or_default() {
        let version = folder.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
        let Ok(release) = Release::parse(&version) else { continue };
        let faults: Vec<String> = release
            .items()
            .iter()
            .filter_map(|item| match cache.state(item) {
                Ok(State::Ready(_)) => None,
                Ok(State::Absent) => Some(format!("{release} lacks {item}")),
                Ok(State::Damaged(why)) => Some(format!("{release}: {item} is damaged: {why}")),
                Err(error) => Some(format!("{release}: {error}")),
            })
            .collect();
        if faults.is_empty() {
            ready.versions.push(release.to_string());
        }
        ready.faults.extend(faults);
    }
    ready
}

impl Cache {
    /// What it holds; nothing where it is not there.
    ///
    /// # Errors
    /// [`ClusterError::Io`] where its folder can't be read.
    pub fn contents(&self) -> Result<Contents, ClusterError> {
        let mut contents = Contents::default();
        let entries = match list(self.root()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(contents),
            result => result.map_err(|error| io_error("could not read", self.root(), error))?,
        };
        for path in entries {
            match path.file_name().and_then(|name| name.to_str()) {
                Some("components") if is_folder(&path) => components(&path, &mut contents),
                Some("logs") if is_folder(&path) => contents.pieces.push(Piece {
                    what: "logs of setups".into(),
                    bytes: size(&path),
                    path,
                    built_with_go: false,
                }),
                Some("tmp") if is_folder(&path) => {
                    contents.unfinished = Some((path.clone(), size(&path)))
                }
                Some("lock") if path.is_file() => {}
                _ => contents.foreign.push(path),
            }
        }
        Ok(contents)
    }

    /// Whether a setup works in it: its process, where the kernel tells.
    pub fn at_work(&self) -> Option<Option<i32>> {
        let lock = open(&self.root().join("lock")).ok()?;
        match lock.try_lock() {
            Err(TryLockError::WouldBlock) => Some(state::owner(&lock)),
            _ => None,
        }
    }

    /// Takes its lock and removes what is unfinished; waits for no other setup.
    ///
    /// # Errors
    /// A setup is at work, or [`ClusterError::Io`].
    pub fn lock_at_once(&self) -> Result<Lock, ClusterError> {
        let stop = Stop::default();
        let mut busy = false;
        let lock = self.lock(&stop, &mut || {
            busy = true;
            stop.stop();
        });
        lock.map_err(|error| match busy {
            true => ClusterError::Component {
                component: "the cache".into(),
                reason: "a setup is at work in it".into(),
                logs: None,
            },
            false => error,
        })
    }

    /// Removes a piece, and folders that are empty without it; only with the lock.
    ///
    /// # Errors
    /// It lies elsewhere, or could not be removed.
    pub fn remove(&self, piece: &Path) -> io::Result<()> {
        if !piece.starts_with(self.root()) || piece == self.root() {
            return Err(io::Error::other("it is not in the cache"));
        }
        fs::remove_dir_all(piece)?; // removes a link, and not what it leads to
        for folder in piece.ancestors().skip(1).take_while(|folder| *folder != self.root()) {
            if fs::remove_dir(folder).is_err() {
                break; // something else is in it
            }
        }
        Ok(())
    }

    /// Removes the folder where nothing but the lock is left in it.
    pub fn remove_if_empty(&self, lock: Lock) {
        let only_lock = list(self.root()).is_ok_and(|entries| {
            entries.iter().all(|path| path.file_name().is_some_and(|name| name == "lock"))
        });
        if only_lock {
            // Whoever waits for this lock finds that it is another's, and takes the new one.
            let _ = fs::remove_file(self.root().join("lock"));
            let _ = fs::remove_dir(self.root());
        }
        drop(lock);
    }
}

/// `components/<name>/<version>/<os-arch>/`
fn components(folder: &Path, contents: &mut Contents) {
    let mut below = |folder: &Path| {
        let (folders, others): (Vec<_>, Vec<_>) =
            list(folder).unwrap_or_default().into_iter().partition(|path| is_folder(path));
        contents.foreign.extend(others);
        folders
    };
    let mut pieces = Vec::new();
    for name in below(folder) {
        for version in below(&name) {
            for platform in below(&version) {
                let text = |path: &Path| {
                    path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default()
                };
                let part_name = text(&name);
                let part = Part::ALL.into_iter().find(|part| part.name() == part_name);
                let title = part.map_or(part_name.clone(), |part| part.title().to_owned());
                let manifest = fs::read_to_string(platform.join("manifest.json")).ok();
                let manifest: Option<Manifest> =
                    manifest.and_then(|text| serde_json::from_str(&text).ok());
                pieces.push(Piece {
                    what: format!("{title} {}", text(&version)),
                    bytes: size(&platform),
                    built_with_go: manifest.is_some_and(|manifest| manifest.origin.go.is_some()),
                    path: platform,
                });
            }
        }
    }
    contents.pieces.extend(pieces);
}

fn list(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths: Vec<PathBuf> = fs::read_dir(folder)?.flatten().map(|e| e.path()).collect();
    paths.sort();
    Ok(paths)
}

fn is_folder(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|meta| meta.is_dir())
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(OFlag::O_NOFOLLOW.bits()).open(path)
}

/// The sizes of all files below.
fn size(path: &Path) -> u64 {
    match path.symlink_metadata() {
        Ok(meta) if meta.is_dir() => list(path).unwrap_or_default().iter().map(|p| size(p)).sum(),
        Ok(meta) => meta.len(),
        Err(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn filled() -> (tempfile::TempDir, Cache) {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path().join("drainwatch"));
        for file in ["components/etcd/v3.6.4/linux-amd64/etcd", "logs/a.log", "tmp/etcd/x", "notes"]
        {
            let path = cache.root().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "12345").unwrap();
        }
        fs::write(folder.path().join("mine"), "").unwrap();
        symlink(folder.path(), cache.root().join("components/cni")).unwrap();
        (folder, cache)
    }

    #[test]
    fn each_piece_is_told_and_links_are_not_followed() {
        let (_folder, cache) = filled();
        let contents = cache.contents().unwrap();
        let pieces: Vec<_> = contents.pieces.iter().map(|p| (p.what.as_str(), p.bytes)).collect();
        assert_eq!(pieces, [("etcd v3.6.4", 5), ("logs of setups", 5)]);
        assert_eq!(contents.unfinished, Some((cache.root().join("tmp"), 5)));
        let foreign = ["components/cni", "notes"].map(|name| cache.root().join(name));
        assert_eq!(contents.foreign, foreign);
        assert_eq!(cache.at_work(), None);
        assert!(!cache.root().join("lock").exists());
    }

    #[test]
    fn pieces_go_with_the_folders_that_they_leave_empty_and_nothing_else_does() {
        let (folder, cache) = filled();
        let lock = cache.lock_at_once().unwrap();
        assert_eq!(cache.at_work(), Some(Some(std::process::id().cast_signed())));
        assert!(cache.lock_at_once().unwrap_err().to_string().contains("a setup is at work in it"));
        for piece in cache.contents().unwrap().pieces {
            cache.remove(&piece.path).unwrap();
        }
        cache.remove(&folder.path().join("mine")).unwrap_err();
        cache.remove(cache.root()).unwrap_err();
        cache.remove_if_empty(lock);
        let mut names: Vec<_> = list(cache.root()).unwrap();
        names.retain(|path| !path.ends_with("lock"));
        assert_eq!(names, ["components", "notes"].map(|name| cache.root().join(name)));

        fs::remove_dir_all(cache.root().join("components")).unwrap();
        fs::remove_file(cache.root().join("notes")).unwrap();
        let lock = cache.lock_at_once().unwrap();
        cache.remove_if_empty(lock);
        assert!(!cache.root().exists());
        assert!(folder.path().join("mine").exists());
    }
}
