//! A trial's own story: what happened around its flows, and what became of them.

use std::collections::BTreeMap;

use super::cast::Cast;
use super::{FORMAT, Mark, Story, Told, facts, groups, in_order, sentences};
use crate::observation::{Bound, Event, Observation, Protocol};
use crate::record::Trial;
use crate::timeline;
use crate::verdict::Outcome;

/// The instants among a trial's findings, in words: all that there is of a trial of another tool.
const INSTANTS: [(&str, &str); 11] = [
    ("sigterm_ms", "the app receives SIGTERM"),
    ("endpoint_not_ready_ms", "the target's endpoint is not ready"),
    ("endpoint_not_serving_ms", "the target's endpoint is not serving"),
    ("endpoint_removed_ms", "the target's endpoint is no longer listed"),
    ("rules_removed_ms", "the entry node's rules leave the target out"),
    ("last_tcp_end_ms", "the last TCP flow ends"),
    ("first_rehomed_ms", "the first UDP flow is answered by another"),
    ("last_rehomed_ms", "the last UDP flow is answered by another"),
    ("first_refused_ms", "the first UDP flow is refused"),
    ("replacement_ready_ms", "the replacement's endpoint is ready"),
    ("container_exit_ms", "the target's container has ended"),
];

/// Of more events of one kind without a sentence of its own, only the first is told.
const TOLD_EACH: usize = 8;

/// The trial's story.
pub fn trial(trial: &Trial) -> Story {
    let cast = Cast::of(trial);
    let outcome = trial.outcome.name().replace('-', " ");
    Story {
        format: FORMAT,
        trial: trial.id.clone(),
        flow: None,
        title: format!("{}: {outcome}", trial.id),
        facts: facts::of_trial(trial, &cast),
        zero: zero(trial),
        lines: in_order(around(trial, &cast, None)),
        groups: groups::of(trial),
        warnings: trial.all_warnings().map(str::to_owned).collect(),
    }
}

/// What a trial's times are counted from.
pub(super) fn zero(trial: &Trial) -> &'static str {
    let sent = |o: &Observation| matches!(o.event, Event::TriggerSent { .. });
    match trial.outcome {
        Outcome::Aborted if trial.imported.is_some() => "its report's zero: it has no trigger",
        Outcome::Aborted if !trial.observations.iter().any(sent) => {
            "the moment at which the trial was given up: no trigger was sent"
        }
        _ => "the trigger",
    }
}

/// What happened around the flows; of the rules for one protocol, or for both.
pub(super) fn around<'a>(trial: &'a Trial, cast: &Cast, of: Option<Protocol>) -> Vec<Told<'a>> {
    if trial.observations.is_empty() {
        return of_findings(trial);
    }
    let mut sorted: Vec<&Observation> =
        trial.observations.iter().filter(|o| o.event.flow().is_none()).collect();
    sorted.sort_by(|a, b| timeline::compare(a, b));
    let mut told = Vec::new();
    let mut rules: Vec<(&Observation, Vec<Protocol>)> = Vec::new();
    let mut others: BTreeMap<String, Vec<&Observation>> = BTreeMap::new();
    for observation in sorted {
        match &observation.event {
            Event::Counters { .. } | Event::Conntrack { .. } | Event::Packet { .. } => {}
            Event::Rules { protocol, .. } => {
                if of.is_none_or(|of| of == *protocol) {
                    match rules.iter_mut().find(|(known, _)| is_one_commit(known, observation)) {
                        Some((_, protocols)) => protocols.push(*protocol),
                        None => rules.push((observation, vec![*protocol])),
                    }
                }
            }
            event => match sentences::sentence(event, cast) {
                Some(text) => told.push(Told::of(observation, text)),
                None => {
                    others.entry(sentences::what(event)).or_default().push(observation);
                }
            },
        }
    }
    for (observation, protocols) in rules {
        let text = sentences::rules(&observation.event, &protocols, cast);
        told.extend(text.map(|text| Told::of(observation, text)));
    }
    told.extend(others.into_values().flat_map(in_their_own_words));
    told
}

/// Whether both tell of one commit that did the same for two protocols.
fn is_one_commit(a: &Observation, b: &Observation) -> bool {
    let of = |o: &Observation| match &o.event {
        Event::Rules { node, endpoints, reject, process, .. } => {
            let pods: Vec<_> = endpoints.iter().map(std::net::SocketAddr::ip).collect();
            Some((o.at, node.clone(), pods, *reject, process.clone()))
        }
        _ => None,
    };
    of(a) == of(b)
}

/// Events of one kind that have no sentence.
fn in_their_own_words(events: Vec<&Observation>) -> Vec<Told<'_>> {
    let words = |o: &Observation| sentences::in_its_own_words(&o.event);
    match (events.as_slice(), events.last()) {
        ([first, ..], Some(last)) if events.len() > TOLD_EACH => {
            let (n, until) = (events.len(), sentences::ms(last.at.ms()));
            let text = format!("{} (the first of {n}, until {until})", words(first));
            vec![Told::of(first, text)]
        }
        _ => events.into_iter().map(|o| Told::of(o, words(o))).collect(),
    }
}

/// What the findings tell of, where nothing else does.
fn of_findings<'a>(trial: &Trial) -> Vec<Told<'a>> {
    let figures = trial.findings.figures();
    let value = |name: &str| figures.iter().find(|(n, _)| *n == name).and_then(|(_, value)| *value);
    let told = INSTANTS.iter().filter_map(|(name, text)| {
        let t_ms = value(name)?;
        let bound = trial.finding_bounds.get(*name);
        let code = trial.findings.container_exit_code.filter(|_| *name == "container_exit_ms");
        let code = code.map(|code| format!(": exit code {code}")).unwrap_or_default();
        Some(Told::bare(
            t_ms,
            bound.map_or(Bound::Exact, |bound| bound.bound),
            bound.and_then(|bound| bound.plus_minus_ms),
            format!("{text}{code}"),
        ))
    });
    let mut told: Vec<_> = told.collect();
    if trial.outcome == Outcome::Measured {
        let text =
            format!("the trigger is sent: {}", super::super::words::of(&trial.config.trigger));
        let mut trigger = Told::bare(0.0, Bound::Exact, Some(0.0), text);
        trigger.line.mark = Mark::Trigger;
        told.insert(0, trigger);
    }
    told
}
