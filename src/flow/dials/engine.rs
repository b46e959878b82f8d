//! The thread that makes all dials: when one is due, which socket is ready, who has waited too long.
//!
//! Takes the specs and owns the sockets; a dial's own part is in [`super::attempt`], what is told of
//! dials in [`super::ledger`].

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::os::fd::AsFd;
use std::sync::Arc;

use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};

use super::attempt::Attempt;
use super::ledger::{Dial, Ledger, Met};
use super::ports::Ports;
use super::{DialSpec, DialsState};
use crate::clock::{Stamp, monotonic_ns};
use crate::flow::speakers::Speakers;
use crate::observation::{DialOutcome, Identity, Sink};

/// The most lines. In epoll a dial is known by its number times this, and its line's index.
const LINES: u64 = 2;
/// Dials made in one go, before what has arrived is read.
const AT_ONCE: usize = 32;

/// All dials and what they share.
#[derive(Debug)]
pub struct Core {
    lines: Vec<Line>,
    shared: Shared,
}

#[derive(Debug)]
struct Shared {
    epoll: Arc<Epoll>,
    speakers: Speakers,
    ports: Ports,
    /// In frames, above a dial's number: it only has to differ from earlier ones'.
    run: u64,
    buffer: Vec<u8>,
}

/// The dials of one spec.
#[derive(Debug)]
struct Line {
    index: u64,
    spec: DialSpec,
    timeout_ns: i64,
    interval_ns: i64,
    /// When the next one is due; `None` once no more are made.
    next_ns: Option<i64>,
    /// By their numbers, and so in the order of their starts.
    under_way: BTreeMap<u64, Attempt>,
    ledger: Ledger,
    state: DialsState,
}

impl Core {
    /// No dial made yet. `specs` are at most two: one a protocol.
    pub fn new(specs: Vec<DialSpec>, sink: &Sink, epoll: Arc<Epoll>) -> Self {
        // By the thread that serves, which may stand in another network namespace; before the first dial
        // is due, since it takes a while beside thousands of flows.
        let ports = Ports::here();
        let start_ns = monotonic_ns();
        let run = RandomState::new().hash_one(start_ns) & !u64::from(u32::MAX);
        let count = specs.len() as i64;
        let line = |(index, spec): (usize, DialSpec)| {
            let interval_ns = 1_000_000_000 / i64::from(spec.per_second.get());
            Line {
                index: index as u64,
                timeout_ns: i64::try_from(spec.timeout.as_nanos()).unwrap_or(i64::MAX / 4),
                interval_ns,
                // Not in step with each other.
                next_ns: Some(start_ns + interval_ns * index as i64 / count),
                under_way: BTreeMap::new(),
                ledger: Ledger::new(spec.protocol, sink.clone()),
                state: DialsState::new(spec.protocol),
                spec,
            }
        };
        let lines = specs.into_iter().take(LINES as usize).enumerate().map(line).collect();
        let speakers = Speakers::default();
        let shared = Shared { epoll, speakers, ports, run, buffer: vec![0; 4 << 10] };
        Self { lines, shared }
    }

    /// When something is due next, on the runner's clock.
    pub fn next_due(&self) -> Option<i64> {
        let due = |line: &Line| line.next_ns.into_iter().chain(line.deadline()).min();
        self.lines.iter().filter_map(due).min()
    }

    /// Whether no more dials are made and all are known.
    pub fn is_done(&self) -> bool {
        self.lines.iter().all(|line| line.next_ns.is_none() && line.under_way.is_empty())
    }

    /// A dial's socket is ready.
    pub fn ready(&mut self, token: u64) {
        if let Some(line) = self.lines.get_mut((token % LINES) as usize) {
            line.ready(token / LINES, &mut self.shared);
        }
    }

    /// Ends dials that have waited too long, makes those that are due. Where `more` sockets may be ready
    /// none is ended: its answer may have arrived in time, unread.
    pub fn tick(&mut self, more: bool) {
        for line in &mut self.lines {
            if !more {
                line.end_late();
            }
            line.make_due(&mut self.shared);
        }
    }

    /// Nothing is told until [`Core::release`].
    pub fn hold(&mut self) {
        self.lines.iter_mut().for_each(|line| line.ledger.hold());
    }

    /// Stretches of dials end at this instant, if there is one.
    pub fn release(&mut self, boundary_ns: Option<i64>) {
        self.lines.iter_mut().for_each(|line| line.ledger.release(boundary_ns));
    }

    /// No more dials are made. Those under way are waited for, or given up.
    pub fn stop(&mut self, wait: bool) {
        for line in &mut self.lines {
            line.next_ns = None;
            while !wait && let Some((number, attempt)) = line.under_way.pop_first() {
                let met = Met::only(DialOutcome::Unfinished);
                line.known(number, &attempt, monotonic_ns(), met);
            }
        }
    }

    /// Tells what has not been told yet.
    pub fn finish(&mut self) {
        self.lines.iter_mut().for_each(|line| line.ledger.finish());
    }

    /// What each protocol's dials have met so far.
    pub fn states(&self) -> Vec<DialsState> {
        let state = |line: &Line| DialsState {
            oldest_under_way: line
                .under_way
                .first_key_value()
                .map(|(_, a)| Stamp::runner(a.started_ns)),
            ..line.state.clone()
        };
        self.lines.iter().map(state).collect()
    }
}

impl Line {
    /// When the oldest dial under way has waited too long. All wait equally long.
    fn deadline(&self) -> Option<i64> {
        let (_, oldest) = self.under_way.first_key_value()?;
        Some(oldest.started_ns.saturating_add(self.timeout_ns))
    }

    fn end_late(&mut self) {
        let now_ns = monotonic_ns();
        while self.deadline().is_some_and(|deadline_ns| deadline_ns <= now_ns)
            && let Some((number, attempt)) = self.under_way.pop_first()
        {
            let met = attempt.timed_out();
            self.known(number, &attempt, now_ns, met);
        }
    }

    fn make_due(&mut self, shared: &mut Shared) {
        for _ in 0..AT_ONCE {
            let now_ns = monotonic_ns();
            let Some(due_ns) = self.next_ns.filter(|due_ns| *due_ns <= now_ns) else { return };
            let late_ns = now_ns - due_ns;
            let skipped = late_ns / self.interval_ns;
            self.state.skipped += skipped.cast_unsigned();
            self.state.max_late_ns = self.state.max_late_ns.max(late_ns);
            self.next_ns = Some(due_ns + (skipped + 1) * self.interval_ns);
            self.make(shared);
        }
    }

    fn make(&mut self, shared: &mut Shared) {
        let number = self.ledger.begin();
        self.state.made += 1;
        let Shared { epoll, ports, run, .. } = shared;
        let DialSpec { protocol, remote, .. } = self.spec;
        let begun_ns = monotonic_ns();
        let frame = *run | (number * LINES + self.index) & u64::from(u32::MAX);
        let watched = Attempt::start(protocol, remote, frame, ports).and_then(|attempt| {
            let event = EpollEvent::new(attempt.interest(), number * LINES + self.index);
            match epoll.add(attempt.as_fd(), event) {
                Ok(()) => Ok(attempt),
                Err(error) => Err((monotonic_ns(), Met::failed_here(error))),
            }
        });
        match watched {
            Ok(attempt) => drop(self.under_way.insert(number, attempt)),
            Err((known_ns, met)) => {
                let dial = Dial { started_ns: begun_ns, connected_ns: None, known_ns, met };
                self.over(number, dial);
            }
        }
    }

    fn ready(&mut self, number: u64, shared: &mut Shared) {
        // It may have been given up earlier in the same round.
        let Some(attempt) = self.under_way.get_mut(&number) else { return };
        let Shared { epoll, speakers, buffer, .. } = shared;
        let token = number * LINES + self.index;
        let read_next = |fd: std::os::fd::BorrowedFd<'_>| {
            Ok(epoll.modify(fd, &mut EpollEvent::new(EpollFlags::EPOLLIN, token))?)
        };
        let Some((known_ns, met)) = attempt.ready(speakers, buffer, read_next) else { return };
        if let Some(attempt) = self.under_way.remove(&number) {
            self.known(number, &attempt, known_ns, met);
        }
    }

    fn known(&mut self, number: u64, attempt: &Attempt, known_ns: i64, met: Met) {
        let Attempt { started_ns, connected_ns, .. } = *attempt;
        self.over(number, Dial { started_ns, connected_ns, known_ns, met });
    }

    fn over(&mut self, number: u64, dial: Dial) {
        self.state.count(&dial);
        self.ledger.known(number, dial);
    }
}

impl DialsState {
    fn count(&mut self, dial: &Dial) {
        let took_ns = dial.known_ns - dial.started_ns;
        match (dial.met.outcome, &dial.met.by) {
            (DialOutcome::Accepted, Some(by)) => {
                self.accepted += 1;
                self.slowest_ns = self.slowest_ns.max(took_ns);
                if !self.by.iter().any(|known: &Arc<Identity>| known == by) {
                    self.by.push(Arc::clone(by));
                }
            }
            (DialOutcome::FailedHere, _) => {
                self.failed_here += 1;
                self.first_failed_here =
                    self.first_failed_here.take().or_else(|| dial.met.error.clone());
            }
            (outcome, _) if outcome.is_failure() => {
                self.failed += 1;
                self.first_failure.get_or_insert_with(|| describe(dial));
                let started = Stamp::runner(dial.started_ns);
                if self.last_failed.as_ref().is_none_or(|last| *last < started) {
                    self.last_failed = Some(started);
                }
            }
            _ => {}
        }
    }
}

/// `refused by 10.244.1.1 after 0.4 ms`
fn describe(dial: &Dial) -> String {
    let outcome = dial.met.outcome.name();
    let sender = dial.met.refusal.and_then(|refusal| refusal.sender);
    let sender = sender.map(|sender| format!(" by {sender}")).unwrap_or_default();
    let took_ms = (dial.known_ns - dial.started_ns) as f64 / 1e6;
    format!("{outcome}{sender} after {took_ms:.1} ms")
}
