//! Why a flow ended, as far as this trial's observations say.
//!
//! Takes a flow's story and ending and the world around it; gives a sentence and what it rests on.
//! A cause is `measured` only where each link of its chain was recorded in this trial; without
//! kernel evidence that is so for what the app itself declared, and for little else.

use std::time::Duration;

use super::chain::{self, Ended};
use super::fate::{Ending, Story, Untold};
use super::kernel::Kernel;
use super::world::{Drops, Of, Timed, World, ms_between};
use super::{Basis, Cause, Fate};
use crate::config::{Scenario, Sigterm};
use crate::observation::{Event, Observation, Protocol};

/// The cause; `None` where nothing that was recorded suggests one.
pub(super) fn cause(
    story: &Story,
    ending: &Ending,
    world: &World,
    kernel: &Kernel,
    config: &Scenario,
) -> Option<Cause> {
    let sigterm = config.sigterm;
    let of_service = config.flows.via.is_of_service();
    if let Some(untold) = ending.untold {
        return Some(measured(our_doing(untold)));
    }
    if ending.fate == Fate::Survived {
        return chain::survived(story, world, kernel);
    }
    let time = ending.time?;
    let cause = match ending.fate {
        Fate::Drained => Some(measured("the app announced the end (bye) and closed".to_owned())),
        Fate::Closed => cut(time, world, sigterm),
        Fate::Reset => declared_reset(story, time, world).or_else(|| cut(time, world, sigterm)),
        Fate::Rehomed => chain::rehomed(story, time, world, kernel)
            .or_else(|| chain::restarted(story, time, world))
            .or_else(|| rehomed(story, time, world, of_service)),
        Fate::Refused => chain::refused(story, time, world, kernel)
            .or_else(|| Some(refused(ending.by, time, world, of_service))),
        Fate::Unreachable => chain::unreachable(story, ending, world, kernel)
            .or_else(|| Some(inferred(icmp(ending.by)))),
        Fate::Silent => chain::silent(story, config.flows.silent_after, world, kernel)
            .or_else(|| silent(story, config.flows.silent_after, world)),
        Fate::Survived | Fate::Severed | Fate::NotMeasured => None,
    };
    with_packet(cause, chain::ended(story, ending, sigterm, world, kernel))
}

/// The cause of a TCP flow's end, with the chain that was recorded of it. Where the process ended with
/// the flow, that the kernel closed its sockets is no inference.
fn with_packet(cause: Option<Cause>, ended: Option<Ended>) -> Option<Cause> {
    let Some(Ended { chain, exit }) = ended else { return cause };
    match (cause, exit) {
        (Some(cause), Some(_)) => Some(Cause { basis: Basis::Measured, chain, ..cause }),
        (Some(cause), None) => Some(Cause { chain, ..cause }),
        (None, Some(code)) => {
            let code = code.map_or(String::new(), |code| format!(" (exit code {code})"));
            let text = format!("the app's process ended{code}, and the kernel closed its sockets");
            Some(Cause { chain, ..measured(text) })
        }
        (None, None) => None,
    }
}

/// Why a silence is not called one.
pub(super) fn our_doing(untold: Untold) -> String {
    match untold {
        Untold::NotAsked => "no answer, but this machine sent no heartbeat either".to_owned(),
        Untold::Dropped(Drops { by, from, until, count }) => format!(
            "no answer, but {} dropped {count} datagrams between {:.1} and {:.1} ms",
            match by.strip_prefix("pod:") {
                Some(uid) => format!("the sockets of pod {uid}"),
                None => "its own socket".to_owned(),
            },
            from.ms(),
            until.ms()
        ),
    }
}

fn measured(text: String) -> Cause {
    Cause { text, basis: Basis::Measured, chain: Vec::new() }
}

fn inferred(text: String) -> Cause {
    Cause { text, basis: Basis::Inferred, chain: Vec::new() }
}

/// SIGTERM, the probe's word that it reset what it held, and this flow's RST after SIGTERM. (The
/// probe says so once it has done it: its line may be later than the RST.)
fn declared_reset(story: &Story, reset: Timed, world: &World) -> Option<Cause> {
    let by = story.spans.last()?.by;
    let of_it = |instance: &str| instance == by.instance;
    world.resets_forced.iter().find(|forced| of_it(forced.instance))?;
    let sigterm = world.sigterms.iter().find(|sigterm| of_it(sigterm.instance))?;
    sigterm.time.may_precede(reset).then(|| {
        let text = "the app reset its connections on SIGTERM (declared by the probe)";
        measured(text.to_owned())
    })
}

/// A kill and the ends that it caused lie this close together: the kubelet tells of a container's
/// end up to a second and a watch later.
pub(super) const TOLD_WITHIN_MS: f64 = 3000.0;

/// The same, of the app's own last line and the closing of its sockets.
const EXITS_WITHIN_MS: f64 = 1000.0;

/// A FIN or RST that the app did not announce.
fn cut(end: Timed, world: &World, sigterm: Sigterm) -> Option<Cause> {
    if let Some((exit, 137)) = world.container_exit {
        let told_after = ms_between(exit.at, end.at);
        let text = match sigterm {
            Sigterm::Ignore if !world.sigterms.is_empty() => {
                "killed after the grace period (exit 137): the kernel closed its sockets"
            }
            _ => "killed (exit 137): the kernel closed its sockets",
        };
        return (told_after.abs() <= TOLD_WITHIN_MS).then(|| inferred(text.to_owned()));
    }
    let exiting = world.exiting.first()?;
    let near = ms_between(end.at, exiting.time.at).abs() <= EXITS_WITHIN_MS;
    let when = apart(end, exiting.time, "the app said that it exits");
    let text = format!("closed by the kernel as the app ended, {when} (code {})", exiting.what);
    near.then(|| inferred(text))
}

/// Another pod, or another process of the same pod.
fn rehomed(story: &Story, moved: Timed, world: &World, of_service: bool) -> Option<Cause> {
    let (first, other) = (story.spans.first()?, story.other()?);
    if first.by.uid == other.by.uid {
        let text = "the container was restarted: same pod, another process";
        let started = |s: &Of<()>| s.instance == other.by.instance && s.time.may_precede(moved);
        let seen = world.started.iter().any(started);
        return Some(if seen { measured(text.into()) } else { inferred(text.into()) });
    }
    let gone = world.endpoint.not_serving.filter(|gone| gone.may_precede(moved))?;
    let exits = world.exiting.first().map(|exiting| exiting.time);
    let exited = [exits, world.container_exit.map(|(time, _)| time)];
    let exited = exited.into_iter().flatten().any(|exit| exit.at <= gone.at);
    let how = match (world.endpoint.listed_not_serving, exited) {
        (true, false) => "stopped serving (its readiness failed)",
        (true, true) => "stopped serving once the app had exited",
        (false, _) => "was removed",
    };
    let ago = ms_between(moved.at, gone.at);
    let who = match story.protocol {
        Protocol::Udp if of_service => "kube-proxy then moved the flow",
        // kube-proxy moves no TCP, and has no part in what goes past the Service.
        Protocol::Udp | Protocol::Tcp => "something between then moved the flow",
    };
    Some(inferred(format!("the target's endpoint {how}, seen {ago:.1} ms before; {who}")))
}

/// Two senders have the same address after translation, and nothing that was recorded tells them apart.
fn refused(by: Option<&Observation>, at: Timed, world: &World, of_service: bool) -> Cause {
    let when = match (world.exiting.first(), world.container_exit) {
        (Some(exiting), _) => {
            format!(", {}", apart(at, exiting.time, "the app said that it exits"))
        }
        (None, Some((exit, _))) => {
            format!(", {}", apart(at, exit, "the container was seen terminated"))
        }
        (None, None) => String::new(),
    };
    let node = if of_service { "a node's reject rule" } else { "a node" };
    inferred(format!(
        "{}{when}: the pod's own namespace once its socket is closed, or {node} (what was recorded does \
         not tell them apart)",
        icmp(by)
    ))
}

/// A silence has no cause of its own: what is known is what did not come.
fn silent(story: &Story, silent_after: Duration, world: &World) -> Option<Cause> {
    let (exit, code) = world.container_exit?;
    let last = story.last_of_first()?;
    let gone = chain::ends_with(last, exit.at, silent_after, TOLD_WITHIN_MS);
    (gone && story.protocol == Protocol::Udp).then(|| {
        inferred(format!(
            "the target had exited (code {code}), and neither an answer nor a refusal came: what was \
             recorded does not tell a stale conntrack entry, a limit on ICMP and a lost route apart"
        ))
    })
}

/// `4.0 ms after WHAT`, or before.
fn apart(at: Timed, other: Timed, what: &str) -> String {
    let apart = ms_between(at.at, other.at);
    let side = if apart < 0.0 { "before" } else { "after" };
    format!("{:.1} ms {side} {what}", apart.abs())
}

/// What the kernel told of the refusal.
fn icmp(by: Option<&Observation>) -> String {
    let (sender, kind, code, errno) = match by.map(|by| &by.event) {
        Some(Event::Refused { sender, icmp_type, icmp_code, .. }) => {
            (sender, icmp_type, icmp_code, None)
        }
        Some(Event::Unreachable { sender, icmp_type, icmp_code, errno, .. }) => {
            (sender, icmp_type, icmp_code, Some(errno))
        }
        _ => return "refused".to_owned(),
    };
    let from = sender.map_or(String::new(), |sender| format!(" from {sender}"));
    match (kind, code, errno) {
        (Some(3), Some(3), _) => format!("ICMP port unreachable{from}"),
        (Some(1), Some(4), _) => format!("ICMPv6 port unreachable{from}"),
        (Some(kind), Some(code), _) => format!("ICMP type {kind} code {code}{from}"),
        (_, _, Some(errno)) => format!("unreachable (errno {errno}){from}"),
        _ => format!("connection refused{from}"),
    }
}
