//! What to know before reading a story: the app, the trigger, the pods, the evidence.

use std::time::Duration;

use super::Fact;
use super::cast::Cast;
use super::sentences::{many, ms, times};
use crate::config::{EnterBy, Readiness, Sigterm};
use crate::observation::{Event, Protocol, Source};
use crate::record::Trial;
use crate::report::{provenance, words};
use crate::verdict::{Basis, Fate, FlowRecord, Outcome};

/// Of a trial.
pub(super) fn of_trial(trial: &Trial, cast: &Cast) -> Vec<Fact> {
    let mut facts = Vec::new();
    let mut fact = |name, text: String| facts.push(Fact { name, text });
    if trial.outcome != Outcome::Measured {
        fact("reason", trial.reason.clone().unwrap_or("none was recorded".to_owned()));
    }
    fact("app", app(trial));
    fact("trigger", trigger(trial));
    if let Some(target) = &trial.target {
        let node = |name: &str| if name.is_empty() { String::new() } else { format!(" on {name}") };
        fact("target", format!("{}{}", target.pod, node(&target.node)));
    }
    if let Some(pod) = cast.replacement() {
        fact("replacement", pod.to_owned());
    }
    fact("flows", flows(trial));
    fact("evidence", evidence(trial));
    if let Some(text) = provenance::exactness(trial) {
        fact("exactness", text);
    }
    let when = if trial.started_at.is_empty() { "" } else { ", " };
    let by = match provenance::imported(trial) {
        Some(tool) => format!("imported from {tool}"),
        None => format!("drainwatch {}", provenance::build(trial)),
    };
    fact("recorded", format!("{}{when}{by}", trial.started_at));
    facts
}

/// Of a flow: how it ended, and why.
pub(super) fn of_flow(trial: &Trial, flow: &FlowRecord) -> Vec<Fact> {
    let mut facts = vec![Fact { name: "end", text: end(flow) }];
    let (cause, chain) = match &flow.cause {
        None => ("nothing that was recorded suggests one".to_owned(), None),
        Some(cause) => {
            let rests_on = match (cause.basis, cause.chain.len()) {
                (_, 0) => None,
                (Basis::Measured, n) => Some(format!(
                    "{}, numbered below in the order of cause and effect",
                    many(n as u64, "recorded link")
                )),
                (Basis::Inferred, n) => Some(format!(
                    "{}, numbered below; the rest of it was not recorded",
                    many(n as u64, "recorded link")
                )),
            };
            (format!("{}: {}", basis(cause.basis), cause.text), rests_on)
        }
    };
    // A flow that goes on has none to be asked for.
    if flow.cause.is_some() || flow.fate != Fate::Survived {
        facts.push(Fact { name: "cause", text: cause });
    }
    facts.extend(chain.map(|text| Fact { name: "chain", text }));
    let opened = trial.observations.iter().find_map(|o| match &o.event {
        Event::FlowOpened { flow: id, local, remote } if *id == flow.id => {
            Some(format!(", {local} → {remote}"))
        }
        _ => None,
    });
    let interval = match flow.protocol {
        Protocol::Tcp => trial.config.flows.tcp_interval,
        Protocol::Udp => trial.config.flows.udp_interval,
    };
    let each = if interval > Duration::ZERO {
        format!(", a heartbeat each {}", humantime::format_duration(interval))
    } else {
        String::new()
    };
    let protocol = flow.protocol.name();
    let text = format!("{protocol}{}{each}", opened.unwrap_or_default());
    facts.push(Fact { name: "flow", text });
    facts
}

/// A cause's basis with what it means.
pub(super) fn basis(basis: Basis) -> &'static str {
    match basis {
        Basis::Measured => "measured (each link was recorded)",
        Basis::Inferred => "inferred (it fits what was recorded; nothing proves it)",
    }
}

/// `rehomed at 1,152.0 ms`
pub(super) fn fate_and_time(flow: &FlowRecord) -> String {
    let at = flow.ended_ms.map(|end| format!(" at {}", ms(end))).unwrap_or_default();
    format!("{}{at}", flow.fate.name().replace('-', " "))
}

fn end(flow: &FlowRecord) -> String {
    let mut text = format!("{}: {}", fate_and_time(flow), meaning(flow.fate));
    if let Some(outage) = flow.outage_ms {
        text += &format!("; {} without an answer before", ms(outage));
    }
    // One refusal is what a refused flow's end says.
    if flow.refusals > u64::from(flow.fate == Fate::Refused) {
        text += &format!("; refused {} in all", times(flow.refusals));
    }
    text
}

/// What a fate is, for who has not read the documentation.
pub(super) fn meaning(fate: Fate) -> &'static str {
    match fate {
        Fate::Drained => "the app announced the end (bye), then closed (FIN)",
        Fate::Closed => "closed (FIN) without an announcement of the app",
        Fate::Reset => "the other side reset the connection (RST)",
        Fate::Rehomed => "another process answers than before",
        Fate::Refused => "ICMP said that nobody listens, and nobody answered after it",
        Fate::Unreachable => "ICMP said that there is no way, and nobody answered after it",
        Fate::Silent => "the last answer; none came after it",
        Fate::Survived => "the same process answered to the end of the observation",
        Fate::Severed => "cut, in a way that its report does not tell",
        Fate::NotMeasured => "what became of it can't be told",
    }
}

fn app(trial: &Trial) -> String {
    let config = &trial.config;
    let does = match (config.sigterm, config.drain_window) {
        (Sigterm::Exit, _) => "resets its connections and exits".to_owned(),
        (Sigterm::Drain, Some(window)) => {
            format!("drains for {}", humantime::format_duration(window))
        }
        (Sigterm::Drain, None) => "drains".to_owned(),
        (Sigterm::Ignore, _) => "goes on as before (it ignores it)".to_owned(),
    };
    let readiness = match config.readiness {
        Some(Readiness::Fail) => "; its readiness fails from then on",
        Some(Readiness::Pass) => "; its readiness goes on passing",
        None => "",
    };
    let hook = provenance::hook(config);
    let pods = match config.pod.replicas {
        1 => String::new(),
        n => format!("; one of {n} pods"),
    };
    format!("on SIGTERM{hook} it {does}{readiness}{pods}")
}

/// The grace period is that of the deletion, which can have its own.
fn trigger(trial: &Trial) -> String {
    let grace = humantime::format_duration(trial.config.grace());
    format!("{}; grace period {grace}", words::of(&trial.config.trigger))
}

fn flows(trial: &Trial) -> String {
    let of = &trial.config.flows;
    let entry = match (&trial.target, &of.enter_by) {
        (Some(target), _) if !target.entry_node.is_empty() => {
            let one = target.entry_node == target.node;
            let side = if one { "the target's own node" } else { "another node than the target's" };
            format!("; they enter by {}, {side}", target.entry_node)
        }
        (_, EnterBy::Named(name)) => format!("; they enter by {name}"),
        _ => String::new(),
    };
    format!("{} TCP and {} UDP{entry}", of.tcp, of.udp)
}

/// What the nodes' kernels told.
fn evidence(trial: &Trial) -> String {
    let from = [Source::NodeRules, Source::NodeConntrack, Source::NodePackets];
    let told = |source: &Source| trial.observations.iter().any(|o| o.source == *source);
    let told: Vec<String> = from.iter().filter(|source| told(source)).map(words::of).collect();
    match (trial.config.evidence, told.as_slice()) {
        _ if trial.observations.is_empty() => {
            "none: the record holds no observations, only what was made of them".to_owned()
        }
        (_, [_, ..]) => format!("of the nodes' kernels: {}", told.join(", ")),
        (true, []) => "the nodes' kernels were to be listened to, but told nothing".to_owned(),
        (false, []) => "none of the nodes' kernels: causes that need it are inferred".to_owned(),
    }
}
