//! A TOML document, walked whole.
//!
//! Takes a source; gives its settings, flat, each with its type checked and its place kept, and
//! everything that is wrong with them one by one. (serde would stop at the first error.) Knows
//! neither defaults nor what contradicts what.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use serde_spanned::Spanned;
use toml::de::{DeTable, DeValue};

use super::errors::{Problem, Problems, likely, quote};
use super::schema;
use super::source::{Place, Source};
use super::value::{self, Value, a_type};

/// Who set something; of several the last counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Layer {
    /// The scenario's file.
    Scenario,
    /// The matrix's `[cluster]`.
    Matrix,
    /// A value of an axis.
    Axis,
    /// `--set`.
    Flag,
}

/// Where values are read from.
#[derive(Clone, Debug)]
pub(super) struct Origin {
    pub source: Arc<Source>,
    /// Where in the source the parsed text begins: a flag's value is only a part of it.
    pub offset: usize,
    pub layer: Layer,
}

impl Origin {
    /// A whole file.
    pub fn file(source: &Arc<Source>, layer: Layer) -> Self {
        Self { source: Arc::clone(source), offset: 0, layer }
    }

    pub fn place(&self, span: Range<usize>) -> Place {
        Place::new(&self.source, self.offset + span.start..self.offset + span.end)
    }

    /// The source's own spelling.
    pub fn text(&self, span: &Range<usize>) -> &str {
        let span = self.offset + span.start..self.offset + span.end;
        self.source.text.get(span).unwrap_or_default()
    }
}

/// A key that was set.
#[derive(Clone, Debug)]
pub(super) struct Setting {
    /// `None` where the value is wrong, which was told when it was read.
    pub value: Option<Value>,
    /// As text, for an arm's name.
    pub text: String,
    pub key_place: Place,
    pub value_place: Place,
    pub layer: Layer,
}

/// Full names of keys and what they were set to.
pub(super) type Settings = BTreeMap<String, Setting>;

/// A parsed file.
pub(super) struct Document<'a> {
    pub table: DeTable<'a>,
    /// Errors of syntax, of which the rest of the file was read around.
    pub syntax: Problems,
    broken_lines: BTreeSet<usize>,
}

impl<'a> Document<'a> {
    pub fn parse(source: &'a Arc<Source>) -> Self {
        let (table, errors) = DeTable::parse_recoverable(&source.text);
        let mut syntax = Problems::default();
        let mut broken_lines = BTreeSet::new();
        for error in errors {
            let place = Place::new(source, error.span().unwrap_or_default());
            // One slip makes the parser stumble several times in its line; its first word counts.
            if broken_lines.insert(place.line()) {
                syntax.push(syntax_problem(place, error.message()));
            }
        }
        Self { table: table.into_inner(), syntax, broken_lines }
    }

    /// Whether what the parser made of the file may lack something.
    pub fn is_whole(&self) -> bool {
        self.syntax.is_empty()
    }

    /// Leaves out what only follows from an error of syntax, and adds those errors themselves.
    pub fn reported(self, mut problems: Problems) -> Problems {
        let broken = |problem: &Problem| {
            let line = problem.place.as_ref().map(Place::line);
            line.is_some_and(|line| self.broken_lines.contains(&line))
        };
        problems.retain(|problem| !broken(problem));
        problems.extend(self.syntax);
        problems
    }
}

/// Whether the parser has put this in the place of a value that it could not read, of which the
/// error of syntax says enough. (An empty string is a flag's.)
pub(super) fn is_lost(value: &Spanned<DeValue<'_>>) -> bool {
    value.span().is_empty() && !value.get_ref().is_str()
}

/// The parser's words, or plainer ones for the commonest slips.
fn syntax_problem(place: Place, message: &str) -> Problem {
    if message == "duplicate key" {
        let message = format!("duplicate key {}", quote(place.text()));
        return Problem::at(place, message).help("it is set above already: keep one of the two");
    }
    if message.starts_with("extra `=`") {
        return Problem::at(place, "a second `=`").help("one is enough");
    }
    if let Some(problem) = without_quotes(&place, message) {
        return problem;
    }
    let message = match message {
        m if m.contains("recurs") => "tables or arrays are nested too deeply",
        other => other,
    };
    Problem::at(place, message)
}

/// A word or a time that stands without quotes. The parser guesses from its first letter what it
/// was to be: to it `fail` is a misspelt `false`, `nobody` a number (`nan`), `30-s` a date.
fn without_quotes(place: &Place, message: &str) -> Option<Problem> {
    const GUESSES: [&str; 5] = ["boolean", "float", "fraction", "date", "time"];
    let certain = message.starts_with("string values must be quoted");
    let guess = message.strip_prefix("invalid ");
    if !certain && !guess.is_some_and(|what| GUESSES.iter().any(|g| what.starts_with(g))) {
        return None;
    }
    let line = place.line_text();
    let (key, value) = line.split_once('=').map_or(("", line), |(key, value)| {
        (key.trim(), value.split('#').next().unwrap_or_default().trim())
    });
    if value.is_empty() {
        let problem = Problem::at(place.clone(), "a key without a value");
        return Some(problem.help("write one, or take the key out"));
    }
    let whole = place.word();
    let word = whole.text();
    let is_word = word.chars().any(|c| c.is_alphabetic() && !"TZtz".contains(c))
        || word.matches('.').count() > 1;
    if !certain && !is_word {
        return None;
    }
    const LONGEST: usize = 60;
    let plain = |text: &str| {
        text.chars().count() <= LONGEST && !text.contains(|c: char| "[]{}\"'\\,".contains(c))
    };
    let problem =
        Problem::at(if certain { place.clone() } else { whole.clone() }, "a string without quotes");
    Some(if plain(value) && plain(key) && !key.is_empty() {
        problem.help(format!("words and times stand in quotes: {key} = \"{value}\""))
    } else if plain(word) {
        problem.help(format!("words and times stand in quotes: \"{word}\""))
    } else {
        problem.help("words and times stand in quotes: sigterm = \"drain\", grace_period = \"30s\"")
    })
}

type Entry<'t, 'i> = (&'t Spanned<std::borrow::Cow<'i, str>>, &'t Spanned<DeValue<'i>>);

/// A table's entries as they stand in the file (the parser sorts them by name).
pub(super) fn in_order<'t, 'i>(table: &'t DeTable<'i>) -> impl Iterator<Item = Entry<'t, 'i>> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    entries.into_iter()
}

/// Walks a table whose keys are settings. `prefix` is the table's full name, `""` for the top.
pub(super) fn walk(
    table: &DeTable<'_>,
    prefix: &str,
    origin: &Origin,
    settings: &mut Settings,
    problems: &mut Problems,
) {
    for (key, value) in table.iter() {
        let name = join(prefix, key.get_ref());
        if schema::is_table(&name) && !key.get_ref().contains('.') {
            match value.get_ref() {
                _ if is_lost(value) => {}
                DeValue::Table(table) => walk(table, &name, origin, settings, problems),
                other => problems.push(not_a_table(&name, other, origin.place(value.span()))),
            }
        } else if schema::is_of_sysctls(prefix) && value.get_ref().is_table() {
            // `net.ipv4.tcp_retries2 = 5` without quotes is a table in a table to TOML.
            if let DeValue::Table(table) = value.get_ref() {
                let key_place = origin.place(key.span());
                problems.maybe(empty_sysctl(&name, table, &key_place));
                walk(table, &name, origin, settings, problems);
            }
        } else {
            let key_place = origin.place(key.span());
            let known = schema::find(&name).is_some() || schema::is_table(&name);
            if key.get_ref().contains('.') && !schema::is_of_sysctls(prefix) && known {
                let problem =
                    Problem::at(key_place, format!("unknown key {}", quote(key.get_ref())));
                problems.push(problem.help("without the quotes it is a key in a table"));
                continue;
            }
            set(&name, key_place, value, origin, settings, problems);
        }
    }
}

/// Reads the value of one key by its full name. A wrong value is a problem, and still a setting
/// (without a value), so that nothing is concluded from its absence.
pub(super) fn set(
    name: &str,
    key_place: Place,
    value: &Spanned<DeValue<'_>>,
    origin: &Origin,
    settings: &mut Settings,
    problems: &mut Problems,
) {
    let Some(key) = schema::find(name) else {
        problems.push(unknown_key(name, key_place, origin.layer));
        return;
    };
    if settings.contains_key(name) {
        let problem = Problem::at(key_place, format!("{} is set twice", quote(name)));
        problems.push(problem.help("keep one of the two"));
        return;
    }
    if let Some(problem) = schema::sysctl_name(name).and_then(|n| wrong_sysctl(n, &key_place)) {
        problems.push(problem);
        return;
    }
    let layer = origin.layer;
    if is_lost(value) {
        let (text, value_place) = (String::new(), key_place.clone());
        let setting = Setting { value: None, text, key_place, value_place, layer };
        settings.insert(name.to_string(), setting);
        return;
    }
    let typed =
        value::read(key, name, value, origin, &key_place).map_err(|problem| problems.push(problem));
    let text = match (&typed, value.get_ref()) {
        (_, DeValue::String(text)) => text.to_string(),
        (Ok(Value::Count(number)), _) => number.to_string(),
        _ => origin.text(&value.span()).to_string(),
    };
    let value_place = origin.place(value.span());
    let setting = Setting { value: typed.ok(), text, key_place, value_place, layer };
    settings.insert(name.to_string(), setting);
}

/// A key that nothing is known of; the help says which was likely meant, or where it belongs.
pub(super) fn unknown_key(name: &str, place: Place, layer: Layer) -> Problem {
    if name == "axes" && layer == Layer::Scenario {
        return Problem::at(place, "`axes` in a scenario")
            .help("axes stand in a matrix, a file with scenarios = [\"…\"] and [axes]");
    }
    let (table, key) = name.rsplit_once('.').unwrap_or(("", name));
    let kubernetes = schema::KUBERNETES.iter().find(|(word, _)| word.eq_ignore_ascii_case(key));
    if let Some((_, help)) = kubernetes {
        return Problem::at(place, format!("unknown key {}", quote(name))).help(help);
    }
    let known = schema::KEYS.iter().find(|known| known.short() == key);
    let help = match (likely(key, schema::names_in(table)), known) {
        (Some(word), _) => format!("did you mean `{}`?", join(table, word)),
        (None, Some(known)) if layer >= Layer::Axis => format!("its full name is `{}`", known.name),
        (None, Some(known)) => match known.name.rsplit_once('.') {
            Some((table, _)) => format!("`{key}` belongs below a line [{table}]"),
            // TOML's classic: a line below a [table] belongs to it.
            None => {
                format!("`{key}` stands at the file's top, above the first [table]")
            }
        },
        (None, None) => known_keys(table),
    };
    Problem::at(place, format!("unknown key {}", quote(name))).help(help)
}

/// `known here: …`, for help.
fn known_keys(table: &str) -> String {
    let names: Vec<_> = schema::names_in(table).collect();
    match (names.as_slice(), table) {
        ([], _) => known_keys(""),
        (names, "") => format!("a scenario's keys are {}", names.join(", ")),
        (names, table) => format!("the keys of [{table}] are {}", names.join(", ")),
    }
}

/// Why this is no sysctl that a node's net namespace has of its own.
pub(super) fn wrong_sysctl(name: &str, place: &Place) -> Option<Problem> {
    let part = |part: &str| {
        !part.is_empty()
            && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
    };
    let known = name.starts_with("net.")
        && name.len() <= schema::LONGEST_SYSCTL
        && name.split('.').all(part);
    (!known).then(|| {
        Problem::at(place.clone(), format!("{} is no sysctl of a net namespace", quote(name)))
            .help("only names like net.ipv4.tcp_retries2 can be set: nodes share all others")
    })
}

/// The same of a table in which no sysctl stands that could tell it.
pub(super) fn empty_sysctl(name: &str, table: &DeTable<'_>, place: &Place) -> Option<Problem> {
    let name = schema::sysctl_name(name).filter(|name| *name != "net" && table.is_empty())?;
    wrong_sysctl(name, place)
}

/// Takes the sysctls out again if there are more of them than make sense, and says so.
pub(super) fn limit_sysctls(settings: &mut Settings, problems: &mut Problems) {
    let sysctls = settings.iter().filter(|(name, _)| schema::sysctl_name(name).is_some());
    let mut places: Vec<&Place> = sysctls.map(|(_, setting)| &setting.key_place).collect();
    let count = places.len();
    if count <= schema::MAX_SYSCTLS {
        return;
    }
    places.sort_by_key(|place| place.span.start);
    let message = format!("{count} sysctls: {} are the most", schema::MAX_SYSCTLS);
    problems
        .push(Problem::at(places[schema::MAX_SYSCTLS].clone(), message).help(
            "each arm keeps all of them in its records: leave out those that change nothing",
        ));
    settings.retain(|name, _| schema::sysctl_name(name).is_none());
}

pub(super) fn join(prefix: &str, key: &str) -> String {
    if prefix.is_empty() { key.to_string() } else { format!("{prefix}.{key}") }
}

pub(super) fn not_a_table(name: &str, value: &DeValue<'_>, place: Place) -> Problem {
    Problem::at(place, format!("`{name}` must be a table, not {}", a_type(value)))
        .help(format!("its keys stand below a line [{name}]"))
}
