//! Where the time goes: the chains of what led to flows' ends, by medians.
//!
//! Takes an arm's trials; gives a row for each link. Flows whose chains have other links stand apart,
//! so that each step is between the same two things. Only chains that were measured count; how many
//! flows have none is said.

use super::arms::{Arm, count, flows};
use super::markdown::Row;
use super::stats::Stats;
use super::words;
use crate::observation::Protocol;
use crate::record::Trial;
use crate::verdict::{Basis, Fate, FlowRecord, Link, LinkKind};

/// A row for each link of each kind of chain that an arm's flows have.
pub(super) fn rows(arm: &Arm) -> Vec<Row> {
    super::fates().flat_map(|(protocol, fate)| of_fate(arm, protocol, fate)).collect()
}

/// What a chain is made of, without its times.
type Shape = Vec<(LinkKind, Option<&'static str>)>;

fn of_fate(arm: &Arm, protocol: Protocol, fate: Fate) -> Vec<Row> {
    let mut shapes: Vec<Shape> = Vec::new();
    for trial in &arm.measured {
        for chain in chains(trial, protocol, fate) {
            let shape = shape(trial, chain);
            if !shapes.contains(&shape) {
                shapes.push(shape);
            }
        }
    }
    let of_fate = of_fate_in_words(arm, protocol, fate);
    let mut rows = Vec::new();
    for shape in shapes {
        let with: Vec<Vec<&[Link]>> = arm
            .measured
            .iter()
            .map(|trial| {
                let chains = chains(trial, protocol, fate);
                chains.filter(|chain| self::shape(trial, chain) == shape).collect()
            })
            .collect();
        let flows: usize = with.iter().map(Vec::len).sum();
        let trials = with.iter().filter(|chains| !chains.is_empty()).count();
        for (index, (kind, place)) in shape.iter().enumerate() {
            // It is the zero of all times.
            if *kind == LinkKind::Trigger {
                continue;
            }
            let at = over(&with, |chain| Some(chain.get(index)?.t_ms));
            let step = over(&with, |chain| {
                let before = index.checked_sub(1).and_then(|before| chain.get(before));
                Some(chain.get(index)?.t_ms - before.map_or(0.0, |link| link.t_ms))
            });
            let place = place.map(|place| format!(" ({place})")).unwrap_or_default();
            rows.push(vec![
                arm.name.to_owned(),
                format!("{} {}", protocol.name(), fate.name()),
                format!("{flows} of {of_fate}"),
                format!("{trials} of {}", arm.measured.len()),
                format!("{}{place}", words::link(*kind)),
                words::stats(at, trials),
                words::stats(step, trials),
            ]);
        }
    }
    rows
}

/// `20`, or `20 (4 inferred)`: all flows of this fate.
fn of_fate_in_words(arm: &Arm, protocol: Protocol, fate: Fate) -> String {
    let all: usize = arm.measured.iter().map(|trial| count(trial, protocol, fate)).sum();
    let met = arm.measured.iter().flat_map(|trial| met(trial, protocol, fate));
    let causes = met.filter_map(|flow| flow.cause.as_ref());
    match causes.filter(|cause| cause.basis == Basis::Inferred).count() {
        0 => all.to_string(),
        inferred => format!("{all} ({inferred} inferred)"),
    }
}

/// A trial's figure is the median of its flows'; those of the trials are what is told of.
fn over(trials: &[Vec<&[Link]>], figure: impl Fn(&[Link]) -> Option<f64>) -> Option<Stats> {
    Stats::of(trials.iter().filter_map(|chains| {
        Stats::of(chains.iter().filter_map(|chain| figure(chain))).map(|stats| stats.median)
    }))
}

fn met(trial: &Trial, protocol: Protocol, fate: Fate) -> impl Iterator<Item = &FlowRecord> {
    flows(trial, protocol).filter(move |flow| flow.fate == fate)
}

/// The chains that were measured, of a trial's flows that met this fate.
fn chains(trial: &Trial, protocol: Protocol, fate: Fate) -> impl Iterator<Item = &[Link]> {
    let causes = met(trial, protocol, fate).filter_map(|flow| flow.cause.as_ref());
    let measured = causes.filter(|cause| cause.basis == Basis::Measured);
    measured.map(|cause| cause.chain.as_slice()).filter(|chain| !chain.is_empty())
}

fn shape(trial: &Trial, chain: &[Link]) -> Shape {
    chain.iter().map(|link| (link.what, place(trial, link))).collect()
}

/// Which node a link tells of: a node's own name may be another one in each trial.
fn place(trial: &Trial, link: &Link) -> Option<&'static str> {
    let (node, target) = (link.node.as_ref()?, trial.target.as_ref()?);
    match (*node == target.entry_node, *node == target.node) {
        (true, true) => Some("the pod's node, which flows enter by"),
        (true, false) => Some("the entry node"),
        (false, true) => Some("the pod's node"),
        (false, false) => Some("another node"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::{Bound, Source};
    use crate::report::{Part, arms};
    use crate::stories;
    use crate::verdict::Cause;

    fn link(what: LinkKind, t_ms: f64) -> Link {
        let (bound, plus_minus_ms) = (Bound::Exact, Some(0.0));
        let source = Source::Flow;
        Link { what, t_ms, bound, plus_minus_ms, source, node: None }
    }

    fn chained(repeat: u32, flows: &[(Basis, &[(LinkKind, f64)])]) -> Trial {
        let mut trial = stories::drain(repeat);
        let udp = trial.flows.iter_mut().filter(|flow| flow.protocol == Protocol::Udp);
        for (flow, (basis, links)) in udp.zip(flows) {
            let chain = links.iter().map(|(kind, t_ms)| link(*kind, *t_ms)).collect();
            flow.cause = Some(Cause { text: "a cause".into(), basis: *basis, chain });
        }
        trial
    }

    fn table(trials: &[Trial]) -> Vec<String> {
        let parts = [Part { name: "run", trials, run: None }];
        let arms = arms::arms(&parts);
        arms.iter().flat_map(rows).map(|row| row[1..].join(" | ")).collect()
    }

    use LinkKind::{Answered, EndpointNotReady, EntryDestroyed, Trigger};

    #[test]
    fn each_trial_counts_once_however_many_of_its_flows_have_the_chain() {
        let of = |ms: f64| vec![(Trigger, 0.0), (EntryDestroyed, ms), (Answered, ms + 2.0)];
        let (a, b, c, d) = (of(100.0), of(200.0), of(300.0), of(900.0));
        let measured = Basis::Measured;
        let one = chained(1, &[(measured, &a), (measured, &b), (measured, &c), (measured, &c)]);
        let two = chained(2, &[(measured, &d), (Basis::Inferred, &a)]);
        assert_eq!(
            table(&[one, two]),
            [
                // Two flows of the second trial have the cause that their story gives them.
                "UDP rehomed | 5 of 8 (3 inferred) | 2 of 2 | entry destroyed | 575 (250–900) | 575 (250–900)",
                "UDP rehomed | 5 of 8 (3 inferred) | 2 of 2 | answered | 577 (252–902) | 2.0 (2.0–2.0)",
            ]
        );
    }

    #[test]
    fn chains_of_other_links_are_not_mixed() {
        let short = [(Trigger, 0.0), (Answered, 10.0)];
        let long = [(Trigger, 0.0), (EndpointNotReady, 4.0), (Answered, 30.0)];
        let trial = chained(1, &[(Basis::Measured, &short), (Basis::Measured, &long)]);
        assert_eq!(
            table(&[trial]),
            [
                "UDP rehomed | 1 of 4 (2 inferred) | 1 of 1 | answered | 10.0 | 10.0",
                "UDP rehomed | 1 of 4 (2 inferred) | 1 of 1 | endpoint not ready | 4.0 | 4.0",
                "UDP rehomed | 1 of 4 (2 inferred) | 1 of 1 | answered | 30.0 | 26.0",
            ]
        );
    }

    #[test]
    fn what_is_inferred_has_no_row() {
        assert!(table(&[stories::drain(1), stories::scale(1)]).is_empty());
    }
}
