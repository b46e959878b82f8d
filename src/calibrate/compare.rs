//! Reported instants against packets: the errors, by kind of instant.
//!
//! Takes trials and what passed for their flows; gives figures. An instant whose packet was not
//! found is counted, never guessed. Pure.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::Method;
use super::provider::Heard;
use super::wire::{Ends, Passed, Wire};
use crate::config::Scenario;
use crate::observation::{Event, Observation, Protocol};
use crate::record::{InstantError, Load, Trial};

/// A flow may be opened this long before its opening is told, nanoseconds: ports are taken again,
/// but not so soon.
const BEFORE_NS: i64 = 100_000_000;

/// The errors of some trials, by kind of instant.
#[derive(Debug, Default)]
pub struct Errors {
    kinds: BTreeMap<&'static str, Kind>,
    trials: u32,
}

/// The errors of one kind of instant.
#[derive(Debug, Default)]
struct Kind {
    /// Reported less packet, nanoseconds.
    errors: Vec<i64>,
    unmatched: usize,
}

/// One flow of a trial, as it was reported; times in nanoseconds since boot.
struct Reported<'a> {
    ends: Ends,
    opened_ns: i64,
    events: Vec<(i64, &'a Event)>,
}

impl Errors {
    /// Adds a trial's instants. A trial that does not tell its zero, or its target, has none.
    pub fn add(&mut self, trial: &Trial, heard: &Heard) {
        let wire = &heard.wire;
        let (Some(zero_ns), Some(target)) = (trial.zero_ns, &trial.target) else { return };
        self.trials += 1;
        let ended = |o: &&Observation| matches!(o.event, Event::ObservationEnded { .. });
        let end_ns = trial.observations.iter().find(ended).map_or(i64::MAX, |o| zero_ns + o.at.0);
        let sampled = |flow: &Reported<'_>| heard.method.compares(flow.ends.client.port());
        for flow in reported(&trial.observations, zero_ns).into_iter().filter(sampled) {
            let life = flow.opened_ns - BEFORE_NS..=end_ns;
            let passed = wire.of(&flow.ends).map(|passed| passed.within(&life));
            self.compare(&flow, &target.instance, wire, &passed.unwrap_or_default(), zero_ns);
        }
    }

    fn compare(
        &mut self,
        flow: &Reported<'_>,
        target: &str,
        wire: &Wire,
        passed: &Passed,
        zero_ns: i64,
    ) {
        let tcp = flow.ends.protocol == Protocol::Tcp;
        let name = |of_tcp, of_udp| if tcp { of_tcp } else { of_udp };
        let mut spans = BTreeMap::<&str, (i64, i64)>::new();
        let mut refusals: Option<(i64, i64, u64)> = None;
        for &(at_ns, event) in &flow.events {
            match event {
                Event::Span { by, from, to, .. } => {
                    let (from, to) = (zero_ns + from.0, zero_ns + to.0);
                    let span = spans.entry(&by.instance).or_insert((from, to));
                    *span = (span.0.min(from), span.1.max(to));
                }
                Event::Bye { .. } => self.error("tcp-bye", at_ns, passed.byes.first()),
                Event::Fin { .. } => self.error("tcp-fin", at_ns, passed.fins.first()),
                Event::Reset { .. } => self.error("tcp-reset", at_ns, passed.resets.first()),
                Event::Refused { until, count, .. } | Event::Unreachable { until, count, .. }
                    if !tcp =>
                {
                    let until = zero_ns + until.0;
                    let (first, last, all) = refusals.unwrap_or((at_ns, until, 0));
                    refusals = Some((first.min(at_ns), last.max(until), all + count));
                }
                _ => {}
            }
        }
        let of_target = wire.answers(passed, target);
        let others = spans.keys().filter(|instance| **instance != target);
        let next =
            others.filter_map(|other| wire.answers(passed, other)).map(|(first, _)| first).min();
        for (instance, (from, to)) in spans {
            let answers = wire.answers(passed, instance);
            if instance != target {
                let first = answers.map(|(first, _)| first);
                self.error("udp-replacement-first-answer", from, first.as_ref());
                continue;
            }
            let first = answers.map(|(first, _)| first);
            self.error(name("tcp-first-answer", "udp-first-answer"), from, first.as_ref());
            // An answer that another instance's has overtaken is not counted in its span.
            let in_order = |last: &i64| next.is_none_or(|next| *last < next);
            let last = answers.map(|(_, last)| last).filter(in_order);
            self.error(name("tcp-last-answer", "udp-last-answer"), to, last.as_ref());
        }
        if let Some((first, last, count)) = refusals {
            // Those before the first answer are the opening's, and of no flow that was held.
            let held = |at: &&i64| of_target.is_none_or(|(first, _)| **at >= first);
            let all: Vec<_> = passed.refusals.iter().filter(held).collect();
            let whole = all.len() as u64 == count;
            self.error("udp-first-refusal", first, all.first().copied());
            self.error("udp-last-refusal", last, all.last().copied().filter(|_| whole));
        }
    }

    fn error(&mut self, kind: &'static str, reported_ns: i64, packet_ns: Option<&i64>) {
        let kind = self.kinds.entry(kind).or_default();
        match packet_ns {
            Some(packet_ns) => kind.errors.push(reported_ns - packet_ns),
            None => kind.unmatched += 1,
        }
    }

    /// The figures, under a scenario's load.
    pub fn load(self, config: &Scenario) -> Load {
        let flows = config.flows.tcp.max(config.flows.udp);
        let method = Method::of(flows);
        Load {
            flows,
            one_in: method.one_in(),
            enter_by: method.enter_by().to_owned(),
            heartbeats_a_second: config.heartbeats_a_second(),
            trials: self.trials,
            instants: self.kinds.iter().filter_map(|(name, kind)| kind.figures(name)).collect(),
        }
    }
}

impl Kind {
    /// `None` where nothing could be compared.
    fn figures(&self, name: &str) -> Option<InstantError> {
        let mut sizes: Vec<i64> = self.errors.iter().map(|error| error.abs()).collect();
        sizes.sort_unstable();
        let ms = |ns: i64| ns as f64 / 1e6;
        // The nearest rank: a value that was measured.
        let of_100 = |n: usize| sizes.get((sizes.len() * n).div_ceil(100).max(1) - 1).copied();
        Some(InstantError {
            instant: name.to_owned(),
            n: sizes.len(),
            unmatched: self.unmatched,
            median_ms: ms(of_100(50)?),
            p99_ms: ms(of_100(99)?),
            max_ms: ms(*sizes.last()?),
            early_ms: ms(self.errors.iter().map(|error| -error).max()?.max(0)),
        })
    }
}

/// The flows of a trial, with their events.
fn reported(observations: &[Observation], zero_ns: i64) -> Vec<Reported<'_>> {
    let mut flows = BTreeMap::<&str, Reported<'_>>::new();
    let opened = |o: &Observation| -> Option<(Ends, i64)> {
        let Event::FlowOpened { flow, local, remote } = &o.event else { return None };
        let protocol = if flow.starts_with("udp") { Protocol::Udp } else { Protocol::Tcp };
        let (client, remote): (SocketAddr, SocketAddr) = (*local, *remote);
        Some((Ends { protocol, client, remote }, zero_ns + o.at.0))
    };
    for observation in observations {
        let Some(id) = observation.event.flow() else { continue };
        if let Some((ends, opened_ns)) = opened(observation) {
            flows.insert(id, Reported { ends, opened_ns, events: Vec::new() });
        }
    }
    for observation in observations {
        let flow = observation.event.flow().and_then(|id| flows.get_mut(id));
        if let Some(flow) = flow {
            flow.events.push((zero_ns + observation.at.0, &observation.event));
        }
    }
    flows.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figures_are_of_errors_without_their_sign_and_ranks_that_were_measured() {
        let errors = (1..=200).map(|n| if n == 7 { -n } else { n } * 1_000_000).collect();
        let kind = Kind { errors, unmatched: 3 };
        let figures = kind.figures("tcp-fin").unwrap();
        assert_eq!((figures.n, figures.unmatched), (200, 3));
        assert_eq!((figures.median_ms, figures.p99_ms, figures.max_ms), (100.0, 198.0, 200.0));
        assert_eq!(figures.early_ms, 7.0);
        assert_eq!(Kind { errors: vec![5], unmatched: 0 }.figures("x").unwrap().p99_ms, 5e-6);
        assert_eq!(Kind { errors: vec![], unmatched: 9 }.figures("x"), None);
    }
}
