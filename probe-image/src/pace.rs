//! When it pays to let packets gather before they are read.
//!
//! A thread that is woken for each of thousands of packets a second takes the processors from those
//! that it measures, or that measure it.

use std::time::Duration;

/// How long packets are gathered, and so how much later at most one is read.
pub const GATHER: Duration = Duration::from_micros(500);

/// More wake-ups than this in a window are too many.
const BUSY: u32 = 40;
const WINDOW_NS: i64 = 10_000_000;

/// Counts a thread's wake-ups.
#[derive(Debug, Default)]
pub struct Pace {
    began_ns: i64,
    wakes: u32,
    was_busy: bool,
}

impl Pace {
    /// Counts a wake-up at this time of a clock that does not go back; gives whether this window of
    /// ten milliseconds, or the one before, had too many.
    pub fn is_busy(&mut self, now_ns: i64) -> bool {
        if now_ns - self.began_ns >= WINDOW_NS {
            let whole = now_ns - self.began_ns < 2 * WINDOW_NS;
            // Gathering itself keeps the wake-ups below the bound: 20 at most in a window.
            let bound = if self.was_busy { BUSY / 4 } else { BUSY };
            *self = Self { began_ns: now_ns, wakes: 0, was_busy: whole && self.wakes > bound };
        }
        self.wakes += 1;
        self.was_busy || self.wakes > BUSY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the last of wake-ups was in a busy time, if they come this far apart for this long.
    fn busy(pace: &mut Pace, from_ns: i64, apart_ns: i64, for_ns: i64) -> bool {
        (0..for_ns / apart_ns).map(|n| pace.is_busy(from_ns + n * apart_ns)).last().unwrap()
    }

    #[test]
    fn many_wake_ups_are_gathered_until_there_are_few() {
        let mut pace = Pace::default();
        assert!(!busy(&mut pace, 0, 1_000_000, 100_000_000), "1,000 a second");
        assert!(busy(&mut pace, 100_000_000, 100_000, 50_000_000), "10,000 a second");
        assert!(busy(&mut pace, 150_000_000, 600_000, 100_000_000), "as gathering leaves them");
        assert!(!busy(&mut pace, 250_000_000, 2_000_000, 50_000_000), "500 a second");
    }

    #[test]
    fn after_a_long_rest_nothing_is_gathered() {
        let mut pace = Pace::default();
        assert!(busy(&mut pace, 0, 100_000, 50_000_000));
        assert!(!pace.is_busy(1_000_000_000));
    }
}
