//! Where reports lie.

use std::path::{Path, PathBuf};

use super::repeat;
use crate::record::folders::{entries, name};
use crate::record::run::LoadError;

/// The report's name in its trial's folder.
pub const REPORT_FILE: &str = "report.json";

/// A report, found.
pub struct Found {
    /// The arm's name: its folder's.
    pub arm: String,
    /// The report.
    pub path: PathBuf,
}

/// The reports in a folder of arms, or in that of one arm, by path.
pub fn find(dir: &Path) -> Result<Vec<Found>, LoadError> {
    let mut found = of_arm(dir)?;
    for arm in entries(dir)?.into_iter().filter(|path| path.is_dir()) {
        found.extend(of_arm(&arm)?);
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

fn of_arm(dir: &Path) -> Result<Vec<Found>, LoadError> {
    let is_trial = |path: &PathBuf| {
        path.file_name().and_then(|name| name.to_str()).is_some_and(|name| repeat(name).is_some())
    };
    // Regular files only: reading a pipe of that name would never end.
    let reports = entries(dir)?
        .into_iter()
        .filter(is_trial)
        .map(|trial| trial.join(REPORT_FILE))
        .filter(|path| path.is_file());
    Ok(reports.map(|path| Found { arm: name(dir), path }).collect())
}
