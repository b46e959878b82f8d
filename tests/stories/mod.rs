//! Trials as they come out of a run, told in code: what tests of the verdict and the reports read.
//!
//! The instants of the draining pod are those of a trial on a local v1.34.0 node; the others are
//! of the same order as the published ones. Each repeat is a little later than the one before.

#![allow(dead_code)] // each test binary uses its own part of it

use std::collections::BTreeMap;
use std::time::Duration;

use drainwatch::clock::ClockRelation;
use drainwatch::clock::Ms;
use drainwatch::config::{
    Dials, EnterBy, Flows, IpFamily, Pod, Readiness, Scenario, Service, Sigterm, Trigger, Vantage,
    Via,
};
use drainwatch::observation::Target;
use drainwatch::observation::{
    Bound, DestroyedBy, DialKind, DialOutcome, DialTimes, EntryChange, Event, Identity,
    Observation, PacketKind, Protocol, Source,
};
use drainwatch::record::{EnvironmentRef, TRIAL_FORMAT, Tool, Trial};
use drainwatch::verdict::{Findings, Outcome};

/// TCP flows of each story.
pub const TCP: u32 = 3;
/// UDP flows of each story.
pub const UDP: u32 = 4;

/// A scenario with its defaults.
pub fn scenario(sigterm: Sigterm, trigger: Trigger) -> Scenario {
    let drains = sigterm == Sigterm::Drain;
    Scenario {
        description: None,
        sigterm,
        drain_window: drains.then_some(Duration::from_secs(25)),
        readiness: match sigterm {
            Sigterm::Exit => None,
            Sigterm::Drain => Some(Readiness::Fail),
            Sigterm::Ignore => Some(Readiness::Pass),
        },
        trigger,
        delete_grace: None,
        scale_to: None,
        rollout: None,
        observe_for: None,
        grace_period: Duration::from_secs(30),
        settle: Duration::from_secs(10),
        observe_after: Duration::from_secs(2),
        repeats: 2,
        evidence: false,
        flows: Flows {
            tcp: TCP,
            udp: UDP,
            tcp_interval: Duration::from_millis(100),
            udp_interval: Duration::from_millis(20),
            silent_after: Duration::from_secs(2),
            via: Via::NodePort,
            from: Vantage::Outside,
            enter_by: EnterBy::OtherNode,
            ip: IpFamily::Ipv4,
            source_port: None,
        },
        dials: Dials::default(),
        pod: Pod::plain(Duration::from_secs(1), 1),
        service: Service::default(),
    }
}

/// The pod that is terminated.
pub fn target() -> Target {
    Target {
        pod: "echo-old".into(),
        uid: "uid-old".into(),
        instance: "old-1".into(),
        node: "worker".into(),
        entry_node: "control-plane".into(),
    }
}

/// Who answers before.
pub fn old() -> Identity {
    Identity { pod: "echo-old".into(), uid: "uid-old".into(), instance: "old-1".into() }
}

/// Who answers afterwards.
pub fn new() -> Identity {
    Identity { pod: "echo-new".into(), uid: "uid-new".into(), instance: "new-1".into() }
}

/// One trial in the telling.
pub struct Story {
    arm: String,
    repeat: u32,
    config: Scenario,
    observations: Vec<Observation>,
}

impl Story {
    /// It begins with a pod that is ready and a trigger.
    pub fn new(arm: &str, repeat: u32, config: Scenario) -> Self {
        let mut story = Self { arm: arm.into(), repeat, config, observations: Vec::new() };
        story.endpoint(-14_000.0, "old", true, true, false);
        let (pod, uid, instance) = ("echo-old".into(), "uid-old".into(), "old-1".into());
        story.at(-15_000.0, Source::ProbeLog, Event::ProbeStarted { pod, uid, instance });
        story.at(0.0, Source::Runner, Event::TriggerSent { trigger: "delete".into() });
        let answered = Event::TriggerAnswered { status: 200, message: None };
        story.at(6.1, Source::Runner, answered);
        for n in 1..=story.config.flows.tcp {
            story.open(&format!("tcp-{n}"), n);
        }
        for n in 1..=story.config.flows.udp {
            story.open(&format!("udp-{n}"), 100 + n);
        }
        story
    }

    /// Something seen exactly.
    pub fn at(&mut self, ms: f64, source: Source, event: Event) {
        self.observations.push(Observation::exact(Ms::from_ms(ms), source, event));
    }

    /// Something seen by a watch.
    pub fn seen(&mut self, ms: f64, source: Source, event: Event) {
        self.observations.push(Observation::at_most(Ms::from_ms(ms), source, event));
    }

    /// The target's endpoint or the replacement's (`"old"`, `"new"`).
    pub fn endpoint(&mut self, ms: f64, who: &str, ready: bool, serving: bool, terminating: bool) {
        let (pod, uid) = (format!("echo-{who}"), format!("uid-{who}"));
        let slice = "echo-abc".into();
        let event = Event::Endpoint { slice, pod, uid, ready, serving, terminating };
        self.seen(ms, Source::EndpointsliceWatch, event);
    }

    /// The target's endpoint is no longer listed.
    pub fn endpoint_gone(&mut self, ms: f64) {
        let (slice, pod, uid) = ("echo-abc".into(), "echo-old".into(), "uid-old".into());
        self.seen(ms, Source::EndpointsliceWatch, Event::EndpointGone { slice, pod, uid });
    }

    /// SIGTERM, as the probe logged it.
    pub fn sigterm(&mut self, ms: f64) {
        let (uid, instance) = ("uid-old".into(), "old-1".into());
        self.at(ms, Source::ProbeLog, Event::Sigterm { uid, instance });
    }

    /// The probe's last line.
    pub fn exiting(&mut self, ms: f64) {
        let (uid, instance) = ("uid-old".into(), "old-1".into());
        self.at(ms, Source::ProbeLog, Event::ProbeExiting { uid, instance, code: 0 });
    }

    /// The container's end, as the watch told it.
    pub fn exited(&mut self, ms: f64, exit_code: i32) {
        let (pod, uid, container) = ("echo-old".into(), "uid-old".into(), "probe".into());
        let event = Event::ContainerTerminated { pod, uid, container, exit_code, reason: None };
        self.seen(ms, Source::PodWatch, event);
    }

    fn open(&mut self, flow: &str, port: u32) {
        let local = format!("10.0.0.1:{}", 40_000 + port).parse().unwrap();
        let remote = "10.0.0.2:30072".parse().unwrap();
        let event = Event::FlowOpened { flow: flow.into(), local, remote };
        self.at(-11_000.0 + f64::from(port), Source::Flow, event);
    }

    /// A stretch of answers.
    pub fn span(&mut self, flow: &str, by: Identity, from: f64, to: f64, every_ms: f64) {
        let answers = ((to - from) / every_ms) as u64 + 1;
        let (from, to) = (Ms::from_ms(from), Ms::from_ms(to));
        let event = Event::Span { flow: flow.into(), by, from, to, answers };
        self.at(to.ms(), Source::Flow, event);
    }

    /// Refusals by the entry node's address.
    pub fn refused(&mut self, flow: &str, from: f64, until: f64, count: u64) {
        let event = Event::Refused {
            flow: flow.into(),
            sender: Some("10.0.0.2".parse().unwrap()),
            icmp_type: Some(3),
            icmp_code: Some(3),
            until: Ms::from_ms(until),
            count,
        };
        self.at(from, Source::Flow, event);
    }

    /// Dials that met the same, or were accepted by somebody.
    pub fn dials(
        &mut self,
        protocol: Protocol,
        (outcome, by): (DialOutcome, Option<Identity>),
        from: f64,
        to: f64,
        count: u64,
    ) {
        let accepted = by.is_some();
        let (sender, icmp_type, icmp_code, error) = (None, None, None, None);
        let kind = DialKind { protocol, outcome, by, sender, icmp_type, icmp_code, error };
        let times = |greatest_ms| DialTimes { least_ms: 0.25, median_ms: 0.5, greatest_ms };
        let took = times(if accepted { 2.5 } else { 1000.5 });
        let connect = (accepted && protocol == Protocol::Tcp).then(|| times(1.5));
        let known = to + took.greatest_ms;
        let (from, to) = (Ms::from_ms(from), Ms::from_ms(to));
        let event = Event::Dials { kind, from, to, count, connect, took: Some(took) };
        self.at(known, Source::Flow, event);
    }

    /// A stretch without any answer.
    pub fn silence(&mut self, flow: &str, from: f64, to: f64, unanswered: u64) {
        let (from, to) = (Ms::from_ms(from), Ms::from_ms(to));
        let event = Event::Silence { flow: flow.into(), from, to, unanswered };
        self.at(to.ms(), Source::Flow, event);
    }

    /// The runner closes a flow that goes on.
    pub fn stopped(&mut self, flow: &str, ms: f64) {
        self.at(ms, Source::Flow, Event::FlowStopped { flow: flow.into() });
    }

    /// The end of the observation, and the trial that it makes.
    pub fn end(mut self, ms: f64) -> Trial {
        self.at(ms, Source::Runner, Event::ObservationEnded { complete: true });
        self.trial(Outcome::Measured, None)
    }

    /// The trial as it stands.
    pub fn trial(mut self, outcome: Outcome, reason: Option<&str>) -> Trial {
        self.observations.sort_by(drainwatch::timeline::compare);
        let mut trial = Trial {
            format: TRIAL_FORMAT.into(),
            id: format!("{}/{:03}", self.arm, self.repeat),
            matrix: "paper".into(),
            arm: self.arm.clone(),
            scenario: self.arm,
            axes: BTreeMap::new(),
            repeat: self.repeat,
            outcome,
            reason: reason.map(str::to_owned),
            tool: Tool {
                version: "0.1.0".into(),
                commit: "0123456789abcdef".into(),
                dirty: Some(false),
                runner_sha256: "aa11".into(),
                probe_sha256: "bb22".into(),
            },
            config: self.config,
            overrides: Vec::new(),
            environment: EnvironmentRef {
                file: "environment/arm.json".into(),
                digest: "sha256:c0ffee".into(),
                cluster: "dw-1".into(),
            },
            clocks: vec![ClockRelation {
                source: "pod:uid-old".into(),
                same_clock: true,
                offset_ms: Some(0.0),
                plus_minus_ms: Some(0.0),
            }],
            started_at: format!("2026-11-30T12:{:02}:00.000Z", self.repeat),
            zero_ns: None,
            target: Some(target()),
            checks: Vec::new(),
            observations: self.observations,
            flows: Vec::new(),
            dials: Vec::new(),
            findings: Findings::default(),
            finding_bounds: BTreeMap::new(),
            exactness: None,
            warnings: Vec::new(),
            runner_warnings: Vec::new(),
            imported: None,
        };
        trial.judge_anew();
        trial
    }
}

/// The app resets what it holds and exits; UDP is refused, then answered by the replacement.
pub fn exit(repeat: u32) -> Trial {
    let late = f64::from(repeat - 1) * 12.5;
    let mut story = Story::new("exit-delete", repeat, scenario(Sigterm::Exit, Trigger::Delete));
    story.sigterm(30.25 + late);
    let (uid, instance) = ("uid-old".into(), "old-1".into());
    let forced = Event::ResetForced { uid, instance, flows: u64::from(TCP) };
    story.at(31.5 + late, Source::ProbeLog, forced);
    story.exiting(32.0 + late);
    story.endpoint(28.0, "old", false, true, true);
    story.exited(285.0 + late, 0);
    story.endpoint_gone(293.0 + late * 3.0);
    story.endpoint(1682.0, "new", true, true, false);
    for n in 1..=TCP {
        let (flow, end) = (format!("tcp-{n}"), 31.0 + f64::from(n) * 0.25 + late);
        story.span(&flow, old(), -10_000.0, 20.0 + late, 100.0);
        story.at(end, Source::Flow, Event::Reset { flow });
    }
    for n in 1..=UDP {
        let (flow, by) = (format!("udp-{n}"), f64::from(n));
        story.span(&flow, old(), -10_000.0, 27.0 + late, 20.0);
        story.refused(&flow, 47.0 + by + late, 287.0 + by, 12);
        story.span(&flow, new(), 2230.0 + by + late, 4300.0, 20.0);
        story.stopped(&flow, 4310.0);
    }
    story.end(4310.0)
}

/// The same, with new connections made all the while: they fail from the app's end until the replacement
/// takes them; UDP ones are refused for as long as the pod's network is there, and lost afterwards.
pub fn exit_with_dials(repeat: u32) -> Trial {
    let late = f64::from(repeat - 1) * 12.5;
    let mut story = Story::new("exit-delete", repeat, scenario(Sigterm::Exit, Trigger::Delete));
    story.config.dials = Dials { tcp: 50, udp: 50, ..Dials::default() };
    story.observations = exit(repeat).observations;
    let lost = 61 + u64::from(repeat);
    for (protocol, from) in [(Protocol::Tcp, 4.0), (Protocol::Udp, 14.0)] {
        let accepted = |by| (DialOutcome::Accepted, Some(by));
        story.dials(protocol, accepted(old()), -3000.0 + from, from - 20.0, 150);
        story.dials(protocol, accepted(old()), from, from + 20.0, 2);
        story.dials(protocol, (DialOutcome::Refused, None), from + 40.0 + late, 284.0, 13);
        story.dials(protocol, (DialOutcome::Unanswered, None), from + 300.0, from + 1920.0, lost);
        story.dials(protocol, accepted(new()), from + 1940.0 + late, from + 4280.0, 118);
    }
    story.trial(Outcome::Measured, None)
}

/// The app drains; its readiness fails, and UDP moves to the replacement.
pub fn drain(repeat: u32) -> Trial {
    let late = f64::from(repeat - 1) * 8.0;
    let mut story = Story::new("drain-delete", repeat, scenario(Sigterm::Drain, Trigger::Delete));
    drained_tcp(&mut story, late);
    story.endpoint(28.0, "old", false, true, true);
    story.endpoint(749.0 + late, "old", false, false, true);
    story.endpoint(1682.0 + late, "new", true, true, false);
    for n in 1..=UDP {
        let (flow, by) = (format!("udp-{n}"), f64::from(n));
        story.span(&flow, old(), -10_012.4, 2176.9 + late, 20.0);
        story.span(&flow, new(), 2196.7 + by + late, 27_300.0, 20.0);
        story.stopped(&flow, 27_310.0);
    }
    story.end(27_310.0)
}

/// The same, with what the nodes' kernels told: the rules that move to the replacement, the entries of
/// each UDP flow, and the FIN of the first TCP connection.
pub fn drain_with_evidence(repeat: u32) -> Trial {
    let late = f64::from(repeat - 1) * 8.0;
    let mut trial = drain(repeat);
    trial.config.evidence = true;
    let mut seen = |ms: f64, source, event| {
        trial.observations.push(Observation::at_most(Ms::from_ms(ms), source, event));
    };
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        seen(-12_000.0, Source::NodeRules, rules(protocol, OLD_IP, None));
        let process = Some("iptables-restor");
        seen(2190.0 + late, Source::NodeRules, rules(protocol, NEW_IP, process));
    }
    for n in 1..=UDP {
        let by = f64::from(n) + late;
        let entry = |change, ip| entry(Protocol::Udp, 100 + n, change, ip);
        let (new, destroy) = (EntryChange::New, EntryChange::Destroy);
        seen(-10_900.0 + f64::from(n), Source::NodeConntrack, entry(new, OLD_IP));
        seen(2195.0 + by, Source::NodeConntrack, entry(destroy, OLD_IP));
        seen(2196.5 + by, Source::NodeConntrack, entry(new, NEW_IP));
    }
    seen(-10_999.0, Source::NodeConntrack, entry(Protocol::Tcp, 1, EntryChange::New, OLD_IP));
    let fin = Event::Packet {
        node: "worker".into(),
        interface: "veth1".into(),
        out: false,
        kind: PacketKind::Fin,
        protocol: Protocol::Tcp,
        sender: OLD_IP.parse().unwrap(),
        from: format!("{OLD_IP}:7001").parse().unwrap(),
        to: "10.0.0.2:60001".parse().unwrap(),
        icmp_code: None,
        count: 1,
        until: None,
    };
    trial.observations.push(Observation::exact(
        Ms::from_ms(25_040.9 + late),
        Source::NodePackets,
        fin,
    ));
    trial.observations.sort_by(drainwatch::timeline::compare);
    trial.judge_anew();
    trial
}

const OLD_IP: &str = "10.244.1.2";
const NEW_IP: &str = "10.244.1.3";

fn rules(protocol: Protocol, to: &str, process: Option<&str>) -> Event {
    let port = if protocol == Protocol::Tcp { 7001 } else { 7002 };
    Event::Rules {
        node: "control-plane".into(),
        protocol,
        endpoints: vec![format!("{to}:{port}").parse().unwrap()],
        reject: false,
        process: process.map(str::to_owned),
    }
}

/// What became of the entry of the flow that [`Story::open`] gave this port.
fn entry(protocol: Protocol, port: u32, change: EntryChange, to: &str) -> Event {
    let pod = if protocol == Protocol::Tcp { 7001 } else { 7002 };
    Event::Conntrack {
        node: "control-plane".into(),
        change,
        protocol,
        client: format!("10.0.0.1:{}", 40_000 + port).parse().unwrap(),
        to: "10.0.0.2:30072".parse().unwrap(),
        answered_by: format!("{to}:{pod}").parse().unwrap(),
        answers_to: format!("10.0.0.2:{}", 60_000 + port).parse().unwrap(),
        assured: None,
        by: (change == EntryChange::Destroy).then_some(DestroyedBy::Process),
    }
}

/// The app drains and nothing replaces it: some UDP flows are refused once, the others are silent.
pub fn scale(repeat: u32) -> Trial {
    let late = f64::from(repeat - 1) * 8.0;
    let config = scenario(Sigterm::Drain, Trigger::ScaleToZero);
    let mut story = Story::new("drain-scale", repeat, config);
    drained_tcp(&mut story, late);
    story.endpoint(28.0, "old", false, true, true);
    story.endpoint(749.0 + late, "old", false, false, true);
    for n in 1..=UDP {
        let flow = format!("udp-{n}");
        story.span(&flow, old(), -10_012.4, 25_040.0 + late, 20.0);
        if n + repeat <= 3 {
            story.refused(&flow, 25_061.0 + late, 25_061.0 + late, 1);
        }
        story.silence(&flow, 25_040.0 + late, 29_310.0, 213);
        story.stopped(&flow, 29_310.0);
    }
    story.end(29_310.0)
}

fn drained_tcp(story: &mut Story, late: f64) {
    let of_old = || ("uid-old".to_owned(), "old-1".to_owned());
    story.sigterm(40.0);
    let (uid, instance) = of_old();
    let flows = u64::from(TCP);
    story.at(40.1, Source::ProbeLog, Event::DrainStarted { uid, instance, flows });
    let (uid, instance) = of_old();
    let ended = Event::DrainEnded { uid, instance, all_gone: false, flows };
    story.at(25_040.2, Source::ProbeLog, ended);
    story.exiting(25_044.0 + late);
    story.exited(25_289.0 + late, 0);
    story.endpoint_gone(25_296.0 + late);
    for n in 1..=TCP {
        let (flow, end) = (format!("tcp-{n}"), 25_040.1 + f64::from(n) + late);
        story.span(&flow, old(), -10_000.0, 25_000.0, 100.0);
        story.at(end - 0.1, Source::Flow, Event::Bye { flow: flow.clone() });
        story.at(end, Source::Flow, Event::Fin { flow });
    }
}

/// The app ignores SIGTERM and is killed.
pub fn ignore(repeat: u32) -> Trial {
    let late = f64::from(repeat - 1) * 5.0;
    let mut story = Story::new("ignore-delete", repeat, scenario(Sigterm::Ignore, Trigger::Delete));
    story.sigterm(35.0);
    story.endpoint(28.0, "old", false, true, true);
    story.endpoint(1682.0 + late, "new", true, true, false);
    story.exited(30_255.0 + late, 137);
    story.endpoint_gone(30_259.0 + late);
    for n in 1..=TCP {
        let flow = format!("tcp-{n}");
        story.span(&flow, old(), -10_000.0, 30_010.0, 100.0);
        story.at(30_056.0 + late, Source::Flow, Event::Fin { flow });
    }
    for n in 1..=UDP {
        let (flow, by) = (format!("udp-{n}"), f64::from(n));
        story.span(&flow, old(), -10_000.0, 30_041.0, 20.0);
        story.refused(&flow, 30_261.0, 30_261.0 + by, 2);
        story.span(&flow, new(), 30_425.0 + by + late, 32_500.0, 20.0);
        story.stopped(&flow, 32_510.0);
    }
    story.end(32_510.0)
}

/// A trial that a precondition ended.
pub fn aborted(arm: &str, repeat: u32) -> Trial {
    let mut story = Story::new(arm, repeat, scenario(Sigterm::Drain, Trigger::Delete));
    story.observations.retain(|o| o.at < Ms(0));
    story.span("tcp-1", old(), -10_000.0, -5000.0, 100.0);
    story.at(-4000.0, Source::Flow, Event::Reset { flow: "tcp-1".into() });
    story.trial(Outcome::Aborted, Some("flows: tcp-1 was reset during settle"))
}

/// A trigger that a disruption budget refused.
pub fn trigger_refused(repeat: u32) -> Trial {
    let mut story = Story::new("drain-evict", repeat, scenario(Sigterm::Drain, Trigger::Evict));
    for n in 1..=TCP {
        let flow = format!("tcp-{n}");
        story.span(&flow, old(), -10_000.0, 1990.0, 100.0);
        story.stopped(&flow, 2000.0);
    }
    for n in 1..=UDP {
        let flow = format!("udp-{n}");
        story.span(&flow, old(), -10_000.0, 1990.0, 20.0);
        story.stopped(&flow, 2000.0);
    }
    story.at(2000.0, Source::Runner, Event::ObservationEnded { complete: true });
    story.trial(Outcome::TriggerRefused, Some("429: the disruption budget needs 1 healthy pod"))
}

/// An exact observation of a flow, for tests that need no whole story.
pub fn flow(ms: f64, event: Event) -> Observation {
    let (at, plus_minus_ms) = (Ms::from_ms(ms), Some(0.0));
    Observation { at, bound: Bound::Exact, plus_minus_ms, source: Source::Flow, event }
}
