//! The timeline: what was seen, on whichever clock, in one order on one clock.
//!
//! Takes observations as they were emitted, the trigger's instant and how the clocks relate; gives
//! observations in milliseconds from the trigger, sorted. Knows clocks, not what the events mean.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use crate::clock::ClockRelation;
use crate::clock::{Clock, Ms, Stamp};
use crate::observation::{Bound, Event, Observation, Seen};

/// Observations on the trial's time, and what could not be placed on it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Placed {
    /// In the order of time; of equal times, an order that does not depend on arrival.
    pub observations: Vec<Observation>,
    /// Which observations were left out, and why.
    pub warnings: Vec<String>,
}

/// Places each observation on the trial's time: zero is the trigger.
///
/// A pod's clock that is the runner's (`same_clock`) is subtracted exactly; one with an offset
/// adds its bound to the observation's; one without is not placed, and a warning says so.
pub fn place(seen: Vec<Seen>, trigger: &Stamp, clocks: &[ClockRelation]) -> Placed {
    let clocks = Clocks(clocks);
    let Some((zero, zero_bound)) = clocks.on_runner(trigger) else {
        let warning = format!(
            "no observation could be placed: the trigger's clock ({}) has no known offset",
            name(&trigger.clock)
        );
        return Placed { observations: Vec::new(), warnings: vec![warning] };
    };
    let mut left_out = BTreeMap::<String, u64>::new();
    // Collected so, they take the place of what they are made of, and no more.
    let mut observations: Vec<_> = seen
        .into_iter()
        .filter_map(|seen| match clocks.place(&seen, zero, zero_bound) {
            Ok(placed) => Some(placed),
            Err(clock) => {
                *left_out.entry(name(&clock)).or_default() += 1;
                None
            }
        })
        .collect();
    observations.sort_by(compare);
    let warnings = left_out
        .into_iter()
        .map(|(clock, n)| {
            format!("observations left out, since their clock ({clock}) has no known offset: {n}")
        })
        .collect();
    Placed { observations, warnings }
}

/// The order of a record's observations: by time; at one time the world before the flows in it,
/// and of a flow its answers before its end. Observations that compare equal are equal.
pub fn compare(a: &Observation, b: &Observation) -> Ordering {
    let key = |o: &Observation| (o.at, rank(&o.event), o.source, o.bound == Bound::AtMost);
    key(a).cmp(&key(b)).then_with(|| text(a).cmp(&text(b)))
}

/// All of an observation, for telling apart what nothing else does.
fn text(observation: &Observation) -> String {
    // An observation has string keys and finite or null numbers only: that becomes JSON.
    serde_json::to_string(observation).unwrap_or_default()
}

/// Which of two events at the same nanosecond is told first: what may be the other's reason.
fn rank(event: &Event) -> u8 {
    match event {
        Event::TriggerSent { .. } => 0,
        Event::TriggerAnswered { .. } | Event::TriggerDone { .. } => 1,
        Event::FlowOpened { .. } => 3,
        Event::Span { .. } => 4,
        Event::Silence { .. } | Event::DroppedHere { .. } => 5,
        Event::Refused { .. } | Event::Unreachable { .. } => 6,
        Event::Bye { .. } => 7,
        Event::Fin { .. } => 8,
        Event::Reset { .. } => 9,
        Event::TimedOut { .. } => 10,
        Event::FlowFailed { .. } => 11,
        Event::FlowStopped { .. } => 12,
        Event::ObservationEnded { .. } => 13,
        _ => 2,
    }
}

fn name(clock: &Clock) -> String {
    match clock {
        Clock::Runner => "runner".to_owned(),
        Clock::Pod(uid) => format!("pod:{uid}"),
    }
}

struct Clocks<'a>(&'a [ClockRelation]);

impl Clocks<'_> {
    /// A stamp in nanoseconds on the runner's clock, and the bound that the conversion adds.
    fn on_runner(&self, stamp: &Stamp) -> Option<(i64, Option<f64>)> {
        let Clock::Pod(_) = stamp.clock else { return Some((stamp.ns, Some(0.0))) };
        let source = name(&stamp.clock);
        let relation = self.0.iter().find(|relation| relation.source == source)?;
        if relation.same_clock {
            return Some((stamp.ns, Some(0.0)));
        }
        let offset = Ms::from_ms(relation.offset_ms?);
        Some((stamp.ns.saturating_sub(offset.0), relation.plus_minus_ms))
    }

    /// The clock that could not be related, otherwise.
    fn place(&self, seen: &Seen, zero: i64, zero_bound: Option<f64>) -> Result<Observation, Clock> {
        let (_, bound) = self.on_runner(&seen.at).ok_or_else(|| seen.at.clock.clone())?;
        // One clock on both sides: their difference has no bound but its own.
        let added = if bound == Some(0.0) { zero_bound } else { sum(bound, zero_bound) };
        let on_trial =
            |stamp: &Stamp| self.on_runner(stamp).map(|(ns, _)| Ms(ns.saturating_sub(zero)));
        let at = on_trial(&seen.at).ok_or_else(|| seen.at.clock.clone())?;
        let event = seen.event.clone().map_times(|stamp| (on_trial(&stamp), stamp.clock));
        if let Some(clock) = unplaced(&event) {
            return Err(clock);
        }
        Ok(Observation {
            at,
            bound: seen.bound,
            plus_minus_ms: sum(seen.plus_minus_ms, added),
            source: seen.source,
            // Each time was just seen to be there.
            event: event.map_times(|(ms, _)| ms.unwrap_or_default()),
        })
    }
}

/// The first clock of an event's times that could not be related.
fn unplaced(event: &Event<(Option<Ms>, Clock)>) -> Option<Clock> {
    let found = std::cell::RefCell::new(None);
    let _ = event.clone().map_times(|(ms, clock)| {
        if ms.is_none() {
            found.borrow_mut().get_or_insert(clock);
        }
    });
    found.into_inner()
}

fn sum(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    Some(a? + b?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::Source;

    fn sigterm(uid: &str, ns: i64) -> Seen {
        let event = Event::Sigterm { uid: uid.into(), instance: "i".into() };
        let at = Stamp { clock: Clock::Pod(uid.into()), ns };
        Observation::exact(at, Source::ProbeLog, event)
    }

    fn relation(uid: &str, offset_ms: Option<f64>, plus_minus_ms: Option<f64>) -> ClockRelation {
        let source = format!("pod:{uid}");
        ClockRelation { source, same_clock: false, offset_ms, plus_minus_ms }
    }

    #[test]
    fn one_kernel_has_one_clock_and_no_bound() {
        let mut clock = relation("a", Some(0.0), Some(0.0));
        clock.same_clock = true;
        let placed = place(vec![sigterm("a", 7_000_000)], &Stamp::runner(5_000_000), &[clock]);
        assert_eq!(placed.observations[0].at, Ms(2_000_000));
        assert_eq!(placed.observations[0].plus_minus_ms, Some(0.0));
        assert!(placed.warnings.is_empty());
    }

    #[test]
    fn an_offset_is_taken_away_and_its_bound_is_added() {
        let mut seen = sigterm("a", 1_007_000_000);
        seen.plus_minus_ms = Some(0.25);
        let clocks = [relation("a", Some(1000.0), Some(0.5))];
        let placed = place(vec![seen], &Stamp::runner(5_000_000), &clocks);
        assert_eq!(placed.observations[0].at, Ms(2_000_000));
        assert_eq!(placed.observations[0].plus_minus_ms, Some(0.75));
    }

    #[test]
    fn an_offset_without_a_bound_gives_a_time_without_one() {
        let clocks = [relation("a", Some(1.0), None)];
        let placed = place(vec![sigterm("a", 2_000_000)], &Stamp::runner(0), &clocks);
        assert_eq!(placed.observations[0].plus_minus_ms, None);
    }

    #[test]
    fn a_clock_that_nobody_related_is_left_out_and_said_so() {
        let seen = vec![sigterm("a", 1), sigterm("b", 1), sigterm("b", 2)];
        let placed = place(seen, &Stamp::runner(0), &[relation("a", None, None)]);
        assert_eq!(placed.observations, []);
        assert_eq!(
            placed.warnings,
            [
                "observations left out, since their clock (pod:a) has no known offset: 1",
                "observations left out, since their clock (pod:b) has no known offset: 2",
            ]
        );
    }

    #[test]
    fn times_within_an_event_are_placed_with_it() {
        let gap = Event::WatchGap { until: Stamp::runner(9_000_000), reason: "410".into() };
        let seen = Observation::exact(Stamp::runner(3_000_000), Source::PodWatch, gap);
        let placed = place(vec![seen], &Stamp::runner(5_000_000), &[]);
        let event = Event::WatchGap { until: Ms(4_000_000), reason: "410".into() };
        assert_eq!(placed.observations[0].event, event);
        assert_eq!(placed.observations[0].at, Ms(-2_000_000));
    }

    #[test]
    fn a_bye_comes_before_the_fin_of_the_same_instant() {
        let flow = |event| Observation::exact(Stamp::runner(5), Source::Flow, event);
        let fin = flow(Event::Fin { flow: "tcp-1".into() });
        let bye = flow(Event::Bye { flow: "tcp-1".into() });
        let placed = place(vec![fin, bye], &Stamp::runner(0), &[]);
        assert_eq!(placed.observations[0].event, Event::Bye { flow: "tcp-1".into() });
    }
}
