//! Progress on stderr: turns the runner's events into bars on a terminal, lines elsewhere. For
//! programs, events on stdout.
//!
//! Takes events; writes them down, and decides nothing. Standard output stays free for results.

mod bars;
pub mod json;
mod lines;
mod words;

use std::io::IsTerminal;

use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinHandle;

use crate::run::RunEvent;

pub use words::count;

/// How much is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Warnings only.
    Quiet,
    /// A line for each trial, and bars for what goes on where stderr is a terminal.
    Bars,
    /// A line for each trial, or for each event where `every` is set.
    Lines {
        /// Every event: phases, clusters.
        every: bool,
    },
    /// Every event, for a program, on standard output.
    Json,
}

impl Style {
    /// The style that the flags and stderr ask for; a program's where it was promised events.
    pub fn choose(quiet: bool, verbose: bool) -> Self {
        if json::is_open() {
            return Self::Json;
        }
        match (quiet, verbose) {
            (true, _) => Self::Quiet,
            (false, false) if std::io::stderr().is_terminal() => Self::Bars,
            (false, every) => Self::Lines { every },
        }
    }
}

/// Shows events until their sender is gone. On a thread of its own: whoever reads what is written
/// may take any time, and what is measured must not wait for that.
pub fn show(mut events: UnboundedReceiver<RunEvent>, style: Style) -> JoinHandle<()> {
    tokio::task::spawn_blocking(move || {
        let mut view: Box<dyn View> = match style {
            Style::Quiet => Box::new(lines::Warnings(Box::new(std::io::stderr()))),
            Style::Json => Box::new(json::Runs::default()),
            Style::Bars => Box::new(bars::Bars::new()),
            Style::Lines { every } => {
                Box::new(lines::Lines::new(Box::new(std::io::stderr()), every))
            }
        };
        while let Some(event) = events.blocking_recv() {
            view.event(&event);
        }
    })
}

/// One way to show events.
trait View: Send {
    fn event(&mut self, event: &RunEvent);
}
