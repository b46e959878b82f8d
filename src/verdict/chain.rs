//! The chain of what led to a flow's end, link by link, from the nodes' kernels.
//!
//! Takes a flow's evidence and the world around it; gives a cause that is `measured`, or none where
//! a link is missing or a source may have missed one. What is inferred is for [`super::cause`].

use super::fate::Story;
use super::kernel::Kernel;
use super::world::{Timed, World, ms_between};
use super::{Basis, Cause, Link, LinkKind};
use crate::clock::Ms;
use crate::config::Via;
use crate::observation::{DestroyedBy, Event, Observation, PacketKind, Source};

const ALL: [Source; 3] = [Source::NodeRules, Source::NodeConntrack, Source::NodePackets];

/// Another pod answers: the endpoint, the rules of the node that the flow enters by, the entry that
/// a process destroyed, the entry that leads elsewhere, the answer.
pub(super) fn rehomed(
    story: &Story,
    moved: Timed,
    world: &World,
    kernel: &Kernel,
) -> Option<Cause> {
    let evidence = kernel.of(story.id, story.protocol)?;
    // The answer came through this entry, so it was made before; it can have been read after. What
    // led to it was told before it, by the same reader.
    let elsewhere = evidence.elsewhere()?;
    // What kube-proxy has no part in has no link of its.
    let (rules, sources) = match evidence.via().is_of_service() {
        true => {
            let rules = evidence.rules_without_target().filter(|rules| rules.at <= elsewhere.at)?;
            (Some(rules), &[Source::NodeRules, Source::NodeConntrack][..])
        }
        false => (None, &[Source::NodeConntrack][..]),
    };
    let destroyed = evidence.destroyed().filter(|entry| entry.at <= elsewhere.at)?;
    if evidence.missed(sources, elsewhere.at.max(moved.at)) {
        return None;
    }
    let by = match destroyed.event {
        Event::Conntrack { by: Some(DestroyedBy::Process), .. } => "a process on the node deleted",
        _ => "the kernel dropped",
    };
    let mut links = endpoint_links(world);
    links.extend(rules.map(|rules| Link::of(LinkKind::RulesWithoutTarget, rules)));
    links.push(Link::of(LinkKind::EntryDestroyed, destroyed));
    links.push(Link::of(LinkKind::EntryMade, elsewhere));
    links.push(Link::timed(LinkKind::Answered, moved, Source::Flow));
    let node = node_of(destroyed);
    let how = match rules {
        Some(rules) => format!(
            "the rules of {node} left the pod out at {:.1} ms, {by} the flow's conntrack entry {:.1} ms \
             later",
            rules.at.ms(),
            ms_between(destroyed.at, rules.at),
        ),
        None => {
            let at = destroyed.at.ms();
            format!("{by} the flow's conntrack entry at {at:.1} ms ({node})")
        }
    };
    let text = format!("{how}, and the next datagram went to the replacement");
    Some(measured(text, links))
}

/// An ICMP refusal: from the pod's own network namespace, or made by the node that the flow enters
/// by.
pub(super) fn refused(story: &Story, at: Timed, world: &World, kernel: &Kernel) -> Option<Cause> {
    let evidence = kernel.of(story.id, story.protocol)?;
    if evidence.missed(&[Source::NodePackets], at.at) {
        return None;
    }
    let exiting = || {
        let exiting = world.exiting.first()?;
        Some(Link::timed(LinkKind::AppExits, exiting.time, Source::ProbeLog))
    };
    let mut links: Vec<Link> = exiting().into_iter().collect();
    if let Some(packet) = evidence.sent_by_target(PacketKind::Unreachable, at.at) {
        links.push(Link::of(LinkKind::Refusal, packet));
        links.push(Link::timed(LinkKind::Refused, at, Source::Flow));
        let text = format!(
            "ICMP port unreachable from the pod's own network namespace ({}), {:.1} ms before the \
             flow met it",
            interface(packet),
            ms_between(at.at, packet.at),
        );
        return Some(measured(text, links));
    }
    let packet = evidence.left_translator(PacketKind::Unreachable, at.at)?;
    let why = match evidence.via() {
        Via::NodePort | Via::ClusterIp => {
            let rejecting = evidence.rejecting().filter(|rules| rules.at <= at.at)?;
            links.push(Link::of(LinkKind::RulesReject, rejecting));
            format!("whose rules reject the Service since {:.1} ms", rejecting.at.ms())
        }
        Via::HostPort => {
            let destroyed = evidence.destroyed().filter(|entry| entry.at <= packet.at)?;
            links.push(Link::of(LinkKind::EntryDestroyed, destroyed));
            format!(
                "which has nothing at that port but an entry to the pod, and that is gone since {:.1} ms",
                destroyed.at.ms()
            )
        }
        Via::Pod => return None,
    };
    links.push(Link::of(LinkKind::Refusal, packet));
    links.push(Link::timed(LinkKind::Refused, at, Source::Flow));
    Some(measured(format!("ICMP port unreachable made by {}, {why}", node_of(packet)), links))
}

/// A silence that nothing ends: the node that the flow enters by keeps the entry to the dead pod.
pub(super) fn silent(story: &Story, world: &World, kernel: &Kernel) -> Option<Cause> {
    let evidence = kernel.of(story.id, story.protocol)?;
    let (end, _) = world.ended?;
    let (exit, code) = world.container_exit?;
    let last = story.last_of_first()?;
    let dead = ms_between(exit.at, last) >= 0.0;
    if !dead || evidence.destroyed().is_some() || evidence.missed(&ALL, end.at) {
        return None;
    }
    let mut links = endpoint_links(world);
    links.push(Link::timed(LinkKind::ContainerExit, exit, Source::PodWatch));
    let rules = evidence.rules_without_target();
    links.extend(rules.map(|rules| Link::of(LinkKind::RulesWithoutTarget, rules)));
    let since = match rules {
        Some(rules) => {
            format!("though its rules have left the pod out since {:.1} ms", rules.at.ms())
        }
        None => "and its rules still lead there".to_owned(),
    };
    let how = match evidence.via() {
        Via::Pod => "the flow goes to its own address, which is nobody's".to_owned(),
        Via::HostPort => {
            "its node kept its conntrack entry to it until the observation ended".to_owned()
        }
        Via::NodePort | Via::ClusterIp => format!(
            "the node that the flow enters by kept its conntrack entry to it until the observation \
             ended, {since}"
        ),
    };
    let text = format!("the pod is gone (code {code}), and {how}");
    Some(measured(text, links))
}

/// A RST or FIN that the pod's own network namespace sent.
pub(super) fn ended_by_target(
    story: &Story,
    kind: PacketKind,
    at: Timed,
    kernel: &Kernel,
) -> Option<Link> {
    let evidence = kernel.of(story.id, story.protocol)?;
    let packet = evidence.sent_by_target(kind, at.at)?;
    Some(Link::of(LinkKind::SentByPod, packet))
}

/// What the API told of the target's endpoint.
fn endpoint_links(world: &World) -> Vec<Link> {
    let story = &world.endpoint;
    let kinds = [
        (LinkKind::EndpointNotReady, story.not_ready),
        (LinkKind::EndpointNotServing, story.not_serving),
    ];
    let link = |(kind, time): (LinkKind, Option<Timed>)| {
        Some(Link::timed(kind, time?, Source::EndpointsliceWatch))
    };
    kinds.into_iter().filter_map(link).collect()
}

fn measured(text: String, mut chain: Vec<Link>) -> Cause {
    chain.insert(0, Link::trigger());
    Cause { text, basis: Basis::Measured, chain }
}

fn node_of(observation: &Observation) -> &str {
    match &observation.event {
        Event::Rules { node, .. } | Event::Conntrack { node, .. } | Event::Packet { node, .. } => {
            node
        }
        _ => "a node",
    }
}

fn interface(packet: &Observation) -> String {
    match &packet.event {
        Event::Packet { node, interface, .. } => format!("{interface} on {node}"),
        _ => String::new(),
    }
}

impl Link {
    /// The request that started it all.
    fn trigger() -> Self {
        let zero =
            Timed { at: Ms(0), bound: crate::observation::Bound::Exact, plus_minus_ms: Some(0.0) };
        Self::timed(LinkKind::Trigger, zero, Source::Runner)
    }

    fn of(what: LinkKind, observation: &Observation) -> Self {
        let node = match &observation.event {
            Event::Rules { .. } | Event::Conntrack { .. } | Event::Packet { .. } => {
                Some(node_of(observation).to_owned())
            }
            _ => None,
        };
        Self { node, ..Self::timed(what, Timed::of(observation), observation.source) }
    }

    fn timed(what: LinkKind, time: Timed, source: Source) -> Self {
        let Timed { at, bound, plus_minus_ms } = time;
        Self { what, t_ms: at.ms(), bound, plus_minus_ms, source, node: None }
    }
}
