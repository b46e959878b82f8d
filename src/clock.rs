//! Clocks: the runner's monotonic clock, the pods' clocks, and instants on them.
//!
//! Takes nothing but the kernel's clocks; knows nothing of flows, watches or records.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An instant as it was read: which clock, and nanoseconds since that clock's zero (for
/// `CLOCK_MONOTONIC`: since boot).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Stamp {
    /// Whose clock was read.
    pub clock: Clock,
    /// Nanoseconds on that clock.
    pub ns: i64,
}

/// Whose `CLOCK_MONOTONIC` an instant was read on.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Clock {
    /// The runner's own.
    Runner,
    /// The pod's, by its UID; equal to the runner's when both report the same `boot_id`.
    Pod(String),
}

impl Stamp {
    /// This instant on the runner's clock.
    pub fn now() -> Self {
        Self::runner(monotonic_ns())
    }

    /// An instant on the runner's clock, in nanoseconds since boot.
    pub fn runner(ns: i64) -> Self {
        Self { clock: Clock::Runner, ns }
    }

    /// How long it is from this instant to a later one of the same clock; zero if it is not later
    /// or another clock's.
    pub fn until(&self, later: &Stamp) -> Duration {
        if self.clock != later.clock {
            return Duration::ZERO;
        }
        Duration::from_nanos(u64::try_from(later.ns - self.ns).unwrap_or(0))
    }
}

/// How a source's clock relates to the runner's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ClockRelation {
    /// `pod:UID`.
    pub source: String,
    /// Whether both report the same `boot_id`: one kernel, one `CLOCK_MONOTONIC`.
    pub same_clock: bool,
    /// Its time less the runner's; 0 on the same clock.
    pub offset_ms: Option<f64>,
    /// Bound of `offset_ms`.
    pub plus_minus_ms: Option<f64>,
}

/// `CLOCK_MONOTONIC` in nanoseconds since boot.
pub fn monotonic_ns() -> i64 {
    // CLOCK_MONOTONIC exists on every kernel that this program runs on.
    let t = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("CLOCK_MONOTONIC can be read");
    t.tv_sec() * 1_000_000_000 + t.tv_nsec()
}

/// `CLOCK_REALTIME` in nanoseconds since 1970: what the kernel stamps packets with.
fn realtime_ns() -> i64 {
    // As above.
    let t = clock_gettime(ClockId::CLOCK_REALTIME).expect("CLOCK_REALTIME can be read");
    t.tv_sec() * 1_000_000_000 + t.tv_nsec()
}

/// How the wall clock relates to the monotonic one: for the kernel's time stamps of packets, which
/// are the wall clock's.
///
/// Both run at one rate, slewed alike; they part only when the wall clock is stepped. So their
/// difference is one number between two steps: each reading of both gives an interval that it lies
/// in, and all readings together a narrow one. A reading that does not fit tells of a step.
#[derive(Clone, Debug)]
pub struct WallClock {
    /// Wall clock less monotonic clock lies between these, nanoseconds.
    low_ns: i64,
    high_ns: i64,
    /// On the monotonic clock, since when that is known to hold.
    since_ns: i64,
    steps: u64,
}

impl Default for WallClock {
    fn default() -> Self {
        let mut clock = Self { low_ns: i64::MIN, high_ns: i64::MAX, since_ns: i64::MIN, steps: 0 };
        // Whoever loses the processor between two of its readings learns little from them.
        for _ in 0..10 {
            clock.read();
        }
        clock
    }
}

impl WallClock {
    /// Reads both clocks; gives the monotonic one's nanoseconds since boot. Read it after a stamp
    /// was taken and before [`Self::monotonic`], so that a step between the two is noticed.
    pub fn read(&mut self) -> i64 {
        let before_ns = monotonic_ns();
        let real_ns = realtime_ns();
        self.note(before_ns, real_ns, monotonic_ns());
        before_ns
    }

    fn note(&mut self, before_ns: i64, real_ns: i64, after_ns: i64) {
        let (low_ns, high_ns) = (real_ns - after_ns, real_ns - before_ns);
        if low_ns <= self.high_ns && self.low_ns <= high_ns {
            self.low_ns = self.low_ns.max(low_ns);
            self.high_ns = self.high_ns.min(high_ns);
        } else {
            let steps = self.steps + 1;
            *self = Self { low_ns, high_ns, since_ns: after_ns, steps };
        }
    }

    /// Half the width of the interval that a converted stamp lies in, nanoseconds.
    pub fn plus_minus_ns(&self) -> i64 {
        (self.high_ns - self.low_ns + 1) / 2
    }

    /// How often the wall clock was seen to be stepped.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// A stamp of the wall clock on the monotonic one, in nanoseconds since boot. It was taken after
    /// `not_before_ns` and read at `read_ns`, and is never given as earlier or later than these.
    ///
    /// `None` where it can't be told: it does not lie between the two, or the wall clock may have
    /// been stepped since. Then the time of the reading is all that is known.
    pub fn monotonic(&self, real_ns: i64, not_before_ns: i64, read_ns: i64) -> Option<i64> {
        let at_ns = real_ns - (self.low_ns + (self.high_ns - self.low_ns) / 2);
        let plus_minus_ns = self.plus_minus_ns();
        let possible = at_ns >= not_before_ns.saturating_sub(plus_minus_ns)
            && at_ns >= self.since_ns
            && at_ns <= read_ns.saturating_add(plus_minus_ns);
        possible.then(|| at_ns.max(not_before_ns).min(read_ns))
    }
}

/// The kernel's boot id; two processes that report the same one share `CLOCK_MONOTONIC`.
/// `None` where it can't be read.
pub fn boot_id() -> Option<String> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(text.trim().to_owned())
}

/// An instant relative to the trial's trigger, kept in nanoseconds, written as decimal
/// milliseconds (`27.8`).
///
/// ```
/// use drainwatch::clock::Ms;
///
/// let (reset, removed) = (Ms::from_ms(45.0), Ms::from_ms(293.25));
/// assert_eq!((removed - reset).ms(), 248.25);
/// assert_eq!(serde_json::to_string(&removed)?, "293.25");
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, schemars::JsonSchema,
)]
#[schemars(with = "f64", inline)]
pub struct Ms(pub i64);

impl Ms {
    /// From decimal milliseconds.
    pub fn from_ms(ms: f64) -> Self {
        Self((ms * 1e6).round() as i64)
    }

    /// In decimal milliseconds.
    pub fn ms(self) -> f64 {
        self.0 as f64 / 1e6
    }
}

impl std::ops::Sub for Ms {
    type Output = Ms;
    fn sub(self, other: Ms) -> Ms {
        Ms(self.0 - other.0)
    }
}

impl Serialize for Ms {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_f64(self.ms())
    }
}

impl<'de> Deserialize<'de> for Ms {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        f64::deserialize(d).map(Self::from_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn milliseconds_survive_json_to_the_nanosecond(ns in -4_000_000_000_000i64..4_000_000_000_000) {
            let text = serde_json::to_string(&Ms(ns)).unwrap();
            prop_assert_eq!(serde_json::from_str::<Ms>(&text).unwrap(), Ms(ns));
        }
    }

    const S: i64 = 1_000_000_000;

    /// A wall clock that is `offset` ahead, read at `at` with 100 ns between the readings.
    fn read(clock: &mut WallClock, at: i64, offset: i64) {
        clock.note(at, at + 50 + offset, at + 100);
    }

    fn known(offset: i64) -> WallClock {
        let mut clock =
            WallClock { low_ns: i64::MIN, high_ns: i64::MAX, since_ns: i64::MIN, steps: 0 };
        read(&mut clock, S, offset);
        clock
    }

    proptest! {
        #[test]
        fn a_stamp_is_converted_within_its_bound(
            offset in 0..2_000_000_000 * S, stamped in S..1_000 * S, age in 0..S,
            readings in prop::collection::vec((0..500i64, 0..500i64), 1..20),
        ) {
            let mut clock = known(offset);
            for (before, after) in readings {
                clock.note(stamped + age - before, stamped + age + offset, stamped + age + after);
            }
            prop_assert_eq!(clock.steps(), 0);
            prop_assert!(clock.plus_minus_ns() <= 51);
            let at = clock.monotonic(stamped + offset, i64::MIN, stamped + age).unwrap();
            prop_assert!((at - stamped).abs() <= clock.plus_minus_ns());
            prop_assert!(at <= stamped + age);
        }

        /// Whatever the wall clock does between a stamp and its reading, a stamp that is given is
        /// no further from the truth than the time of the reading is, and not outside its limits.
        #[test]
        fn no_step_makes_a_stamp_worse_than_its_reading(
            step in -3 * S..3 * S, sent in 2 * S..4 * S, on_its_way in 0..S, age in 0..S,
            step_at in 2 * S..6 * S,
        ) {
            let offset = 1_000_000_000 * S;
            let mut clock = known(offset);
            let (stamped, at_read) = (sent + on_its_way, sent + on_its_way + age);
            let ahead = |at: i64| if at >= step_at { offset + step } else { offset };
            read(&mut clock, at_read, ahead(at_read));
            if let Some(at) = clock.monotonic(stamped + ahead(stamped), sent, at_read) {
                prop_assert!(sent <= at && at <= at_read);
                let off = (at - stamped).abs();
                prop_assert!(off <= age.max(100), "{off} ns off");
            }
        }
    }

    #[test]
    fn a_step_is_noticed_and_what_was_stamped_before_it_is_not_converted() {
        let mut clock = known(7 * S);
        assert!(clock.monotonic(9 * S, 0, 3 * S).is_some());
        read(&mut clock, 4 * S, 5 * S);
        assert_eq!(clock.steps(), 1);
        assert_eq!(clock.monotonic(3 * S + 7 * S, 0, 4 * S), None, "stamped before the step");
        let at = clock.monotonic(5 * S + 5 * S, 0, 6 * S).unwrap();
        assert!((at - 5 * S).abs() <= clock.plus_minus_ns());
    }

    #[test]
    fn a_stamp_from_before_the_sending_is_none() {
        let clock = known(7 * S);
        assert_eq!(clock.monotonic(9 * S, 2 * S + 1_000, 3 * S), None);
        let at = 2 * S + clock.plus_minus_ns();
        assert_eq!(clock.monotonic(9 * S, at, 3 * S), Some(at));
    }

    #[test]
    fn this_machines_clocks_are_related_closely() {
        let mut clock = WallClock::default();
        let read_ns = clock.read();
        assert!(clock.plus_minus_ns() < 1_000_000, "{clock:?}");
        assert!(clock.monotonic(realtime_ns(), read_ns, monotonic_ns()).is_some());
    }

    #[test]
    fn the_monotonic_clock_does_not_go_back() {
        let (a, b) = (monotonic_ns(), monotonic_ns());
        assert!(a <= b);
    }
}
