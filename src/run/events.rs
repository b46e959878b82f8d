//! What the runner tells while it works: events for the progress display and for programs.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::record::Trial;

/// Where the runner sends its events.
pub type Events = tokio::sync::mpsc::UnboundedSender<RunEvent>;

/// One thing that the runner did or met.
#[derive(Clone, Debug)]
pub enum RunEvent {
    /// The run begins.
    RunStarted {
        /// The matrix's name.
        matrix: String,
        /// How many arms it has.
        arms: usize,
        /// How many trials they have in all.
        trials: usize,
        /// How many of these are recorded already: of a run that is resumed.
        recorded: usize,
        /// How long it will take, what is recorded left out.
        expected: Duration,
        /// The run's folder.
        output: PathBuf,
    },
    /// An arm begins: its cluster is started.
    ArmStarted {
        /// The arm's name.
        arm: String,
        /// Its place, from 1.
        number: usize,
        /// How many trials it has.
        trials: u32,
        /// How many of these are recorded already.
        recorded: u32,
    },
    /// The arm's cluster is up.
    ClusterUp {
        /// The cluster's name.
        cluster: String,
        /// How long that took.
        took: Duration,
    },
    /// The arm's cluster is gone. Not told of one that is kept for a look: the run ends before it.
    ClusterGone {
        /// The cluster's name.
        cluster: String,
        /// How long that took.
        took: Duration,
    },
    /// A trial begins.
    TrialStarted {
        /// `ARM/001`.
        id: String,
        /// How long it will take.
        expected: Duration,
    },
    /// A trial enters a phase.
    Phase {
        /// Which.
        phase: Phase,
        /// How long it will take, where that is known.
        expected: Option<Duration>,
    },
    /// A trial is on disk.
    TrialEnded(Arc<Trial>),
    /// An arm has ended.
    ArmEnded {
        /// The arm's name.
        arm: String,
        /// Why it ended before its last trial, or was refused.
        reason: Option<String>,
    },
    /// Something that the user should know.
    Warning(String),
    /// The run has ended.
    RunEnded,
}

/// The phases of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The workload is created and becomes ready.
    Workload,
    /// Preflight: watches, endpoint, rules, flows, clocks.
    Preflight,
    /// The flows must live.
    Settle,
    /// The trigger has been sent; what happens is recorded.
    Observe,
    /// The workload is removed.
    Remove,
}

impl Phase {
    /// In a word.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Workload => "workload",
            Phase::Preflight => "preflight",
            Phase::Settle => "settle",
            Phase::Observe => "observe",
            Phase::Remove => "remove",
        }
    }
}
