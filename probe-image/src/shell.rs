//! A parent that does not pass signals on, as a shell that runs its command without `exec`.
//!
//! As a container's first process it is not ended by SIGTERM either: the kernel spares one that has no
//! handler for it.

use std::io;
use std::process::{Command, ExitCode};

/// Runs this program with these arguments as a child, and gives its exit code; 1 where a signal ended
/// it.
///
/// # Errors
/// It can't be started or waited for.
pub fn run(arguments: &[String]) -> io::Result<ExitCode> {
    let status = Command::new(std::env::current_exe()?).args(arguments).status()?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}
