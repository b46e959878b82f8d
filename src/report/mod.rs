//! Reports: what people and spreadsheets read, one format a file.
//!
//! Takes trial records; gives tables. Judges nothing, and reads no live state.

mod arms;
mod chain;
mod csv;
mod dials;
mod flows_csv;
mod markdown;
mod part;
mod programs;
mod provenance;
mod stats;
pub mod story;
mod summary_csv;
mod terminal;
mod trials_csv;
mod words;

use std::path::Path;

use crate::observation::Protocol;
use crate::record::{WriteError, write_atomic};
use crate::verdict::Fate;

pub use markdown::markdown;
pub use part::Part;
pub use programs::{ArmSummary, summaries};
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

/// The files that [`write_all`] writes.
pub const FILES: [&str; 4] = ["flows.csv", "trials.csv", "summary.csv", "summary.md"];

/// Writes each of [`FILES`] into a folder, atomically.
pub fn write_all(dir: &Path, parts: &[Part]) -> Result<(), ReportError> {
    // All of them before the first is written: a folder's reports are of one state.
    let reports = [
        flows_csv::render(parts)?,
        trials_csv::render(parts)?,
        summary_csv::render(parts)?,
        markdown(parts)?.into_bytes(),
    ];
    for (name, bytes) in FILES.iter().zip(&reports) {
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
