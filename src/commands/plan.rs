//! `drainwatch plan`

use std::process::ExitCode;

use crate::cli::PlanArgs;

/// Runs the command.
pub fn run(_args: &PlanArgs) -> ExitCode {
    todo!()
}
