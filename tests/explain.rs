//! `drainwatch explain`, as a whole command.

mod stories;

use std::fs;
use std::path::Path;

use assert_cmd::Command;
use drainwatch::record::Trial;
use predicates::prelude::*;
use predicates::str::contains;

fn explain(dir: &Path) -> Command {
    let mut command = Command::cargo_bin("drainwatch").unwrap();
    command.current_dir(dir).arg("explain");
    command
}

/// A run's folder with these trials, and the folder that it lies in.
fn run(trials: &[Trial]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    trials.iter().for_each(|trial| trial.write(&dir.path().join("paper")).unwrap());
    dir
}

fn two_arms() -> tempfile::TempDir {
    run(&[
        stories::drain_with_evidence(1),
        stories::drain(2),
        stories::aborted("drain-delete", 3),
        stories::exit(1),
    ])
}

#[test]
fn a_trial_has_several_names() {
    let dir = two_arms();
    for name in ["trial-001.json", "trial-001", "001", "1", "1.json"] {
        explain(dir.path())
            .arg(format!("paper/drain-delete/{name}"))
            .assert()
            .success()
            .stdout(contains("drain-delete/001: measured").and(contains("4 UDP flows rehomed")))
            .stderr("");
    }
    for name in ["3", "003.aborted", "trial-003.aborted.json"] {
        explain(&dir.path().join("paper/drain-delete"))
            .arg(name)
            .assert()
            .success()
            .stdout(contains("drain-delete/003: aborted"))
            .stdout(contains("tcp-1 was reset during settle"));
    }
}

#[test]
fn a_flow_has_a_story_of_its_own() {
    let dir = two_arms();
    let mut command = explain(dir.path());
    command.args(["paper/drain-delete/1", "udp-3"]).assert().success().stdout(
        contains("udp-3 of drain-delete/001: rehomed at 2,199.7 ms")
            .and(contains("measured"))
            .and(contains("control-plane: its entry to 10.244.1.2:7002 (the target)"))
            .and(contains("← rehomed"))
            // Nobody reads escapes in a file.
            .and(contains("\u{1b}").not()),
    );
}

#[test]
fn where_there_is_none_what_there_is_is_told() {
    let dir = two_arms();
    let says = |args: &[&str], error: &str| {
        explain(dir.path()).args(args).assert().code(2).stdout("").stderr(error.to_owned());
    };
    says(
        &["paper/drain-delete/7"],
        "error: paper/drain-delete/7: no such trial\n  there are: 001, 002, 003.aborted\n",
    );
    says(
        &["paper/drain-delet/1"],
        "error: paper/drain-delet/1: no such arm\n  did you mean drain-delete?\n  there are: \
         drain-delete, exit-delete\n",
    );
    says(
        &["paper/exit-delte"],
        "error: paper/exit-delte: no such arm\n  did you mean exit-delete?\n  there are: \
         drain-delete, exit-delete\n",
    );
    says(
        &["papr/drain-delete/1"],
        "error: papr/drain-delete/1: no such run\n  did you mean paper?\n",
    );
    says(
        &["paper/drain-delete"],
        "error: paper/drain-delete: is an arm's folder\n  name one of its trials \
         (paper/drain-delete/001): 001, 002, 003.aborted\n",
    );
    says(
        &["paper"],
        "error: paper: is a run's folder\n  name an arm and a trial (ARM/001); its arms: \
         drain-delete, exit-delete\n",
    );
    says(&["."], "error: .: holds runs\n  name a trial as RUN/ARM/001; its runs: paper\n");
    says(&["nowhere/a/1"], "error: nowhere/a/1: no such run\n");
    says(
        &["paper/drain-delete/1", "udp-30"],
        "error: drain-delete/001 has no flow udp-30\n  its flows: tcp-1 to tcp-3, udp-1 to udp-4\n",
    );
}

#[test]
fn what_is_no_record_is_named() {
    let dir = two_arms();
    fs::write(dir.path().join("paper/run.json"), "{\"format\": \"drainwatch.run/1\"}").unwrap();
    explain(dir.path())
        .arg("paper/run.json")
        .assert()
        .code(2)
        .stderr(contains("paper/run.json: is no drainwatch.trial record"));
    let pipe = dir.path().join("paper/drain-delete/trial-009.json");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    explain(dir.path())
        .arg("paper/drain-delete/trial-009.json")
        .timeout(std::time::Duration::from_secs(10))
        .assert()
        .code(2)
        .stderr(contains("is not a regular file"));
}

#[test]
fn a_record_is_judged_anew_and_stays_as_it_is() {
    let mut trial = stories::exit(1);
    trial.flows.iter_mut().for_each(|flow| flow.fate = drainwatch::verdict::Fate::Severed);
    let dir = run(std::slice::from_ref(&trial));
    let path = dir.path().join("paper").join(trial.file());
    let before = fs::read(&path).unwrap();
    explain(dir.path()).arg(&path).assert().success().stdout(contains("3 TCP flows reset"));
    assert_eq!(fs::read(&path).unwrap(), before);
}

#[test]
fn programs_get_the_same_lines() {
    let dir = two_arms();
    let mut command = explain(dir.path());
    command.args(["paper/drain-delete/1", "udp-3", "--format", "json"]);
    let output = command.assert().success().get_output().stdout.clone();
    let story: serde_json::Value = serde_json::from_slice(&output).unwrap();
    assert_eq!(story["format"], "drainwatch.story/1");
    assert_eq!(story["flow"]["fate"], "rehomed");
    let lines = story["lines"].as_array().unwrap();
    let end = lines.iter().find(|line| line["mark"] == "end").unwrap();
    assert_eq!((&end["t_ms"], &end["source"]), (&2199.7.into(), &"flow".into()));
    assert!(lines.iter().any(|line| line["bound"] == "at-most" && line["links"][0] == 2));
}

#[test]
fn a_report_of_the_go_tool_says_what_it_can() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for name in ["trial-001", "1", "trial-001/report.json"] {
        explain(root)
            .arg(format!("tests/go-v0.1/exit-delete/{name}"))
            .assert()
            .success()
            .stdout(contains("exit-delete/001: measured").and(contains("imported from")))
            .stdout(contains("the app receives SIGTERM"));
    }
    let mut command = explain(root);
    command.args(["tests/go-v0.1/exit-delete/1", "tcp-0001"]);
    command.assert().success().stdout(contains("← reset"));
}

#[test]
fn records_of_every_age_have_their_stories() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut told = 0;
    for run in fs::read_dir(root.join("results")).unwrap() {
        for arm in fs::read_dir(run.unwrap().path()).into_iter().flatten() {
            let trial = arm.unwrap().path().join("trial-001.json");
            if !trial.is_file() {
                continue;
            }
            let text = fs::read_to_string(&trial).unwrap();
            let held = |flow: &&str| text.contains(&format!("{{\"id\": \"{flow}\""));
            for flow in ["tcp-1", "udp-1"].into_iter().filter(held) {
                let mut command = explain(root);
                let output = command.arg(&trial).arg(flow).assert().success().get_output().clone();
                let text = String::from_utf8(output.stdout).unwrap();
                assert_eq!(text.matches("← ").count(), 1, "{text}");
            }
            told += 1;
        }
    }
    assert!(told >= 10, "{told} arms are kept in results");
}
