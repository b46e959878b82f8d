//! `drainwatch check`

use std::process::ExitCode;

use crate::cli::CheckArgs;

/// Runs the command.
pub fn run(_args: &CheckArgs) -> ExitCode {
    todo!()
}
