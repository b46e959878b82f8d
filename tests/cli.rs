//! What the command line says of itself.

use assert_cmd::Command;
use rstest::rstest;

fn said(arguments: &[&str]) -> String {
    let mut command = Command::cargo_bin("drainwatch").expect("the binary");
    let output = command.args(arguments).output().expect("it runs");
    assert!(output.status.success());
    String::from_utf8(output.stdout).expect("text")
}

#[rstest]
#[case("")]
#[case("apply")]
#[case("check")]
#[case("plan")]
#[case("schema")]
#[case("summarize")]
#[case("explain")]
#[case("setup")]
#[case("doctor")]
#[case("clean")]
#[case("calibrate")]
#[case("cluster")]
#[case("cluster up")]
#[case("cluster load")]
fn help(#[case] command: &str) {
    let arguments: Vec<_> = command.split_whitespace().chain(["--help"]).collect();
    insta::assert_snapshot!(format!("help {command}").trim().replace(' ', "-"), said(&arguments));
}

#[test]
fn an_unknown_command_is_a_usage_error() {
    let mut command = Command::cargo_bin("drainwatch").expect("the binary");
    command.arg("aply").assert().code(2);
}
