//! A report's figures under the names that ours have, where both mean the same.
//!
//! All of its times are whole milliseconds, cut off towards the trigger: the instant itself lies
//! less than one further away from it.

use std::collections::BTreeMap;

use super::report::{DrainBehavior, Event, Source, Trial};
use crate::observation::{Bound, Protocol};
use crate::verdict::{Fate, FindingBound, Findings, FlowRecord};

/// By how much less a time is written than it was.
const CUT_OFF_MS: f64 = 1.0;

/// The exit code of a container that was sent SIGKILL.
const KILLED: i32 = 137;

/// The figures, and how exact each is. `target` is the terminated pod's name.
pub fn of(
    trial: &Trial,
    flows: &[FlowRecord],
    target: Option<&str>,
) -> (Findings, BTreeMap<String, FindingBound>) {
    let mut bounds = Bounds::default();
    let config = &trial.config;
    let after = |event: &&Event| event.t_ms >= 0;
    let k8s = |name| trial.events(Source::K8s, name).filter(after);
    // A slice lists the replacement too; the details name whose endpoint it is.
    let endpoint = target.map(|pod| format!("Pod/{pod}"));
    let of_target = |event: &&Event| event.detail.split(' ').next() == endpoint.as_deref();
    let first = |name| k8s(name).filter(of_target).min_by_key(|event| event.t_ms).map(Time::of);

    let sigterm = trial.first(Source::Probe, "sigterm_received").map(Time::of);
    let removed = first("endpointslice_endpoint_removed");
    let ready_false = first("endpointslice_ready_false");
    let not_ready = [ready_false, removed].into_iter().flatten().min_by_key(|time| time.ms);
    // It watches for the end of ready=true only, and tells what serving was at that moment.
    let not_serving = k8s("endpointslice_ready_false")
        .filter(of_target)
        .find(|event| event.detail_of("serving") == Some("false"))
        .map(Time::of);
    // Its detail names the container, not the pod: of two pods the target's ends first.
    let exit = k8s("container_terminated").min_by_key(|event| event.t_ms);
    let code = exit.and_then(|event| event.detail_of("exitCode")?.parse::<i32>().ok());
    let exit = exit.map(Time::of);

    let last_tcp_end = last_tcp_end(flows);
    let ends = |fate: Fate| {
        let udp = flows.iter().filter(move |f| f.protocol == Protocol::Udp && f.fate == fate);
        udp.filter_map(|flow| flow.ended_ms).filter(|ms| *ms >= 0.0).map(Time::of_flow)
    };
    let last_move = ends(Fate::Rehomed).max_by_key(|time| time.ms);
    let dead_since = last_tcp_end.filter(|_| config.drain_behavior == DrainBehavior::ExitNow);
    let ignores = config.drain_behavior == DrainBehavior::Ignore;
    let killed = exit.filter(|_| code == Some(KILLED));
    let killed_at = killed.map(|exit| last_tcp_end.filter(|_| ignores).unwrap_or(exit));
    let grace = i64::from(config.grace_period_seconds) * 1000;
    let exiting = trial.first(Source::Probe, "exiting").map(Time::of);

    let findings = Findings {
        sigterm_ms: bounds.at("sigterm_ms", sigterm),
        endpoint_not_ready_ms: bounds.at("endpoint_not_ready_ms", not_ready),
        endpoint_not_serving_ms: bounds.at("endpoint_not_serving_ms", not_serving),
        endpoint_removed_ms: bounds.at("endpoint_removed_ms", removed),
        rules_removed_ms: None,
        last_tcp_end_ms: bounds.at("last_tcp_end_ms", last_tcp_end),
        first_rehomed_ms: bounds
            .at("first_rehomed_ms", ends(Fate::Rehomed).min_by_key(|time| time.ms)),
        last_rehomed_ms: bounds.at("last_rehomed_ms", last_move),
        first_refused_ms: bounds
            .at("first_refused_ms", ends(Fate::Refused).min_by_key(|time| time.ms)),
        replacement_ready_ms: None,
        process_exit_ms: None,
        container_exit_ms: bounds.at("container_exit_ms", exit),
        container_exit_code: code,
        sigkill_after_grace_ms: bounds
            .between("sigkill_after_grace_ms", killed_at, sigterm)
            .map(|ms| ms - grace as f64),
        dead_endpoint_window_ms: bounds.between("dead_endpoint_window_ms", removed, dead_since),
        dead_ready_window_ms: bounds.between("dead_ready_window_ms", not_ready, dead_since),
        dead_rule_window_ms: None,
        unused_drain_ms: unused_drain(trial, flows, &mut bounds, sigterm, last_move),
        app_shutdown_ms: bounds.within_the_app("app_shutdown_ms", exiting, sigterm),
        dials: Default::default(),
    };
    (findings, bounds.0)
}

/// The last end of a TCP flow; `None` unless each of them has one. How a severed flow ended may be
/// unknown; that it had ended by then is what its report says.
fn last_tcp_end(flows: &[FlowRecord]) -> Option<Time> {
    let ended = |fate| matches!(fate, Fate::Drained | Fate::Closed | Fate::Reset | Fate::Severed);
    let tcp = flows.iter().filter(|flow| flow.protocol == Protocol::Tcp);
    let ends: Option<Vec<f64>> =
        tcp.map(|flow| flow.ended_ms.filter(|_| ended(flow.fate))).collect();
    let last = ends?.into_iter().max_by(f64::total_cmp)?;
    Some(last).filter(|ms| *ms >= 0.0).map(Time::of_flow)
}

/// What is left of the drain window when the last UDP flow has moved, unless one has not.
fn unused_drain(
    trial: &Trial,
    flows: &[FlowRecord],
    bounds: &mut Bounds,
    sigterm: Option<Time>,
    last_move: Option<Time>,
) -> Option<f64> {
    let mut udp = flows.iter().filter(|flow| flow.protocol == Protocol::Udp);
    let drains = trial.config.drain_behavior == DrainBehavior::Drain;
    if !drains || !udp.all(|flow| flow.fate == Fate::Rehomed) {
        return None;
    }
    let used = (last_move?.ms - sigterm?.ms) as f64;
    let left = f64::from(trial.config.drain_max_seconds) * 1e3 - used;
    (left >= 0.0).then_some(left).inspect(|_| {
        bounds.between("unused_drain_ms", last_move, sigterm);
    })
}

/// A time as the report has it.
#[derive(Clone, Copy)]
struct Time {
    ms: i64,
    bound: Bound,
    plus_minus_ms: Option<f64>,
}

impl Time {
    fn of(event: &Event) -> Self {
        let bound = if event.source == Source::K8s { Bound::AtMost } else { Bound::Exact };
        // Two wall clocks were subtracted, and nothing bounds how far they are apart.
        let unknown = event.approximate || event.source == Source::Probe;
        Self { ms: event.t_ms, bound, plus_minus_ms: (!unknown).then_some(CUT_OFF_MS) }
    }

    fn of_flow(ms: f64) -> Self {
        Self { ms: ms as i64, bound: Bound::Exact, plus_minus_ms: Some(CUT_OFF_MS) }
    }
}

#[derive(Default)]
struct Bounds(BTreeMap<String, FindingBound>);

impl Bounds {
    /// An instant.
    fn at(&mut self, name: &str, time: Option<Time>) -> Option<f64> {
        let Time { ms, bound, plus_minus_ms } = time?;
        self.0.insert(name.to_owned(), FindingBound { bound, plus_minus_ms });
        Some(ms as f64)
    }

    /// The time from `earlier` to `later`. Both were cut off in the same direction (none lies
    /// before the trigger), so that the difference is as exact as one of them.
    fn between(&mut self, name: &str, later: Option<Time>, earlier: Option<Time>) -> Option<f64> {
        let (later, earlier) = (later?, earlier?);
        let plus_minus_ms = later.plus_minus_ms.and(earlier.plus_minus_ms);
        self.0.insert(name.to_owned(), FindingBound { bound: later.bound, plus_minus_ms });
        Some((later.ms - earlier.ms) as f64)
    }

    /// The same of two times of the app: on one clock, though on either side of the trigger.
    fn within_the_app(
        &mut self,
        name: &str,
        later: Option<Time>,
        earlier: Option<Time>,
    ) -> Option<f64> {
        let (later, earlier) = (later?, earlier?);
        let plus_minus_ms = Some(2.0 * CUT_OFF_MS);
        self.0.insert(name.to_owned(), FindingBound { bound: Bound::Exact, plus_minus_ms });
        Some((later.ms - earlier.ms) as f64)
    }
}
