//! `flows.csv`: a row a flow, of every trial.

use super::ReportError;
use super::csv::{Cell, table};
use super::part::Part;
use crate::record::Trial;
use crate::verdict::{Fate, FlowRecord};

const HEADER: [&str; 21] = [
    "trial",
    "matrix",
    "arm",
    "repeat",
    "outcome",
    "id",
    "protocol",
    "fate",
    "ended_ms",
    "outage_ms",
    "refusals",
    "spans",
    "answers",
    "first_answer_ms",
    "last_answer_ms",
    "first_instance",
    "last_instance",
    "cause",
    "cause_basis",
    "run",
    "imported_from",
];

pub(super) fn render(parts: &[Part]) -> Result<Vec<u8>, ReportError> {
    let trials = parts.iter().flat_map(|part| part.trials.iter().map(move |trial| (part, trial)));
    let rows =
        trials.flat_map(|(part, trial)| trial.flows.iter().map(move |flow| row(part, trial, flow)));
    table("flows.csv", &HEADER.map(str::to_owned), rows)
}

fn row(part: &Part, trial: &Trial, flow: &FlowRecord) -> Vec<Cell> {
    let (first, last) = (flow.spans.first(), flow.spans.last());
    let instance = |span: Option<&crate::verdict::FlowSpan>| {
        Cell::from(span.map(|span| span.by.instance.clone()))
    };
    let answers = flow.spans.iter().fold(0u64, |sum, span| sum.saturating_add(span.answers));
    let cause = flow.cause.as_ref();
    // What another tool did not tell of is no measurement of none.
    let told = |cell| if trial.imported.is_some() { Cell::Empty } else { cell };
    let refusals = match flow.fate {
        Fate::NotMeasured => told(Cell::Count(flow.refusals)),
        _ => Cell::Count(flow.refusals),
    };
    vec![
        Cell::text(&trial.id),
        Cell::text(&trial.matrix),
        Cell::text(&trial.arm),
        Cell::Count(trial.repeat.into()),
        Cell::text(trial.outcome.name()),
        Cell::text(&flow.id),
        Cell::text(flow.protocol.name().to_lowercase()),
        Cell::text(flow.fate.name()),
        flow.ended_ms.into(),
        flow.outage_ms.into(),
        refusals,
        told(Cell::count(flow.spans.len())),
        told(Cell::Count(answers)),
        first.map(|span| span.from_ms).into(),
        flow.spans.iter().map(|span| span.to_ms).max_by(f64::total_cmp).into(),
        instance(first),
        instance(last),
        cause.map(|cause| cause.text.clone()).into(),
        cause.map(|cause| cause.basis.name().to_owned()).into(),
        Cell::text(part.name),
        trial.imported.as_ref().map(|imported| imported.from.clone()).into(),
    ]
}
