//! What commands write themselves: lines on standard error.

use std::fmt::Display;
use std::io::Write;

use super::Exit;

/// Writes a line to standard error. A reader that has gone away changes nothing.
pub fn line(text: &dyn Display) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Tells an error, and gives the exit code that it leads to.
pub fn error(exit: Exit, error: &dyn Display) -> Exit {
    line(&format_args!("error: {error}"));
    exit
}
