//! `drainwatch completions`: a shell's completion script, on standard output.

use super::{Exit, say};
use crate::cli::{self, CompletionsArgs};

/// Runs the command.
pub fn run(args: &CompletionsArgs) -> Exit {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut cli::shown(), cli::NAME, &mut script);
    say::print(&String::from_utf8_lossy(&script))
}
