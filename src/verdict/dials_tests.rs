//! What follows from dials, rule by rule.

use super::*;
use crate::config::{Sigterm, Trigger};
use crate::observation::Source;
use crate::stories::{new, old, scenario, target};
use crate::verdict::{Outcome, Verdict, judge};

fn dials(protocol: Protocol, outcome: DialOutcome, from: f64, to: f64, count: u64) -> Observation {
    by(protocol, outcome, None, from, to, count)
}

fn accepted(protocol: Protocol, who: Identity, from: f64, to: f64) -> Observation {
    by(protocol, DialOutcome::Accepted, Some(who), from, to, 10)
}

fn by(
    protocol: Protocol,
    outcome: DialOutcome,
    by: Option<Identity>,
    from: f64,
    to: f64,
    count: u64,
) -> Observation {
    let (sender, icmp_type, icmp_code, error) = (None, None, None, None);
    let kind = DialKind { protocol, outcome, by, sender, icmp_type, icmp_code, error };
    let (from, to) = (Ms::from_ms(from), Ms::from_ms(to));
    let event = Event::Dials { kind, from, to, count, connect: None, took: None };
    Observation::exact(to, Source::Flow, event)
}

fn endpoint(ms: f64, who: &Identity, ready: bool) -> Observation {
    let (slice, pod, uid) = ("s".into(), who.pod.clone(), who.uid.clone());
    let event = Event::Endpoint { slice, pod, uid, ready, serving: ready, terminating: false };
    Observation::at_most(Ms::from_ms(ms), Source::EndpointsliceWatch, event)
}

fn removed(ms: f64) -> Observation {
    let (slice, pod, uid) = ("s".into(), old().pod, old().uid);
    let event = Event::EndpointGone { slice, pod, uid };
    Observation::at_most(Ms::from_ms(ms), Source::EndpointsliceWatch, event)
}

fn judged(observations: &[Observation]) -> Verdict {
    let config = scenario(Sigterm::Exit, Trigger::Delete);
    judge(observations, &config, Some(&target()), Outcome::Measured)
}

use DialOutcome::{FailedHere, Refused, Reset, Unanswered, Unfinished};
use Protocol::{Tcp, Udp};

#[test]
fn without_dials_nothing_is_known_and_where_none_failed_it_is_zero() {
    assert_eq!(judged(&[removed(300.0)]).findings.dials, DialFindings::default());
    let verdict = judged(&[accepted(Tcp, old(), 5.0, 900.0)]);
    let expected = DialFindings { failed_tcp_dials: Some(0), ..DialFindings::default() };
    assert_eq!(verdict.findings.dials, expected);
}

#[test]
fn a_window_of_failures_stands_against_the_endpoints_removal() {
    let verdict = judged(&[
        accepted(Tcp, old(), -3000.0, -20.0),
        dials(Tcp, Reset, 40.5, 40.5, 1),
        dials(Tcp, Refused, 60.5, 280.5, 12),
        dials(Tcp, Unanswered, 300.5, 1020.5, 37),
        accepted(Tcp, new(), 1700.5, 5000.5),
        removed(293.0),
    ]);
    let dials = verdict.findings.dials;
    assert_eq!(dials.failed_tcp_dials, Some(50));
    assert_eq!(dials.first_failed_tcp_dial_ms, Some(40.5));
    assert_eq!(dials.last_failed_tcp_dial_ms, Some(1020.5));
    assert_eq!(dials.failed_tcp_dials_to_endpoint_removed_ms, Some(293.0 - 1020.5));
    assert_eq!(dials.failed_tcp_dials_to_rules_removed_ms, None, "no rules were seen");
    assert_eq!(dials.first_tcp_dial_by_replacement_ms, Some(1700.5));
    assert_eq!(dials.failed_udp_dials, None);
    let bound = verdict.finding_bounds["failed_tcp_dials_to_endpoint_removed_ms"];
    assert_eq!(bound.bound, Bound::AtMost);
    let list: Vec<_> = verdict.dials.iter().map(|dial| (dial.kind.outcome, dial.count)).collect();
    let accepted = (DialOutcome::Accepted, 10);
    assert_eq!(list, [accepted, (Reset, 1), (Refused, 12), (Unanswered, 37), accepted]);
}

#[test]
fn who_served_before_is_no_replacement() {
    let (mut beside, mut unmet) = (new(), new());
    (beside.uid, beside.instance) = ("uid-beside".into(), "beside-1".into());
    (unmet.uid, unmet.instance) = ("uid-unmet".into(), "unmet-1".into());
    let verdict = judged(&[
        endpoint(-4000.0, &unmet, true),
        accepted(Udp, beside.clone(), -3000.0, -20.0),
        accepted(Udp, old(), 1.0, 30.0),
        accepted(Udp, beside, 2.0, 5000.0),
        accepted(Udp, unmet, 3.0, 5000.0),
        accepted(Udp, new(), 2000.0, 5000.0),
    ]);
    assert_eq!(verdict.findings.dials.first_udp_dial_by_replacement_ms, Some(2000.0));
}

#[test]
fn another_process_of_the_targets_pod_is_a_replacement() {
    let again = Identity { instance: "old-2".into(), ..old() };
    let verdict = judged(&[
        endpoint(-4000.0, &old(), true),
        accepted(Tcp, old(), -3000.0, -20.0),
        accepted(Tcp, again, 800.0, 5000.0),
    ]);
    assert_eq!(verdict.findings.dials.first_tcp_dial_by_replacement_ms, Some(800.0));
}

#[test]
fn our_own_failures_are_listed_and_not_counted() {
    let verdict = judged(&[
        accepted(Tcp, old(), 1.0, 30.0),
        dials(Tcp, FailedHere, 40.0, 60.0, 2),
        dials(Tcp, Unfinished, 80.0, 100.0, 2),
        dials(Udp, FailedHere, 40.0, 60.0, 2),
    ]);
    assert_eq!(verdict.findings.dials.failed_tcp_dials, Some(0));
    assert_eq!(verdict.findings.dials.failed_udp_dials, None, "none says anything of the cluster");
    assert_eq!(verdict.dials.len(), 4);
    let ours = verdict.warnings.iter().filter(|warning| warning.contains("on this machine"));
    assert_eq!(ours.count(), 2);
}

#[test]
fn failures_before_the_trigger_are_of_no_account() {
    let verdict = judged(&[dials(Tcp, Refused, -900.0, -20.0, 5), accepted(Tcp, old(), 1.0, 30.0)]);
    assert_eq!(verdict.findings.dials.failed_tcp_dials, Some(0));
    assert_eq!(verdict.findings.dials.first_failed_tcp_dial_ms, None);
    let told = "5 new TCP connections failed before the trigger".to_owned();
    assert!(verdict.warnings.contains(&told), "{:?}", verdict.warnings);
}
