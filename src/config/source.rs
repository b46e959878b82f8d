//! A text that settings stand in, and places in it.
//!
//! Takes a file's path or a flag; gives its text and, for any span of it, what a person needs to
//! find it: line, column and the line itself with a caret. Knows no TOML.

use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use unicode_width::UnicodeWidthChar;

use super::errors::Problem;

/// Larger files are refused: they are no configuration, and each of their errors would be kept.
const MAX_BYTES: u64 = 64 * 1024;

/// Columns of a source line that a snippet shows at most.
const MAX_COLUMNS: usize = 100;

/// A file or a flag.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Source {
    /// Problems of a lower rank are told first.
    pub rank: usize,
    /// The file's path as the user would write it; `None` for a flag.
    pub path: Option<String>,
    /// What stands in it.
    pub text: String,
    line_starts: Vec<usize>,
}

impl Source {
    /// A file's text, read already.
    pub fn file(path: &Path, text: String, rank: usize) -> Arc<Self> {
        Self::new(Some(shown(path)), text, rank)
    }

    /// A flag as given: `--set repeats=1`. Flags come after all files.
    pub fn flag(text: String, index: usize) -> Arc<Self> {
        Self::new(None, text, usize::MAX / 2 + index)
    }

    fn new(path: Option<String>, text: String, rank: usize) -> Arc<Self> {
        let newlines = text.match_indices('\n').map(|(at, _)| at + 1);
        let line_starts = std::iter::once(0).chain(newlines).collect();
        Arc::new(Self { rank, path, text, line_starts })
    }

    /// Reads a file; a problem without a place, or at the first byte that is not UTF-8.
    pub fn read(path: &Path, rank: usize) -> Result<Arc<Self>, Problem> {
        let shown = shown(path);
        let failed = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::NotFound => Problem::new(format!("no such file: {shown}")),
            std::io::ErrorKind::IsADirectory => is_folder(path),
            _ => Problem::new(format!("cannot read {shown}: {error}")),
        };
        let metadata = std::fs::metadata(path).map_err(failed)?;
        if metadata.is_dir() {
            return Err(is_folder(path));
        }
        if !metadata.is_file() {
            return Err(Problem::new(format!("{shown} is not a regular file"))
                .help("a pipe or a device may never end: save the scenario or matrix in a file"));
        }
        let mut bytes = Vec::new();
        // What the kernel only shows as a file has no length, and to read it may block
        // (/proc/kmsg).
        if metadata.len() > 0 {
            File::open(path)
                .and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes))
                .map_err(failed)?;
        }
        if bytes.len() as u64 > MAX_BYTES {
            return Err(Problem::new(format!("{shown} is larger than 64 KiB"))
                .help("a scenario or matrix is a few lines"));
        }
        match String::from_utf8(bytes) {
            Ok(text) => Ok(Self::file(path, text, rank)),
            Err(error) => {
                let at = error.utf8_error().valid_up_to();
                let byte = error.as_bytes().get(at).copied().unwrap_or_default();
                // The lossy text agrees with the bytes up to the first bad one.
                let text = String::from_utf8_lossy(error.as_bytes()).into_owned();
                let bad = at..at + char::REPLACEMENT_CHARACTER.len_utf8();
                let source = Self::file(path, text, rank);
                Err(Problem::at(Place::new(&source, bad), format!("not UTF-8: byte 0x{byte:02x}"))
                    .help("TOML files are UTF-8: save this one so"))
            }
        }
    }

    /// The 0-based line that a byte stands in.
    fn line_of(&self, at: usize) -> usize {
        self.line_starts.partition_point(|start| *start <= at).saturating_sub(1)
    }

    /// A line's bytes, without its line break.
    fn line(&self, index: usize) -> Range<usize> {
        let start = self.line_starts.get(index).copied().unwrap_or_default();
        let end = self.line_starts.get(index + 1).copied().unwrap_or(self.text.len());
        let line = self.text.get(start..end).unwrap_or_default();
        start..start + line.trim_end_matches(['\n', '\r']).len()
    }
}

/// A text for people, on one line: nothing that moves a terminal's cursor.
pub fn shown_text(text: &str) -> String {
    text.chars()
        .map(|c| match cell(c).0 {
            // What has no cell of its own.
            text if !text.starts_with(c) => c.escape_unicode().to_string(),
            text => text,
        })
        .collect()
}

/// A path for people: nothing that moves a terminal's cursor, and no longer than is of use.
pub fn shown(path: &Path) -> String {
    const LONGEST: usize = 200;
    let text = shown_text(&path.display().to_string());
    // The end tells the files of one folder apart.
    match text.char_indices().rev().nth(LONGEST) {
        Some((at, _)) => format!("…{}", &text[text.ceil_char_boundary(at + 1)..]),
        None => text,
    }
}

fn is_folder(path: &Path) -> Problem {
    Problem::new(format!("{} is a folder", shown(path)))
        .help("name a scenario or matrix file (TOML)")
}

/// A span of a source; never outside it, never within a character.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub source: Arc<Source>,
    pub span: Range<usize>,
}

impl Place {
    pub fn new(source: &Arc<Source>, span: Range<usize>) -> Self {
        let text = &source.text;
        // What is missing at the end of a file is missing behind its last word, not on the empty
        // line after it.
        let start = text.floor_char_boundary(span.start.min(text.trim_end().len()));
        let end = text.floor_char_boundary(span.end.clamp(start, text.len()));
        Self { source: Arc::clone(source), span: start..end }
    }

    /// The source's beginning, for what is missing in it.
    pub fn start(source: &Arc<Source>) -> Self {
        Self::new(source, 0..0)
    }

    /// The line, from 1.
    pub fn line(&self) -> usize {
        self.source.line_of(self.span.start) + 1
    }

    /// The whole line that it stands in.
    pub fn line_text(&self) -> &str {
        let line = self.source.line(self.line() - 1);
        self.source.text.get(line).unwrap_or_default()
    }

    /// The whole bare word that it stands in.
    pub fn word(&self) -> Self {
        let line = self.source.line(self.line() - 1);
        let ends = |c: char| c.is_whitespace() || "=[]{},#\"'".contains(c);
        let text = &self.source.text;
        let start = self.span.start.clamp(line.start, line.end);
        // The last such character, and what comes after it.
        let before = text[line.start..start].char_indices().rev().find(|(_, c)| ends(*c));
        let before = before.map_or(line.start, |(at, c)| line.start + at + c.len_utf8());
        let after = text[start..line.end].find(ends).map_or(line.end, |at| start + at);
        Self { source: Arc::clone(&self.source), span: before..after }
    }

    /// Its own text.
    pub fn text(&self) -> &str {
        self.source.text.get(self.span.clone()).unwrap_or_default()
    }

    /// Line and column, from 1; the column counts characters.
    pub fn line_column(&self) -> (usize, usize) {
        let line = self.source.line_of(self.span.start);
        let start = self.source.line(line).start;
        let before = self.source.text.get(start..self.span.start).unwrap_or_default();
        // An editor does not show a byte order mark.
        let column = before.chars().filter(|c| *c != '\u{feff}').count();
        (line + 1, column + 1)
    }

    /// `scenarios/a.toml:3:1`, or the flag.
    pub fn location(&self) -> String {
        match &self.source.path {
            Some(path) => {
                let (line, column) = self.line_column();
                format!("{path}:{line}:{column}")
            }
            None => self.source.text.clone(),
        }
    }

    /// The location and the line with a caret under the span's part of it, as rustc shows them.
    pub fn snippet(&self) -> String {
        let index = self.source.line_of(self.span.start);
        let line = self.source.line(index);
        let (number, location) = match self.source.path {
            Some(_) => ((index + 1).to_string(), self.location()),
            None => (" ".into(), "the command line".into()),
        };
        let (shown, caret) = self.excerpt(line);
        let gutter = " ".repeat(number.len());
        let line = format!("{number} | {shown}");
        format!("{gutter}--> {location}\n{gutter} |\n{}\n{gutter} | {caret}", line.trim_end())
    }

    /// At most [`MAX_COLUMNS`] of a line, and the carets below.
    fn excerpt(&self, line: Range<usize>) -> (String, String) {
        // No more than what may be shown is looked at: a line can be the whole file.
        let text = &self.source.text;
        let reach = 4 * MAX_COLUMNS;
        let start = text.ceil_char_boundary(self.span.start.saturating_sub(reach));
        let start = start.max(line.start);
        let end = text.floor_char_boundary(self.span.start + reach).clamp(start, line.end);
        let cells: Vec<(usize, String, usize)> = text[start..end]
            .char_indices()
            .map(|(at, c)| {
                let (text, width) = cell(c);
                (start + at, text, width)
            })
            .collect();
        let first = cells.partition_point(|(at, ..)| *at < self.span.start);
        let mut from = first;
        let mut columns = 0;
        while from > 0 && columns + cells[from - 1].2 <= MAX_COLUMNS / 2 {
            from -= 1;
            columns += cells[from].2;
        }
        let total: usize = cells.iter().map(|cell| cell.2).sum();
        if total <= MAX_COLUMNS && start == line.start {
            from = 0;
        }
        let (mut shown, mut before, mut under, mut columns) = (String::new(), 0, 0, 0);
        if from > 0 || start > line.start {
            shown.push('…');
            before += 1;
        }
        for (at, text, width) in &cells[from..] {
            columns += width;
            if columns > MAX_COLUMNS {
                shown.push('…');
                break;
            }
            shown.push_str(text);
            if *at < self.span.start {
                before += width;
            } else if *at < self.span.end {
                under += width;
            }
        }
        let caret = format!("{}{}", " ".repeat(before), "^".repeat(under.max(1)));
        (shown, caret)
    }
}

/// How a character is shown, and in how many columns; nothing that moves a terminal's cursor.
fn cell(c: char) -> (String, usize) {
    match c {
        '\t' => ("    ".into(), 4),
        '\u{feff}' => (String::new(), 0),
        // Characters that reorder or hide text are for display what control characters are.
        '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
            (char::REPLACEMENT_CHARACTER.into(), 1)
        }
        c => match c.width() {
            Some(width) => (c.into(), width),
            None => (char::REPLACEMENT_CHARACTER.into(), 1),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(text: &str, span: Range<usize>) -> Place {
        Place::new(&Source::file(Path::new("a.toml"), text.into(), 0), span)
    }

    #[test]
    fn caret_stands_under_the_span_whatever_comes_before_it() {
        let text = "x = 1\r\n\té = \"日本\" # b\n";
        let at = text.find('#').unwrap();
        let place = place(text, at..at + 3);
        assert_eq!(place.location(), "a.toml:2:11");
        insta::assert_snapshot!(place.snippet(), @r#"
         --> a.toml:2:11
          |
        2 |     é = "日本" # b
          |                ^^^
        "#);
    }

    #[test]
    fn a_long_line_is_cut_on_both_sides() {
        let text = format!("{}!{}", "a".repeat(5_000), "b".repeat(5_000));
        let snippet = place(&text, 5_000..5_001).snippet();
        assert!(snippet.lines().all(|line| line.chars().count() < MAX_COLUMNS + 10));
        let lines: Vec<&str> = snippet.lines().collect();
        assert_eq!(
            lines[2].chars().position(|c| c == '!'),
            lines[3].chars().position(|c| c == '^')
        );
    }

    #[test]
    fn spans_outside_the_text_are_pulled_in() {
        assert_eq!(place("", 5..9).location(), "a.toml:1:1");
        assert_eq!(place("a = [\n\n", 7..7).location(), "a.toml:1:6");
        assert_eq!(place("é", 1..1).span, 0..0);
    }

    #[test]
    fn a_path_is_one_short_line() {
        assert_eq!(
            shown(Path::new("é/a\u{1b}[31m\n\u{202e}.toml")),
            "é/a\\u{1b}[31m\\u{a}\\u{202e}.toml"
        );
        let long = shown(Path::new(&("é".repeat(5_000) + "/a.toml")));
        assert!(long.starts_with('…') && long.ends_with("/a.toml") && long.chars().count() == 201);
    }

    #[test]
    fn escapes_do_not_reach_the_terminal() {
        assert!(!place("a = \"\u{1b}[31m\"", 0..1).snippet().contains('\u{1b}'));
    }
}
