//! The figures of a trial, each with how exact it is.
//!
//! Takes the world, the flows' endings and the scenario; gives [`Findings`]. What was not
//! measured stays null: nothing here estimates.

use std::collections::BTreeMap;

use super::fate::{Ending, Story};
use super::kernel::Kernel;
use super::world::{Timed, World, ms_between};
use super::{Fate, FindingBound, Findings};
use crate::clock::Ms;
use crate::config::{Scenario, Sigterm};
use crate::observation::Protocol;
use crate::observation::{Bound, Event};

/// A flow's story and how it ended.
pub(super) type Judged<'a> = (Story<'a>, Ending<'a>);

/// The exit code of a process that SIGKILL ended.
const KILLED: i32 = 137;

/// The figures, and the bound of each that is there.
pub(super) fn findings(
    world: &World,
    kernel: &Kernel,
    flows: &[Judged],
    config: &Scenario,
) -> (Findings, BTreeMap<String, FindingBound>) {
    let mut bounds = Bounds(BTreeMap::new());
    let sigterm = world.sigterms.first().map(|sigterm| sigterm.time);
    let endpoint = &world.endpoint;
    let last_tcp_end = ends(flows).max_by_key(|time| time.at).filter(|_| all_ended(flows));
    let (exit, code) = world.container_exit.unzip();
    let killed = exit.filter(|_| code == Some(KILLED));
    let grace = config.grace().as_secs_f64() * 1e3;
    let dead_since = last_tcp_end.filter(|_| config.sigterm == Sigterm::Exit);
    // The kernel closes a killed process's sockets at once; the kubelet and the watch tell later.
    let killed_at = last_tcp_end.filter(|_| config.sigterm == Sigterm::Ignore).or(killed);
    let rules_removed = kernel.rules_removed();
    let moves = || flows.iter().filter_map(move_of);
    let last_move = moves().max_by_key(|time| time.at);
    let findings = Findings {
        sigterm_ms: bounds.at("sigterm_ms", sigterm),
        endpoint_not_ready_ms: bounds.at("endpoint_not_ready_ms", endpoint.not_ready),
        endpoint_not_serving_ms: bounds.at("endpoint_not_serving_ms", endpoint.not_serving),
        endpoint_removed_ms: bounds.at("endpoint_removed_ms", endpoint.removed),
        rules_removed_ms: bounds.at("rules_removed_ms", rules_removed),
        last_tcp_end_ms: bounds.at("last_tcp_end_ms", last_tcp_end),
        first_rehomed_ms: bounds.at("first_rehomed_ms", moves().min_by_key(|time| time.at)),
        last_rehomed_ms: bounds.at("last_rehomed_ms", last_move),
        first_refused_ms: bounds.at("first_refused_ms", first_refused(flows)),
        replacement_ready_ms: bounds.at("replacement_ready_ms", world.replacement_ready),
        process_exit_ms: bounds.at("process_exit_ms", world.process_exit.map(|(time, _)| time)),
        container_exit_ms: bounds.at("container_exit_ms", exit),
        container_exit_code: code,
        sigkill_after_grace_ms: bounds
            .between("sigkill_after_grace_ms", killed.and(killed_at), sigterm)
            .map(|ms| round(ms - grace)),
        dead_endpoint_window_ms: bounds.between(
            "dead_endpoint_window_ms",
            endpoint.removed,
            dead_since,
        ),
        dead_ready_window_ms: bounds.between(
            "dead_ready_window_ms",
            endpoint.not_ready,
            dead_since,
        ),
        dead_rule_window_ms: bounds.between("dead_rule_window_ms", rules_removed, dead_since),
        unused_drain_ms: unused_drain(flows, config, sigterm, last_move)
            .inspect(|_| bounds.note("unused_drain_ms", last_move, sigterm)),
        app_shutdown_ms: app_shutdown(world),
        dials: Default::default(), // by `super::dials`
    };
    if findings.app_shutdown_ms.is_some() {
        // Both read by the probe, on one clock.
        let exact = FindingBound { bound: Bound::Exact, plus_minus_ms: Some(0.0) };
        bounds.0.insert("app_shutdown_ms".to_owned(), exact);
    }
    (findings, bounds.0)
}

/// The known ends of TCP flows. A silent one has none: it is not known when its peer went.
fn ends<'a>(flows: &'a [Judged]) -> impl Iterator<Item = Timed> + 'a {
    let ended = |fate| matches!(fate, Fate::Drained | Fate::Closed | Fate::Reset);
    flows
        .iter()
        .filter(move |(story, ending)| story.protocol == Protocol::Tcp && ended(ending.fate))
        .filter_map(|(_, ending)| ending.time)
        .filter(|time| time.at >= Ms(0))
}

/// Whether every TCP flow has a known end: of one that has not, nothing says that it was not later.
fn all_ended(flows: &[Judged]) -> bool {
    let mut tcp = flows.iter().filter(|(story, _)| story.protocol == Protocol::Tcp);
    tcp.all(|(_, ending)| matches!(ending.fate, Fate::Drained | Fate::Closed | Fate::Reset))
}

/// The first answer of another instance to a UDP flow, after the trigger.
fn move_of((story, ending): &Judged) -> Option<Timed> {
    let rehomed = story.protocol == Protocol::Udp && ending.fate == Fate::Rehomed;
    ending.time.filter(|time| rehomed && time.at >= Ms(0))
}

fn first_refused(flows: &[Judged]) -> Option<Timed> {
    let udp = flows.iter().filter(|(story, _)| story.protocol == Protocol::Udp);
    udp.flat_map(|(story, _)| &story.events)
        .filter(|o| o.at >= Ms(0) && matches!(o.event, Event::Refused { .. }))
        .map(|o| Timed::of(o))
        .min_by_key(|time| time.at)
}

/// What is left of the drain window when the last UDP flow has moved; null unless all of them have
/// moved before its end.
fn unused_drain(
    flows: &[Judged],
    config: &Scenario,
    sigterm: Option<Timed>,
    last_move: Option<Timed>,
) -> Option<f64> {
    if config.sigterm != Sigterm::Drain {
        return None;
    }
    let udp = flows.iter().filter(|(story, _)| story.protocol == Protocol::Udp);
    let all_moved = udp.map(|(_, ending)| ending.fate).all(|fate| fate == Fate::Rehomed);
    let window = config.drain_window?.as_secs_f64() * 1e3;
    let used = ms_between(last_move?.at, sigterm?.at);
    let left = round(window - used);
    (all_moved && left >= 0.0).then_some(left)
}

/// SIGTERM to the probe's own word that it exits, of one process.
fn app_shutdown(world: &World) -> Option<f64> {
    let sigterm = world.sigterms.first()?;
    let exiting = world.exiting.iter().find(|exiting| exiting.instance == sigterm.instance)?;
    Some(ms_between(exiting.time.at, sigterm.time.at))
}

/// To the nanosecond, as all recorded times are: what lies below it is the sum's own noise.
fn round(ms: f64) -> f64 {
    (ms * 1e6).round() / 1e6
}

struct Bounds(BTreeMap<String, FindingBound>);

impl Bounds {
    /// An instant.
    fn at(&mut self, name: &str, time: Option<Timed>) -> Option<f64> {
        let Timed { at, bound, plus_minus_ms } = time?;
        self.0.insert(name.to_owned(), FindingBound { bound, plus_minus_ms });
        Some(at.ms())
    }

    /// The time from `earlier` to `later`.
    fn between(&mut self, name: &str, later: Option<Timed>, earlier: Option<Timed>) -> Option<f64> {
        self.note(name, later, earlier);
        Some(ms_between(later?.at, earlier?.at))
    }

    /// A difference has the bounds of both. Only its later end is ever a watch's arrival, so that
    /// an upper bound stays one; where the earlier end is one too (a flow's end of which no packet
    /// was heard), how exact the difference is is not known.
    fn note(&mut self, name: &str, later: Option<Timed>, earlier: Option<Timed>) {
        let (Some(later), Some(earlier)) = (later, earlier) else { return };
        let both = later.plus_minus_ms.zip(earlier.plus_minus_ms).map(|(a, b)| a + b);
        let plus_minus_ms = both.filter(|_| earlier.bound == Bound::Exact);
        self.0.insert(name.to_owned(), FindingBound { bound: later.bound, plus_minus_ms });
    }
}
