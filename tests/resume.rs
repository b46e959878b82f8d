//! `drainwatch apply --resume` as far as it comes without a cluster: what it refuses, and a run
//! that has nothing left.

mod stories;

use std::fs;
use std::path::Path;

use assert_cmd::Command;
use drainwatch::digest::sha256_of_file;
use drainwatch::plan::{self, Plan};
use drainwatch::record::{Claim, Run, Tool, Trial};
use predicates::prelude::*;
use predicates::str::contains;

/// The build under test, as it would name itself.
fn tool() -> Tool {
    let binary = assert_cmd::cargo::cargo_bin("drainwatch");
    let runner_sha256 = sha256_of_file(&binary).expect("the binary");
    Tool { runner_sha256, ..drainwatch::run::current_tool().expect("this binary") }
}

/// Two arms of two trials, in the configuration of the stories.
const MATRIX: &str = "scenarios = [\"exit-delete\", \"drain-delete\"]\n\
                      [cluster]\nprovider = \"local\"\n";
const SCENARIO: &str =
    "settle = \"10s\"\nrepeats = 2\nevidence = false\n[flows]\ntcp = 3\nudp = 4\n";

/// A run's folder, and the files that it was begun with.
struct Lab(tempfile::TempDir);

impl Lab {
    /// With these trials, by the build under test.
    fn new(trials: &[Trial]) -> Self {
        let lab = Self(tempfile::tempdir().expect("a folder"));
        for folder in ["scenarios", "matrices", "run"] {
            fs::create_dir(lab.path(folder)).expect("a folder");
        }
        for (name, sigterm) in [("exit-delete", "exit"), ("drain-delete", "drain")] {
            let text = format!("sigterm = \"{sigterm}\"\n{SCENARIO}");
            fs::write(lab.path(&format!("scenarios/{name}.toml")), text).expect("a scenario");
        }
        fs::write(lab.path("matrices/lab.toml"), MATRIX).expect("a matrix");
        Run::new(tool(), lab.plan(), "2026-11-30T12:00:00Z".into())
            .write(&lab.run())
            .expect("a record");
        for trial in trials {
            let trial = Trial { tool: tool(), ..trial.clone() };
            trial.write(&lab.run()).expect("a record");
        }
        lab
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.0.path().join(name)
    }

    fn run(&self) -> std::path::PathBuf {
        self.path("run")
    }

    fn plan(&self) -> Plan {
        plan::load(&self.path("matrices/lab.toml"), &[], &[]).expect("a plan")
    }

    /// Resumed where there is nothing to make clusters of: exit code 4 is what comes after every
    /// check of the folder.
    fn resume(&self) -> Command {
        let mut command = Command::cargo_bin("drainwatch").expect("the binary");
        command.current_dir(&self.0).args(["apply", "--resume", "run"]);
        command.env("XDG_CACHE_HOME", self.0.path()).env_remove("DRAINWATCH_COMPONENTS");
        command
    }
}

/// Every trial of both arms.
fn all() -> Vec<Trial> {
    [1, 2].map(|n| [stories::exit(n), stories::drain(n)]).concat()
}

#[test]
fn a_run_with_nothing_left_starts_nothing_and_writes_its_tables() {
    let lab = Lab::new(&all());
    fs::write(lab.path("run/exit-delete/.drainwatch-x1.tmp"), "{").expect("a file");
    let assert = lab.resume().arg("--keep-cluster").assert().success();
    assert
        .stdout(contains("exit-delete   2").and(contains("drain-delete  2")))
        .stderr(contains("nothing is left to do: 4 trials recorded; no cluster is started"))
        .stderr(contains("lab: 2 arms, 4 trials (4 already recorded)"));
    for table in ["flows.csv", "trials.csv", "summary.csv", "summary.md"] {
        assert!(lab.run().join(table).is_file(), "{table}");
    }
    assert!(!lab.path("run/exit-delete/.drainwatch-x1.tmp").exists());
    let trials = fs::read_to_string(lab.path("run/trials.csv")).expect("a table");
    assert_eq!(trials.lines().count(), 5, "{trials}");
}

#[test]
fn with_trials_left_it_goes_on_to_a_cluster() {
    let lab = Lab::new(&[stories::exit(1), stories::aborted("drain-delete", 1)]);
    lab.resume().assert().code(4).stdout("");
    // The file that it was begun with makes no difference, nor how the same plan is asked for.
    lab.resume().arg("matrices/lab.toml").assert().code(4);
    lab.resume().args(["matrices/lab.toml", "--set", "repeats=2"]).assert().code(4);
    let aborted = lab.path("run/drain-delete/trial-001.aborted.json");
    assert!(aborted.is_file(), "it stands until its trial is run again");
}

#[test]
fn a_file_of_another_plan_is_refused_key_by_key() {
    let lab = Lab::new(&[stories::exit(1)]);
    let mut command = lab.resume();
    command.args(["matrices/lab.toml", "--set", "flows.udp=9", "--only", "exit-delete"]);
    let assert = command.assert().code(3).stdout("");
    let text = String::from_utf8(assert.get_output().stderr.clone()).expect("text");
    insta::assert_snapshot!(text);
}

#[test]
fn another_build_is_refused_before_anything_is_started() {
    let lab = Lab::new(&[]);
    stories::exit(1).write(&lab.run()).expect("a record");
    let before = fs::read(lab.path("run/run.json")).expect("run.json");
    let assert = lab.resume().assert().code(3).stdout("");
    assert
        .stderr(contains("run: refused, not mixed"))
        .stderr(contains("build: runner_sha256: aa11 earlier, "))
        .stderr(contains("build: probe_sha256: bb22 earlier, "))
        .stderr(contains("build: commit: 0123456789abcdef earlier, "));
    assert_eq!(fs::read(lab.path("run/run.json")).expect("run.json"), before);
}

#[test]
fn another_configuration_is_refused_by_arm() {
    let mut trial = stories::drain(2);
    trial.config.grace_period = std::time::Duration::from_secs(45);
    let lab = Lab::new(&[stories::exit(1), trial]);
    let line = "drain-delete: configuration: config.grace_period_ms: 45000 earlier, 30000 now";
    lab.resume().assert().code(3).stderr(contains(line));
}

#[test]
fn another_build_may_run_what_no_trial_was_measured_of() {
    let lab = Lab::new(&[]);
    stories::aborted("exit-delete", 1).write(&lab.run()).expect("a record");
    lab.resume().assert().code(4);
}

#[test]
fn a_run_that_was_killed_before_its_first_record_needs_its_file() {
    let lab = Lab::new(&[]);
    fs::remove_file(lab.path("run/run.json")).expect("run.json");
    fs::write(lab.path("run/.drainwatch-x1.tmp"), "{").expect("a file");
    lab.resume().assert().code(2).stderr(contains("apply FILE --resume run"));
    lab.resume().arg("matrices/lab.toml").assert().code(4);
}

#[test]
fn what_is_no_runs_folder_is_named() {
    let lab = Lab::new(&[]);
    let refused = |folder: &str, why: &str| {
        let mut command = Command::cargo_bin("drainwatch").expect("the binary");
        command.current_dir(&lab.0).args(["apply", "--resume", folder, "matrices/lab.toml"]);
        command.assert().code(2).stdout("").stderr(contains(why));
    };
    refused("none", "none: can't be read");
    refused("matrices/lab.toml", "matrices/lab.toml: can't be read");
    refused("scenarios", "scenarios: holds no run.json");
    fs::write(lab.path("run/run.json"), "{\"format\": \"drainwatch.run/9\"}").expect("a file");
    refused("run", "run/run.json: was written by a newer drainwatch");
    assert_eq!(fs::read_dir(lab.path("scenarios")).expect("a folder").count(), 2);
}

#[test]
fn flags_that_say_what_to_run_belong_to_a_file() {
    let lab = Lab::new(&[]);
    for flag in [["--set", "repeats=1"], ["--only", "exit-delete"]] {
        lab.resume().args(flag).assert().code(2).stderr(contains("<FILE>"));
    }
    lab.resume().args(["--output", "other"]).assert().code(2).stderr(contains("--output"));
}

#[test]
fn the_second_of_two_runners_on_a_folder_is_refused() {
    let lab = Lab::new(&all());
    let claim = Claim::take(&lab.run()).expect("it is free");
    lab.resume().assert().code(5).stdout("").stderr(contains("another drainwatch is writing"));
    drop(claim);
    lab.resume().assert().success();
}

#[test]
fn a_folder_with_a_run_is_not_begun_anew_and_the_flag_that_goes_on_is_named() {
    let lab = Lab::new(&all());
    let mut command = Command::cargo_bin("drainwatch").expect("the binary");
    command.current_dir(&lab.0).args(["apply", "matrices/lab.toml", "--output", "run"]);
    command.assert().code(5).stderr(contains("run: holds a run").and(contains("--resume run")));
}

#[test]
fn a_table_that_can_not_be_written_has_a_code_of_its_own_and_records_stay() {
    let lab = Lab::new(&all());
    fs::create_dir(lab.path("run/trials.csv")).expect("a folder in a table's place");
    let assert = lab.resume().assert().code(5);
    assert
        .stdout(contains("exit-delete   2"))
        .stderr(contains("run/trials.csv: can't be written"))
        .stderr(contains("to write what could not be written: drainwatch apply --resume run"));
    for trial in all() {
        Trial::read(&lab.run().join(trial.file())).expect("its record");
    }
    fs::remove_dir(lab.path("run/trials.csv")).expect("it is empty");
    lab.resume().assert().success();
    assert!(lab.path("run/summary.md").is_file());
}

/// A file system that is mounted on a run's folder in a mount namespace of the command's own.
fn mounted(lab: &Lab, mount: &str) -> Command {
    let mut command = Command::new("unshare");
    let script = format!("{mount} && exec \"$@\"");
    command.current_dir(&lab.0).args(["--mount", "sh", "-c", &script, "sh"]);
    command.arg(assert_cmd::cargo::cargo_bin("drainwatch")).args(["apply", "--resume", "run"]);
    command
}

/// Root is asked by no mode whether it may write.
fn can_mount() -> bool {
    cfg!(target_os = "linux") && nix::unistd::geteuid().is_root()
}

#[test]
fn a_folder_that_can_not_be_written_is_told_before_anything_is_started() {
    if !can_mount() {
        eprintln!("not tested: mounts need root");
        return;
    }
    let lab = Lab::new(&all());
    let read_only = "mount --bind run run && mount -o remount,ro,bind run";
    let assert = mounted(&lab, read_only).assert().code(5);
    assert.stdout(contains("exit-delete   2")).stderr(contains("can't be written: Read-only"));
    let names = fs::read_dir(lab.run()).expect("a folder").count();
    assert_eq!(names, 3, "run.json and two arms");
}

#[test]
fn a_full_disk_leaves_whole_files() {
    if !can_mount() {
        eprintln!("not tested: mounts need root");
        return;
    }
    let lab = Lab::new(&all());
    // Room for the records and for some of the tables.
    let size: u64 = all()
        .iter()
        .map(|t| 4096 + fs::metadata(lab.run().join(t.file())).expect("a record").len())
        .sum();
    let full = format!(
        "cp -r run copy && mount -t tmpfs -o size={}k tmpfs run && cp -r copy/. run/ && \
         (cat /dev/zero > run/filler 2>/dev/null; true) && \
         trap 'cp -r run/. after' EXIT && mkdir after && \"$@\"; exit $?; :",
        size / 1024 + 64,
    );
    let mut command = mounted(&lab, &full);
    let assert = command.assert().code(5);
    assert.stderr(contains("can't be written: No space left on device"));
    let after = lab.path("after");
    fs::remove_file(after.join("filler")).expect("the filler");
    assert!(fs::read_dir(&after).expect("a folder").all(|entry| {
        !entry.expect("an entry").file_name().to_string_lossy().ends_with(".tmp")
    }));
    for trial in all() {
        assert_eq!(Trial::read(&after.join(trial.file())).expect("whole").id, trial.id);
    }
    assert!(Run::read(&after).is_ok());
    for table in ["flows.csv", "trials.csv", "summary.csv", "summary.md"] {
        assert!(!Path::new(&after).join(table).exists(), "{table}");
    }
}

/// Arms name folders, and a run's file may come from anywhere: nothing is written outside its folder.
#[test]
fn a_plan_that_somebody_has_edited_leads_nowhere_else() {
    type Edit = fn(&mut Plan);
    let edits: [(&str, Edit); 5] = [
        ("is no arm's name", |plan| plan.arms[0].name = "../evil".into()),
        ("is no arm's name", |plan| plan.arms[0].name = "/evil".into()),
        ("two arms are named", |plan| plan.arms[0].name = plan.arms[1].name.clone()),
        ("has no trial", |plan| plan.arms[0].config.repeats = 0),
        ("it has no arm", |plan| plan.arms.clear()),
    ];
    for (expected, edit) in edits {
        let lab = Lab::new(&all());
        let mut plan = lab.plan();
        edit(&mut plan);
        let run = Run::new(tool(), plan, "2026-11-30T12:00:00Z".into());
        run.write(&lab.run()).expect("a record");
        lab.resume().assert().code(2).stderr(contains("run.json").and(contains(expected)));
        assert!(!lab.path("evil").exists(), "{expected}");
    }
}
