//! `summary.csv`: a row an arm, over its measured trials.

use super::ReportError;
use super::arms::{Arm, arms};
use super::csv::{Cell, table};
use super::part::Part;
use super::{fate_columns, fates};
use crate::verdict::{Findings, Outcome};

pub(super) fn render(parts: &[Part]) -> Result<Vec<u8>, ReportError> {
    let header: Vec<String> = ["arm", "n"]
        .map(str::to_owned)
        .into_iter()
        .chain(fate_columns())
        .chain(names().flat_map(|name| {
            ["median", "min", "max", "n"].map(|statistic| format!("{name}_{statistic}"))
        }))
        .chain(["aborted", "trigger_refused", "run", "imported_from"].map(str::to_owned))
        .collect();
    table("summary.csv", &header, arms(parts).iter().map(row))
}

fn names() -> impl Iterator<Item = &'static str> {
    Findings::default().figures().into_iter().map(|(name, _)| name)
}

fn row(arm: &Arm) -> Vec<Cell> {
    let mut row = vec![Cell::text(arm.name), Cell::count(arm.measured.len())];
    row.extend(fates().map(|(protocol, fate)| match arm.measured.len() {
        // No trial, no count: 0 would be a measurement.
        0 => Cell::Empty,
        _ => Cell::count(arm.count(protocol, fate)),
    }));
    for name in names() {
        let stats = arm.finding(name);
        row.push(stats.map(|s| s.median).into());
        row.push(stats.map(|s| s.min).into());
        row.push(stats.map(|s| s.max).into());
        row.push(Cell::count(stats.map_or(0, |s| s.n)));
    }
    for outcome in [Outcome::Aborted, Outcome::TriggerRefused] {
        row.push(Cell::count(arm.others.iter().filter(|t| t.outcome == outcome).count()));
    }
    row.push(Cell::text(arm.part.name));
    row.push(arm.part.imported_from().into());
    row
}
