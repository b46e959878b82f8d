//! What stories tell, and in which order.

use super::*;
use crate::clock::Ms;
use crate::observation::{DialKind, DialOutcome, Protocol};
use crate::record::Trial;
use crate::stories;
use crate::verdict::Basis;

fn shown(story: &Story) -> String {
    let text = text(story, false);
    for line in text.lines() {
        assert!(line.chars().count() <= 100, "{line}");
        assert_eq!(line, line.trim_end());
    }
    text
}

fn flow_of(trial: &Trial, id: &str) -> Story {
    flow(trial, id).expect("a flow of this trial")
}

#[test]
fn a_trial() {
    insta::assert_snapshot!(shown(&trial(&stories::drain_with_evidence(1))));
}

#[test]
fn a_trial_that_was_aborted() {
    insta::assert_snapshot!(shown(&trial(&stories::aborted("drain-delete", 2))));
}

#[test]
fn a_flow_that_moved_with_a_measured_chain() {
    insta::assert_snapshot!(shown(&flow_of(&stories::drain_with_evidence(2), "udp-3")));
}

#[test]
fn a_flow_that_was_refused_before_it_moved() {
    insta::assert_snapshot!(shown(&flow_of(&stories::exit(1), "udp-2")));
}

#[test]
fn a_flow_that_fell_silent_beside_gaps() {
    let mut trial = stories::scale(1);
    let gap = |ms: f64, source, event| Observation::at_most(Ms::from_ms(ms), source, event);
    let until = Ms::from_ms(900.0);
    let reason = "the connection was closed".to_owned();
    let watch = Event::WatchGap { until, reason };
    trial.observations.push(gap(700.0, Source::EndpointsliceWatch, watch));
    let (node, reason) = ("control-plane".into(), "the kernel dropped events".into());
    let lost = Event::EvidenceGap { node, until, reason };
    trial.observations.push(gap(800.0, Source::NodeConntrack, lost));
    trial.judge_anew();
    insta::assert_snapshot!(shown(&flow_of(&trial, "udp-1")));
}

#[test]
fn a_connection_that_was_drained() {
    insta::assert_snapshot!(shown(&flow_of(&stories::drain_with_evidence(1), "tcp-1")));
}

#[test]
fn every_link_of_a_chain_is_numbered_once() {
    let trial = stories::drain_with_evidence(1);
    for record in &trial.flows {
        let links = record.cause.iter().flat_map(|cause| &cause.chain).count();
        let story = flow_of(&trial, &record.id);
        let mut numbers: Vec<_> = story.lines.iter().flat_map(|line| line.links.clone()).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (1..=links).collect::<Vec<_>>(), "{}", record.id);
    }
    let measured = trial.flows.iter().filter(|flow| flow.protocol == Protocol::Udp);
    let measured = measured.filter_map(|flow| flow.cause.as_ref());
    assert!(measured.clone().all(|cause| cause.basis == Basis::Measured && cause.chain.len() > 4));
    assert_eq!(measured.count(), 4);
}

#[test]
fn a_link_that_no_line_tells_of_gets_one() {
    let mut trial = stories::drain_with_evidence(1);
    let cause = trial.flows.last_mut().and_then(|flow| flow.cause.as_mut()).expect("a cause");
    cause.chain[2].t_ms = 1234.5;
    let story = flow_of(&trial, "udp-4");
    let line = story.lines.iter().find(|line| line.t_ms == 1234.5).expect("a line");
    assert_eq!((line.text.as_str(), line.links.as_slice()), ("endpoint not serving", &[3][..]));
}

#[test]
fn one_look_of_a_watch_tells_of_several_pods() {
    // The replacement gets ready in the same slice and at the same time.
    let mut trial = stories::drain_with_evidence(1);
    trial.observations.retain(|o| o.at != Ms::from_ms(1682.0));
    let (slice, pod, uid) = ("echo-abc".into(), "echo-new".into(), "uid-new".into());
    let (ready, serving, terminating) = (true, true, false);
    let event = Event::Endpoint { slice, pod, uid, ready, serving, terminating };
    let (at, source) = (Ms::from_ms(749.0), Source::EndpointsliceWatch);
    trial.observations.push(Observation::at_most(at, source, event));
    trial.judge_anew();
    let story = flow_of(&trial, "udp-1");
    let at = story.lines.iter().filter(|line| line.t_ms == 749.0);
    let numbered = at.filter(|line| !line.links.is_empty()).map(|line| line.text.as_str());
    let target = "the target's endpoint: not ready, not serving, terminating";
    assert_eq!(numbered.collect::<Vec<_>>(), [target]);
}

#[test]
fn a_packet_is_told_of_once_for_all_of_its_way() {
    let mut trial = stories::drain_with_evidence(1);
    let is_packet = |o: &&Observation| o.source == Source::NodePackets;
    let first = trial.observations.iter().find(is_packet).cloned().expect("a packet");
    for (ms, at_node, by, leaves) in [
        (25_040.95, "worker", "eth0", true),
        (25_040.97, "control-plane", "eth0", false),
        // Another one, some time later.
        (25_055.0, "worker", "veth1", false),
    ] {
        let mut seen = first.clone();
        seen.at = Ms::from_ms(ms);
        if let Event::Packet { node, interface, out, .. } = &mut seen.event {
            (*node, *interface, *out) = (at_node.into(), by.into(), leaves);
        }
        trial.observations.push(seen);
    }
    trial.judge_anew();
    let story = flow_of(&trial, "tcp-1");
    let told = story.lines.iter().filter(|line| line.source == Some(Source::NodePackets));
    let told: Vec<_> = told.map(|line| (line.text.as_str(), line.links.as_slice())).collect();
    let way = "FIN from 10.244.1.2 (the target): worker in by veth1, out by eth0; control-plane in by eth0";
    let later = "FIN from 10.244.1.2 (the target): worker in by veth1";
    assert_eq!(told, [(way, &[4][..]), (later, &[][..])]);
}

#[test]
fn thousands_of_flows_are_told_of_in_a_few_lines() {
    let mut trial = stories::drain_with_evidence(1);
    let one = trial.flows.last().cloned().expect("a flow");
    trial.flows.extend((5..=8000).map(|n| FlowRecord { id: format!("udp-{n}"), ..one.clone() }));
    let text = shown(&super::trial(&trial));
    assert!(text.lines().count() < 60, "{text}");
    assert!(text.contains("8,000 UDP flows rehomed"), "{text}");
    assert!(text.contains("udp-1 to udp-8000"), "{text}");
}

#[test]
fn what_a_record_says_moves_no_cursor() {
    let mut trial = stories::drain(1);
    trial.warnings.push("\u{1b}[2Jgone".into());
    trial.flows[0].cause.as_mut().expect("a cause").text = "a\rb \u{1b}]0;x".into();
    for story in [super::trial(&trial), flow_of(&trial, "tcp-1")] {
        assert!(!text(&story, false).contains(['\u{1b}', '\r']));
    }
}

#[test]
fn colours_change_no_word() {
    let trial = stories::drain_with_evidence(1);
    for story in [super::trial(&trial), flow_of(&trial, "udp-1")] {
        let plain = text(&story, false);
        let coloured = text(&story, true);
        assert_ne!(plain, coloured);
        let mut bare = String::new();
        let mut parts = coloured.split('\u{1b}');
        bare += parts.next().unwrap_or_default();
        parts.for_each(|part| bare += part.split_once('m').map_or("", |(_, text)| text));
        assert_eq!(plain, bare);
    }
}

#[test]
fn ids_are_told_of_in_stretches() {
    let words = |ids: &[&str]| ids_in_words(ids.iter().copied());
    assert_eq!(words(&["udp-1", "udp-2", "udp-3", "udp-5"]), "udp-1 to udp-3, udp-5");
    assert_eq!(words(&["tcp-9", "tcp-10", "udp-11"]), "tcp-9 to tcp-10, udp-11");
    assert_eq!(words(&["a", "a"]), "a, a");
    let odd: Vec<_> = (0..50).map(|n| format!("udp-{}", n * 2 + 1)).collect();
    let odd: Vec<_> = odd.iter().map(String::as_str).collect();
    assert_eq!(words(&odd), "udp-1, udp-3, udp-5, udp-7, udp-9, udp-11 and 44 more");
}

#[test]
fn the_grace_period_is_that_of_the_deletion() {
    let of = |trial: &Trial| {
        let facts = super::trial(trial).facts;
        facts.into_iter().find(|fact| fact.name == "trigger").expect("a trigger").text
    };
    let mut deleted = stories::drain(1);
    assert!(of(&deleted).ends_with("grace period 30s"), "{}", of(&deleted));
    deleted.config.delete_grace = Some(std::time::Duration::from_secs(1));
    assert!(of(&deleted).ends_with("grace period 1s"), "{}", of(&deleted));
}

#[test]
fn ends_of_processes_and_of_triggers_and_dials_have_sentences() {
    let mut trial = stories::exit(1);
    let target = trial.target.clone().expect("a target");
    let event = Event::ProcessExited {
        node: target.node,
        pod: target.pod,
        uid: target.uid,
        container: "probe".into(),
        pid: 4711,
        exit_code: Some(0),
    };
    trial.observations.push(Observation::at_most(Ms::from_ms(40.0), Source::NodeProcesses, event));
    let event = Event::TriggerDone { text: "process 4711 was sent SIGKILL".into() };
    trial.observations.push(Observation::at_most(Ms::from_ms(1.0), Source::Runner, event));
    let by = trial.flows[0].spans[0].by.clone();
    let kind = |outcome, by| DialKind {
        protocol: Protocol::Tcp,
        outcome,
        by,
        sender: None,
        icmp_type: None,
        icmp_code: None,
        error: None,
    };
    let dials = |kind, from: f64, to: f64, count| {
        let (from, to) = (Ms::from_ms(from), Ms::from_ms(to));
        let event = Event::Dials { kind, from, to, count, connect: None, took: None };
        Observation::exact(to, Source::Flow, event)
    };
    let accepted = kind(DialOutcome::Accepted, Some(by));
    trial.observations.push(dials(accepted, -1000.0, 30.0, 103));
    trial.observations.push(dials(kind(DialOutcome::NotConnected, None), 40.0, 40.0, 1));
    let texts: Vec<_> = super::trial(&trial).lines.into_iter().map(|line| line.text).collect();
    for expected in [
        "103 new TCP connections, started from -1,000.0 to 30.0 ms: accepted by the target",
        "1 new TCP connection, started at 40.0 ms: not connected",
        "worker: the first process of the target's container has ended: exit code 0",
        "the trigger is carried out: process 4711 was sent SIGKILL",
    ] {
        assert!(texts.iter().any(|text| text == expected), "{expected}: {texts:#?}");
    }
}
