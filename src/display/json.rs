//! Events for programs: one JSON object a line on standard output, and nothing else there.
//!
//! Takes the runner's events and what commands have to say; decides nothing. The stream is the
//! process's, as standard output is: it is opened once, by the command line.

mod event;

use std::collections::BTreeMap;
use std::io::{ErrorKind, Stdout, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

pub use event::{Error, Event, FORMAT, Fates};

use super::View;
use crate::observation::Protocol;
use crate::record::Trial;
use crate::run::RunEvent;

/// The process's stream, once [`open`] was called.
static STREAM: Mutex<Option<Stream<Stdout>>> = Mutex::new(None);

fn stream() -> MutexGuard<'static, Option<Stream<Stdout>>> {
    // Whoever panicked with it wrote whole lines.
    STREAM.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From now on this process tells events, the first of them which command it runs.
pub fn open(command: &str) {
    *stream() = Some(Stream::new(std::io::stdout(), Timestamp::now));
    let dirty = match env!("DRAINWATCH_DIRTY") {
        "true" => Some(true),
        "false" => Some(false),
        _ => None,
    };
    let (version, commit) = (env!("CARGO_PKG_VERSION"), env!("DRAINWATCH_COMMIT"));
    emit(&Event::Started { command, version, commit, dirty });
}

/// Whether this process tells events, and so nothing else on standard output.
pub fn is_open() -> bool {
    stream().is_some()
}

/// Tells an event; nothing where no stream is open.
pub fn emit(event: &Event) {
    if let Some(stream) = stream().as_mut() {
        stream.emit(event);
    }
}

/// Tells how it ended. An error is that of the first line that could not be written; a reader that
/// went away is none.
pub fn close(outcome: &str, exit_code: u8) -> std::io::Result<()> {
    let Some(mut stream) = stream().take() else { return Ok(()) };
    let folder = stream.folder.take();
    stream.emit(&Event::Ended { outcome, exit_code, folder });
    stream.failed.map_or(Ok(()), Err)
}

/// Writes events; the first line names the format.
struct Stream<W> {
    out: W,
    clock: fn() -> Timestamp,
    first: bool,
    /// Why a line could not be written.
    failed: Option<std::io::Error>,
    /// The folder that was told of last.
    folder: Option<String>,
}

#[derive(Serialize)]
struct Line<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    format: Option<&'a str>,
    t: String,
    #[serde(flatten)]
    event: &'a Event<'a>,
}

impl<W: Write> Stream<W> {
    fn new(out: W, clock: fn() -> Timestamp) -> Self {
        Self { out, clock, first: true, failed: None, folder: None }
    }

    fn emit(&mut self, event: &Event) {
        if let Event::RunStarted { folder, .. } | Event::TablesWritten { folder, .. } = event {
            self.folder = Some(folder.clone());
        }
        let format = std::mem::take(&mut self.first).then_some(FORMAT);
        let line = Line { format, t: format!("{:.3}", (self.clock)()), event };
        let written =
            serde_json::to_vec(&line).map_err(std::io::Error::from).and_then(|mut line| {
                line.push(b'\n');
                // At once: a reader never sees a part of a line that is still being made.
                self.out.write_all(&line).and_then(|()| self.out.flush())
            });
        match written {
            Err(error) if error.kind() != ErrorKind::BrokenPipe => {
                self.failed.get_or_insert(error);
            }
            _ => {}
        }
    }
}

/// The runner's events, told as they come.
#[derive(Default)]
pub(super) struct Runs {
    arm: String,
    trial: String,
}

impl View for Runs {
    fn event(&mut self, event: &RunEvent) {
        emit(&self.translate(event));
    }
}

impl Runs {
    /// An event in its wire form. Some lack what a program should not have to remember: their
    /// arm, their trial.
    fn translate<'a>(&mut self, event: &'a RunEvent) -> Event<'a> {
        match event {
            RunEvent::RunStarted { matrix, arms, trials, recorded, expected, output } => {
                Event::RunStarted {
                    matrix,
                    arms: *arms,
                    trials: *trials,
                    recorded: *recorded,
                    expected_ms: ms(*expected),
                    folder: output.display().to_string(),
                }
            }
            RunEvent::ArmStarted { arm, number, trials, recorded } => {
                self.arm.clone_from(arm);
                Event::ArmStarted { arm, number: *number, trials: *trials, recorded: *recorded }
            }
            RunEvent::ClusterUp { cluster, took } => {
                Event::ClusterUp { arm: self.arm.clone(), cluster, took_ms: ms(*took) }
            }
            RunEvent::ClusterGone { cluster, took } => {
                Event::ClusterGone { arm: self.arm.clone(), cluster, took_ms: ms(*took) }
            }
            RunEvent::TrialStarted { id, expected } => {
                self.trial.clone_from(id);
                Event::TrialStarted { trial: id, expected_ms: ms(*expected) }
            }
            RunEvent::Phase { phase, expected } => Event::Phase {
                trial: self.trial.clone(),
                phase: phase.name(),
                expected_ms: expected.map(ms),
            },
            RunEvent::TrialEnded(trial) => ended(trial),
            RunEvent::ArmEnded { arm, reason } => {
                Event::ArmEnded { arm, reason: reason.as_deref() }
            }
            RunEvent::Warning(text) => Event::Warning { message: text.clone() },
            RunEvent::RunEnded => Event::RunEnded,
        }
    }
}

fn ended(trial: &Trial) -> Event<'_> {
    let mut flows = BTreeMap::from([("tcp", Fates::new()), ("udp", Fates::new())]);
    for flow in &trial.flows {
        let protocol = match flow.protocol {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
        };
        *flows.entry(protocol).or_default().entry(flow.fate.name()).or_default() += 1;
    }
    Event::TrialEnded {
        trial: &trial.id,
        arm: &trial.arm,
        repeat: trial.repeat,
        outcome: trial.outcome.name(),
        reason: trial.reason.as_deref(),
        file: trial.file().display().to_string(),
        flows,
        findings: &trial.findings,
        warnings: trial.all_warnings().collect(),
    }
}

/// A duration as events have it: milliseconds.
pub fn ms(duration: Duration) -> f64 {
    duration.as_nanos() as f64 / 1e6
}

#[cfg(test)]
mod tests;
