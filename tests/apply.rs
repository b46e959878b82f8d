//! `drainwatch apply` where it must refuse before anything is started.

use std::path::Path;

use assert_cmd::Command;
use predicates::prelude::*;
use predicates::str::contains;

fn apply(output: &Path) -> Command {
    let mut command = Command::cargo_bin("drainwatch").expect("the binary");
    let matrix = Path::new(env!("CARGO_MANIFEST_DIR")).join("matrices/paper.toml");
    command.arg("apply").arg(matrix).arg("--output").arg(output);
    command
}

#[test]
fn a_wrong_file_is_one_error_and_nothing_is_made() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = folder.path().join("run");
    let mut command = apply(&output);
    command.args(["--set", "repeats=0"]);
    let once = contains("error:").count(1);
    command.assert().code(2).stdout("").stderr(once);
    assert!(!output.exists());
}

#[test]
fn a_folder_that_holds_something_is_left_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("thesis.txt"), "mine").expect("a file");
    let assert = apply(folder.path()).assert().code(5);
    assert.stderr(contains("is not empty").and(contains("--output")));
    assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 1);
}

#[test]
fn more_flows_than_there_are_ports_are_refused_before_anything_is_started() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = folder.path().join("run");
    let mut command = apply(&output);
    command.args(["--set", "flows.tcp=90000"]);
    let figures = contains("90000 TCP flows need a source port each").and(contains("are "));
    let remedy = contains("set flows.tcp to at most ");
    command.assert().code(3).stdout("").stderr(figures.and(remedy));
    assert!(!output.exists());
}

#[test]
fn a_file_in_the_folders_place_is_named() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    apply(file.path()).assert().code(5).stderr(contains("is not a folder"));
}

#[test]
fn a_version_that_is_not_there_is_told_with_the_command_that_gets_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = folder.path().join("run");
    let mut command = apply(&output);
    // A cache of its own, in which nothing is.
    command.env("XDG_CACHE_HOME", folder.path()).env_remove("DRAINWATCH_COMPONENTS");
    let assert = command.assert().code(4).stdout("");
    if nix::unistd::geteuid().is_root() {
        assert.stderr(contains("drainwatch setup --kubernetes 1.34.0"));
    } else {
        assert.stderr(contains("root"));
    }
    assert!(!output.exists());
}

#[test]
fn a_reader_that_has_gone_away_is_no_panic() {
    for command in ["apply", "check", "plan"] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let status = std::process::Command::new(assert_cmd::cargo::cargo_bin("drainwatch"))
            .args([command, "nothing.toml"])
            .stderr(writer)
            .status()
            .expect("it runs");
        assert_eq!(status.code(), Some(2), "{command}");
    }
}
