//! The verdict's rules, one by one.

use rstest::rstest;

use super::*;
use super::{Basis, Fate};
use crate::clock::Ms;
use crate::config::{Sigterm, Trigger};
use crate::observation::{Event, Identity, Source};
use crate::stories::{self, UDP, flow, new, old, scenario, target};

/// The fate and end of one flow of a measured trial that ended at 10 s.
fn fate_of(id: &str, events: Vec<Observation>) -> (Fate, Option<f64>) {
    let verdict = judge_events(id, events, Outcome::Measured);
    (verdict.flows[0].fate, verdict.flows[0].ended_ms)
}

fn judge_events(id: &str, mut events: Vec<Observation>, outcome: Outcome) -> Verdict {
    events.push(flow(10_000.0, Event::ObservationEnded { complete: true }));
    let verdict =
        judge(&events, &scenario(Sigterm::Exit, Trigger::Delete), Some(&target()), outcome);
    assert_eq!(verdict.flows.len(), 1);
    assert_eq!(verdict.flows[0].id, id);
    verdict
}

fn span(id: &str, by: Identity, from: f64, to: f64) -> Observation {
    let (from, to) = (Ms::from_ms(from), Ms::from_ms(to));
    flow(to.ms(), Event::Span { flow: id.into(), by, from, to, answers: 9 })
}

fn silence(id: &str, from: f64, to: f64) -> Observation {
    let (from, to) = (Ms::from_ms(from), Ms::from_ms(to));
    flow(to.ms(), Event::Silence { flow: id.into(), from, to, unanswered: 9 })
}

fn refused(id: &str, at: f64) -> Observation {
    let (sender, icmp_type, icmp_code) = (None, Some(3), Some(3));
    let until = Ms::from_ms(at + 1.0);
    let flow_id = id.into();
    flow(at, Event::Refused { flow: flow_id, sender, icmp_type, icmp_code, until, count: 2 })
}

fn unreachable(id: &str, at: f64) -> Observation {
    let (sender, icmp_type, icmp_code) = (None, Some(3), Some(1));
    let (until, errno) = (Ms::from_ms(at), 113);
    let event = Event::Unreachable {
        flow: id.into(),
        sender,
        icmp_type,
        icmp_code,
        errno,
        until,
        count: 1,
    };
    flow(at, event)
}

fn tcp(event: fn(String) -> Event, at: f64) -> Observation {
    flow(at, event("tcp-1".into()))
}

const BYE: fn(String) -> Event = |flow| Event::Bye { flow };
const FIN: fn(String) -> Event = |flow| Event::Fin { flow };
const RESET: fn(String) -> Event = |flow| Event::Reset { flow };
const TIMED_OUT: fn(String) -> Event = |flow| Event::TimedOut { flow };
const STOPPED: fn(String) -> Event = |flow| Event::FlowStopped { flow };
const FAILED: fn(String) -> Event =
    |flow| Event::FlowFailed { flow, error: "no buffer space".into() };

#[rstest]
#[case::drained(vec![tcp(BYE, 5.0), tcp(FIN, 6.0)], Fate::Drained, Some(6.0))]
#[case::bye_and_fin_at_one_instant(vec![tcp(FIN, 6.0), tcp(BYE, 6.0)], Fate::Drained, Some(6.0))]
#[case::fin_without_bye(vec![tcp(FIN, 6.0)], Fate::Closed, Some(6.0))]
#[case::bye_too_late(vec![tcp(FIN, 6.0), tcp(BYE, 7.0)], Fate::Closed, Some(6.0))]
#[case::reset(vec![tcp(RESET, 6.0), tcp(FIN, 7.0)], Fate::Reset, Some(6.0))]
#[case::reset_after_bye(vec![tcp(BYE, 5.0), tcp(RESET, 6.0)], Fate::Reset, Some(6.0))]
#[case::reset_after_fin(vec![tcp(FIN, 6.0), tcp(RESET, 7.0)], Fate::Closed, Some(6.0))]
#[case::given_up(vec![tcp(TIMED_OUT, 900.0)], Fate::Silent, Some(4.0))]
#[case::silent(vec![silence("tcp-1", 4.0, 9000.0)], Fate::Silent, Some(4.0))]
#[case::bye_then_silence(vec![tcp(BYE, 5.0), silence("tcp-1", 4.0, 9000.0)], Fate::Silent, Some(4.0))]
#[case::no_route_then_given_up(vec![unreachable("tcp-1", 70.0), tcp(TIMED_OUT, 900.0)], Fate::Unreachable, Some(70.0))]
#[case::given_up_then_no_route(vec![tcp(TIMED_OUT, 900.0), unreachable("tcp-1", 970.0)], Fate::Silent, Some(4.0))]
#[case::failed_here(vec![tcp(FAILED, 6.0)], Fate::NotMeasured, None)]
#[case::failed_here_after_its_end(vec![tcp(FIN, 6.0), tcp(FAILED, 7.0)], Fate::Closed, Some(6.0))]
#[case::survived(vec![span("tcp-1", old(), 5.0, 9950.0), tcp(STOPPED, 10_000.0)], Fate::Survived, None)]
#[case::survived_a_silence(vec![silence("tcp-1", 4.0, 5000.0), span("tcp-1", old(), 5000.0, 9950.0)], Fate::Survived, None)]
#[case::nobody_saw_the_silence(vec![], Fate::Silent, Some(4.0))]
fn tcp_fates(#[case] mut events: Vec<Observation>, #[case] fate: Fate, #[case] ended: Option<f64>) {
    events.push(span("tcp-1", old(), -9000.0, 4.0));
    assert_eq!(fate_of("tcp-1", events), (fate, ended));
}

#[rstest]
#[case::survived(vec![span("udp-1", old(), 5.0, 9990.0)], Fate::Survived, None)]
#[case::moved(vec![span("udp-1", new(), 50.0, 9990.0)], Fate::Rehomed, Some(50.0))]
#[case::moved_after_refusals(vec![refused("udp-1", 30.0), span("udp-1", new(), 250.0, 9990.0)], Fate::Rehomed, Some(250.0))]
#[case::moved_and_back(vec![span("udp-1", new(), 50.0, 60.0), span("udp-1", old(), 70.0, 9990.0)], Fate::Rehomed, Some(50.0))]
#[case::another_process(vec![span("udp-1", Identity { instance: "old-2".into(), ..old() }, 50.0, 9990.0)], Fate::Rehomed, Some(50.0))]
#[case::refused(vec![refused("udp-1", 30.0)], Fate::Refused, Some(30.0))]
#[case::refused_once_then_silent(vec![refused("udp-1", 30.0), silence("udp-1", 4.0, 9990.0)], Fate::Refused, Some(30.0))]
#[case::silent_then_refused(vec![silence("udp-1", 4.0, 9990.0), refused("udp-1", 5000.0)], Fate::Refused, Some(5000.0))]
#[case::refused_and_answered_again(vec![refused("udp-1", 30.0), span("udp-1", old(), 250.0, 9990.0)], Fate::Survived, None)]
#[case::refused_before_unreachable(vec![refused("udp-1", 30.0), unreachable("udp-1", 40.0)], Fate::Refused, Some(30.0))]
#[case::unreachable_before_refused(vec![refused("udp-1", 30.0), unreachable("udp-1", 20.0)], Fate::Unreachable, Some(20.0))]
#[case::silent(vec![silence("udp-1", 4.0, 9990.0)], Fate::Silent, Some(4.0))]
#[case::failed_here(vec![refused("udp-1", 30.0), flow(40.0, FAILED("udp-1".into()))], Fate::NotMeasured, None)]
#[case::failed_after_it_moved(vec![span("udp-1", new(), 50.0, 60.0), flow(70.0, FAILED("udp-1".into()))], Fate::Rehomed, Some(50.0))]
fn udp_fates(#[case] mut events: Vec<Observation>, #[case] fate: Fate, #[case] ended: Option<f64>) {
    events.push(span("udp-1", old(), -9000.0, 4.0));
    assert_eq!(fate_of("udp-1", events), (fate, ended));
}

#[test]
fn what_was_never_answered_has_the_fate_that_was_seen() {
    assert_eq!(fate_of("udp-1", vec![refused("udp-1", 30.0)]), (Fate::Refused, Some(30.0)));
    assert_eq!(fate_of("udp-1", vec![silence("udp-1", -9.0, 30.0)]), (Fate::Silent, Some(-9.0)));
    let opened = flow(-9.0, STOPPED("udp-1".into()));
    assert_eq!(fate_of("udp-1", vec![opened]), (Fate::NotMeasured, None));
}

#[test]
fn nothing_survives_an_aborted_trial() {
    let answered = || vec![span("udp-1", old(), -9000.0, 9990.0)];
    let fate = |outcome| judge_events("udp-1", answered(), outcome).flows[0].fate;
    assert_eq!(fate(Outcome::Aborted), Fate::NotMeasured);
    assert_eq!(fate(Outcome::TriggerRefused), Fate::Survived);
}

#[test]
fn trouble_before_the_trigger_is_told() {
    let told = |events: Vec<Observation>| {
        let verdict = judge_events("udp-1", events, Outcome::Measured);
        verdict
            .warnings
            .into_iter()
            .filter(|w| w.ends_with("before the trigger"))
            .collect::<Vec<_>>()
    };
    let answered = |from, to| span("udp-1", old(), from, to);
    assert_eq!(
        told(vec![answered(-9000.0, -50.0), refused("udp-1", -40.0), answered(-30.0, 9990.0)]),
        ["udp-1: refused before the trigger"]
    );
    assert_eq!(
        told(vec![answered(-9000.0, -5000.0), silence("udp-1", -5000.0, -30.0)]),
        ["udp-1: silent before the trigger"]
    );
    assert_eq!(
        told(vec![answered(-9000.0, -50.0), span("udp-1", new(), -30.0, 9990.0)]),
        ["udp-1: answered by another before the trigger"]
    );
    // Answered last just before the trigger, silent from then on: the trigger's doing.
    assert_eq!(told(vec![answered(-9000.0, -5.0), silence("udp-1", -5.0, 9990.0)]), [""; 0]);
    // What is met before the first answer belongs to opening.
    assert_eq!(told(vec![refused("udp-1", -9500.0), answered(-9000.0, 9990.0)]), [""; 0]);
}

#[test]
fn what_many_flows_share_is_said_once() {
    let mut trial = stories::drain(1);
    for n in 1..=UDP {
        trial.observations.push(flow(50.0, FAILED(format!("udp-{n}"))));
    }
    trial.judge_anew();
    assert_eq!(
        trial.warnings,
        [
            "udp-1, udp-2, udp-3 and 1 more: failed on the client's side, not the target's: no buffer space"
        ]
    );
}

#[test]
fn an_end_long_before_the_kill_is_not_put_down_to_it() {
    let mut trial = stories::ignore(1);
    for observation in &mut trial.observations {
        if observation.event == (Event::Fin { flow: "tcp-1".into() }) {
            observation.at = Ms::from_ms(500.0);
        }
    }
    trial.judge_anew();
    assert_eq!(trial.flows[0].cause, None);
    assert!(trial.flows[1].cause.is_some());
}

#[test]
fn an_endpoint_that_left_before_the_trigger_is_told() {
    let mut trial = stories::drain(1);
    for observation in &mut trial.observations {
        if matches!(observation.event, Event::Endpoint { ready: false, serving: true, .. }) {
            observation.at = Ms::from_ms(-3.0);
        }
    }
    trial.judge_anew();
    let told = "the target's endpoint was no longer ready 3.0 ms before the trigger".to_owned();
    assert!(trial.warnings.contains(&told), "{:?}", trial.warnings);
    assert_eq!(trial.findings.endpoint_not_ready_ms, Some(749.0));
}

#[test]
fn whole_stories_have_no_warnings() {
    for trial in [stories::exit(1), stories::drain(1), stories::ignore(1), stories::scale(1)] {
        assert_eq!(trial.warnings, [""; 0], "{}", trial.id);
    }
}

#[test]
fn what_was_missed_is_told() {
    let mut trial = stories::drain(1);
    trial.observations.retain(|o| {
        !matches!(
            o.event,
            Event::Sigterm { .. } | Event::ObservationEnded { .. } | Event::DrainEnded { .. }
        ) && o.event.flow() != Some("tcp-2")
    });
    for observation in &mut trial.observations {
        if let Event::ContainerTerminated { exit_code, .. } = &mut observation.event {
            *exit_code = 137;
        }
    }
    let gap = Event::WatchGap { until: Ms::from_ms(40.0), reason: "410 Gone".into() };
    let by = |source, event| Observation::exact(Ms::from_ms(-20.0), source, event);
    trial.observations.push(by(Source::EndpointsliceWatch, gap));
    let lost = Event::LogLost { uid: "uid-old".into(), reason: "EOF".into() };
    trial.observations.push(by(Source::ProbeLog, lost));
    trial.observations.push(flow(50.0, FAILED("udp-2".into())));
    let ended = Event::ObservationEnded { complete: false };
    trial.observations.push(flow(27_310.0, ended));
    trial.judge_anew();
    insta::assert_debug_snapshot!(trial.warnings);
}

fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string_pretty(value).unwrap()
}

#[test]
fn findings_of_each_story() {
    for trial in [stories::exit(1), stories::drain(1), stories::ignore(1), stories::scale(1)] {
        insta::assert_snapshot!(format!("findings-{}", trial.arm), json(&trial.findings));
    }
    let drain = stories::drain(1);
    insta::assert_snapshot!("bounds-drain-delete", json(&drain.finding_bounds));
}

#[test]
fn causes_of_each_story() {
    let trials = [stories::exit(1), stories::drain(1), stories::ignore(1), stories::scale(1)];
    let causes = trials.iter().flat_map(|trial| {
        trial.flows.iter().filter(|f| f.id.ends_with('1') || f.id.ends_with('4')).map(|flow| {
            let cause = flow.cause.as_ref().unwrap();
            format!("{} {} {:?}: {:?}: {}", trial.arm, flow.id, flow.fate, cause.basis, cause.text)
        })
    });
    insta::assert_snapshot!(causes.collect::<Vec<_>>().join("\n"));
}

#[test]
fn a_reset_is_put_down_to_the_app_only_if_it_said_so() {
    let mut trial = stories::exit(1);
    trial.observations.retain(|o| !matches!(o.event, Event::ResetForced { .. }));
    trial.judge_anew();
    assert_eq!(trial.flows[0].cause.as_ref().unwrap().basis, Basis::Inferred);
}

#[test]
fn unused_drain_needs_every_udp_flow_to_have_moved() {
    let mut trial = stories::drain(1);
    assert_eq!(trial.findings.unused_drain_ms, Some(40.0 + 25_000.0 - 2200.7));
    trial.observations.retain(|o| {
        !matches!(&o.event, Event::Span { flow, by, .. } if flow == "udp-2" && by.uid == "uid-new")
    });
    trial.judge_anew();
    assert_eq!(trial.findings.unused_drain_ms, None);
}

#[test]
fn flows_are_listed_by_number() {
    let mut ids = ["udp-2", "tcp-10", "udp-10", "tcp-2", "x", "udp-02"];
    ids.sort_by(|a, b| fate::natural(a, b));
    assert_eq!(ids, ["tcp-2", "tcp-10", "udp-02", "udp-2", "udp-10", "x"]);
}

#[test]
fn disagreements_between_repeats_and_within_a_trial() {
    let trials = [
        stories::drain(1),
        stories::drain(2),
        stories::scale(1),
        stories::scale(2),
        stories::aborted("drain-delete", 3),
    ];
    insta::assert_snapshot!(crate::record::disagreements(&trials).join("\n"), @"drain-scale: UDP fates differ between repeats: 001 refused 2, silent 2; 002 refused 1, silent 3");
    let alike = [stories::scale(1), {
        let mut t = stories::scale(1);
        t.repeat = 2;
        t
    }];
    insta::assert_snapshot!(crate::record::disagreements(&alike).join("\n"), @"drain-scale: UDP flows of one trial differ, alike in 2 repeats: refused 2, silent 2");
}

/// A pod's counter of what its sockets' buffers had no room for.
fn dropped(of: &str, at: f64, count: u64) -> Observation {
    let values = BTreeMap::from([("Udp.RcvbufErrors".to_owned(), count)]);
    let event = Event::Counters { of: of.into(), values };
    Observation::exact(Ms::from_ms(at), Source::Counters, event)
}

/// A flow's own socket dropped datagrams.
fn dropped_here(id: &str, since: f64, at: f64) -> Observation {
    let since = Ms::from_ms(since);
    flow(at, Event::DroppedHere { flow: id.into(), since, count: 3 })
}

/// Silence is from 4 to 9,990 ms.
#[rstest]
#[case::none_moved(vec![dropped("pod:uid-old", 0.0, 5), dropped("pod:uid-old", 9000.0, 5)], Fate::Silent)]
#[case::moved_in_it(vec![dropped("pod:uid-old", 50.0, 5), dropped("pod:uid-old", 100.0, 6)], Fate::NotMeasured)]
#[case::moved_about_it(vec![dropped("pod:uid-old", -9000.0, 5), dropped("pod:uid-old", 9995.0, 6)], Fate::NotMeasured)]
#[case::moved_before_it(vec![dropped("pod:uid-old", -50.0, 5), dropped("pod:uid-old", 3.0, 6), dropped("pod:uid-old", 9995.0, 6)], Fate::Silent)]
#[case::moved_after_it(vec![dropped("pod:uid-old", 9991.0, 5), dropped("pod:uid-old", 9995.0, 6)], Fate::Silent)]
#[case::one_reading(vec![dropped("pod:uid-old", 100.0, 6)], Fate::Silent)]
#[case::the_replacements(vec![dropped("pod:uid-new", 50.0, 0), dropped("pod:uid-new", 9995.0, 1)], Fate::NotMeasured)]
#[case::the_machines_are_whosever(vec![dropped("runner", 50.0, 0), dropped("runner", 100.0, 9)], Fate::Silent)]
#[case::its_own_socket(vec![dropped_here("udp-1", 0.0, 9995.0)], Fate::NotMeasured)]
#[case::its_own_socket_before(vec![dropped_here("udp-1", -90.0, 3.0)], Fate::Silent)]
#[case::nobody_asked(vec![flow(9990.0, Event::Silence { flow: "udp-1".into(), from: Ms::from_ms(4.0), to: Ms::from_ms(9990.0), unanswered: 0 })], Fate::NotMeasured)]
fn what_our_own_side_dropped_is_no_silence(#[case] more: Vec<Observation>, #[case] fate: Fate) {
    let mut events = vec![span("udp-1", old(), -9000.0, 4.0)];
    if !more.iter().any(|o| matches!(o.event, Event::Silence { .. })) {
        events.push(silence("udp-1", 4.0, 9990.0));
    }
    events.extend(more);
    let ended = (fate == Fate::Silent).then_some(4.0);
    assert_eq!(fate_of("udp-1", events), (fate, ended));
}

#[test]
fn drops_explain_no_other_fate_and_no_silence_of_tcp() {
    let drops = [dropped("pod:uid-old", -9000.0, 5), dropped("pod:uid-old", 9995.0, 6)];
    let with = |id: &str, mut events: Vec<Observation>| {
        events.push(span(id, old(), -9000.0, 4.0));
        events.extend(drops.clone());
        fate_of(id, events)
    };
    assert_eq!(with("udp-1", vec![refused("udp-1", 30.0)]), (Fate::Refused, Some(30.0)));
    let moved = vec![span("udp-1", new(), 5000.0, 9990.0), silence("udp-1", 4.0, 5000.0)];
    assert_eq!(with("udp-1", moved), (Fate::Rehomed, Some(5000.0)));
    // TCP sends again what was lost.
    assert_eq!(with("tcp-1", vec![silence("tcp-1", 4.0, 9990.0)]), (Fate::Silent, Some(4.0)));
}

#[test]
fn drops_are_told_with_their_place_number_and_time() {
    let events = vec![
        span("udp-1", old(), -9000.0, 4.0),
        silence("udp-1", 4.0, 9990.0),
        dropped("pod:uid-old", 50.0, 5),
        dropped("pod:uid-old", 100.0, 12),
        dropped("pod:uid-old", 700.0, 13),
        dropped_here("udp-1", 40.0, 9995.0),
    ];
    let verdict = judge_events("udp-1", events, Outcome::Measured);
    let cause = verdict.flows[0].cause.clone().unwrap();
    assert_eq!(
        cause.text,
        "no answer, but its own socket dropped 3 datagrams between 40.0 and 9995.0 ms"
    );
    let told = |text: &str| verdict.warnings.iter().any(|warning| warning.contains(text));
    assert!(
        told("(pod:uid-old) dropped 8 datagrams between 50.0 and 700.0 ms"),
        "{:?}",
        verdict.warnings
    );
    assert!(told("own sockets dropped 3 datagrams"), "{:?}", verdict.warnings);
    assert!(told("udp-1: without a fate: no answer, but"), "{:?}", verdict.warnings);
}

/// Where no packet of a flow's end was heard, its time is an upper bound, and of a difference to a
/// watch's nothing is known but the figure.
#[test]
fn what_is_only_read_is_an_upper_bound() {
    let mut trial = stories::exit(1);
    let window = |trial: &crate::record::Trial| trial.finding_bounds["dead_endpoint_window_ms"];
    assert!(window(&trial).plus_minus_ms.is_some());
    for seen in &mut trial.observations {
        if matches!(seen.event, Event::Reset { .. } | Event::Span { .. }) {
            seen.bound = crate::observation::Bound::AtMost;
        }
    }
    trial.judge_anew();
    assert_eq!(window(&trial).plus_minus_ms, None);
    let bound = |name: &str| trial.finding_bounds[name].bound;
    assert_eq!(bound("last_tcp_end_ms"), crate::observation::Bound::AtMost);
    assert_eq!(bound("first_rehomed_ms"), crate::observation::Bound::AtMost);
}

/// What is said of the target's end, of a trial in which one flow was answered throughout.
fn told_of_the_end(trigger: Trigger, mut events: Vec<Observation>) -> Vec<String> {
    events.push(span("udp-1", old(), -10_000.0, 9990.0));
    events.push(flow(10_000.0, Event::ObservationEnded { complete: true }));
    let config = scenario(Sigterm::Ignore, trigger);
    let warnings = judge(&events, &config, Some(&target()), Outcome::Measured).warnings;
    warnings.into_iter().filter(|warning| !warning.contains("flows were observed")).collect()
}

fn ended(exit_code: i32) -> Observation {
    let (pod, uid, container) = ("echo-old".into(), "uid-old".into(), "probe".into());
    let event = Event::ContainerTerminated { pod, uid, container, exit_code, reason: None };
    Observation::at_most(Ms::from_ms(300.0), Source::PodWatch, event)
}

#[test]
fn what_a_trigger_does_not_end_is_not_missed() {
    for trigger in [Trigger::Relabel, Trigger::DeleteService, Trigger::NodeStop] {
        assert_eq!(told_of_the_end(trigger, vec![]), [""; 0], "{trigger:?}");
    }
    assert_eq!(
        told_of_the_end(Trigger::RestartKubeProxy, vec![ended(1)]),
        ["the container exited with code 1, where it was to live on"]
    );
    let (uid, instance) = ("uid-old".into(), "old-1".into());
    let sigterm =
        Observation::exact(Ms::from_ms(5.0), Source::ProbeLog, Event::Sigterm { uid, instance });
    assert_eq!(
        told_of_the_end(Trigger::Relabel, vec![sigterm]),
        ["the app was sent SIGTERM, which is no part of relabel"]
    );
    // One that terminates the pod lacks all of it.
    assert_eq!(told_of_the_end(Trigger::Delete, vec![]).len(), 4);
}

#[test]
fn a_crash_ends_a_process_without_sigterm() {
    assert_eq!(told_of_the_end(Trigger::Crash, vec![ended(137)]), [""; 0]);
    assert_eq!(
        told_of_the_end(Trigger::Crash, vec![ended(0)]),
        ["the container exited with code 0, where 137 was expected"]
    );
    assert_eq!(told_of_the_end(Trigger::Crash, vec![]), ["the container's exit was not seen"]);
}

/// A node that stops at once leaves flows whose last answer came before it did.
#[test]
fn a_silence_may_begin_before_what_brings_it_about() {
    let events = vec![silence("udp-1", -12.0, 10_000.0)];
    let answered = span("udp-1", old(), -10_000.0, -12.0);
    let verdict = judge_events("udp-1", [events, vec![answered]].concat(), Outcome::Measured);
    assert_eq!((verdict.flows[0].fate, verdict.flows[0].ended_ms), (Fate::Silent, Some(-12.0)));
    let told = verdict.warnings.iter().find(|warning| warning.contains("before the trigger"));
    assert_eq!(told, None);
}

#[test]
fn counters_may_be_anything() {
    let values = |drop: u64| {
        let names = ["conntrack.drop", "conntrack.early_drop"];
        names.map(|name| (name.to_owned(), drop)).into_iter().collect()
    };
    let read = |ms: f64, of: &str, drop| {
        let event = Event::Counters { of: of.into(), values: values(drop) };
        Observation::exact(Ms::from_ms(ms), Source::Counters, event)
    };
    let counted: Vec<_> = (1..6)
        .map(|n| read(f64::from(n) * 10.0, "node:n", if n % 2 == 0 { u64::MAX } else { 0 }))
        .collect();
    let config = scenario(Sigterm::Exit, Trigger::Delete);
    let warnings = judge(&counted, &config, Some(&target()), Outcome::Measured).warnings;
    assert!(warnings.iter().any(|w| w.contains("may have been full")), "{warnings:?}");
}
