//! A matrix or scenario file, and the scenario files that a matrix names.
//!
//! Takes a source; gives its parts (scenarios' settings, axes, `[cluster]`) or what is wrong with
//! them. Reads files; lays nothing over each other ([`super::arms`] does).

use std::path::Path;
use std::sync::Arc;

use serde_spanned::Spanned;
use toml::de::{DeTable, DeValue};

use super::arms::{FileKind, MAX_ARMS};
use super::axes::{self, Axis};
use super::errors::{Problem, Problems, likely, quote};
use super::names::{Folders, NAME_HELP, scenario_path, stem, unsafe_name};
use super::schema;
use super::settings::{self, Document, Layer, Origin, Settings, in_order};
use super::source::{Place, Source, shown};
use super::value::a_type;

/// A scenario's file.
pub(super) struct ScenarioPart {
    /// Its stem.
    pub name: String,
    pub source: Arc<Source>,
    pub settings: Settings,
    /// Where to say that `sigterm` is missing; `None` if that is not worth telling, since the file
    /// has what is likely meant as one.
    pub lacks_sigterm: Option<Place>,
    /// Whether all of the file could be read.
    pub whole: bool,
}

/// What stands in a matrix; a scenario's file gives one with itself as the only scenario.
pub(super) struct Parts {
    pub kind: FileKind,
    pub description: Option<String>,
    pub scenarios: Vec<ScenarioPart>,
    pub axes: Vec<Axis>,
    pub cluster: Settings,
    /// Whether all of the matrix could be read, so that its arms are those that were meant.
    pub whole: bool,
    /// The key that makes it a matrix.
    pub place: Place,
}

/// The keys of a matrix.
const KEYS: [&str; 4] = ["description", "scenarios", "axes", "cluster"];

/// Reads the file that the user named.
pub(super) fn read(file: &Path, source: &Arc<Source>, problems: &mut Problems) -> Option<Parts> {
    let document = Document::parse(source);
    match kind(&document.table) {
        Some(FileKind::Matrix) => Some(read_matrix(file, source, document, problems)),
        Some(FileKind::Scenario) => {
            let name = stem(file);
            if let Some(why) = unsafe_name(&name) {
                problems.push(Problem::new(format!("{}: {why}", shown(file))).help(NAME_HELP));
            }
            let scenario = read_scenario(name, source, document, problems);
            Some(Parts {
                kind: FileKind::Scenario,
                description: None,
                // The scenario's own, and it has no other part.
                whole: true,
                scenarios: vec![scenario],
                axes: Vec::new(),
                cluster: Settings::new(),
                place: Place::start(source),
            })
        }
        None => {
            let mut own = Problems::default();
            if document.is_whole() {
                own.push(
                    Problem::at(Place::start(source), "neither a scenario nor a matrix")
                        .help("a scenario has sigterm = \"…\", a matrix has scenarios = [\"…\"]"),
                );
            }
            problems.extend(document.reported(own));
            None
        }
    }
}

/// Tells a matrix from a scenario by what stands in it, misspelt or not.
fn kind(table: &DeTable<'_>) -> Option<FileKind> {
    if table.contains_key("scenarios") {
        return Some(FileKind::Matrix);
    }
    // With axes too: they are what is wrong in it.
    if table.contains_key("sigterm") {
        return Some(FileKind::Scenario);
    }
    if table.contains_key("axes") {
        return Some(FileKind::Matrix);
    }
    let names: Vec<&str> = schema::names_in("").chain(["scenarios", "axes"]).collect();
    in_order(table).find_map(|(key, _)| match likely(key.get_ref(), names.iter().copied())? {
        "scenarios" | "axes" => Some(FileKind::Matrix),
        "description" | "cluster" => None,
        _ => Some(FileKind::Scenario),
    })
}

fn read_scenario(
    name: String,
    source: &Arc<Source>,
    document: Document<'_>,
    problems: &mut Problems,
) -> ScenarioPart {
    let origin = Origin::file(source, Layer::Scenario);
    let (mut settings, mut own) = (Settings::new(), Problems::default());
    settings::walk(&document.table, "", &origin, &mut settings, &mut own);
    settings::limit_sysctls(&mut settings, &mut own);
    let whole = document.is_whole();
    let misspelt = document.table.keys().any(|key| {
        let known = schema::names_in("").any(|name| name == key.get_ref());
        !known && likely(key.get_ref(), schema::names_in("")) == Some("sigterm")
    });
    problems.extend(document.reported(own));
    let lacks_sigterm = (whole && !misspelt).then(|| Place::start(source));
    ScenarioPart { name, source: Arc::clone(source), settings, lacks_sigterm, whole }
}

fn read_matrix(
    file: &Path,
    source: &Arc<Source>,
    document: Document<'_>,
    problems: &mut Problems,
) -> Parts {
    let mut own = Problems::default();
    if let Some(why) = unsafe_name(&stem(file)) {
        own.push(Problem::new(format!("{}: {why}", shown(file))).help(NAME_HELP));
    }
    let mut parts = Parts {
        kind: FileKind::Matrix,
        description: None,
        scenarios: Vec::new(),
        axes: Vec::new(),
        cluster: Settings::new(),
        whole: document.is_whole(),
        place: Place::start(source),
    };
    let origin = |layer| Origin::file(source, layer);
    // Problems within the scenarios' files, which have errors of syntax of their own.
    let mut of_scenarios = Problems::default();
    let mut misspelt = false;
    let mut sigterm_elsewhere = false;
    // Of keys that were to be axes, one wrong place is all that is wrong.
    let mut misplaced = false;
    let mut no_axes = None;
    for (key, value) in in_order(&document.table) {
        let place = Place::new(source, key.span());
        if settings::is_lost(value) && KEYS.contains(&key.get_ref().as_ref()) {
            continue;
        }
        match (key.get_ref().as_ref(), value.get_ref()) {
            ("scenarios", DeValue::Array(entries)) => {
                if entries.is_empty() {
                    own.push(
                        Problem::at(Place::new(source, value.span()), "no scenarios")
                            .help("name at least one: scenarios = [\"drain-delete\"]"),
                    );
                }
                parts.place = place.clone();
                if entries.len() > MAX_ARMS {
                    let message =
                        format!("{} scenarios: {MAX_ARMS} arms are the most", entries.len());
                    own.push(
                        Problem::at(place, message)
                            .help("each arm has a cluster of its own: leave out scenarios"),
                    );
                    continue;
                }
                let entries = entries.iter();
                parts.scenarios =
                    read_scenarios(file, source, entries, &mut own, &mut of_scenarios);
            }
            ("axes", DeValue::Table(table)) => {
                let before = own.count();
                parts.axes = axes::read(table, place.clone(), &origin(Layer::Axis), &mut own);
                no_axes = (parts.axes.is_empty() && own.count() == before).then_some(place);
                sigterm_elsewhere |= axes::mentions_sigterm(table);
            }
            ("cluster", DeValue::Table(table)) => {
                let (cluster, layer) = (&mut parts.cluster, origin(Layer::Matrix));
                settings::walk(table, "cluster", &layer, cluster, &mut own);
                settings::limit_sysctls(cluster, &mut own);
                let of_scenario = |key: &str| schema::names_in("").any(|name| name == key);
                misplaced |= table.keys().any(|key| of_scenario(key.get_ref()));
            }
            ("description", DeValue::String(text)) => parts.description = Some(text.to_string()),
            ("scenarios", other) => own.push(
                Problem::at(
                    Place::new(source, value.span()),
                    format!("`scenarios` must be an array of names, not {}", a_type(other)),
                )
                .help("for example scenarios = [\"drain-delete\"]"),
            ),
            ("description", other) => own.push(
                Problem::at(
                    Place::new(source, value.span()),
                    format!("`description` must be a string, not {}", a_type(other)),
                )
                .help("for example description = \"what it shows\""),
            ),
            (name @ ("axes" | "cluster"), other) => {
                own.push(settings::not_a_table(name, other, Place::new(source, value.span())));
            }
            (name, _) => {
                misspelt |= likely(name, KEYS) == Some("scenarios");
                misplaced |= schema::names_in("").any(|known| known == name);
                sigterm_elsewhere |= likely(name, schema::names_in("")) == Some("sigterm");
                own.push(unknown_key(name, place));
            }
        }
    }
    if let Some(place) = no_axes.filter(|_| !misplaced) {
        own.push(
            Problem::at(place, "no axes").help(
                "write one, for example readiness = [\"fail\", \"pass\"], or take [axes] out",
            ),
        );
    }
    if sigterm_elsewhere {
        // What is wrong is how the matrix gives it.
        parts.scenarios.iter_mut().for_each(|scenario| scenario.lacks_sigterm = None);
    }
    if !document.table.contains_key("scenarios") && parts.whole && !misspelt {
        own.push(
            Problem::at(Place::start(source), "`scenarios` is missing")
                .help("name at least one: scenarios = [\"drain-delete\"]"),
        );
    }
    problems.extend(document.reported(own));
    problems.extend(of_scenarios);
    parts
}

fn unknown_key(name: &str, place: Place) -> Problem {
    let of_scenario = schema::names_in("").any(|known| known == name);
    let help = match likely(name, KEYS) {
        _ if of_scenario => {
            format!(
                "`{name}` stands in a scenario's file, in [axes] with several values, or in --set {name}=…"
            )
        }
        Some(word) => format!("did you mean `{word}`?"),
        None => format!("a matrix's keys are {}", KEYS.join(", ")),
    };
    Problem::at(place, format!("unknown key {} in a matrix", quote(name))).help(help)
}

/// After more problems than these no more scenarios are read: a thousand files of nothing but errors
/// take minutes, and nobody reads on.
const ENOUGH: usize = 1_000;

fn read_scenarios<'t>(
    file: &Path,
    source: &Arc<Source>,
    entries: impl Iterator<Item = &'t Spanned<DeValue<'t>>>,
    own: &mut Problems,
    of_scenarios: &mut Problems,
) -> Vec<ScenarioPart> {
    let mut seen: Vec<(String, Place)> = Vec::new();
    let mut scenarios = Vec::new();
    let mut folders = Folders::default();
    for (index, entry) in entries.enumerate() {
        let place = Place::new(source, entry.span());
        if of_scenarios.count() > ENOUGH {
            let before = of_scenarios.count();
            let message =
                format!("scenarios from here on were not read: {before} errors in those before");
            own.push(Problem::at(place, message).help("mend those first"));
            break;
        }
        let DeValue::String(text) = entry.get_ref() else {
            let what = a_type(entry.get_ref());
            own.push(
                Problem::at(place, format!("a scenario's name must be a string, not {what}"))
                    .help("for example scenarios = [\"drain-delete\"]"),
            );
            continue;
        };
        let path = match scenario_path(file, text) {
            Ok(path) => path,
            Err(why) => {
                own.push(Problem::at(place, why).help(match text.contains('/') {
                    true => format!("a path ends in .toml: {}", quote(&format!("{text}.toml"))),
                    false => NAME_HELP.to_string(),
                }));
                continue;
            }
        };
        // Folders may not tell Drain from drain, so neither may arms.
        let name = stem(&path);
        let same = seen.iter().find(|(other, _)| other.eq_ignore_ascii_case(&name));
        if let Some((other, first)) = same {
            let (line, column) = first.line_column();
            own.push(
                Problem::at(place, format!("two scenarios of one name: {}", quote(&name)))
                    .note(format!("`{other}` stands in line {line}, column {column} already"))
                    .help("an arm is named after its scenario's file: rename it, or name it once"),
            );
            continue;
        }
        seen.push((name.clone(), place.clone()));
        match Source::read(&path, index + 1) {
            Ok(source) => {
                let document = Document::parse(&source);
                if kind(&document.table) == Some(FileKind::Matrix) {
                    let what = format!("{} is a matrix, not a scenario", shown(&path));
                    own.push(Problem::at(place, what).help("name its scenarios instead"));
                    continue;
                }
                scenarios.push(read_scenario(name, &source, document, of_scenarios));
            }
            Err(problem) if problem.place.is_some() => of_scenarios.push(problem),
            Err(mut problem) => {
                problem.place = Some(place);
                // Of a file that is there the error itself says enough.
                let missing = matches!(path.try_exists(), Ok(false));
                let help = missing.then(|| folders.help(file, &path, text)).flatten();
                own.push(problem.maybe_help(help));
            }
        }
    }
    scenarios
}
