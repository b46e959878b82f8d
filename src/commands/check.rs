//! `drainwatch check`

use std::process::ExitCode;

use super::{Exit, say};
use crate::cli::CheckArgs;
use crate::config::{self, Errors, FileKind, Matrix};
use crate::display::count;

/// Runs the command: a line on stdout for each file that is right, all errors on stderr.
pub fn run(args: &CheckArgs) -> ExitCode {
    let mut right = String::new();
    let mut wrong: Option<Errors> = None;
    for file in &args.files {
        match config::load(file, &[], &[]) {
            Ok(matrix) => {
                right.push_str(&format!("ok  {}: {}\n", config::shown(file), summary(&matrix)));
            }
            Err(errors) => match &mut wrong {
                Some(all) => all.merge(errors),
                None => wrong = Some(errors),
            },
        }
    }
    let printed = say::print(&right);
    let Some(wrong) = wrong else { return printed.into() };
    say::line(&wrong);
    Exit::Usage.min(printed).into()
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
