//! New connections: what they met, and the figures that follow from it.
//!
//! Takes sorted observations, the target and the figures of endpoints and rules; gives a list of dials
//! and their figures. A dial's instant is its start. Dials that failed on our side, or that were given up
//! with the trial, are listed and never counted as failed.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::world::ms_between;
use super::{FindingBound, Findings};
use crate::clock::Ms;
use crate::observation::{
    Bound, DialKind, DialOutcome, DialTimes, Event, Identity, Observation, Protocol, Target,
};

/// Dials that met the same, with no long stretch between them in which none did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct DialRecord {
    /// What they met, and whom.
    #[serde(flatten)]
    pub kind: DialKind,
    /// The first one's start.
    pub from_ms: f64,
    /// The last one's start.
    pub to_ms: f64,
    /// How many.
    pub count: u64,
    /// From the start until it had connected (TCP).
    pub connect: Option<DialTimes>,
    /// From the start until it was known what the dial met: the first answer, the refusal, the timeout.
    pub took: Option<DialTimes>,
}

/// The figures of new connections, in milliseconds from the trigger (`_ms`) or as named; null where
/// none were made.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default)]
pub struct DialFindings {
    /// TCP dials that were started after the trigger and not accepted.
    pub failed_tcp_dials: Option<u64>,
    /// The first of those was started.
    pub first_failed_tcp_dial_ms: Option<f64>,
    /// The last of those was started.
    pub last_failed_tcp_dial_ms: Option<f64>,
    /// From the last failed TCP dial to the endpoint's removal; negative where TCP dials failed after it.
    pub failed_tcp_dials_to_endpoint_removed_ms: Option<f64>,
    /// From the last failed TCP dial to `rules_removed_ms`; negative where TCP dials failed after it.
    pub failed_tcp_dials_to_rules_removed_ms: Option<f64>,
    /// The first TCP dial was started that a process accepted which had served nobody before the trigger.
    pub first_tcp_dial_by_replacement_ms: Option<f64>,
    /// UDP dials that were started after the trigger and not answered.
    pub failed_udp_dials: Option<u64>,
    /// The first of those was started.
    pub first_failed_udp_dial_ms: Option<f64>,
    /// The last of those was started.
    pub last_failed_udp_dial_ms: Option<f64>,
    /// From the last failed UDP dial to the endpoint's removal; negative where UDP dials failed after it.
    pub failed_udp_dials_to_endpoint_removed_ms: Option<f64>,
    /// From the last failed UDP dial to `rules_removed_ms`; negative where UDP dials failed after it.
    pub failed_udp_dials_to_rules_removed_ms: Option<f64>,
    /// The first UDP dial was started that a process answered which had served nobody before the trigger.
    pub first_udp_dial_by_replacement_ms: Option<f64>,
}

impl DialFindings {
    /// Each figure by its name in the record, in its order; counts are figures too.
    pub fn figures(&self) -> [(&'static str, Option<f64>); 12] {
        let count = |count: Option<u64>| count.map(|count| count as f64);
        [
            ("failed_tcp_dials", count(self.failed_tcp_dials)),
            ("first_failed_tcp_dial_ms", self.first_failed_tcp_dial_ms),
            ("last_failed_tcp_dial_ms", self.last_failed_tcp_dial_ms),
            (
                "failed_tcp_dials_to_endpoint_removed_ms",
                self.failed_tcp_dials_to_endpoint_removed_ms,
            ),
            ("failed_tcp_dials_to_rules_removed_ms", self.failed_tcp_dials_to_rules_removed_ms),
            ("first_tcp_dial_by_replacement_ms", self.first_tcp_dial_by_replacement_ms),
            ("failed_udp_dials", count(self.failed_udp_dials)),
            ("first_failed_udp_dial_ms", self.first_failed_udp_dial_ms),
            ("last_failed_udp_dial_ms", self.last_failed_udp_dial_ms),
            (
                "failed_udp_dials_to_endpoint_removed_ms",
                self.failed_udp_dials_to_endpoint_removed_ms,
            ),
            ("failed_udp_dials_to_rules_removed_ms", self.failed_udp_dials_to_rules_removed_ms),
            ("first_udp_dial_by_replacement_ms", self.first_udp_dial_by_replacement_ms),
        ]
    }
}

/// The dials, in the order of their starts, TCP before UDP.
pub(super) fn records(sorted: &[&Observation]) -> Vec<DialRecord> {
    let mut dials: Vec<(Ms, DialRecord)> = sorted
        .iter()
        .filter_map(|observation| match &observation.event {
            Event::Dials { kind, from, to, count, connect, took } => {
                let (kind, count, connect, took) = (kind.clone(), *count, *connect, *took);
                let (from_ms, to_ms) = (from.ms(), to.ms());
                Some((*from, DialRecord { kind, from_ms, to_ms, count, connect, took }))
            }
            _ => None,
        })
        .collect();
    // Stable, and what comes in was sorted: no order of arrival matters.
    dials.sort_by_key(|(from, dial)| (dial.kind.protocol, *from, dial.kind.outcome));
    dials.into_iter().map(|(_, dial)| dial).collect()
}

/// What a reader should know of the dials before using their figures.
pub(super) fn warnings(dials: &[DialRecord]) -> Vec<String> {
    let mut warnings = Vec::new();
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        let count = |which: &dyn Fn(&DialRecord) -> bool| {
            let of = dials.iter().filter(|dial| dial.kind.protocol == protocol && which(dial));
            of.fold(0_u64, |sum, dial| sum.saturating_add(dial.count))
        };
        let name = protocol.name();
        let early = count(&|dial| dial.kind.outcome.is_failure() && dial.to_ms < 0.0);
        if early > 0 {
            warnings.push(format!("{early} new {name} connections failed before the trigger"));
        }
        let here = count(&|dial| dial.kind.outcome == DialOutcome::FailedHere);
        if here > 0 {
            warnings.push(format!(
                "{here} new {name} connections failed on this machine: they count in no figure"
            ));
        }
    }
    warnings
}

/// Fills in the figures of dials, and how exact each is.
pub(super) fn find(
    sorted: &[&Observation],
    target: Option<&Target>,
    findings: &mut Findings,
    bounds: &mut BTreeMap<String, FindingBound>,
) {
    let [tcp, udp] =
        [Protocol::Tcp, Protocol::Udp].map(|protocol| Found::of(sorted, protocol, target));
    let to = |found: &Found, instant: &str, at: Option<f64>| {
        let since = found.last_failed?;
        let at = at.and_then(|at| Some((Ms::from_ms(at), bounds.get(instant)?)));
        at.map(|(at, bound)| (ms_between(at, since.at), bound.bound, sum(bound, &since)))
    };
    let [tcp_endpoint, udp_endpoint] =
        [&tcp, &udp].map(|found| to(found, "endpoint_removed_ms", findings.endpoint_removed_ms));
    let [tcp_rules, udp_rules] =
        [&tcp, &udp].map(|found| to(found, "rules_removed_ms", findings.rules_removed_ms));
    let mut exact = |name: &str, instant: Option<Instant>| {
        let Instant { at, plus_minus_ms } = instant?;
        bounds.insert(name.to_owned(), FindingBound { bound: Bound::Exact, plus_minus_ms });
        Some(at.ms())
    };
    let mut dials = DialFindings {
        failed_tcp_dials: tcp.failed,
        first_failed_tcp_dial_ms: exact("first_failed_tcp_dial_ms", tcp.first_failed),
        last_failed_tcp_dial_ms: exact("last_failed_tcp_dial_ms", tcp.last_failed),
        first_tcp_dial_by_replacement_ms: exact(
            "first_tcp_dial_by_replacement_ms",
            tcp.by_replacement,
        ),
        failed_udp_dials: udp.failed,
        first_failed_udp_dial_ms: exact("first_failed_udp_dial_ms", udp.first_failed),
        last_failed_udp_dial_ms: exact("last_failed_udp_dial_ms", udp.last_failed),
        first_udp_dial_by_replacement_ms: exact(
            "first_udp_dial_by_replacement_ms",
            udp.by_replacement,
        ),
        ..DialFindings::default()
    };
    let mut difference = |name: &str, found: Option<(f64, Bound, Option<f64>)>| {
        let (ms, bound, plus_minus_ms) = found?;
        bounds.insert(name.to_owned(), FindingBound { bound, plus_minus_ms });
        Some(ms)
    };
    dials.failed_tcp_dials_to_endpoint_removed_ms =
        difference("failed_tcp_dials_to_endpoint_removed_ms", tcp_endpoint);
    dials.failed_tcp_dials_to_rules_removed_ms =
        difference("failed_tcp_dials_to_rules_removed_ms", tcp_rules);
    dials.failed_udp_dials_to_endpoint_removed_ms =
        difference("failed_udp_dials_to_endpoint_removed_ms", udp_endpoint);
    dials.failed_udp_dials_to_rules_removed_ms =
        difference("failed_udp_dials_to_rules_removed_ms", udp_rules);
    findings.dials = dials;
}

/// The start of a dial, which was read on the runner's clock.
#[derive(Clone, Copy, Debug)]
struct Instant {
    at: Ms,
    plus_minus_ms: Option<f64>,
}

fn sum(bound: &FindingBound, since: &Instant) -> Option<f64> {
    Some(bound.plus_minus_ms? + since.plus_minus_ms?)
}

/// What is found of one protocol's dials.
#[derive(Debug, Default)]
struct Found {
    /// `None` where none were made after the trigger.
    failed: Option<u64>,
    first_failed: Option<Instant>,
    last_failed: Option<Instant>,
    by_replacement: Option<Instant>,
}

impl Found {
    fn of(sorted: &[&Observation], protocol: Protocol, target: Option<&Target>) -> Self {
        let before = ServedBefore::read(sorted, target);
        let mut found = Self::default();
        for observation in sorted {
            let Event::Dials { kind, from, to, count, .. } = &observation.event else { continue };
            let counts = kind.protocol == protocol && kind.outcome.is_of_the_cluster();
            if !counts || *to < Ms(0) {
                continue;
            }
            let instant = |at| Instant { at, plus_minus_ms: observation.plus_minus_ms };
            // The runner lets none reach across the trigger. Of one that does, its last dial alone is
            // known to have come after it.
            let first = instant(if *from < Ms(0) { *to } else { *from });
            let failed = found.failed.get_or_insert(0);
            if kind.outcome.is_failure() {
                *failed = failed.saturating_add(*count);
                found.first_failed = earlier(found.first_failed, first);
                found.last_failed = later(found.last_failed, instant(*to));
            } else if kind.by.as_ref().is_some_and(|by| target.is_some() && !before.served(by)) {
                found.by_replacement = earlier(found.by_replacement, first);
            }
        }
        found
    }
}

fn earlier(known: Option<Instant>, other: Instant) -> Option<Instant> {
    Some(known.filter(|known| known.at <= other.at).unwrap_or(other))
}

fn later(known: Option<Instant>, other: Instant) -> Option<Instant> {
    Some(known.filter(|known| known.at >= other.at).unwrap_or(other))
}

/// Who served before the trigger: not only the target, where it has other pods beside it.
struct ServedBefore<'a> {
    processes: BTreeSet<(&'a str, &'a str)>,
    /// Pods that were ready then, though no dial may have met them.
    pods: BTreeSet<&'a str>,
    target: Option<&'a Target>,
}

impl<'a> ServedBefore<'a> {
    fn read(sorted: &[&'a Observation], target: Option<&'a Target>) -> Self {
        let mut before = Self { processes: BTreeSet::new(), pods: BTreeSet::new(), target };
        for observation in sorted {
            match &observation.event {
                Event::Dials { kind: DialKind { by: Some(by), outcome, .. }, from, .. }
                    if *from < Ms(0) && *outcome == DialOutcome::Accepted =>
                {
                    before.processes.insert((&by.uid, &by.instance));
                }
                Event::Endpoint { uid, ready: true, .. } if observation.at < Ms(0) => {
                    before.pods.insert(uid);
                }
                _ => {}
            }
        }
        before
    }

    fn served(&self, by: &Identity) -> bool {
        let (uid, instance) = (by.uid.as_str(), by.instance.as_str());
        // The target's container may have been started anew: another process of the same pod.
        let known = match self.target.filter(|target| target.uid == uid) {
            Some(target) => target.instance == instance,
            None => self.pods.contains(uid),
        };
        known || self.processes.contains(&(uid, instance))
    }
}

#[cfg(test)]
#[path = "dials_tests.rs"]
mod tests;
