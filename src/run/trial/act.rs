//! The trigger, and what is observed after it.

use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::{Halt, LOOK, Run};
use crate::clock::Stamp;
use crate::config::{Scenario, Trigger};
use crate::flow::Flows;
use crate::flow::dials::Dials;
use crate::observation::{Event, Observation, Source};
use crate::run::dials;
use crate::run::observe::Stories;
use crate::run::preflight;
use crate::trigger::{Answer, Prepared};

/// Looking at thousands of flows takes their thread's time: once a story is observed, at most one part
/// in so many of it, as long as no more than this goes by between two looks.
const LOOK_SHARE: u32 = 50;
const LONGEST_LOOK: Duration = Duration::from_millis(250);
/// How long the trigger may take to be answered.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// How long the log may take to end once its container has.
const LOG_LIMIT: Duration = Duration::from_millis(500);
/// How long a trial may go on after its grace period before its time limit ends it.
const OVERTIME: Duration = Duration::from_secs(30);
/// How much longer for each pod that a rollout replaces first.
const REPLACEMENT: Duration = Duration::from_secs(10);

impl Run<'_> {
    /// Sends the trigger; gives when.
    pub(super) async fn fire(&mut self, trigger: &Prepared<'_>) -> Result<Stamp, Halt> {
        // What dials met before the trigger and after it must not be told as one.
        self.dials.iter().for_each(Dials::hold);
        let fired = timeout(ANSWER_LIMIT, trigger.fire(&self.sink)).await;
        let sent = fired.as_ref().ok().and_then(|fired| Some(&fired.as_ref().ok()?.0));
        self.dials.iter().for_each(|dials| dials.release(sent));
        let (sent, answer) = match fired {
            Ok(Ok(answered)) => answered,
            Ok(Err(error)) => return Err(preflight::trigger_answered(error.to_string()).into()),
            Err(_) => {
                let found = format!("no answer within {} s", ANSWER_LIMIT.as_secs());
                return Err(preflight::trigger_answered(found).into());
            }
        };
        match answer {
            Answer::Accepted => Ok(sent),
            Answer::Refused { status, message } => {
                Err(Halt::Refused(format!("{status}: {message}")))
            }
        }
    }

    /// Watches until every story has ended and the container is gone, then a while longer.
    pub(super) async fn observe(&mut self, uid: &str, sent: &Stamp) {
        let config = &self.context.arm.config;
        let limit = Instant::now() + longest(config);
        let nodes = self.context.cluster.nodes();
        let elsewhere = nodes.iter().filter(|node| node.takes_pods).count() > 1;
        let stories = Stories::new(config, uid, sent, elsewhere);
        let mut next = Instant::now();
        let mut aftermath = dials::Aftermath::default();
        let complete = loop {
            tokio::time::sleep(LOOK).await;
            self.kernel.watch(self.context.cluster, &self.pods.view());
            self.kernel.look();
            let began = Instant::now();
            if began >= limit {
                break false;
            }
            if began < next {
                continue;
            }
            let flows = self.flows.as_ref().map(Flows::states).unwrap_or_default();
            next = Instant::now() + (began.elapsed() * LOOK_SHARE).min(LONGEST_LOOK);
            if stories.ended(&flows, &self.pods.view(), &self.slices.view(), &Stamp::now())
                && aftermath.is_over(&self.dial_states(), &Stamp::now())
            {
                break true;
            }
        };
        tokio::time::sleep(config.observe_after).await;
        if let Some(log) = &mut self.log {
            // What the app said last may still be on its way.
            let _ = timeout(LOG_LIMIT, log.until(|view| view.ended)).await;
        }
        let end = Event::ObservationEnded { complete };
        let _ = self.sink.send(Observation::exact(Stamp::now(), Source::Runner, end));
    }
}

/// How long an observation may take before its time limit ends it.
fn longest(config: &Scenario) -> Duration {
    let story = match (config.observe_for, config.trigger) {
        (Some(time), _) => time,
        (None, Trigger::Rollout) => config.grace() + REPLACEMENT * config.pod.replicas,
        // A pod that is gone from the API may still have all of its own grace period.
        (None, _) => config.grace().max(config.grace_period),
    };
    story + OVERTIME
}
