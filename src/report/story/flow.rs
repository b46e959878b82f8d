//! A flow's story: its answers, silences and refusals, what the nodes' kernels told of it, and the
//! chain that led to its end, among what happened around it.

use super::cast::Cast;
use super::sentences::{in_its_own_words, many, ms, times};
use super::trial::{around, zero};
use super::{FORMAT, Line, Mark, Story, Told, facts, in_order, kernels};
use crate::observation::{Bound, EntryChange, Event, Identity, Observation};
use crate::record::Trial;
use crate::report::words;
use crate::timeline;
use crate::verdict::{Fate, FlowRecord, Link, LinkKind};

/// The story of the flow of this id; `None` where the trial has no such flow.
pub fn flow(trial: &Trial, id: &str) -> Option<Story> {
    let record = trial.flows.iter().find(|flow| flow.id == id)?;
    let cast = Cast::of(trial);
    let mut own: Vec<&Observation> =
        trial.observations.iter().filter(|o| o.event.flow() == Some(id)).collect();
    own.sort_by(|a, b| timeline::compare(a, b));
    let opened = own.first().map(|first| first.at.ms());
    // What was before it is the trial's story, but for what was in force when it began.
    let since = |told: &Told| match told.event {
        Some(Event::Rules { .. }) | None => true,
        Some(Event::WatchGap { until, .. } | Event::EvidenceGap { until, .. }) => {
            opened.is_none_or(|opened| until.ms() >= opened)
        }
        Some(_) => opened.is_none_or(|opened| told.line.t_ms >= opened),
    };
    let mut told = around(trial, &cast, Some(record.protocol));
    told.retain(since);
    if let Some(local) = own.iter().find_map(|o| kernels::opened_from(o)) {
        told.extend(kernels::of_flow(trial, record, local, &cast));
    }
    let mut ends = if own.is_empty() { of_record(record) } else { of_own(&own, &cast) };
    mark_end(&mut ends, record);
    told.extend(ends);
    number(&mut told, record, trial);
    let mut facts = facts::of_flow(trial, record);
    facts.extend(facts::of_trial(trial, &cast).into_iter().filter(|fact| fact.name != "flows"));
    Some(Story {
        format: FORMAT,
        trial: trial.id.clone(),
        flow: Some(record.clone()),
        title: format!("{id} of {}: {}", trial.id, facts::fate_and_time(record)),
        facts,
        zero: zero(trial),
        lines: in_order(told),
        groups: Vec::new(),
        warnings: trial.all_warnings().map(str::to_owned).collect(),
    })
}

/// What its socket saw.
fn of_own<'a>(events: &[&'a Observation], cast: &Cast) -> Vec<Told<'a>> {
    let mut told = Vec::new();
    let mut last: Option<(&Identity, f64)> = None;
    for &observation in events {
        let mut add = |t_ms, text| told.push(Told::at(observation, t_ms, text));
        match &observation.event {
            Event::Span { by, from, to, answers, .. } => {
                let (who, from, to) = (cast.process(by), from.ms(), to.ms());
                let after = match last {
                    Some((before, at)) => {
                        let whose = if before == by { "its own" } else { "the other's" };
                        format!(", {} after {whose} last answer", ms(from - at))
                    }
                    None => String::new(),
                };
                if *answers == 1 {
                    add(from, format!("{who} answers, once{after}"));
                } else {
                    add(from, format!("{who} answers from here on{after}"));
                    let answers = words::grouped(*answers as f64, 0);
                    add(to, format!("the last of these {answers} answers of {who}"));
                }
                last = Some((by, to));
            }
            Event::Silence { from, to, unanswered, .. } => {
                let asked = many(*unanswered, "heartbeat");
                let until = ms(to.ms());
                add(from.ms(), format!("silence from here until {until}: {asked} unanswered"));
            }
            event => add(observation.at.ms(), of_socket(event)),
        }
    }
    told
}

fn of_socket(event: &Event) -> String {
    let from = |sender: &Option<std::net::IpAddr>| {
        sender.map(|sender| format!(" from {sender}")).unwrap_or_default()
    };
    match event {
        Event::FlowOpened { local, remote, .. } => {
            format!("the flow is opened: {local} → {remote}")
        }
        Event::Refused { sender, icmp_type, icmp_code, until, count, .. } => {
            let what = match (icmp_type, icmp_code) {
                (Some(3), Some(3)) => "ICMP port unreachable".to_owned(),
                (Some(1), Some(4)) => "ICMPv6 port unreachable".to_owned(),
                (Some(kind), Some(code)) => format!("ICMP type {kind} code {code}"),
                _ => "connection refused".to_owned(),
            };
            format!("refused: {what}{}{}", from(sender), repeated(*count, until.ms()))
        }
        Event::Unreachable { sender, icmp_type, icmp_code, errno, until, count, .. } => {
            let what = match (icmp_type, icmp_code) {
                (Some(kind), Some(code)) => format!("ICMP type {kind} code {code}"),
                _ => format!("error {errno}"),
            };
            format!("unreachable: {what}{}{}", from(sender), repeated(*count, until.ms()))
        }
        Event::DroppedHere { since, count, .. } => format!(
            "its own socket here has dropped {} since {}",
            many(*count, "datagram"),
            ms(since.ms())
        ),
        Event::Bye { .. } => "the app announces the end (bye)".to_owned(),
        Event::Fin { .. } => "the other side closes (FIN)".to_owned(),
        Event::Reset { .. } => "the other side resets the connection (RST)".to_owned(),
        Event::TimedOut { .. } => "the kernel gives the connection up (timed out)".to_owned(),
        Event::FlowFailed { error, .. } => format!("it fails on this machine's side: {error}"),
        Event::FlowStopped { .. } => "the runner closes it: it had not ended by itself".to_owned(),
        other => in_its_own_words(other),
    }
}

/// `, 12 times until 287.0 ms`
fn repeated(count: u64, until: f64) -> String {
    if count == 1 { String::new() } else { format!(", {} until {}", times(count), ms(until)) }
}

/// What the record says of a flow of which no observation is there.
fn of_record<'a>(record: &FlowRecord) -> Vec<Told<'a>> {
    let bare = |t_ms, text| Told::bare(t_ms, Bound::Exact, None, text);
    let mut told = Vec::new();
    for span in &record.spans {
        told.push(bare(span.from_ms, format!("{} answers from here on", span.by.pod)));
        let answers = words::grouped(span.answers as f64, 0);
        told.push(bare(span.to_ms, format!("the last of these {answers} answers")));
    }
    let end = record.ended_ms.map(|end| bare(end, facts::meaning(record.fate).to_owned()));
    told.extend(end);
    told
}

/// The last of its own lines at the time of its end.
fn mark_end(told: &mut [Told], record: &FlowRecord) {
    let Some(end) = record.ended_ms else { return };
    // The first answer of another is its end, though the last one may be of the same instant.
    let mut at_end = told.iter_mut().filter(|told| same_time(told.line.t_ms, end));
    let line = if record.fate == Fate::Rehomed { at_end.next() } else { at_end.last() };
    if let Some(told) = line {
        told.line.mark = Mark::End;
    }
}

fn same_time(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-6
}

/// Numbers the lines that are links of the flow's chain; a link that no line tells of gets one.
fn number(told: &mut Vec<Told>, record: &FlowRecord, trial: &Trial) {
    let chain = record.cause.iter().flat_map(|cause| &cause.chain);
    for (index, link) in chain.enumerate() {
        let tells = |told: &&mut Told| {
            told.line.source == Some(link.source)
                && same_time(told.line.t_ms, link.t_ms)
                && told.event.is_some_and(|event| tells_of(event, link, trial))
        };
        match told.iter_mut().find(tells) {
            Some(told) => told.line.links.push(index + 1),
            None => {
                let Link { what, t_ms, bound, plus_minus_ms, source, ref node } = *link;
                let node = node.as_ref().map(|node| format!("{node}: ")).unwrap_or_default();
                let (text, mark) = (format!("{node}{}", words::link(what)), Mark::Event);
                let (source, links) = (Some(source), vec![index + 1]);
                let line = Line { t_ms, bound, plus_minus_ms, source, text, links, mark };
                told.push(Told { line, event: None });
            }
        }
    }
}

/// Whether an event of a link's time and source is the link: one look of a watch can tell of several
/// things.
fn tells_of(event: &Event, link: &Link, trial: &Trial) -> bool {
    let target = |uid: &str| trial.target.as_ref().is_some_and(|target| target.uid == uid);
    let at_its_node = |node: &String| link.node.as_ref().is_none_or(|of| of == node);
    let kind = match link.what {
        LinkKind::EndpointNotReady | LinkKind::EndpointNotServing => match event {
            Event::Endpoint { uid, .. } | Event::EndpointGone { uid, .. } => target(uid),
            _ => false,
        },
        LinkKind::ContainerExit => {
            matches!(event, Event::ContainerTerminated { uid, .. } if target(uid))
        }
        LinkKind::EntryDestroyed => {
            matches!(event, Event::Conntrack { change: EntryChange::Destroy, .. })
        }
        LinkKind::EntryMade => matches!(event, Event::Conntrack { change: EntryChange::New, .. }),
        _ => true,
    };
    let place = match event {
        Event::Rules { node, .. } | Event::Conntrack { node, .. } | Event::Packet { node, .. } => {
            at_its_node(node)
        }
        _ => true,
    };
    kind && place
}
