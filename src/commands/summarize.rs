//! `drainwatch summarize`: judges recorded trials anew and writes their tables.
//!
//! Reads run folders, never a cluster; rewrites no record. Of one folder the tables go into it,
//! of several to `--output` or, as Markdown, to standard output.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;

use super::{Exit, say};
use crate::cli::SummarizeArgs;
use crate::record::{RunFolder, Trial, load_run_dir};
use crate::report;

/// Runs the command.
pub fn run(args: &SummarizeArgs) -> ExitCode {
    match summarize(args) {
        Ok(text) => say::print(&text).into(),
        Err((exit, message)) => say::error(exit, &message).into(),
    }
}

/// What to print, or why there is nothing to print.
fn summarize(args: &SummarizeArgs) -> Result<String, (Exit, String)> {
    let mut folders = Vec::new();
    let mut errors = Vec::new();
    let mut known = BTreeSet::new();
    for dir in &args.dirs {
        // Its trials would count twice.
        if dir.canonicalize().is_ok_and(|path| !known.insert(path)) {
            errors.push(format!("{}: is given twice\n  name each folder once", dir.display()));
            continue;
        }
        match load_run_dir(dir) {
            Ok(folder) => folders.push((dir.as_path(), folder)),
            Err(error) => errors.push(error.to_string()),
        }
    }
    if !errors.is_empty() {
        return Err((Exit::Usage, errors.join("\n")));
    }
    label(&mut folders);
    let run = match folders.as_slice() {
        [(_, folder)] => folder.run.clone(),
        _ => None,
    };
    let mut trials: Vec<Trial> = folders.into_iter().flat_map(|(_, f)| f.trials).collect();
    for trial in &mut trials {
        judge_anew(trial);
    }
    let failed = |error: report::ReportError| (Exit::Files, error.to_string());
    let output = match (&args.output, args.dirs.as_slice()) {
        (Some(output), _) => Some(output),
        (None, [one]) => Some(one),
        (None, _) => None,
    };
    let Some(output) = output else {
        return report::markdown(&trials, run.as_ref()).map_err(failed);
    };
    report::write_all(output, &trials, run.as_ref()).map_err(failed)?;
    Ok(report::terminal(&trials))
}

/// Says so where a trial comes out otherwise than when it was recorded: by another build.
fn judge_anew(trial: &mut Trial) {
    let recorded: Vec<_> = trial.flows.iter().map(|flow| (flow.id.clone(), flow.fate)).collect();
    trial.judge_anew();
    let now = trial.flows.iter().map(|flow| (flow.id.clone(), flow.fate));
    if !now.eq(recorded) {
        let id = &trial.id;
        say::line(&format_args!("note: {id}: its flows' fates are judged otherwise than recorded"));
    }
}

/// Arms of one name in several folders are arms of their own: each gets its folder's name before
/// it, so that no table mixes what two runs have measured.
fn label(folders: &mut [(&Path, RunFolder)]) {
    let mut seen = BTreeSet::new();
    let mut shared = BTreeSet::new();
    for (_, folder) in folders.iter() {
        let arms: BTreeSet<_> = folder.trials.iter().map(|trial| trial.arm.clone()).collect();
        shared.extend(arms.iter().filter(|arm| seen.contains(*arm)).cloned());
        seen.extend(arms);
    }
    for (dir, folder) in folders {
        for trial in folder.trials.iter_mut().filter(|trial| shared.contains(&trial.arm)) {
            trial.arm = format!("{}/{}", dir.display(), trial.arm);
            trial.id = format!("{}/{}", dir.display(), trial.id);
        }
    }
}
