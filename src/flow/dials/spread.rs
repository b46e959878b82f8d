//! Least, median and greatest of many times, in memory that does not grow with their number.

use std::collections::BTreeMap;

use crate::observation::DialTimes;

/// Steps in each doubling of a time: the middle of a step is within 1.6 % of all in it.
const STEPS: u32 = 32;

/// Times, counted by size.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spread {
    least_ns: i64,
    greatest_ns: i64,
    count: u64,
    /// How many lie in each step.
    steps: BTreeMap<u32, u64>,
}

impl Spread {
    /// Counts one more.
    pub fn add(&mut self, ns: i64) {
        let ns = ns.max(0);
        self.least_ns = if self.count == 0 { ns } else { self.least_ns.min(ns) };
        self.greatest_ns = self.greatest_ns.max(ns);
        self.count += 1;
        *self.steps.entry(step_of(ns)).or_default() += 1;
    }

    /// What is said of them; `None` of none.
    pub fn times(&self) -> Option<DialTimes> {
        let middle = self.count.checked_sub(1)? / 2;
        let mut passed = 0;
        let step = self.steps.iter().find_map(|(step, count)| {
            passed += count;
            (passed > middle).then_some(*step)
        })?;
        let median_ns = middle_of(step).clamp(self.least_ns as f64, self.greatest_ns as f64);
        let ms = |ns: f64| (ns / 1e3).round() / 1e3;
        Some(DialTimes {
            least_ms: ms(self.least_ns as f64),
            median_ms: ms(median_ns),
            greatest_ms: ms(self.greatest_ns as f64),
        })
    }
}

fn step_of(ns: i64) -> u32 {
    let ns = ns.max(1).cast_unsigned();
    let doublings = ns.ilog2();
    let fine = ((u128::from(ns) * u128::from(STEPS)) >> doublings) as u32 - STEPS;
    doublings * STEPS + fine
}

fn middle_of(step: u32) -> f64 {
    let (doublings, fine) = (step / STEPS, step % STEPS);
    f64::from(doublings).exp2() * (1.0 + (f64::from(fine) + 0.5) / f64::from(STEPS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn of_none_nothing_is_said_and_of_one_itself() {
        assert_eq!(Spread::default().times(), None);
        let mut one = Spread::default();
        one.add(1_234_567);
        let times = DialTimes { least_ms: 1.235, median_ms: 1.235, greatest_ms: 1.235 };
        assert_eq!(one.times(), Some(times));
    }

    proptest! {
        #[test]
        fn the_median_is_within_two_percent(
            mut times in prop::collection::vec(1_000i64..10_000_000_000, 1..200)
        ) {
            let mut spread = Spread::default();
            times.iter().for_each(|ns| spread.add(*ns));
            times.sort_unstable();
            let told = spread.times().unwrap();
            let median = times[(times.len() - 1) / 2] as f64 / 1e6;
            prop_assert!((told.median_ms - median).abs() <= median * 0.02 + 0.001, "{told:?} {median}");
            prop_assert!((told.least_ms - times[0] as f64 / 1e6).abs() <= 0.001);
            prop_assert!((told.greatest_ms - times[times.len() - 1] as f64 / 1e6).abs() <= 0.001);
        }

        #[test]
        fn any_time_has_a_step(ns in any::<i64>()) {
            let mut spread = Spread::default();
            spread.add(ns);
            prop_assert!(spread.times().is_some());
        }
    }
}
