//! A matrix's parts become arms: each scenario with one value of each axis.
//!
//! Lays settings over each other (scenario, matrix, axis, flag: the last counts), names each arm
//! and resolves it. Reads no files.

use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::axes::Axis;
use super::errors::{Problem, Problems, quote};
use super::matrix::{self, Parts, ScenarioPart};
use super::overrides;
use super::resolve::resolve;
use super::scenario::{ClusterSpec, Scenario};
use super::settings::{Setting, Settings};
use super::source::Source;

/// More arms than this are a slip: each has a cluster of its own.
pub(super) const MAX_ARMS: usize = 1_000;

/// The longest name of an arm: it is a folder's, and most file systems allow 255 bytes.
const MAX_NAME: usize = 200;

/// What kind of file it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// One scenario: a matrix of one arm.
    Scenario,
    /// A matrix.
    Matrix,
}

/// A matrix, resolved.
#[derive(Clone, Debug, PartialEq)]
pub struct Matrix {
    /// Its file's stem.
    pub name: String,
    /// What kind of file it was.
    pub kind: FileKind,
    /// What it shows, in its author's words.
    pub description: Option<String>,
    /// The arms that were picked, in order: scenarios as listed, the last axis fastest.
    pub arms: Vec<Arm>,
    /// The `--set` overrides, as given.
    pub overrides: Vec<String>,
    /// The `--only` selections, as given.
    pub only: Vec<String>,
}

/// A scenario with one value of each axis, on one cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Arm {
    /// Unique in the plan, and a safe file name: `drain-delete+readiness=pass`.
    pub name: String,
    /// The scenario's name: its file's stem.
    pub scenario: String,
    /// The axes' values: key as written in TOML, value as text.
    pub axes: Vec<(String, String)>,
    /// The scenario with the axes' values and overrides applied.
    pub config: Scenario,
    /// The cluster that the arm's trials share.
    pub cluster: ClusterSpec,
}

/// An arm before its settings are resolved.
struct Draft<'a> {
    name: String,
    scenario: &'a ScenarioPart,
    /// One value of each axis.
    axes: Vec<(&'a Axis, &'a Setting)>,
    /// Whether all those values are right, and so the name is the one that was meant.
    right: bool,
}

/// Reads the matrix in `source` and resolves the arms that `only` picks (all, if it is empty).
pub(super) fn load(
    file: &Path,
    source: &Arc<Source>,
    set: &[String],
    only: &[String],
    problems: &mut Problems,
) -> Option<Matrix> {
    let parts = matrix::read(file, source, problems)?;
    let axes: Vec<&str> = parts.axes.iter().map(|axis| axis.key.as_str()).collect();
    let flags = overrides::read(set, &axes, problems);
    let drafts = draft(&parts, problems)?;
    if problems.is_empty() {
        let names: Vec<&str> = drafts.iter().map(|draft| draft.name.as_str()).collect();
        overrides::check_only(only, &names, problems);
    }
    let before = problems.count();
    let picked = |draft: &&Draft<'_>| only.is_empty() || only.contains(&draft.name);
    let arms: Vec<Arm> = drafts
        .iter()
        .filter(picked)
        .filter(|_| parts.whole)
        .filter_map(|draft| draft.resolve(&parts, &flags, problems))
        .collect();
    only_for_some(&arms, problems.since(before));
    Some(Matrix {
        name: file.file_stem()?.to_string_lossy().into_owned(),
        kind: parts.kind,
        description: match (parts.kind, arms.as_slice()) {
            (FileKind::Scenario, [arm]) => arm.config.description.clone(),
            _ => parts.description,
        },
        arms,
        overrides: set.to_vec(),
        only: only.to_vec(),
    })
}

/// A flag that some arms contradict and others do not is best given for those others alone.
fn only_for_some(right: &[Arm], problems: &mut [Problem]) {
    const LISTED: usize = 4;
    if right.is_empty() {
        return;
    }
    let listed = right.iter().take(LISTED).map(|arm| format!(" --only {}", arm.name));
    let more = match right.len().saturating_sub(LISTED) {
        0 => String::new(),
        more => format!(" (and {more} more)"),
    };
    let help = format!("help: pick the arms that it fits:{}{more}", listed.collect::<String>());
    for problem in problems {
        if problem.place.as_ref().is_some_and(|place| place.source.path.is_none()) {
            problem.notes.retain(|note| !note.starts_with("help: "));
            problem.notes.insert(0, help.clone());
        }
    }
}

/// All arms, the last axis fastest; `None` if they are too many.
fn draft<'a>(parts: &'a Parts, problems: &mut Problems) -> Option<Vec<Draft<'a>>> {
    let lengths = parts.axes.iter().map(|axis| axis.values.len());
    let count = lengths.fold(parts.scenarios.len(), usize::saturating_mul);
    if count > MAX_ARMS {
        let message = format!("a matrix of {count} arms: {MAX_ARMS} are the most");
        problems.push(
            Problem::at(parts.place.clone(), message)
                .help("each arm has a cluster of its own: leave out scenarios, axes or values"),
        );
        return None;
    }
    let mut drafts: Vec<Draft<'a>> = Vec::with_capacity(count);
    for scenario in &parts.scenarios {
        for index in 0..count / parts.scenarios.len() {
            let mut axes = Vec::with_capacity(parts.axes.len());
            let mut rest = index;
            for axis in parts.axes.iter().rev() {
                axes.push((axis, &axis.values[rest % axis.values.len()]));
                rest /= axis.values.len();
            }
            axes.reverse();
            let name = name(&scenario.name, &axes, &parts.axes);
            let place = axes.last().map_or(&parts.place, |(_, value)| &value.value_place);
            let right = axes.iter().all(|(_, value)| value.value.is_some());
            if right && name.len() > MAX_NAME {
                let message =
                    format!("the arm's name {} is longer than {MAX_NAME} bytes", quote(&name));
                problems.push(
                    Problem::at(place.clone(), message)
                        .help("its folder is named so: use shorter values"),
                );
            } else if let Some(same) =
                drafts.iter().find(|d| right && d.right && d.name.eq_ignore_ascii_case(&name))
            {
                problems.push(
                    Problem::at(place.clone(), format!("two arms of one name: {}", quote(&same.name)))
                        .help("an arm is named after its values, as far as a file name can hold them: make them differ in letters and digits"),
                );
            } else {
                drafts.push(Draft { name, scenario, axes, right });
            }
        }
    }
    Some(drafts)
}

/// `drain-delete+readiness=pass+proxy_mode=nftables`; an axis is named by its key's last segment
/// where no other axis has the same.
fn name(scenario: &str, axes: &[(&Axis, &Setting)], all: &[Axis]) -> String {
    let short = |key: &str| key.rsplit('.').next().unwrap_or_default().to_string();
    let mut name = scenario.to_string();
    for (axis, value) in axes {
        let mut key = short(&axis.key);
        if all.iter().filter(|other| short(&other.key) == key).count() > 1 {
            key.clone_from(&axis.key);
        }
        let safe = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let value: String = value.text.chars().map(|c| if safe(c) { c } else { '-' }).collect();
        name.push_str(&format!("+{key}={value}"));
    }
    name
}

impl Draft<'_> {
    fn resolve(&self, parts: &Parts, flags: &Settings, problems: &mut Problems) -> Option<Arm> {
        let mut settings = self.scenario.settings.clone();
        settings.extend(parts.cluster.clone());
        settings.extend(self.axes.iter().map(|(axis, value)| (axis.key.clone(), (*value).clone())));
        settings.extend(flags.clone());
        let before = problems.count();
        let ScenarioPart { lacks_sigterm, whole, .. } = self.scenario;
        let (lacks_sigterm, whole) = (lacks_sigterm.clone(), *whole);
        let resolved = resolve(&settings, lacks_sigterm, whole, problems);
        for problem in problems.since(before) {
            // Of a scenario's own contradiction the place says enough.
            let own = problem.place.as_ref().is_some_and(|p| p.source == self.scenario.source);
            if !own || !self.axes.is_empty() {
                problem.arms.push(self.name.clone());
            }
        }
        let (config, cluster) = resolved?;
        let axes = self.axes.iter().map(|(axis, value)| (axis.key.clone(), value.text.clone()));
        Some(Arm {
            name: self.name.clone(),
            scenario: self.scenario.name.clone(),
            axes: axes.collect(),
            config,
            cluster,
        })
    }
}
