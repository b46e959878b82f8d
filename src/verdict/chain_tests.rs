//! Chains, link by link: what each needs, and what takes it away.

use std::net::SocketAddr;

use super::*;
use crate::clock::Ms;
use crate::config::{Sigterm, Trigger, Via};
use crate::observation::{DestroyedBy, EntryChange, Event, Identity, PacketKind, Protocol, Source};
use crate::stories::{flow, new, old, scenario, target};

const CLIENT: &str = "10.231.0.1:4000";
const BEHIND: &str = "10.231.0.11:61000";
const NODE_PORT: &str = "10.231.0.11:30072";
const OLD: &str = "10.244.1.2:7002";
const NEW: &str = "10.244.1.3:7002";

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn seen(ms: f64, source: Source, event: Event) -> Observation {
    Observation::at_most(Ms::from_ms(ms), source, event)
}

fn entry(ms: f64, change: EntryChange, pod: &str, by: Option<DestroyedBy>) -> Observation {
    let event = Event::Conntrack {
        node: target().entry_node,
        change,
        protocol: Protocol::Udp,
        client: at(CLIENT),
        to: at(NODE_PORT),
        answered_by: at(pod),
        answers_to: at(BEHIND),
        assured: None,
        by,
    };
    seen(ms, Source::NodeConntrack, event)
}

fn rules(ms: f64, endpoints: &[&str], reject: bool) -> Observation {
    let event = Event::Rules {
        node: target().entry_node,
        protocol: Protocol::Udp,
        endpoints: endpoints.iter().map(|text| at(text)).collect(),
        reject,
        process: Some("iptables-restor".into()),
    };
    seen(ms, Source::NodeRules, event)
}

fn refusal(ms: f64, node: &str, out: bool, sender: &str, from: &str) -> Observation {
    let event = Event::Packet {
        node: node.into(),
        interface: "veth1".into(),
        out,
        kind: PacketKind::Unreachable,
        protocol: Protocol::Udp,
        sender: sender.parse().unwrap(),
        from: at(from),
        to: at(OLD),
        icmp_code: Some(3),
    };
    Observation::exact(Ms::from_ms(ms), Source::NodePackets, event)
}

fn span(by: Identity, from: f64, to: f64) -> Observation {
    let (from, to) = (Ms::from_ms(from), Ms::from_ms(to));
    flow(to.ms(), Event::Span { flow: "udp-1".into(), by, from, to, answers: 9 })
}

/// The cause of one UDP flow that was held by the target until 20 ms, with what else was seen.
fn cause_of(more: Vec<Observation>) -> Option<Cause> {
    cause_via(Via::NodePort, more)
}

/// The same, of a flow to another address than a node port.
fn cause_via(via: Via, more: Vec<Observation>) -> Option<Cause> {
    let opened =
        Event::FlowOpened { flow: "udp-1".into(), local: at(CLIENT), remote: at(NODE_PORT) };
    let mut all = vec![
        flow(-1000.0, opened),
        entry(-1000.0, EntryChange::New, OLD, None),
        span(old(), -1000.0, 20.0),
        flow(9000.0, Event::ObservationEnded { complete: true }),
    ];
    all.extend(more);
    let mut config = scenario(Sigterm::Exit, Trigger::Delete);
    config.flows.via = via;
    let verdict = judge(&all, &config, Some(&target()), Outcome::Measured);
    verdict.flows[0].cause.clone()
}

fn verdict(more: Vec<Observation>) -> Cause {
    cause_of(more).expect("a cause")
}

fn moved() -> Vec<Observation> {
    vec![
        rules(1100.0, &[NEW], false),
        entry(1150.0, EntryChange::Destroy, OLD, Some(DestroyedBy::Process)),
        entry(1151.0, EntryChange::New, NEW, None),
        span(new(), 1152.0, 8000.0),
    ]
}

#[test]
fn a_move_is_measured_where_each_link_was_told() {
    let cause = verdict(moved());
    assert_eq!(cause.basis, Basis::Measured);
    let links: Vec<_> = cause.chain.iter().map(|link| (link.what, link.t_ms)).collect();
    assert_eq!(
        links,
        [
            (LinkKind::Trigger, 0.0),
            (LinkKind::RulesWithoutTarget, 1100.0),
            (LinkKind::EntryDestroyed, 1150.0),
            (LinkKind::EntryMade, 1151.0),
            (LinkKind::Answered, 1152.0),
        ]
    );
    assert!(cause.text.contains("a process on the node deleted"), "{}", cause.text);
}

#[test]
fn a_link_that_was_read_late_is_no_contradiction() {
    // The answer was read before the events that led to it.
    let mut events = moved();
    events[3] = span(new(), 1149.0, 8000.0);
    assert_eq!(verdict(events).basis, Basis::Measured);
}

#[test]
fn without_a_link_nothing_is_measured() {
    for missing in 0..3 {
        let mut events = moved();
        events.remove(missing);
        // What is inferred needs the endpoint's story, which was not told either.
        events.push(Observation::at_most(
            Ms::from_ms(900.0),
            Source::EndpointsliceWatch,
            Event::EndpointGone { slice: "s".into(), pod: "old".into(), uid: target().uid },
        ));
        let basis = cause_of(events).map(|cause| cause.basis);
        assert_ne!(basis, Some(Basis::Measured), "without link {missing}");
    }
}

#[test]
fn across_a_gap_nothing_is_measured() {
    let mut events = moved();
    let gap = Event::EvidenceGap {
        node: target().entry_node,
        until: Ms::from_ms(1140.0),
        reason: "the kernel dropped events".into(),
    };
    events.push(seen(1130.0, Source::NodeConntrack, gap));
    let basis = cause_of(events).map(|cause| cause.basis);
    assert_ne!(basis, Some(Basis::Measured));
}

fn refused_at(ms: f64) -> Observation {
    let (sender, until) = (Some("10.231.0.11".parse().unwrap()), Ms::from_ms(ms));
    let flow_id = "udp-1".to_owned();
    flow(
        ms,
        Event::Refused {
            flow: flow_id,
            sender,
            icmp_type: Some(3),
            icmp_code: Some(3),
            until,
            count: 1,
        },
    )
}

/// Source ports are given out by protocol.
#[test]
fn an_entry_of_another_protocol_with_the_same_port_is_another_flows() {
    let mut other = entry(-2000.0, EntryChange::New, "10.244.1.2:7001", None);
    if let Event::Conntrack { protocol, answers_to, .. } = &mut other.event {
        (*protocol, *answers_to) = (Protocol::Tcp, at("10.231.0.11:5000"));
    }
    let of_pod = vec![other, refusal(39.9, &target().node, false, "10.244.1.2", BEHIND)];
    let cause = verdict([of_pod, vec![refused_at(40.0)]].concat());
    assert_eq!(cause.basis, Basis::Measured, "{}", cause.text);
}

#[test]
fn who_refuses_is_told_by_where_the_packet_came_from() {
    let pod_node = target().node;
    let of_pod = vec![refusal(39.9, &pod_node, false, "10.244.1.2", BEHIND), refused_at(40.0)];
    let cause = verdict(of_pod);
    assert_eq!(cause.basis, Basis::Measured);
    assert!(cause.text.contains("the pod's own network namespace"), "{}", cause.text);

    let of_node = vec![
        rules(30.0, &[], true),
        refusal(39.9, &target().entry_node, true, "10.231.0.11", CLIENT),
        refused_at(40.0),
    ];
    let cause = verdict(of_node);
    assert_eq!(cause.basis, Basis::Measured);
    assert!(cause.text.contains("whose rules reject"), "{}", cause.text);

    assert_eq!(verdict(vec![refused_at(40.0)]).basis, Basis::Inferred);
}

/// As [`entry`], at the pod's own node: where a hostPort is translated.
fn entry_at_pods_node(ms: f64, change: EntryChange, pod: &str) -> Observation {
    let mut seen = entry(ms, change, pod, None);
    if let Event::Conntrack { node, .. } = &mut seen.event {
        *node = target().node;
    }
    seen
}

#[test]
fn a_host_port_is_moved_and_refused_by_the_pods_node_without_kube_proxy() {
    let held = entry_at_pods_node(-1000.0, EntryChange::New, OLD);
    let dropped = entry_at_pods_node(1150.0, EntryChange::Destroy, OLD);
    let moved = vec![
        held.clone(),
        rules(1100.0, &[NEW], false),
        dropped.clone(),
        entry_at_pods_node(1151.0, EntryChange::New, NEW),
        span(new(), 1152.0, 8000.0),
    ];
    let cause = cause_via(Via::HostPort, moved).expect("a cause");
    assert_eq!(cause.basis, Basis::Measured);
    let links: Vec<_> = cause.chain.iter().map(|link| link.what).collect();
    let expected =
        [LinkKind::Trigger, LinkKind::EntryDestroyed, LinkKind::EntryMade, LinkKind::Answered];
    assert_eq!(links, expected);

    let refused = vec![
        held,
        rules(1100.0, &[], true),
        dropped,
        refusal(1160.0, &target().node, true, "10.231.0.12", CLIENT),
        refused_at(1160.1),
    ];
    let cause = cause_via(Via::HostPort, refused).expect("a cause");
    assert_eq!(cause.basis, Basis::Measured);
    assert!(cause.text.contains("nothing at that port"), "{}", cause.text);
}

#[test]
fn no_rule_of_kube_proxys_is_blamed_for_a_flow_to_the_pod_itself() {
    let pod_node = target().node;
    let of_pod = vec![refusal(39.9, &pod_node, false, "10.244.1.2", BEHIND), refused_at(40.0)];
    let cause = cause_via(Via::Pod, of_pod).expect("a cause");
    assert_eq!(cause.basis, Basis::Measured);

    let of_node = vec![
        rules(30.0, &[], true),
        refusal(39.9, &target().entry_node, true, "10.231.0.11", CLIENT),
        refused_at(40.0),
    ];
    let cause = cause_via(Via::Pod, of_node).expect("a cause");
    assert_eq!(cause.basis, Basis::Inferred, "{}", cause.text);
}
