//! `drainwatch setup`

use std::process::ExitCode;

use crate::cli::SetupArgs;

/// Runs the command.
pub fn run(_args: &SetupArgs) -> ExitCode {
    todo!()
}
