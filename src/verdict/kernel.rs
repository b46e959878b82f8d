//! What the nodes' kernels told, by flow.
//!
//! Takes sorted observations and the target; finds the rules, entries and packets of one flow. A
//! flow is known by its own address at the node that translates what it goes to, and behind that
//! node by the address that the node gave it. Knows nothing of fates.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use crate::clock::Ms;
use crate::config::Via;
use crate::observation::{EntryChange, Event, Observation, PacketKind, Protocol, Source, Target};

/// The kernels' evidence of a trial.
#[derive(Debug, Default)]
pub(super) struct Kernel<'a> {
    target: Option<&'a Target>,
    via: Via,
    /// Each flow's own address.
    flows: HashMap<&'a str, SocketAddr>,
    /// Entries by node, protocol and client: flows of two protocols may have the same source port.
    entries: HashMap<(&'a str, Protocol, SocketAddr), Vec<&'a Observation>>,
    /// Packets by the client that they go to or, for ICMP, whose packet they refuse.
    packets: HashMap<(&'a str, SocketAddr), Vec<&'a Observation>>,
    rules: Vec<&'a Observation>,
    gaps: Vec<&'a Observation>,
}

impl<'a> Kernel<'a> {
    /// Reads sorted observations.
    pub fn read(sorted: &[&'a Observation], target: Option<&'a Target>, via: Via) -> Self {
        let mut kernel = Self { target, via, ..Self::default() };
        for &observation in sorted {
            match &observation.event {
                Event::FlowOpened { flow, local, .. } => {
                    kernel.flows.insert(flow, *local);
                }
                Event::Conntrack { node, protocol, client, .. } => {
                    let key = (node.as_str(), *protocol, *client);
                    kernel.entries.entry(key).or_default().push(observation);
                }
                Event::Packet { node, kind, from, to, .. } => {
                    let client = match kind {
                        PacketKind::Unreachable => from,
                        PacketKind::Rst | PacketKind::Fin => to,
                    };
                    kernel.packets.entry((node, *client)).or_default().push(observation);
                }
                Event::Rules { .. } => kernel.rules.push(observation),
                Event::EvidenceGap { .. } => kernel.gaps.push(observation),
                _ => {}
            }
        }
        kernel
    }

    /// One flow's evidence; `None` where no kernel told of it.
    pub fn of(&self, flow: &str, protocol: Protocol) -> Option<FlowEvidence<'_, 'a>> {
        let (target, client) = (self.target?, *self.flows.get(flow)?);
        // A hostPort is the pod's node's: another node only leads there.
        let translator = match self.via {
            Via::HostPort => target.node.as_str(),
            Via::NodePort | Via::ClusterIp | Via::Pod => target.entry_node.as_str(),
        };
        let entries = self.entries.get(&(translator, protocol, client))?;
        // The first entry that leads to a pod is the one to the target: the flow was answered by
        // it before the trigger.
        let (pod, behind) = entries.iter().find_map(|entry| match entry.event {
            Event::Conntrack { answered_by, answers_to, .. } if entry.at < Ms(0) => {
                Some((answered_by, answers_to))
            }
            _ => None,
        })?;
        Some(FlowEvidence {
            kernel: self,
            target,
            protocol,
            translator,
            client,
            pod,
            behind,
            entries,
        })
    }
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
    /// The target's address, as the entry names it.
    pub pod: SocketAddr,
    /// The flow's address behind the node that it enters by.
    behind: SocketAddr,
    entries: &'k [&'a Observation],
}

impl<'a> FlowEvidence<'_, 'a> {
    /// What the flow goes to.
    pub fn via(&self) -> Via {
        self.kernel.via
    }

    /// The first commit after the trigger, at the node that the flow enters by, that left no way to
    /// the target for new flows. None where kube-proxy has no part in the flow's way.
    pub fn rules_without_target(&self) -> Option<&'a Observation> {
        if !self.via().is_of_service() {
            return None;
        }
        self.kernel.rules.iter().copied().find(|rules| match &rules.event {
            Event::Rules { node, protocol, endpoints, .. } => {
                rules.at >= Ms(0)
                    && *node == self.target.entry_node
                    && *protocol == self.protocol
                    && !endpoints.contains(&self.pod)
            }
            _ => false,
        })
    }

    /// The first commit after the trigger, at the node that the flow enters by, that rejects the
    /// flow's port.
    pub fn rejecting(&self) -> Option<&'a Observation> {
        if !self.via().is_of_service() {
            return None;
        }
        self.kernel.rules.iter().copied().find(|rules| match &rules.event {
            Event::Rules { node, protocol, reject, .. } => {
                rules.at >= Ms(0)
                    && *node == self.target.entry_node
                    && *protocol == self.protocol
                    && *reject
            }
            _ => false,
        })
    }

    /// The end of the flow's entry to the target, after the trigger.
    pub fn destroyed(&self) -> Option<&'a Observation> {
        self.entries.iter().copied().find(|entry| match entry.event {
            Event::Conntrack { change: EntryChange::Destroy, answered_by, .. } => {
                entry.at >= Ms(0) && answered_by == self.pod
            }
            _ => false,
        })
    }

    /// The first entry after the trigger that leads elsewhere.
    pub fn elsewhere(&self) -> Option<&'a Observation> {
        self.entries.iter().copied().find(|entry| match entry.event {
            Event::Conntrack { change: EntryChange::New, answered_by, .. } => {
                entry.at >= Ms(0) && answered_by != self.pod
            }
            _ => false,
        })
    }

    /// A packet of this kind that the target's own network namespace sent to this flow: it came in
    /// by an interface of the target's node, with the target as its sender.
    pub fn sent_by_target(&self, kind: PacketKind, until: Ms) -> Option<&'a Observation> {
        self.packet(&self.target.node, self.behind, kind, until, |out, sender| {
            !out && sender == self.pod.ip()
        })
    }

    /// A packet of this kind that left the node that translates, to the flow.
    pub fn left_translator(&self, kind: PacketKind, until: Ms) -> Option<&'a Observation> {
        self.packet(self.translator, self.client, kind, until, |out, _| out)
    }

    fn packet(
        &self,
        node: &str,
        client: SocketAddr,
        kind: PacketKind,
        until: Ms,
        passes: impl Fn(bool, IpAddr) -> bool,
    ) -> Option<&'a Observation> {
        let packets = self.kernel.packets.get(&(node, client))?;
        packets.iter().copied().find(|packet| match packet.event {
            Event::Packet { out, kind: of, protocol, sender, .. } => {
                of == kind
                    && protocol == self.protocol
                    && packet.at >= Ms(0)
                    && packet.at <= until
                    && passes(out, sender)
            }
            _ => false,
        })
    }

    /// Whether one of these sources, at one of the flow's two nodes, may have missed something
    /// between the trigger and then.
    pub fn missed(&self, sources: &[Source], until: Ms) -> bool {
        self.kernel.gaps.iter().any(|gap| match &gap.event {
            Event::EvidenceGap { node, until: end, .. } => {
                sources.contains(&gap.source)
                    && (*node == self.target.entry_node || *node == self.target.node)
                    && *end >= Ms(0)
                    && gap.at <= until
            }
            _ => false,
        })
    }
}
