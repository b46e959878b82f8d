//! What each report looks like.

use super::*;
use crate::config::{ClusterSpec, ProviderKind, ProxyMode};
use crate::plan::{Arm, Plan};
use crate::record::ArmStage;
use crate::stories;
use crate::verdict::Outcome;

fn everything() -> Vec<Trial> {
    vec![
        stories::exit(1),
        stories::exit(2),
        stories::drain(1),
        stories::aborted("drain-delete", 2),
        stories::drain(2),
        stories::ignore(1),
        stories::ignore(2),
        stories::scale(1),
        stories::scale(2),
        stories::trigger_refused(1),
    ]
}

fn text(bytes: Vec<u8>) -> String {
    // Snapshots have one kind of line end.
    String::from_utf8(bytes).unwrap().replace("\r\n", "\n")
}

#[test]
fn flows_table() {
    let trials = [stories::exit(1), stories::scale(2), stories::aborted("drain-delete", 2)];
    insta::assert_snapshot!(text(flows_csv::render(&trials).unwrap()));
}

#[test]
fn trials_table() {
    let mut trials = everything();
    trials[0].axes.insert("cluster.proxy_mode".into(), "nftables".into());
    trials[3].reason = Some("=a reason, that\nlooks like a formula".into());
    insta::assert_snapshot!(text(trials_csv::render(&trials).unwrap()));
}

#[test]
fn summary_table() {
    insta::assert_snapshot!(text(summary_csv::render(&everything()).unwrap()));
}

#[test]
fn summary_page() {
    let mut trials = everything();
    trials[0].warnings.push("a warning with a | in it".into());
    trials[1].runner_warnings.push("what the runner had to say".into());
    insta::assert_snapshot!(markdown(&trials, None).unwrap());
}

#[test]
fn summary_page_of_what_has_no_tcp_and_no_repeats() {
    let mut trial = stories::drain(1);
    trial.flows.retain(|flow| flow.protocol == Protocol::Udp);
    trial.findings.last_tcp_end_ms = None;
    insta::assert_snapshot!(markdown(&[trial], None).unwrap());
}

#[test]
fn summary_page_of_nothing_measured() {
    insta::assert_snapshot!(markdown(&[stories::aborted("drain-delete", 1)], None).unwrap());
    assert!(markdown(&[], None).is_ok());
}

#[test]
fn summary_page_of_an_interrupted_run() {
    let trial = stories::drain(1);
    let cluster = ClusterSpec {
        provider: ProviderKind::Kind,
        kubernetes: "1.34.0".into(),
        nodes: 2,
        proxy_mode: ProxyMode::Iptables,
        sysctls: Default::default(),
        dns: false,
    };
    let arm = |name: &str| Arm {
        name: name.into(),
        scenario: name.into(),
        axes: vec![],
        config: trial.config.clone(),
        cluster: cluster.clone(),
    };
    let arms = vec![arm("drain-delete"), arm("drain-evict"), arm("drain-scale")];
    let plan = Plan { matrix: "paper".into(), arms, overrides: vec![], only: vec![] };
    let mut run = Run::new(trial.tool.clone(), plan, "2026-11-30T12:00:00Z".into());
    run.interrupted = Some("SIGINT".into());
    run.arms[0].state = ArmStage::Done;
    run.arms[1].state = ArmStage::Failed;
    run.arms[1].reason = Some("kind: no such command".into());
    insta::assert_snapshot!(markdown(&[trial], Some(&run)).unwrap());
}

#[test]
fn trials_of_two_environments_are_not_passed_over() {
    let (one, mut other) = (stories::drain(1), stories::drain(2));
    other.environment.digest = "sha256:other".into();
    let page = markdown(&[one, other], None).unwrap();
    assert!(page.contains("drain-delete: its trials differ in their environment"), "{page}");
}

#[test]
fn terminal_table() {
    insta::assert_snapshot!(terminal(&everything()));
}

#[test]
fn aborted_trials_and_refused_triggers_are_in_no_figure() {
    let trials = everything();
    let counted: Vec<_> =
        trials.iter().filter(|t| t.outcome == Outcome::Measured).cloned().collect();
    let rows = |trials: &[Trial]| {
        let table = text(summary_csv::render(trials).unwrap());
        let figures = |line: &str| line.rsplitn(3, ',').last().map(str::to_owned);
        table
            .lines()
            .filter_map(figures)
            .filter(|l| !l.starts_with("drain-evict"))
            .collect::<Vec<_>>()
    };
    assert_eq!(rows(&trials), rows(&counted));
}

#[test]
fn all_reports_are_written() {
    let dir = tempfile::tempdir().unwrap();
    write_all(dir.path(), &everything(), None).unwrap();
    for name in ["flows.csv", "trials.csv", "summary.csv", "summary.md"] {
        assert!(dir.path().join(name).is_file(), "{name}");
    }
}
