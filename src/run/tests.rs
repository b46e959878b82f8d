//! The runner with a provider that makes no cluster.

use super::*;
use crate::config::ClusterSpec;
use crate::{plan, stories};
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

/// The paper's first two arms.
fn plan() -> Plan {
    let matrix = Path::new(env!("CARGO_MANIFEST_DIR")).join("matrices/paper.toml");
    let only = ["exit-delete".to_owned(), "drain-delete".to_owned()];
    plan::load(&matrix, &[], &only).expect("the paper's matrix")
}

/// The build that the stories' trials are of.
fn tool() -> Tool {
    stories::exit(1).tool
}

/// Runs what is left of a folder's run nowhere; gives the record on disk and what was told.
async fn run_in(folder: &Path, mut stop: Stop) -> (Run, Ended, Vec<RunEvent>) {
    let claim = Claim::take(folder).expect("it is nobody's");
    let earlier = Earlier::read(&claim).expect("a run's folder");
    let earlier = earlier.unwrap_or_else(|| Earlier::nothing(tool(), plan()));
    let (events, mut told) = mpsc::unbounded_channel();
    let plan = earlier.record.plan.clone();
    let runner = Runner {
        plan: &plan,
        provider: &Nowhere,
        tool: tool(),
        folder: &claim,
        keep_cluster: false,
        events,
    };
    let (_, ended) = runner.run(earlier, &mut stop).await;
    drop(runner);
    let mut events = Vec::new();
    while let Some(event) = told.recv().await {
        events.push(event);
    }
    (Run::read(folder).expect("run.json"), ended, events)
}

/// Runs them from the beginning.
async fn run(stop: Stop) -> (Run, Ended, Vec<RunEvent>) {
    let folder = tempfile::tempdir().expect("a folder");
    let (record, ended, events) = run_in(folder.path(), stop).await;
    assert!(ended.failed.is_none(), "{:?}", ended.failed);
    (record, ended, events)
}

/// A folder of a run of two trials an arm that was killed, with these trials.
fn killed(trials: &[Trial]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let mut plan = plan();
    for (arm, trial) in plan.arms.iter_mut().zip([stories::exit(1), stories::drain(1)]) {
        arm.config = trial.config;
    }
    let mut record = Run::new(tool(), plan, "2026-11-30T12:00:00Z".into());
    record.arms[0].state = ArmStage::Running;
    record.write(folder.path()).expect("it can be written");
    trials.iter().for_each(|trial| trial.write(folder.path()).expect("it can be written"));
    folder
}

fn started(events: &[RunEvent]) -> (usize, usize, Vec<&str>) {
    let Some(RunEvent::RunStarted { trials, recorded, .. }) = events.first() else {
        panic!("{events:?}");
    };
    let arms = events.iter().filter_map(|event| match event {
        RunEvent::ArmStarted { arm, .. } => Some(arm.as_str()),
        _ => None,
    });
    (*trials, *recorded, arms.collect())
}

#[tokio::test]
async fn resumed_only_arms_with_missing_trials_are_run_and_all_trials_are_given() {
    let folder = killed(&[stories::drain(1), stories::exit(2), stories::exit(1)]);
    std::fs::write(folder.path().join(".drainwatch-x.tmp"), "{").expect("a file");
    let (record, ended, events) = run_in(folder.path(), Stop::already(None)).await;
    assert_eq!(started(&events), (4, 3, vec!["drain-delete"]));
    let ids: Vec<_> = ended.trials.iter().map(|trial| trial.id.as_str()).collect();
    assert_eq!(ids, ["exit-delete/001", "exit-delete/002", "drain-delete/001"]);
    let states: Vec<_> = record.arms.iter().map(|arm| (arm.state, arm.trials_measured)).collect();
    assert_eq!(states, [(ArmStage::Done, 2), (ArmStage::Failed, 1)]);
    assert_eq!(record.started_at, "2026-11-30T12:00:00Z");
    assert_eq!(record.resumed_at.len(), 1);
    assert!(record.ended_at.is_some());
    assert!(!folder.path().join(".drainwatch-x.tmp").exists());
}

#[tokio::test]
async fn a_run_with_nothing_left_is_left_as_it_is() {
    let all = [1, 2].map(|n| [stories::exit(n), stories::drain(n)]).concat();
    let folder = killed(&all);
    let (record, ended, events) = run_in(folder.path(), Stop::already(None)).await;
    assert_eq!(started(&events), (4, 4, vec![]));
    assert_eq!(ended.trials.len(), 4);
    assert!(record.arms.iter().all(|arm| arm.state == ArmStage::Done));
    assert!(record.ended_at.is_some() && record.resumed_at.is_empty());
    let (again, ..) = run_in(folder.path(), Stop::already(None)).await;
    assert_eq!(again, record);
}

#[tokio::test]
async fn an_aborted_record_beside_a_measured_one_is_put_aside_and_one_alone_waits_for_its_turn() {
    let aborted = [stories::aborted("exit-delete", 1), stories::aborted("drain-delete", 2)];
    let folder = killed(&[&aborted[..], &[stories::exit(1), stories::exit(2)]].concat());
    let (record, ended, _) = run_in(folder.path(), Stop::already(None)).await;
    let outcomes: Vec<_> = ended.trials.iter().map(|t| (t.id.as_str(), t.outcome)).collect();
    let (measured, aborted) = (Outcome::Measured, Outcome::Aborted);
    assert_eq!(
        outcomes,
        [
            ("exit-delete/001", measured),
            ("exit-delete/002", measured),
            ("drain-delete/002", aborted)
        ]
    );
    assert_eq!((record.arms[0].trials_aborted, record.arms[0].trials_superseded), (0, 1));
    assert_eq!((record.arms[1].trials_aborted, record.arms[1].trials_superseded), (1, 0));
    let aside = "exit-delete/superseded/trial-001.aborted.1.json";
    assert!(folder.path().join(aside).is_file());
}

#[tokio::test]
async fn a_folder_that_vanishes_ends_the_run_and_is_not_made_anew() {
    let parent = tempfile::tempdir().expect("a folder");
    let folder = parent.path().join("run");
    std::fs::create_dir(&folder).expect("a folder");
    let claim = Claim::take(&folder).expect("it is nobody's");
    let plan = plan();
    let provider = Nowhere;
    let runner = Runner {
        plan: &plan,
        provider: &provider,
        tool: tool(),
        folder: &claim,
        keep_cluster: false,
        events: mpsc::unbounded_channel().0,
    };
    std::fs::remove_dir(&folder).expect("it is empty");
    let earlier = Earlier::nothing(tool(), plan.clone());
    let (_, ended) = runner.run(earlier, &mut Stop::already(None)).await;
    assert!(ended.failed.is_some() && ended.clusters_not_had.is_empty(), "nothing was started");
    assert!(!folder.exists());
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

#[test]
fn a_restart_of_kube_proxy_without_a_known_end_spends_the_cluster() {
    let mut trial = stories::exit(1);
    assert!(!spends_the_cluster(&trial));
    trial.outcome = Outcome::Aborted;
    assert!(!spends_the_cluster(&trial), "its pod alone was touched");
    trial.config.trigger = Trigger::RestartKubeProxy;
    assert!(spends_the_cluster(&trial));
    trial.observations.retain(|one| !matches!(one.event, Event::TriggerSent { .. }));
    assert!(!spends_the_cluster(&trial), "it never came to the trigger");
    trial.config.trigger = Trigger::NodeStop;
    assert!(spends_the_cluster(&trial));
}
