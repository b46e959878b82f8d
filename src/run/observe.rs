//! When a trial's observation may end: once every story has ended.
//!
//! Pure: takes the scenario, the target and the states at one instant. It decides nothing about
//! fates, only that waiting longer would add nothing to them.

use std::time::Duration;

use crate::clock::Stamp;
use crate::config::{Scenario, Trigger};
use crate::flow::FlowState;
use crate::record::Protocol;
use crate::watch::{PodsView, SlicesView};
use crate::workload::CONTAINER;

/// What the stories of one trial wait for.
pub struct Stories<'a> {
    uid: &'a str,
    sent: &'a Stamp,
    silent_after: Duration,
    replaced: bool,
}

impl<'a> Stories<'a> {
    /// The stories of a scenario's trial whose trigger was sent at `sent`.
    pub fn new(config: &Scenario, uid: &'a str, sent: &'a Stamp) -> Self {
        let replaced = match config.trigger {
            Trigger::Delete | Trigger::Evict => true,
            Trigger::ScaleToZero => false,
        };
        Self { uid, sent, silent_after: config.flows.silent_after, replaced }
    }

    /// Whether all have ended at `now`.
    pub fn ended(
        &self,
        flows: &[FlowState],
        pods: &PodsView,
        slices: &SlicesView,
        now: &Stamp,
    ) -> bool {
        let target_gone = pods
            .pods
            .get(self.uid)
            .is_some_and(|pod| pod.gone || pod.terminated.contains_key(CONTAINER));
        let replacement = pods.live().any(|(uid, pod)| uid != self.uid && pod.ready);
        target_gone
            && !slices.lists(self.uid)
            && (!self.replaced || (replacement && !slices.ready().is_empty()))
            && flows.iter().all(|flow| self.story_ended(flow, slices, now))
    }

    /// A flow that nobody answers is waited for as long as the replacement may still take it over:
    /// `silent_after` from its endpoint's being ready, which is longer than kube-proxy's pace.
    fn story_ended(&self, flow: &FlowState, slices: &SlicesView, now: &Stamp) -> bool {
        if flow.ended {
            return true;
        }
        if flow.protocol == Protocol::Udp && flow.current != flow.first {
            return true;
        }
        let waiting_since = if self.replaced { slices.ready_since() } else { None };
        let waited = waiting_since.map_or(Duration::MAX, |since| since.until(now));
        let after_trigger = self.sent.until(now) >= self.silent_after;
        after_trigger && flow.silent_for(now).min(waited) >= self.silent_after
    }
}
