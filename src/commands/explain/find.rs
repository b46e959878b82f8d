//! A trial's record by what people call it: RUN/ARM/TRIAL.
//!
//! Takes a path; gives the record, or what is there instead.

use std::fs;
use std::path::{Path, PathBuf};

use crate::config::likely;
use crate::record::{ReadError, Trial, folder_name, read_go_report};

/// The file of a trial of the Go tool, in the trial's folder.
const GO_REPORT: &str = "report.json";

/// So many names are told of what is there instead.
const NAMED: usize = 12;

/// There is no such record.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say what the variants are
pub enum FindError {
    #[error(transparent)]
    Read(#[from] ReadError),
    /// `instead` is what is there, in lines.
    #[error("{path}: {problem}{instead}")]
    NoTrial { path: String, problem: String, instead: String },
}

/// Reads the record that `path` names: a file, or RUN/ARM/001.
pub fn trial(path: &Path) -> Result<Trial, FindError> {
    if path.is_file() {
        return Ok(read(path)?);
    }
    let arm = parent(path);
    if let Some(wanted) = path.file_name().and_then(|name| Wanted::parse(name.to_str()?)) {
        let found = trials_of(&arm).into_iter().find(|trial| wanted.is(trial));
        if let Some(found) = found {
            return Ok(read(&found.path)?);
        }
    }
    Err(instead(path, &arm))
}

fn read(path: &Path) -> Result<Trial, ReadError> {
    if path.file_name().is_some_and(|name| name == GO_REPORT) {
        let arm = parent(&parent(path));
        return read_go_report(path, &folder_name(&parent(&arm)), &folder_name(&arm));
    }
    Trial::read(path)
}

/// The folder that a path lies in.
fn parent(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// A trial as it is asked for: `trial-001`, `001`, `1`, each with or without `.aborted` and `.json`.
#[derive(Debug, PartialEq)]
struct Wanted {
    repeat: u32,
    aborted: bool,
}

impl Wanted {
    fn parse(name: &str) -> Option<Self> {
        let name = name.strip_suffix(".json").unwrap_or(name);
        let (number, aborted) = match name.strip_suffix(".aborted") {
            Some(number) => (number, true),
            None => (name, false),
        };
        let digits = number.strip_prefix("trial-").unwrap_or(number);
        let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        let repeat = digits.parse().ok().filter(|_| plain)?;
        Some(Self { repeat, aborted })
    }

    fn is(&self, found: &Found) -> bool {
        self.repeat == found.wanted.repeat && (!self.aborted || found.wanted.aborted)
    }
}

/// A trial's record in an arm's folder.
struct Found {
    wanted: Wanted,
    path: PathBuf,
}

/// The records in an arm's folder, by number; of one number the measured one first.
fn trials_of(arm: &Path) -> Vec<Found> {
    let named = |path: PathBuf| {
        let name = path.file_name()?.to_str()?;
        let wanted = name.strip_prefix("trial-").and_then(Wanted::parse)?;
        // Regular files only: reading a pipe of that name would never end.
        let record = if name.ends_with(".json") { path } else { path.join(GO_REPORT) };
        record.is_file().then_some(Found { wanted, path: record })
    };
    let mut found: Vec<Found> = entries(arm).into_iter().filter_map(named).collect();
    found.sort_by_key(|found| (found.wanted.repeat, found.wanted.aborted));
    found
}

/// What is in a folder; nothing where it can't be read.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

/// The arms in a run's folder.
fn arms_of(run: &Path) -> Vec<String> {
    names(entries(run).into_iter().filter(|path| !trials_of(path).is_empty()))
}

/// A path's last part.
fn folder(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn names(paths: impl Iterator<Item = PathBuf>) -> Vec<String> {
    paths.map(|path| folder(&path)).collect()
}

/// What there is where a trial was looked for.
fn instead(path: &Path, arm: &Path) -> FindError {
    let run = parent(arm);
    let shown = path.display().to_string();
    let no_trial = |problem: &str, instead: String| FindError::NoTrial {
        path: shown.clone(),
        problem: problem.to_owned(),
        instead,
    };
    if path.is_dir() {
        let trials = numbers(path);
        if !trials.is_empty() {
            return no_trial("is an arm's folder", list("name one of its trials", &shown, &trials));
        }
        let arms = arms_of(path);
        if !arms.is_empty() {
            let problem = "is a run's folder";
            return no_trial(
                problem,
                list("name an arm and a trial (ARM/001); its arms", "", &arms),
            );
        }
        let runs = names(entries(path).into_iter().filter(|run| !arms_of(run).is_empty()));
        if !runs.is_empty() {
            let name = "name a trial as RUN/ARM/001; its runs";
            return no_trial("holds runs", list(name, "", &runs));
        }
        return no_trial("holds no trial record", "\n  name a trial as RUN/ARM/001".to_owned());
    }
    if path.exists() {
        return no_trial("is not a regular file", String::new());
    }
    let trials = numbers(arm);
    if !trials.is_empty() {
        return no_trial("no such trial", list("there are", "", &trials));
    }
    // `RUN/ARM` without a trial, and `RUN/ARM/TRIAL`.
    for (run, wanted) in [(arm, path), (&run, arm)] {
        let (arms, wanted) = (arms_of(run), folder(wanted));
        if !arms.is_empty() {
            let there = list("there are", "", &arms);
            return no_trial("no such arm", meant(&wanted, &arms) + &there);
        }
    }
    let beside = parent(&run);
    let folders = names(entries(&beside).into_iter().filter(|path| path.is_dir()));
    no_trial("no such run", meant(&folder(&run), &folders))
}

/// An arm's trials as they are asked for.
fn numbers(arm: &Path) -> Vec<String> {
    let name = |found: Found| {
        let aborted = if found.wanted.aborted { ".aborted" } else { "" };
        format!("{:03}{aborted}", found.wanted.repeat)
    };
    trials_of(arm).into_iter().map(name).collect()
}

fn meant(wanted: &str, known: &[String]) -> String {
    let likely = likely(wanted, known.iter().map(String::as_str));
    likely.map(|name| format!("\n  did you mean {name}?")).unwrap_or_default()
}

/// `WHAT: a, b, c`, in a line of its own.
fn list(what: &str, folder: &str, names: &[String]) -> String {
    let example = match (folder, names.first()) {
        ("", _) | (_, None) => String::new(),
        (folder, Some(name)) => format!(" ({}/{name})", folder.trim_end_matches('/')),
    };
    let named = names.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    let more = match names.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("\n  {what}{example}: {named}{more}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("trial-001.json", Some((1, false)))]
    #[case("trial-012.aborted.json", Some((12, true)))]
    #[case("trial-001", Some((1, false)))]
    #[case("001", Some((1, false)))]
    #[case("3", Some((3, false)))]
    #[case("3.aborted", Some((3, true)))]
    #[case("trial-", None)]
    #[case("+1", None)]
    #[case("drain-delete", None)]
    #[case("99999999999", None)]
    fn what_names_a_trial(#[case] name: &str, #[case] wanted: Option<(u32, bool)>) {
        let wanted = wanted.map(|(repeat, aborted)| Wanted { repeat, aborted });
        assert_eq!(Wanted::parse(name), wanted);
    }
}
