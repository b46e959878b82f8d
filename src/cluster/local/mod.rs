//! The local provider: each node a tree of processes in namespaces of its own.

pub mod components;

use std::process::ExitCode;

/// Entry of the processes that this provider starts of the same binary.
pub fn internal(_args: &[String]) -> ExitCode {
    todo!()
}
