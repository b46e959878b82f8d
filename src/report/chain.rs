//! Where the time goes: the chains of what led to flows' ends, by medians.
//!
//! Takes an arm's trials; gives a row for each link. Flows whose chains have other links stand apart,
//! so that each step is between the same two things; flows whose links are the same in another order do
//! not. Only chains that were measured count; how many flows have none is said.

use std::collections::BTreeSet;

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

/// A link without its time: what it tells of, and of which node.
type Place = (LinkKind, Option<&'static str>);

/// What a chain is made of, in an order that its times have no part in.
type Shape = BTreeSet<Place>;

fn of_fate(arm: &Arm, protocol: Protocol, fate: Fate) -> Vec<Row> {
    let mut shapes: Vec<Shape> = Vec::new();
    for trial in &arm.measured {
        for chain in chains(trial, protocol, fate) {
            let shape = chain.shape();
            if !shapes.contains(&shape) {
                shapes.push(shape);
            }
        }
    }
    let of_fate = of_fate_in_words(arm, protocol, fate);
    let mut rows = Vec::new();
    for shape in shapes {
        let with: Vec<Vec<Chain>> = arm
            .measured
            .iter()
            .map(|trial| {
                let chains = chains(trial, protocol, fate);
                chains.filter(|chain| chain.shape() == shape).collect()
            })
            .collect();
        let flows: usize = with.iter().map(Vec::len).sum();
        let trials = with.iter().filter(|chains| !chains.is_empty()).count();
        let mut before = None;
        for (place, at) in in_order(&shape, &with) {
            let since = before.replace(place);
            let step = over(&with, |chain| {
                Some(chain.get(place)? - since.map_or(Some(0.0), |since| chain.get(since))?)
            });
            let (kind, node) = place;
            let node = node.map(|node| format!(" ({node})")).unwrap_or_default();
            rows.push(vec![
                arm.name.to_owned(),
                format!("{} {}", protocol.name(), fate.name()),
                format!("{flows} of {of_fate}"),
                format!("{trials} of {}", arm.measured.len()),
                format!("{}{node}", words::link(kind)),
                words::stats(Some(at), trials),
                words::stats(step, trials),
            ]);
        }
    }
    rows
}

/// The links with their times, in the order of cause and effect: as they mostly stand in the chains.
fn in_order(shape: &Shape, with: &[Vec<Chain>]) -> Vec<(Place, Stats)> {
    let places = |place: &Place| -> usize {
        with.iter().flatten().filter_map(|chain| chain.position(*place)).sum()
    };
    // The trigger is the zero of all times.
    let links = shape.iter().filter(|(kind, _)| *kind != LinkKind::Trigger);
    let at = |place: &Place| over(with, |chain| chain.get(*place));
    let mut links: Vec<_> = links.filter_map(|place| Some((*place, at(place)?))).collect();
    links.sort_by_key(|(place, _)| places(place));
    links
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
fn over(trials: &[Vec<Chain>], figure: impl Fn(&Chain) -> Option<f64>) -> Option<Stats> {
    Stats::of(trials.iter().filter_map(|chains| {
        Stats::of(chains.iter().filter_map(&figure)).map(|stats| stats.median)
    }))
}

fn met(trial: &Trial, protocol: Protocol, fate: Fate) -> impl Iterator<Item = &FlowRecord> {
    flows(trial, protocol).filter(move |flow| flow.fate == fate)
}

/// A flow's links, in the trial that says whose each node is.
struct Chain<'a> {
    trial: &'a Trial,
    links: &'a [Link],
}

impl Chain<'_> {
    fn shape(&self) -> Shape {
        self.links.iter().map(|link| (link.what, place(self.trial, link))).collect()
    }

    /// When a link was.
    fn get(&self, at: Place) -> Option<f64> {
        self.position(at).map(|position| self.links[position].t_ms)
    }

    fn position(&self, at: Place) -> Option<usize> {
        self.links.iter().position(|link| (link.what, place(self.trial, link)) == at)
    }
}

/// The chains that were measured, of a trial's flows that met this fate.
fn chains(trial: &Trial, protocol: Protocol, fate: Fate) -> impl Iterator<Item = Chain<'_>> {
    let causes = met(trial, protocol, fate).filter_map(|flow| flow.cause.as_ref());
    let measured = causes.filter(|cause| cause.basis == Basis::Measured);
    let chains = measured.map(move |cause| Chain { trial, links: &cause.chain });
    chains.filter(|chain| !chain.links.is_empty())
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
    fn the_same_links_in_another_order_are_one_chain() {
        let ready_first = [(Trigger, 0.0), (EndpointNotReady, 4.0), (EntryDestroyed, 6.0)];
        let ready_last = [(Trigger, 0.0), (EntryDestroyed, 6.0), (EndpointNotReady, 7.0)];
        let trials = [1, 2, 3].map(|repeat| {
            let chain = if repeat == 3 { &ready_last } else { &ready_first };
            chained(repeat, &[(Basis::Measured, chain)])
        });
        assert_eq!(
            table(&trials),
            [
                "UDP rehomed | 3 of 12 (9 inferred) | 3 of 3 | endpoint not ready | 4.0 (4.0–7.0) | 4.0 (4.0–7.0)",
                "UDP rehomed | 3 of 12 (9 inferred) | 3 of 3 | entry destroyed | 6.0 (6.0–6.0) | 2.0 (-1.0–2.0)",
            ]
        );
    }

    #[test]
    fn what_is_inferred_has_no_row() {
        assert!(table(&[stories::drain(1), stories::scale(1)]).is_empty());
    }
}
