//! What commands write themselves: results on standard output, lines on standard error; or, where
//! a program was promised events, those and nothing else.

use std::fmt::Display;
use std::io::{ErrorKind, Write};
use std::path::Path;

use super::Exit;
use crate::config::{self, Errors};
use crate::display::json::{self, Event};
use crate::record::disagreements;
use crate::report::{self, Part};

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

/// Tells what a reader would want to know next: a line, and to programs a note.
pub fn tell(text: &dyn Display) {
    if json::is_open() {
        json::emit(&Event::Note { message: text.to_string() });
    } else {
        line(text);
    }
}

/// Tells a fact by the way.
pub fn note(text: &dyn Display) {
    if json::is_open() {
        json::emit(&Event::Note { message: text.to_string() });
    } else {
        line(&format_args!("note: {text}"));
    }
}

/// Tells an error, and gives the exit code that it leads to.
pub fn error(exit: Exit, error: &dyn Display) -> Exit {
    if json::is_open() {
        json::emit(&Event::Error(json::Error::of_text(&error.to_string())));
    } else {
        line(&format_args!("error: {error}"));
    }
    exit
}

/// Tells all that is wrong in files and flags, and gives the exit code of that.
pub fn errors(errors: &Errors) -> Exit {
    if !json::is_open() {
        line(errors);
        return Exit::Usage;
    }
    let (parts, untold) = errors.parts();
    for part in parts {
        json::emit(&Event::Error(json::Error {
            message: part.message,
            file: part.file,
            line: part.line_column.map(|(line, _)| line),
            column: part.line_column.map(|(_, column)| column),
            argument: part.argument,
            notes: part.notes,
            arms: part.arms,
        }));
    }
    if untold > 0 {
        error(Exit::Usage, &format_args!("{untold} more errors are left out"));
    }
    Exit::Usage
}

/// Tells what trials came to: `text` to people, each arm's summary to programs. `tables` is the
/// folder that the tables were written to.
pub fn results(parts: &[Part], tables: Option<&Path>, text: &str) -> Exit {
    if !json::is_open() {
        // What another tool's report says is shown as it is, not obeyed.
        let lines: Vec<String> = text.split('\n').map(config::shown_text).collect();
        return print(&lines.join("\n"));
    }
    for part in parts {
        for message in disagreements(part.trials) {
            json::emit(&Event::Disagreement { run: part.name, message });
        }
    }
    for summary in report::summaries(parts) {
        json::emit(&Event::ArmSummary(summary));
    }
    if let Some(folder) = tables {
        let folder = folder.display().to_string();
        json::emit(&Event::TablesWritten { folder, files: &report::FILES });
    }
    Exit::Success
}

/// Tells programs how the command ended; gives its exit code.
pub fn end(exit: Exit) -> Exit {
    match json::close(exit.outcome(), exit.code()) {
        Ok(()) => exit,
        Err(cause) => {
            exit.min(error(Exit::Files, &format_args!("cannot write to standard output: {cause}")))
        }
    }
}

/// A path as a shell takes it.
pub fn quoted(path: &Path) -> String {
    let word = path.display().to_string();
    let plain = |c: char| c.is_alphanumeric() || "/._-+=@:,~%".contains(c);
    if !word.is_empty() && word.chars().all(plain) && !word.starts_with('~') {
        word
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_a_shell_would_take_apart_is_quoted() {
        assert_eq!(quoted(Path::new("/run/dw-1/kubeconfig")), "/run/dw-1/kubeconfig");
        assert_eq!(quoted(Path::new("/a b/it's $HOME")), r"'/a b/it'\''s $HOME'");
    }
}
