//! Observations: what was seen, by whom, on which clock, how exactly.
//!
//! Flows, watches, the probe's log and kernel evidence emit these and nothing else. While a trial
//! runs, times are [`Stamp`]s; [`crate::timeline`] turns them into times relative to the trigger
//! ([`Ms`]), and in that form they stand in the record and are all that [`crate::verdict`] reads.

mod dials;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use crate::clock::{Ms, Stamp};

pub use dials::{DialKind, DialOutcome, DialTimes};

/// An observation as it is emitted, before the timeline has placed it.
pub type Seen = Observation<Stamp>;

/// Where emitters send what they see.
pub type Sink = tokio::sync::mpsc::UnboundedSender<Seen>;

/// One thing that was seen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[schemars(rename = "Observation")]
pub struct Observation<T = Ms> {
    /// When it was seen.
    #[serde(rename = "t_ms")]
    pub at: T,
    /// How `at` relates to the instant of the thing itself.
    pub bound: Bound,
    /// Half the width of the interval that `at` lies in because two clocks had to be related
    /// (a pod's and the runner's, or the wall clock of the kernel's stamps and the monotonic one), in
    /// milliseconds; 0 on the runner's own clock, `None` where no bound is known.
    pub plus_minus_ms: Option<f64>,
    /// Who saw it.
    pub source: Source,
    /// What was seen.
    #[serde(flatten)]
    pub event: Event<T>,
}

/// How an observation's time relates to the instant of the thing that was observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Bound {
    /// Read by the one who did it, or stamped by the kernel as it arrived.
    Exact,
    /// The thing happened at this time or earlier: a watch event's arrival, or what a socket gave
    /// without a stamp when it was read.
    AtMost,
}

/// Who made an observation.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// The runner itself.
    Runner,
    /// A flow's socket, or a dial's.
    Flow,
    /// The watch on Pods.
    PodWatch,
    /// The watch on EndpointSlices.
    EndpointsliceWatch,
    /// The probe's own log, with times on the pod's clock.
    ProbeLog,
    /// Commits of rules in a node's network namespace.
    NodeRules,
    /// The connection tracking table of a node's network namespace.
    NodeConntrack,
    /// Packets on the interfaces of a node's network namespace.
    NodePackets,
    /// Processes of containers on a node.
    NodeProcesses,
    /// The kernel's counters.
    Counters,
}

/// What became of an entry of a connection tracking table.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum EntryChange {
    /// It was made.
    New,
    /// It is gone.
    Destroy,
    /// It stands at the end of the observation.
    Stands,
}

/// Who destroyed an entry of a connection tracking table.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum DestroyedBy {
    /// The kernel itself: it timed out, its connection closed, or its interface went.
    Kernel,
    /// A process asked for it, over netlink.
    Process,
}

/// A packet that ends or refuses a flow.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum PacketKind {
    /// TCP with the flag RST.
    Rst,
    /// TCP with the flag FIN.
    Fin,
    /// ICMP "destination unreachable".
    Unreachable,
}

/// Who answered: the pod and the process in it.
#[derive(
    Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema,
)]
pub struct Identity {
    /// The pod's name.
    pub pod: String,
    /// The pod's UID.
    pub uid: String,
    /// The process's own id, made when it starts: a restarted container is another instance.
    pub instance: String,
}

/// The pod that was terminated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Target {
    /// Its name.
    pub pod: String,
    /// Its UID.
    pub uid: String,
    /// The process in it.
    pub instance: String,
    /// The node it ran on.
    pub node: String,
    /// The node that the flows entered by.
    pub entry_node: String,
}

/// Which protocol a flow speaks.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    /// TCP
    Tcp,
    /// UDP
    Udp,
}

impl Protocol {
    /// As people write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
        }
    }
}

fn one() -> u64 {
    1
}

fn is_one(count: &u64) -> bool {
    *count == 1
}

/// What was seen. Names are the record's `what` in kebab case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(tag = "what", rename_all = "kebab-case")]
#[allow(missing_docs)] // the fields say what they are; the variants say when
#[schemars(rename = "Event")]
pub enum Event<T = Ms> {
    // --- the runner ---
    /// The trigger's request is about to be written: the zero of the trial's time.
    TriggerSent {
        trigger: String,
    },
    /// The API server's answer to it has arrived.
    TriggerAnswered {
        status: u16,
        message: Option<String>,
    },
    /// A trigger that is no request to the API has been carried out: how, in words.
    TriggerDone {
        text: String,
    },
    /// The observation ended; `complete` is false when its time limit ended it.
    ObservationEnded {
        complete: bool,
    },

    // --- the watch on Pods ---
    PodSeen {
        pod: String,
        uid: String,
    },
    PodScheduled {
        pod: String,
        uid: String,
        node: String,
    },
    ContainerStarted {
        pod: String,
        uid: String,
        container: String,
        restarts: i32,
    },
    PodReady {
        pod: String,
        uid: String,
        ready: bool,
    },
    /// Its deletion timestamp was seen.
    PodTerminating {
        pod: String,
        uid: String,
        grace_s: Option<i64>,
    },
    ContainerTerminated {
        pod: String,
        uid: String,
        container: String,
        exit_code: i32,
        reason: Option<String>,
    },
    /// The pod's object is gone.
    PodGone {
        pod: String,
        uid: String,
    },

    // --- the watch on EndpointSlices ---
    /// An endpoint was listed with these conditions, new or changed.
    Endpoint {
        slice: String,
        pod: String,
        uid: String,
        ready: bool,
        serving: bool,
        terminating: bool,
    },
    /// An endpoint is no longer listed.
    EndpointGone {
        slice: String,
        pod: String,
        uid: String,
    },

    // --- both watches ---
    /// Nothing could be seen by this watch from `at` until `until`.
    WatchGap {
        #[serde(rename = "until_ms")]
        until: T,
        reason: String,
    },

    // --- the probe's log ---
    ProbeStarted {
        pod: String,
        uid: String,
        instance: String,
    },
    Sigterm {
        uid: String,
        instance: String,
    },
    /// The probe reset its own connections, as the scenario told it.
    ResetForced {
        uid: String,
        instance: String,
        flows: u64,
    },
    DrainStarted {
        uid: String,
        instance: String,
        flows: u64,
    },
    /// `all_gone`: no flow was left; else the drain window ended.
    DrainEnded {
        uid: String,
        instance: String,
        all_gone: bool,
        flows: u64,
    },
    ProbeExiting {
        uid: String,
        instance: String,
        code: i32,
    },
    /// The log could not be followed to its end.
    LogLost {
        uid: String,
        reason: String,
    },

    // --- the nodes' kernels ---
    /// What a node's rules do with new flows to a port of the Service, from the commit on that is
    /// told of: `endpoints` are where they may go.
    Rules {
        node: String,
        protocol: Protocol,
        endpoints: Vec<SocketAddr>,
        /// Whether they are rejected.
        reject: bool,
        /// Who committed them, as the kernel names the process; `None`: in force before.
        process: Option<String>,
    },
    /// An entry of a node's connection tracking table changed: from `client` to `to`, answered by
    /// `answered_by`, which answers to `answers_to`.
    Conntrack {
        node: String,
        change: EntryChange,
        protocol: Protocol,
        client: SocketAddr,
        to: SocketAddr,
        answered_by: SocketAddr,
        answers_to: SocketAddr,
        /// Whether traffic went both ways (and for TCP the connection stood); `None`: not told.
        assured: Option<bool>,
        /// With `destroy`.
        by: Option<DestroyedBy>,
    },
    /// A packet passed one of a node's interfaces: of a flow `from` one end `to` the other, or, where
    /// it is an ICMP message, about such a packet.
    Packet {
        node: String,
        interface: String,
        /// Whether it left by the interface; else it came in.
        out: bool,
        kind: PacketKind,
        protocol: Protocol,
        /// The source in its IP header.
        sender: IpAddr,
        from: SocketAddr,
        to: SocketAddr,
        icmp_code: Option<u8>,
        /// How many that were alike, with little time between them; `at` is the first one's.
        #[serde(default = "one", skip_serializing_if = "is_one")]
        count: u64,
        /// The last of them, where there was more than one.
        #[serde(rename = "until_ms", skip_serializing_if = "Option::is_none")]
        until: Option<T>,
    },
    /// A container's first process ended.
    ProcessExited {
        node: String,
        pod: String,
        uid: String,
        container: String,
        /// As this machine numbers processes.
        pid: i32,
        /// As containers count: 128 and the signal's number for one that a signal ended. `None`
        /// where the kernel does not tell.
        exit_code: Option<i32>,
    },
    /// A node's source of evidence may have missed something from `at` until `until`.
    EvidenceGap {
        node: String,
        #[serde(rename = "until_ms")]
        until: T,
        reason: String,
    },

    // --- the kernel's counters ---
    /// What the kernel had counted in one place by then: `pod:UID` and `node:NAME` are their net
    /// namespaces, `runner` is the runner's own and `machine` the whole of it. A pod's counters are
    /// read often, and told when they moved; between two readings they moved by the difference.
    Counters {
        of: String,
        values: BTreeMap<String, u64>,
    },

    // --- flows ---
    /// The flow's socket was bound and (TCP) connected.
    FlowOpened {
        flow: String,
        local: SocketAddr,
        remote: SocketAddr,
    },
    /// One instance answered, without another's answer or a silence in between. Emitted when
    /// the span ends; `at` is `to`.
    Span {
        flow: String,
        #[serde(flatten)]
        by: Identity,
        /// The first answer.
        #[serde(rename = "from_ms")]
        from: T,
        /// The last answer.
        #[serde(rename = "to_ms")]
        to: T,
        answers: u64,
    },
    /// No answer came for `silent_after` or longer: from the last answer before (or the opening)
    /// until the first answer after, the flow's end, or the end of the observation.
    Silence {
        flow: String,
        #[serde(rename = "from_ms")]
        from: T,
        #[serde(rename = "to_ms")]
        to: T,
        /// Heartbeats sent in it.
        unanswered: u64,
    },
    /// ICMP port unreachable (UDP), without an answer in between; `at` is the first, `until` the
    /// last of `count`. For TCP: a connect that was refused.
    Refused {
        flow: String,
        /// Who sent the ICMP message, if the kernel said so (`IP_RECVERR`).
        sender: Option<IpAddr>,
        icmp_type: Option<u8>,
        icmp_code: Option<u8>,
        #[serde(rename = "until_ms")]
        until: T,
        count: u64,
    },
    /// ICMP host or network unreachable, prohibited and the like (`EHOSTUNREACH`, …).
    Unreachable {
        flow: String,
        sender: Option<IpAddr>,
        icmp_type: Option<u8>,
        icmp_code: Option<u8>,
        errno: i32,
        #[serde(rename = "until_ms")]
        until: T,
        count: u64,
    },
    /// This flow's own socket dropped datagrams that had arrived: `count` since `since`.
    DroppedHere {
        flow: String,
        #[serde(rename = "since_ms")]
        since: T,
        count: u64,
    },
    /// The app's last frame before it closes.
    Bye {
        flow: String,
    },
    /// TCP: the peer's FIN was read.
    Fin {
        flow: String,
    },
    /// TCP: the peer's RST was read (`ECONNRESET`).
    Reset {
        flow: String,
    },
    /// TCP: the kernel gave the connection up (`ETIMEDOUT`).
    TimedOut {
        flow: String,
    },
    /// The flow failed here, not there: out of descriptors, buffers, ports.
    FlowFailed {
        flow: String,
        error: String,
    },
    /// The runner closed a flow that had not ended by itself.
    FlowStopped {
        flow: String,
    },

    // --- new connections ---
    /// Dials that met the same, with no long stretch between them in which none did: dials that met
    /// something else may lie in between. `at` is when the last of them was known.
    Dials {
        #[serde(flatten)]
        kind: DialKind,
        /// The start of the first: its SYN or datagram was sent.
        #[serde(rename = "from_ms")]
        from: T,
        /// The start of the last.
        #[serde(rename = "to_ms")]
        to: T,
        count: u64,
        /// From the start until it had connected, of TCP dials that have.
        connect: Option<DialTimes>,
        /// From the start until it was known: for those that were accepted, the first answer.
        took: Option<DialTimes>,
    },
}

impl<T> Observation<T> {
    /// An observation of which the time was read on the runner's own clock.
    pub fn exact(at: T, source: Source, event: Event<T>) -> Self {
        Self { at, bound: Bound::Exact, plus_minus_ms: Some(0.0), source, event }
    }

    /// An observation that arrived at `at` and happened then or before.
    pub fn at_most(at: T, source: Source, event: Event<T>) -> Self {
        Self { at, bound: Bound::AtMost, plus_minus_ms: Some(0.0), source, event }
    }
}

impl<T> Event<T> {
    /// The flow that it is about, if it is about one.
    pub fn flow(&self) -> Option<&str> {
        match self {
            Event::FlowOpened { flow, .. }
            | Event::Span { flow, .. }
            | Event::Silence { flow, .. }
            | Event::Refused { flow, .. }
            | Event::Unreachable { flow, .. }
            | Event::DroppedHere { flow, .. }
            | Event::Bye { flow }
            | Event::Fin { flow }
            | Event::Reset { flow }
            | Event::TimedOut { flow }
            | Event::FlowFailed { flow, .. }
            | Event::FlowStopped { flow } => Some(flow),
            _ => None,
        }
    }

    /// The same event with each of its times mapped.
    pub fn map_times<U>(self, f: impl Fn(T) -> U) -> Event<U> {
        match self {
            Event::TriggerSent { trigger } => Event::TriggerSent { trigger },
            Event::TriggerAnswered { status, message } => {
                Event::TriggerAnswered { status, message }
            }
            Event::TriggerDone { text } => Event::TriggerDone { text },
            Event::ObservationEnded { complete } => Event::ObservationEnded { complete },
            Event::PodSeen { pod, uid } => Event::PodSeen { pod, uid },
            Event::PodScheduled { pod, uid, node } => Event::PodScheduled { pod, uid, node },
            Event::ContainerStarted { pod, uid, container, restarts } => {
                Event::ContainerStarted { pod, uid, container, restarts }
            }
            Event::PodReady { pod, uid, ready } => Event::PodReady { pod, uid, ready },
            Event::PodTerminating { pod, uid, grace_s } => {
                Event::PodTerminating { pod, uid, grace_s }
            }
            Event::ContainerTerminated { pod, uid, container, exit_code, reason } => {
                Event::ContainerTerminated { pod, uid, container, exit_code, reason }
            }
            Event::PodGone { pod, uid } => Event::PodGone { pod, uid },
            Event::Endpoint { slice, pod, uid, ready, serving, terminating } => {
                Event::Endpoint { slice, pod, uid, ready, serving, terminating }
            }
            Event::EndpointGone { slice, pod, uid } => Event::EndpointGone { slice, pod, uid },
            Event::WatchGap { until, reason } => Event::WatchGap { until: f(until), reason },
            Event::ProbeStarted { pod, uid, instance } => {
                Event::ProbeStarted { pod, uid, instance }
            }
            Event::Sigterm { uid, instance } => Event::Sigterm { uid, instance },
            Event::ResetForced { uid, instance, flows } => {
                Event::ResetForced { uid, instance, flows }
            }
            Event::DrainStarted { uid, instance, flows } => {
                Event::DrainStarted { uid, instance, flows }
            }
            Event::DrainEnded { uid, instance, all_gone, flows } => {
                Event::DrainEnded { uid, instance, all_gone, flows }
            }
            Event::ProbeExiting { uid, instance, code } => {
                Event::ProbeExiting { uid, instance, code }
            }
            Event::LogLost { uid, reason } => Event::LogLost { uid, reason },
            Event::Rules { node, protocol, endpoints, reject, process } => {
                Event::Rules { node, protocol, endpoints, reject, process }
            }
            Event::Conntrack {
                node,
                change,
                protocol,
                client,
                to,
                answered_by,
                answers_to,
                assured,
                by,
            } => Event::Conntrack {
                node,
                change,
                protocol,
                client,
                to,
                answered_by,
                answers_to,
                assured,
                by,
            },
            Event::Packet {
                node,
                interface,
                out,
                kind,
                protocol,
                sender,
                from,
                to,
                icmp_code,
                count,
                until,
            } => Event::Packet {
                node,
                interface,
                out,
                kind,
                protocol,
                sender,
                from,
                to,
                icmp_code,
                count,
                until: until.map(f),
            },
            Event::ProcessExited { node, pod, uid, container, pid, exit_code } => {
                Event::ProcessExited { node, pod, uid, container, pid, exit_code }
            }
            Event::EvidenceGap { node, until, reason } => {
                Event::EvidenceGap { node, until: f(until), reason }
            }
            Event::Counters { of, values } => Event::Counters { of, values },
            Event::FlowOpened { flow, local, remote } => Event::FlowOpened { flow, local, remote },
            Event::Span { flow, by, from, to, answers } => {
                Event::Span { flow, by, from: f(from), to: f(to), answers }
            }
            Event::Silence { flow, from, to, unanswered } => {
                Event::Silence { flow, from: f(from), to: f(to), unanswered }
            }
            Event::Refused { flow, sender, icmp_type, icmp_code, until, count } => {
                Event::Refused { flow, sender, icmp_type, icmp_code, until: f(until), count }
            }
            Event::Unreachable { flow, sender, icmp_type, icmp_code, errno, until, count } => {
                Event::Unreachable {
                    flow,
                    sender,
                    icmp_type,
                    icmp_code,
                    errno,
                    until: f(until),
                    count,
                }
            }
            Event::DroppedHere { flow, since, count } => {
                Event::DroppedHere { flow, since: f(since), count }
            }
            Event::Bye { flow } => Event::Bye { flow },
            Event::Fin { flow } => Event::Fin { flow },
            Event::Reset { flow } => Event::Reset { flow },
            Event::TimedOut { flow } => Event::TimedOut { flow },
            Event::FlowFailed { flow, error } => Event::FlowFailed { flow, error },
            Event::FlowStopped { flow } => Event::FlowStopped { flow },
            Event::Dials { kind, from, to, count, connect, took } => {
                Event::Dials { kind, from: f(from), to: f(to), count, connect, took }
            }
        }
    }
}
