//! What each report looks like.

use super::*;
use crate::config::{ClusterSpec, ProviderKind, ProxyMode};
use crate::plan::{Arm, Plan};
use crate::record::{ArmStage, Run, Trial};
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

/// One folder of these trials.
fn part(trials: &[Trial]) -> Part<'_> {
    Part { name: "paper-1", trials, run: None }
}

fn text(bytes: Vec<u8>) -> String {
    // Snapshots have one kind of line end.
    String::from_utf8(bytes).unwrap().replace("\r\n", "\n")
}

#[test]
fn flows_table() {
    let trials = [stories::exit(1), stories::scale(2), stories::aborted("drain-delete", 2)];
    insta::assert_snapshot!(text(flows_csv::render(&[part(&trials)]).unwrap()));
}

#[test]
fn trials_table() {
    let mut trials = everything();
    trials[0].axes.insert("cluster.proxy_mode".into(), "nftables".into());
    trials[3].reason = Some("=a reason, that\nlooks like a formula".into());
    insta::assert_snapshot!(text(trials_csv::render(&[part(&trials)]).unwrap()));
}

#[test]
fn summary_table() {
    insta::assert_snapshot!(text(summary_csv::render(&[part(&everything())]).unwrap()));
}

#[test]
fn summary_page() {
    let mut trials = everything();
    trials[0].warnings.push("a warning with a | in it".into());
    trials[1].runner_warnings.push("what the runner had to say".into());
    insta::assert_snapshot!(markdown(&[part(&trials)]).unwrap());
}

#[test]
fn where_the_time_goes() {
    let trials = [stories::drain_with_evidence(1), stories::drain_with_evidence(2)];
    let page = markdown(&[part(&trials)]).unwrap();
    let section = page.split("\n## ").find(|section| section.starts_with("Where the time goes"));
    insta::assert_snapshot!(section.expect("a section"));
}

#[test]
fn summary_page_of_what_has_no_tcp_and_no_repeats() {
    let mut trial = stories::drain(1);
    trial.flows.retain(|flow| flow.protocol == Protocol::Udp);
    trial.findings.last_tcp_end_ms = None;
    insta::assert_snapshot!(markdown(&[part(&[trial])]).unwrap());
}

#[test]
fn summary_page_of_new_connections() {
    let trials = [stories::exit_with_dials(1), stories::exit_with_dials(2), stories::drain(1)];
    let page = markdown(&[part(&trials)]).unwrap();
    let section = page.split("## ").find(|section| section.starts_with("New connections"));
    insta::assert_snapshot!(section.unwrap());
}

#[test]
fn summary_page_of_nothing_measured() {
    insta::assert_snapshot!(markdown(&[part(&[stories::aborted("drain-delete", 1)])]).unwrap());
    assert!(markdown(&[part(&[])]).is_ok());
}

#[test]
fn summary_page_of_an_interrupted_run() {
    let trial = stories::drain(1);
    let run = interrupted_run(&trial);
    insta::assert_snapshot!(markdown(&[Part { run: Some(&run), ..part(&[trial]) }]).unwrap());
}

/// A run that a signal ended: one arm done, one failed, one not begun.
fn interrupted_run(trial: &Trial) -> Run {
    let cluster = ClusterSpec {
        provider: ProviderKind::Kind,
        kubernetes: "1.34.0".into(),
        nodes: 2,
        proxy_mode: ProxyMode::Iptables,
        sysctls: Default::default(),
        dns: false,
        pod_sysctls: Default::default(),
        dual_stack: false,
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
    run.arms[0].trials_superseded = 1;
    run.arms[1].state = ArmStage::Failed;
    run.arms[1].reason = Some("kind: no such command".into());
    run
}

#[test]
fn trials_of_two_environments_are_not_passed_over() {
    let (one, mut other) = (stories::drain(1), stories::drain(2));
    other.environment.digest = "sha256:other".into();
    let page = markdown(&[part(&[one, other])]).unwrap();
    assert!(page.contains("drain-delete: its trials differ in their environment"), "{page}");
}

#[test]
fn terminal_table() {
    insta::assert_snapshot!(terminal(&[part(&everything())]));
}

#[test]
fn aborted_trials_and_refused_triggers_are_in_no_figure() {
    let trials = everything();
    let counted: Vec<_> =
        trials.iter().filter(|t| t.outcome == Outcome::Measured).cloned().collect();
    let rows = |trials: &[Trial]| {
        let table = text(summary_csv::render(&[part(trials)]).unwrap());
        // Without how many were not measured, and what follows.
        let figures = |line: &str| line.rsplitn(5, ',').last().map(str::to_owned);
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
    write_all(dir.path(), &[part(&everything())]).unwrap();
    for name in ["flows.csv", "trials.csv", "summary.csv", "summary.md"] {
        assert!(dir.path().join(name).is_file(), "{name}");
    }
}

#[test]
fn several_folders_stand_beside_each_other() {
    let (ours, other) = ([stories::drain(1), stories::exit(1)], [stories::exit(1)]);
    let mut run = interrupted_run(&ours[0]);
    run.arms[0].name = "exit-delete".into();
    let mut imported = [stories::exit(3), stories::drain(1)];
    for trial in &mut imported {
        trial.imported = Some(crate::record::Imported {
            from: "drainwatch (Go) 0.1.0".into(),
            cluster: "Kubernetes 1.34.0, 2 nodes, iptables, kindnet".into(),
        });
        for bound in trial.finding_bounds.values_mut() {
            bound.plus_minus_ms = None;
        }
        trial.runner_warnings = vec!["one warning of all".into()];
    }
    let parts = [
        Part { name: "paper-1", trials: &ours, run: None },
        Part { name: "paper-2", trials: &other, run: Some(&run) },
        Part { name: "go", trials: &imported, run: None },
    ];
    insta::assert_snapshot!("several-page", markdown(&parts).unwrap());
    insta::assert_snapshot!("several-terminal", terminal(&parts));
    let csv = text(summary_csv::render(&parts).unwrap());
    let rows: Vec<_> = csv
        .lines()
        .map(|line| {
            let cells: Vec<_> = line.split(',').collect();
            format!("{} {} {}", cells[0], cells[cells.len() - 2], cells[cells.len() - 1])
        })
        .collect();
    assert_eq!(
        rows[1..],
        [
            "drain-delete paper-1 ",
            "drain-delete go drainwatch (Go) 0.1.0",
            "exit-delete paper-1 ",
            "exit-delete paper-2 ",
            "exit-delete go drainwatch (Go) 0.1.0",
        ]
    );
}

#[test]
fn a_log_line_that_an_import_lost_is_no_other_configuration() {
    let (mut one, mut other) = (stories::drain(1), stories::drain(2));
    other.config.readiness = None;
    assert!(markdown(&[part(&[one.clone(), other.clone()])]).unwrap().contains("differ in their"));
    for trial in [&mut one, &mut other] {
        let (from, cluster) = ("x".into(), "y".into());
        trial.imported = Some(crate::record::Imported { from, cluster });
    }
    assert!(!markdown(&[part(&[one, other])]).unwrap().contains("differ in their"));
}

#[test]
fn arms_of_one_name_are_neighbours_among_those_that_do_the_same() {
    let of = |arm: &str| Trial { arm: arm.into(), ..stories::exit(1) };
    let (one, two) = ([of("a"), of("b")], [of("x"), of("b"), of("a")]);
    let parts =
        [Part { name: "1", trials: &one, run: None }, Part { name: "2", trials: &two, run: None }];
    let order: Vec<_> = arms::arms(&parts).iter().map(|a| (a.part.name, a.name)).collect();
    assert_eq!(order, [("1", "a"), ("2", "a"), ("1", "b"), ("2", "b"), ("2", "x")]);
}

#[test]
fn what_an_import_does_not_tell_is_an_empty_cell() {
    let mut trial = stories::exit(1);
    trial.imported = Some(crate::record::Imported { from: "x".into(), cluster: "y".into() });
    trial.flows.truncate(1);
    trial.flows[0].spans.clear();
    trial.flows[0].fate = Fate::NotMeasured;
    let table = text(flows_csv::render(&[part(&[trial])]).unwrap());
    let mut reader = ::csv::Reader::from_reader(table.as_bytes());
    let header = reader.headers().unwrap().clone();
    let row = reader.records().next().unwrap().unwrap();
    let cell = |name: &str| row[header.iter().position(|h| h == name).unwrap()].to_owned();
    for name in ["refusals", "spans", "answers", "first_answer_ms", "first_instance"] {
        assert_eq!(cell(name), "", "{name}");
    }
    assert_eq!(cell("imported_from"), "x");
}
