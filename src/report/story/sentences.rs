//! Observations in words: a sentence for each kind.
//!
//! Takes an observation and who is who; gives one line of text without a time. An event that has no
//! sentence here is told in the record's own words.

use std::net::SocketAddr;

use super::cast::Cast;
use crate::observation::{Event, Protocol};
use crate::report::words::grouped;

/// What an event that is about no flow says; `None` where it has no sentence.
pub(super) fn sentence(event: &Event, cast: &Cast) -> Option<String> {
    of_the_runner(event)
        .or_else(|| of_a_pod(event, cast))
        .or_else(|| of_the_app(event, cast))
        .or_else(|| of_a_node(event, cast))
        .or_else(|| of_dials(event, cast))
}

/// A time within a sentence.
pub(super) fn ms(ms: f64) -> String {
    format!("{} ms", grouped(ms, 1))
}

/// `1 flow`, `3 flows`
pub(super) fn many(n: u64, what: &str) -> String {
    format!("{} {what}{}", grouped(n as f64, 0), if n == 1 { "" } else { "s" })
}

/// `once`, `3 times`
pub(super) fn times(n: u64) -> String {
    if n == 1 { "once".to_owned() } else { many(n, "time") }
}

fn of_the_runner(event: &Event) -> Option<String> {
    Some(match event {
        Event::TriggerSent { trigger } => format!("the trigger is sent: {trigger}"),
        Event::TriggerAnswered { status, message } => {
            let message = message.as_ref().map(|text| format!(", {text}")).unwrap_or_default();
            format!("the API has answered it: {status}{message}")
        }
        Event::TriggerDone { text } => format!("the trigger is carried out: {text}"),
        Event::ObservationEnded { complete: true } => "the observation ends".to_owned(),
        Event::ObservationEnded { complete: false } => {
            "the observation ends by its time limit: not all had ended".to_owned()
        }
        Event::WatchGap { until, reason } => {
            format!("this watch saw nothing from here until {}: {reason}", ms(until.ms()))
        }
        _ => return None,
    })
}

fn of_a_pod(event: &Event, cast: &Cast) -> Option<String> {
    Some(match event {
        Event::PodSeen { pod, uid } => format!("{} is there: {pod}", cast.pod(uid, pod)),
        Event::PodScheduled { pod, uid, node } => {
            format!("{} is scheduled to {node}", cast.pod(uid, pod))
        }
        Event::ContainerStarted { pod, uid, restarts, .. } => {
            let again = match restarts {
                0 => String::new(),
                n => format!(", restarted {}", times(u64::from(n.unsigned_abs()))),
            };
            format!("{}'s container runs{again}", cast.pod(uid, pod))
        }
        Event::PodReady { pod, uid, ready } => {
            format!("{} is {}ready", cast.pod(uid, pod), not(*ready))
        }
        Event::PodTerminating { pod, uid, grace_s } => {
            let grace = grace_s.map(|s| format!(", grace period {s} s")).unwrap_or_default();
            format!("{} is marked for deletion{grace}", cast.pod(uid, pod))
        }
        Event::ContainerTerminated { pod, uid, exit_code, reason, .. } => {
            let reason = reason.as_ref().map(|text| format!(" ({text})")).unwrap_or_default();
            format!("{}'s container has ended: exit code {exit_code}{reason}", cast.pod(uid, pod))
        }
        Event::ProcessExited { node, pod, uid, exit_code, .. } => {
            let code = exit_code.map(|code| format!(": exit code {code}")).unwrap_or_default();
            let pod = cast.pod(uid, pod);
            format!("{node}: the first process of {pod}'s container has ended{code}")
        }
        Event::PodGone { pod, uid } => format!("{} is gone from the API", cast.pod(uid, pod)),
        Event::Endpoint { pod, uid, ready, serving, terminating, .. } => format!(
            "{}'s endpoint: {}ready, {}serving{}",
            cast.pod(uid, pod),
            not(*ready),
            not(*serving),
            if *terminating { ", terminating" } else { "" }
        ),
        Event::EndpointGone { pod, uid, .. } => {
            format!("{}'s endpoint is no longer listed", cast.pod(uid, pod))
        }
        _ => return None,
    })
}

fn not(holds: bool) -> &'static str {
    if holds { "" } else { "not " }
}

fn of_the_app(event: &Event, cast: &Cast) -> Option<String> {
    Some(match event {
        Event::ProbeStarted { pod, uid, .. } => {
            format!("the app in {} starts", cast.pod(uid, pod))
        }
        Event::Sigterm { uid, .. } => format!("{} receives SIGTERM", cast.app(uid)),
        Event::ResetForced { uid, flows, .. } => {
            let flows = many(*flows, "connection");
            format!("{} has reset its {flows}, as its scenario says", cast.app(uid))
        }
        Event::DrainStarted { uid, flows, .. } => {
            format!("{} begins to drain, with {} open", cast.app(uid), many(*flows, "connection"))
        }
        Event::DrainEnded { uid, all_gone: true, .. } => {
            format!("{} has drained: no connection is left", cast.app(uid))
        }
        Event::DrainEnded { uid, flows, .. } => {
            let flows = many(*flows, "connection");
            format!("{}'s drain window has ended, with {flows} open", cast.app(uid))
        }
        Event::ProbeExiting { uid, code, .. } => {
            format!("{} says that it exits (code {code})", cast.app(uid))
        }
        Event::LogLost { uid, reason } => {
            format!("the log of {} could not be followed to its end: {reason}", cast.app(uid))
        }
        _ => return None,
    })
}

/// Its time is when the last of them was known.
fn of_dials(event: &Event, cast: &Cast) -> Option<String> {
    let Event::Dials { kind, from, to, count, .. } = event else { return None };
    let what = many(*count, &format!("new {} connection", kind.protocol.name()));
    let when = match count {
        1 => format!("started at {}", ms(from.ms())),
        _ => format!("started from {} to {}", grouped(from.ms(), 1), ms(to.ms())),
    };
    let by = match (&kind.by, &kind.sender) {
        (Some(by), _) => format!(" by {}", cast.process(by)),
        (None, Some(sender)) => format!(" by {}", cast.ip(*sender)),
        (None, None) => String::new(),
    };
    let error = kind.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
    let outcome = kind.outcome.name().replace('-', " ");
    Some(format!("{what}, {when}: {outcome}{by}{error}"))
}

fn of_a_node(event: &Event, cast: &Cast) -> Option<String> {
    Some(match event {
        Event::Rules { protocol, .. } => rules(event, &[*protocol], cast)?,
        Event::EvidenceGap { node, until, reason } => format!(
            "{node}: from here until {} this source may have missed something: {reason}",
            ms(until.ms())
        ),
        _ => return None,
    })
}

/// What a node does with new flows of one protocol, or of several for which it does the same.
pub(super) fn rules(event: &Event, protocols: &[Protocol], cast: &Cast) -> Option<String> {
    let Event::Rules { node, endpoints, reject, process, .. } = event else { return None };
    // Each protocol has a port of its own.
    let lead = |address: &SocketAddr| match protocols {
        [_] => cast.address(*address),
        _ => cast.ip(address.ip()),
    };
    let to: Vec<_> = endpoints.iter().map(lead).collect();
    let flows: Vec<_> = protocols.iter().map(|protocol| protocol.name()).collect();
    let flows = format!("new {} flows", flows.join(" and "));
    let what = match (to.as_slice(), reject) {
        ([], true) => format!("reject {flows}"),
        ([], false) => format!("say nothing of {flows}"),
        (to, false) => format!("lead {flows} to {}", to.join(" or ")),
        // iptables' table that leads comes before the one that rejects, and is committed after it.
        (to, true) => {
            format!("lead {flows} to {}, and would reject what they do not lead", to.join(" or "))
        }
    };
    Some(match process {
        Some(process) => format!("{process} on {node} commits rules that {what}"),
        None => format!("{node}'s rules {what}"),
    })
}

/// Its name in the record, in words.
pub(super) fn what(event: &Event) -> String {
    let name = serde_json::to_value(event).ok();
    let name = name.as_ref().and_then(|event| event.get("what")?.as_str());
    name.unwrap_or_default().replace('-', " ")
}

/// `what key=value …`, as the record has it.
pub(super) fn in_its_own_words(event: &Event) -> String {
    let Ok(serde_json::Value::Object(mut fields)) = serde_json::to_value(event) else {
        return String::new();
    };
    fields.remove("what");
    fields.into_iter().fold(what(event), |text, (name, value)| {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        format!("{text} {name}={value}")
    })
}
