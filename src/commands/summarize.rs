//! `drainwatch summarize`

use std::process::ExitCode;

use crate::cli::SummarizeArgs;

/// Runs the command.
pub fn run(_args: &SummarizeArgs) -> ExitCode {
    todo!()
}
