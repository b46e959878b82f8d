//! `drainwatch summarize`, as a whole command.

mod stories;

use std::fs;
use std::path::Path;

use assert_cmd::Command;
use drainwatch::record::Trial;
use predicates::prelude::*;
use predicates::str::contains;

fn summarize() -> Command {
    let mut command = Command::cargo_bin("drainwatch").unwrap();
    command.arg("summarize");
    command
}

fn record(dir: &Path, trials: &[Trial]) {
    trials.iter().for_each(|trial| trial.write(dir).unwrap());
}

#[test]
fn the_tables_of_one_folder_go_into_it() {
    let dir = tempfile::tempdir().unwrap();
    record(dir.path(), &[stories::scale(1), stories::scale(2), stories::aborted("drain-scale", 3)]);
    summarize()
        .arg(dir.path())
        .assert()
        .success()
        .stdout(contains("disagreement: drain-scale: UDP fates differ between repeats"))
        .stdout(contains("aborted: drain-scale/003: flows: tcp-1 was reset during settle"))
        .stderr("");
    for name in ["flows.csv", "trials.csv", "summary.csv", "summary.md"] {
        assert!(dir.path().join(name).is_file(), "{name}");
    }
}

#[test]
fn trials_are_judged_anew_and_their_records_stay_as_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let mut trial = stories::exit(1);
    trial.flows.iter_mut().for_each(|flow| flow.fate = drainwatch::verdict::Fate::Severed);
    trial.findings = Default::default();
    trial.warnings = vec!["an older build's warning".into()];
    trial.runner_warnings = vec!["the runner's warning".into()];
    record(dir.path(), std::slice::from_ref(&trial));
    let path = dir.path().join(trial.file());
    let before = fs::read(&path).unwrap();
    summarize()
        .arg(dir.path())
        .assert()
        .success()
        .stderr("note: exit-delete/001: its flows' fates are judged otherwise than recorded\n");
    assert_eq!(fs::read(&path).unwrap(), before);
    let page = fs::read_to_string(dir.path().join("summary.md")).unwrap();
    assert!(page.contains("| exit-delete | 1 | 3/3 reset | 31.8 |"), "{page}");
    assert!(page.contains("the runner's warning") && !page.contains("an older build's"), "{page}");
}

#[test]
fn judging_twice_gives_the_same_tables() {
    let dir = tempfile::tempdir().unwrap();
    record(dir.path(), &[stories::exit(1), stories::drain(1), stories::ignore(1)]);
    let tables = || {
        summarize().arg(dir.path()).assert().success();
        ["flows.csv", "trials.csv", "summary.csv", "summary.md"]
            .map(|name| fs::read_to_string(dir.path().join(name)).unwrap())
    };
    assert_eq!(tables(), tables());
}

#[test]
fn several_folders_are_told_apart() {
    let top = tempfile::tempdir().unwrap();
    let (one, two) = (top.path().join("kind"), top.path().join("local"));
    record(&one, &[stories::drain(1)]);
    record(&two, &[stories::drain(1), stories::exit(1)]);
    summarize()
        .current_dir(&top)
        .args(["kind", "local"])
        .assert()
        .success()
        .stdout(contains("| kind/drain-delete | 1 |"))
        .stdout(contains("| local/drain-delete | 1 |"))
        .stdout(contains("| exit-delete | 1 |"));
    assert!(!one.join("summary.md").exists());
    let output = top.path().join("both");
    summarize().args([&one, &two]).arg("--output").arg(&output).assert().success();
    assert!(output.join("summary.csv").is_file());
}

#[test]
fn a_folder_without_records_is_a_wrong_argument() {
    let dir = tempfile::tempdir().unwrap();
    summarize().arg(dir.path()).assert().code(2).stderr(contains("holds no trial record"));
    let none = dir.path().join("none");
    summarize().arg(&none).assert().code(2).stderr(contains("none: can't be read"));
}

#[test]
fn an_unreadable_record_is_named_and_nothing_is_written() {
    let dir = tempfile::tempdir().unwrap();
    record(dir.path(), &[stories::drain(1), stories::drain(2)]);
    let path = dir.path().join("drain-delete/trial-002.json");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("drainwatch.trial/1", "drainwatch.trial/9")).unwrap();
    summarize()
        .arg(dir.path())
        .assert()
        .code(2)
        .stderr(contains("trial-002.json: was written by a newer drainwatch"));
    fs::write(&path, &text[..text.len() / 2]).unwrap();
    summarize()
        .arg(dir.path())
        .assert()
        .code(2)
        .stderr(contains("trial-002.json: is no record: EOF").and(contains("line ")));
    assert!(!dir.path().join("summary.md").exists());
}

#[test]
fn an_output_that_can_not_be_written_has_a_code_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    record(dir.path(), &[stories::drain(1)]);
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    summarize()
        .arg(dir.path())
        .arg("--output")
        .arg(file.join("tables"))
        .assert()
        .code(5)
        .stderr(contains("can't be written"));
}

#[test]
fn a_folder_that_is_given_twice_is_not_counted_twice() {
    let dir = tempfile::tempdir().unwrap();
    record(dir.path(), &[stories::drain(1)]);
    let again = dir.path().join(".");
    let assert = summarize().arg(dir.path()).arg(again).assert().code(2).stdout("");
    assert.stderr(contains("is given twice"));
}

#[test]
fn a_pipe_named_like_a_record_is_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    record(dir.path(), &[stories::drain(1)]);
    let pipe = dir.path().join("drain-delete/trial-002.json");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    summarize().arg(dir.path()).timeout(std::time::Duration::from_secs(20)).assert().success();
}
