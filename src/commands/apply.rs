//! `drainwatch apply`

use std::process::ExitCode;

use crate::cli::ApplyArgs;

/// Runs the command.
pub fn run(_args: &ApplyArgs) -> ExitCode {
    todo!()
}
