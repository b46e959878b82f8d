//! The runner: arms in their order, a fresh cluster for each, their trials one after another.
//!
//! Takes a plan and a provider; gives a run's folder that is whole at every instant, and events
//! for whoever displays them. The only stage that sees several others. Writes nothing for people.

mod clocks;
mod context;
mod events;
mod kernel;
pub mod limits;
mod observe;
mod pace;
mod preflight;
mod signals;
mod tool;
mod trial;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use nix::sys::signal::Signal;

use crate::cluster::local::PAUSE_IMAGE;
use crate::cluster::{Cluster, ClusterError, Provider, environment};
use crate::plan::{Arm, Plan};
use crate::record::{ArmStage, EnvironmentRef, Run, Tool, Trial, WriteError, write_json};
use crate::verdict::Outcome;
use crate::workload;
use crate::workload::image::{self, Image};

pub use events::{Events, Phase, RunEvent};
pub use limits::OTHER_DESCRIPTORS;
pub use signals::Stop;
pub use tool::current as current_tool;

use context::ArmContext;

/// Trials aborted one after another that end an arm.
const ABORTS_THAT_END_AN_ARM: u32 = 3;

/// What a run came to.
#[derive(Clone, Debug, Default)]
pub struct Ended {
    /// Every trial, in order, without its observations: those are in its file.
    pub trials: Vec<Trial>,
    /// Arms whose cluster could not be had, and why.
    pub clusters_not_had: Vec<(String, String)>,
    /// The signal that ended it.
    pub signal: Option<Signal>,
}

/// A run: what it needs from its caller.
pub struct Runner<'a> {
    /// What to do.
    pub plan: &'a Plan,
    /// Who makes the clusters.
    pub provider: &'a dyn Provider,
    /// The build that measures.
    pub tool: Tool,
    /// The run's folder; it exists.
    pub folder: PathBuf,
    /// Where progress is told.
    pub events: Events,
}

impl Runner<'_> {
    /// Runs the plan. An error means that a file could not be written: nothing that would be lost
    /// is started after it.
    pub async fn run(&self, stop: &mut Stop) -> Result<(Run, Ended), WriteError> {
        let started_at = jiff::Timestamp::now().to_string();
        let mut record = Run::new(self.tool.clone(), self.plan.clone(), started_at);
        let mut ended = Ended::default();
        record.write(&self.folder)?;
        self.tell(RunEvent::RunStarted {
            matrix: self.plan.matrix.clone(),
            arms: self.plan.arms.len(),
            trials: self.plan.arms.iter().map(|arm| arm.config.repeats as usize).sum(),
            expected: self.plan.expected_duration(),
            output: self.folder.clone(),
        });
        let mut result = Ok(());
        for (index, arm) in self.plan.arms.iter().enumerate() {
            if stop.asked().is_some() {
                break;
            }
            result = self.arm(arm, index, &mut record, &mut ended, stop).await;
            if result.is_err() {
                break;
            }
        }
        ended.signal = stop.asked();
        record.ended_at = Some(jiff::Timestamp::now().to_string());
        record.interrupted = ended.signal.map(|signal| signal.as_str().to_owned());
        self.tell(RunEvent::RunEnded);
        result?;
        record.write(&self.folder)?;
        Ok((record, ended))
    }

    /// Runs one arm: cluster up, trials, cluster down.
    async fn arm(
        &self,
        arm: &Arm,
        index: usize,
        record: &mut Run,
        ended: &mut Ended,
        stop: &mut Stop,
    ) -> Result<(), WriteError> {
        record.arms[index].state = ArmStage::Running;
        record.write(&self.folder)?;
        self.tell(RunEvent::ArmStarted {
            arm: arm.name.clone(),
            number: index + 1,
            trials: arm.config.repeats,
        });
        let logs = self.folder.join(&arm.name).join("logs");
        let began = Instant::now();
        let up = tokio::select! {
            up = self.provider.up(&arm.cluster, &logs) => up,
            _ = stop.wait() => {
                record.arms[index].state = ArmStage::Pending;
                return record.write(&self.folder);
            }
        };
        let result = match up {
            Ok(cluster) => {
                self.tell(RunEvent::ClusterUp {
                    cluster: cluster.name().to_owned(),
                    took: began.elapsed(),
                });
                let result = self.trials(arm, index, &*cluster, record, ended, stop).await;
                if matches!(&result, Err(ArmError::Cluster(_)))
                    || record.arms[index].trials_aborted > 0
                {
                    self.keep_logs(&*cluster, &logs).await;
                }
                self.take_down(cluster).await;
                result
            }
            Err(error) => Err(ArmError::Cluster(error)),
        };
        match result {
            Ok(()) => {}
            Err(ArmError::Write(error)) => return Err(error),
            Err(ArmError::Cluster(error)) => {
                record.arms[index].state = ArmStage::Failed;
                record.arms[index].reason = Some(error.to_string());
                ended.clusters_not_had.push((arm.name.clone(), error.to_string()));
            }
        }
        if record.arms[index].state == ArmStage::Running {
            record.arms[index].state = ArmStage::Interrupted;
        }
        let reason = record.arms[index].reason.clone();
        self.tell(RunEvent::ArmEnded { arm: arm.name.clone(), reason });
        record.write(&self.folder)
    }

    /// Runs an arm's trials on its cluster, each on disk before the next one starts.
    async fn trials(
        &self,
        arm: &Arm,
        index: usize,
        cluster: &dyn Cluster,
        record: &mut Run,
        ended: &mut Ended,
        stop: &mut Stop,
    ) -> Result<(), ArmError> {
        let context = tokio::select! {
            context = self.prepare(arm, cluster) => context?,
            _ = stop.wait() => return Ok(()),
        };
        let mut aborts = 0;
        for repeat in 1..=arm.config.repeats {
            if stop.asked().is_some() {
                return Ok(());
            }
            self.tell(RunEvent::TrialStarted {
                id: format!("{}/{repeat:03}", arm.name),
                expected: arm.expected_trial(),
            });
            let mut trial = trial::run(&context, repeat, stop).await;
            trial.write(&self.folder)?;
            // They are on disk, and nothing from here on reads them: of thousands of flows they
            // would take tens of megabytes a trial.
            trial.observations = Vec::new();
            let state = &mut record.arms[index];
            match trial.outcome {
                Outcome::Measured => state.trials_measured += 1,
                Outcome::Aborted => state.trials_aborted += 1,
                Outcome::TriggerRefused => state.trials_refused += 1,
            }
            aborts = if trial.outcome == Outcome::Aborted { aborts + 1 } else { 0 };
            if aborts == ABORTS_THAT_END_AN_ARM && repeat < arm.config.repeats {
                state.state = ArmStage::Ended;
                state.reason = Some(format!("{aborts} trials in a row were aborted"));
            }
            record.write(&self.folder)?;
            self.tell(RunEvent::TrialEnded(Arc::new(trial.clone())));
            ended.trials.push(trial);
            if record.arms[index].state == ArmStage::Ended {
                return Ok(());
            }
        }
        if stop.asked().is_none() {
            record.arms[index].state = ArmStage::Done;
        }
        Ok(())
    }

    /// Loads the images, makes the namespace, and records the environment: without it no trial.
    async fn prepare<'a>(
        &'a self,
        arm: &'a Arm,
        cluster: &'a dyn Cluster,
    ) -> Result<ArmContext<'a>, ArmError> {
        let archive = tempfile::NamedTempFile::new().map_err(io("a temporary file"))?;
        let images = [Image::probe(), Image::pause(PAUSE_IMAGE)];
        image::write_archive(archive.as_file(), &images).map_err(io("the probe's image"))?;
        cluster.load_image(archive.path()).await?;
        workload::prepare(&cluster.client()).await.map_err(|error| ClusterError::Component {
            component: "the trials' namespace".to_owned(),
            reason: error.to_string(),
            logs: None,
        })?;
        let environment = environment::read(cluster, self.provider.name()).await?;
        let file = format!("environment/{}.json", arm.name);
        write_json(&self.folder.join(&file), &environment)?;
        for warning in &environment.warnings {
            self.tell(RunEvent::Warning(format!("environment: {warning}")));
        }
        Ok(ArmContext {
            plan: self.plan,
            arm,
            cluster,
            tool: &self.tool,
            environment: EnvironmentRef {
                file,
                digest: environment.digest.clone(),
                cluster: cluster.name().to_owned(),
            },
            events: &self.events,
        })
    }

    async fn keep_logs(&self, cluster: &dyn Cluster, logs: &Path) {
        if let Err(error) = cluster.keep_logs(logs).await {
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

    fn tell(&self, event: RunEvent) {
        // A display that is gone wants no events.
        let _ = self.events.send(event);
    }
}

/// Why an arm could not go on.
enum ArmError {
    Cluster(ClusterError),
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
mod tests {
    use super::*;
    use crate::config::ClusterSpec;
    use crate::plan;
    use async_trait::async_trait;
    use tokio::sync::mpsc;

    /// A provider that can't make any cluster.
    struct Nowhere;

    #[async_trait]
    impl Provider for Nowhere {
        fn name(&self) -> &'static str {
            "nowhere"
        }

        fn check(&self, _: &ClusterSpec) -> Result<(), ClusterError> {
            Ok(())
        }

        async fn up(&self, _: &ClusterSpec, _: &Path) -> Result<Box<dyn Cluster>, ClusterError> {
            Err(ClusterError::Component {
                component: "etcd on node-1".into(),
                reason: "ended with exit code 1".into(),
                logs: None,
            })
        }
    }

    /// Runs the paper's first two arms nowhere; gives the record on disk and what was told.
    async fn run(mut stop: Stop) -> (Run, Ended, Vec<RunEvent>) {
        let matrix = Path::new(env!("CARGO_MANIFEST_DIR")).join("matrices/paper.toml");
        let only = ["exit-delete".to_owned(), "drain-delete".to_owned()];
        let plan = plan::load(&matrix, &[], &only).expect("the paper's matrix");
        let folder = tempfile::tempdir().expect("a folder");
        let (events, mut told) = mpsc::unbounded_channel();
        let tool = current_tool().expect("this binary");
        let runner = Runner {
            plan: &plan,
            provider: &Nowhere,
            tool,
            folder: folder.path().to_owned(),
            events,
        };
        let (_, ended) = runner.run(&mut stop).await.expect("files can be written");
        drop(runner);
        let mut events = Vec::new();
        while let Some(event) = told.recv().await {
            events.push(event);
        }
        (Run::read(folder.path()).expect("run.json"), ended, events)
    }

    #[tokio::test]
    async fn an_arm_without_a_cluster_is_told_and_the_next_one_is_tried() {
        let (record, ended, events) = run(Stop::already(None)).await;
        assert!(record.arms.iter().all(|arm| arm.state == ArmStage::Failed));
        let (arm, reason) = &ended.clusters_not_had[0];
        assert_eq!(arm, "exit-delete");
        assert!(reason.contains("etcd on node-1"), "{reason}");
        assert_eq!(ended.clusters_not_had.len(), 2);
        assert!(record.ended_at.is_some() && record.interrupted.is_none());
        assert!(matches!(events.first(), Some(RunEvent::RunStarted { trials: 10, .. })));
        assert!(matches!(events.last(), Some(RunEvent::RunEnded)));
    }

    #[tokio::test]
    async fn a_run_that_was_asked_to_stop_starts_nothing() {
        let (record, ended, _) = run(Stop::already(Some(Signal::SIGTERM))).await;
        assert!(record.arms.iter().all(|arm| arm.state == ArmStage::Pending));
        assert_eq!(record.interrupted.as_deref(), Some("SIGTERM"));
        assert_eq!(ended.signal, Some(Signal::SIGTERM));
    }
}
