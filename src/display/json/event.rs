//! The wire form of events: what docs/events.md describes, whatever the runner's own types become.
//!
//! Types and their names. A new event or field is welcome in format 1; another name, meaning or
//! unit of one that is here is a new format.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::config::{ClusterSpec, Scenario};
use crate::report::ArmSummary;
use crate::verdict::Findings;

/// The format's name and version.
pub const FORMAT: &str = "drainwatch.events/1";

/// How many flows met each fate.
pub type Fates = BTreeMap<&'static str, usize>;

/// One event; the docs say what its fields are.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
#[allow(missing_docs)] // docs/events.md, which a test holds against this
pub enum Event<'a> {
    // --- every command ---
    Started {
        command: &'a str,
        version: &'a str,
        commit: &'a str,
        dirty: Option<bool>,
    },
    Note {
        message: String,
    },
    Warning {
        message: String,
    },
    Error(Error),
    Ended {
        outcome: &'a str,
        exit_code: u8,
        folder: Option<String>,
    },

    // --- apply ---
    RunStarted {
        matrix: &'a str,
        arms: usize,
        trials: usize,
        recorded: usize,
        expected_ms: f64,
        folder: String,
    },
    ArmStarted {
        arm: &'a str,
        number: usize,
        trials: u32,
        recorded: u32,
    },
    ClusterUp {
        arm: String,
        cluster: &'a str,
        took_ms: f64,
    },
    TrialStarted {
        trial: &'a str,
        expected_ms: f64,
    },
    Phase {
        trial: String,
        phase: &'a str,
        expected_ms: Option<f64>,
    },
    TrialEnded {
        trial: &'a str,
        arm: &'a str,
        repeat: u32,
        outcome: &'a str,
        reason: Option<&'a str>,
        file: String,
        flows: BTreeMap<&'static str, Fates>,
        findings: &'a Findings,
        warnings: Vec<&'a str>,
    },
    ClusterGone {
        arm: String,
        cluster: &'a str,
        took_ms: f64,
    },
    ArmEnded {
        arm: &'a str,
        reason: Option<&'a str>,
    },
    RunEnded,

    // --- apply and summarize ---
    ArmSummary(ArmSummary),
    Disagreement {
        run: &'a str,
        message: String,
    },
    TablesWritten {
        folder: String,
        files: &'a [&'a str],
    },

    // --- check and plan ---
    FileChecked {
        file: String,
        kind: &'a str,
        arms: usize,
        trials: u32,
    },
    Plan {
        matrix: &'a str,
        arms: usize,
        trials: u32,
        expected_ms: f64,
        overrides: &'a [String],
        only: &'a [String],
    },
    PlannedArm {
        arm: &'a str,
        scenario: &'a str,
        axes: BTreeMap<&'a str, &'a str>,
        trials: u32,
        expected_ms: f64,
        config: &'a Scenario,
        cluster: &'a ClusterSpec,
    },

    // --- setup, and apply --setup ---
    SetupPlanned {
        kubernetes: Vec<String>,
        user: String,
        cache: String,
        steps: Vec<String>,
        damaged: &'a [String],
        cache_bytes: u64,
        go_caches_bytes: u64,
    },
    SetupWaiting,
    StepStarted {
        step: &'a str,
    },
    StepProgress {
        step: String,
        progress: &'a str,
    },
    StepEnded {
        step: &'a str,
        took_ms: f64,
    },
    Component {
        kubernetes: String,
        name: &'a str,
        version: Option<&'a str>,
        source: Option<&'a str>,
    },
}

/// What is wrong, where, and what would help.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Error {
    /// What is wrong.
    pub message: String,
    /// The file that it is in.
    pub file: Option<String>,
    /// The line in it, from 1.
    pub line: Option<usize>,
    /// The column in that, from 1, in characters.
    pub column: Option<usize>,
    /// The argument that it is in, where it is in no file.
    pub argument: Option<String>,
    /// Remedies and further facts.
    pub notes: Vec<String>,
    /// The arms in which it shows, where that is not plain from its place.
    pub arms: Vec<String>,
}

impl Error {
    /// Of a text whose first line says what is wrong, and the others what would help.
    pub fn of_text(text: &str) -> Self {
        let mut lines = text.lines().map(|line| line.trim().to_owned());
        let message = lines.next().unwrap_or_default();
        Self { message, notes: lines.filter(|line| !line.is_empty()).collect(), ..Self::default() }
    }
}
