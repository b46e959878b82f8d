//! Records on disk: whole files or none, and no reading of what a newer build wrote.
//!
//! Takes bytes and paths; knows JSON and the format line of a record, not what is in it.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::layout;

/// A file could not be written.
#[derive(Debug, thiserror::Error)]
#[error("{}: can't be written: {source}", path.display())]
pub struct WriteError {
    /// Which file.
    pub path: PathBuf,
    /// Why.
    pub source: io::Error,
}

/// A record could not be read.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say what the variants are
pub enum ReadError {
    #[error("{}: can't be read: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{}: is no record: {source}", path.display())]
    Json { path: PathBuf, source: serde_json::Error },
    #[error("{}: is no {expected} record: its format is {found:?}", path.display())]
    Format { path: PathBuf, expected: &'static str, found: String },
    #[error(
        "{}: was written by a newer drainwatch: its format is {found:?}, this build reads up to {newest:?}",
        path.display()
    )]
    Newer { path: PathBuf, found: String, newest: &'static str },
    #[error("{}: is no report of drainwatch (Go) 0.1 that can be read: {reason}", path.display())]
    GoReport { path: PathBuf, reason: String },
    #[error("{}: holds {id} ({outcome}), which belongs at {expected}", path.display())]
    Misplaced { path: PathBuf, id: String, outcome: String, expected: String },
}

/// How the name of a file begins and ends that is being written and is not yet what it will be.
/// The leading dot keeps it out of what a reader looks for.
const UNFINISHED: (&str, &str) = (".drainwatch-", ".tmp");

/// Replaces `path` with `bytes` at one instant: a reader, or a run that is killed here, finds the
/// old file or the new one, never a part. Folders on the way are made. On return all of it is on
/// disk, the way to it included.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> Result<(), WriteError> {
    write_with(path, |file| file.write_all(bytes))
}

/// The same, of what `write` writes.
fn write_with(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>,
) -> Result<(), WriteError> {
    let failed = |source| WriteError { path: path.to_owned(), source };
    let folder = parent(path);
    make_folder(folder).map_err(failed)?;
    // In the same folder, since a rename is atomic within one file system only. The mode is what
    // the umask makes of any new file.
    let file = tempfile::Builder::new()
        .prefix(UNFINISHED.0)
        .suffix(UNFINISHED.1)
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666))
        .tempfile_in(folder)
        .map_err(failed)?;
    let mut buffered = BufWriter::new(file.as_file());
    write(&mut buffered).and_then(|()| buffered.flush()).map_err(failed)?;
    drop(buffered);
    file.as_file().sync_all().map_err(failed)?;
    file.persist(path).map_err(|error| failed(error.error))?;
    // The rename itself is on disk once the folder is.
    sync_folder(folder).map_err(failed)
}

/// Makes a folder, and those on the way to it that are not there; each is on disk on return.
pub fn make_folder(folder: &Path) -> io::Result<()> {
    match fs::create_dir(folder) {
        Ok(()) => sync_folder(parent(folder)),
        Err(_) if folder.is_dir() => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound && !parent(folder).exists() => {
            make_folder(parent(folder))?;
            make_folder(folder)
        }
        Err(error) => Err(error),
    }
}

/// Puts on disk which files a folder holds.
pub(super) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// The folder that a path lies in; a bare name lies in the current one.
pub(super) fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Whether a file of this name is what a writer that was killed has left.
pub(super) fn is_unfinished(name: &str) -> bool {
    name.starts_with(UNFINISHED.0) && name.ends_with(UNFINISHED.1)
}

/// Writes a record as JSON, atomically.
pub fn write_json<T: Serialize>(path: &Path, record: &T) -> Result<(), WriteError> {
    write_with(path, |file| layout::write(file, record))
}

/// The file's content.
pub fn read_bytes(path: &Path) -> Result<Vec<u8>, ReadError> {
    fs::read(path).map_err(|source| ReadError::Io { path: path.to_owned(), source })
}

/// Reads a record whose `format` is `newest` or an older version of it (`"drainwatch.trial/1"`).
pub fn read_json<T: DeserializeOwned>(path: &Path, newest: &'static str) -> Result<T, ReadError> {
    #[derive(Deserialize)]
    struct Head {
        format: String,
    }
    let bytes = read_bytes(path)?;
    let no_record = |source| ReadError::Json { path: path.to_owned(), source };
    // The format first: what a newer version holds need not fit this version's types.
    let head: Head = serde_json::from_slice(&bytes).map_err(no_record)?;
    check_format(path, &head.format, newest)?;
    serde_json::from_slice(&bytes).map_err(no_record)
}

/// Accepts `NAME/MAJOR` and `NAME/MAJOR.MINOR` up to the newest's major version.
fn check_format(path: &Path, found: &str, newest: &'static str) -> Result<(), ReadError> {
    let unknown = || ReadError::Format {
        path: path.to_owned(),
        expected: name(newest),
        found: found.to_owned(),
    };
    let (found_name, found_major) = (name(found), major(found).ok_or_else(unknown)?);
    if found_name != name(newest) {
        return Err(unknown());
    }
    if Some(found_major) > major(newest) {
        let found = found.to_owned();
        return Err(ReadError::Newer { path: path.to_owned(), found, newest });
    }
    Ok(())
}

fn name(format: &str) -> &str {
    format.split_once('/').map_or(format, |(name, _)| name)
}

fn major(format: &str) -> Option<u32> {
    let (_, version) = format.split_once('/')?;
    version.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn read(text: &str) -> Result<serde_json::Value, ReadError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trial-001.json");
        fs::write(&path, text).unwrap();
        read_json(&path, "drainwatch.trial/2")
    }

    #[test]
    fn a_file_is_replaced_whole_and_nothing_is_left_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("arm/trial-001.json");
        write_atomic(&path, b"old").unwrap();
        write_atomic(&path, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn folders_on_the_way_are_made_and_a_file_in_their_place_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("a/b/c");
        make_folder(&deep).unwrap();
        make_folder(&deep).unwrap();
        assert!(deep.is_dir());
        fs::write(dir.path().join("file"), "").unwrap();
        let error = make_folder(&dir.path().join("file")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert!(make_folder(&dir.path().join("file/below")).is_err());
        assert!(make_folder(Path::new("")).is_err());
    }

    #[test]
    fn what_can_not_be_written_is_named() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("arm"), "a file where a folder is to be").unwrap();
        let path = dir.path().join("arm/trial-001.json");
        let error = write_atomic(&path, b"").unwrap_err();
        assert!(error.to_string().contains("arm/trial-001.json: can't be written"), "{error}");
    }

    #[rstest]
    #[case::this("drainwatch.trial/2")]
    #[case::older("drainwatch.trial/1")]
    #[case::minor("drainwatch.trial/2.7")]
    fn versions_that_are_read(#[case] format: &str) {
        assert!(read(&format!(r#"{{"format": "{format}", "new": 1}}"#)).is_ok());
    }

    #[rstest]
    #[case::newer(r#"{"format": "drainwatch.trial/3"}"#, "was written by a newer drainwatch")]
    #[case::other(r#"{"format": "drainwatch.run/1"}"#, "is no drainwatch.trial record")]
    #[case::no_version(r#"{"format": "drainwatch.trial"}"#, "is no drainwatch.trial record")]
    #[case::no_format("{}", "missing field `format`")]
    #[case::cut_off(r#"{"format": "drainwatch.tr"#, "is no record: EOF")]
    fn versions_and_files_that_are_refused(#[case] text: &str, #[case] why: &str) {
        let error = read(text).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
        assert!(error.contains("trial-001.json: "), "{error}");
    }
}
