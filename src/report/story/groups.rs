//! A trial's flows by what became of them: thousands in a few lines.

use serde::Serialize;

use crate::observation::Protocol;
use crate::record::Trial;
use crate::report::markdown::kind;
use crate::verdict::{Cause, Fate, FlowRecord};

/// Flows of one fate and one kind of cause.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Group {
    /// Their protocol.
    pub protocol: Protocol,
    /// Their fate.
    pub fate: Fate,
    /// The cause of the first of them; the others' differ from it in their figures alone.
    pub cause: Option<Cause>,
    /// Each of them.
    pub flows: Vec<Member>,
}

/// A flow of a group.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Member {
    /// Its id.
    pub id: String,
    /// When its fate befell it, in milliseconds from the trigger.
    pub ended_ms: Option<f64>,
    /// Milliseconds without an answer before another answered.
    pub outage_ms: Option<f64>,
    /// Refusals that it met.
    pub refusals: u64,
}

/// The groups, those of TCP first.
pub(super) fn of(trial: &Trial) -> Vec<Group> {
    let mut groups: Vec<(Option<String>, Group)> = Vec::new();
    for flow in &trial.flows {
        let FlowRecord { protocol, fate, .. } = *flow;
        let kind = flow.cause.as_ref().map(kind);
        let known = groups
            .iter_mut()
            .find(|(of, group)| *of == kind && group.protocol == protocol && group.fate == fate);
        let member = Member {
            id: flow.id.clone(),
            ended_ms: flow.ended_ms,
            outage_ms: flow.outage_ms,
            refusals: flow.refusals,
        };
        match known {
            Some((_, group)) => group.flows.push(member),
            None => {
                let (cause, flows) = (flow.cause.clone(), vec![member]);
                groups.push((kind, Group { protocol, fate, cause, flows }));
            }
        }
    }
    let mut groups: Vec<Group> = groups.into_iter().map(|(_, group)| group).collect();
    groups.sort_by_key(|group| (group.protocol, group.fate));
    groups
}

/// So many stretches of ids are named.
const NAMED: usize = 6;

/// `udp-1 to udp-10, udp-12`, in the order given; of more stretches than can be read, the first.
pub fn ids_in_words<'a>(ids: impl IntoIterator<Item = &'a str>) -> String {
    let split = |id: &'a str| {
        let name = id.trim_end_matches(|c: char| c.is_ascii_digit());
        (name, id[name.len()..].parse::<u64>().ok())
    };
    let mut runs: Vec<(&str, &str)> = Vec::new();
    let (mut named, mut all) = (0, 0);
    for id in ids {
        all += 1;
        let follows = runs.last().is_some_and(|(_, last)| match (split(last), split(id)) {
            ((before, Some(n)), (name, Some(next))) => {
                before == name && n.checked_add(1) == Some(next)
            }
            _ => false,
        });
        match runs.last_mut() {
            Some(run) if follows => run.1 = id,
            _ => runs.push((id, id)),
        }
        if runs.len() <= NAMED {
            named = all;
        }
    }
    runs.truncate(NAMED);
    let words = |(first, last): (&str, &str)| {
        if first == last { first.to_owned() } else { format!("{first} to {last}") }
    };
    let text = runs.into_iter().map(words).collect::<Vec<_>>().join(", ");
    if named < all { format!("{text} and {} more", all - named) } else { text }
}
