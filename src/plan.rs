//! A matrix becomes arms, arms become trials.
//!
//! Takes what [`crate::config`] resolved; gives the [`Plan`] that the runner follows and that
//! `drainwatch plan` prints.

use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use crate::config::Arm;
use crate::config::{self, Errors, Matrix, Sigterm, Trigger};

/// To bring a cluster up, as measured with local clusters.
const CLUSTER: Duration = Duration::from_secs(6);
/// From a trial's start until all its flows are held.
const SET_UP: Duration = Duration::from_secs(4);
/// Until the other replicas are ready.
const OTHERS: Duration = Duration::from_secs(3);
/// To remove what a trial left.
const CLEAN_UP: Duration = Duration::from_secs(1);

/// All that one `apply` will do, in order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Plan {
    /// The matrix's name: its file's stem.
    pub matrix: String,
    /// The arms, in the order in which they run.
    pub arms: Vec<Arm>,
    /// The `--set` overrides, as given.
    pub overrides: Vec<String>,
    /// The `--only` selections, as given.
    pub only: Vec<String>,
}

/// The plan of a matrix or scenario file; `set` and `only` as in [`config::load`].
///
/// # Errors
///
/// Everything that is wrong in the files and the flags, ready to be printed.
pub fn load(file: &Path, set: &[String], only: &[String]) -> Result<Plan, Errors> {
    config::load(file, set, only).map(Plan::new)
}

impl Plan {
    /// The plan of a matrix: its arms in its order, each arm's trials one after another.
    pub fn new(matrix: Matrix) -> Self {
        let Matrix { name, arms, overrides, only, .. } = matrix;
        Self { matrix: name, arms, overrides, only }
    }

    /// How many trials there are in all.
    pub fn trials(&self) -> u32 {
        self.arms.iter().map(|arm| arm.config.repeats).sum()
    }

    /// About how long it takes, clusters included.
    pub fn expected_duration(&self) -> Duration {
        self.arms.iter().map(Arm::expected_duration).sum()
    }
}

impl Arm {
    /// A trial's id: `drain-delete/001`; `repeat` counts from 1.
    pub fn trial_id(&self, repeat: u32) -> String {
        format!("{}/{repeat:03}", self.name)
    }

    /// About how long it takes, its cluster included.
    pub fn expected_duration(&self) -> Duration {
        self.expected_for(self.config.repeats)
    }

    /// About how long this many of its trials take, its cluster included.
    pub fn expected_for(&self, trials: u32) -> Duration {
        let clusters = if self.config.trigger.spends_the_cluster() { trials } else { 1 };
        CLUSTER * clusters + self.expected_trial() * trials
    }

    /// About how long one of its trials takes.
    pub fn expected_trial(&self) -> Duration {
        let config = &self.config;
        let others = if config.pod.replicas > 1 { OTHERS } else { Duration::ZERO };
        SET_UP + others + config.settle + self.expected_story() + config.observe_after + CLEAN_UP
    }

    /// About how long it is from the trigger until the container is gone and every flow's story
    /// has ended.
    pub fn expected_story(&self) -> Duration {
        const SECOND: Duration = Duration::from_secs(1);
        let config = &self.config;
        if let Some(time) = config.observe_for {
            return time;
        }
        let begins = match config.trigger {
            Trigger::Crash => return SECOND * 4,
            // One pod after another has to come first.
            Trigger::Rollout => SECOND * 2 * config.pod.replicas,
            _ => Duration::ZERO,
        };
        let hook = config.pod.pre_stop_sleep().unwrap_or_default();
        let grace = config.grace();
        begins
            + match (config.sigterm, config.drain_window) {
                (Sigterm::Exit, _) => hook.min(grace) + SECOND * 4,
                (Sigterm::Drain, Some(window)) => (hook + window).min(grace) + SECOND,
                (Sigterm::Drain | Sigterm::Ignore, _) => grace + SECOND,
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(name: &str) -> Plan {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("matrices");
        load(&folder.join(name), &[], &[]).unwrap()
    }

    #[test]
    fn the_paper_has_25_trials_in_a_quarter_of_an_hour() {
        let plan = plan("paper.toml");
        assert_eq!(plan.trials(), 25);
        assert_eq!(plan.arms[0].trial_id(1), "exit-delete/001");
        let seconds: Vec<u64> = plan.arms.iter().map(|a| a.expected_duration().as_secs()).collect();
        assert_eq!(seconds, [111, 221, 246, 221, 221]);
        assert_eq!(plan.expected_duration().as_secs(), 1_020);
    }

    /// Resuming reads it back.
    #[test]
    fn a_plan_survives_its_record() {
        let plan = plan("readiness.toml");
        let json = serde_json::to_string(&plan).unwrap();
        assert_eq!(serde_json::from_str::<Plan>(&json).unwrap(), plan);
    }
}
