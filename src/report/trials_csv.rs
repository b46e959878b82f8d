//! `trials.csv`: a row a trial, aborted ones and refused triggers included.

use super::ReportError;
use super::arms::count;
use super::csv::{Cell, table};
use super::part::Part;
use super::{fate_columns, fates};
use crate::record::Trial;
use crate::verdict::Findings;

const BEFORE: [&str; 23] = [
    "id",
    "matrix",
    "arm",
    "scenario",
    "axes",
    "repeat",
    "outcome",
    "reason",
    "started_at",
    "tool_version",
    "tool_commit",
    "tool_dirty",
    "environment_digest",
    "environment_cluster",
    "target_pod",
    "target_uid",
    "target_instance",
    "target_node",
    "target_entry_node",
    "sigterm",
    "trigger",
    "grace_period_ms",
    "drain_window_ms",
];

pub(super) fn render(parts: &[Part]) -> Result<Vec<u8>, ReportError> {
    let figures = Findings::default().figures().into_iter().map(|(name, _)| name.to_owned());
    let header: Vec<String> = BEFORE
        .map(str::to_owned)
        .into_iter()
        .chain(fate_columns())
        .chain(figures)
        .chain(["plus_minus_ms", "warnings", "run", "imported_from"].map(str::to_owned))
        .collect();
    let rows = parts.iter().flat_map(|part| part.trials.iter().map(|trial| row(part, trial)));
    table("trials.csv", &header, rows)
}

fn row(part: &Part, trial: &Trial) -> Vec<Cell> {
    let axes: Vec<_> = trial.axes.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let target = |part: fn(&crate::observation::Target) -> &String| {
        Cell::from(trial.target.as_ref().map(|target| part(target).clone()))
    };
    let ms = |duration: std::time::Duration| Cell::Number(duration.as_secs_f64() * 1e3);
    let mut row = vec![
        Cell::text(&trial.id),
        Cell::text(&trial.matrix),
        Cell::text(&trial.arm),
        Cell::text(&trial.scenario),
        Cell::text(axes.join(" ")),
        Cell::Count(trial.repeat.into()),
        Cell::text(trial.outcome.name()),
        trial.reason.clone().into(),
        Cell::text(&trial.started_at),
        Cell::text(&trial.tool.version),
        Cell::text(&trial.tool.commit),
        trial.tool.dirty.map(|dirty| dirty.to_string()).into(),
        Cell::text(&trial.environment.digest),
        Cell::text(&trial.environment.cluster),
        target(|target| &target.pod),
        target(|target| &target.uid),
        target(|target| &target.instance),
        target(|target| &target.node),
        target(|target| &target.entry_node),
        Cell::text(super::words::of(&trial.config.sigterm)),
        Cell::text(super::words::of(&trial.config.trigger)),
        ms(trial.config.grace_period),
        trial.config.drain_window.map_or(Cell::Empty, ms),
    ];
    row.extend(fates().map(|(protocol, fate)| Cell::count(count(trial, protocol, fate))));
    row.extend(trial.findings.figures().into_iter().map(|(_, value)| Cell::from(value)));
    row.push(plus_minus(trial).into());
    let warnings: Vec<&str> = trial.all_warnings().collect();
    row.push(Cell::text(warnings.join("; ")));
    row.push(Cell::text(part.name));
    row.push(trial.imported.as_ref().map(|imported| imported.from.clone()).into());
    row
}

/// The most that relating clocks has added to any of the trial's figures; nothing where one of
/// them has no known bound.
fn plus_minus(trial: &Trial) -> Option<f64> {
    let bounds: Option<Vec<f64>> = trial.finding_bounds.values().map(|b| b.plus_minus_ms).collect();
    bounds?.into_iter().max_by(f64::total_cmp)
}
