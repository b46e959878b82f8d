//! What a run's folder holds when a run begins in it: what is left to do, and whether it may be
//! done.
//!
//! Takes a claimed folder; gives its trials and the plan's that are missing or aborted. Trials of
//! one arm are of one build, one configuration and one environment, or the arm is refused.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Component, Path};

use super::difference::{self, Difference};
use crate::cluster::environment::{ENVIRONMENT_FORMAT, Environment};
use crate::plan::{Arm, Plan};
use crate::record::{
    ArmStage, ArmState, Claim, LoadError, ReadError, Run, Tool, Trial, WriteError, load_run_dir,
    read_json,
};
use crate::verdict::Outcome;

/// What a run's folder holds.
#[derive(Clone, Debug)]
pub struct Earlier {
    /// The run, with the plan.
    pub record: Run,
    /// Its trials, aborted ones included.
    pub trials: Vec<Trial>,
    /// Whether a run had begun in the folder.
    pub is_resumed: bool,
}

/// A run can't be resumed from its folder.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say what the variants are
pub enum ResumeError {
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error(
        "{folder}: holds no run.json: what its run was to do is not known\n  name the folder of a run"
    )]
    NoPlan { folder: String },
    #[error(
        "{folder}/run.json: its plan can't be run: {what}\n  restore the file, or measure anew with --output"
    )]
    Plan { folder: String, what: String },
}

/// What no plan of ours has. Arms name folders: a file that somebody has edited must not lead out of
/// the run's.
fn wrong_in(plan: &Plan) -> Option<String> {
    if plan.arms.is_empty() {
        return Some("it has no arm".into());
    }
    let mut names = BTreeSet::new();
    plan.arms.iter().find_map(|Arm { name, config, .. }| {
        let mut parts = Path::new(name).components();
        let one = matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None));
        let taken = ["environment", "logs"].contains(&name.as_str());
        if !one || taken || name.contains(['/', '\0']) {
            Some(format!("{name:?} is no arm's name"))
        } else if !names.insert(name) {
            Some(format!("two arms are named {name:?}"))
        } else {
            (config.repeats == 0).then(|| format!("arm {name:?} has no trial"))
        }
    })
}

impl Earlier {
    /// Of a run that begins.
    pub fn nothing(tool: Tool, plan: Plan) -> Self {
        let record = Run::new(tool, plan, jiff::Timestamp::now().to_string());
        Self { record, trials: Vec::new(), is_resumed: false }
    }

    /// Reads a run's folder; `None` where nothing was recorded, since its run was ended before.
    ///
    /// # Errors
    /// One of its records can't be read, or what it holds is not of a run.
    pub fn read(folder: &Claim) -> Result<Option<Self>, ResumeError> {
        let no_plan = || ResumeError::NoPlan { folder: folder.path().display().to_string() };
        match load_run_dir(folder.path()) {
            Ok(found) => {
                let mut record = found.run.ok_or_else(no_plan)?;
                if let Some(what) = wrong_in(&record.plan) {
                    let folder = folder.path().display().to_string();
                    return Err(ResumeError::Plan { folder, what });
                }
                // One for each of the plan's arms, in its order, whoever has edited the file.
                let state = |arm: &Arm| record.arms.iter().find(|state| state.name == arm.name);
                let states =
                    record.plan.arms.iter().map(|arm| {
                        state(arm).cloned().unwrap_or_else(|| ArmState::pending(&arm.name))
                    });
                record.arms = states.collect();
                Ok(Some(Self { record, trials: found.trials, is_resumed: true }))
            }
            Err(LoadError::NoRecords { .. }) if folder.is_empty().is_ok_and(|empty| empty) => {
                Ok(None)
            }
            Err(LoadError::NoRecords { .. }) => Err(no_plan()),
            Err(error) => Err(error.into()),
        }
    }

    /// What measured its trials that this build, by its plan, would not measure the next ones by.
    pub fn differences(&self, tool: &Tool) -> Vec<Difference> {
        let kept = self.trials.iter().filter(|trial| is_kept(trial));
        difference::trials(kept, &self.record.plan, tool)
    }

    /// The repeats of an arm that are missing or aborted.
    pub fn missing(&self, arm: &Arm) -> Vec<u32> {
        missing(&self.trials, arm)
    }

    /// How many of the plan's trials are missing or aborted.
    pub fn left(&self) -> usize {
        self.record.plan.arms.iter().map(|arm| self.missing(arm).len()).sum()
    }

    /// Brings the record up to what the folder holds: a run that was killed could not.
    pub(super) fn catch_up(&mut self, folder: &Claim) {
        for (state, arm) in self.record.arms.iter_mut().zip(&self.record.plan.arms) {
            state.count(&self.trials);
            state.trials_superseded = folder.superseded_trials(&arm.name);
            match state.state {
                _ if missing(&self.trials, arm).is_empty() => {
                    (state.state, state.reason) = (ArmStage::Done, None);
                }
                // Its run was killed.
                ArmStage::Running => state.state = stopped(&self.trials, arm),
                _ => {}
            }
        }
    }
}

/// Whether a trial's record stands: it was measured, or its trigger refused. Aborted ones are run
/// again.
fn is_kept(trial: &Trial) -> bool {
    trial.outcome != Outcome::Aborted
}

/// An arm's records that stand.
pub(super) fn kept<'a>(trials: &'a [Trial], arm: &'a str) -> impl Iterator<Item = &'a Trial> {
    trials.iter().filter(move |trial| trial.arm == arm && is_kept(trial))
}

/// The repeats of an arm of which no record stands.
pub(super) fn missing(trials: &[Trial], arm: &Arm) -> Vec<u32> {
    let has = |repeat: &u32| kept(trials, &arm.name).any(|trial| trial.repeat == *repeat);
    (1..=arm.config.repeats).filter(|repeat| !has(repeat)).collect()
}

/// The state of an arm that has trials left and is not at work.
pub(super) fn stopped(trials: &[Trial], arm: &Arm) -> ArmStage {
    match trials.iter().any(|trial| trial.arm == arm.name) {
        true => ArmStage::Interrupted,
        false => ArmStage::Pending,
    }
}

/// An arm whose next trials would not be of one kind with its earlier ones.
#[derive(Clone, Debug)]
pub struct Refused {
    /// Its name.
    pub arm: String,
    /// Why, in a line.
    pub reason: String,
    /// What differs.
    pub differences: Vec<Difference>,
}

impl Refused {
    /// All of it in a line.
    pub fn line(&self) -> String {
        let differences: Vec<_> = self
            .differences
            .iter()
            .map(|d| format!("{}: {} earlier, {} now", d.key, d.earlier, d.now))
            .collect();
        match differences.as_slice() {
            [] => self.reason.clone(),
            all => format!("{}: {}", self.reason, all.join("; ")),
        }
    }
}

/// What becomes of an arm's environment record once it has another cluster.
pub(super) enum Environments {
    /// This is to be written.
    Record(Environment),
    /// No trial is to be measured in it.
    Refused(Refused),
}

/// Joins the environment of an arm's new cluster to the record of its earlier ones, at `place` in
/// the folder. A record that no standing trial was measured in, of another digest, is put aside.
pub(super) fn join(
    folder: &Claim,
    arm: &str,
    place: &Path,
    now: Environment,
    trials: &[Trial],
) -> Result<Environments, WriteError> {
    let refused = |reason, differences| {
        Ok(Environments::Refused(Refused { arm: arm.to_owned(), reason, differences }))
    };
    let path = folder.path().join(place);
    let earlier = match read_json::<Environment>(&path, ENVIRONMENT_FORMAT) {
        Ok(earlier) => Some(earlier),
        Err(ReadError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => None,
        Err(error) => return refused(error.to_string(), Vec::new()),
    };
    if let Some(trial) = kept(trials, arm).find(|trial| trial.environment.digest != now.digest) {
        let digest = &trial.environment.digest;
        let count = kept(trials, arm).count();
        let named = earlier.filter(|earlier| earlier.digest == *digest);
        let mut differences = named
            .map(|earlier| difference::environments(arm, &earlier.fixed, &now.fixed))
            .unwrap_or_default();
        if differences.is_empty() {
            differences.push(Difference {
                arm: Some(arm.to_owned()),
                part: "environment",
                key: format!("digest (what it covered is not in {})", place.display()),
                earlier: digest.clone(),
                now: now.digest,
            });
        }
        let trials = match count {
            1 => "earlier trial was".to_owned(),
            count => format!("{count} earlier trials were"),
        };
        let reason = format!("refused, not mixed: its {trials} measured in another environment");
        return refused(reason, differences);
    }
    Ok(Environments::Record(match earlier {
        Some(earlier) if earlier.digest == now.digest => now.after(earlier),
        Some(_) => {
            folder.supersede_environment(arm, place)?;
            now
        }
        None => now,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stories;
    use std::collections::BTreeMap;

    fn environment(cluster: &str, kernel: &str) -> Environment {
        Environment {
            format: ENVIRONMENT_FORMAT.into(),
            cluster: cluster.into(),
            provider: "local".into(),
            digest: format!("of {kernel}"),
            fixed: BTreeMap::from([("node/node-1/kernel".into(), kernel.into())]),
            varying: BTreeMap::from([("node network".into(), format!("of {cluster}"))]),
            warnings: Vec::new(),
            later_clusters: Vec::new(),
        }
    }

    /// A folder whose first trial was measured in this environment.
    struct Lab(tempfile::TempDir, Claim, Trial);

    const PLACE: &str = "environment/exit-delete.json";

    impl Lab {
        fn new(earlier: Option<Environment>, digest: &str) -> Self {
            let dir = tempfile::tempdir().unwrap();
            let claim = Claim::take(dir.path()).unwrap();
            if let Some(earlier) = earlier {
                claim.write_json(Path::new(PLACE), &earlier).unwrap();
            }
            let mut trial = stories::exit(1);
            trial.environment.digest = digest.into();
            Self(dir, claim, trial)
        }

        fn join(&self, now: Environment, trials: &[Trial]) -> Environments {
            join(&self.1, "exit-delete", Path::new(PLACE), now, trials).unwrap()
        }

        fn refused(&self, now: Environment) -> Refused {
            match self.join(now, std::slice::from_ref(&self.2)) {
                Environments::Refused(refused) => refused,
                Environments::Record(record) => panic!("{record:?}"),
            }
        }
    }

    #[test]
    fn another_cluster_of_the_same_environment_is_recorded_beside_the_first() {
        let lab = Lab::new(Some(environment("dw-1", "6.1")), "of 6.1");
        let joined = lab.join(environment("dw-2", "6.1"), std::slice::from_ref(&lab.2));
        let Environments::Record(record) = joined else { panic!("refused") };
        insta::assert_snapshot!(serde_json::to_string_pretty(&record).unwrap(), @r#"
        {
          "format": "drainwatch.environment/1",
          "cluster": "dw-1",
          "provider": "local",
          "digest": "of 6.1",
          "fixed": {
            "node/node-1/kernel": "6.1"
          },
          "varying": {
            "node network": "of dw-1"
          },
          "warnings": [],
          "later_clusters": [
            {
              "cluster": "dw-2",
              "varying": {
                "node network": "of dw-2"
              },
              "warnings": []
            }
          ]
        }
        "#);
    }

    #[test]
    fn another_environment_is_refused_key_by_key() {
        let lab = Lab::new(Some(environment("dw-1", "6.1")), "of 6.1");
        insta::assert_snapshot!(lab.refused(environment("dw-2", "6.18")).line(), @"refused, not mixed: its earlier trial was measured in another environment: node/node-1/kernel: 6.1 earlier, 6.18 now");
        // Where the record of the earlier one is not there, what it covered can't be named.
        let lab = Lab::new(None, "of 6.1");
        insta::assert_snapshot!(lab.refused(environment("dw-2", "6.18")).line(), @"refused, not mixed: its earlier trial was measured in another environment: digest (what it covered is not in environment/exit-delete.json): of 6.1 earlier, of 6.18 now");
    }

    #[test]
    fn an_environment_that_no_standing_trial_was_measured_in_is_put_aside() {
        let lab = Lab::new(Some(environment("dw-1", "6.1")), "of 6.1");
        let aborted = [stories::aborted("exit-delete", 1)];
        let joined = lab.join(environment("dw-2", "6.18"), &aborted);
        let Environments::Record(record) = joined else { panic!("refused") };
        assert_eq!(record, environment("dw-2", "6.18"));
        assert!(lab.0.path().join("exit-delete/superseded/exit-delete.1.json").is_file());
    }

    #[test]
    fn a_refused_trigger_stands_and_an_aborted_trial_does_not() {
        let mut refused = stories::trigger_refused(1);
        refused.arm = "exit-delete".into();
        let trials = [refused, stories::aborted("exit-delete", 2)];
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("matrices/paper.toml");
        let plan = crate::plan::load(&folder, &[], &["exit-delete".into()]).unwrap();
        assert_eq!(missing(&trials, &plan.arms[0]), [2, 3, 4, 5]);
    }
}
