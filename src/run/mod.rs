//! The runner: arms in their order, a fresh cluster for each, their trials one after another.
//!
//! Takes a plan and a provider; gives a run's folder that is whole at every instant, and events
//! for whoever displays them. The only stage that sees several others. Writes nothing for people.

mod clocks;
mod context;
mod dials;
mod difference;
mod entry;
mod events;
mod evidence;
mod kernel;
pub mod limits;
mod memory;
mod observe;
mod pace;
mod preflight;
mod resume;
mod signals;
mod tool;
mod trial;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::cluster::local::PAUSE_IMAGE;
use crate::cluster::{Cluster, ClusterError, Provider, environment};
use crate::config::Trigger;
use crate::observation::{Event, Observation};
use crate::plan::{Arm, Plan};
use crate::record::{
    ArmStage, Claim, EnvironmentRef, RUN_FILE, Run, Tool, Trial, UNFINISHED_LOGS, WriteError,
};
use crate::verdict::Outcome;
use crate::workload;
use crate::workload::image::{self, Image};

pub use difference::{Difference, plans as plan_differences};
pub use events::{Events, Phase, RunEvent};
pub use limits::OTHER_DESCRIPTORS;
pub use resume::{Earlier, Refused, ResumeError};
pub use signals::Stop;
pub use tool::current as current_tool;

use context::ArmContext;
use resume::Environments;

/// Trials aborted one after another that end an arm.
const ABORTS_THAT_END_AN_ARM: u32 = 3;

/// What a run came to.
#[derive(Default)]
pub struct Ended {
    /// Every trial in the folder, in order: those that were there before included. Those of this run
    /// are without their observations, which are in their files.
    pub trials: Vec<Trial>,
    /// Arms whose cluster could not be had, and why.
    pub clusters_not_had: Vec<(String, String)>,
    /// Arms that were not gone on with: their trials would have been of two kinds.
    pub refused: Vec<Refused>,
    /// The signal that ended it.
    pub signal: Option<Signal>,
    /// The file that could not be written, which ended it.
    pub failed: Option<WriteError>,
    /// The last arm's cluster, where it was to be kept and could be had: the caller's to remove.
    pub kept: Option<Box<dyn Cluster>>,
}

/// A run: what it needs from its caller.
pub struct Runner<'a> {
    /// What to do.
    pub plan: &'a Plan,
    /// Who makes the clusters.
    pub provider: &'a dyn Provider,
    /// The build that measures.
    pub tool: Tool,
    /// The run's folder.
    pub folder: &'a Claim,
    /// Whether the last cluster, with the last trial's workload, is left for a look.
    pub keep_cluster: bool,
    /// Where progress is told.
    pub events: Events,
}

/// A run under way.
struct Going {
    /// As it stands, or soon will, in the folder.
    record: Run,
    ended: Ended,
    /// The last arm that has trials left.
    last: Option<usize>,
}

impl Runner<'_> {
    /// Runs what is left of the plan, in the order of its arms. A file that can't be written ends
    /// it: what is measured after that would be lost.
    pub async fn run(&self, mut earlier: Earlier, stop: &mut Stop) -> (Run, Ended) {
        let left = earlier.left();
        // One that had come to its end, and has nothing left, ended when it did.
        let was_ended = earlier.record.ended_at.is_some() && earlier.record.interrupted.is_none();
        earlier.catch_up(self.folder);
        let arms = self.plan.arms.iter().enumerate();
        let todo: Vec<usize> =
            arms.filter(|(_, arm)| !earlier.missing(arm).is_empty()).map(|(at, _)| at).collect();
        let resumed = earlier.is_resumed;
        let Earlier { record, trials, .. } = earlier;
        let ended = Ended { trials, ..Ended::default() };
        let mut run = Going { record, ended, last: todo.last().copied() };

        let mut result = self.begin(&mut run, left, resumed);
        for index in todo {
            if result.is_err() || stop.asked().is_some() {
                break;
            }
            result = self.arm(index, &mut run, stop).await;
        }
        let Going { mut record, mut ended, .. } = run;
        ended.signal = stop.asked();
        let arms = &self.plan.arms;
        let place = |arm: &str| arms.iter().position(|a| a.name == arm).unwrap_or(arms.len());
        ended.trials.sort_by_key(|trial| (place(&trial.arm), trial.repeat));
        if result.is_ok() && (left > 0 || !was_ended) {
            record.ended_at = Some(jiff::Timestamp::now().to_string());
            record.interrupted = ended.signal.map(|signal| signal.as_str().to_owned());
            result = self.write(&record);
        }
        self.tell(RunEvent::RunEnded);
        ended.failed = result.err();
        (record, ended)
    }

    /// Makes the folder one of a run that is going on.
    fn begin(&self, run: &mut Going, left: usize, resumed: bool) -> Result<(), WriteError> {
        self.folder.remove_unfinished()?;
        let stands = |trial: &Trial| {
            resume::kept(&run.ended.trials, &trial.arm).any(|kept| kept.repeat == trial.repeat)
        };
        let aborted = |trial: &&Trial| trial.outcome == Outcome::Aborted && stands(trial);
        let superseded: Vec<_> = run.ended.trials.iter().filter(aborted).cloned().collect();
        for trial in superseded {
            self.set_aside(&trial.arm, trial.repeat, run)?;
        }
        if left > 0 {
            run.record.tool = self.tool.clone();
            run.record.ended_at = None;
            run.record.interrupted = None;
            if resumed {
                run.record.resumed_at.push(jiff::Timestamp::now().to_string());
            }
            self.write(&run.record)?;
        }
        let trials = self.plan.trials() as usize;
        let of_trials = |arm: &Arm| {
            let left = resume::missing(&run.ended.trials, arm).len() as u32; // repeats are a u32
            if left == 0 { Duration::ZERO } else { arm.expected_for(left) }
        };
        self.tell(RunEvent::RunStarted {
            matrix: self.plan.matrix.clone(),
            arms: self.plan.arms.len(),
            trials,
            recorded: trials - left,
            expected: self.plan.arms.iter().map(of_trials).sum(),
            output: self.folder.path().to_owned(),
        });
        Ok(())
    }

    /// Runs what is left of one arm: on one cluster after another where trials spend them.
    async fn arm(&self, index: usize, run: &mut Going, stop: &mut Stop) -> Result<(), WriteError> {
        let arm = &self.plan.arms[index];
        self.folder.supersede_logs(&arm.name)?;
        run.record.arms[index].state = ArmStage::Running;
        run.record.arms[index].reason = None;
        self.write(&run.record)?;
        self.tell(RunEvent::ArmStarted {
            arm: arm.name.clone(),
            number: index + 1,
            trials: arm.config.repeats,
            recorded: resume::kept(&run.ended.trials, &arm.name).count() as u32,
        });
        let mut aborts = 0;
        let result = loop {
            match self.on_a_cluster(index, &mut aborts, run, stop).await {
                Ok(Gone::Stopped) => {
                    run.record.arms[index].state = resume::stopped(&run.ended.trials, arm);
                    return self.write(&run.record);
                }
                Ok(Gone::Spent) => {}
                Ok(Gone::Through) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        let state = &mut run.record.arms[index];
        match result {
            Ok(()) => {}
            Err(ArmError::Write(error)) => return Err(error),
            Err(ArmError::Cluster(error)) => {
                state.state = ArmStage::Failed;
                state.reason = Some(error.to_string());
                run.ended.clusters_not_had.push((arm.name.clone(), error.to_string()));
            }
            Err(ArmError::Refused(refused)) => {
                state.state = ArmStage::Refused;
                state.reason = Some(refused.line());
                run.ended.refused.push(refused);
            }
        }
        if state.state == ArmStage::Running {
            state.state = ArmStage::Interrupted;
        }
        let reason = state.reason.clone();
        self.tell(RunEvent::ArmEnded { arm: arm.name.clone(), reason });
        self.write(&run.record)
    }

    /// Runs trials of an arm on a cluster of their own: up, trials, down.
    async fn on_a_cluster(
        &self,
        index: usize,
        aborts: &mut u32,
        run: &mut Going,
        stop: &mut Stop,
    ) -> Result<Gone, ArmError> {
        let arm = &self.plan.arms[index];
        let logs = self.folder.path().join(&arm.name).join("logs");
        let began = Instant::now();
        let cluster = tokio::select! {
            up = self.provider.up(&arm.cluster, &logs) => up?,
            _ = stop.wait() => return Ok(Gone::Stopped),
        };
        let (name, took) = (cluster.name().to_owned(), began.elapsed());
        self.tell(RunEvent::ClusterUp { cluster: name, took });
        let result = self.trials(index, &*cluster, aborts, run, stop).await;
        let failed = matches!(&result, Err(ArmError::Cluster(_)));
        // Those of the first cluster in which something went wrong are kept.
        if (failed || run.record.arms[index].trials_aborted > 0) && !logs.exists() {
            self.keep_logs(&*cluster, &arm.name).await;
        }
        let ends_the_run = stop.asked().is_some() || matches!(&result, Err(ArmError::Write(_)));
        let goes_on = matches!(&result, Ok(Gone::Spent));
        if self.keep_cluster && run.last == Some(index) && !ends_the_run && !goes_on {
            run.ended.kept = Some(cluster);
        } else {
            self.take_down(cluster).await;
        }
        result
    }

    /// Runs what is left of an arm's trials on a cluster, each on disk before the next one starts, as
    /// long as it is of use.
    async fn trials(
        &self,
        index: usize,
        cluster: &dyn Cluster,
        aborts: &mut u32,
        run: &mut Going,
        stop: &mut Stop,
    ) -> Result<Gone, ArmError> {
        let arm = &self.plan.arms[index];
        let context = tokio::select! {
            context = self.prepare(arm, cluster, &run.ended.trials) => context?,
            _ = stop.wait() => return Ok(Gone::Through),
        };
        let repeats = resume::missing(&run.ended.trials, arm);
        for &repeat in &repeats {
            if stop.asked().is_some() {
                return Ok(Gone::Through);
            }
            self.set_aside(&arm.name, repeat, run)?;
            self.tell(RunEvent::TrialStarted {
                id: arm.trial_id(repeat),
                expected: arm.expected_trial(),
            });
            let (mut trial, workload) = trial::run(&context, repeat, stop).await;
            *aborts = if trial.outcome == Outcome::Aborted { *aborts + 1 } else { 0 };
            let is_last = repeats.last() == Some(&repeat);
            let gives_up = *aborts == ABORTS_THAT_END_AN_ARM && !is_last;
            let stays = self.keep_cluster && run.last == Some(index) && (is_last || gives_up);
            let mut spent = spends_the_cluster(&trial);
            if !stays {
                spent |= !trial::remove(&context, &workload, &mut trial, stop).await;
            }
            self.folder.still_there()?;
            trial.write(self.folder.path())?;
            // They are on disk, and nothing from here on reads them: of thousands of flows they
            // would take tens of megabytes a trial.
            trial.observations = Vec::new();
            memory::give_back();
            run.ended.trials.push(trial.clone());
            let state = &mut run.record.arms[index];
            state.count(&run.ended.trials);
            if gives_up {
                state.state = ArmStage::Ended;
                state.reason = Some(format!("{aborts} trials in a row were aborted"));
            }
            self.write(&run.record)?;
            self.tell(RunEvent::TrialEnded(Arc::new(trial)));
            if gives_up {
                return Ok(Gone::Through);
            }
            if spent && !is_last {
                return Ok(Gone::Spent);
            }
        }
        if stop.asked().is_none() {
            run.record.arms[index].state = ArmStage::Done;
        }
        Ok(Gone::Through)
    }

    /// Puts the record of a trial's aborted attempt aside, if there is one: it is run again.
    fn set_aside(&self, arm: &str, repeat: u32, run: &mut Going) -> Result<(), WriteError> {
        let is_it = |trial: &Trial| {
            trial.arm == arm && trial.repeat == repeat && trial.outcome == Outcome::Aborted
        };
        let Some(at) = run.ended.trials.iter().position(is_it) else { return Ok(()) };
        self.folder.supersede_trial(&run.ended.trials[at])?;
        run.ended.trials.remove(at);
        if let Some(state) = run.record.arms.iter_mut().find(|state| state.name == arm) {
            state.count(&run.ended.trials);
            state.trials_superseded = self.folder.superseded_trials(arm);
        }
        Ok(())
    }

    /// Loads the images, makes the namespace, and records the environment: without it no trial.
    async fn prepare<'a>(
        &'a self,
        arm: &'a Arm,
        cluster: &'a dyn Cluster,
        trials: &[Trial],
    ) -> Result<ArmContext<'a>, ArmError> {
        let images = [Image::probe(), Image::pause(PAUSE_IMAGE)];
        let archive = image::Archive::of(&images).map_err(io("the probe's image"))?;
        cluster.load_image(&archive.path()).await?;
        let prepared = workload::prepare(&cluster.client(), &arm.config).await;
        prepared.map_err(|error| ClusterError::Component {
            component: "the trials' namespace".to_owned(),
            reason: error.to_string(),
            logs: None,
        })?;
        let environment = environment::read(cluster, self.provider.name()).await?;
        for warning in &environment.warnings {
            self.tell(RunEvent::Warning(format!("environment: {warning}")));
        }
        let digest = environment.digest.clone();
        let file = format!("environment/{}.json", arm.name);
        let place = Path::new(&file);
        match resume::join(self.folder, &arm.name, place, environment, trials)? {
            Environments::Record(record) => self.folder.write_json(place, &record)?,
            Environments::Refused(refused) => return Err(ArmError::Refused(refused)),
        }
        Ok(ArmContext {
            plan: self.plan,
            arm,
            cluster,
            tool: &self.tool,
            environment: EnvironmentRef { file, digest, cluster: cluster.name().to_owned() },
            events: &self.events,
        })
    }

    /// Keeps the logs of an arm's cluster, all of them or none.
    async fn keep_logs(&self, cluster: &dyn Cluster, arm: &str) {
        let unfinished = self.folder.path().join(arm).join(UNFINISHED_LOGS);
        let logs = self.folder.path().join(arm).join("logs");
        if self.folder.still_there().is_err() {
            return; // there is no run to keep them for
        }
        let mut kept = cluster.keep_logs(&unfinished).await;
        kept = kept.and_then(|()| std::fs::rename(&unfinished, &logs));
        if let Err(error) = kept {
            let _ = std::fs::remove_dir_all(&unfinished); // next time, if not now
            let folder = logs.display();
            self.tell(RunEvent::Warning(format!("logs could not be kept in {folder}: {error}")));
        }
    }

    async fn take_down(&self, cluster: Box<dyn Cluster>) {
        let name = cluster.name().to_owned();
        let began = Instant::now();
        match cluster.down().await {
            Ok(()) => self.tell(RunEvent::ClusterGone { cluster: name, took: began.elapsed() }),
            Err(error) => self.tell(RunEvent::Warning(format!("cluster {name}: {error}"))),
        }
    }

    fn write(&self, record: &Run) -> Result<(), WriteError> {
        self.folder.write_json(Path::new(RUN_FILE), record)
    }

    fn tell(&self, event: RunEvent) {
        // A display that is gone wants no events.
        let _ = self.events.send(event);
    }
}

/// Whether a trial's trigger leaves the cluster unfit for another trial. A restart of kube-proxy that was
/// begun, and of which no end is known, may have left a node without one.
fn spends_the_cluster(trial: &Trial) -> bool {
    let sent = |one: &Observation| matches!(one.event, Event::TriggerSent { .. });
    let restarting = trial.config.trigger == Trigger::RestartKubeProxy
        && trial.outcome == Outcome::Aborted
        && trial.observations.iter().any(sent);
    restarting || trial.config.trigger.spends_the_cluster()
}

/// What became of an arm's trials on one cluster.
enum Gone {
    /// There was no cluster: the run was to stop.
    Stopped,
    /// There are more, which need another cluster.
    Spent,
    /// There are no more, or no more are to be run.
    Through,
}

/// Why an arm could not go on.
enum ArmError {
    Cluster(ClusterError),
    Refused(Refused),
    Write(WriteError),
}

impl From<ClusterError> for ArmError {
    fn from(error: ClusterError) -> Self {
        Self::Cluster(error)
    }
}

impl From<WriteError> for ArmError {
    fn from(error: WriteError) -> Self {
        Self::Write(error)
    }
}

fn io(what: &str) -> impl FnOnce(std::io::Error) -> ClusterError {
    let what = what.to_owned();
    move |source| ClusterError::Io { what, source }
}

#[cfg(test)]
mod tests;
