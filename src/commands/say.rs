//! What commands write themselves: results on standard output, lines on standard error.

use std::fmt::Display;
use std::io::{ErrorKind, Write};

use super::Exit;
use crate::config;

/// Writes to standard output; a reader that has seen enough (`| head`) is no failure.
pub fn print(text: &str) -> Exit {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(cause) if cause.kind() != ErrorKind::BrokenPipe => {
            error(Exit::Files, &format_args!("cannot write to standard output: {cause}"))
        }
        _ => Exit::Success,
    }
}

/// Writes a line to standard error. A reader that has gone away changes nothing. Whatever the text
/// names (a path may hold any byte), nothing in it moves a terminal's cursor but its line breaks.
pub fn line(text: &dyn Display) {
    let text = text.to_string().replace('\t', "    ");
    let lines: Vec<String> = text.split('\n').map(config::shown_text).collect();
    let _ = writeln!(std::io::stderr(), "{}", lines.join("\n"));
}

/// Tells an error, and gives the exit code that it leads to.
pub fn error(exit: Exit, error: &dyn Display) -> Exit {
    line(&format_args!("error: {error}"));
    exit
}
