//! What the tables are made of: the trials of one folder, or of several beside each other.
//!
//! Takes trial records; says how rows of several folders, and rows that another tool measured, are
//! told apart.

use crate::record::{Run, Trial};

/// One folder's trials.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// What tells it apart from the others: its folder's name.
    pub name: &'a str,
    /// Its trials, in the order in which the tables list them.
    pub trials: &'a [Trial],
    /// The run's record, where there is one.
    pub run: Option<&'a Run>,
}

impl Part<'_> {
    /// The tool that its trials were imported from: `drainwatch (Go) 0.1.0`.
    pub fn imported_from(&self) -> Option<String> {
        let mut tools: Vec<&str> = Vec::new();
        for imported in self.trials.iter().filter_map(|trial| trial.imported.as_ref()) {
            if !tools.contains(&imported.from.as_str()) {
                tools.push(&imported.from);
            }
        }
        (!tools.is_empty()).then(|| tools.join(", "))
    }

    /// Its name in a table for people: `go (imported from drainwatch (Go) 0.1.0)`.
    pub(super) fn origin(&self) -> String {
        match self.imported_from() {
            Some(tool) => format!("{} (imported from {tool})", self.name),
            None => self.name.to_owned(),
        }
    }

    /// Its warnings, each with the trials that have it. Of those trials that `of` picks.
    pub(super) fn warnings(&self, of: impl Fn(&Trial) -> bool) -> Vec<(String, &str)> {
        let trials: Vec<&Trial> = self.trials.iter().filter(|trial| of(trial)).collect();
        let mut warnings: Vec<(Vec<&str>, &str)> = Vec::new();
        for trial in &trials {
            for text in trial.all_warnings() {
                match warnings.iter_mut().find(|(_, known)| *known == text) {
                    Some((ids, _)) if ids.last() == Some(&trial.id.as_str()) => {}
                    Some((ids, _)) => ids.push(&trial.id),
                    None => warnings.push((vec![&trial.id], text)),
                }
            }
        }
        let who = |ids: Vec<&str>| match ids.len() {
            n if n > 2 && n == trials.len() => format!("all {n}"),
            _ => ids.join(", "),
        };
        warnings.into_iter().map(|(ids, text)| (who(ids), text)).collect()
    }
}

/// Whether the rows need a column that tells where they are from.
pub(super) fn are_told_apart(parts: &[Part]) -> bool {
    parts.len() > 1 || parts.iter().any(|part| part.imported_from().is_some())
}
