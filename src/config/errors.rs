//! What is wrong in the user's files and flags.
//!
//! Takes problems in any order, from whichever part found them; gives them each once, in the
//! files' order, as text with places. Knows no keys and no rules.

use std::collections::HashSet;
use std::fmt;

use super::source::Place;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Problem {
    pub place: Option<Place>,
    pub message: String,
    /// `help: …` and `note: …`, in order.
    pub notes: Vec<String>,
    /// The arms in which it shows, where that is not plain from its place.
    pub arms: Vec<String>,
}

impl Problem {
    /// Without a place: a file that cannot be read.
    pub fn new(message: impl Into<String>) -> Self {
        Self { place: None, message: message.into(), notes: Vec::new(), arms: Vec::new() }
    }

    pub fn at(place: Place, message: impl Into<String>) -> Self {
        Self { place: Some(place), ..Self::new(message) }
    }

    /// Adds a remedy.
    pub fn help(mut self, text: impl fmt::Display) -> Self {
        self.notes.push(format!("help: {text}"));
        self
    }

    /// Adds a remedy, if there is one.
    pub fn maybe_help(self, text: Option<impl fmt::Display>) -> Self {
        match text {
            Some(text) => self.help(text),
            None => self,
        }
    }

    /// Adds another fact.
    pub fn note(mut self, text: impl fmt::Display) -> Self {
        self.notes.push(format!("note: {text}"));
        self
    }

    fn order(&self) -> (usize, usize) {
        self.place.as_ref().map_or((0, 0), |place| (place.source.rank, place.span.start))
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", self.message)?;
        let mut indent = "  ".to_string();
        if let Some(place) = &self.place {
            write!(f, "\n{}", place.snippet())?;
            if place.source.path.is_some() {
                indent = " ".repeat(place.line_column().0.to_string().len() + 1);
            }
        }
        for note in &self.notes {
            write!(f, "\n{indent}= {note}")?;
        }
        match self.arms.as_slice() {
            [] => Ok(()),
            [arm] => write!(f, "\n{indent}= note: in the arm `{arm}`"),
            [arm, others @ ..] => {
                write!(f, "\n{indent}= note: in the arm `{arm}` and {} more", others.len())
            }
        }
    }
}

/// One thing that is wrong, in parts, for programs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// What is wrong.
    pub message: String,
    /// The file, where it is in one.
    pub file: Option<String>,
    /// Line and column in it, from 1; the column counts characters.
    pub line_column: Option<(usize, usize)>,
    /// The argument, where it is in one: `--set repeats=0`.
    pub argument: Option<String>,
    /// `help: …` and `note: …`.
    pub notes: Vec<String>,
    /// The arms in which it shows, where that is not plain from its place.
    pub arms: Vec<String>,
}

/// All that is wrong in the files and flags of one command, ready to be printed: each with its
/// place, the line it stands in and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Errors {
    problems: Vec<Problem>,
    /// How many more there were than anybody would read.
    untold: usize,
}

/// More problems than this in one go are no slips but another kind of file.
const MOST: usize = 200;

impl Errors {
    /// How many there are; at least 1.
    #[allow(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.problems.len() + self.untold
    }

    /// Each in parts, and how many more there were than anybody would read.
    pub fn parts(&self) -> (impl Iterator<Item = Part>, usize) {
        let part = |problem: &Problem| {
            let place = problem.place.as_ref();
            let file = place.and_then(|place| place.source.path.as_ref());
            let argument = place.filter(|_| file.is_none());
            Part {
                message: problem.message.clone(),
                file: file.map(ToString::to_string),
                line_column: place.filter(|_| file.is_some()).map(Place::line_column),
                argument: argument.map(Place::location),
                notes: problem.notes.clone(),
                arms: problem.arms.clone(),
            }
        };
        (self.problems.iter().map(part), self.untold)
    }

    /// Adds those of another file; what both came upon, in a scenario that both name, is told once.
    pub fn merge(&mut self, other: Self) {
        let told: HashSet<String> = self.problems.iter().map(ToString::to_string).collect();
        let new = other.problems.into_iter().filter(|problem| !told.contains(&problem.to_string()));
        self.problems.extend(new);
        self.untold += other.untold;
    }

    #[cfg(test)]
    pub(super) fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            let gap = if index == 0 { "" } else { "\n\n" };
            write!(f, "{gap}{problem}")?;
        }
        match (self.len(), self.untold) {
            (1, _) => Ok(()),
            (n, 0) => write!(f, "\n\n{n} errors"),
            (n, untold) => write!(f, "\n\n{n} errors, of which the last {untold} are left out"),
        }
    }
}

impl std::error::Error for Errors {}

/// Collects problems.
#[derive(Debug, Default)]
pub(super) struct Problems(Vec<Problem>);

impl Problems {
    pub fn push(&mut self, problem: Problem) {
        self.0.push(problem);
    }

    /// Adds it, if there is one.
    pub fn maybe(&mut self, problem: Option<Problem>) {
        self.0.extend(problem);
    }

    pub fn extend(&mut self, other: Problems) {
        self.0.extend(other.0);
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The problems from this index on.
    pub fn since(&mut self, index: usize) -> &mut [Problem] {
        self.0.get_mut(index..).unwrap_or_default()
    }

    pub fn retain(&mut self, keep: impl FnMut(&Problem) -> bool) {
        self.0.retain(keep);
    }

    /// The errors, in order and each once, or the value if there are none.
    pub fn finish<T>(mut self, value: Option<T>) -> Result<T, Errors> {
        self.0.sort_by_key(Problem::order);
        let mut once: Vec<Problem> = Vec::with_capacity(self.0.len());
        for problem in self.0 {
            // Arms meet the same contradiction in the same place; told once, with all their names.
            let start = problem.order();
            let same = once
                .iter_mut()
                .rev()
                .take_while(|earlier| earlier.order() == start)
                .find(|p| p.place == problem.place && p.message == problem.message);
            match same {
                Some(earlier) => earlier.arms.extend(problem.arms),
                None => once.push(problem),
            }
        }
        match value {
            Some(value) if once.is_empty() => Ok(value),
            _ => {
                let untold = once.len().saturating_sub(MOST);
                once.truncate(MOST);
                Err(Errors { problems: once, untold })
            }
        }
    }
}

/// The candidate that a misspelt word most likely stands for.
pub(crate) fn likely<'a>(
    word: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    const LONGEST: usize = 64;
    if word.is_empty() || word.len() > LONGEST {
        return None;
    }
    let plain = |text: &str| text.to_lowercase().replace(['-', ' '], "_");
    let word = plain(word);
    // Of two letters, one wrong leaves nothing to go by.
    let allowed = match word.chars().count() {
        0..=2 => 0,
        length => (length / 3).min(3),
    };
    let distance = |candidate: &str| {
        let candidate = plain(candidate);
        let shorter = word.len().min(candidate.len());
        // `grace` for `grace_period`, `failed` for `fail`.
        let prefix = shorter >= 3 && (candidate.starts_with(&word) || word.starts_with(&candidate));
        let distance = match word.len().abs_diff(candidate.len()) {
            // The distance is at least this, so there is no need to count (bytes are letters here).
            least if least > allowed && word.is_ascii() && candidate.is_ascii() => least,
            _ => strsim::osa_distance(&word, &candidate),
        };
        if distance <= allowed { Some(distance) } else { prefix.then_some(allowed + 1) }
    };
    candidates
        .into_iter()
        .filter_map(|candidate| distance(candidate).map(|d| (d, candidate)))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// A word of the user's for a message: in backticks, on one line, not too long.
pub(super) fn quote(text: &str) -> String {
    const LONGEST: usize = 60;
    let mut shown: String = text.chars().take(LONGEST).flat_map(char::escape_debug).collect();
    // escape_debug is for Rust's quotes; between backticks these read better plain.
    shown = shown.replace("\\\"", "\"").replace("\\'", "'");
    if text.chars().count() > LONGEST {
        shown.push('…');
    }
    format!("`{shown}`")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("drian", Some("drain"))]
    #[case("Drain", Some("drain"))]
    #[case("ingore", Some("ignore"))]
    #[case("exits", Some("exit"))]
    #[case("banana", None)]
    #[case("xx", None)]
    #[case("", None)]
    fn suggests_the_likely_word(#[case] word: &str, #[case] expected: Option<&str>) {
        assert_eq!(likely(word, ["exit", "drain", "ignore"]), expected);
    }

    #[test]
    fn a_quoted_word_stays_on_one_line() {
        assert_eq!(quote("a\nb\u{1b}"), "`a\\nb\\u{1b}`");
        assert!(quote(&"x".repeat(10_000)).chars().count() < 70);
    }
}
