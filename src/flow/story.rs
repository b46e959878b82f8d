//! One flow's story: what happened on its socket becomes spans, silences and refusals.
//!
//! Takes instants on the runner's clock and what was met at them; emits observations. Knows
//! nothing of sockets. What it keeps does not grow with heartbeats.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::arrival::Met;
use crate::clock::Stamp;
use crate::observation::{Bound, Event, Identity, Observation, Sink, Source};

/// Refusals of more different kinds than this between two answers are not kept apart in full:
/// the oldest kind is emitted early.
const MAX_RUNS: usize = 4;

/// What has happened on a flow so far.
#[derive(Debug)]
pub struct Story {
    id: Arc<str>,
    silent_after_ns: i64,
    opened_ns: Option<i64>,
    first: Option<Arc<Identity>>,
    current: Option<Arc<Identity>>,
    span: Option<OpenSpan>,
    last_answer_ns: Option<i64>,
    /// When the app announced its close.
    bye_ns: Option<i64>,
    /// Heartbeats sent; the last one's sequence number.
    sent: u64,
    /// `sent` when the last answer arrived.
    sent_at_answer: u64,
    /// Refusals since the last answer, by kind.
    runs: Vec<Run>,
    failed: bool,
    end: Option<End>,
}

/// A span that has not ended.
#[derive(Debug)]
struct OpenSpan {
    by: Arc<Identity>,
    from_ns: i64,
    to_ns: i64,
    /// Of its first answer, and of its last one so far.
    precision: (Precision, Precision),
    answers: u64,
    first_sequence: u64,
    last_sequence: u64,
}

/// Refusals of one kind, without an answer in between.
#[derive(Debug)]
struct Run {
    refusal: Refusal,
    from_ns: i64,
    until_ns: i64,
    precision: Precision,
    count: u64,
}

/// How exact the times of an observation are: as the least exact of them.
#[derive(Clone, Copy, Debug)]
struct Precision {
    bound: Bound,
    plus_minus_ns: i64,
}

/// Refused or unreachable, and what is known about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The port is closed; else the host or network can't be reached, or it is prohibited.
    pub port: bool,
    /// Who sent the ICMP message.
    pub sender: Option<IpAddr>,
    /// The ICMP message's type.
    pub icmp_type: Option<u8>,
    /// The ICMP message's code.
    pub icmp_code: Option<u8>,
    /// What the kernel made of it.
    pub errno: i32,
}

/// How a flow ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The peer's FIN was read.
    Fin,
    /// The peer's RST was read.
    Reset,
    /// The kernel gave it up.
    TimedOut,
    /// It was refused, or the peer became unreachable.
    Refused(Refusal),
    /// It failed here.
    Failed(String),
    /// The runner stopped it.
    Stopped,
}

/// What became of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// It is part of a span.
    Yes,
    /// A copy of the one before.
    Duplicate,
    /// Of an instance that another one has already followed.
    Late,
}

impl Story {
    /// The story of a flow that has not been opened yet.
    pub fn new(id: Arc<str>, silent_after_ns: i64) -> Self {
        Self {
            id,
            silent_after_ns,
            opened_ns: None,
            first: None,
            current: None,
            span: None,
            last_answer_ns: None,
            bye_ns: None,
            sent: 0,
            sent_at_answer: 0,
            runs: Vec::new(),
            failed: false,
            end: None,
        }
    }

    /// The socket was bound and (TCP) connected.
    pub fn opened(&mut self, at_ns: i64, local: SocketAddr, remote: SocketAddr, sink: &Sink) {
        self.opened_ns = Some(at_ns);
        emit(sink, Met::done(at_ns), Event::FlowOpened { flow: self.flow(), local, remote });
    }

    /// The sequence number of the heartbeat to be sent next.
    pub fn next_sequence(&self) -> u64 {
        self.sent + 1
    }

    /// That heartbeat was sent.
    pub fn sent(&mut self) {
        self.sent += 1;
    }

    /// When the last answer arrived; the beginning of time where none has.
    pub fn last_answer_ns(&self) -> i64 {
        self.last_answer_ns.unwrap_or(i64::MIN)
    }

    /// Whether it has been refused since its last answer.
    pub fn is_refused(&self) -> bool {
        !self.runs.is_empty()
    }

    /// `by` answered the heartbeat `sequence`.
    pub fn answered(
        &mut self,
        met: Met,
        sequence: u64,
        by: &Arc<Identity>,
        sink: &Sink,
    ) -> Counted {
        // What arrived by two processors at once may be read in another order than it was stamped.
        let at_ns = met.at_ns.max(self.last_answer_ns());
        let same = self.span.as_ref().is_some_and(|span| Arc::ptr_eq(&span.by, by));
        if let Some(span) = &self.span {
            if same && sequence == span.last_sequence {
                return Counted::Duplicate;
            }
            if !same && sequence < span.first_sequence {
                return Counted::Late;
            }
        }
        self.emit_refusals(sink);
        let silence = self.silence_until(at_ns);
        if !same || silence.is_some() {
            self.emit_span(sink);
        }
        if let Some(from_ns) = silence {
            // Those before the one that is answered; what was sent after it is under way.
            let unanswered = sequence.saturating_sub(self.sent_at_answer + 1);
            self.emit_silence(from_ns, Met { at_ns, ..met }, unanswered, sink);
        }
        let span = self.span.get_or_insert_with(|| OpenSpan {
            by: Arc::clone(by),
            from_ns: at_ns,
            to_ns: at_ns,
            precision: (Precision::of(met), Precision::of(met)),
            answers: 0,
            first_sequence: sequence,
            last_sequence: sequence,
        });
        span.to_ns = at_ns;
        span.last_sequence = sequence;
        span.answers += 1;
        span.precision.1 = Precision::of(met);
        if !same {
            self.first.get_or_insert_with(|| Arc::clone(by));
            self.current = Some(Arc::clone(by));
        }
        self.last_answer_ns = Some(at_ns);
        self.sent_at_answer = self.sent;
        Counted::Yes
    }

    /// A refusal arrived; the flow goes on.
    pub fn refused(&mut self, met: Met, refusal: Refusal, sink: &Sink) {
        let at_ns = met.at_ns;
        if let Some(run) = self.runs.iter_mut().find(|run| run.refusal == refusal) {
            run.until_ns = at_ns.max(run.until_ns);
            run.precision = run.precision.and(Precision::of(met));
            run.count += 1;
            return;
        }
        if self.runs.len() == MAX_RUNS {
            let oldest = self.runs.remove(0);
            emit(sink, oldest.precision.at(oldest.from_ns), oldest.event(self.flow()));
        }
        let precision = Precision::of(met);
        self.runs.push(Run { refusal, from_ns: at_ns, until_ns: at_ns, precision, count: 1 });
    }

    /// Its own socket dropped `count` datagrams, some time after `since_ns`.
    pub fn dropped_here(&self, since_ns: i64, at_ns: i64, count: u64, sink: &Sink) {
        let event = Event::DroppedHere { flow: self.flow(), since: Stamp::runner(since_ns), count };
        let _ = sink.send(Observation::at_most(Stamp::runner(at_ns), Source::Counters, event));
    }

    /// The app announced that it is about to close.
    pub fn bye(&mut self, met: Met, sink: &Sink) {
        self.bye_ns = Some(met.at_ns);
        emit(sink, met, Event::Bye { flow: self.flow() });
    }

    /// Something failed here, and the flow goes on. Said once a flow.
    pub fn failed(&mut self, at_ns: i64, error: String, sink: &Sink) {
        if !std::mem::replace(&mut self.failed, true) {
            emit(sink, Met::done(at_ns), Event::FlowFailed { flow: self.flow(), error });
        }
    }

    /// The flow is over. Only the first end counts.
    pub fn ended(&mut self, met: Met, end: End, sink: &Sink) {
        if self.end.is_some() {
            return;
        }
        // What came by one packet with it was before it, and so it stays when both are converted
        // from stamps, each with an error of its own.
        let before_ns = self.bye_ns.unwrap_or(i64::MIN).max(self.last_answer_ns());
        let met = Met { at_ns: met.at_ns.max(before_ns), ..met };
        if let End::Refused(refusal) = end {
            self.refused(met, refusal, sink);
        }
        self.emit_refusals(sink);
        let silence = self.silence_until(met.at_ns);
        self.emit_span(sink);
        if let Some(from_ns) = silence {
            self.emit_silence(from_ns, met, self.sent - self.sent_at_answer, sink);
        }
        let flow = self.flow();
        let event = match end.clone() {
            End::Fin => Some(Event::Fin { flow }),
            End::Reset => Some(Event::Reset { flow }),
            End::TimedOut => Some(Event::TimedOut { flow }),
            End::Refused(_) => None,
            End::Failed(error) => Some(Event::FlowFailed { flow, error }),
            End::Stopped => Some(Event::FlowStopped { flow }),
        };
        if let Some(event) = event {
            emit(sink, met, event);
        }
        self.end = Some(end);
    }

    /// Whether it is over.
    pub fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    /// The flow's state for those who wait.
    pub fn state(&self, protocol: crate::observation::Protocol) -> super::FlowState {
        super::FlowState {
            id: Arc::clone(&self.id),
            protocol,
            first: self.first.clone(),
            current: self.current.clone(),
            last_answer: self.last_answer_ns.map(Stamp::runner),
            unanswered: self.sent - self.sent_at_answer,
            refusals: self.runs.iter().map(|run| run.count).sum(),
            failed: self.failed || matches!(self.end, Some(End::Failed(_))),
            ended: self.has_ended(),
        }
    }

    /// Whether it has been answered at all.
    pub fn was_answered(&self) -> bool {
        self.first.is_some()
    }

    /// What it met instead of an answer.
    pub fn why_not_answered(&self) -> super::NotAnswered {
        let why = match (&self.end, self.runs.last(), self.opened_ns) {
            (Some(End::Fin), ..) => "closed by the peer (FIN) before it answered".to_owned(),
            (Some(End::Reset), ..) => "reset by the peer before it answered".to_owned(),
            (Some(End::TimedOut), ..) => "timed out".to_owned(),
            (Some(End::Failed(error)), ..) => error.clone(),
            (Some(End::Refused(refusal)), ..) => refusal.text(),
            (Some(End::Stopped), ..) => "stopped before it was answered".to_owned(),
            (_, Some(run), _) => format!("{} ({} times)", run.refusal.text(), run.count),
            (_, None, None) => "not connected yet".to_owned(),
            (_, None, Some(_)) => format!("no answer to {} heartbeats", self.sent),
        };
        super::NotAnswered { flow: self.flow(), why }
    }

    fn flow(&self) -> String {
        self.id.to_string()
    }

    /// The beginning of the silence that `at_ns` ends, if it is long enough.
    fn silence_until(&self, at_ns: i64) -> Option<i64> {
        let from_ns = self.last_answer_ns.or(self.opened_ns)?;
        (at_ns - from_ns >= self.silent_after_ns).then_some(from_ns)
    }

    fn emit_silence(&self, from_ns: i64, until: Met, unanswered: u64, sink: &Sink) {
        let (from, to) = (Stamp::runner(from_ns), Stamp::runner(until.at_ns));
        emit(sink, until, Event::Silence { flow: self.flow(), from, to, unanswered });
    }

    fn emit_span(&mut self, sink: &Sink) {
        if let Some(span) = self.span.take() {
            let event = Event::Span {
                flow: self.flow(),
                by: Identity::clone(&span.by),
                from: Stamp::runner(span.from_ns),
                to: Stamp::runner(span.to_ns),
                answers: span.answers,
            };
            let (first, last) = span.precision;
            emit(sink, first.and(last).at(span.to_ns), event);
        }
    }

    fn emit_refusals(&mut self, sink: &Sink) {
        for run in std::mem::take(&mut self.runs) {
            emit(sink, run.precision.at(run.from_ns), run.event(self.flow()));
        }
    }
}

impl Precision {
    fn of(met: Met) -> Self {
        Self { bound: met.bound, plus_minus_ns: met.plus_minus_ns }
    }

    /// That of both.
    fn and(self, other: Self) -> Self {
        let bound = match (self.bound, other.bound) {
            (Bound::Exact, Bound::Exact) => Bound::Exact,
            _ => Bound::AtMost,
        };
        Self { bound, plus_minus_ns: self.plus_minus_ns.max(other.plus_minus_ns) }
    }

    fn at(self, at_ns: i64) -> Met {
        let Self { bound, plus_minus_ns } = self;
        Met { at_ns, bound, plus_minus_ns }
    }
}

impl Run {
    fn event(&self, flow: String) -> Event<Stamp> {
        let Refusal { port, sender, icmp_type, icmp_code, errno } = self.refusal;
        let (until, count) = (Stamp::runner(self.until_ns), self.count);
        if port {
            Event::Refused { flow, sender, icmp_type, icmp_code, until, count }
        } else {
            Event::Unreachable { flow, sender, icmp_type, icmp_code, errno, until, count }
        }
    }
}

impl Refusal {
    fn text(&self) -> String {
        let error = io::Error::from_raw_os_error(self.errno);
        let by = self.sender.map(|sender| format!(", says {sender}")).unwrap_or_default();
        format!("{error}{by}")
    }
}

/// Sends an observation; that nobody listens any more is no matter of the flow.
fn emit(sink: &Sink, met: Met, event: Event<Stamp>) {
    let at = Stamp::runner(met.at_ns);
    let mut seen = Observation::exact(at, Source::Flow, event);
    seen.bound = met.bound;
    seen.plus_minus_ms = Some(met.plus_minus_ns as f64 / 1e6);
    let _ = sink.send(seen);
}

#[cfg(test)]
#[path = "story_tests.rs"]
mod tests;
