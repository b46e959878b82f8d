//! What lies in folders: a run's trial records, and runs in a folder of several.
//!
//! Takes paths; knows names of files, not what is in them.

use std::fs;
use std::path::{Path, PathBuf};

use super::go_v01;
use super::run::{LoadError, RUN_FILE};

/// A folder's own name, whatever way leads to it (`.`, a link).
pub fn name(dir: &Path) -> String {
    let whole = dir.canonicalize();
    let name = whole.as_deref().unwrap_or(dir).file_name().unwrap_or(dir.as_os_str());
    name.to_string_lossy().into_owned()
}

/// The folders in `dir` that hold a run or reports, by name.
pub fn runs_in(dir: &Path) -> Result<Vec<PathBuf>, LoadError> {
    let holds_some = |folder: &PathBuf| {
        // What can't be looked into is not for the remedy to tell.
        folder.join(RUN_FILE).is_file()
            || trial_files(folder).is_ok_and(|files| !files.is_empty())
            || go_v01::find(folder).is_ok_and(|reports| !reports.is_empty())
    };
    let mut runs = entries(dir)?;
    runs.retain(|path| path.is_dir() && holds_some(path));
    runs.sort();
    Ok(runs)
}

/// The remedy where a folder of runs was named instead of a run's.
pub fn they_hold_some(runs: &[PathBuf]) -> String {
    if runs.is_empty() {
        return String::new();
    }
    let runs: String = runs.iter().map(|run| format!("\n    {}", run.display())).collect();
    format!("\n  name those that you mean of the folders in it that do:{runs}")
}

/// The trial records in the folders below `dir`, by path.
pub fn trial_files(dir: &Path) -> Result<Vec<PathBuf>, LoadError> {
    let mut found = Vec::new();
    for arm in entries(dir)?.into_iter().filter(|path| path.is_dir()) {
        // Regular files only: reading a pipe of that name would never end.
        let is_trial = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.is_some_and(is_trial_file) && path.is_file()
        };
        found.extend(entries(&arm)?.into_iter().filter(is_trial));
    }
    found.sort();
    Ok(found)
}

pub fn entries(dir: &Path) -> Result<Vec<PathBuf>, LoadError> {
    let failed = |source| LoadError::Folder { dir: dir.to_owned(), source };
    let entries = fs::read_dir(dir).map_err(failed)?;
    entries.map(|entry| Ok(entry.map_err(failed)?.path())).collect()
}

/// `trial-NNN.json` or `trial-NNN.aborted.json`.
fn is_trial_file(name: &str) -> bool {
    let Some(rest) = name.strip_prefix("trial-").and_then(|rest| rest.strip_suffix(".json")) else {
        return false;
    };
    let number = rest.strip_suffix(".aborted").unwrap_or(rest);
    number.len() >= 3 && number.bytes().all(|b| b.is_ascii_digit())
}
