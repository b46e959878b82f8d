//! What holds of the verdict whatever was observed.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::Fate;
use super::*;
use crate::clock::ClockRelation;
use crate::clock::{Clock, Ms, Stamp};
use crate::config::{Sigterm, Trigger};
use crate::observation::{Bound, Event, Identity, Seen, Source};
use crate::observation::{DialKind, DialOutcome, Protocol};
use crate::stories::{new, old, scenario, target};

/// Figures that are no times.
const COUNTS: [&str; 3] = ["container_exit_code", "failed_tcp_dials", "failed_udp_dials"];

fn any_identity() -> impl Strategy<Value = Identity> {
    prop_oneof![Just(old()), Just(new()), Just(Identity { instance: "old-2".into(), ..old() }),]
}

/// Times near the trigger, and any at all.
fn any_time() -> impl Strategy<Value = i64> {
    prop_oneof![4 => -20_000_000_000i64..40_000_000_000, 1 => (-5i64..5).prop_map(|n| n * 1_000_000_000), 1 => any::<i64>()]
}

fn any_event() -> impl Strategy<Value = Event<Stamp>> {
    let id = prop_oneof![Just("tcp-1"), Just("tcp-2"), Just("udp-1"), Just("udp-10"), Just("?")];
    let uid = prop_oneof![Just("uid-old".to_owned()), Just("uid-new".to_owned())];
    let of = (0..32u8, id, uid, any_identity(), any_time(), any_time(), any::<(bool, bool, i32)>());
    of.prop_map(|(kind, id, uid, by, from, to, (a, b, code))| {
        let (flow, instance) = (id.to_owned(), by.instance.clone());
        let (from, to) = (Stamp::runner(from), Stamp::runner(to));
        let (slice, pod, container) = ("s".to_owned(), by.pod.clone(), "c".to_owned());
        let (sender, icmp_type, icmp_code, count) =
            (None, a.then_some(3), b.then_some(3), u64::MAX);
        let local = "10.0.0.1:4000".parse().unwrap();
        match kind {
            0..=4 => Event::Span { flow, by, from, to, answers: 3 },
            5 | 6 => Event::Silence { flow, from, to, unanswered: 3 },
            7 => Event::Refused { flow, sender, icmp_type, icmp_code, until: to, count },
            8 => Event::Unreachable {
                flow,
                sender,
                icmp_type,
                icmp_code,
                errno: 113,
                until: to,
                count,
            },
            9 => Event::Bye { flow },
            10 => Event::Fin { flow },
            11 => Event::Reset { flow },
            12 => Event::TimedOut { flow },
            13 => Event::FlowFailed { flow, error: "e".into() },
            14 => Event::FlowStopped { flow },
            15 => Event::FlowOpened { flow, local, remote: local },
            16 => Event::Endpoint { slice, pod, uid, ready: a, serving: b, terminating: !a },
            17 => Event::EndpointGone { slice, pod, uid },
            18 => Event::Sigterm { uid, instance },
            19 => Event::ResetForced { uid, instance, flows: 1 },
            20 => Event::ContainerTerminated { pod, uid, container, exit_code: code, reason: None },
            21 => Event::ProbeExiting { uid, instance, code },
            22 => Event::ObservationEnded { complete: a },
            23 => Event::WatchGap { until: to, reason: "r".into() },
            26 => Event::DroppedHere { flow, since: from, count },
            27 => any_counters(&uid, code),
            28..32 => any_dials(by, a, b, (from, to), code),
            24 => Event::DrainStarted { uid, instance, flows: 1 },
            _ => Event::DrainEnded { uid, instance, all_gone: a, flows: 1 },
        }
    })
}

/// Dials of either protocol that met anything.
fn any_dials(
    by: Identity,
    tcp: bool,
    refused: bool,
    (from, to): (Stamp, Stamp),
    code: i32,
) -> Event<Stamp> {
    let outcome = DialOutcome::ALL[code.unsigned_abs() as usize % DialOutcome::ALL.len()];
    let kind = DialKind {
        protocol: if tcp { Protocol::Tcp } else { Protocol::Udp },
        outcome,
        by: (outcome == DialOutcome::Accepted).then_some(by),
        sender: None,
        icmp_type: refused.then_some(3),
        icmp_code: refused.then_some(3),
        error: None,
    };
    let (from, to) = if from <= to { (from, to) } else { (to, from) };
    let count = u64::from(code.unsigned_abs() % 1000) + 1;
    Event::Dials { kind, from, to, count, connect: None, took: None }
}

/// Readings of which one in a few differs from the one before.
fn any_counters(uid: &str, code: i32) -> Event<Stamp> {
    let values = BTreeMap::from([("Udp.RcvbufErrors".to_owned(), u64::from(code % 3 == 0))]);
    Event::Counters { of: format!("pod:{uid}"), values }
}

fn reading(ms: i64, drops: u64) -> Observation {
    let values = BTreeMap::from([("Udp.RcvbufErrors".to_owned(), drops)]);
    let event = Event::Counters { of: "pod:uid-third".into(), values };
    Observation::exact(Ms(ms), Source::Counters, event)
}

fn any_seen() -> impl Strategy<Value = Vec<Seen>> {
    let clock = prop_oneof![3 => Just(Clock::Runner), 1 => Just(Clock::Pod("uid-old".into()))];
    let one = (any_time(), clock, any_event(), any::<bool>());
    let one = one.prop_map(|(ns, clock, event, at_most)| {
        let bound = if at_most { Bound::AtMost } else { Bound::Exact };
        let at = Stamp { clock, ns };
        Observation { at, bound, plus_minus_ms: Some(0.0), source: Source::Flow, event }
    });
    prop::collection::vec(one, 0..40)
}

fn any_outcome() -> impl Strategy<Value = Outcome> {
    prop_oneof![Just(Outcome::Measured), Just(Outcome::Aborted), Just(Outcome::TriggerRefused)]
}

fn any_sigterm() -> impl Strategy<Value = Sigterm> {
    prop_oneof![Just(Sigterm::Exit), Just(Sigterm::Drain), Just(Sigterm::Ignore)]
}

proptest! {
    #[test]
    fn the_order_of_arrival_changes_nothing(
        (seen, shuffled) in any_seen().prop_flat_map(|seen| (Just(seen.clone()), Just(seen).prop_shuffle())),
        outcome in any_outcome(),
        sigterm in any_sigterm(),
    ) {
        let config = scenario(sigterm, Trigger::Delete);
        let clocks = [ClockRelation {
            source: "pod:uid-old".into(),
            same_clock: false,
            offset_ms: Some(1500.0),
            plus_minus_ms: Some(0.2),
        }];
        let place = |seen| timeline::place(seen, &Stamp::runner(0), &clocks).observations;
        let (one, other) = (place(seen), place(shuffled.clone()));
        prop_assert_eq!(&one, &other);
        let verdict = judge(&one, &config, Some(&target()), outcome);
        // Nor does the order of a record that somebody has sorted otherwise.
        let mut backwards = other;
        backwards.reverse();
        prop_assert_eq!(verdict, judge(&backwards, &config, Some(&target()), outcome));
    }

    #[test]
    fn every_flow_has_one_fate_and_an_end_if_it_ended(
        seen in any_seen(), outcome in any_outcome(), sigterm in any_sigterm(),
    ) {
        let observations = timeline::place(seen, &Stamp::runner(0), &[]).observations;
        let verdict = judge(&observations, &scenario(sigterm, Trigger::Delete), Some(&target()), outcome);
        let mut ids: Vec<_> = observations.iter().filter_map(|o| o.event.flow()).collect();
        ids.sort_by(|a, b| fate::natural(a, b));
        ids.dedup();
        prop_assert_eq!(verdict.flows.iter().map(|f| f.id.as_str()).collect::<Vec<_>>(), ids);
        for flow in &verdict.flows {
            let open = matches!(flow.fate, Fate::Survived | Fate::NotMeasured);
            prop_assert_eq!(flow.ended_ms.is_none(), open);
            prop_assert!(flow.fate != Fate::Severed);
            prop_assert!(!(flow.protocol == Protocol::Udp && flow.fate == Fate::Survived && flow.spans.is_empty()));
            prop_assert!(!(outcome == Outcome::Aborted && flow.fate == Fate::Survived));
        }
        let measured = verdict.findings.figures().into_iter().filter(|(name, v)| v.is_some() && !COUNTS.contains(name));
        let names: BTreeSet<_> = measured.map(|(name, _)| name.to_owned()).collect();
        prop_assert_eq!(verdict.finding_bounds.into_keys().collect::<BTreeSet<_>>(), names);
    }

    #[test]
    fn dials_add_up(seen in any_seen(), outcome in any_outcome()) {
        let observations = timeline::place(seen, &Stamp::runner(0), &[]).observations;
        let verdict = judge(&observations, &scenario(Sigterm::Exit, Trigger::Delete), Some(&target()), outcome);
        let made = observations.iter().filter_map(|o| match &o.event {
            Event::Dials { count, .. } => Some(*count),
            _ => None,
        });
        prop_assert_eq!(verdict.dials.iter().map(|dial| dial.count).sum::<u64>(), made.sum::<u64>());
        let figures: BTreeMap<_, _> = verdict.findings.figures().into_iter().collect();
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            let of = || verdict.dials.iter().filter(|dial| dial.kind.protocol == protocol && dial.to_ms >= 0.0);
            let judged = of().any(|dial| dial.kind.outcome.is_of_the_cluster());
            let failed = of().filter(|dial| dial.kind.outcome.is_failure());
            let failed = failed.map(|dial| dial.count as f64).sum::<f64>();
            let name = protocol.name().to_lowercase();
            let figure = |what: &str| figures[&*what.replace('*', &name)];
            prop_assert_eq!(figure("failed_*_dials"), judged.then_some(failed));
            let (first, last) = (figure("first_failed_*_dial_ms"), figure("last_failed_*_dial_ms"));
            prop_assert_eq!(first.is_some(), failed > 0.0);
            prop_assert!(first <= last && first.is_none_or(|first| first >= 0.0));
            prop_assert!(figure("first_*_dial_by_replacement_ms").is_none_or(|first| first >= 0.0));
        }
    }

    #[test]
    fn counters_that_do_not_move_change_no_fate_and_drops_only_take_silence_from_udp(
        seen in any_seen(), outcome in any_outcome(), from in any_time(), until in any_time(), drops in 1..9u64,
    ) {
        let judge = |observations: &[Observation]| {
            judge(observations, &scenario(Sigterm::Exit, Trigger::Delete), Some(&target()), outcome)
        };
        let plain = timeline::place(seen, &Stamp::runner(0), &[]).observations;
        let (from, until) = (from.min(until), from.max(until));
        let with = |drops| {
            let mut observations = plain.clone();
            observations.extend([reading(from, 7), reading(until, 7 + drops)]);
            judge(&observations)
        };
        let (before, still, moved) = (judge(&plain), with(0), with(if from < until { drops } else { 0 }));
        prop_assert_eq!(&before.flows, &still.flows);
        for (before, after) in before.flows.iter().zip(&moved.flows) {
            if before == after {
                continue;
            }
            // What other drops have taken already has one more reason.
            prop_assert!(matches!(before.fate, Fate::Silent | Fate::NotMeasured));
            prop_assert_eq!(before.protocol, Protocol::Udp);
            prop_assert_eq!((after.fate, after.ended_ms), (Fate::NotMeasured, None));
            prop_assert!(after.cause.is_some());
        }
    }

    #[test]
    fn where_our_sockets_dropped_all_the_time_no_udp_flow_is_silent(
        seen in any_seen(), outcome in any_outcome(),
    ) {
        let mut observations = timeline::place(seen, &Stamp::runner(0), &[]).observations;
        observations.extend([reading(i64::MIN, 0), reading(i64::MAX, 1)]);
        let verdict = judge(&observations, &scenario(Sigterm::Exit, Trigger::Delete), Some(&target()), outcome);
        for flow in &verdict.flows {
            prop_assert!((flow.fate, flow.protocol) != (Fate::Silent, Protocol::Udp));
        }
    }
}
