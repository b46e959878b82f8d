//! One TOML value against what its key takes.
//!
//! Gives the value in its type, or what is wrong with it and how to write it. Knows one value at a
//! time: what contradicts another is for [`super::resolve`].

use std::time::Duration;

use serde_spanned::Spanned;
use toml::de::{DeInteger, DeValue};

use super::errors::{Problem, likely, quote};
use super::schema::{self, Key, Kind};
use super::settings::{Layer, Origin};
use super::source::Place;
use super::trigger::Share;

/// A value of the type that its key asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Text(String),
    Word(&'static str),
    Count(u32),
    Time(Duration),
    Truth(bool),
    Share(Share),
    Words(Vec<String>),
}

/// Reads a value for a key; `name` is the key's full name (a sysctl's is not the key's own).
pub(super) fn read(
    key: &Key,
    name: &str,
    value: &Spanned<DeValue<'_>>,
    origin: &Origin,
    key_place: &Place,
) -> Result<Value, Problem> {
    let reader = Reader { key, name, value, origin, key_place };
    match key.kind {
        Kind::Text => reader.string().map(|text| Value::Text(text.into())),
        Kind::Word(words) => reader.word(words),
        Kind::Count { min, max } => reader.count(min, max),
        Kind::Time { min, most, whole_seconds } => reader.time(min, most, whole_seconds),
        Kind::EnterBy => reader.enter_by(),
        Kind::Version => reader.version(),
        Kind::Sysctl => reader.sysctl(),
        Kind::Truth => reader.truth(),
        Kind::Share => reader.share(),
        Kind::Command => reader.command(),
    }
}

struct Reader<'a> {
    key: &'a Key,
    name: &'a str,
    value: &'a Spanned<DeValue<'a>>,
    origin: &'a Origin,
    key_place: &'a Place,
}

impl<'a> Reader<'a> {
    /// `` `repeats` must be … ``, at the value.
    fn wrong(&self, what: impl std::fmt::Display) -> Problem {
        Problem::at(self.origin.place(self.value.span()), format!("{} {what}", quote(self.name)))
    }

    /// The key with a value (as in TOML) in the place of the wrong one, as it would be written there.
    fn written(&self, value: &str) -> String {
        match self.origin.layer {
            // An option of its own, such as `--nodes`.
            Layer::Flag if self.name.starts_with("--") => {
                format!("{} {}", self.name, value.trim_matches('"'))
            }
            Layer::Flag => {
                let value = value.trim_matches('"');
                let quote = if value.contains(' ') { "'" } else { "" };
                format!("--set {quote}{}={value}{quote}", self.name)
            }
            // One of the values in its array.
            Layer::Axis => value.to_string(),
            Layer::Scenario | Layer::Matrix => {
                // `flows.tcp`, of which the parser's key is the last segment.
                let word = self.key_place.word();
                let plain = word.text().ends_with(self.key.short());
                let key = if plain { word.text() } else { self.key_place.text() };
                format!("{key} = {value}")
            }
        }
    }

    fn example(&self) -> String {
        format!("for example {}", self.written(self.key.example))
    }

    fn string(&self) -> Result<&'a str, Problem> {
        match self.value.get_ref() {
            DeValue::String(text) => Ok(text.as_ref()),
            other => Err(self
                .wrong(format!("must be a string, not {}", a_type(other)))
                .help(self.example())),
        }
    }

    fn word(&self, words: &'static [&'static str]) -> Result<Value, Problem> {
        let all = words.iter().map(|word| format!("\"{word}\"")).collect::<Vec<_>>().join(", ");
        let DeValue::String(text) = self.value.get_ref() else {
            let what = format!("must be a string, not {}", a_type(self.value.get_ref()));
            return Err(self.wrong(what).help(format!("one of {all}")));
        };
        if let Some(word) = words.iter().find(|word| **word == text.as_ref()) {
            if schema::is_not_yet(self.key.name, word) {
                return Err(self
                    .wrong(format!("cannot be {} yet", quote(text)))
                    .help("\"local\" and \"auto\" are supported"));
            }
            return Ok(Value::Word(word));
        }
        let help = match likely(text, words.iter().copied()) {
            Some(word) => format!("did you mean \"{word}\"? It is one of {all}"),
            None => format!("one of {all}"),
        };
        Err(self.wrong(format!("cannot be {}", quote(text))).help(help))
    }

    fn count(&self, min: u32, max: u32) -> Result<Value, Problem> {
        let DeValue::Integer(number) = self.value.get_ref() else {
            let what = format!("must be a whole number, not {}", a_type(self.value.get_ref()));
            let unquoted = self.value.get_ref().as_str().and_then(|text| text.parse::<u32>().ok());
            let help =
                unquoted.map(|n| format!("without quotes: {}", self.written(&n.to_string())));
            return Err(self.wrong(what).help(help.unwrap_or_else(|| self.example())));
        };
        match integer(number) {
            Some(n) if n < i128::from(min) => {
                Err(self.wrong(format!("must be at least {min}")).help(self.example()))
            }
            Some(n) if n <= i128::from(max) => Ok(Value::Count(n as u32)),
            _ => Err(self.wrong(format!("must be at most {max}")).help(self.example())),
        }
    }

    fn time(&self, min: Duration, most: Duration, whole_seconds: bool) -> Result<Value, Problem> {
        let text = match self.value.get_ref() {
            DeValue::String(text) => text.as_ref(),
            DeValue::Integer(number) => {
                return Err(self.no_unit(&number.to_string()));
            }
            DeValue::Float(number) => return Err(self.no_unit(&number.to_string())),
            other => {
                let what = format!("must be a time in quotes, not {}", a_type(other));
                return Err(self.wrong(what).help(self.example()));
            }
        };
        if text.trim_start().starts_with('-') {
            return Err(self.wrong("must not be negative").help(self.example()));
        }
        // To humantime it is a time.
        if text.trim() == "0" {
            return Err(self.no_unit("0"));
        }
        if let Some(unit) = unknown_unit(text) {
            return Err(self.unknown_unit(text, unit));
        }
        let time = humantime::parse_duration(text).map_err(|e| self.no_time(text, &e))?;
        // humantime would make one number of `1 0s`.
        if is_parted(text) {
            return Err(self.no_time_at_all(text));
        }
        let problem = if time > most {
            self.wrong(format!("must be at most {}", schema::words(most)))
        } else if whole_seconds && time.subsec_nanos() != 0 {
            self.wrong("must be a whole number of seconds")
        } else if time < min {
            self.wrong(format!("must be at least {}", humantime::format_duration(min)))
        } else {
            return Ok(Value::Time(time));
        };
        Err(problem.help(self.example()))
    }

    fn no_unit(&self, number: &str) -> Problem {
        if number.starts_with('-') {
            return self.wrong("must not be negative").help(self.example());
        }
        let unit = if self.key.example.ends_with("ms\"") { "ms" } else { "s" };
        let whole = matches!(self.key.kind, Kind::Time { whole_seconds: true, .. });
        let simple = number.len() < 12 && number.bytes().all(|b| b.is_ascii_digit() || b == b'.');
        let number = match number.split_once('.') {
            // A fraction would be the next thing that is wrong.
            Some((seconds, rest)) if whole && rest.bytes().any(|b| b != b'0') => {
                seconds.parse::<u64>().map_or_else(|_| number.into(), |n| (n + 1).to_string())
            }
            Some((seconds, _)) if whole => seconds.to_string(),
            _ => number.to_string(),
        };
        let quotes = if self.origin.layer == Layer::Flag { "" } else { ", in quotes" };
        let help = if simple {
            let written = self.written(&format!("\"{number}{unit}\""));
            format!("write it with its unit{quotes}: {written}")
        } else {
            format!("write it with its unit{quotes}; {}", self.example())
        };
        self.wrong("has no unit").help(help)
    }

    fn unknown_unit(&self, text: &str, at: std::ops::Range<usize>) -> Problem {
        const LONG: [(&str, &str); 12] = [
            ("msec", "ms"),
            ("millis", "ms"),
            ("milliseconds", "ms"),
            ("sec", "s"),
            ("secs", "s"),
            ("seconds", "s"),
            ("min", "m"),
            ("mins", "m"),
            ("minutes", "m"),
            ("hr", "h"),
            ("hour", "h"),
            ("hours", "h"),
        ];
        let units = "the units are ms, s, m and h";
        let unit = &text[at.clone()];
        let known = LONG.iter().find(|(long, _)| likely(unit, [*long]).is_some());
        let mut problem = self.wrong(format!("has an unknown unit {}", quote(unit)));
        problem.place = Some(self.origin.place(self.within(text, at.clone())));
        match known {
            Some((_, unit)) => problem.help(format!("did you mean `{unit}`? {units}")),
            None => problem.help(format!("{units}; {}", self.example())),
        }
    }

    /// Says which part of a string keeps it from being a time.
    fn no_time(&self, text: &str, error: &humantime::DurationError) -> Problem {
        match error {
            humantime::DurationError::UnknownUnit { unit, .. } if unit.is_empty() => {
                self.no_unit(text.trim())
            }
            humantime::DurationError::NumberOverflow if is_long(text) => {
                self.wrong("must be at most 24h").help(self.example())
            }
            humantime::DurationError::NumberOverflow => self
                .wrong("has more decimals than a time can hold")
                .help(format!("a smaller unit needs fewer; {}", self.example())),
            _ => self.no_time_at_all(text),
        }
    }

    fn no_time_at_all(&self, text: &str) -> Problem {
        self.wrong(format!("is no time: {}", quote(text)))
            .help(format!("a number and its unit; {}", self.example()))
    }

    /// The place of a part of a string, if the source spells the string as it reads.
    fn within(&self, text: &str, part: std::ops::Range<usize>) -> std::ops::Range<usize> {
        let span = self.value.span();
        let raw = self.origin.text(&span);
        let quotes = if raw.len() == text.len() { 0 } else { 1 };
        if raw.get(quotes..quotes + text.len()) == Some(text) {
            span.start + quotes + part.start..span.start + quotes + part.end
        } else {
            span
        }
    }

    fn enter_by(&self) -> Result<Value, Problem> {
        const WORDS: [&str; 2] = ["other-node", "pod-node"];
        let text = self.string()?;
        let name = is_dns_name(text);
        let squeezed = text.to_lowercase().replace(['-', '_', ' '], "");
        // A node may have nearly any name, so only what is a slip beyond doubt counts as one.
        let slip = |word: &&&str| {
            let digits = text.bytes().any(|b| b.is_ascii_digit());
            squeezed == word.replace('-', "") || (!digits && strsim::osa_distance(text, word) == 1)
        };
        match WORDS.iter().find(slip) {
            Some(word) if *word == text => Ok(Value::Text(text.into())),
            Some(word) => Err(self
                .wrong(format!("cannot be {}", quote(text)))
                .help(format!("did you mean \"{word}\"?"))),
            None if name => Ok(Value::Text(text.into())),
            None => Err(self
                .wrong(format!("cannot be {}: no node has such a name", quote(text)))
                .help("\"other-node\", \"pod-node\" or a node's name")),
        }
    }

    fn version(&self) -> Result<Value, Problem> {
        let text = self.string()?;
        if is_version(text) {
            return Ok(Value::Text(text.into()));
        }
        let plain = text.strip_prefix(['v', 'V']).unwrap_or(text);
        let help = if is_version(plain) {
            format!("without the v: {}", self.written(&format!("\"{plain}\"")))
        } else if is_version(&format!("{plain}.0")) {
            format!("with the patch release: {}", self.written(&format!("\"{plain}.0\"")))
        } else {
            self.example()
        };
        Err(self.wrong(format!("is no version like 1.34.0: {}", quote(text))).help(help))
    }

    fn truth(&self) -> Result<Value, Problem> {
        match self.value.get_ref() {
            DeValue::Boolean(truth) => Ok(Value::Truth(*truth)),
            other => Err(self
                .wrong(format!("must be true or false, not {}", a_type(other)))
                .help(self.example())),
        }
    }

    /// A number, or a percentage in quotes.
    fn share(&self) -> Result<Value, Problem> {
        /// As many as pods at most.
        const MOST: u32 = 100;
        let DeValue::String(text) = self.value.get_ref() else {
            return match self.count(0, MOST)? {
                Value::Count(count) => Ok(Value::Share(Share::Count(count))),
                other => Ok(other),
            };
        };
        match Share::percent(text) {
            Some(share) => Ok(Value::Share(share)),
            None => Err(self
                .wrong(format!("is neither a number of pods nor a share: {}", quote(text)))
                .help(format!("{} or {}", self.written("1"), self.written("\"25%\"")))),
        }
    }

    /// A program and its arguments.
    fn command(&self) -> Result<Value, Problem> {
        let words: Option<Vec<String>> = match self.value.get_ref() {
            DeValue::String(text) => Some(text.split_whitespace().map(str::to_owned).collect()),
            DeValue::Array(words) => {
                let text = |word: &Spanned<DeValue<'_>>| word.get_ref().as_str().map(str::to_owned);
                words.iter().map(text).collect()
            }
            _ => None,
        };
        match words {
            Some(words) if words.iter().any(|word| word.contains('\0')) => {
                Err(self.wrong("must not hold a zero byte").help(self.example()))
            }
            Some(words) if words.first().is_some_and(|program| !program.is_empty()) => {
                Ok(Value::Words(words))
            }
            Some(_) => Err(self.wrong("names no program").help(self.example())),
            None => {
                let what = format!(
                    "must be a string or a list of strings, not {}",
                    a_type(self.value.get_ref())
                );
                Err(self.wrong(what).help(self.example()))
            }
        }
    }

    fn sysctl(&self) -> Result<Value, Problem> {
        let text = match self.value.get_ref() {
            DeValue::String(text) => text.to_string(),
            DeValue::Integer(number) => match integer(number) {
                Some(number) => number.to_string(),
                None => return Err(self.wrong("is too large").help("for example 1")),
            },
            other => {
                let what = format!("must be a string or a whole number, not {}", a_type(other));
                return Err(self.wrong(what).help("for example \"1\""));
            }
        };
        if text.trim().is_empty()
            || text.len() > schema::LONGEST_SYSCTL
            || text.chars().any(|c| c.is_control() && c != '\t')
        {
            return Err(self
                .wrong(format!(
                    "must be one line of text, neither empty nor longer than {} bytes",
                    schema::LONGEST_SYSCTL
                ))
                .help("for example \"1\""));
        }
        Ok(Value::Text(text))
    }
}

/// The first word of a time that is none of the units that may be written. humantime knows more,
/// and its `M` is a month.
fn unknown_unit(text: &str) -> Option<std::ops::Range<usize>> {
    let mut start = None;
    for (at, c) in text.char_indices().chain([(text.len(), ' ')]) {
        match (c.is_alphabetic(), start) {
            (true, None) => start = Some(at),
            (false, Some(from)) => {
                if !["ms", "s", "m", "h"].contains(&&text[from..at]) {
                    return Some(from..at);
                }
                start = None;
            }
            _ => {}
        }
    }
    None
}

/// Whether white space stands within a number.
fn is_parted(text: &str) -> bool {
    let is_number = |c: char| c.is_ascii_digit() || c == '.';
    let mut words = text.split_whitespace().peekable();
    while let Some(word) = words.next() {
        let next = words.peek().is_some_and(|next| next.starts_with(is_number));
        if next && word.ends_with(is_number) {
            return true;
        }
    }
    false
}

/// Whether one of a time's numbers is beyond the longest time in any unit.
fn is_long(text: &str) -> bool {
    text.split(|c: char| !c.is_ascii_digit() && c != '.')
        .filter_map(|number| number.split('.').next()?.parse::<f64>().ok())
        .any(|number| number > schema::LONGEST.as_millis() as f64)
}

/// `None` if it fits no integer at all.
fn integer(number: &DeInteger<'_>) -> Option<i128> {
    i128::from_str_radix(number.as_str(), number.radix()).ok()
}

/// `a string`, `an array`.
pub(super) fn a_type(value: &DeValue<'_>) -> String {
    match value.type_str() {
        "integer" => "a number".into(),
        "float" => "a number with a fraction".into(),
        "boolean" => "true or false".into(),
        name @ "array" => format!("an {name}"),
        name => format!("a {name}"),
    }
}

/// A version as `1.34.0`.
fn is_version(text: &str) -> bool {
    let part = |part: &str| {
        (1..=3).contains(&part.len())
            && part.bytes().all(|b| b.is_ascii_digit())
            && (part == "0" || !part.starts_with('0'))
    };
    text.split('.').count() == 3 && text.split('.').all(part)
}

/// A name that Kubernetes allows for a node (RFC 1123 subdomain).
fn is_dns_name(text: &str) -> bool {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    text.len() <= 253 && text.split('.').all(label)
}
