//! What the dials of one protocol met becomes stretches of the same.
//!
//! Takes each dial's start and, in any order, what became of it; emits observations. Knows nothing
//! of sockets. What it keeps does not grow with dials, but for those that are not known yet.

use std::collections::VecDeque;
use std::sync::Arc;

use super::spread::Spread;
use crate::clock::Stamp;
use crate::flow::story::Refusal;
use crate::observation::{
    DialKind, DialOutcome, Event, Identity, Observation, Protocol, Sink, Source,
};

/// Dials of a kind make one stretch while no more than this many others (and this much time) lie
/// between two of them. Behind a Service of several pods they alternate by chance.
const APART: u64 = 32;
const APART_NS: i64 = 500_000_000;
/// So many stretches of a protocol are told apart; after that, dials of one kind are one stretch,
/// whatever lies between them.
const MAX_STRETCHES: usize = 500;

/// A dial that is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dial {
    /// When its SYN or datagram was sent.
    pub started_ns: i64,
    /// When it had connected (TCP).
    pub connected_ns: Option<i64>,
    /// When it was known what it met.
    pub known_ns: i64,
    pub met: Met,
}

/// What a dial met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Met {
    pub outcome: DialOutcome,
    pub by: Option<Arc<Identity>>,
    pub refusal: Option<Refusal>,
    pub error: Option<String>,
}

impl Met {
    /// Nothing is known but this.
    pub fn only(outcome: DialOutcome) -> Self {
        Self { outcome, by: None, refusal: None, error: None }
    }

    pub fn accepted(by: Arc<Identity>) -> Self {
        Self { by: Some(by), ..Self::only(DialOutcome::Accepted) }
    }

    pub fn refused(refusal: Refusal) -> Self {
        let outcome = if refusal.port { DialOutcome::Refused } else { DialOutcome::Unreachable };
        Self { refusal: Some(refusal), ..Self::only(outcome) }
    }

    pub fn failed_here(error: impl ToString) -> Self {
        Self { error: Some(error.to_string()), ..Self::only(DialOutcome::FailedHere) }
    }
}

/// The dials of one protocol, in the order of their starts.
#[derive(Debug)]
pub struct Ledger {
    protocol: Protocol,
    sink: Sink,
    /// Those that are not in a stretch yet; `None` while it is not known what one meets.
    waiting: VecDeque<Option<Dial>>,
    /// The number of the first of them: how many dials are in stretches.
    first: u64,
    /// Nothing goes into a stretch: a boundary is about to be told.
    held: bool,
    /// Dials that started then or later are of other stretches than those before.
    boundary_ns: Option<i64>,
    open: Vec<Stretch>,
    told: usize,
}

#[derive(Debug)]
struct Stretch {
    met: Met,
    from_ns: i64,
    to_ns: i64,
    known_ns: i64,
    /// The number of its last dial.
    last: u64,
    count: u64,
    connect: Spread,
    took: Spread,
}

impl Ledger {
    pub fn new(protocol: Protocol, sink: Sink) -> Self {
        Self {
            protocol,
            sink,
            waiting: VecDeque::new(),
            first: 0,
            held: false,
            boundary_ns: None,
            open: Vec::new(),
            told: 0,
        }
    }

    /// A dial starts; gives its number. They come in the order of their starts.
    pub fn begin(&mut self) -> u64 {
        self.waiting.push_back(None);
        self.first + self.waiting.len() as u64 - 1
    }

    /// It is known what the dial with this number met. Told once of each.
    pub fn known(&mut self, number: u64, dial: Dial) {
        let index = number.checked_sub(self.first).and_then(|index| usize::try_from(index).ok());
        if let Some(slot) = index.and_then(|index| self.waiting.get_mut(index)) {
            *slot = Some(dial);
        }
        self.settle();
    }

    /// Holds back what is known until [`Ledger::release`]: an instant is near that no stretch may
    /// reach across.
    pub fn hold(&mut self) {
        self.held = true;
    }

    /// The instant, if it came.
    pub fn release(&mut self, boundary_ns: Option<i64>) {
        self.held = false;
        self.boundary_ns = boundary_ns;
        self.settle();
    }

    /// Tells all that is known.
    pub fn finish(&mut self) {
        self.release(self.boundary_ns);
        self.tell_all();
    }

    fn settle(&mut self) {
        while !self.held
            && let Some(Some(dial)) = self.waiting.front_mut().map(Option::take)
        {
            self.waiting.pop_front();
            if self.boundary_ns.is_some_and(|boundary_ns| dial.started_ns >= boundary_ns) {
                self.boundary_ns = None;
                self.tell_all();
            }
            self.add(self.first, dial);
            self.first += 1;
        }
    }

    fn add(&mut self, number: u64, dial: Dial) {
        let bounded = self.told + self.open.len() >= MAX_STRETCHES;
        let is_over = |stretch: &Stretch| {
            !bounded && number - stretch.last > APART && dial.started_ns - stretch.to_ns > APART_NS
        };
        let found = self.open.iter().position(|stretch| stretch.met == dial.met);
        let goes_on = found.filter(|index| !is_over(&self.open[*index]));
        let index = goes_on.unwrap_or_else(|| {
            // Those that are over need not be looked through any more.
            let (over, open) = self.open.drain(..).partition::<Vec<_>, _>(is_over);
            self.open = open;
            over.into_iter().for_each(|stretch| self.tell(stretch));
            self.open.push(Stretch::new(&dial));
            self.open.len() - 1
        });
        self.open[index].add(number, &dial);
    }

    fn tell_all(&mut self) {
        for stretch in std::mem::take(&mut self.open) {
            self.tell(stretch);
        }
    }

    fn tell(&mut self, stretch: Stretch) {
        self.told += 1;
        let Met { outcome, by, refusal, error } = stretch.met;
        let kind = DialKind {
            protocol: self.protocol,
            outcome,
            by: by.map(|by| (*by).clone()),
            sender: refusal.and_then(|refusal| refusal.sender),
            icmp_type: refusal.and_then(|refusal| refusal.icmp_type),
            icmp_code: refusal.and_then(|refusal| refusal.icmp_code),
            error,
        };
        let event = Event::Dials {
            kind,
            from: Stamp::runner(stretch.from_ns),
            to: Stamp::runner(stretch.to_ns),
            count: stretch.count,
            connect: stretch.connect.times(),
            took: stretch.took.times(),
        };
        let known = Stamp::runner(stretch.known_ns);
        // The receiver may be gone: then nobody wants to know.
        let _ = self.sink.send(Observation::exact(known, Source::Flow, event));
    }
}

impl Stretch {
    /// A stretch for dials like this one, still without it.
    fn new(dial: &Dial) -> Self {
        Self {
            met: dial.met.clone(),
            from_ns: dial.started_ns,
            to_ns: dial.started_ns,
            known_ns: dial.known_ns,
            last: 0,
            count: 0,
            connect: Spread::default(),
            took: Spread::default(),
        }
    }

    fn add(&mut self, number: u64, dial: &Dial) {
        self.last = number;
        self.to_ns = dial.started_ns;
        self.known_ns = self.known_ns.max(dial.known_ns);
        self.count += 1;
        if let Some(connected_ns) = dial.connected_ns {
            self.connect.add(connected_ns - dial.started_ns);
        }
        self.took.add(dial.known_ns - dial.started_ns);
    }
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;
