//! What the nodes' kernels told, by flow.
//!
//! Takes sorted observations and the target; finds the rules, entries and packets of one flow. A
//! flow is known by its own address at the node that translates what it goes to, and behind that
//! node by the address that the node gave it. Knows nothing of fates.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};

use super::world::{Timed, ms_between};
use crate::clock::Ms;
use crate::config::Via;
use crate::observation::{
    DestroyedBy, EntryChange, Event, Observation, PacketKind, Protocol, Source, Target,
};

/// Something that a node's kernel told.
#[derive(Clone, Copy, Debug)]
pub(super) struct Told<'a, W> {
    pub node: &'a str,
    pub source: Source,
    pub time: Timed,
    pub what: W,
}

/// What a node's rules do with new flows to a port of the Service.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules<'a> {
    protocol: Protocol,
    endpoints: &'a [SocketAddr],
    reject: bool,
}

/// A change of a flow's entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    change: EntryChange,
    to: SocketAddr,
    pub answered_by: SocketAddr,
    answers_to: SocketAddr,
    pub by: Option<DestroyedBy>,
}

/// A packet to a flow's client, or about one of the client's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet<'a> {
    pub interface: &'a str,
    out: bool,
    kind: PacketKind,
    sender: IpAddr,
    pub code: Option<u8>,
    /// The last of those that were like it.
    pub until: Ms,
}

/// Which packet of a flow is looked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sought {
    pub kind: PacketKind,
    /// Of an ICMP message.
    pub code: Option<u8>,
    /// It passed at this time or before, and after the trigger.
    pub until: Ms,
}

/// The kernels' evidence of a trial.
#[derive(Debug, Default)]
pub(super) struct Kernel<'a> {
    target: Option<&'a Target>,
    via: Via,
    /// Each flow's own address, and the one that it goes to.
    flows: HashMap<&'a str, (SocketAddr, SocketAddr)>,
    entries: ByClient<'a, Entry>,
    packets: ByClient<'a, Packet<'a>>,
    /// Nodes whose tables were read at the end.
    read_at_end: HashSet<&'a str>,
    /// Nodes that told anything at all.
    heard: HashSet<&'a str>,
    rules: Vec<Told<'a, Rules<'a>>>,
    gaps: Vec<&'a Observation>,
}

/// A client as a node sees it.
type Client<'a> = (&'a str, Protocol, SocketAddr);

/// What was told of clients: by client, and of each in the order of time. In one piece: tens of
/// thousands of clients with a list of two or three each would take four times the room.
#[derive(Debug)]
struct ByClient<'a, W>(Vec<(Client<'a>, Told<'a, W>)>);

impl<W> Default for ByClient<'_, W> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'a, W> ByClient<'a, W> {
    /// To be called in the order of time, and then [`Self::sort`].
    fn push(&mut self, client: Client<'a>, told: Told<'a, W>) {
        self.0.push((client, told));
    }

    fn sort(&mut self) {
        self.0.shrink_to_fit();
        self.0.sort_by_key(|(client, _)| *client); // of one client, the order stays
    }

    fn of(&self, client: Client) -> &[(Client<'a>, Told<'a, W>)] {
        let from = self.0.partition_point(|(other, _)| *other < client);
        let until = from + self.0[from..].partition_point(|(other, _)| *other == client);
        &self.0[from..until]
    }
}

/// What a kernel tells of is read this soon after it happened, on a machine that has much to do.
pub(super) const TOLD_WITHIN_MS: f64 = 1000.0;

impl<'a> Kernel<'a> {
    /// Reads sorted observations.
    pub fn read(sorted: &[&'a Observation], target: Option<&'a Target>, via: Via) -> Self {
        let mut kernel = Self { target, via, ..Self::default() };
        for &observation in sorted {
            match &observation.event {
                Event::FlowOpened { flow, local, remote } => {
                    kernel.flows.insert(flow, (*local, *remote));
                }
                Event::Conntrack { .. } => kernel.tell_entry(observation),
                Event::Packet { .. } => kernel.tell_packet(observation),
                Event::Rules { node, protocol, endpoints, reject, .. } => {
                    kernel.heard.insert(node);
                    let what = Rules { protocol: *protocol, endpoints, reject: *reject };
                    kernel.rules.push(told(observation, node, what));
                }
                Event::EvidenceGap { .. } => kernel.gaps.push(observation),
                _ => {}
            }
        }
        kernel.entries.sort();
        kernel.packets.sort();
        kernel
    }

    fn tell_entry(&mut self, observation: &'a Observation) {
        let Event::Conntrack {
            node,
            change,
            protocol,
            client,
            to,
            answered_by,
            answers_to,
            by,
            ..
        } = &observation.event
        else {
            return;
        };
        self.heard.insert(node);
        if *change == EntryChange::Stands {
            self.read_at_end.insert(node);
        }
        let (change, answered_by, answers_to, by) = (*change, *answered_by, *answers_to, *by);
        let what = Entry { change, to: *to, answered_by, answers_to, by };
        self.entries.push((node, *protocol, *client), told(observation, node, what));
    }

    fn tell_packet(&mut self, observation: &'a Observation) {
        let Event::Packet {
            node,
            interface,
            out,
            kind,
            protocol,
            sender,
            from,
            to,
            icmp_code,
            until,
            ..
        } = &observation.event
        else {
            return;
        };
        self.heard.insert(node);
        let client = match kind {
            PacketKind::Unreachable => from,
            PacketKind::Rst | PacketKind::Fin => to,
        };
        let what = Packet {
            interface,
            out: *out,
            kind: *kind,
            sender: *sender,
            code: *icmp_code,
            until: until.unwrap_or(observation.at),
        };
        self.packets.push((node, *protocol, *client), told(observation, node, what));
    }

    /// One flow's evidence; `None` where no kernel told of it.
    pub fn of(&self, flow: &str, protocol: Protocol) -> Option<FlowEvidence<'_, 'a>> {
        let (target, (client, to)) = (self.target?, *self.flows.get(flow)?);
        // A hostPort is the pod's node's: another node only leads there.
        let translator = match self.via {
            Via::HostPort => target.node.as_str(),
            Via::NodePort | Via::ClusterIp | Via::Pod => target.entry_node.as_str(),
        };
        let entries = self.entries.of((translator, protocol, client));
        // The one that held the flow when the trigger was sent leads to the target: it answered then.
        // An earlier trial's flow may have had the same address, and gone to another Service.
        let told = entries.iter().rev().map(|(_, entry)| entry);
        let mut before = told.filter(|entry| entry.time.at < Ms(0));
        let held = before.find(|e| e.what.to == to && e.what.change == EntryChange::New)?;
        let Entry { answered_by: pod, answers_to: behind, .. } = held.what;
        Some(FlowEvidence {
            kernel: self,
            target,
            protocol,
            translator,
            client,
            to,
            pod,
            behind,
            entries,
        })
    }

    /// The first commit after the trigger, at the node that flows enter by, after which none of the
    /// Service's ports led new flows to the target any more. kube-proxy commits all ports at once; a
    /// port that it left for the next commit still counts. `None` across a gap, too.
    pub fn rules_removed(&self) -> Option<Timed> {
        let target = self.target?;
        let pod = self.pod_of_flows()?;
        let mut led = HashSet::new();
        let here = |told: &&Told<'a, Rules<'a>>| told.node == target.entry_node;
        for rules in self.rules.iter().filter(here) {
            let Rules { protocol, endpoints, .. } = rules.what;
            if endpoints.iter().any(|endpoint| endpoint.ip() == pod) {
                led.insert(protocol);
            } else if led.remove(&protocol) && led.is_empty() && rules.time.at >= Ms(0) {
                let missed =
                    self.missed(&[Source::NodeRules], rules.time.at, &[&target.entry_node]);
                return (!missed).then_some(rules.time);
            }
        }
        None
    }

    /// The target's address: where the flows' entries led before the trigger.
    fn pod_of_flows(&self) -> Option<IpAddr> {
        let flows = self.flows.keys();
        let protocol = |flow: &str| super::fate::protocol(flow);
        // All of them were answered by the target; of several addresses always the same one.
        flows.filter_map(|flow| Some(self.of(flow, protocol(flow))?.pod.ip())).min()
    }

    /// Whether one of these sources, at one of these nodes, may have missed something between the
    /// trigger and then.
    fn missed(&self, sources: &[Source], until: Ms, nodes: &[&str]) -> bool {
        self.gaps.iter().any(|gap| match &gap.event {
            Event::EvidenceGap { node, until: end, .. } => {
                sources.contains(&gap.source)
                    && nodes.contains(&node.as_str())
                    && *end >= Ms(0)
                    && gap.at <= until
            }
            _ => false,
        })
    }
}

fn told<'a, W>(observation: &Observation, node: &'a str, what: W) -> Told<'a, W> {
    Told { node, source: observation.source, time: Timed::of(observation), what }
}

/// What the kernels told of one flow.
#[derive(Debug)]
pub(super) struct FlowEvidence<'k, 'a> {
    kernel: &'k Kernel<'a>,
    target: &'a Target,
    protocol: Protocol,
    /// The node that turns what the flow goes to into a pod's address.
    translator: &'a str,
    client: SocketAddr,
    /// What the flow goes to.
    to: SocketAddr,
    /// The target's address, as the entry names it.
    pub pod: SocketAddr,
    /// The flow's address behind the node that it enters by.
    behind: SocketAddr,
    entries: &'k [(Client<'a>, Told<'a, Entry>)],
}

impl<'k, 'a> FlowEvidence<'k, 'a> {
    /// What the flow goes to.
    pub fn via(&self) -> Via {
        self.kernel.via
    }

    /// The commit after the trigger, at the node that the flow enters by, since which the rules leave
    /// new flows no way to the target, if they do so at this time.
    pub fn rules_without_target(&self, at: Ms) -> Option<&'k Told<'a, Rules<'a>>> {
        let led = |rules: &Rules| rules.endpoints.contains(&self.pod);
        // Rules that never led there have not left it out.
        let mut before = self.rules().take_while(|rules| rules.time.at <= at);
        before.any(|rules| led(&rules.what)).then(|| self.rules_since(at, |rules| !led(rules)))?
    }

    /// The same, since which they lead new flows to this pod.
    pub fn rules_to(&self, pod: SocketAddr, at: Ms) -> Option<&'k Told<'a, Rules<'a>>> {
        self.rules_since(at, |rules| rules.endpoints.contains(&pod))
    }

    /// The same, since which they reject the flow's port. What is still led to a pod is not rejected:
    /// iptables' table that leads comes before the one that rejects, and is committed after it.
    pub fn rejecting(&self, at: Ms) -> Option<&'k Told<'a, Rules<'a>>> {
        self.rules_since(at, |rules| rules.reject && rules.endpoints.is_empty())
    }

    /// Whether the rules that were in force at the trigger led new flows to this pod.
    pub fn led_before(&self, pod: SocketAddr) -> bool {
        let before = self.rules().take_while(|rules| rules.time.at < Ms(0)).last();
        before.is_some_and(|rules| rules.what.endpoints.contains(&pod))
    }

    /// Whether the rules in force at this time lead new flows to the target.
    pub fn rules_lead_to_target(&self, at: Ms) -> bool {
        let in_force = self.rules().take_while(|rules| rules.time.at <= at).last();
        in_force.is_some_and(|rules| rules.what.endpoints.contains(&self.pod))
    }

    /// The first of the commits since which, without a break until this time, the rules pass.
    fn rules_since(
        &self,
        at: Ms,
        passes: impl Fn(&Rules) -> bool,
    ) -> Option<&'k Told<'a, Rules<'a>>> {
        let mut since = None;
        let after = self.rules().filter(|rules| rules.time.at >= Ms(0));
        for rules in after.take_while(|rules| rules.time.at <= at) {
            since = passes(&rules.what).then(|| since.unwrap_or(rules));
        }
        since
    }

    /// Those of the flow's port at the node that it enters by, in the order of time; none where
    /// kube-proxy has no part in the flow's way.
    fn rules(&self) -> impl Iterator<Item = &'k Told<'a, Rules<'a>>> {
        let of_service = self.via().is_of_service();
        self.kernel.rules.iter().filter(move |rules| {
            of_service
                && rules.node == self.target.entry_node
                && rules.what.protocol == self.protocol
        })
    }

    /// The last end of an entry of the flow to the target, after the trigger and told by then.
    pub fn destroyed(&self, until: Ms) -> Option<&'k Told<'a, Entry>> {
        let by_then = |entry: &&'k Told<'a, Entry>| entry.time.at <= until;
        let to_target = |answered_by| answered_by == self.pod;
        self.entries_of(EntryChange::Destroy, to_target).take_while(by_then).last()
    }

    /// The entry that leads to another pod at this time: the last that was made by then or, where it
    /// was told of later, the first that is told to have been made soon after.
    pub fn elsewhere(&self, at: Ms) -> Option<&'k Told<'a, Entry>> {
        // One that leads where the flow goes to leads to no pod: nothing was translated.
        let leads = |answered_by| answered_by != self.pod && answered_by != self.to;
        let by_then = |entry: &&'k Told<'a, Entry>| entry.time.at <= at;
        let made = || self.entries_of(EntryChange::New, leads);
        made().take_while(by_then).last().or_else(|| {
            made().next().filter(|entry| ms_between(entry.time.at, at) <= TOLD_WITHIN_MS)
        })
    }

    /// The flow's entry to the target, found when the observation ended.
    pub fn stands(&self) -> Option<&'k Told<'a, Entry>> {
        self.entries_of(EntryChange::Stands, |answered_by| answered_by == self.pod).next()
    }

    /// Whether the target's node told anything: of one that is not listened in, that it sent nothing
    /// is not known.
    pub fn hears_targets_node(&self) -> bool {
        self.kernel.heard.contains(self.target.node.as_str())
    }

    /// Whether the table of the node that translates was read at the end.
    pub fn read_at_end(&self) -> bool {
        self.kernel.read_at_end.contains(self.translator)
    }

    /// Changes of the flow's entries after the trigger, in the order of time.
    fn entries_of(
        &self,
        change: EntryChange,
        leads: impl Fn(SocketAddr) -> bool,
    ) -> impl Iterator<Item = &'k Told<'a, Entry>> {
        self.entries.iter().map(|(_, entry)| entry).filter(move |entry| {
            entry.time.at >= Ms(0)
                && entry.what.to == self.to
                && entry.what.change == change
                && leads(entry.what.answered_by)
        })
    }

    /// The last packet of this kind that the target's own network namespace sent to this flow: it came
    /// in by an interface of the target's node, with the target as its sender.
    pub fn sent_by_target(&self, sought: Sought) -> Option<&'k Told<'a, Packet<'a>>> {
        let of_pod = |packet: &Packet| !packet.out && packet.sender == self.pod.ip();
        self.packet(&self.target.node, self.behind, sought, of_pod)
    }

    /// The last packet of this kind that the target's node itself made: it only left.
    pub fn made_by_targets_node(&self, sought: Sought) -> Option<&'k Told<'a, Packet<'a>>> {
        let passes = |packet: &Packet| packet.out && packet.sender != self.pod.ip();
        self.packet(&self.target.node, self.behind, sought, passes)
    }

    /// The last packet of this kind that left the node that translates, to the flow.
    pub fn left_translator(&self, sought: Sought) -> Option<&'k Told<'a, Packet<'a>>> {
        self.packet(self.translator, self.client, sought, |packet| packet.out)
    }

    fn packet(
        &self,
        node: &'a str,
        client: SocketAddr,
        sought: Sought,
        passes: impl Fn(&Packet) -> bool,
    ) -> Option<&'k Told<'a, Packet<'a>>> {
        let packets = self.kernel.packets.of((node, self.protocol, client));
        packets.iter().rev().map(|(_, packet)| packet).find(|packet| {
            packet.what.kind == sought.kind
                && packet.what.code == sought.code
                && packet.time.at <= sought.until
                && packet.what.until >= Ms(0)
                && passes(&packet.what)
        })
    }

    /// Whether one of these sources, at one of the flow's two nodes, may have missed something
    /// between the trigger and then.
    pub fn missed(&self, sources: &[Source], until: Ms) -> bool {
        let nodes = [self.target.entry_node.as_str(), self.target.node.as_str()];
        self.kernel.missed(sources, until, &nodes)
    }
}
