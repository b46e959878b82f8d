//! Whether this machine keeps up with what it is to send and hear.
//!
//! Takes the flows' states and counters; gives bounds, a failed check, or words for the record.

use std::time::Duration;

use super::preflight::{self, Failure};
use crate::config::Scenario;
use crate::flow::{Counters, FlowState};
use crate::observation::Protocol;

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
pub fn kept_up_in_settle(before: &Counters, after: &Counters) -> Result<(), Failure> {
    let (sent, skipped) = (after.sent - before.sent, after.skipped - before.skipped);
    if skipped * 10 <= sent + skipped {
        return Ok(());
    }
    Err(preflight::kept_up(format!("{skipped} of {} left out", sent + skipped)))
}

/// What to say where this machine did not send all that was due.
pub fn kept_up(counters: &Counters) -> Option<String> {
    let Counters { sent, skipped, max_late_ns, .. } = *counters;
    (skipped > 0).then(|| {
        let late = max_late_ns as f64 / 1e6;
        format!(
            "this machine did not keep up: {skipped} heartbeats were not sent in their interval, \
             {sent} were; the latest went out {late:.1} ms after its time"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenth_left_out_in_settle_is_too_much() {
        let counters = |sent, skipped| Counters { sent, skipped, ..Default::default() };
        assert!(kept_up_in_settle(&counters(10, 50), &counters(100, 60)).is_ok());
        let failure = kept_up_in_settle(&counters(0, 0), &counters(89, 11)).unwrap_err();
        assert_eq!(failure.check, "kept-up");
    }

    #[test]
    fn a_machine_that_does_not_keep_up_says_so() {
        let counters = Counters { sent: 90, skipped: 10, ..Default::default() };
        assert!(kept_up(&counters).is_some_and(|text| text.contains("10 heartbeats")));
        assert_eq!(kept_up(&Counters { skipped: 0, ..counters }), None);
    }
}
