//! Reports: what people and spreadsheets read, one format a file.
//!
//! Takes trial records; gives tables. Judges nothing, and reads no live state.

mod arms;
mod csv;
mod flows_csv;
mod markdown;
mod stats;
mod summary_csv;
mod terminal;
mod trials_csv;
mod words;

use std::path::Path;

use crate::observation::Protocol;
use crate::record::{Run, Trial, WriteError, write_atomic};
use crate::verdict::Fate;

pub use markdown::markdown;
pub use stats::Stats;
pub use terminal::terminal;

/// A report could not be made.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say what the variants are
pub enum ReportError {
    #[error(transparent)]
    Write(#[from] WriteError),
    #[error("{file}: can't be made: {reason}")]
    Render { file: &'static str, reason: String },
}

/// Writes each report into a run's folder, atomically: `flows.csv`, `trials.csv`, `summary.csv`,
/// `summary.md`. The trials come in the order in which the tables list them.
pub fn write_all(dir: &Path, trials: &[Trial], run: Option<&Run>) -> Result<(), ReportError> {
    // All of them before the first is written: a folder's reports are of one state.
    let reports = [
        ("flows.csv", flows_csv::render(trials)?),
        ("trials.csv", trials_csv::render(trials)?),
        ("summary.csv", summary_csv::render(trials)?),
        ("summary.md", markdown(trials, run)?.into_bytes()),
    ];
    for (name, bytes) in &reports {
        write_atomic(&dir.join(name), bytes)?;
    }
    Ok(())
}

/// Every fate of every protocol: a fixed set of columns, whatever the flows met.
fn fates() -> impl Iterator<Item = (Protocol, Fate)> {
    let each = |protocol| Fate::ALL.into_iter().map(move |fate| (protocol, fate));
    [Protocol::Tcp, Protocol::Udp].into_iter().flat_map(each)
}

/// `tcp_drained`, …, `udp_not_measured`
fn fate_columns() -> impl Iterator<Item = String> {
    fates().map(|(protocol, fate)| {
        format!("{}_{}", protocol.name().to_lowercase(), fate.name().replace('-', "_"))
    })
}

#[cfg(test)]
mod tests;
