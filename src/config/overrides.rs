//! `--set KEY=VALUE` and `--only ARM`.
//!
//! Takes the flags' values as given; gives settings like those of a file, whose problems name the
//! flag. Knows nothing of files.

use serde_spanned::Spanned;
use toml::de::{DeTable, DeValue};

use super::errors::{Problem, Problems, likely, quote};
use super::schema;
use super::settings::{self, Layer, Origin, Settings};
use super::source::{Place, Source};

/// Reads all `--set` flags; of two for one key the later counts. `axes` are the keys that the
/// matrix varies, which cannot be one value for all arms.
pub(super) fn read(flags: &[String], axes: &[&str], problems: &mut Problems) -> Settings {
    let mut all = Settings::new();
    for (index, flag) in flags.iter().enumerate() {
        let mut set = Settings::new();
        read_one(flag, index, &mut set, problems);
        for (name, setting) in &set {
            if axes.contains(&name.as_str()) {
                let place = setting.key_place.clone();
                problems.push(
                    Problem::at(place, format!("`{name}` is an axis of the matrix"))
                        .help("pick arms with --only, or take the axis out of the matrix"),
                );
            }
        }
        all.extend(set);
    }
    all
}

fn read_one(flag: &str, index: usize, set: &mut Settings, problems: &mut Problems) {
    const NAME: &str = "--set ";
    let source = Source::flag(format!("{NAME}{flag}"), index);
    let whole = Place::new(&source, NAME.len()..NAME.len() + flag.len());
    let Some((key, text)) = split(flag) else {
        problems.push(
            Problem::at(whole, "--set takes KEY=VALUE")
                .help("for example --set repeats=1 or --set cluster.proxy_mode=nftables"),
        );
        return;
    };
    let key_start = NAME.len() + key.len() - key.trim_start().len();
    let key_place = Place::new(&source, key_start..NAME.len() + key.trim_end().len());
    let plain = plain_key(key.trim());
    let key = plain.as_str();
    let offset = NAME.len() + flag.len() - text.trim_start().len();
    let text = text.trim();
    let origin = Origin { source, offset, layer: Layer::Flag };
    let value = parse(key, text);
    match value.get_ref() {
        DeValue::Table(table) if schema::is_table(key) => {
            settings::walk(table, key, &origin, set, problems);
        }
        _ if schema::is_table(key) => problems.push(
            Problem::at(key_place, format!("`{key}` holds other keys"))
                .help(format!("set one of them, for example --set {}", example(key))),
        ),
        _ if matches!(key, "scenarios" | "axes") || key.starts_with("axes.") => problems.push(
            Problem::at(key_place, format!("{} cannot be overridden", quote(key)))
                .help("only the keys of scenarios and of [cluster] can"),
        ),
        _ => settings::set(key, key_place, &value, &origin, set, problems),
    }
}

/// At the first `=` that no quotes of the key hold; at the first of all where the quotes have no
/// end, for what is wrong is then told of the key.
fn split(flag: &str) -> Option<(&str, &str)> {
    let mut quote = None;
    let outside = flag.char_indices().find(|&(_, c)| match quote {
        Some(open) => {
            if c == open {
                quote = None;
            }
            false
        }
        None if matches!(c, '"' | '\'') => {
            quote = Some(c);
            false
        }
        None => c == '=',
    });
    match outside {
        Some((at, _)) => Some((&flag[..at], &flag[at + 1..])),
        None => flag.split_once('='),
    }
}

/// A key without its quotes: `cluster.sysctls."net.ipv4.x"` as TOML has it.
fn plain_key(key: &str) -> String {
    let text = format!("{key} = 0");
    let table = key.contains(['"', '\'']).then(|| DeTable::parse(&text).ok()).flatten();
    let mut segments = Vec::new();
    let mut table = table.as_ref().map(Spanned::get_ref);
    while let Some((segment, value)) = table.and_then(|table| table.iter().next()) {
        segments.push(segment.get_ref().as_ref());
        table = match value.get_ref() {
            DeValue::Table(table) => Some(table),
            _ => None,
        };
    }
    if segments.is_empty() { key.to_string() } else { segments.join(".") }
}

/// A TOML value; anything else is a string whose quotes were left out.
pub(super) fn parse<'a>(key: &str, text: &'a str) -> Spanned<DeValue<'a>> {
    let wants_string = schema::find(key).is_some_and(|key| key.kind.is_string());
    match DeValue::parse(text) {
        Ok(value) if value.get_ref().is_str() || !wants_string => value,
        _ => Spanned::new(0..text.len(), DeValue::String(text.into())),
    }
}

fn example(table: &str) -> String {
    let key = schema::KEYS
        .iter()
        .find(|key| key.name.strip_prefix(table).is_some_and(|rest| rest.starts_with('.')));
    match key {
        Some(key) => format!("{}={}", key.name, key.example.trim_matches('"')),
        None => format!("{table}.net.ipv4.tcp_retries2=5"),
    }
}

/// What is wrong with `--only` flags, given the names of all arms.
pub(super) fn check_only(only: &[String], arms: &[&str], problems: &mut Problems) {
    const NAME: &str = "--only ";
    // After all --set flags, whose number does not matter here.
    let after = usize::MAX / 4;
    for (index, flag) in only.iter().enumerate() {
        if arms.contains(&flag.as_str()) {
            continue;
        }
        let source = Source::flag(format!("{NAME}{flag}"), after + index);
        let place = Place::new(&source, NAME.len()..NAME.len() + flag.len());
        let problem = Problem::at(place, format!("no arm is named {}", quote(flag))).maybe_help(
            likely(flag, arms.iter().copied()).map(|arm| format!("did you mean `{arm}`?")),
        );
        problems.push(problem.note(format!("the arms are {}", arms.join(", "))));
    }
}
