//! The end of a trial, however it came: its record.

use super::{Halt, Run};
use crate::clock::Stamp;
use crate::observation::Event;
use crate::record::{self, TRIAL_FORMAT, Trial};
use crate::run::{dials, memory, pace};
use crate::verdict::Outcome;
use crate::{timeline, verdict};

impl Run<'_> {
    /// Ends flows and watches, places and judges what was seen.
    pub(super) async fn finish(mut self, halt: Option<Halt>, repeat: u32) -> Trial {
        let clocks = self.clocks();
        let mut runner_warnings = std::mem::take(&mut self.warnings);
        let dialled = self.dial_states();
        runner_warnings.extend(dials::kept_up(&dialled));
        if let Some(dials) = self.dials.take() {
            dials.finish(halt.is_none()).await;
        }
        // Before the flows are stopped: what the runner itself then ends is no evidence.
        runner_warnings.extend(self.kernel.finish());
        if let Some(flows) = self.flows.take() {
            let counters = flows.counters();
            runner_warnings
                .extend(pace::kept_up(&counters).into_iter().chain(pace::unstamped(&counters)));
            flows.finish().await;
        }
        let mut seen: Vec<_> = [self.pods.gap(), self.slices.gap()].into_iter().flatten().collect();
        drop((self.pods, self.slices, self.log, self.sink));
        // Thousands of flows have told a hundred thousand: no more room than they take.
        seen.reserve_exact(self.seen.len());
        while let Ok(observation) = self.seen.try_recv() {
            seen.push(observation);
        }
        memory::give_back();
        if !dialled.is_empty() {
            seen = dials::without_kernel_events(seen);
        }
        let (outcome, reason) = match halt {
            None => (Outcome::Measured, None),
            Some(Halt::Failed(failure)) => (Outcome::Aborted, Some(failure.to_string())),
            Some(Halt::Interrupted(signal)) => {
                (Outcome::Aborted, Some(format!("interrupted by {signal}")))
            }
            Some(Halt::Refused(answer)) => (Outcome::TriggerRefused, Some(answer)),
        };
        // A trigger that was not answered was sent all the same; without any, times count from
        // the trial's end.
        let sent = seen.iter().find(|o| matches!(o.event, Event::TriggerSent { .. }));
        let zero = sent.map_or_else(Stamp::now, |sent| sent.at.clone());
        let placed = timeline::place(seen, &zero, &clocks);
        memory::give_back();
        runner_warnings.extend(placed.warnings);
        let context = self.context;
        let arm = context.arm;
        let verdict =
            verdict::judge(&placed.observations, &arm.config, self.target.as_ref(), outcome);
        Trial {
            format: TRIAL_FORMAT.to_owned(),
            id: format!("{}/{repeat:03}", arm.name),
            matrix: context.plan.matrix.clone(),
            arm: arm.name.clone(),
            scenario: arm.scenario.clone(),
            axes: arm.axes.iter().cloned().collect(),
            repeat,
            outcome,
            reason,
            tool: context.tool.clone(),
            config: arm.config.clone(),
            overrides: context.plan.overrides.clone(),
            environment: context.environment.clone(),
            clocks,
            started_at: self.started_at.to_string(),
            zero_ns: Some(zero.ns),
            target: self.target,
            checks: self.checks,
            observations: placed.observations,
            flows: verdict.flows,
            dials: verdict.dials,
            findings: verdict.findings,
            finding_bounds: verdict.finding_bounds,
            exactness: record::exactness(&arm.config),
            warnings: verdict.warnings,
            runner_warnings,
            imported: None,
        }
    }
}
