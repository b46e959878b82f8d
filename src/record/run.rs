//! The record of a run: its plan, and how far each arm has come.
//!
//! Takes the plan; gives `run.json` and, with the trial records below it, a run's folder as one
//! value. Knows nothing of how trials are run or reported.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::folders::{self, name, runs_in, trial_files};
use super::io::{self, ReadError, WriteError};
use super::{Outcome, TRIAL_FORMAT, Tool, Trial, go_v01};
use crate::plan::Plan;

/// The format of a run's record.
pub const RUN_FORMAT: &str = "drainwatch.run/1";

/// The run record's name in a run's folder.
pub const RUN_FILE: &str = "run.json";

/// One `apply`, and every resumption of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Run {
    /// [`RUN_FORMAT`].
    pub format: String,
    /// The build that measures.
    pub tool: Tool,
    /// What is to be done.
    pub plan: Plan,
    /// Wall-clock time of its start, UTC, RFC 3339.
    pub started_at: String,
    /// The same of each time that it was resumed.
    #[serde(default)]
    pub resumed_at: Vec<String>,
    /// The same of its end; null while it goes on, and for one that was killed.
    pub ended_at: Option<String>,
    /// One for each of the plan's arms, in its order.
    pub arms: Vec<ArmState>,
    /// The signal that ended it, in words.
    pub interrupted: Option<String>,
}

/// How far an arm has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ArmState {
    /// The arm's name.
    pub name: String,
    /// How far.
    pub state: ArmStage,
    /// Why it ended or failed.
    pub reason: Option<String>,
    /// Trials measured.
    pub trials_measured: u32,
    /// Trials aborted.
    pub trials_aborted: u32,
    /// Trials whose trigger the API refused.
    #[serde(default)]
    pub trials_refused: u32,
    /// Aborted trials that were run again; their records lie in `ARM/superseded/`.
    #[serde(default)]
    pub trials_superseded: u32,
}

/// How far an arm has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ArmStage {
    /// Nothing was done yet.
    Pending,
    /// Its cluster is coming up or its trials run.
    Running,
    /// Each of its trials was run.
    Done,
    /// It was given up after aborted trials.
    Ended,
    /// Its cluster could not be had.
    Failed,
    /// A signal ended the run in it.
    Interrupted,
    /// Its earlier trials were measured in another environment than there is now.
    Refused,
}

impl Run {
    /// A run of `plan` of which nothing was done yet.
    pub fn new(tool: Tool, plan: Plan, started_at: String) -> Self {
        let arms = plan.arms.iter().map(|arm| ArmState::pending(&arm.name)).collect();
        Self {
            format: RUN_FORMAT.to_owned(),
            tool,
            plan,
            started_at,
            resumed_at: Vec::new(),
            ended_at: None,
            arms,
            interrupted: None,
        }
    }

    /// Writes it as `run.json` into a run's folder, atomically.
    pub fn write(&self, folder: &Path) -> Result<(), WriteError> {
        io::write_json(&folder.join(RUN_FILE), self)
    }

    /// Reads `run.json` from a run's folder.
    pub fn read(folder: &Path) -> Result<Self, ReadError> {
        io::read_json(&folder.join(RUN_FILE), RUN_FORMAT)
    }
}

impl ArmState {
    /// An arm of which nothing was done yet.
    pub fn pending(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            state: ArmStage::Pending,
            reason: None,
            trials_measured: 0,
            trials_aborted: 0,
            trials_refused: 0,
            trials_superseded: 0,
        }
    }

    /// Counts its trials among these anew.
    pub fn count(&mut self, trials: &[Trial]) {
        let of = |outcome| {
            let of = trials.iter().filter(|t| t.arm == self.name && t.outcome == outcome);
            of.count() as u32 // an arm's repeats are a u32
        };
        self.trials_measured = of(Outcome::Measured);
        self.trials_aborted = of(Outcome::Aborted);
        self.trials_refused = of(Outcome::TriggerRefused);
    }
}

/// What a run's folder holds.
#[derive(Clone, Debug, PartialEq)]
pub struct RunFolder {
    /// `run.json`; `None` where there is none (trials that were copied out of a run).
    pub run: Option<Run>,
    /// Every trial record, aborted ones included: by arm in the run's order (arms that it does
    /// not name come after it, by name), then by repeat, then aborted before measured.
    pub trials: Vec<Trial>,
}

/// A run's folder could not be read.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say what the variants are
pub enum LoadError {
    #[error("{}: can't be read: {source}", dir.display())]
    Folder { dir: PathBuf, source: std::io::Error },
    /// `runs` are the folders in it that do hold some.
    #[error("{}: holds no trial record (ARM/trial-001.json){}", dir.display(), folders::they_hold_some(runs))]
    NoRecords { dir: PathBuf, runs: Vec<PathBuf> },
    #[error(
        "{}: holds trial records and reports of drainwatch (Go)\n  put the reports into a folder of their own, and name both",
        dir.display()
    )]
    Mixed { dir: PathBuf },
    /// All of them, so that nobody sums up a part of a run without knowing it.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Unreadable(Vec<ReadError>),
}

/// Reads a run's folder: `run.json` and each `ARM/trial-NNN.json` and `ARM/trial-NNN.aborted.json`.
/// Other files are not looked at: temporary ones, and `ARM/superseded/`, where the records of aborted
/// trials lie that were run again. A folder with `run.json` alone is a run that has measured nothing
/// yet. A folder that holds the Go tool's reports instead (`ARM/trial-NNN/report.json`, or
/// `trial-NNN/report.json` of one arm) is read as its trials.
pub fn load_run_dir(dir: &Path) -> Result<RunFolder, LoadError> {
    let mut unreadable = Vec::new();
    let run = match Run::read(dir) {
        Ok(run) => Some(run),
        Err(ReadError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => {
            unreadable.push(error);
            None
        }
    };
    let mut trials = Vec::new();
    for path in trial_files(dir)? {
        match Trial::read(&path).and_then(|trial| in_its_place(dir, &path, trial)) {
            Ok(trial) => trials.push(trial),
            Err(error) => unreadable.push(error),
        }
    }
    let reports = go_v01::find(dir)?;
    if !reports.is_empty() && (run.is_some() || !trials.is_empty() || !unreadable.is_empty()) {
        return Err(LoadError::Mixed { dir: dir.to_owned() });
    }
    let matrix = name(dir);
    for report in reports {
        match go_v01::read(&report.path, &matrix, &report.arm) {
            Ok(trial) => trials.push(trial),
            Err(error) => unreadable.push(error),
        }
    }
    if !unreadable.is_empty() {
        return Err(LoadError::Unreadable(unreadable));
    }
    if trials.is_empty() && run.is_none() {
        return Err(LoadError::NoRecords { dir: dir.to_owned(), runs: runs_in(dir)? });
    }
    let place = |arm: &str| {
        let arms = run.as_ref().map_or(&[][..], |run| &run.arms);
        arms.iter().position(|state| state.name == arm).unwrap_or(arms.len())
    };
    trials.sort_by(|a, b| {
        let key =
            |t: &Trial| (place(&t.arm), t.arm.clone(), t.repeat, t.outcome != Outcome::Aborted);
        key(a).cmp(&key(b))
    });
    Ok(RunFolder { run, trials })
}

/// A record must lie where its arm, repeat and outcome put it: a copy under another name would be
/// counted twice.
fn in_its_place(dir: &Path, path: &Path, trial: Trial) -> Result<Trial, ReadError> {
    let expected = trial.file();
    if dir.join(&expected) == path {
        return Ok(trial);
    }
    Err(ReadError::Misplaced {
        path: path.to_owned(),
        id: trial.id,
        outcome: trial.outcome.name().to_owned(),
        expected: expected.display().to_string(),
    })
}

impl Trial {
    /// Where its record lies in a run's folder: `ARM/trial-001.json`, or
    /// `ARM/trial-001.aborted.json`.
    pub fn file(&self) -> PathBuf {
        let aborted = if self.outcome == Outcome::Aborted { ".aborted" } else { "" };
        Path::new(&self.arm).join(format!("trial-{:03}{aborted}.json", self.repeat))
    }

    /// Writes it into a run's folder, at [`Trial::file`], atomically.
    pub fn write(&self, folder: &Path) -> Result<(), WriteError> {
        io::write_json(&folder.join(self.file()), self)
    }

    /// Reads the record at this path.
    pub fn read(path: &Path) -> Result<Self, ReadError> {
        io::read_json(path, TRIAL_FORMAT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stories;
    use std::fs;

    fn ids(folder: &RunFolder) -> Vec<&str> {
        folder.trials.iter().map(|trial| trial.id.as_str()).collect()
    }

    #[test]
    fn a_trial_survives_its_file_and_is_found_again() {
        let dir = tempfile::tempdir().unwrap();
        let trial = stories::scale(1);
        trial.write(dir.path()).unwrap();
        let folder = load_run_dir(dir.path()).unwrap();
        assert_eq!(folder.trials, [trial]);
        assert_eq!(folder.run, None);
    }

    #[test]
    fn the_layout_of_a_trial() {
        let dir = tempfile::tempdir().unwrap();
        let trial = stories::aborted("drain-delete", 2);
        trial.write(dir.path()).unwrap();
        let path = dir.path().join("drain-delete/trial-002.aborted.json");
        insta::assert_snapshot!(fs::read_to_string(path).unwrap());
    }

    #[test]
    fn trials_come_in_the_runs_order_and_other_files_are_not_looked_at() {
        let dir = tempfile::tempdir().unwrap();
        let trials = [
            stories::exit(2),
            stories::exit(1),
            stories::drain(1),
            stories::aborted("drain-delete", 1),
            stories::scale(1),
        ];
        for trial in &trials {
            trial.write(dir.path()).unwrap();
        }
        let plan = Plan { matrix: "m".into(), arms: vec![], overrides: vec![], only: vec![] };
        let mut run = Run::new(trials[0].tool.clone(), plan, "2026-11-30T12:00:00Z".into());
        run.arms = ["exit-delete", "drain-delete"].map(ArmState::pending).into();
        run.write(dir.path()).unwrap();
        for other in ["exit-delete/.drainwatch-x.tmp", "exit-delete/trial-1.json", "notes.txt"] {
            fs::write(dir.path().join(other), "{").unwrap();
        }
        let folder = load_run_dir(dir.path()).unwrap();
        assert_eq!(folder.run, Some(run));
        assert_eq!(
            ids(&folder),
            [
                "exit-delete/001",
                "exit-delete/002",
                "drain-delete/001",
                "drain-delete/001",
                "drain-scale/001"
            ]
        );
        assert_eq!(folder.trials[2].outcome, Outcome::Aborted);
    }

    #[test]
    fn each_unreadable_record_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let trial = stories::exit(1);
        trial.write(dir.path()).unwrap();
        let arm = dir.path().join("exit-delete");
        fs::copy(arm.join("trial-001.json"), arm.join("trial-007.json")).unwrap();
        fs::write(arm.join("trial-003.json"), "{").unwrap();
        let error = load_run_dir(dir.path()).unwrap_err().to_string();
        let lines: Vec<_> = error.lines().collect();
        assert!(lines[0].contains("trial-003.json: is no record"), "{error}");
        let misplaced = "trial-007.json: holds exit-delete/001 (measured), which belongs at \
                         exit-delete/trial-001.json";
        assert!(lines[1].contains(misplaced), "{error}");
    }

    #[test]
    fn a_folder_without_records_is_no_run() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(load_run_dir(dir.path()), Err(LoadError::NoRecords { .. })));
        let none = dir.path().join("none");
        assert!(matches!(load_run_dir(&none), Err(LoadError::Folder { .. })));
    }
}
