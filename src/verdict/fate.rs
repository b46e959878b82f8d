//! A flow's fate, read off its events.
//!
//! Takes one flow's events in the order of time; gives its record without the cause. Knows nothing
//! of endpoints, containers or causes. The rules, the first that holds:
//!
//! 1. TCP: FIN: drained if a `bye` came before it, else closed. RST: reset. Whichever came first;
//!    what comes after it changes nothing.
//! 2. Another pod or process answers than the first one: rehomed, at its first answer.
//! 3. The flow failed on our side: not measured.
//! 4. A refusal or an unreachable after the last answer: that, at the first of them.
//! 5. A silence after the last answer, a connection that the kernel gave up, or an end of the
//!    observation that is `silent_after` or more after the last answer: silent, at the last answer.
//! 6. Answers, and the observation's end is known: survived. Else not measured.
//!
//! What our own side dropped, or did not send, is no silence of UDP: a flow that would be silent is
//! not measured where its socket or a pod's dropped datagrams between its last answer and the end
//! of the silence, or where no heartbeat was sent in that time.
//!
//! In an aborted trial nobody waited for an end, so that nothing survived: not measured.

use std::cmp::Ordering;
use std::time::Duration;

use super::world::{Drops, Timed, ms_between};
use super::{Fate, FlowRecord, FlowSpan, Outcome};
use crate::clock::Ms;
use crate::observation::Protocol;
use crate::observation::{Event, Identity, Observation};

/// One flow's events in the order of time.
#[derive(Debug)]
pub(super) struct Story<'a> {
    pub id: &'a str,
    pub protocol: Protocol,
    pub events: Vec<&'a Observation>,
    /// By their first answer.
    pub spans: Vec<Span<'a>>,
}

/// A stretch in which one instance answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span<'a> {
    pub by: &'a Identity,
    pub from: Ms,
    pub to: Ms,
    pub answers: u64,
}

/// A fate, and what it was read off.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ending<'a> {
    pub fate: Fate,
    /// `None` for a flow that survived or was not measured.
    pub time: Option<Timed>,
    /// The event that decided, where it was one.
    pub by: Option<&'a Observation>,
    /// Why a silence is not called one.
    pub untold: Option<Untold<'a>>,
}

/// Why a silence may be our own doing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Untold<'a> {
    /// Datagrams were dropped by our side.
    Dropped(Drops<'a>),
    /// No heartbeat was sent in it.
    NotAsked,
}

/// What a flow's end is read by besides its own events.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame<'a> {
    pub silent_after: Duration,
    pub outcome: Outcome,
    /// When the observation ended.
    pub ended: Option<Ms>,
    /// What pods' sockets dropped.
    pub drops: &'a [Drops<'a>],
}

/// The protocol that a flow's id names.
pub(super) fn protocol(id: &str) -> Protocol {
    if id.starts_with("udp") { Protocol::Udp } else { Protocol::Tcp }
}

/// `tcp-2` before `tcp-10`: by the text before the last number, then by the number.
pub(super) fn natural(a: &str, b: &str) -> Ordering {
    fn split(id: &str) -> (&str, Option<u64>) {
        let text = id.trim_end_matches(|c: char| c.is_ascii_digit());
        (text, id[text.len()..].parse().ok())
    }
    split(a).cmp(&split(b)).then_with(|| a.cmp(b))
}

impl<'a> Story<'a> {
    /// From a flow's events in the order of time.
    pub fn new(id: &'a str, events: Vec<&'a Observation>) -> Self {
        let mut spans: Vec<_> = events.iter().filter_map(|o| span(&o.event)).collect();
        spans.sort_by_key(|span| (span.from, span.to));
        Self { id, protocol: protocol(id), events, spans }
    }

    /// The first answer by another than the first who answered.
    pub fn other(&self) -> Option<Span<'a>> {
        let first = self.spans.first()?;
        self.spans.iter().find(|span| !same(span.by, first.by)).copied()
    }

    /// The last answer of the first who answered, before another did.
    pub fn last_of_first(&self) -> Option<Ms> {
        let first = self.spans.first()?;
        let other = self.other().map_or(Ms(i64::MAX), |span| span.from);
        let own = self.spans.iter().filter(|s| same(s.by, first.by) && s.from < other);
        own.map(|span| span.to).max()
    }

    /// Whether the app has announced its close by then.
    pub fn said_bye(&self, before: &Observation) -> bool {
        let earlier = self.events.iter().take_while(|o| !std::ptr::eq(**o, before));
        earlier.into_iter().any(|o| matches!(o.event, Event::Bye { .. }))
    }

    /// The fate and what decided it.
    pub fn ending(&self, frame: Frame<'a>) -> Ending<'a> {
        let ending = self.seen(frame);
        match ending.fate {
            Fate::Silent if self.protocol == Protocol::Udp => match self.untold(&ending, frame) {
                None => ending,
                untold => Ending { untold, ..Ending::none(Fate::NotMeasured) },
            },
            Fate::Survived if frame.outcome == Outcome::Aborted => Ending::none(Fate::NotMeasured),
            _ => ending,
        }
    }

    /// What of our own doing may be all that there is to a silence.
    fn untold(&self, silent: &Ending<'a>, frame: Frame<'a>) -> Option<Untold<'a>> {
        let from = silent.time?.at;
        let mut until = frame.ended.unwrap_or(Ms(i64::MAX));
        if let Some(Event::Silence { to, unanswered, .. }) = silent.by.map(|by| &by.event) {
            until = *to;
            if *unanswered == 0 {
                return Some(Untold::NotAsked);
            }
        }
        let here = self.events.iter().filter_map(|o| match &o.event {
            Event::DroppedHere { flow, since, count } => {
                Some(Drops { by: flow, from: *since, until: o.at, count: *count })
            }
            _ => None,
        });
        let mut all = here.chain(frame.drops.iter().copied());
        all.find(|drops| drops.may_lie_in(from, until)).map(Untold::Dropped)
    }

    fn seen(&self, frame: Frame<'a>) -> Ending<'a> {
        let mut failed = false;
        let mut given_up = None;
        for &observation in &self.events {
            match observation.event {
                Event::Fin { .. } if self.said_bye(observation) => {
                    return Ending::at(Fate::Drained, observation);
                }
                Event::Fin { .. } => return Ending::at(Fate::Closed, observation),
                Event::Reset { .. } => return Ending::at(Fate::Reset, observation),
                Event::TimedOut { .. } => {
                    given_up = Some(observation);
                    break;
                }
                Event::FlowFailed { .. } => {
                    failed = true;
                    break;
                }
                _ => {}
            }
        }
        if let Some(other) = self.other() {
            let ended = |o: &&&Observation| span(&o.event).is_some_and(|s| s.from == other.from);
            let by = self.events.iter().find(ended).copied();
            let mut time = exact(by, other.from);
            time.bound = by.map_or(time.bound, |by| by.bound);
            let time = Some(time);
            return Ending { fate: Fate::Rehomed, time, by, untold: None };
        }
        if failed {
            return Ending::none(Fate::NotMeasured);
        }
        let last = self.spans.iter().map(|span| span.to).max();
        self.after_the_last_answer(last, given_up, frame)
    }

    fn after_the_last_answer(
        &self,
        last: Option<Ms>,
        given_up: Option<&'a Observation>,
        frame: Frame<'a>,
    ) -> Ending<'a> {
        let after = |at: Ms| last.is_none_or(|last| at >= last);
        let until = |o: &&&'a Observation| !given_up.is_some_and(|end| std::ptr::eq(**o, end));
        for &observation in self.events.iter().take_while(until).filter(|o| after(o.at)) {
            match observation.event {
                Event::Refused { .. } => return Ending::at(Fate::Refused, observation),
                Event::Unreachable { .. } => return Ending::at(Fate::Unreachable, observation),
                _ => {}
            }
        }
        let silence = self.events.iter().find_map(|&o| match o.event {
            Event::Silence { from, to, .. } if after(from) && to > from => Some((from, o)),
            _ => None,
        });
        if let Some((from, by)) = silence {
            let time = Some(exact(Some(by), last.unwrap_or(from)));
            return Ending { fate: Fate::Silent, time, by: Some(by), untold: None };
        }
        if let Some(by) = given_up {
            let time = Some(exact(Some(by), last.unwrap_or(by.at)));
            return Ending { fate: Fate::Silent, time, by: Some(by), untold: None };
        }
        let stopped = self.events.iter().find(|o| matches!(o.event, Event::FlowStopped { .. }));
        let end = stopped.map(|o| o.at).or(frame.ended);
        match (last, end) {
            (Some(last), Some(end))
                if ms_between(end, last) >= frame.silent_after.as_secs_f64() * 1e3 =>
            {
                let time = Some(exact(None, last));
                Ending { fate: Fate::Silent, time, by: None, untold: None }
            }
            (Some(_), Some(_)) => Ending::none(Fate::Survived),
            _ => Ending::none(Fate::NotMeasured),
        }
    }

    /// The record, without a cause.
    pub fn record(&self, ending: &Ending) -> FlowRecord {
        let rehomed = ending.fate == Fate::Rehomed;
        let outage = self.other().zip(self.last_of_first()).filter(|_| rehomed);
        let refusals = self.events.iter().filter_map(|o| match o.event {
            Event::Refused { until, count, .. } if until >= Ms(0) => Some(count),
            _ => None,
        });
        FlowRecord {
            id: self.id.to_owned(),
            protocol: self.protocol,
            fate: ending.fate,
            ended_ms: ending.time.map(|time| time.at.ms()),
            spans: self.spans.iter().map(Span::record).collect(),
            outage_ms: outage.map(|(other, last)| ms_between(other.from, last)),
            refusals: refusals.fold(0, u64::saturating_add),
            cause: None,
        }
    }

    /// What befell it before the trigger, once it had been answered: settle should have seen none
    /// of it.
    pub fn early_trouble(&self, silent_after: Duration) -> Option<&'static str> {
        let answered = self.spans.first()?.from;
        let silent_after = Ms::from_ms(silent_after.as_secs_f64() * 1e3);
        let switched = self.other().filter(|span| span.from < Ms(0)).map(|_| "answered by another");
        let trouble = self.events.iter().filter(|o| o.at >= answered).find_map(|o| match o.event {
            // A silence that began before the trigger is one only once it has lasted.
            Event::Silence { from, .. } if from.0.saturating_add(silent_after.0) < 0 => {
                Some("silent")
            }
            _ if o.at >= Ms(0) => None,
            Event::Refused { .. } => Some("refused"),
            Event::Unreachable { .. } => Some("unreachable"),
            Event::Fin { .. } => Some("closed"),
            Event::Reset { .. } => Some("reset"),
            Event::TimedOut { .. } => Some("given up by the kernel"),
            _ => None,
        });
        trouble.or(switched)
    }
}

impl<'a> Ending<'a> {
    fn none(fate: Fate) -> Self {
        Self { fate, time: None, by: None, untold: None }
    }

    fn at(fate: Fate, by: &'a Observation) -> Self {
        Self { fate, time: Some(Timed::of(by)), by: Some(by), untold: None }
    }
}

impl Span<'_> {
    fn record(&self) -> FlowSpan {
        let (from_ms, to_ms) = (self.from.ms(), self.to.ms());
        FlowSpan { by: self.by.clone(), from_ms, to_ms, answers: self.answers }
    }
}

/// The same process of the same pod.
fn same(a: &Identity, b: &Identity) -> bool {
    a.uid == b.uid && a.instance == b.instance
}

/// A time within an event, as exact as the event's own clock.
fn exact(by: Option<&Observation>, at: Ms) -> Timed {
    let plus_minus_ms = by.map_or(Some(0.0), |by| by.plus_minus_ms);
    Timed { at, bound: crate::observation::Bound::Exact, plus_minus_ms }
}

fn span(event: &Event) -> Option<Span<'_>> {
    match event {
        Event::Span { by, from, to, answers, .. } => {
            Some(Span { by, from: *from, to: *to, answers: *answers })
        }
        _ => None,
    }
}
