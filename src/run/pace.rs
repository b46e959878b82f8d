//! Whether this machine keeps up with what it is to send and hear.
//!
//! Takes the flows' states and counters; gives bounds, a failed check, or words for the record.

use std::time::Duration;

use super::preflight::{self, Failure, held};
use crate::config::Scenario;
use crate::flow::{Counters, FlowState};
use crate::observation::Protocol;
use crate::record::Check;

/// How old a flow's last answer may be when the trigger is sent: a few intervals, and what a busy
/// machine may take.
pub fn lively(config: &Scenario, flow: &FlowState) -> Duration {
    let interval = match flow.protocol {
        Protocol::Tcp => config.flows.tcp_interval,
        Protocol::Udp => config.flows.udp_interval,
    };
    (interval * 3 + Duration::from_millis(200)).min(config.flows.silent_after)
}

/// A machine that leaves out a tenth of the heartbeats in settle can't resolve what comes.
pub fn kept_up_in_settle(
    before: &Counters,
    after: &Counters,
    settle: Duration,
) -> Result<Check, Failure> {
    let (sent, skipped) = (after.sent - before.sent, after.skipped - before.skipped);
    let due = sent + skipped;
    let found = format!(
        "{skipped} of {due} heartbeats left out, {:.0} a second sent; so far the latest went out \
         {:.1} ms after its time",
        sent as f64 / settle.as_secs_f64().max(1e-3),
        after.max_late_ns as f64 / 1e6
    );
    if skipped * 10 <= due { Ok(held::kept_up(found)) } else { Err(preflight::kept_up(found)) }
}

/// What our own buffers drop in settle they will drop when it counts. `in_pod` is what the probe's
/// sockets dropped, `None` where that is not known.
pub fn dropped_in_settle(
    before: &Counters,
    after: &Counters,
    in_pod: Option<u64>,
) -> Result<Check, Failure> {
    let here = after.dropped - before.dropped;
    let dropped = here.saturating_add(in_pod.unwrap_or(0));
    let in_pod = in_pod.map_or("not known".to_owned(), |n| n.to_string());
    let sent = after.datagrams - before.datagrams;
    let found = format!(
        "datagrams dropped by the flows' sockets {here}, by the probe's {in_pod}, of {sent} sent"
    );
    let few = dropped.saturating_mul(1000) <= sent;
    if few { Ok(held::own_drops(found)) } else { Err(preflight::own_drops(found)) }
}

/// What to say where answers came without a time of the kernel's.
pub fn unstamped(counters: &Counters) -> Option<String> {
    (counters.unstamped > 0).then(|| {
        format!(
            "the kernel's time of {} answers is not known, of {}: theirs is that of their reading",
            counters.unstamped, counters.answered
        )
    })
}

/// What to say where this machine did not send all that was due.
pub fn kept_up(counters: &Counters) -> Option<String> {
    let Counters { sent, skipped, max_late_ns, .. } = *counters;
    (skipped > 0).then(|| {
        let late = max_late_ns as f64 / 1e6;
        let were = if skipped == 1 { "heartbeat was" } else { "heartbeats were" };
        format!(
            "this machine did not keep up: {skipped} {were} not sent in their interval, {sent} were; the \
             latest went out {late:.1} ms after its time"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenth_left_out_in_settle_is_too_much() {
        let counters = |sent, skipped| Counters { sent, skipped, ..Default::default() };
        let settle = Duration::from_secs(9);
        let check = kept_up_in_settle(&counters(10, 50), &counters(100, 60), settle).unwrap();
        assert!(check.found.starts_with("10 of 100 heartbeats left out, 10 a second sent"));
        let failure = kept_up_in_settle(&counters(0, 0), &counters(89, 11), settle).unwrap_err();
        assert_eq!(failure.check, "kept-up");
    }

    #[test]
    fn more_than_one_in_a_thousand_dropped_in_settle_is_too_much() {
        let counters = |datagrams, dropped| Counters { datagrams, dropped, ..Default::default() };
        let before = counters(1_000, 5);
        let settle =
            |dropped, in_pod| dropped_in_settle(&before, &counters(3_000, dropped), in_pod);
        assert!(settle(5, Some(2)).is_ok_and(|check| check.found.contains("by the probe's 2,")));
        assert!(
            settle(6, None).is_ok_and(|check| check.found.contains("by the probe's not known"))
        );
        let failure = settle(6, Some(2)).unwrap_err();
        assert_eq!(failure.check, "own-drops");
        assert!(failure.to_string().contains("flows' sockets 1, by the probe's 2, of 2000"));
    }

    #[test]
    fn answers_without_a_time_of_the_kernels_are_told() {
        let counters = Counters { answered: 90, unstamped: 2, ..Default::default() };
        assert!(unstamped(&counters).is_some_and(|text| text.contains("of 2 answers")));
        assert_eq!(unstamped(&Counters { unstamped: 0, ..counters }), None);
    }

    #[test]
    fn a_machine_that_does_not_keep_up_says_so() {
        let counters = Counters { sent: 90, skipped: 10, ..Default::default() };
        assert!(kept_up(&counters).is_some_and(|text| text.contains("10 heartbeats")));
        assert_eq!(kept_up(&Counters { skipped: 0, ..counters }), None);
    }
}
