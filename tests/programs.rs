//! What programs and packagers read: events, completions, manual pages, and the examples in help.

mod stories;

use std::path::Path;
use std::process::Output;

use assert_cmd::Command;
use clap::CommandFactory;
use drainwatch::cli::{self, Cli};
use rstest::rstest;
use serde_json::Value;

fn drainwatch(arguments: &[&str]) -> Output {
    let mut command = Command::cargo_bin("drainwatch").expect("the binary");
    command.current_dir(env!("CARGO_MANIFEST_DIR")).args(arguments).output().expect("it runs")
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("text")
}

/// The events that a command tells: each line is one, the first names the format and the command,
/// the last the exit code.
fn events(arguments: &[&str]) -> Vec<Value> {
    let output = drainwatch(&[arguments, &["--format", "json"]].concat());
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    let text = stdout(&output);
    let events: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let (first, last) = (events.first().expect("a first"), events.last().expect("a last"));
    assert_eq!((&first["event"], &first["command"]), (&"started".into(), &arguments[0].into()));
    assert_eq!(first["format"], "drainwatch.events/1");
    assert_eq!(last["event"], "ended");
    assert_eq!(last["exit_code"].as_i64(), output.status.code().map(i64::from));
    events
}

fn named<'a>(events: &'a [Value], name: &str) -> Vec<&'a Value> {
    events.iter().filter(|event| event["event"] == name).collect()
}

#[test]
fn a_file_that_is_right() {
    let events = events(&["check", "matrices/paper.toml"]);
    assert_eq!(events.len(), 3);
    let checked = &events[1];
    assert_eq!((&checked["arms"], &checked["trials"]), (&5.into(), &25.into()));
    assert_eq!(events[2]["outcome"], "success");
}

#[test]
fn each_error_has_its_place() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("a.toml");
    std::fs::write(&file, "sigterm = \"drian\"\n  repeats = 0\n").expect("a file");
    let path = file.to_str().expect("text");
    let events = events(&["check", path]);
    let places: Vec<_> = named(&events, "error")
        .iter()
        .map(|error| (error["file"].clone(), error["line"].clone(), error["column"].clone()))
        .collect();
    assert_eq!(places, [(path.into(), 1.into(), 11.into()), (path.into(), 2.into(), 13.into())]);
    assert_eq!(events.last().expect("a last")["outcome"], "usage");
}

#[test]
fn an_error_in_an_argument_names_it() {
    let events = events(&["plan", "matrices/paper.toml", "--set", "repeats=0"]);
    let error = named(&events, "error")[0];
    assert_eq!(error["argument"], "--set repeats=0");
    assert_eq!(error["file"], Value::Null);
}

#[test]
fn a_plan_is_told_arm_by_arm() {
    let events = events(&["plan", "matrices/readiness.toml"]);
    let arms = named(&events, "planned-arm");
    assert_eq!(arms.len(), 12);
    assert_eq!(arms[0]["axes"]["readiness"], "fail");
    assert_eq!(arms[0]["config"]["grace_period_ms"], 15_000);
}

#[test]
fn what_can_not_be_applied_is_told_by_events_alone() {
    let dir = tempfile::tempdir().expect("a folder");
    std::fs::write(dir.path().join("thesis.txt"), "mine").expect("a file");
    let output = dir.path().to_str().expect("text");
    let events = events(&["apply", "matrices/paper.toml", "--output", output]);
    let error = named(&events, "error")[0];
    assert!(error["message"].as_str().is_some_and(|text| text.ends_with("is not empty")));
    assert!(error["notes"][0].as_str().is_some_and(|text| text.contains("--output")));
    assert_eq!(events.last().expect("a last")["outcome"], "files");
}

#[test]
fn summaries_are_told_as_numbers() {
    let dir = tempfile::tempdir().expect("a folder");
    let run = dir.path().join("run-1");
    for trial in [stories::exit(1), stories::exit(2), stories::scale(1), stories::scale(2)] {
        trial.write(&run).expect("a record");
    }
    let events = events(&["summarize", run.to_str().expect("text")]);
    let arms = named(&events, "arm-summary");
    assert_eq!(arms.len(), 2);
    assert_eq!((&arms[0]["run"], &arms[0]["measured"]), (&"run-1".into(), &2.into()));
    assert_eq!(arms[0]["findings"]["last_tcp_end_ms"]["n"], 2);
    assert_eq!(arms[0]["findings"]["rules_removed_ms"], Value::Null);
    assert_eq!(named(&events, "disagreement").len(), 1);
    assert_eq!(named(&events, "tables-written")[0]["files"][3], "summary.md");
    assert!(run.join("summary.md").is_file());
}

#[test]
fn two_folders_are_told_without_tables() {
    let dir = tempfile::tempdir().expect("a folder");
    stories::exit(1).write(dir.path()).expect("a record");
    let events = events(&["summarize", dir.path().to_str().expect("text"), "tests/go-v0.1"]);
    let arms = named(&events, "arm-summary");
    assert_eq!(arms[0]["imported_from"], Value::Null);
    assert_eq!(arms[1]["imported_from"], "drainwatch (Go) 0.1.0");
    assert_eq!(named(&events, "tables-written").len(), 0);
}

#[test]
fn a_setup_tells_what_it_would_do() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut command = Command::cargo_bin("drainwatch").expect("the binary");
    command.env("XDG_CACHE_HOME", dir.path()).env_remove("DRAINWATCH_COMPONENTS");
    let output =
        command.args(["setup", "--dry-run", "--format", "json"]).output().expect("it runs");
    let text = stdout(&output);
    let planned: Value = serde_json::from_str(text.lines().nth(1).expect("a line")).expect("JSON");
    assert_eq!(planned["event"], "setup-planned");
    assert_eq!(planned["kubernetes"][0], "1.34.0");
    assert!(planned["steps"].as_array().is_some_and(|steps| steps.len() >= 4), "{text}");
}

#[rstest]
#[case("bash")]
#[case("zsh")]
#[case("fish")]
#[case("elvish")]
#[case("powershell")]
fn completions_know_the_commands_and_not_the_inner_ones(#[case] shell: &str) {
    let script = stdout(&drainwatch(&["completions", shell]));
    for word in ["summarize", "proxy-mode", "only", "completions"] {
        assert!(script.contains(word), "{shell}: {word}");
    }
    assert!(!script.contains("internal"), "{shell}");
}

#[test]
fn bash_takes_its_script() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("drainwatch");
    std::fs::write(&path, stdout(&drainwatch(&["completions", "bash"]))).expect("a file");
    let ask = format!(
        ". {} && COMP_WORDS=(drainwatch pl) COMP_CWORD=1 && _drainwatch drainwatch pl drainwatch && \
         echo \"${{COMPREPLY[@]}}\"",
        path.display()
    );
    let mut bash = Command::new("bash");
    bash.args(["--norc", "-c", &ask]).assert().success().stdout("plan\n");
}

#[test]
fn a_page_for_every_command() {
    let dir = tempfile::tempdir().expect("a folder");
    let folder = dir.path().join("man1");
    let told = stdout(&drainwatch(&["man", "--output", folder.to_str().expect("text")]));
    let mut pages: Vec<String> = std::fs::read_dir(&folder)
        .expect("a folder")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    pages.sort();
    let mut expected: Vec<String> = commands().into_iter().map(|(name, _)| name + ".1").collect();
    expected.sort();
    assert_eq!(pages, expected);
    assert_eq!(told.lines().count(), expected.len());
    let page = std::fs::read_to_string(folder.join("drainwatch-apply.1")).expect("a page");
    insta::assert_snapshot!(page);
}

#[test]
fn one_page_is_printed() {
    assert!(stdout(&drainwatch(&["man"])).contains(".SH NAME\ndrainwatch \\-"));
    assert!(stdout(&drainwatch(&["man", "plan"])).contains(".SH NAME\ndrainwatch\\-plan \\-"));
    let none = drainwatch(&["man", "internal"]);
    assert_eq!(none.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&none.stderr).contains("choose one of apply, check"));
}

/// Every command that is shown, by its name with hyphens: `drainwatch-cluster-up`.
fn commands() -> Vec<(String, clap::Command)> {
    fn add(name: String, command: &clap::Command, all: &mut Vec<(String, clap::Command)>) {
        for one in command.get_subcommands() {
            add(format!("{name}-{}", one.get_name()), one, all);
        }
        all.push((name, command.clone()));
    }
    let mut all = Vec::new();
    add("drainwatch".into(), &cli::shown(), &mut all);
    all
}

/// Every line that help and the pages give as an example.
fn examples() -> Vec<String> {
    let after = commands().into_iter().map(|(name, command)| {
        command.get_after_help().unwrap_or_else(|| panic!("{name}: no examples")).to_string()
    });
    let lines: Vec<String> = after
        .flat_map(|text| text.lines().map(|line| line.trim().to_owned()).collect::<Vec<_>>())
        .filter(|line| line.trim_start_matches("sudo ").starts_with("drainwatch "))
        .collect();
    assert!(lines.len() > 15, "{lines:?}");
    lines
}

#[test]
fn every_command_has_examples_and_each_is_a_command_line() {
    for line in examples() {
        // What follows is the shell's.
        let own = line.split(['>', '|', '#']).next().unwrap_or_default();
        let words = own.trim_start_matches("sudo ").split_whitespace();
        Cli::command().try_get_matches_from(words).unwrap_or_else(|e| panic!("{line}: {e}"));
    }
    for (name, _) in commands() {
        let name = name.replace('-', " ");
        assert!(examples().iter().any(|line| line.contains(&name)), "{name}");
    }
}

#[test]
fn examples_name_files_that_are_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for line in examples() {
        let mut words = line.split_whitespace().peekable();
        while let Some(word) = words.next() {
            if word == "--output" || word == ">" {
                words.next();
            } else if word.contains('/') && !word.starts_with('~') {
                assert!(root.join(word).exists(), "{line}: {word}");
            }
        }
    }
}

#[test]
fn the_long_version_names_the_commit() {
    let [short, long] = ["-V", "--version"].map(|flag| stdout(&drainwatch(&[flag])));
    assert_eq!(short, format!("drainwatch {}\n", env!("CARGO_PKG_VERSION")));
    assert!(long.starts_with(short.trim()) && long.contains("\ncommit: "), "{long}");
}
