//! `drainwatch summarize`: judges recorded trials anew and writes their tables.
//!
//! Reads run folders and folders of the Go tool's reports, never a cluster; rewrites no record. Of
//! one run the tables go into its folder, of several to `--output` or, as Markdown, to standard
//! output.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::{Exit, say};
use crate::cli::SummarizeArgs;
use crate::display::json;
use crate::record::{RUN_FILE, RunFolder, Trial, folder_name, load_run_dir};
use crate::report::{self, Part};

/// Runs the command.
pub fn run(args: &SummarizeArgs) -> Exit {
    summarize(args).unwrap_or_else(|(exit, message)| say::error(exit, &message))
}

fn summarize(args: &SummarizeArgs) -> Result<Exit, (Exit, String)> {
    let mut folders = load(&args.dirs)?;
    for folder in &mut folders {
        folder.trials.iter_mut().for_each(judge_anew);
    }
    let names = names(&args.dirs);
    let parts: Vec<Part> = folders
        .iter()
        .zip(&names)
        .map(|(folder, name)| Part { name, trials: &folder.trials, run: folder.run.as_ref() })
        .collect();
    let failed = |error: report::ReportError| (Exit::Files, error.to_string());
    let output = match (&args.output, args.dirs.as_slice()) {
        (Some(output), _) => Some(output),
        // Nothing is written into what another tool has measured.
        (None, [one]) if parts.iter().all(|part| part.imported_from().is_none()) => Some(one),
        (None, _) => None,
    };
    if let Some(output) = &args.output
        && let Some(other) = another_run(output, &args.dirs)
    {
        return Err((Exit::Usage, other));
    }
    let text = match output {
        Some(output) => {
            report::write_all(output, &parts).map_err(failed)?;
            report::terminal(&parts) + &format!("{}\n", output.display())
        }
        None if json::is_open() => String::new(),
        None => report::markdown(&parts).map_err(failed)?,
    };
    Ok(say::results(&parts, output.map(|output| output.as_path()), &text))
}

/// Why tables can't go there: they would replace those of a run that they are not about.
fn another_run(output: &Path, dirs: &[PathBuf]) -> Option<String> {
    let whole = |path: &Path| path.canonicalize().ok();
    let is_one_of_them = dirs.len() == 1 && whole(output) == whole(&dirs[0]);
    (output.join(RUN_FILE).exists() && !is_one_of_them).then(|| {
        format!("{}: holds another run\n  choose another folder with --output", output.display())
    })
}

/// Each folder's trials, or all that is wrong with any of them.
fn load(dirs: &[PathBuf]) -> Result<Vec<RunFolder>, (Exit, String)> {
    let mut folders = Vec::new();
    let mut errors = Vec::new();
    let mut known = BTreeSet::new();
    for dir in dirs {
        // Its trials would count twice.
        if dir.canonicalize().is_ok_and(|path| !known.insert(path)) {
            errors.push(format!("{}: is given twice\n  name each folder once", dir.display()));
            continue;
        }
        match load_run_dir(dir) {
            Ok(folder) => folders.push(folder),
            Err(error) => errors.push(error.to_string()),
        }
    }
    if errors.is_empty() { Ok(folders) } else { Err((Exit::Usage, errors.join("\n"))) }
}

/// Says so where a trial comes out otherwise than when it was recorded: by another build.
fn judge_anew(trial: &mut Trial) {
    let recorded: Vec<_> = trial.flows.iter().map(|flow| (flow.id.clone(), flow.fate)).collect();
    trial.judge_anew();
    let now = trial.flows.iter().map(|flow| (flow.id.clone(), flow.fate));
    if !now.eq(recorded) {
        let id = &trial.id;
        say::note(&format_args!("{id}: its flows' fates are judged otherwise than recorded"));
    }
}

/// What tells the folders apart: their own names, or the whole path where two share one.
fn names(dirs: &[PathBuf]) -> Vec<String> {
    let names: Vec<String> = dirs.iter().map(|dir| folder_name(dir)).collect();
    let shared = |name: &String| names.iter().filter(|other| *other == name).count() > 1;
    let told = |(dir, name): (&PathBuf, &String)| {
        if shared(name) { dir.display().to_string() } else { name.clone() }
    };
    dirs.iter().zip(&names).map(told).collect()
}
