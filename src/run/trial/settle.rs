//! The settle time: what must hold, unchanged, until the trigger is sent.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;

use super::{LOOK, Run};
use crate::clock::Stamp;
use crate::run::dials;
use crate::run::observe;
use crate::run::pace;
use crate::run::preflight::{self, Failure};

/// How long the trigger waits for flows that are late with an answer.
const LIVELY_LIMIT: Duration = Duration::from_secs(1);

impl Run<'_> {
    /// Lets the flows live until `end`; whatever befalls them, the target or another of `all` pods
    /// ends it.
    pub(super) async fn settle(
        &mut self,
        uid: &str,
        all: &BTreeSet<String>,
        end: Instant,
    ) -> Result<(), Failure> {
        let config = &self.context.arm.config;
        loop {
            let look = Instant::now() + LOOK;
            tokio::time::sleep_until(if Instant::now() < end { look.min(end) } else { look }).await;
            let Some(flows) = &self.flows else { return Err(preflight::settled("no flows")) };
            let now = Stamp::now();
            let states = flows.states();
            let late = states
                .iter()
                .find(|flow| observe::silent_for(flow, &now) > pace::lively(config, flow));
            let late = late.map(|flow| flow.id.clone());
            for flow in states {
                let silent = observe::silent_for(&flow, &now) >= config.flows.silent_after;
                let met = match &flow.current {
                    _ if flow.ended => "ended",
                    _ if silent => "silent",
                    _ if flow.failed => "failed on this machine",
                    _ if flow.refusals > 0 => "refused",
                    current if *current != flow.first => "answered by another process",
                    _ => continue,
                };
                let found = format!("{} {met}", flow.id);
                return Err(preflight::settled(found + &self.own_drops()));
            }
            let dialled = self.dial_states();
            dials::accepted(&dialled, &self.slices.view().ready())?;
            let late =
                late.or_else(|| dials::late(&dialled, config.dials.timeout, &now).map(Into::into));
            let pods = self.pods.view();
            let steady = |pod: &crate::watch::PodState| pod.ready && !pod.terminating && !pod.gone;
            if !pods.pods.get(uid).is_some_and(steady) {
                return Err(preflight::settled("a change of the target's pod"));
            }
            let same = pods.live().count() == all.len();
            if !(same && pods.live().all(|(uid, pod)| pod.ready && all.contains(uid))) {
                return Err(preflight::settled("a change of the other pods"));
            }
            if self.slices.view().ready_set() != *all {
                return Err(preflight::settled("a change of the endpoints"));
            }
            // What the trigger is to end must be alive when it is sent, not only not yet silent.
            match (late, Instant::now() >= end) {
                (None, true) => return Ok(()),
                (Some(flow), true) if Instant::now() >= end + LIVELY_LIMIT => {
                    return Err(preflight::settled(format!("{flow} without a recent answer")));
                }
                _ => {}
            }
        }
    }
}
