//! The chain of what led to a flow's end, link by link, from the nodes' kernels.
//!
//! Takes a flow's evidence and the world around it; gives a cause that is `measured`, or none where
//! a link is missing or a source may have missed one. What is inferred is for [`super::cause`].

use std::time::Duration;

use super::cause::TOLD_WITHIN_MS;
use super::fate::{Ending, Story};
use super::kernel::{Entry, FlowEvidence, Kernel, Sought, Told};
use super::links::{self, CLOSES_WITHIN_MS, endpoint, exit, of_app};
use super::refusals::{Met, Refuser, arrived, limiter, refuser};
use super::world::{Timed, World, ms_between};
use super::{Cause, Fate, Link, LinkKind};
use crate::clock::Ms;
use crate::config::{Sigterm, Via};
use crate::observation::{DestroyedBy, Event, PacketKind, Source};

/// The exit code of a process that SIGKILL ended.
const KILLED: i32 = 137;

const ALL: [Source; 3] = [Source::NodeRules, Source::NodeConntrack, Source::NodePackets];

/// Another pod answers: the endpoint, the rules of the node that the flow enters by, the entry that
/// was destroyed, the entry that leads elsewhere, the answer; and the refusals that came before it.
pub(super) fn rehomed(
    story: &Story,
    moved: Timed,
    world: &World,
    kernel: &Kernel,
) -> Option<Cause> {
    let evidence = kernel.of(story.id, story.protocol)?;
    // Another process of the same pod answers through the same entry.
    if story.spans.first()?.by.uid == story.other()?.by.uid {
        return None;
    }
    // The answer came through this entry, so it was made before; it can have been read after. What
    // led to it was told before it, by the same reader.
    let elsewhere = evidence.elsewhere(moved.at)?;
    let (until, pod) = (elsewhere.time.at, elsewhere.what.answered_by);
    let destroyed = evidence.destroyed(until)?;
    // What kube-proxy has no part in has no link of its.
    let of_service = evidence.via().is_of_service();
    let rules = match of_service {
        true => Some((evidence.rules_without_target(until)?, evidence.rules_to(pod, until)?)),
        false => None,
    };
    let who = match evidence.led_before(pod) {
        true => "another pod of the Service",
        false => "the replacement",
    };
    let sources = [Source::NodeConntrack, Source::NodeRules];
    let sources = if of_service { &sources[..] } else { &sources[..1] };
    if evidence.missed(sources, until.max(moved.at)) {
        return None;
    }
    let mut chain = endpoint(world, &evidence, moved.at);
    if of_service {
        // Without it nothing says what the rules were committed for.
        chain.first()?;
    }
    chain.extend(exit(world, moved.at));
    let met = Met::before(story, moved.at);
    let refuser = met.as_ref().and_then(|met| refuser(story, met.first, kernel));
    if let (Some(met), Some(refuser)) = (&met, &refuser) {
        chain.push(refuser.link());
        chain.push(Link::timed(LinkKind::Refused, met.first, Source::Flow));
    }
    if let Some((out, to)) = rules {
        chain.push(Link::of(LinkKind::RulesWithoutTarget, out));
        if to.time.at > out.time.at {
            chain.push(Link::of(LinkKind::RulesToReplacement, to));
        }
    }
    chain.push(Link::of(LinkKind::EntryDestroyed, destroyed));
    // The endpoint's, the app's, the rules' and the entry's stories run side by side until all of them
    // have led here: a kernel that drops an entry with its interface waits for no rules.
    chain.sort_by(|a, b| a.t_ms.total_cmp(&b.t_ms));
    chain.push(Link::of(LinkKind::EntryMade, elsewhere));
    chain.push(Link::timed(LinkKind::Answered, moved, Source::Flow));
    let by = destroyed_by(destroyed);
    let (node, at) = (destroyed.node, destroyed.time.at);
    let how = match rules {
        Some((out, to)) => {
            let led = (to.time.at > out.time.at).then_some((to.time.at, who));
            let (before, last) = until_destroyed(node, out.time.at, led, world, at);
            let when = match ms_between(at, last) {
                after if after < 0.0 => format!("at {:.1} ms, before that", at.ms()),
                after => format!("{after:.1} ms after that"),
            };
            format!("{before}, {by} the flow's conntrack entry {when}")
        }
        None => format!("{by} the flow's conntrack entry at {:.1} ms ({node})", at.ms()),
    };
    let mut text = format!("{how}, and the next datagram that was let through went to {who}");
    if let Some(met) = met {
        text += &format!("; until then {}", met.words(refuser.as_ref()));
    }
    Some(links::measured(text, chain))
}

/// What was committed and told of before a flow's entry was destroyed, in words, and when the last of it
/// was: a pod that goes on serving keeps its entries though the rules have left it out.
fn until_destroyed(
    node: &str,
    out: Ms,
    led: Option<(Ms, &str)>,
    world: &World,
    destroyed: Ms,
) -> (String, Ms) {
    let mut steps = vec![(out, format!("the rules of {node} left the pod out"))];
    steps.extend(led.map(|(at, who)| (at, format!("the rules led to {who}"))));
    let not_serving = world.endpoint.not_serving.map(|told| told.at);
    let between = not_serving.filter(|told| *told > out && *told < destroyed);
    steps.extend(between.map(|told| (told, "its endpoint no longer served".to_owned())));
    steps.sort_by_key(|(at, _)| *at);
    let words = steps.iter().map(|(at, what)| format!("{what} at {:.1} ms", at.ms()));
    (words.collect::<Vec<_>>().join(", "), steps.last().map_or(out, |(at, _)| *at))
}

/// Another process of the same pod answers: the first one's end, the new one's start, the answer.
pub(super) fn restarted(story: &Story, moved: Timed, world: &World) -> Option<Cause> {
    let (first, other) = (story.spans.first()?, story.other()?);
    let (ended, code) = world.process_exit?;
    let started = world.started.iter().find(|started| started.instance == other.by.instance)?;
    let (before, same) = (ended.may_precede(started.time), first.by.uid == other.by.uid);
    if !same || !before || !started.time.may_precede(moved) {
        return None;
    }
    let mut chain = vec![Link::timed(LinkKind::ProcessExit, ended, Source::NodeProcesses)];
    let refused = Met::before(story, moved.at);
    if let Some(met) = &refused {
        chain.push(Link::timed(LinkKind::Refused, met.first, Source::Flow));
    }
    chain.push(Link::timed(LinkKind::AppStarted, started.time, Source::ProbeLog));
    chain.push(Link::timed(LinkKind::Answered, moved, Source::Flow));
    let mut text = format!(
        "the container was restarted: its process ended at {:.1} ms{}, and another one began to answer in \
         the same pod",
        ended.at.ms(),
        code.map_or(String::new(), |code| format!(" (exit code {code})")),
    );
    if let Some(met) = refused {
        text += &format!("; until then {}", met.words(None));
    }
    Some(links::measured(text, chain))
}

/// An ICMP refusal: from the pod's own network namespace, or made by a node.
pub(super) fn refused(story: &Story, at: Timed, world: &World, kernel: &Kernel) -> Option<Cause> {
    let refuser = refuser(story, at, kernel)?;
    let evidence = kernel.of(story.id, story.protocol)?;
    let counted = |node| limiter(world, node, evidence.pod.ip(), at.at);
    let mut chain = match &refuser {
        // What the app does has no part in it: it may still serve.
        Refuser::Rules { .. } => endpoint(world, &evidence, at.at),
        Refuser::Pod(_) | Refuser::Node { .. } => of_app(world, at.at),
    };
    let text = match &refuser {
        Refuser::Pod(packet) => format!(
            "ICMP port unreachable from the pod's own network namespace ({} on {}), {:.1} ms before the \
             flow met it{}",
            packet.what.interface,
            packet.node,
            ms_between(at.at, packet.time.at),
            counted(None),
        ),
        Refuser::Rules { packet, rejecting, destroyed } => {
            let mut both = [
                Link::of(LinkKind::RulesReject, rejecting),
                Link::of(LinkKind::EntryDestroyed, destroyed),
            ];
            both.sort_by(|a, b| a.t_ms.total_cmp(&b.t_ms));
            chain.extend(both);
            format!(
                "ICMP port unreachable made by {}, whose rules reject the Service since {:.1} ms{}",
                packet.node,
                rejecting.time.at.ms(),
                counted(Some(packet.node)),
            )
        }
        Refuser::Node { packet, destroyed } => {
            chain.push(Link::of(LinkKind::EntryDestroyed, destroyed));
            format!(
                "ICMP port unreachable made by {}, which has nothing at that port but an entry to the pod, \
                 and that is gone since {:.1} ms",
                packet.node,
                destroyed.time.at.ms(),
            )
        }
    };
    chain.push(refuser.link());
    chain.push(Link::timed(LinkKind::Refused, at, Source::Flow));
    Some(links::measured(text, chain))
}

/// ICMP says that the target can't be reached.
pub(super) fn unreachable(
    story: &Story,
    ending: &Ending,
    world: &World,
    kernel: &Kernel,
) -> Option<Cause> {
    let (at, by) = (ending.time?, ending.by?);
    let evidence = kernel.of(story.id, story.protocol)?;
    let Event::Unreachable { icmp_code: code @ Some(_), .. } = by.event else { return None };
    if evidence.missed(&[Source::NodePackets], at.at) {
        return None;
    }
    let sought = Sought { kind: PacketKind::Unreachable, code, until: at.at };
    let left = evidence.left_translator(sought).filter(|packet| arrived(packet, at))?;
    let by_target = evidence.sent_by_target(sought).filter(|packet| arrived(packet, at));
    let by_node = evidence.made_by_targets_node(sought).filter(|packet| arrived(packet, at));
    let (packet, who) = match (by_target, by_node) {
        (Some(packet), _) => (packet, "from the pod's own network namespace, seen at"),
        (None, Some(packet)) => (packet, "made by the pod's node,"),
        (None, None) if evidence.hears_targets_node() => (left, "made by"),
        (None, None) => return None,
    };
    let mut chain = of_app(world, at.at);
    chain.push(Link::of(LinkKind::Refusal, packet));
    chain.push(Link::timed(LinkKind::Refused, at, Source::Flow));
    let code = code.unwrap_or_default();
    let text = format!("ICMP destination unreachable (code {code}) {who} {}", packet.node);
    Some(links::measured(text, chain))
}

/// A silence that nothing ends: the node that translates keeps the entry to the dead pod. Or its entry is
/// gone, the rules reject, and nothing of that reaches the flow.
pub(super) fn silent(
    story: &Story,
    silent_after: Duration,
    world: &World,
    kernel: &Kernel,
) -> Option<Cause> {
    let evidence = kernel.of(story.id, story.protocol)?;
    let (end, _) = world.ended?;
    let last = story.last_of_first()?;
    if let Some(cause) = rejected_unheard(last, silent_after, end.at, world, &evidence) {
        return Some(cause);
    }
    let (gone, code) = world.gone()?;
    let told = if world.process_exit.is_some() { 0.0 } else { TOLD_WITHIN_MS };
    let dead = ends_with(last, gone.at, silent_after, told);
    let stands = evidence.stands();
    let entry_gone =
        evidence.destroyed(Ms(i64::MAX)).is_some() || evidence.read_at_end() && stands.is_none();
    if !dead || entry_gone || evidence.missed(&ALL, end.at) {
        return None;
    }
    let mut chain = endpoint(world, &evidence, Ms(i64::MAX));
    chain.extend(exit(world, Ms(i64::MAX)));
    let rules = evidence.rules_without_target(end.at);
    chain.extend(rules.map(|rules| Link::of(LinkKind::RulesWithoutTarget, rules)));
    // The pod's end and the rules' are apart.
    chain.sort_by(|a, b| a.t_ms.total_cmp(&b.t_ms));
    chain.extend(stands.map(|entry| Link::of(LinkKind::EntryStands, entry)));
    let since = match rules {
        Some(rules) => {
            format!(", though its rules have left the pod out since {:.1} ms", rules.time.at.ms())
        }
        None if evidence.rules_lead_to_target(end.at) => {
            ", and its rules still lead there".to_owned()
        }
        None => String::new(),
    };
    let node = match evidence.via() {
        Via::HostPort => "the pod's node",
        Via::NodePort | Via::ClusterIp | Via::Pod => "the node that the flow enters by",
    };
    let text = format!(
        "the pod's process has ended{}, and {node} kept its conntrack entry to it until the observation ended\
         {since}; what became of its datagrams from there on was not recorded{}",
        code.map_or(String::new(), |code| format!(" (code {code})")),
        limiter(world, None, evidence.pod.ip(), gone.at),
    );
    Some(links::measured(text, chain))
}

/// `a process on the node deleted`
fn destroyed_by(entry: &Told<Entry>) -> &'static str {
    match entry.what.by {
        Some(DestroyedBy::Process) => "a process on the node deleted",
        Some(DestroyedBy::Kernel) => "the kernel dropped",
        None => "something removed",
    }
}

/// Whether a flow was answered until its peer ended: that is told of up to this much later.
pub(super) fn ends_with(last: Ms, gone: Ms, silent_after: Duration, told_within_ms: f64) -> bool {
    // What was silent long before has another reason.
    let lived_on = silent_after.as_secs_f64() * 1e3 + told_within_ms;
    (0.0..lived_on).contains(&ms_between(gone, last))
}

/// A flow's entry to the pod was destroyed when the node that it enters by rejected new flows: from then
/// on each of its datagrams was rejected, and no refusal came.
fn rejected_unheard(
    last: Ms,
    silent_after: Duration,
    end: Ms,
    world: &World,
    evidence: &FlowEvidence,
) -> Option<Cause> {
    let destroyed = evidence.destroyed(end)?;
    let rejecting = evidence.rejecting(end)?;
    // What had silenced it before this did not.
    let at = destroyed.time.at.max(rejecting.time.at);
    let led_elsewhere = evidence.elsewhere(end).is_some();
    if led_elsewhere || !ends_with(last, at, silent_after, 0.0) || evidence.missed(&ALL, end) {
        return None;
    }
    let mut chain = endpoint(world, evidence, Ms(i64::MAX));
    chain.extend(exit(world, destroyed.time.at));
    chain.push(Link::of(LinkKind::RulesReject, rejecting));
    chain.push(Link::of(LinkKind::EntryDestroyed, destroyed));
    let node = rejecting.node;
    let text = format!(
        "the rules of {node} reject the Service since {:.1} ms, {} the flow's conntrack entry to the pod, \
         seen at {:.1} ms, and no refusal reached the flow{}",
        rejecting.time.at.ms(),
        destroyed_by(destroyed),
        destroyed.time.at.ms(),
        limiter(world, Some(node), evidence.pod.ip(), at),
    );
    Some(links::measured(text, chain))
}

/// A flow that lives on: its entry leads to the target to the end, whatever the rules say.
pub(super) fn survived(story: &Story, world: &World, kernel: &Kernel) -> Option<Cause> {
    let evidence = kernel.of(story.id, story.protocol)?;
    let (end, _) = world.ended?;
    let stands = evidence.stands()?;
    if world.gone().is_some() || evidence.missed(&[Source::NodeRules], end.at) {
        return None;
    }
    let mut chain = endpoint(world, &evidence, Ms(i64::MAX));
    let rules = evidence.rules_without_target(end.at);
    chain.extend(rules.map(|rules| Link::of(LinkKind::RulesWithoutTarget, rules)));
    chain.push(Link::of(LinkKind::EntryStands, stands));
    let since = match rules {
        Some(rules) => {
            format!(
                ", though the node's rules have left the pod out since {:.1} ms",
                rules.time.at.ms()
            )
        }
        None if evidence.rules_lead_to_target(end.at) => {
            ", and the node's rules lead there".to_owned()
        }
        None => String::new(),
    };
    let text = format!(
        "the pod's process lives, and {} still holds the flow's conntrack entry to it{since}",
        stands.node
    );
    Some(links::measured(text, chain))
}

/// How a TCP flow ended: SIGTERM, the drain's end or the process's, the packet that the pod's own
/// namespace sent, and the flow that read it. `None` without that packet.
pub(super) fn ended(
    story: &Story,
    ending: &Ending,
    sigterm: Sigterm,
    world: &World,
    kernel: &Kernel,
) -> Option<Ended> {
    let at = ending.time?;
    let evidence = kernel.of(story.id, story.protocol)?;
    let kind = match ending.fate {
        Fate::Reset => PacketKind::Rst,
        Fate::Drained | Fate::Closed => PacketKind::Fin,
        _ => return None,
    };
    if evidence.missed(&[Source::NodePackets], at.at) {
        return None;
    }
    let packet = evidence.sent_by_target(Sought { kind, code: None, until: at.at })?;
    let instance = story.spans.last()?.by.instance.as_str();
    let of_it = |other: &str| other == instance;
    let told = world.sigterms.iter().find(|s| of_it(s.instance) && s.time.may_precede(at));
    let drained = world.drains_ended.iter().find(|d| of_it(d.instance) && d.time.may_precede(at));
    // The kernel closes a process's sockets as it ends, and then says that it has ended. What an app
    // resets itself, it resets before: it says so, in a log that can be lost.
    let declared = world.resets_forced.iter().any(|forced| of_it(forced.instance));
    let killed = world.gone().is_some_and(|(_, code)| code == Some(KILLED));
    let resets = ending.fate == Fate::Reset && sigterm == Sigterm::Exit && !killed;
    let forced = declared || resets;
    let exit = world.process_exit.filter(|(exit, _)| {
        let after = ms_between(exit.at, packet.time.at);
        !forced && (0.0..=CLOSES_WITHIN_MS).contains(&after)
    });
    let mut chain = vec![Link::trigger()];
    chain.extend(told.map(|s| Link::timed(LinkKind::Sigterm, s.time, Source::ProbeLog)));
    if ending.fate == Fate::Drained {
        chain.extend(drained.map(|d| Link::timed(LinkKind::DrainEnded, d.time, Source::ProbeLog)));
    } else {
        chain.extend(
            exit.map(|(exit, _)| Link::timed(LinkKind::ProcessExit, exit, Source::NodeProcesses)),
        );
    }
    chain.push(Link::of(LinkKind::SentByPod, packet));
    chain.push(Link::timed(LinkKind::Ended, at, Source::Flow));
    Some(Ended { chain, exit: exit.map(|(_, code)| code) })
}

/// The chain of a TCP flow's end.
pub(super) struct Ended {
    pub chain: Vec<Link>,
    /// The process ended with it; its code, where that is known.
    pub exit: Option<Option<i32>>,
}
