//! Every key on one page, in Markdown, for people.
//!
//! Takes the table of keys; gives `docs/keys.md`. Words only: what is right is for the table to say.

use super::schema::{KEYS, Key, Kind, TABLES};

/// The page.
pub fn page() -> String {
    let mut page = String::from(
        "# Keys of scenarios\n\n\
         What may be set in a scenario, in a matrix's `[axes]` (as lists of values) and by `--set KEY=VALUE`. \
         Keys of `cluster` may stand in a matrix's `[cluster]` too. Only `sigterm` has no default. This page \
         is made by `drainwatch schema keys`; `drainwatch check FILE` tells what is wrong in a file.\n",
    );
    table(&mut page, KEYS.iter().filter(|key| !key.name.contains('.')));
    for (name, about) in TABLES {
        page.push_str(&format!("\n## `[{name}]`\n\n{}\n", cell(about)));
        let inside = |key: &&Key| key.name.rsplit_once('.').is_some_and(|(of, _)| of == *name);
        if KEYS.iter().any(|key| inside(&key)) {
            table(&mut page, KEYS.iter().filter(inside));
        }
    }
    page
}

fn table<'a>(page: &mut String, keys: impl Iterator<Item = &'a Key>) {
    page.push_str("\n| key | takes | default | meaning |\n|---|---|---|---|\n");
    for key in keys {
        let default = key.default.map_or_else(|| "-".to_owned(), |value| format!("`{value}`"));
        let (name, takes, about) = (key.name, takes(key), cell(key.about));
        page.push_str(&format!("| `{name}` | {takes} | {default} | {about} |\n"));
    }
}

/// What it takes, in words.
fn takes(key: &Key) -> String {
    match key.kind {
        Kind::Word(words) => {
            let words: Vec<_> = words.iter().map(|word| format!("`\"{word}\"`")).collect();
            words.join(", ")
        }
        Kind::Count { min, max } => format!("a whole number, {min} to {max}"),
        Kind::Time { whole_seconds: true, .. } => {
            format!("a time in whole seconds: `{}`", key.example)
        }
        Kind::Time { .. } => format!("a time: `{}`", key.example),
        Kind::Truth => "`true` or `false`".to_owned(),
        Kind::Text => "text".to_owned(),
        Kind::EnterBy => "`\"other-node\"`, `\"pod-node\"` or a node's name".to_owned(),
        Kind::Version => format!("a version: `{}`", key.example),
        Kind::Share => "a number of pods, or a share: `1`, `\"25%\"`".to_owned(),
        Kind::Sysctl | Kind::Command => format!("`{}`", key.example),
    }
}

/// On one line, and with no end of a cell in it.
fn cell(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}
