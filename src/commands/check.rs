//! `drainwatch check`

use std::process::ExitCode;

use super::Exit;
use super::plan::{count, print};
use crate::cli::CheckArgs;
use crate::config::{self, FileKind, Matrix};

/// Runs the command: a line on stdout for each file that is right, all errors on stderr.
pub fn run(args: &CheckArgs) -> ExitCode {
    let mut right = String::new();
    let mut wrong = Vec::new();
    for file in &args.files {
        match config::load(file, &[], &[]) {
            Ok(matrix) => {
                right.push_str(&format!("ok  {}: {}\n", file.display(), summary(&matrix)));
            }
            Err(errors) => wrong.push(errors.to_string()),
        }
    }
    let printed = print(&right);
    if wrong.is_empty() {
        return printed.into();
    }
    eprintln!("{}", wrong.join("\n\n"));
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
