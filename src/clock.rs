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

    #[test]
    fn the_monotonic_clock_does_not_go_back() {
        let (a, b) = (monotonic_ns(), monotonic_ns());
        assert!(a <= b);
    }
}
