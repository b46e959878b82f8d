//! `drainwatch check`

use super::{Exit, say};
use crate::cli::CheckArgs;
use crate::config::{self, Errors, FileKind, Matrix};
use crate::display::count;
use crate::display::json::{self, Event};

/// Runs the command: a line on stdout for each file that is right, all errors on stderr.
pub fn run(args: &CheckArgs) -> Exit {
    let mut right = String::new();
    let mut wrong: Option<Errors> = None;
    for file in &args.files {
        match config::load(file, &[], &[]) {
            Ok(matrix) => {
                tell(&matrix, &config::shown(file));
                right.push_str(&format!("ok  {}: {}\n", config::shown(file), summary(&matrix)));
            }
            Err(errors) => match &mut wrong {
                Some(all) => all.merge(errors),
                None => wrong = Some(errors),
            },
        }
    }
    let printed = if json::is_open() { Exit::Success } else { say::print(&right) };
    match wrong {
        Some(wrong) => say::errors(&wrong).min(printed),
        None => printed,
    }
}

/// What a program is told of a file that is right.
fn tell(matrix: &Matrix, file: &str) {
    let kind = match matrix.kind {
        FileKind::Scenario => "scenario",
        FileKind::Matrix => "matrix",
    };
    let trials = matrix.arms.iter().map(|arm| arm.config.repeats).sum();
    let (file, arms) = (file.to_owned(), matrix.arms.len());
    json::emit(&Event::FileChecked { file, kind, arms, trials });
}

/// `matrix of 5 arms, 25 trials`
fn summary(matrix: &Matrix) -> String {
    let trials: u32 = matrix.arms.iter().map(|arm| arm.config.repeats).sum();
    let trials = count(trials as usize, "trial");
    match matrix.kind {
        FileKind::Scenario => format!("scenario, {trials}"),
        FileKind::Matrix => format!("matrix of {}, {trials}", count(matrix.arms.len(), "arm")),
    }
}
