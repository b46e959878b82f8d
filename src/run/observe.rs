//! When a trial's observation may end: once every story has ended.
//!
//! Pure: takes the scenario, the target and the states at one instant. It decides nothing about
//! fates, only that waiting longer would add nothing to them.

use std::time::Duration;

use crate::clock::Stamp;
use crate::config::{Ends, Scenario, Trigger};
use crate::flow::FlowState;
use crate::observation::Protocol;
use crate::watch::{PodsView, SlicesView};
use crate::workload::CONTAINER;

/// How long after its endpoint is ready a replacement may still take a flow over: kube-proxy
/// writes its rules at most once a second.
const REPLACEMENT_TAKES: Duration = Duration::from_secs(2);

/// What the stories of one trial wait for.
pub struct Stories<'a> {
    uid: &'a str,
    sent: &'a Stamp,
    silent_after: Duration,
    ends: Ends,
    /// Whether somebody is to take the flows over.
    replaced: bool,
    observe_for: Option<Duration>,
}

impl<'a> Stories<'a> {
    /// The stories of a scenario's trial whose trigger was sent at `sent`. `elsewhere`: whether pods
    /// are taken by another node than the target's.
    pub fn new(config: &Scenario, uid: &'a str, sent: &'a Stamp, elsewhere: bool) -> Self {
        let replaced = match config.trigger {
            Trigger::ScaleToZero => false,
            Trigger::ScaleDown => config.scale_to.is_some_and(|left| left > 0),
            Trigger::DrainNode => elsewhere,
            _ => true,
        };
        let (ends, observe_for) = (config.trigger.ends(), config.observe_for);
        Self { uid, sent, silent_after: config.flows.silent_after, ends, replaced, observe_for }
    }

    /// Whether all have ended at `now`. Where nothing need end, they have by `observe_for`, and
    /// before it only if no flow is left to be told of.
    pub fn ended(
        &self,
        flows: &[FlowState],
        pods: &PodsView,
        slices: &SlicesView,
        now: &Stamp,
    ) -> bool {
        if let Some(time) = self.observe_for {
            return self.sent.until(now) >= time || flows.iter().all(is_over);
        }
        let target = pods.pods.get(self.uid);
        let ended = target.is_some_and(|pod| pod.gone || pod.terminated.contains_key(CONTAINER));
        let (target_done, is_other): (bool, fn(&str, &str) -> bool) = match self.ends {
            // The same pod goes on, with another process.
            Ends::Process => (ended, |uid, target| uid == target),
            _ => (ended && !slices.lists(self.uid), |uid, target| uid != target),
        };
        let replacement = pods.live().any(|(uid, pod)| is_other(uid, self.uid) && pod.ready);
        target_done
            && (!self.replaced || (replacement && !slices.ready().is_empty()))
            && flows.iter().all(|flow| self.story_ended(flow, slices, now))
    }

    /// A flow that nobody answers is waited for as long as the replacement may still take it over:
    /// `silent_after` from its endpoint's being ready, and no less than [`REPLACEMENT_TAKES`].
    fn story_ended(&self, flow: &FlowState, slices: &SlicesView, now: &Stamp) -> bool {
        if is_over(flow) {
            return true;
        }
        let waiting_since = if self.replaced { slices.ready_since.as_ref() } else { None };
        let waited = waiting_since.map_or(Duration::MAX, |since| since.until(now));
        let after_trigger = self.sent.until(now) >= self.silent_after;
        after_trigger
            && silent_for(flow, now) >= self.silent_after
            && waited >= self.silent_after.max(REPLACEMENT_TAKES)
    }
}

/// Whether a flow has ended or has moved to another instance: its fate is known.
fn is_over(flow: &FlowState) -> bool {
    flow.ended || (flow.protocol == Protocol::Udp && flow.current != flow.first)
}

/// How long a flow has had no answer.
pub fn silent_for(flow: &FlowState, now: &Stamp) -> Duration {
    flow.last_answer.as_ref().map_or(Duration::MAX, |answer| answer.until(now))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::Identity;
    use crate::watch::{EndpointState, PodState};
    use std::sync::Arc;

    const MS: i64 = 1_000_000;

    fn by(uid: &str) -> Option<Arc<Identity>> {
        let text = uid.to_owned();
        Some(Arc::new(Identity { pod: text.clone(), uid: text.clone(), instance: text }))
    }

    fn udp(current: &str, last_ms: i64) -> FlowState {
        FlowState {
            id: "udp-1".into(),
            protocol: Protocol::Udp,
            first: by("old"),
            current: by(current),
            last_answer: Some(Stamp::runner(last_ms * MS)),
            unanswered: 0,
            refusals: 0,
            failed: false,
            ended: false,
        }
    }

    fn scenario(trigger: &str) -> Scenario {
        let open = ["relabel", "node-stop"].contains(&trigger);
        let observe_for_ms = open.then_some(6000);
        let config = serde_json::json!({
            "description": null, "sigterm": "exit", "drain_window_ms": null, "readiness": null,
            "trigger": trigger, "grace_period_ms": 30000, "settle_ms": 0, "observe_after_ms": 0,
            "repeats": 1, "observe_for_ms": observe_for_ms,
            "flows": {"tcp": 0, "udp": 1, "tcp_interval_ms": 100, "udp_interval_ms": 20,
                      "silent_after_ms": 2000, "enter_by": "other-node"},
            "pod": {"readiness_period_ms": 1000, "readiness_failures": 1},
        });
        serde_json::from_value(config).expect("a scenario")
    }

    /// The target is gone and unlisted; a replacement is ready since `ready_ms`, if at all.
    fn world(ready_ms: Option<i64>) -> (PodsView, SlicesView) {
        let (mut pods, mut slices) = (PodsView::default(), SlicesView::default());
        pods.pods.insert("old".into(), PodState { gone: true, ..PodState::default() });
        if let Some(at) = ready_ms {
            pods.pods.insert("new".into(), PodState { ready: true, ..PodState::default() });
            let endpoint = EndpointState { ready: true, ..EndpointState::default() };
            slices.slices.entry("s".into()).or_default().insert("new".into(), endpoint);
            slices.ready_since = Some(Stamp::runner(at * MS));
        }
        (pods, slices)
    }

    fn ended(trigger: &str, flow: FlowState, ready_ms: Option<i64>, now_ms: i64) -> bool {
        let (config, sent) = (scenario(trigger), Stamp::runner(0));
        let (pods, slices) = world(ready_ms);
        Stories::new(&config, "old", &sent, true).ended(
            &[flow],
            &pods,
            &slices,
            &Stamp::runner(now_ms * MS),
        )
    }

    #[test]
    fn a_silent_flow_is_waited_for_until_the_replacement_has_had_its_time() {
        assert!(!ended("delete", udp("old", 45), None, 9000), "no replacement yet");
        assert!(!ended("delete", udp("old", 45), Some(1700), 3600), "1.9 s after it");
        assert!(ended("delete", udp("old", 45), Some(1700), 3700), "2 s after it");
    }

    #[test]
    fn a_flow_that_has_moved_has_ended_its_story_and_one_that_is_answered_has_not() {
        assert!(ended("delete", udp("new", 2600), Some(1700), 2700));
        assert!(!ended("delete", udp("old", 3690), Some(1700), 3700));
    }

    #[test]
    fn without_a_replacement_silence_alone_counts() {
        assert!(!ended("scale-to-zero", udp("old", 45), None, 2000));
        assert!(ended("scale-to-zero", udp("old", 45), None, 2045));
    }
    /// Nothing ends: not the pod, and no flow that is still answered by it.
    #[test]
    fn where_nothing_need_end_the_time_is_up_or_no_flow_is_left() {
        assert!(!ended("relabel", udp("old", 5900), Some(1700), 5900));
        assert!(ended("relabel", udp("old", 5900), Some(1700), 6000));
        assert!(ended("relabel", udp("new", 2600), Some(1700), 2700), "moved");
        // Silence may have an end there.
        assert!(!ended("node-stop", udp("old", 45), None, 5900));
        assert!(ended("node-stop", udp("old", 45), None, 6000));
    }

    #[test]
    fn a_crashed_pod_goes_on_itself() {
        let (config, sent) = (scenario("crash"), Stamp::runner(0));
        let mut pods = PodsView::default();
        let mut slices = SlicesView::default();
        let endpoint = EndpointState { ready: true, ..EndpointState::default() };
        slices.slices.entry("s".into()).or_default().insert("old".into(), endpoint);
        let mut story = |pod: PodState, flow: FlowState| {
            pods.pods.insert("old".into(), pod);
            let stories = Stories::new(&config, "old", &sent, true);
            stories.ended(&[flow], &pods, &slices, &Stamp::runner(9000 * MS))
        };
        let moved = || FlowState { ended: true, ..udp("old", 45) };
        let ready = PodState { ready: true, ..PodState::default() };
        assert!(!story(ready.clone(), moved()), "its process is still the first one");
        let mut restarted = ready;
        restarted.terminated.insert(CONTAINER.into(), (137, 0));
        assert!(story(restarted.clone(), moved()));
        restarted.ready = false;
        assert!(!story(restarted, moved()), "not ready again");
    }
}
