//! Median, minimum and maximum: all the statistics that repeats of a measurement carry.
//!
//! Takes numbers; knows nothing of what they measure.

/// What is said of several measurements of one figure.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Stats {
    /// How many.
    pub n: usize,
    /// The middle one, or the mean of the two in the middle.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
}

impl Stats {
    /// Of these numbers; `None` of no number at all. What is no finite number is no measurement.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().filter(|v| v.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let n = values.len();
        let median = if n % 2 == 1 {
            values[n / 2]
        } else {
            // Halved first: the sum of two great numbers need not be finite.
            values[n / 2 - 1] / 2.0 + values[n / 2] / 2.0
        };
        Some(Self { n, median, min, max })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn of_an_even_number_the_median_lies_between() {
        let stats = Stats::of([4.0, 1.0, 3.0, 2.0]).unwrap();
        assert_eq!(stats, Stats { n: 4, median: 2.5, min: 1.0, max: 4.0 });
    }

    #[test]
    fn of_nothing_nothing_is_said() {
        assert_eq!(Stats::of([]), None);
        assert_eq!(Stats::of([f64::NAN]), None);
    }

    proptest! {
        #[test]
        fn as_many_lie_below_the_median_as_above(
            values in prop::collection::vec(-1e12f64..1e12, 1..40),
        ) {
            let Stats { n, median, min, max } = Stats::of(values.iter().copied()).unwrap();
            prop_assert_eq!(n, values.len());
            prop_assert!(min <= median && median <= max);
            let below = values.iter().filter(|v| **v < median).count();
            let above = values.iter().filter(|v| **v > median).count();
            prop_assert!(below <= n / 2 && above <= n / 2);
            prop_assert!(values.contains(&min) && values.contains(&max));
        }

        #[test]
        fn the_order_changes_nothing(
            (a, b) in prop::collection::vec(any::<f64>(), 0..20)
                .prop_flat_map(|v| (Just(v.clone()), Just(v).prop_shuffle())),
        ) {
            prop_assert_eq!(Stats::of(a), Stats::of(b));
        }
    }
}
