//! The links of chains.
//!
//! Takes what the kernels told and the world around a flow; gives links with their times, bounds and
//! sources. Which of them make a chain is for [`super::chain`].

use super::kernel::{FlowEvidence, Told};
use super::world::{Timed, World};
use super::{Basis, Cause, Link, LinkKind};
use crate::clock::Ms;
use crate::observation::{Bound, Source};

/// A cause of which each link was recorded, after the trigger.
pub(super) fn measured(text: String, mut chain: Vec<Link>) -> Cause {
    chain.reserve_exact(1);
    chain.insert(0, Link::trigger());
    chain.shrink_to_fit(); // there are as many as flows
    Cause { text, basis: Basis::Measured, chain }
}

/// What the API told of the target's endpoint by then. It was not ready at the time that is given or
/// before, so that this is no later than what it led to, however late the watch told of it. It has no
/// part in what becomes of a flow that goes past the Service.
pub(super) fn endpoint(world: &World, evidence: &FlowEvidence, until: Ms) -> Vec<Link> {
    if !evidence.via().is_of_service() {
        return Vec::new();
    }
    let story = &world.endpoint;
    let serving = story.not_serving.filter(|time| time.at <= until);
    let kinds =
        [(LinkKind::EndpointNotReady, story.not_ready), (LinkKind::EndpointNotServing, serving)];
    let link = |(kind, time): (LinkKind, Option<Timed>)| {
        Some(Link::timed(kind, time?, Source::EndpointsliceWatch))
    };
    kinds.into_iter().filter_map(link).collect()
}

/// The end of the target's process by then, or what the API told of its container's.
pub(super) fn exit(world: &World, until: Ms) -> Option<Link> {
    let process = world.process_exit.filter(|(time, _)| time.at <= until);
    let process =
        process.map(|(time, _)| Link::timed(LinkKind::ProcessExit, time, Source::NodeProcesses));
    process.or_else(|| {
        let (time, _) = world.container_exit.filter(|(time, _)| time.at <= until)?;
        Some(Link::timed(LinkKind::ContainerExit, time, Source::PodWatch))
    })
}

/// A process ends this soon after the kernel has closed its sockets.
pub(super) const CLOSES_WITHIN_MS: f64 = 1000.0;

/// What the app told of its end by then: that it got SIGTERM, that it exits; and its process's end,
/// which the kernel tells after it has closed its sockets.
pub(super) fn of_app(world: &World, until: Ms) -> Vec<Link> {
    let by_then = |time: &Timed| time.at <= until;
    let sigterm = world.sigterms.first().map(|sigterm| sigterm.time).filter(by_then);
    let exiting = world.exiting.first().map(|exiting| exiting.time).filter(by_then);
    let told = [(LinkKind::Sigterm, sigterm), (LinkKind::AppExits, exiting)];
    let link =
        |(kind, time): (LinkKind, Option<Timed>)| Some(Link::timed(kind, time?, Source::ProbeLog));
    let closed = Ms(until.0.saturating_add(Ms::from_ms(CLOSES_WITHIN_MS).0));
    told.into_iter().filter_map(link).chain(exit(world, closed)).collect()
}

impl Link {
    /// The request that started it all.
    pub(super) fn trigger() -> Self {
        let zero = Timed { at: Ms(0), bound: Bound::Exact, plus_minus_ms: Some(0.0) };
        Self::timed(LinkKind::Trigger, zero, Source::Runner)
    }

    pub(super) fn of<W>(what: LinkKind, told: &Told<W>) -> Self {
        Self { node: Some(told.node.to_owned()), ..Self::timed(what, told.time, told.source) }
    }

    pub(super) fn timed(what: LinkKind, time: Timed, source: Source) -> Self {
        let Timed { at, bound, plus_minus_ms } = time;
        Self { what, t_ms: at.ms(), bound, plus_minus_ms, source, node: None }
    }
}
