//! The figures of a trial, as the record says them, and how exact each is.
//!
//! Types and their names; what each figure is in a trial is for [`super::judge`] to say.

use serde::{Deserialize, Serialize};

use super::dials::DialFindings;
use crate::observation::Bound;

/// The figures of one trial, in milliseconds from the trigger (`_ms`) or as named; null where
/// not measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default)]
pub struct Findings {
    /// The target's app received SIGTERM (its own clock).
    pub sigterm_ms: Option<f64>,
    /// The target's endpoint was seen with ready=false or gone (at most).
    pub endpoint_not_ready_ms: Option<f64>,
    /// The target's endpoint was seen with serving=false or gone (at most).
    pub endpoint_not_serving_ms: Option<f64>,
    /// The target's endpoint was seen gone (at most).
    pub endpoint_removed_ms: Option<f64>,
    /// None of the Service's ports led new flows to the target any more in the entry node's rules (kernel
    /// evidence; null without, and where some of it was missed).
    pub rules_removed_ms: Option<f64>,
    /// The last TCP flow's end; null unless each of them has a known one.
    pub last_tcp_end_ms: Option<f64>,
    /// The first UDP flow's first answer by another instance.
    pub first_rehomed_ms: Option<f64>,
    /// The last UDP flow's first answer by another instance.
    pub last_rehomed_ms: Option<f64>,
    /// The first refusal that any UDP flow met after the trigger.
    pub first_refused_ms: Option<f64>,
    /// Another pod's endpoint was seen ready after the trigger (at most).
    pub replacement_ready_ms: Option<f64>,
    /// The process of the target's container ended (kernel evidence; at most).
    pub process_exit_ms: Option<f64>,
    /// The target's container was seen terminated (at most).
    pub container_exit_ms: Option<f64>,
    /// Its exit code.
    pub container_exit_code: Option<i32>,
    /// How late the kill of a container that ended with 137 was: its app's last TCP end (where the
    /// app ignored SIGTERM and all TCP flows have ended; else `container_exit_ms`, at most) less
    /// `sigterm_ms` less the grace period.
    pub sigkill_after_grace_ms: Option<f64>,
    /// Last TCP end to endpoint removal (exit behaviour): the Service still lists a dead pod.
    pub dead_endpoint_window_ms: Option<f64>,
    /// Last TCP end to ready=false (exit behaviour): the Service still calls it ready; negative
    /// when it stopped doing so before.
    pub dead_ready_window_ms: Option<f64>,
    /// Last TCP end to `rules_removed_ms` (exit behaviour): new connections still go to a dead pod;
    /// negative when the rules had left it out before.
    pub dead_rule_window_ms: Option<f64>,
    /// What is left of the drain window when the last UDP flow has moved (drain behaviour).
    pub unused_drain_ms: Option<f64>,
    /// SIGTERM to the container's exit as seen by the probe: the app's own shutdown time.
    pub app_shutdown_ms: Option<f64>,
    /// Those of new connections.
    #[serde(flatten)]
    pub dials: DialFindings,
}

impl Findings {
    /// Each figure by its name in the record, in its order; a code is a figure too.
    pub fn figures(&self) -> Vec<(&'static str, Option<f64>)> {
        let mut figures = vec![
            ("sigterm_ms", self.sigterm_ms),
            ("endpoint_not_ready_ms", self.endpoint_not_ready_ms),
            ("endpoint_not_serving_ms", self.endpoint_not_serving_ms),
            ("endpoint_removed_ms", self.endpoint_removed_ms),
            ("rules_removed_ms", self.rules_removed_ms),
            ("last_tcp_end_ms", self.last_tcp_end_ms),
            ("first_rehomed_ms", self.first_rehomed_ms),
            ("last_rehomed_ms", self.last_rehomed_ms),
            ("first_refused_ms", self.first_refused_ms),
            ("replacement_ready_ms", self.replacement_ready_ms),
            ("process_exit_ms", self.process_exit_ms),
            ("container_exit_ms", self.container_exit_ms),
            ("container_exit_code", self.container_exit_code.map(f64::from)),
            ("sigkill_after_grace_ms", self.sigkill_after_grace_ms),
            ("dead_endpoint_window_ms", self.dead_endpoint_window_ms),
            ("dead_ready_window_ms", self.dead_ready_window_ms),
            ("dead_rule_window_ms", self.dead_rule_window_ms),
            ("unused_drain_ms", self.unused_drain_ms),
            ("app_shutdown_ms", self.app_shutdown_ms),
        ];
        figures.extend(self.dials.figures());
        figures
    }
}

/// How exact a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct FindingBound {
    /// Whether the finding is the figure itself or its upper bound.
    pub bound: Bound,
    /// Added by relating clocks; 0 on one clock, null where no bound is known.
    pub plus_minus_ms: Option<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_named_and_ordered_as_in_the_record() {
        let json = serde_json::to_string(&Findings::default()).unwrap();
        let figures = Findings::default().figures().into_iter();
        let names: Vec<_> = figures.map(|(name, _)| format!("\"{name}\":null")).collect();
        assert_eq!(json, format!("{{{}}}", names.join(",")));
    }
}
