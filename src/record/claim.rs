//! A run's folder in the hands of the one process that writes to it.
//!
//! Takes a folder that exists; gives a [`Claim`] that the kernel lets go of when the process ends,
//! however it ends. Knows the names in a run's folder, not what runs are made of.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::io::{is_unfinished, make_folder, parent, sync_folder};
use super::{Trial, WriteError, write_json};

/// Where an arm's records lie that later ones have taken the place of.
const SUPERSEDED: &str = "superseded";

/// What the folder of an arm's logs is called while they are copied.
pub const UNFINISHED_LOGS: &str = ".drainwatch-logs.tmp";

/// A run's folder that no other drainwatch writes to for as long as this lives.
#[derive(Debug)]
pub struct Claim {
    path: PathBuf,
    /// The folder itself, locked: nothing is added to what it holds.
    folder: File,
    alone: bool,
}

/// A folder could not be claimed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say what the variants are
pub enum ClaimError {
    #[error("{}: another drainwatch is writing to it\n  wait for its end, or stop it", path.display())]
    Taken { path: PathBuf },
    #[error("{}: can't be read: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
}

impl Claim {
    /// Claims a folder.
    ///
    /// # Errors
    /// The folder is not there, or another process has claimed it. A file system that can't lock
    /// folders is none: see [`Claim::is_alone`].
    pub fn take(path: &Path) -> Result<Self, ClaimError> {
        let failed = |source| ClaimError::Io { path: path.to_owned(), source };
        let folder = File::open(path).map_err(failed)?;
        if !folder.metadata().map_err(failed)?.is_dir() {
            return Err(failed(io::ErrorKind::NotADirectory.into()));
        }
        let alone = match folder.try_lock() {
            Ok(()) => true,
            Err(TryLockError::WouldBlock) => {
                return Err(ClaimError::Taken { path: path.to_owned() });
            }
            // Some network file systems lock only what was opened for writing.
            Err(TryLockError::Error(_)) => false,
        };
        Ok(Self { path: path.to_owned(), folder, alone })
    }

    /// Whether another process that tries to claim the folder is refused.
    pub fn is_alone(&self) -> bool {
        self.alone
    }

    /// The folder, as it was named.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Fails where the folder was removed, renamed or replaced since it was claimed: what is
    /// written by its name then would be a part of a run beside nothing.
    pub fn still_there(&self) -> Result<(), WriteError> {
        let failed = |source| WriteError { path: self.path.clone(), source };
        let claimed = self.folder.metadata().map_err(failed)?;
        let named = fs::metadata(&self.path).map_err(failed)?;
        if (claimed.dev(), claimed.ino()) == (named.dev(), named.ino()) {
            Ok(())
        } else {
            Err(failed(io::Error::other("it is not the folder any more that the run began in")))
        }
    }

    /// Writes a record at a place within the folder, atomically.
    pub fn write_json<T: Serialize>(&self, place: &Path, record: &T) -> Result<(), WriteError> {
        self.still_there()?;
        write_json(&self.path.join(place), record)
    }

    /// Removes what a writer that was killed left: what is not yet what it was to be.
    pub fn remove_unfinished(&self) -> Result<(), WriteError> {
        self.still_there()?;
        let below = entries(&self.path).map_err(|source| self.failed(Path::new(""), source))?;
        for path in [self.path.clone()].into_iter().chain(below.into_iter().filter(|p| is_dir(p))) {
            for file in entries(&path).unwrap_or_default() {
                let name = file.file_name().and_then(|name| name.to_str());
                if name.is_some_and(is_unfinished) {
                    let removed = match is_dir(&file) {
                        true => fs::remove_dir_all(&file),
                        false => fs::remove_file(&file),
                    };
                    removed.map_err(|source| WriteError { path: file.clone(), source })?;
                }
            }
        }
        Ok(())
    }

    /// Whether nothing is in it but what a killed writer left.
    pub fn is_empty(&self) -> io::Result<bool> {
        let is_ours = |path: &PathBuf| {
            path.file_name().and_then(|name| name.to_str()).is_some_and(is_unfinished)
        };
        Ok(entries(&self.path)?.iter().all(is_ours))
    }

    /// Puts an aborted trial's record aside, since the trial is run again.
    pub fn supersede_trial(&self, trial: &Trial) -> Result<(), WriteError> {
        self.supersede(&trial.arm, &trial.file())
    }

    /// Puts the logs of an arm's earlier cluster aside, since there will be others.
    pub fn supersede_logs(&self, arm: &str) -> Result<(), WriteError> {
        self.supersede(arm, &Path::new(arm).join("logs"))
    }

    /// Puts the environment of an arm aside that no trial was measured in, since there is another.
    pub fn supersede_environment(&self, arm: &str, place: &Path) -> Result<(), WriteError> {
        self.supersede(arm, place)
    }

    /// How many aborted trials of an arm were put aside.
    pub fn superseded_trials(&self, arm: &str) -> u32 {
        let files = entries(&self.path.join(arm).join(SUPERSEDED)).unwrap_or_default();
        let is_trial = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| name.starts_with("trial-"))
        };
        files.iter().filter(|path| is_trial(path)).count() as u32
    }

    /// Moves what is at `place`, if there is anything, to `ARM/superseded/NAME.1`, or the next
    /// number that is free: nothing that was recorded is lost.
    fn supersede(&self, arm: &str, place: &Path) -> Result<(), WriteError> {
        self.still_there()?;
        let from = self.path.join(place);
        let failed = |source| self.failed(place, source);
        if !from.try_exists().map_err(failed)? {
            return Ok(());
        }
        let folder = self.path.join(arm).join(SUPERSEDED);
        make_folder(&folder).map_err(failed)?;
        let name = place.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let (stem, ending) = match name.strip_suffix(".json") {
            Some(stem) => (stem, ".json"),
            None => (&*name, ""),
        };
        // Nobody else writes here, so what is free now is free below.
        let free = (1_u32..).map(|n| folder.join(format!("{stem}.{n}{ending}")));
        let Some(to) = free.into_iter().find(|to| !to.exists()) else { return Ok(()) };
        fs::rename(&from, &to).map_err(failed)?;
        sync_folder(&folder).and_then(|()| sync_folder(parent(&from))).map_err(failed)
    }

    fn failed(&self, place: &Path, source: io::Error) -> WriteError {
        WriteError { path: self.path.join(place), source }
    }
}

fn entries(folder: &Path) -> io::Result<Vec<PathBuf>> {
    fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect()
}

/// A link to a folder is none: what lies behind it is not ours.
fn is_dir(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|meta| meta.is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stories;

    #[test]
    fn a_folder_is_claimed_once_and_free_again_when_its_claim_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let claim = Claim::take(dir.path()).unwrap();
        assert!(claim.is_alone());
        let error = Claim::take(dir.path()).unwrap_err();
        assert!(error.to_string().contains("another drainwatch is writing to it"), "{error}");
        drop(claim);
        Claim::take(dir.path()).unwrap();
        assert!(matches!(Claim::take(&dir.path().join("none")), Err(ClaimError::Io { .. })));
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(matches!(Claim::take(&file), Err(ClaimError::Io { .. })));
    }

    #[test]
    fn a_folder_that_is_gone_or_another_is_not_written_to() {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("run");
        fs::create_dir(&run).unwrap();
        let claim = Claim::take(&run).unwrap();
        fs::rename(&run, dir.path().join("elsewhere")).unwrap();
        assert!(claim.write_json(Path::new("run.json"), &1).is_err());
        assert!(!run.exists(), "it is not made anew");
        fs::create_dir(&run).unwrap();
        let error = claim.write_json(Path::new("run.json"), &1).unwrap_err();
        assert!(error.to_string().contains("not the folder any more"), "{error}");
        assert!(entries(&run).unwrap().is_empty());
    }

    #[test]
    fn what_a_killed_writer_left_is_removed_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let arm = dir.path().join("arm");
        fs::create_dir(&arm).unwrap();
        let stays = [dir.path().join("mine.tmp"), arm.join("trial-001.json"), arm.join(".hidden")];
        let goes = [dir.path().join(".drainwatch-a1.tmp"), arm.join(".drainwatch-b2.tmp")];
        stays.iter().chain(&goes).for_each(|path| fs::write(path, "{").unwrap());
        fs::create_dir_all(arm.join(UNFINISHED_LOGS).join("node-1")).unwrap();
        Claim::take(dir.path()).unwrap().remove_unfinished().unwrap();
        assert!(stays.iter().all(|path| path.exists()));
        assert!(!goes.iter().any(|path| path.exists()));
        assert!(!arm.join(UNFINISHED_LOGS).exists());
    }

    #[test]
    fn each_aborted_record_of_a_repeat_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let claim = Claim::take(dir.path()).unwrap();
        let trial = stories::aborted("arm", 2);
        assert_eq!(claim.superseded_trials("arm"), 0);
        for _ in 0..2 {
            trial.write(dir.path()).unwrap();
            claim.supersede_trial(&trial).unwrap();
        }
        claim.supersede_trial(&trial).unwrap(); // there is none any more
        let mut kept = entries(&dir.path().join("arm/superseded")).unwrap();
        kept.sort();
        let names: Vec<_> = kept.iter().filter_map(|path| path.file_name()?.to_str()).collect();
        assert_eq!(names, ["trial-002.aborted.1.json", "trial-002.aborted.2.json"]);
        assert_eq!(claim.superseded_trials("arm"), 2);
        assert!(!dir.path().join(trial.file()).exists());
    }
}
