//! What happened around the flows: the target's app, its container, its endpoint, the watches.
//!
//! Takes sorted observations and the target; gives each fact once, with how exact it is. Knows
//! nothing of flows' fates.

use std::collections::BTreeMap;

use crate::clock::Ms;
use crate::evidence::counters::{Values, own_drops, refusals};
use crate::observation::Target;
use crate::observation::{Bound, Event, Observation, Source};

/// An instant and how exact it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Timed {
    pub at: Ms,
    pub bound: Bound,
    pub plus_minus_ms: Option<f64>,
}

impl Timed {
    pub fn of(observation: &Observation) -> Self {
        let Observation { at, bound, plus_minus_ms, .. } = *observation;
        Self { at, bound, plus_minus_ms }
    }

    /// Whether it may have been at `other` or before, as far as their clocks can tell.
    pub fn may_precede(self, other: Self) -> bool {
        let slack = self.plus_minus_ms.unwrap_or(0.0) + other.plus_minus_ms.unwrap_or(0.0);
        ms_between(other.at, self.at) + slack >= 0.0
    }
}

/// `later - earlier` in milliseconds; saturates, since recorded times may be anything.
pub(super) fn ms_between(later: Ms, earlier: Ms) -> f64 {
    Ms(later.0.saturating_sub(earlier.0)).ms()
}

/// A fact of one process of the target pod.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Of<'a, T> {
    pub instance: &'a str,
    pub time: Timed,
    pub what: T,
}

/// All that is known of the target and of the watches on it.
#[derive(Debug, Default)]
pub(super) struct World<'a> {
    pub sigterms: Vec<Of<'a, ()>>,
    pub resets_forced: Vec<Of<'a, ()>>,
    pub drains_started: Vec<Of<'a, ()>>,
    /// Whether no flow was left.
    pub drains_ended: Vec<Of<'a, bool>>,
    /// The exit code that the probe announced.
    pub exiting: Vec<Of<'a, i32>>,
    pub started: Vec<Of<'a, ()>>,
    pub endpoint: EndpointStory,
    /// Another pod's endpoint was seen ready.
    pub replacement_ready: Option<Timed>,
    /// The container's end after the trigger, and its code.
    pub container_exit: Option<(Timed, i32)>,
    /// The end of the container's process after the trigger, and its code where the kernel told it.
    pub process_exit: Option<(Timed, Option<i32>)>,
    /// The container's ends before the trigger.
    pub early_exits: Vec<(Timed, i32)>,
    /// The most restarts that were seen of the target's container.
    pub restarts: i32,
    pub gaps: Vec<Gap<'a>>,
    /// Times in which a node's source of evidence may have missed something, by node.
    pub evidence_gaps: Vec<(&'a str, Gap<'a>)>,
    pub logs_lost: Vec<&'a str>,
    /// What pods' own sockets dropped, by pairs of readings between which it moved.
    pub drops: Vec<Drops<'a>>,
    /// What this machine's backlog had no room for after the trigger.
    pub backlog_drops: u64,
    /// What nodes' connection tracking tables refused or gave up after the trigger, by node.
    pub table_losses: BTreeMap<&'a str, u64>,
    pub refusals: Refusals<'a>,
    /// The end of the observation, and whether it was complete.
    pub ended: Option<(Timed, bool)>,
}

/// What was counted of refusals since the last reading before the trigger.
#[derive(Debug, Default)]
pub(super) struct Refusals<'a> {
    pub of_target: Option<Counted>,
    pub of_nodes: BTreeMap<&'a str, Counted>,
}

/// Refusals that were sent, and that a limiter withheld, until a reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counted {
    pub sent: u64,
    pub withheld: u64,
    pub until: Ms,
}

/// Datagrams that our own side dropped: a pod's sockets, or a flow's own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Drops<'a> {
    /// `pod:UID`, or a flow.
    pub by: &'a str,
    /// The last reading before they were dropped.
    pub from: Ms,
    /// The first one after it.
    pub until: Ms,
    pub count: u64,
}

impl Drops<'_> {
    /// Whether some of them may have been dropped in this time.
    pub fn may_lie_in(&self, from: Ms, until: Ms) -> bool {
        self.from <= until && self.until >= from
    }
}

/// A time in which a watch saw nothing, or may have missed something.
#[derive(Debug)]
pub(super) struct Gap<'a> {
    pub watch: Source,
    pub from: Ms,
    pub until: Ms,
    pub reason: &'a str,
}

/// When the target's endpoint was seen to stop being what it was, after the trigger.
#[derive(Debug, Default)]
pub(super) struct EndpointStory {
    pub not_ready: Option<Timed>,
    pub not_serving: Option<Timed>,
    /// Whether it was still listed when it was first seen not to serve.
    pub listed_not_serving: bool,
    pub removed: Option<Timed>,
    /// What of it was lost before the trigger, and when.
    pub early: Vec<(&'static str, Ms)>,
}

impl<'a> World<'a> {
    /// Reads sorted observations.
    pub fn read(sorted: &[&'a Observation], target: Option<&Target>) -> Self {
        let mut world = Self::default();
        let mut slices = BTreeMap::new();
        let mut others = BTreeMap::new();
        let mut readings = BTreeMap::new();
        let mut before = BTreeMap::new();
        for &observation in sorted {
            world.tell(observation, target, &mut slices, &mut others);
            world.count_refusals(observation, target, &mut before);
            world.count(observation, &mut readings);
        }
        world
    }

    /// The end of the target's process or, where that was not seen, of its container, and its code.
    pub fn gone(&self) -> Option<(Timed, Option<i32>)> {
        let container = self.container_exit.map(|(time, code)| (time, Some(code)));
        match (self.process_exit, container) {
            (Some((time, code)), told) => Some((time, code.or(told.and_then(|(_, code)| code)))),
            (None, told) => told,
        }
    }

    /// What of refusals was counted since the last reading before the trigger.
    fn count_refusals(
        &mut self,
        observation: &'a Observation,
        target: Option<&Target>,
        before: &mut BTreeMap<&'a str, &'a Values>,
    ) {
        let Event::Counters { of, values } = &observation.event else { return };
        let until = observation.at;
        if until <= Ms(0) {
            before.insert(of, values);
            return;
        }
        let counted = before.get(of.as_str()).and_then(|before| refusals(before, values));
        let Some((sent, withheld)) = counted else { return };
        let counted = Counted { sent, withheld, until };
        if let Some(node) = of.strip_prefix("node:") {
            self.refusals.of_nodes.insert(node, counted);
        } else if of.strip_prefix("pod:").is_some_and(|uid| target.is_some_and(|t| t.uid == uid)) {
            self.refusals.of_target = Some(counted);
        }
    }

    /// What moved since the same place was read before.
    fn count(
        &mut self,
        observation: &'a Observation,
        readings: &mut BTreeMap<&'a str, (Ms, &'a Values)>,
    ) {
        let Event::Counters { of, values } = &observation.event else { return };
        let until = observation.at;
        let Some((from, before)) = readings.insert(of, (until, values)) else { return };
        if of.starts_with("pod:") {
            let count = own_drops(before, values);
            if count > 0 {
                self.drops.push(Drops { by: of, from, until, count });
            }
        } else if let Some(node) = of.strip_prefix("node:").filter(|_| until > Ms(0)) {
            let lost = |values: &Values| {
                let names = ["conntrack.drop", "conntrack.early_drop"];
                let counts = names.iter().filter_map(|name| values.get(*name));
                counts.copied().fold(0, u64::saturating_add)
            };
            let count = lost(values).saturating_sub(lost(before));
            if count > 0 {
                let losses = self.table_losses.entry(node).or_default();
                *losses = losses.saturating_add(count);
            }
        } else if of == "machine" && until > Ms(0) {
            let dropped = |values: &Values| values.get("softnet.dropped").copied().unwrap_or(0);
            let count = dropped(values).saturating_sub(dropped(before));
            self.backlog_drops = self.backlog_drops.saturating_add(count);
        }
    }

    fn tell(
        &mut self,
        observation: &'a Observation,
        target: Option<&Target>,
        slices: &mut BTreeMap<&'a str, Conditions>,
        others: &mut BTreeMap<&'a str, bool>,
    ) {
        let time = Timed::of(observation);
        let ours = |uid: &str| target.is_some_and(|target| target.uid == uid);
        match &observation.event {
            Event::WatchGap { until, reason } => {
                let (watch, from) = (observation.source, observation.at);
                self.gaps.push(Gap { watch, from, until: *until, reason });
            }
            Event::EvidenceGap { node, until, reason } => {
                let (watch, from) = (observation.source, observation.at);
                self.evidence_gaps.push((node, Gap { watch, from, until: *until, reason }));
            }
            Event::LogLost { uid, reason } if ours(uid) => self.logs_lost.push(reason),
            Event::ObservationEnded { complete } => {
                self.ended.get_or_insert((time, *complete));
            }
            Event::Sigterm { uid, instance } if ours(uid) => {
                self.sigterms.push(Of { instance, time, what: () });
            }
            Event::ResetForced { uid, instance, .. } if ours(uid) => {
                self.resets_forced.push(Of { instance, time, what: () });
            }
            Event::DrainStarted { uid, instance, .. } if ours(uid) => {
                self.drains_started.push(Of { instance, time, what: () });
            }
            Event::DrainEnded { uid, instance, all_gone, .. } if ours(uid) => {
                self.drains_ended.push(Of { instance, time, what: *all_gone });
            }
            Event::ProbeExiting { uid, instance, code } if ours(uid) => {
                self.exiting.push(Of { instance, time, what: *code });
            }
            Event::ProbeStarted { uid, instance, .. } if ours(uid) => {
                self.started.push(Of { instance, time, what: () });
            }
            Event::ContainerStarted { uid, restarts, .. } if ours(uid) => {
                self.restarts = self.restarts.max(*restarts);
            }
            Event::ContainerTerminated { uid, exit_code, .. } if ours(uid) => {
                if time.at < Ms(0) {
                    self.early_exits.push((time, *exit_code));
                } else {
                    self.container_exit.get_or_insert((time, *exit_code));
                }
            }
            Event::ProcessExited { uid, exit_code, .. } if ours(uid) && time.at >= Ms(0) => {
                self.process_exit.get_or_insert((time, *exit_code));
            }
            Event::Endpoint { slice, uid, ready, serving, .. } if ours(uid) => {
                let conditions = Conditions { ready: *ready, serving: *serving };
                self.endpoint.change(slices, time, |slices| {
                    slices.insert(slice, conditions);
                });
            }
            Event::EndpointGone { slice, uid, .. } if ours(uid) => {
                self.endpoint.change(slices, time, |slices| {
                    slices.remove(slice.as_str());
                });
            }
            Event::Endpoint { uid, ready, .. } => {
                let was = others.insert(uid, *ready).unwrap_or(false);
                if *ready && !was && time.at >= Ms(0) && target.is_some() {
                    self.replacement_ready.get_or_insert(time);
                }
            }
            _ => {}
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Conditions {
    ready: bool,
    serving: bool,
}

impl EndpointStory {
    /// An endpoint can stand in several slices (one an address family; or it is moved): it has
    /// stopped being ready once none of them says that it is.
    fn change<'a>(
        &mut self,
        slices: &mut BTreeMap<&'a str, Conditions>,
        time: Timed,
        change: impl FnOnce(&mut BTreeMap<&'a str, Conditions>),
    ) {
        let state = |slices: &BTreeMap<&str, Conditions>| {
            let ready = slices.values().any(|c| c.ready);
            let serving = slices.values().any(|c| c.serving);
            [("ready", ready), ("serving", serving), ("listed", !slices.is_empty())]
        };
        let before = state(slices);
        change(slices);
        let after = state(slices);
        if time.at < Ms(0) {
            let lost = before.iter().zip(after).filter(|((_, was), (_, is))| *was && !is);
            self.early.extend(lost.map(|((what, _), _)| (*what, time.at)));
            return;
        }
        let [(_, ready), (_, serving), (_, listed)] = after;
        if !ready {
            self.not_ready.get_or_insert(time);
        }
        if !serving && self.not_serving.is_none() {
            self.not_serving = Some(time);
            self.listed_not_serving = listed;
        }
        if !listed {
            self.removed.get_or_insert(time);
        }
    }
}
