//! Chains, link by link: what each needs, and what takes it away.

use std::collections::BTreeMap;
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
    entry_of(Protocol::Udp, ms, change, pod, by)
}

fn entry_of(
    protocol: Protocol,
    ms: f64,
    change: EntryChange,
    pod: &str,
    by: Option<DestroyedBy>,
) -> Observation {
    let event = Event::Conntrack {
        node: target().entry_node,
        change,
        protocol,
        client: at(CLIENT),
        to: at(NODE_PORT),
        answered_by: at(pod),
        answers_to: at(BEHIND),
        assured: None,
        by,
    };
    seen(ms, Source::NodeConntrack, event)
}

fn rules(ms: f64, protocol: Protocol, endpoints: &[&str], reject: bool) -> Observation {
    let event = Event::Rules {
        node: target().entry_node,
        protocol,
        endpoints: endpoints.iter().map(|text| at(text)).collect(),
        reject,
        process: Some("iptables-restor".into()),
    };
    seen(ms, Source::NodeRules, event)
}

fn udp_rules(ms: f64, endpoints: &[&str], reject: bool) -> Observation {
    rules(ms, Protocol::Udp, endpoints, reject)
}

/// A packet at a node, repeated until then.
struct Wire<'a> {
    node: &'a str,
    out: bool,
    sender: &'a str,
    kind: PacketKind,
    protocol: Protocol,
    from: &'a str,
    to: &'a str,
    icmp_code: Option<u8>,
}

impl Wire<'_> {
    fn passes(&self, ms: f64, until: f64) -> Observation {
        let repeated = until > ms;
        let event = Event::Packet {
            node: self.node.into(),
            interface: "veth1".into(),
            out: self.out,
            kind: self.kind,
            protocol: self.protocol,
            sender: self.sender.parse().unwrap(),
            from: at(self.from),
            to: at(self.to),
            icmp_code: self.icmp_code,
            count: if repeated { 2 } else { 1 },
            until: repeated.then(|| Ms::from_ms(until)),
        };
        Observation::exact(Ms::from_ms(ms), Source::NodePackets, event)
    }
}

const REFUSAL: Wire = Wire {
    node: "worker",
    out: false,
    sender: "10.244.1.2",
    kind: PacketKind::Unreachable,
    protocol: Protocol::Udp,
    from: BEHIND,
    to: OLD,
    icmp_code: Some(3),
};

/// A refusal that the pod's own namespace sent, as it came in at the pod's node and left the other.
fn by_pod(ms: f64, until: f64) -> [Observation; 2] {
    let left = Wire {
        node: "control-plane",
        out: true,
        sender: "10.231.0.11",
        from: CLIENT,
        to: NODE_PORT,
        ..REFUSAL
    };
    [REFUSAL.passes(ms, until), left.passes(ms + 0.1, until + 0.1)]
}

/// A refusal that the node made that the flow enters by.
fn by_node(ms: f64) -> Observation {
    let left = Wire {
        node: "control-plane",
        out: true,
        sender: "10.231.0.11",
        from: CLIENT,
        to: NODE_PORT,
        ..REFUSAL
    };
    left.passes(ms, ms)
}

fn span(by: Identity, from: f64, to: f64) -> Observation {
    let (from, to) = (Ms::from_ms(from), Ms::from_ms(to));
    flow(to.ms(), Event::Span { flow: "udp-1".into(), by, from, to, answers: 9 })
}

fn not_ready(ms: f64) -> Observation {
    let (slice, pod, uid) = ("s".into(), "echo-old".into(), target().uid);
    let event = Event::Endpoint { slice, pod, uid, ready: false, serving: true, terminating: true };
    seen(ms, Source::EndpointsliceWatch, event)
}

fn not_serving(ms: f64) -> Observation {
    let mut seen = not_ready(ms);
    if let Event::Endpoint { serving, .. } = &mut seen.event {
        *serving = false;
    }
    seen
}

fn process_ended(ms: f64, exit_code: Option<i32>) -> Observation {
    let event = Event::ProcessExited {
        node: target().node,
        pod: target().pod,
        uid: target().uid,
        container: "probe".into(),
        pid: 4711,
        exit_code,
    };
    seen(ms, Source::NodeProcesses, event)
}

fn counters(ms: f64, of: &str, sent: u64, withheld: u64) -> Observation {
    let values =
        [("OutDestUnreachs", sent), ("OutRateLimitHost", withheld), ("OutRateLimitGlobal", 0)];
    let values: BTreeMap<_, _> =
        values.into_iter().map(|(name, n)| (format!("Icmp.{name}"), n)).collect();
    Observation::exact(Ms::from_ms(ms), Source::Counters, Event::Counters { of: of.into(), values })
}

fn gap(source: Source, from: f64, until: f64) -> Observation {
    let event = Event::EvidenceGap {
        node: target().entry_node,
        until: Ms::from_ms(until),
        reason: "the kernel dropped events".into(),
    };
    seen(from, source, event)
}

/// What is told of one UDP flow that was held by the target until 20 ms, with what else was seen.
fn told(more: Vec<Observation>) -> Verdict {
    told_via(Via::NodePort, more)
}

/// The same, of a flow to another address than a node port.
fn told_via(via: Via, more: Vec<Observation>) -> Verdict {
    let opened =
        Event::FlowOpened { flow: "udp-1".into(), local: at(CLIENT), remote: at(NODE_PORT) };
    let mut all = vec![
        flow(-1000.0, opened),
        entry(-1000.0, EntryChange::New, OLD, None),
        udp_rules(-1100.0, &[OLD], false),
        span(old(), -1000.0, 20.0),
        flow(9000.0, Event::ObservationEnded { complete: true }),
    ];
    all.extend(more);
    let mut config = scenario(Sigterm::Exit, Trigger::Delete);
    config.flows.via = via;
    judge(&all, &config, Some(&target()), Outcome::Measured)
}

fn cause_of(more: Vec<Observation>) -> Option<Cause> {
    told(more).flows[0].cause.clone()
}

fn measured(more: Vec<Observation>) -> Cause {
    let cause = cause_of(more).expect("a cause");
    assert_eq!(cause.basis, Basis::Measured, "{}", cause.text);
    cause
}

fn is_measured(more: Vec<Observation>) -> bool {
    cause_of(more).is_some_and(|cause| cause.basis == Basis::Measured)
}

fn kinds(cause: &Cause) -> Vec<LinkKind> {
    cause.chain.iter().map(|link| link.what).collect()
}

fn moved() -> Vec<Observation> {
    vec![
        not_ready(30.0),
        udp_rules(1100.0, &[NEW], false),
        entry(1150.0, EntryChange::Destroy, OLD, Some(DestroyedBy::Process)),
        entry(1151.0, EntryChange::New, NEW, None),
        span(new(), 1152.0, 8000.0),
    ]
}

#[test]
fn a_move_is_measured_where_each_link_was_told() {
    let cause = measured(moved());
    let links: Vec<_> = cause.chain.iter().map(|link| (link.what, link.t_ms)).collect();
    assert_eq!(
        links,
        [
            (LinkKind::Trigger, 0.0),
            (LinkKind::EndpointNotReady, 30.0),
            (LinkKind::RulesWithoutTarget, 1100.0),
            (LinkKind::EntryDestroyed, 1150.0),
            (LinkKind::EntryMade, 1151.0),
            (LinkKind::Answered, 1152.0),
        ]
    );
    assert!(cause.text.contains("a process on the node deleted"), "{}", cause.text);
}

#[test]
fn rules_that_reject_before_they_lead_to_the_replacement_are_two_links() {
    let mut events = moved();
    events.push(udp_rules(500.0, &[], true));
    let cause = measured(events);
    let kinds = kinds(&cause);
    let at = |what| kinds.iter().position(|kind| *kind == what);
    let (out, to) = (at(LinkKind::RulesWithoutTarget), at(LinkKind::RulesToReplacement));
    assert!(out.is_some() && out < to && to < at(LinkKind::EntryDestroyed), "{kinds:?}");
    assert!(
        cause.text.starts_with(
            "the rules of control-plane left the pod out at 500.0 ms, the rules led to the replacement at \
             1100.0 ms, a process on the node deleted the flow's conntrack entry 50.0 ms after that"
        ),
        "{}",
        cause.text
    );
}

#[test]
fn an_entry_that_outlives_the_rules_is_told_with_what_came_between() {
    // It goes on serving for a while, as in a preStop hook.
    let mut events = moved();
    events.push(not_serving(1120.0));
    let text = measured(events).text;
    assert!(
        text.starts_with(
            "the rules of control-plane left the pod out at 1100.0 ms, its endpoint no longer served at \
             1120.0 ms, a process on the node deleted the flow's conntrack entry 30.0 ms after that"
        ),
        "{text}"
    );
    let mut events = moved();
    events.push(not_serving(1160.0));
    assert!(measured(events).text.contains("entry 50.0 ms after that"), "it was told of too late");
}

#[test]
fn a_link_that_was_read_late_is_no_contradiction() {
    // The answer was read before the events that led to it.
    let mut events = moved();
    events[4] = span(new(), 1149.0, 8000.0);
    measured(events);
}

#[test]
fn without_a_link_no_move_is_measured() {
    for missing in 0..4 {
        let mut events = moved();
        events.remove(missing);
        assert!(!is_measured(events), "without link {missing}");
    }
}

#[test]
fn across_a_gap_nothing_is_measured() {
    for source in [Source::NodeRules, Source::NodeConntrack] {
        let mut events = moved();
        events.push(gap(source, 1130.0, 1140.0));
        assert!(!is_measured(events.clone()), "{source:?}");
        let warned = told(events).warnings;
        assert!(warned.iter().any(|w| w.contains("from 1130.0 to 1140.0 ms")), "{warned:?}");
        let mut events = moved();
        events.push(gap(source, -50.0, -40.0));
        assert!(is_measured(events), "before the trigger: {source:?}");
    }
}

fn refused(ms: f64, until: f64, count: u64) -> Observation {
    let (sender, until) = (Some("10.231.0.11".parse().unwrap()), Ms::from_ms(until));
    let (icmp_type, icmp_code) = (Some(3), Some(3));
    let flow_id = "udp-1".to_owned();
    flow(ms, Event::Refused { flow: flow_id, sender, icmp_type, icmp_code, until, count })
}

#[test]
fn a_move_tells_of_the_refusals_that_came_before_it() {
    let mut events = moved();
    events.extend(by_pod(39.8, 79.8));
    events.extend([refused(40.0, 80.0, 3), process_ended(38.0, Some(0))]);
    let cause = measured(events);
    assert_eq!(
        kinds(&cause),
        [
            LinkKind::Trigger,
            LinkKind::EndpointNotReady,
            LinkKind::ProcessExit,
            LinkKind::Refusal,
            LinkKind::Refused,
            LinkKind::RulesWithoutTarget,
            LinkKind::EntryDestroyed,
            LinkKind::EntryMade,
            LinkKind::Answered,
        ]
    );
    let expected =
        "it was refused 3 times, from 40.0 to 80.0 ms, first by the pod's own network namespace";
    assert!(cause.text.ends_with(expected), "{}", cause.text);
}

#[test]
fn who_refuses_is_told_by_where_the_packet_came_from() {
    let mut of_pod = Vec::from(by_pod(39.8, 39.8));
    of_pod.push(refused(40.0, 40.0, 1));
    let cause = measured(of_pod.clone());
    assert!(cause.text.contains("the pod's own network namespace"), "{}", cause.text);

    // The same, though the node rejects already: what is held goes past its rules.
    of_pod.push(udp_rules(30.0, &[], true));
    let cause = measured(of_pod);
    assert!(cause.text.contains("the pod's own network namespace"), "{}", cause.text);

    let cause = measured(refused_by_rules());
    assert!(cause.text.contains("made by control-plane, whose rules reject"), "{}", cause.text);
    let expected = [
        LinkKind::Trigger,
        LinkKind::RulesReject,
        LinkKind::EntryDestroyed,
        LinkKind::Refusal,
        LinkKind::Refused,
    ];
    assert_eq!(kinds(&cause), expected);

    assert!(!is_measured(vec![refused(40.0, 40.0, 1)]));
    assert!(!is_measured(vec![by_node(39.9), refused(40.0, 40.0, 1)]), "no rule rejects");
}

/// A refusal that the node made once the flow's entry was gone; its pod's node told of another.
fn refused_by_rules() -> Vec<Observation> {
    let mut events = Vec::from(by_pod(39.8, 39.8));
    let gone = entry(899.0, EntryChange::Destroy, OLD, Some(DestroyedBy::Kernel));
    events.extend([udp_rules(30.0, &[], true), gone, by_node(899.9), refused(900.0, 900.0, 1)]);
    events
}

#[test]
fn a_refusal_is_no_rules_doing_unless_all_was_told_that_it_takes() {
    let without = |left_out: fn(&Event) -> bool| {
        refused_by_rules().into_iter().filter(|o| !left_out(&o.event)).collect::<Vec<_>>()
    };
    assert!(is_measured(without(|_| false)));
    let held = without(|event| matches!(event, Event::Conntrack { .. }));
    assert!(!is_measured(held), "what an entry holds goes past the rules");
    let deaf = without(|event| matches!(event, Event::Packet { node, .. } if node == "worker"));
    assert!(!is_measured(deaf), "the pod's node was not listened in: the pod may have refused");
    let mut led = refused_by_rules();
    led.push(udp_rules(800.0, &[NEW], false));
    assert!(!is_measured(led), "the rules rejected no longer");
    let mut leads = without(|event| matches!(event, Event::Rules { .. }));
    leads.push(udp_rules(30.0, &[OLD], true));
    assert!(!is_measured(leads.clone()), "what is led to a pod is not rejected");
    leads.push(udp_rules(60.0, &[], true));
    let since =
        |cause: Cause| cause.chain.iter().find(|l| l.what == LinkKind::RulesReject).cloned();
    assert_eq!(since(measured(leads)).map(|link| link.t_ms), Some(60.0));
    let mut old: Vec<_> = without(|event| matches!(event, Event::Packet { .. }));
    old.extend(by_pod(39.8, 39.8));
    assert!(!is_measured(old), "no packet passed when the flow was refused");
    let mut late = without(|event| matches!(event, Event::Conntrack { .. }));
    late.push(entry(931.0, EntryChange::Destroy, OLD, Some(DestroyedBy::Kernel)));
    assert!(is_measured(late), "the entry's end was read late");
    for source in [Source::NodeRules, Source::NodeConntrack, Source::NodePackets] {
        let mut events = refused_by_rules();
        events.push(gap(source, 500.0, 510.0));
        assert!(!is_measured(events), "{source:?}");
    }
}

#[test]
fn an_entry_of_an_earlier_trials_flow_with_the_same_address_is_another_flows() {
    let mut other = entry(-1050.0, EntryChange::Destroy, "10.244.1.9:7002", None);
    if let Event::Conntrack { to, .. } = &mut other.event {
        *to = at("10.231.0.11:31999");
    }
    let mut events = moved();
    events.push(other);
    assert!(is_measured(events));
}

#[test]
fn an_entry_that_went_before_the_rules_changed_stands_before_them() {
    let mut events = moved();
    events[2] = entry(300.0, EntryChange::Destroy, OLD, Some(DestroyedBy::Kernel));
    let cause = measured(events);
    assert_eq!(
        kinds(&cause),
        [
            LinkKind::Trigger,
            LinkKind::EndpointNotReady,
            LinkKind::EntryDestroyed,
            LinkKind::RulesWithoutTarget,
            LinkKind::EntryMade,
            LinkKind::Answered,
        ]
    );
    let expected = "left the pod out at 1100.0 ms, the kernel dropped the flow's conntrack entry at \
                    300.0 ms, before that";
    assert!(cause.text.contains(expected), "{}", cause.text);

    // Another one was made to the dead pod meanwhile: its end is what let the flow go.
    let mut events = moved();
    events.push(entry(300.0, EntryChange::Destroy, OLD, Some(DestroyedBy::Kernel)));
    events.push(entry(301.0, EntryChange::New, OLD, None));
    let cause = measured(events);
    assert!(cause.text.contains("a process on the node deleted"), "{}", cause.text);
    assert!(
        cause.chain.iter().any(|link| (link.what, link.t_ms) == (LinkKind::EntryDestroyed, 1150.0))
    );
}

#[test]
fn a_chain_does_not_lead_to_what_came_before_it() {
    // The container was restarted and answered, and the flow moved to another pod only later.
    let restarted = Identity { instance: "old-2".into(), ..old() };
    let mut events = moved();
    events[4] = span(restarted, 800.0, 1140.0);
    events.push(span(new(), 1152.0, 8000.0));
    let cause = cause_of(events).expect("a cause");
    assert!(!cause.text.contains("conntrack entry"), "{}", cause.text);
    assert_eq!(cause.basis, Basis::Inferred);

    // What ended at last was another process than the one that was restarted.
    let restarted = Identity { instance: "old-2".into(), ..old() };
    let (pod, uid, instance) = (target().pod, target().uid, restarted.instance.clone());
    let started = Event::ProbeStarted { pod, uid, instance };
    let started = Observation::exact(Ms::from_ms(790.0), Source::ProbeLog, started);
    let with = |ended: f64| {
        vec![
            span(restarted.clone(), 800.0, 8000.0),
            started.clone(),
            process_ended(ended, Some(137)),
        ]
    };
    let chain_of = |ended| cause_of(with(ended)).map_or(0, |cause| cause.chain.len());
    assert_eq!((chain_of(25.0), chain_of(8100.0)), (4, 0));
}

#[test]
fn rules_that_led_to_the_other_pod_before_make_it_no_replacement() {
    let mut events = moved();
    events.push(udp_rules(-1050.0, &[OLD, NEW], false));
    let text = measured(events).text;
    assert!(text.ends_with("went to another pod of the Service"), "{text}");
    assert!(measured(moved()).text.ends_with("went to the replacement"));
}

#[test]
fn what_was_silent_while_the_pod_lived_has_another_reason() {
    let dies_at = |ms: f64| {
        let mut events = silent();
        events[1] = process_ended(ms, Some(0));
        events
    };
    assert!(is_measured(dies_at(1500.0)));
    assert!(!is_measured(dies_at(5000.0)));
}

#[test]
fn rules_that_no_flow_passes_are_not_told_of() {
    let held = entry_at_pods_node(-1000.0, EntryChange::New, OLD);
    let mut events = silent();
    events[3] = entry_at_pods_node(9001.0, EntryChange::Stands, OLD);
    events.push(held);
    let cause = told_via(Via::HostPort, events).flows[0].cause.clone().expect("a cause");
    assert_eq!(cause.basis, Basis::Measured);
    let expected = "the pod's node kept its conntrack entry to it until the observation ended; what became of \
                    its datagrams from there on was not recorded";
    assert!(cause.text.ends_with(expected), "{}", cause.text);

    let lives = vec![span(old(), 20.0, 8990.0), entry(9001.0, EntryChange::Stands, OLD, None)];
    let text = |via| told_via(via, lives.clone()).flows[0].cause.clone().expect("a cause").text;
    assert!(text(Via::Pod).ends_with("still holds the flow's conntrack entry to it"));
    assert!(text(Via::NodePort).ends_with("and the node's rules lead there"));

    // They left it out for a while only.
    let mut events = lives.clone();
    events.extend([udp_rules(1000.0, &[], true), udp_rules(2000.0, &[OLD], false)]);
    let cause = measured(events);
    assert!(cause.text.ends_with("and the node's rules lead there"), "{}", cause.text);
}

#[test]
fn a_host_ports_entry_to_the_node_itself_leads_to_no_pod() {
    let to_itself = entry_at_pods_node(1120.0, EntryChange::New, NODE_PORT);
    let events = vec![
        entry_at_pods_node(-1000.0, EntryChange::New, OLD),
        entry_at_pods_node(1100.0, EntryChange::Destroy, OLD),
        to_itself,
        entry_at_pods_node(1151.0, EntryChange::New, NEW),
        span(new(), 1152.0, 8000.0),
    ];
    let cause = told_via(Via::HostPort, events).flows[0].cause.clone().expect("a cause");
    let made = cause.chain.iter().find(|link| link.what == LinkKind::EntryMade);
    assert_eq!(made.map(|link| link.t_ms), Some(1151.0));
}

#[test]
fn a_reset_of_an_app_that_resets_is_not_its_processs_end_though_its_log_was_lost() {
    let rst = Wire {
        kind: PacketKind::Rst,
        protocol: Protocol::Tcp,
        from: OLD,
        to: BEHIND,
        icmp_code: None,
        ..REFUSAL
    };
    let basis = |code| {
        let more = vec![rst.passes(49.8, 49.8), process_ended(50.5, Some(code)), sigterm()];
        let exiting = Event::ProbeExiting { uid: target().uid, instance: old().instance, code };
        let exiting = Observation::exact(Ms::from_ms(50.0), Source::ProbeLog, exiting);
        let more = more.into_iter().chain([exiting]).collect();
        tcp_of(Sigterm::Exit, Event::Reset { flow: "tcp-1".into() }, more).basis
    };
    assert_eq!(basis(0), Basis::Inferred);
    assert_eq!(basis(137), Basis::Measured, "it was killed before it could");
}

#[test]
fn what_the_limiter_withheld_is_told_where_it_was_counted() {
    let of_pod = || {
        let mut events = Vec::from(by_pod(39.8, 39.8));
        events.push(refused(40.0, 40.0, 1));
        events
    };
    let pod = format!("pod:{}", target().uid);
    let mut events = of_pod();
    events.extend([counters(-10.0, &pod, 1, 0), counters(250.0, &pod, 7, 4)]);
    let text = measured(events).text;
    assert!(
        text.ends_with(
            "by 250 ms the pod's own network namespace had sent 6 refusals, and its ICMP limiter withheld 4"
        ),
        "{text}"
    );
    let mut events = of_pod();
    events.push(counters(250.0, &pod, 7, 4));
    assert!(!measured(events).text.contains("limiter"), "no reading before the trigger");
    let mut events = of_pod();
    events.extend([counters(-10.0, &pod, 1, 0), counters(39.0, &pod, 2, 0)]);
    assert!(!measured(events).text.contains("limiter"), "read before the flow was refused");
}

fn silent() -> Vec<Observation> {
    let silence = Event::Silence {
        flow: "udp-1".into(),
        from: Ms::from_ms(20.0),
        to: Ms::from_ms(9000.0),
        unanswered: 400,
    };
    vec![
        not_ready(30.0),
        process_ended(25.0, Some(0)),
        flow(9000.0, silence),
        entry(9001.0, EntryChange::Stands, OLD, None),
    ]
}

#[test]
fn a_silence_is_measured_where_the_entry_to_the_dead_pod_stands() {
    let cause = measured(silent());
    let expected = [
        LinkKind::Trigger,
        LinkKind::ProcessExit,
        LinkKind::EndpointNotReady,
        LinkKind::EntryStands,
    ];
    assert_eq!(kinds(&cause), expected);
    // The table was read, and the flow's entry was not in it, though nobody told of its end.
    let mut events = silent();
    events[3] = entry_of(Protocol::Tcp, 9001.0, EntryChange::Stands, OLD, None);
    assert!(!is_measured(events));
    let mut events = silent();
    events.push(entry(500.0, EntryChange::Destroy, OLD, Some(DestroyedBy::Kernel)));
    assert!(!is_measured(events), "its entry has gone");
}

/// While the pod still serves: seen on 1.37.2 with flows to a ClusterIP.
#[test]
fn a_flow_whose_refusals_are_withheld_is_silent_since_its_entry_went() {
    let unheard = || {
        let silence = Event::Silence {
            flow: "udp-1".into(),
            from: Ms::from_ms(1503.0),
            to: Ms::from_ms(9000.0),
            unanswered: 400,
        };
        vec![
            not_ready(30.0),
            span(old(), 20.0, 1503.0),
            udp_rules(1450.0, &[], true),
            entry(1504.0, EntryChange::Destroy, OLD, Some(DestroyedBy::Process)),
            process_ended(6100.0, Some(0)),
            flow(9000.0, silence),
        ]
    };
    let cause = measured(unheard());
    let expected = [
        LinkKind::Trigger,
        LinkKind::EndpointNotReady,
        LinkKind::RulesReject,
        LinkKind::EntryDestroyed,
    ];
    assert_eq!(kinds(&cause), expected);
    assert!(cause.text.contains("a process on the node deleted"), "{}", cause.text);
    let mut led = unheard();
    led[2] = udp_rules(1450.0, &[NEW], false);
    assert!(!is_measured(led), "nothing rejects it");
    let mut later = unheard();
    later[3] = entry(5000.0, EntryChange::Destroy, OLD, Some(DestroyedBy::Kernel));
    assert_eq!(cause_of(later), None, "silent before its entry went, and before its pod");
}

#[test]
fn a_flow_that_lives_on_is_held_by_its_entry() {
    let lives = || {
        vec![
            not_ready(30.0),
            udp_rules(1100.0, &[NEW], false),
            span(old(), 20.0, 8990.0),
            entry(9001.0, EntryChange::Stands, OLD, None),
        ]
    };
    let verdict = told(lives());
    assert_eq!(verdict.flows[0].fate, Fate::Survived);
    let cause = measured(lives());
    assert!(cause.text.contains("left the pod out since 1100.0 ms"), "{}", cause.text);
    let mut without = lives();
    without.pop();
    assert_eq!(cause_of(without), None);
}

/// What is told of one TCP flow.
fn tcp(end: Event, more: Vec<Observation>) -> Cause {
    tcp_of(Sigterm::Ignore, end, more)
}

/// The same, of an app that does this on SIGTERM.
fn tcp_of(sigterm: Sigterm, end: Event, more: Vec<Observation>) -> Cause {
    let opened =
        Event::FlowOpened { flow: "tcp-1".into(), local: at(CLIENT), remote: at(NODE_PORT) };
    let (from, to) = (Ms::from_ms(-1000.0), Ms::from_ms(20.0));
    let span = Event::Span { flow: "tcp-1".into(), by: old(), from, to, answers: 9 };
    let mut all = vec![
        flow(-1000.0, opened),
        entry_of(Protocol::Tcp, -1000.0, EntryChange::New, OLD, None),
        flow(20.0, span),
        flow(50.0, end),
        flow(9000.0, Event::ObservationEnded { complete: true }),
    ];
    all.extend(more);
    let config = scenario(sigterm, Trigger::Delete);
    let verdict = judge(&all, &config, Some(&target()), Outcome::Measured);
    verdict.flows[0].cause.clone().expect("a cause")
}

fn fin() -> Observation {
    let fin = Wire {
        kind: PacketKind::Fin,
        protocol: Protocol::Tcp,
        from: OLD,
        to: BEHIND,
        icmp_code: None,
        ..REFUSAL
    };
    fin.passes(49.8, 49.8)
}

fn sigterm() -> Observation {
    let event = Event::Sigterm { uid: target().uid, instance: old().instance };
    Observation::exact(Ms::from_ms(10.0), Source::ProbeLog, event)
}

#[test]
fn a_kill_is_measured_by_the_processs_end_and_the_fin_that_its_namespace_sent() {
    let end = || Event::Fin { flow: "tcp-1".into() };
    let cause = tcp(end(), vec![sigterm(), fin(), process_ended(50.5, Some(137))]);
    assert_eq!(cause.basis, Basis::Measured);
    let expected = [
        LinkKind::Trigger,
        LinkKind::Sigterm,
        LinkKind::ProcessExit,
        LinkKind::SentByPod,
        LinkKind::Ended,
    ];
    assert_eq!(kinds(&cause), expected);
    let killed = Event::ContainerTerminated {
        pod: target().pod,
        uid: target().uid,
        container: "probe".into(),
        exit_code: 137,
        reason: None,
    };
    let killed = || seen(300.0, Source::PodWatch, killed.clone());
    let without = tcp(end(), vec![sigterm(), killed(), process_ended(50.5, Some(137))]);
    assert_eq!((without.basis, without.chain.len()), (Basis::Inferred, 0), "no packet was seen");
    let late = tcp(end(), vec![sigterm(), killed(), fin(), process_ended(4000.0, Some(137))]);
    assert_eq!(late.basis, Basis::Inferred, "the process went on");
}

#[test]
fn a_drained_flow_has_the_drains_end_in_its_chain() {
    let ended = Event::DrainEnded {
        uid: target().uid,
        instance: old().instance,
        all_gone: false,
        flows: 1,
    };
    let ended = Observation::exact(Ms::from_ms(49.0), Source::ProbeLog, ended);
    let bye = flow(49.9, Event::Bye { flow: "tcp-1".into() });
    let cause = tcp(Event::Fin { flow: "tcp-1".into() }, vec![sigterm(), ended, bye, fin()]);
    assert_eq!(cause.basis, Basis::Measured);
    let expected = [
        LinkKind::Trigger,
        LinkKind::Sigterm,
        LinkKind::DrainEnded,
        LinkKind::SentByPod,
        LinkKind::Ended,
    ];
    assert_eq!(kinds(&cause), expected);
}

#[test]
fn rules_are_removed_once_no_port_leads_to_the_target() {
    let tcp_of = |pod: &str| pod.replace("7002", "7001");
    let both = |tcp_ms: f64, udp_ms: f64| {
        vec![
            rules(-1100.0, Protocol::Tcp, &[&tcp_of(OLD)], false),
            rules(tcp_ms, Protocol::Tcp, &[&tcp_of(NEW)], false),
            udp_rules(udp_ms, &[], true),
        ]
    };
    let removed = |events| told(events).findings.rules_removed_ms;
    assert_eq!(removed(both(1100.0, 1100.0)), Some(1100.0));
    assert_eq!(removed(both(1100.0, 2100.0)), Some(2100.0));
    assert_eq!(removed(both(2100.0, 1100.0)), Some(2100.0));
    let mut events = both(1100.0, 1100.0);
    events.push(gap(Source::NodeRules, 500.0, 600.0));
    assert_eq!(removed(events), None, "another commit may have come before");
    let mut only_one = both(1100.0, 1100.0);
    only_one.pop();
    assert_eq!(removed(only_one), None);
}

#[test]
fn the_end_of_the_targets_process_is_a_finding() {
    let verdict = told(vec![process_ended(41.5, Some(0)), process_ended(5000.0, Some(0))]);
    assert_eq!(verdict.findings.process_exit_ms, Some(41.5));
    let bound = verdict.finding_bounds["process_exit_ms"];
    assert_eq!(bound.bound, crate::observation::Bound::AtMost);
}

/// Source ports are given out by protocol.
#[test]
fn an_entry_of_another_protocol_with_the_same_port_is_another_flows() {
    let mut other = entry_of(Protocol::Tcp, -2000.0, EntryChange::New, "10.244.1.2:7001", None);
    if let Event::Conntrack { answers_to, .. } = &mut other.event {
        *answers_to = at("10.231.0.11:5000");
    }
    let mut of_pod = Vec::from(by_pod(39.8, 39.8));
    of_pod.extend([other, refused(40.0, 40.0, 1)]);
    measured(of_pod);
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
        not_ready(30.0),
        udp_rules(1100.0, &[NEW], false),
        dropped.clone(),
        entry_at_pods_node(1151.0, EntryChange::New, NEW),
        span(new(), 1152.0, 8000.0),
    ];
    let cause = told_via(Via::HostPort, moved).flows[0].cause.clone().expect("a cause");
    assert_eq!(cause.basis, Basis::Measured);
    let expected =
        [LinkKind::Trigger, LinkKind::EntryDestroyed, LinkKind::EntryMade, LinkKind::Answered];
    assert_eq!(kinds(&cause), expected);

    let of_node =
        Wire { node: "worker", out: true, sender: "10.231.0.12", from: CLIENT, ..REFUSAL };
    let of_node = vec![
        held,
        udp_rules(1100.0, &[], true),
        dropped,
        of_node.passes(1160.0, 1160.0),
        refused(1160.1, 1160.1, 1),
    ];
    let cause = told_via(Via::HostPort, of_node).flows[0].cause.clone().expect("a cause");
    assert_eq!(cause.basis, Basis::Measured);
    assert!(cause.text.contains("nothing at that port"), "{}", cause.text);
}

#[test]
fn no_rule_of_kube_proxys_is_blamed_for_a_flow_to_the_pod_itself() {
    let basis = |more| {
        let cause = told_via(Via::Pod, more).flows[0].cause.clone().expect("a cause");
        cause.basis
    };
    let mut of_pod = Vec::from(by_pod(39.8, 39.8));
    of_pod.push(refused(40.0, 40.0, 1));
    assert_eq!(basis(of_pod), Basis::Measured);
    let of_node = vec![udp_rules(30.0, &[], true), by_node(39.9), refused(40.0, 40.0, 1)];
    assert_eq!(basis(of_node.clone()), Basis::Inferred);
    let verdict = told_via(Via::Pod, of_node);
    let text = &verdict.flows[0].cause.as_ref().expect("a cause").text;
    assert!(!text.contains("reject rule"), "{text}");
    let moved = || vec![not_serving(900.0), span(new(), 1152.0, 8000.0)];
    let text = |via| told_via(via, moved()).flows[0].cause.clone().expect("a cause").text;
    assert!(text(Via::NodePort).ends_with("kube-proxy then moved the flow"));
    assert!(text(Via::HostPort).ends_with("something between then moved the flow"));
}
