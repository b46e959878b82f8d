//! Who answers: each process once, however many flows it answers, and how its clock relates to
//! the runner's.

use std::sync::Arc;

use drainwatch_probe::wire::{Answer, Speaker};

use super::{ClockSample, RoundTrip};
use crate::observation::Identity;

/// The stretch of time that a clock sample stands for, nanoseconds.
const WINDOW_NS: i64 = 1_000_000_000;

/// All processes that have answered.
#[derive(Debug, Default)]
pub struct Speakers(Vec<Known>);

#[derive(Debug)]
struct Known {
    /// As answers carry it.
    encoded: Box<[u8]>,
    identity: Arc<Identity>,
    boot_id: String,
    clock: Clock,
}

/// The shortest round trips: of the first window, of the last one and of the one before it.
#[derive(Debug)]
struct Clock {
    began_ns: i64,
    first: RoundTrip,
    window_ns: i64,
    current: RoundTrip,
    before: RoundTrip,
}

impl Speakers {
    /// Who gave this answer, which arrived at `at_ns`; `None` where it does not say so rightly.
    pub fn identify(&mut self, answer: &Answer<'_>, at_ns: i64) -> Option<&Arc<Identity>> {
        // A handful at most: pods come and go one by one.
        let found = self.0.iter().rposition(|known| *known.encoded == *answer.speaker);
        let trip = round_trip(answer, at_ns);
        let known = match found {
            Some(index) => {
                self.0[index].clock.add(trip);
                &self.0[index]
            }
            None => {
                let speaker = Speaker::parse(answer.speaker).ok()?;
                let identity = Identity {
                    pod: speaker.pod.to_owned(),
                    uid: speaker.uid.to_owned(),
                    instance: speaker.instance.to_owned(),
                };
                self.0.push(Known {
                    encoded: answer.speaker.into(),
                    identity: Arc::new(identity),
                    boot_id: speaker.boot_id.to_owned(),
                    clock: Clock::new(trip),
                });
                self.0.last()?
            }
        };
        Some(&known.identity)
    }

    /// How the pods' clocks relate to the runner's, one entry a pod.
    pub fn clock_samples(&self) -> Vec<ClockSample> {
        let mut samples: Vec<ClockSample> = Vec::new();
        for known in &self.0 {
            let (first, latest) = (known.clock.first, known.clock.latest());
            let uid = &known.identity.uid;
            // A restarted container shares its predecessor's kernel.
            match samples.iter_mut().find(|sample| sample.uid == *uid) {
                Some(sample) => sample.latest = latest,
                None => samples.push(ClockSample {
                    uid: uid.clone(),
                    boot_id: Some(known.boot_id.clone()).filter(|id| !id.is_empty()),
                    first,
                    latest,
                }),
            }
        }
        samples
    }
}

impl Clock {
    fn new(trip: RoundTrip) -> Self {
        let began_ns = trip.at_ns;
        Self { began_ns, first: trip, window_ns: began_ns, current: trip, before: trip }
    }

    fn add(&mut self, trip: RoundTrip) {
        if trip.at_ns - self.began_ns < WINDOW_NS {
            self.first = shorter(self.first, trip);
        }
        if trip.at_ns - self.window_ns < WINDOW_NS {
            self.current = shorter(self.current, trip);
        } else {
            self.before = self.current;
            self.window_ns = trip.at_ns;
            self.current = trip;
        }
    }

    fn latest(&self) -> RoundTrip {
        shorter(self.before, self.current)
    }
}

fn shorter(a: RoundTrip, b: RoundTrip) -> RoundTrip {
    if b.plus_minus_ns < a.plus_minus_ns { b } else { a }
}

/// The answer was made somewhere between the sending and the arrival: taken for the middle, its
/// time is wrong by half the round trip at most.
fn round_trip(answer: &Answer<'_>, at_ns: i64) -> RoundTrip {
    let sent_ns = answer.heartbeat.sent_ns;
    // Both come from the network: wrap rather than panic. Halves are rounded up.
    let round_trip_ns = at_ns.wrapping_sub(sent_ns);
    let plus_minus_ns = round_trip_ns.wrapping_add(1).wrapping_div(2).wrapping_add(1);
    let middle_ns = sent_ns.wrapping_add(round_trip_ns / 2);
    RoundTrip { at_ns, offset_ns: answer.mono_ns.wrapping_sub(middle_ns), plus_minus_ns }
}

#[cfg(test)]
mod tests {
    use drainwatch_probe::wire::Heartbeat;
    use proptest::prelude::*;

    use super::*;

    fn answer(sent_ns: i64, mono_ns: i64, speaker: &[u8]) -> Answer<'_> {
        let heartbeat = Heartbeat { flow: 1, sequence: 1, sent_ns };
        Answer { heartbeat, mono_ns, wall_ns: 0, speaker }
    }

    fn speaker(uid: &str, instance: &str) -> Vec<u8> {
        Speaker { pod: "pod", uid, instance, boot_id: "boot" }.encode().unwrap()
    }

    proptest! {
        #[test]
        fn the_true_offset_lies_within_the_bound(
            offset in -1_000_000_000i64..1_000_000_000,
            sent in 0i64..1_000_000_000_000,
            there in 0i64..1_000_000_000, back in 0i64..1_000_000_000,
        ) {
            let trip = round_trip(&answer(sent, sent + there + offset, &[]), sent + there + back);
            prop_assert!((trip.offset_ns - offset).abs() <= trip.plus_minus_ns);
        }
    }

    #[test]
    fn first_and_latest_are_the_shortest_of_their_windows() {
        let speaker = speaker("uid", "one");
        let mut speakers = Speakers::default();
        for (at, round_trip) in [
            (1_000_000, 300_000),
            (2_000_000, 100_000),
            (3_000_000, 200_000),
            (5_000_000_000, 50_000),
            (7_000_000_000, 90_000),
            (7_000_001_000, 80_000),
            (9_000_000_000, 95_000),
        ] {
            speakers.identify(&answer(at - round_trip, at, &speaker), at).unwrap();
        }
        let samples = speakers.clock_samples();
        assert_eq!(samples.len(), 1);
        assert_eq!(samples[0].boot_id.as_deref(), Some("boot"));
        assert_eq!(samples[0].first.at_ns, 2_000_000);
        assert_eq!(samples[0].latest.at_ns, 7_000_001_000);
    }

    #[test]
    fn two_instances_of_a_pod_are_two_speakers_with_one_clock() {
        let (one, two) = (speaker("uid", "one"), speaker("uid", "two"));
        let mut speakers = Speakers::default();
        let first = Arc::clone(speakers.identify(&answer(0, 0, &one), 10).unwrap());
        let second = Arc::clone(speakers.identify(&answer(0, 0, &two), 20).unwrap());
        assert_ne!(first, second);
        assert!(Arc::ptr_eq(&first, speakers.identify(&answer(0, 0, &one), 30).unwrap()));
        assert_eq!(speakers.clock_samples().len(), 1);
    }

    #[test]
    fn a_garbled_speaker_is_nobody() {
        assert!(Speakers::default().identify(&answer(0, 0, b"\x09short"), 10).is_none());
    }
}
