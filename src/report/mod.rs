//! Reports: what people and spreadsheets read, one format a file.
//!
//! Takes trial records; gives tables. Judges nothing, and reads no live state.

use std::path::Path;

use crate::record::{Run, Trial, WriteError};

/// A report could not be made.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say what the variants are
pub enum ReportError {
    #[error(transparent)]
    Write(#[from] WriteError),
    #[error("{file}: can't be made: {reason}")]
    Render { file: &'static str, reason: String },
}

/// Writes each report into a run's folder: `flows.csv`, `trials.csv`, `summary.csv`, `summary.md`.
pub fn write_all(dir: &Path, trials: &[Trial], run: Option<&Run>) -> Result<(), ReportError> {
    let _ = (dir, trials, run);
    todo!()
}

/// The table that stands at the end of a run on a terminal: a line an arm, then what to know.
pub fn terminal(trials: &[Trial]) -> String {
    let _ = trials;
    todo!()
}
