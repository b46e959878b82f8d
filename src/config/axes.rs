//! `[axes]`: keys and the values that they take in turn.
//!
//! Takes the table; gives each axis in the file's order, its values checked as its key's are
//! anywhere else. Knows no scenarios.

use serde_spanned::Spanned;
use toml::de::{DeTable, DeValue};

use super::arms::MAX_ARMS;
use super::errors::{Problem, Problems, likely, quote};
use super::schema;
use super::settings::{self, Layer, Origin, Setting, Settings, in_order};
use super::source::Place;
use super::value::a_type;

/// A key and the values that it takes in turn.
pub(super) struct Axis {
    pub key: String,
    pub values: Vec<Setting>,
}

/// More axes than these fit no arm's name, even with names and values of one letter each.
const MAX_AXES: usize = 50;

impl Axis {
    /// An axis of which only the key could be read: one value, and nothing is known of it.
    fn unknown(key: String, place: Place) -> Self {
        let value = Setting {
            value: None,
            text: "?".into(),
            key_place: place.clone(),
            value_place: place,
            layer: Layer::Axis,
        };
        Self { key, values: vec![value] }
    }
}

/// Reads `[axes]`, which stands at this place.
pub(super) fn read(
    table: &DeTable<'_>,
    place: Place,
    origin: &Origin,
    problems: &mut Problems,
) -> Vec<Axis> {
    let mut axes = Vec::new();
    read_axes(table, "", origin, &mut axes, problems);
    if axes.len() > MAX_AXES {
        problems.push(
            Problem::at(place, format!("{} axes: {MAX_AXES} are the most", axes.len()))
                .help("an arm is named after a value of each: leave out axes"),
        );
        // Axes still, of which no arms are made.
        axes.truncate(1);
        axes[0].values.clear();
    }
    axes
}

/// Whether what is likely meant as `sigterm` stands anywhere in the table.
pub(super) fn mentions_sigterm(table: &DeTable<'_>) -> bool {
    table.iter().any(|(key, value)| {
        let word = key.get_ref().rsplit('.').next().unwrap_or_default();
        likely(word, schema::names_in("")) == Some("sigterm")
            || value.get_ref().as_table().is_some_and(mentions_sigterm)
    })
}

/// An axis is one key with an array of its values; tables in between only group keys.
fn read_axes(
    table: &DeTable<'_>,
    prefix: &str,
    origin: &Origin,
    axes: &mut Vec<Axis>,
    problems: &mut Problems,
) {
    for (key, value) in in_order(table) {
        let name = settings::join(prefix, key.get_ref());
        let place = origin.place(key.span());
        let groups = schema::is_table(&name) || schema::is_of_sysctls(prefix);
        let value_place = origin.place(value.span());
        let sysctl = schema::sysctl_name(&name).filter(|_| !value.get_ref().is_table());
        if let Some(problem) = sysctl.and_then(|name| settings::wrong_sysctl(name, &place)) {
            problems.push(problem);
            continue;
        }
        match value.get_ref() {
            DeValue::Table(table) if groups => {
                problems.maybe(settings::empty_sysctl(&name, table, &place));
                read_axes(table, &name, origin, axes, problems);
            }
            _ if settings::is_lost(value) => axes.push(Axis { key: name, values: Vec::new() }),
            _ if schema::is_table(&name) || name == "description" => problems.push(
                Problem::at(place, format!("`{name}` cannot be an axis"))
                    .help("an axis is one key of a scenario, such as \"flows.tcp\" or \"cluster.proxy_mode\""),
            ),
            _ if schema::find(&name).is_none() => {
                problems.push(settings::unknown_key(&name, place, Layer::Axis));
            }
            _ if axes.iter().any(|axis| axis.key == name) => {
                let problem = Problem::at(place, format!("{} is an axis already", quote(&name)));
                problems.push(problem.help("keep one of the two, with the values of both"));
            }
            DeValue::Array(values) if values.is_empty() => {
                problems.push(
                    Problem::at(
                        value_place.clone(),
                        format!("the axis {} has no values", quote(&name)),
                    )
                    .help("give it at least one, or take it out"),
                );
                axes.push(Axis::unknown(name, value_place));
            }
            DeValue::Array(values) if values.len() > MAX_ARMS => {
                problems.push(
                    Problem::at(
                        place,
                        format!("an axis of {} values: {MAX_ARMS} arms are the most", values.len()),
                    )
                    .help("each arm has a cluster of its own: leave out values"),
                );
                // An axis still, of which no arms are made.
                axes.push(Axis { key: name, values: Vec::new() });
            }
            DeValue::Array(values) => {
                let values = axis_values(&name, values.iter(), origin, problems);
                axes.push(Axis { key: name, values });
            }
            other => {
                let what = a_type(other);
                problems.push(
                    Problem::at(
                        value_place.clone(),
                        format!("the axis {} must be an array of values, not {what}", quote(&name)),
                    )
                    .help("for example readiness = [\"fail\", \"pass\"]"),
                );
                axes.push(Axis::unknown(name, value_place));
            }
        }
    }
}

fn axis_values<'t>(
    name: &str,
    values: impl Iterator<Item = &'t Spanned<DeValue<'t>>>,
    origin: &Origin,
    problems: &mut Problems,
) -> Vec<Setting> {
    let mut settings: Vec<Setting> = Vec::new();
    for value in values {
        let place = origin.place(value.span());
        let mut one = Settings::new();
        settings::set(name, place.clone(), value, origin, &mut one, problems);
        let Some(setting) = one.remove(name) else { continue };
        if setting.value.is_some() && settings.iter().any(|s| s.value == setting.value) {
            problems.push(
                Problem::at(
                    place,
                    format!("{} is a value of this axis already", quote(&setting.text)),
                )
                .help("its arms would be the same"),
            );
            continue;
        }
        settings.push(setting);
    }
    settings
}
