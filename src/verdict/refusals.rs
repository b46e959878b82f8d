//! Refusals: which a flow met, who sent them, and how many more a limiter withheld.
//!
//! Takes a flow's story, its evidence and the kernel's counters. Knows nothing of fates.

use std::net::IpAddr;

use super::fate::Story;
use super::kernel::{Entry, Kernel, Packet, Rules, Sought, TOLD_WITHIN_MS, Told};
use super::world::{Timed, World, ms_between};
use super::{Link, LinkKind};
use crate::clock::Ms;
use crate::config::Via;
use crate::observation::{Event, PacketKind, Source};

/// ICMP's code for a port that nobody listens on, and ICMPv6's.
const PORT_UNREACHABLE: u8 = 3;
const PORT_UNREACHABLE6: u8 = 4;

/// A packet has come from the pod to its client after this at the latest.
const ARRIVES_WITHIN_MS: f64 = 100.0;

/// The refusals that a flow met after the trigger.
#[derive(Clone, Copy, Debug)]
pub(super) struct Met {
    pub first: Timed,
    last: Ms,
    count: u64,
}

impl Met {
    /// Before then; `None` where there was none.
    pub fn before(story: &Story, until: Ms) -> Option<Self> {
        let mut met: Option<Self> = None;
        for refused in story.events.iter().filter(|o| o.at >= Ms(0) && o.at < until) {
            let Event::Refused { until, count, .. } = refused.event else { continue };
            let met = met.get_or_insert(Self { first: Timed::of(refused), last: until, count: 0 });
            met.last = met.last.max(until);
            met.count = met.count.saturating_add(count);
        }
        met
    }

    /// `it was refused 5 times, from 25.1 to 180.3 ms, by the pod's own network namespace`
    pub fn words(&self, by: Option<&Refuser>) -> String {
        let (first, last) = (self.first.at.ms(), self.last.ms());
        let times = match self.count {
            1 => format!("it was refused once, at {first:.1} ms"),
            n => format!("it was refused {n} times, from {first:.1} to {last:.1} ms"),
        };
        match by {
            Some(Refuser::Pod(_)) => format!("{times}, first by the pod's own network namespace"),
            Some(Refuser::Rules { packet, .. } | Refuser::Node { packet, .. }) => {
                format!("{times}, first by {}", packet.node)
            }
            None => times,
        }
    }
}

/// Who refused a flow.
#[derive(Debug)]
pub(super) enum Refuser<'k, 'a> {
    /// The target's own network namespace.
    Pod(&'k Told<'a, Packet<'a>>),
    /// The node that the flow enters by, whose rules reject the Service, once the entry that went past
    /// them was gone.
    Rules {
        packet: &'k Told<'a, Packet<'a>>,
        rejecting: &'k Told<'a, Rules<'a>>,
        destroyed: &'k Told<'a, Entry>,
    },
    /// The node whose hostPort the flow goes to, once the entry to the pod was gone.
    Node { packet: &'k Told<'a, Packet<'a>>, destroyed: &'k Told<'a, Entry> },
}

impl Refuser<'_, '_> {
    /// The packet.
    pub fn link(&self) -> Link {
        match self {
            Self::Pod(packet) | Self::Rules { packet, .. } | Self::Node { packet, .. } => {
                Link::of(LinkKind::Refusal, packet)
            }
        }
    }
}

/// Whether a packet can be the one that a flow met then.
pub(super) fn arrived(packet: &Told<Packet>, at: Timed) -> bool {
    ms_between(at.at, packet.what.until) <= ARRIVES_WITHIN_MS
}

/// Who sent the refusal that a flow met then; `None` where that was not recorded.
pub(super) fn refuser<'k, 'a>(
    story: &Story,
    at: Timed,
    kernel: &'k Kernel<'a>,
) -> Option<Refuser<'k, 'a>> {
    let evidence = kernel.of(story.id, story.protocol)?;
    if evidence.missed(&[Source::NodePackets], at.at) {
        return None;
    }
    let code = Some(if evidence.pod.is_ipv6() { PORT_UNREACHABLE6 } else { PORT_UNREACHABLE });
    let sought = Sought { kind: PacketKind::Unreachable, code, until: at.at };
    // Both have the same address once they have left the node that translates.
    if let Some(packet) = evidence.sent_by_target(sought).filter(|packet| arrived(packet, at)) {
        return Some(Refuser::Pod(packet));
    }
    let packet = evidence.left_translator(sought).filter(|packet| arrived(packet, at))?;
    if !evidence.hears_targets_node() || evidence.missed(&[Source::NodeConntrack], at.at) {
        return None;
    }
    // It was gone before the refusal, and may have been told of after it.
    let told = Ms(at.at.0.saturating_add(Ms::from_ms(TOLD_WITHIN_MS).0));
    let destroyed = evidence.destroyed(told)?;
    match evidence.via() {
        Via::NodePort | Via::ClusterIp if !evidence.missed(&[Source::NodeRules], at.at) => {
            let rejecting = evidence.rejecting(at.at)?;
            Some(Refuser::Rules { packet, rejecting, destroyed })
        }
        Via::HostPort => Some(Refuser::Node { packet, destroyed }),
        Via::NodePort | Via::ClusterIp | Via::Pod => None,
    }
}

/// What the kernel counted of refusals since the trigger, of a node or (`None`) of the target's network
/// namespace, as the end of a sentence; empty where it was not counted: those of IPv6 are not, nor those of
/// a namespace that was last read before `since`, when there was something to count.
pub(super) fn limiter(world: &World, node: Option<&str>, pod: IpAddr, since: Ms) -> String {
    if pod.is_ipv6() {
        return String::new();
    }
    let counted = match node {
        Some(node) => world.refusals.of_nodes.get(node),
        None => world.refusals.of_target.as_ref(),
    };
    let Some(counted) = counted.filter(|counted| counted.until >= since) else {
        return String::new();
    };
    let (sent, withheld, until) = (counted.sent, counted.withheld, counted.until.ms());
    let who = node.unwrap_or("the pod's own network namespace");
    format!(
        "; by {until:.0} ms {who} had sent {sent} refusals, and its ICMP limiter withheld {withheld}"
    )
}
