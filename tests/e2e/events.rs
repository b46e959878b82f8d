//! What a program is told of a run while it goes on.

use std::process::Command;

use drainwatch::record::load_run_dir;
use serde_json::Value;

/// The tests of this file.
pub fn tests() -> Vec<(&'static str, fn())> {
    vec![("a_program_is_told_of_a_run_by_events_alone", told)]
}

fn told() {
    let folder = tempfile::tempdir().expect("a folder");
    let (scenario, output) = (folder.path().join("quick.toml"), folder.path().join("run"));
    let text = "sigterm = \"exit\"\nsettle = \"1s\"\nrepeats = 1\n[flows]\ntcp = 2\nudp = 2\n";
    std::fs::write(&scenario, text).expect("a scenario");
    let mut command = Command::new(super::DRAINWATCH);
    command.arg("apply").arg(&scenario).arg("--output").arg(&output).args(["--format", "json"]);
    let said = command.output().expect("it runs");
    assert_eq!(String::from_utf8_lossy(&said.stderr), "");
    let lines = String::from_utf8(said.stdout).expect("text");
    let events: Vec<Value> =
        lines.lines().map(|line| serde_json::from_str(line).expect("an event")).collect();
    let names: Vec<&str> = events.iter().filter_map(|event| event["event"].as_str()).collect();
    let expected = [
        "started",
        "note",
        "run-started",
        "arm-started",
        "cluster-up",
        "trial-started",
        "phase",
        "phase",
        "phase",
        "phase",
        "phase",
        "trial-ended",
        "cluster-gone",
        "arm-ended",
        "run-ended",
        "arm-summary",
        "tables-written",
        "ended",
    ];
    // A machine that is busy is warned of, and repeats of one fate may disagree.
    let names: Vec<&str> =
        names.into_iter().filter(|name| !["warning", "disagreement"].contains(name)).collect();
    assert_eq!(names, expected, "{lines}");
    let trial = load_run_dir(&output).expect("a run's folder").trials.remove(0);
    let ended = events.iter().find(|event| event["event"] == "trial-ended").expect("an end");
    assert_eq!(ended["findings"], serde_json::to_value(&trial.findings).expect("JSON"));
    assert!(output.join(ended["file"].as_str().expect("a path")).is_file());
    let last = events.last().expect("a last");
    assert_eq!(last["exit_code"].as_i64(), said.status.code().map(i64::from));
    assert_eq!(last["folder"], output.to_str().expect("text"));
}
