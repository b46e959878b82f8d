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
        .stdout(contains("| kind | drain-delete | 1 |"))
        .stdout(contains("| local | drain-delete | 1 |"))
        .stdout(contains("| local | exit-delete | 1 |"));
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

/// A folder that holds one report of the Go tool.
const GO: &str = "tests/go-v0.1";

fn report() -> String {
    fs::read_to_string(Path::new(GO).join("exit-delete/trial-001/report.json")).unwrap()
}

fn go_report(dir: &Path, text: &str) {
    let folder = dir.join("exit-delete/trial-001");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("report.json"), text).unwrap();
}

#[test]
fn reports_of_the_go_tool_stand_beside_ours() {
    let top = tempfile::tempdir().unwrap();
    let (ours, output) = (top.path().join("ours"), top.path().join("both"));
    record(&ours, &[stories::drain(1), stories::exit(1)]);
    summarize().arg(&ours).arg(GO).arg("--output").arg(&output).assert().success().stderr("");
    let page = fs::read_to_string(output.join("summary.md")).unwrap();
    let go = "| go-v0.1 (imported from drainwatch (Go) 0.1.0) | exit-delete | 1 | 10/10 reset | 29.0 | \
              4/10 rehomed, 6/10 refused | rehomed 2,353, refused 353 | 606 | 606, code 0 |";
    let lines: Vec<&str> = page.lines().collect();
    let at = lines.iter().position(|line| *line == go).unwrap_or_else(|| panic!("{page}"));
    assert!(lines[at - 1].starts_with("| ours | exit-delete | 1 | 3/3 reset |"), "{page}");
    assert!(page.contains("https://github.com/jaynirmal15/drainwatch"), "{page}");
    // The last connection's end to the endpoint's removal, by trial.
    let window = "| exit-delete/001 | 29.0 | 26.0 | 606 | -3.0 | 577 |";
    assert!(page.contains(window), "{page}");
    for (name, rows) in [("trials.csv", 1), ("flows.csv", 20), ("summary.csv", 1)] {
        let table = fs::read_to_string(output.join(name)).unwrap();
        let imported = table.lines().filter(|l| l.ends_with("go-v0.1,drainwatch (Go) 0.1.0"));
        assert_eq!(imported.count(), rows, "{name}");
    }
}

#[test]
fn reports_alone_are_printed_and_their_folder_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    go_report(dir.path(), &report());
    let only = [dir.path().to_owned(), dir.path().join("exit-delete")];
    for folder in only {
        let assert = summarize().arg(&folder).assert().success();
        assert.stdout(contains("| exit-delete | 1 | 10/10 reset | 29.0 |"));
        assert!(!folder.join("summary.md").exists());
    }
}

#[test]
fn a_bad_report_is_named_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let wrong = |text: &str, why: &str| {
        go_report(dir.path(), text);
        let said = contains("trial-001/report.json: ").and(contains(why));
        summarize().arg(dir.path()).assert().code(2).stdout("").stderr(said);
    };
    let report = report();
    wrong(&report[..report.len() / 2], "EOF while parsing");
    wrong(
        &report.replace("\"drainwatch_version\": \"0.1.0\"", "\"drainwatch_version\": \"0.2.0\""),
        "0.2.0",
    );
    wrong(&report.replace("\"severed\"", "\"vanished\""), "unknown variant `vanished`");
    wrong(&report.replace("\"timeline\"", "\"times\""), "missing field `timeline`");
    wrong("{}", "missing field");
    wrong("\u{0}", "expected value");
}

#[test]
fn records_and_reports_in_one_folder_are_not_mixed() {
    let dir = tempfile::tempdir().unwrap();
    record(dir.path(), &[stories::exit(1)]);
    go_report(dir.path(), &report());
    let why = contains("holds trial records and reports of drainwatch (Go)");
    summarize().arg(dir.path()).assert().code(2).stdout("").stderr(why);
}

#[test]
fn of_a_folder_of_runs_the_runs_are_named() {
    let top = tempfile::tempdir().unwrap();
    record(&top.path().join("paper-1"), &[stories::exit(1)]);
    go_report(&top.path().join("go"), &report());
    fs::create_dir(top.path().join("empty")).unwrap();
    let runs = "results: holds no trial record (ARM/trial-001.json)\n  \
                name those that you mean of the folders in it that do:\n    \
                results/go\n    results/paper-1\n";
    let parent = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(top.path(), parent.path().join("results")).unwrap();
    let mut command = summarize();
    command.current_dir(parent.path()).arg("results");
    command.assert().code(2).stdout("").stderr(format!("error: {runs}"));
}

#[test]
fn folders_of_one_name_are_told_apart_by_their_paths() {
    let top = tempfile::tempdir().unwrap();
    for parent in ["a", "b"] {
        record(&top.path().join(parent).join("run"), &[stories::exit(1)]);
    }
    summarize()
        .current_dir(&top)
        .args(["a/run", "b/run"])
        .assert()
        .success()
        .stdout(contains("| a/run | exit-delete |").and(contains("| b/run | exit-delete |")));
}

#[test]
fn an_interruption_is_told_beside_other_runs_too() {
    let top = tempfile::tempdir().unwrap();
    let (one, two) = (top.path().join("one"), top.path().join("two"));
    record(&one, &[stories::exit(1)]);
    record(&two, &[stories::exit(1)]);
    let plan = drainwatch::plan::Plan {
        matrix: "paper".into(),
        arms: vec![],
        overrides: vec![],
        only: vec![],
    };
    let tool = stories::exit(1).tool;
    let mut run = drainwatch::record::Run::new(tool, plan, "2026-11-30T12:00:00Z".into());
    run.interrupted = Some("SIGTERM".into());
    run.write(&two).unwrap();
    let told = "**The run two was interrupted: SIGTERM.**";
    summarize().args([&one, &two]).assert().success().stdout(contains(told));
    let told = "interrupted: two: SIGTERM\n";
    summarize().arg(&two).assert().success().stdout(contains(told));
}

#[test]
fn the_tables_of_another_run_are_not_replaced() {
    let [one, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    record(one.path(), &[stories::exit(1)]);
    fs::write(other.path().join("run.json"), "{}").unwrap();
    let mut command = summarize();
    command.arg(one.path()).arg("--output").arg(other.path());
    command.assert().code(2).stderr(contains("holds another run"));
    assert!(!other.path().join("flows.csv").exists());
}
