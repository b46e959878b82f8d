//! How the pods' clocks relate to the runner's.
//!
//! Takes what flows and the log tell of the pods' clocks; gives relations with their bounds.

use crate::clock::ClockRelation;
use crate::flow::ClockSample;

/// A pod's clock against the runner's: one clock where both report the same `boot_id`, else an
/// interval that holds what the round trips early and late in the trial allow.
pub fn relate(ours: Option<&str>, sample: &ClockSample) -> ClockRelation {
    let source = format!("pod:{}", sample.uid);
    if ours.is_some() && ours == sample.boot_id.as_deref() {
        return one_clock(source);
    }
    let trips = [sample.first, sample.latest];
    let low = trips.iter().map(|t| t.offset_ns - t.plus_minus_ns).min().unwrap_or_default();
    let high = trips.iter().map(|t| t.offset_ns + t.plus_minus_ns).max().unwrap_or_default();
    ClockRelation {
        source,
        same_clock: false,
        offset_ms: Some((low + high) as f64 / 2e6),
        plus_minus_ms: Some((high - low) as f64 / 2e6),
    }
}

/// The relation of a clock that is the runner's own.
pub fn one_clock(source: String) -> ClockRelation {
    ClockRelation { source, same_clock: true, offset_ms: Some(0.0), plus_minus_ms: Some(0.0) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::RoundTrip;

    #[test]
    fn one_boot_id_is_one_clock_and_two_are_bounded_by_both_round_trips() {
        let trip = |offset_ns, plus_minus_ns| RoundTrip { at_ns: 0, offset_ns, plus_minus_ns };
        let sample = ClockSample {
            uid: "u".into(),
            boot_id: Some("b".into()),
            first: trip(5_000_000, 1_000_000),
            latest: trip(9_000_000, 2_000_000),
        };
        let same = relate(Some("b"), &sample);
        assert!(same.same_clock && same.plus_minus_ms == Some(0.0));
        let other = relate(Some("c"), &sample);
        assert_eq!((other.offset_ms, other.plus_minus_ms), (Some(7.5), Some(3.5)));
        assert!(!relate(None, &ClockSample { boot_id: None, ..sample }).same_clock);
    }
}
