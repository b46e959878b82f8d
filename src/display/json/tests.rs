//! What each event looks like, and that the docs tell of each.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use super::*;
use crate::plan;
use crate::report::{self, Part};
use crate::run::Phase;
use crate::stories;

fn noon() -> Timestamp {
    "2026-11-30T12:00:00.123456Z".parse().unwrap()
}

/// The lines that these events make.
fn lines(tell: impl FnOnce(&mut Stream<&mut Vec<u8>>)) -> String {
    let mut out = Vec::new();
    tell(&mut Stream::new(&mut out, noon));
    String::from_utf8(out).unwrap()
}

fn run_events() -> Vec<RunEvent> {
    let (second, id) = (Duration::from_secs(1), "exit-delete/001".to_owned());
    vec![
        RunEvent::RunStarted {
            matrix: "paper".into(),
            arms: 1,
            trials: 2,
            recorded: 0,
            expected: second * 77,
            output: "results/paper".into(),
        },
        RunEvent::ArmStarted { arm: "exit-delete".into(), number: 1, trials: 2, recorded: 0 },
        RunEvent::ClusterUp { cluster: "dw-1".into(), took: second * 4 },
        RunEvent::TrialStarted { id, expected: second * 20 },
        RunEvent::Phase { phase: Phase::Settle, expected: Some(second * 10) },
        RunEvent::TrialEnded(Arc::new(stories::exit(1))),
        RunEvent::TrialEnded(Arc::new(stories::aborted("exit-delete", 2))),
        RunEvent::Warning("environment: cni could not be read".into()),
        RunEvent::ClusterGone { cluster: "dw-1".into(), took: second },
        RunEvent::ArmEnded { arm: "exit-delete".into(), reason: Some("a reason".into()) },
        RunEvent::RunEnded,
    ]
}

fn told(stream: &mut Stream<&mut Vec<u8>>) {
    let mut view = Runs::default();
    let plan = Path::new(env!("CARGO_MANIFEST_DIR")).join("matrices/readiness.toml");
    let plan = plan::load(&plan, &[], &[]).unwrap();
    let trials = [stories::scale(1), stories::scale(2)];
    let part = Part { name: "paper-1", trials: &trials, run: None };
    let arm = &plan.arms[0];
    stream.emit(&Event::Started {
        command: "apply",
        version: "0.1.0",
        commit: "0123456789ab",
        dirty: Some(false),
    });
    for event in &run_events() {
        stream.emit(&view.translate(event));
    }
    for event in [
        Event::ArmSummary(report::summaries(&[part]).remove(0)),
        Event::Disagreement { run: "paper-1", message: "drain-scale: UDP fates differ".into() },
        Event::TablesWritten { folder: "results/paper".into(), files: &report::FILES },
        Event::Note { message: "provider auto: local".into() },
        Event::FileChecked { file: "m.toml".into(), kind: "matrix", arms: 5, trials: 25 },
        Event::Plan {
            matrix: &plan.matrix,
            arms: plan.arms.len(),
            trials: plan.trials(),
            expected_ms: ms(plan.expected_duration()),
            overrides: &plan.overrides,
            only: &plan.only,
        },
        Event::PlannedArm {
            arm: &arm.name,
            scenario: &arm.scenario,
            axes: arm.axes.iter().map(|(key, value)| (&**key, &**value)).collect(),
            trials: arm.config.repeats,
            expected_ms: ms(arm.expected_duration()),
            config: &arm.config,
            cluster: &arm.cluster,
        },
        Event::SetupPlanned {
            kubernetes: vec!["1.34.0".into()],
            user: "root".into(),
            cache: "/root/.cache/drainwatch".into(),
            steps: vec!["download etcd v3.6.4".into()],
            damaged: &[],
            cache_bytes: 30 << 20,
            go_caches_bytes: 0,
        },
        Event::SetupWaiting,
        Event::StepStarted { step: "download etcd v3.6.4" },
        Event::StepProgress { step: "download etcd v3.6.4".into(), progress: "etcd, 3 MB" },
        Event::StepEnded { step: "download etcd v3.6.4", took_ms: 1500.0 },
        Event::Component {
            kubernetes: "1.34.0".into(),
            name: "etcd",
            version: Some("3.6.4"),
            source: Some("official release"),
        },
        Event::Error(Error {
            line: Some(3),
            column: Some(11),
            file: Some("scenarios/a.toml".into()),
            ..Error::of_text("unknown value `drian`\n  help: did you mean `drain`?")
        }),
        Event::Ended { outcome: "usage", exit_code: 2, folder: Some("results/paper".into()) },
    ] {
        stream.emit(&event);
    }
}

#[test]
fn a_line_for_each_event() {
    insta::assert_snapshot!(lines(told));
}

/// A name for each event: what is added to them must be added here, and so to [`told`] and the docs.
fn name(event: &Event) -> &'static str {
    match event {
        Event::Started { .. } => "started",
        Event::Note { .. } => "note",
        Event::Warning { .. } => "warning",
        Event::Error(_) => "error",
        Event::Ended { .. } => "ended",
        Event::RunStarted { .. } => "run-started",
        Event::ArmStarted { .. } => "arm-started",
        Event::ClusterUp { .. } => "cluster-up",
        Event::TrialStarted { .. } => "trial-started",
        Event::Phase { .. } => "phase",
        Event::TrialEnded { .. } => "trial-ended",
        Event::ClusterGone { .. } => "cluster-gone",
        Event::ArmEnded { .. } => "arm-ended",
        Event::RunEnded => "run-ended",
        Event::ArmSummary(_) => "arm-summary",
        Event::Disagreement { .. } => "disagreement",
        Event::TablesWritten { .. } => "tables-written",
        Event::FileChecked { .. } => "file-checked",
        Event::Plan { .. } => "plan",
        Event::PlannedArm { .. } => "planned-arm",
        Event::SetupPlanned { .. } => "setup-planned",
        Event::SetupWaiting => "setup-waiting",
        Event::StepStarted { .. } => "step-started",
        Event::StepProgress { .. } => "step-progress",
        Event::StepEnded { .. } => "step-ended",
        Event::Component { .. } => "component",
    }
}

#[test]
fn events_are_named_in_kebab_case() {
    for event in [Event::RunEnded, Event::SetupWaiting, Event::Note { message: String::new() }] {
        assert_eq!(serde_json::to_value(&event).unwrap()["event"], name(&event));
    }
}

#[test]
fn the_docs_tell_of_every_event_and_every_field() {
    let docs = include_str!("../../../docs/events.md");
    let sections: BTreeMap<&str, &str> = docs
        .split("\n### `")
        .skip(1)
        .map(|section| section.split_once('`').expect("a heading in backticks"))
        .collect();
    let told = lines(told);
    let mut names = BTreeSet::new();
    for line in told.lines() {
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        let event = value["event"].as_str().unwrap().to_owned();
        let section = sections.get(event.as_str());
        let section = section.unwrap_or_else(|| panic!("docs/events.md has no `{event}`"));
        for field in value.as_object().unwrap().keys() {
            let common = ["format", "t", "event"].contains(&field.as_str());
            let named = section.contains(&format!("`{field}`"));
            assert!(common || named, "docs/events.md: `{event}` has no `{field}`");
        }
        names.insert(event);
    }
    let documented: BTreeSet<String> = sections.keys().map(|name| (*name).to_owned()).collect();
    assert_eq!(documented, names);
    assert!(docs.contains(FORMAT));
}

#[test]
fn the_first_line_alone_names_the_format() {
    let told = lines(told);
    let with = told.lines().filter(|line| line.contains(FORMAT)).count();
    assert_eq!(with, 1);
    assert!(
        told.starts_with(&format!("{{\"format\":\"{FORMAT}\",\"t\":\"2026-11-30T12:00:00.123Z\""))
    );
}

/// A reader that went away, and a disk that is full.
struct Failing(ErrorKind);

impl Write for Failing {
    fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
        Err(self.0.into())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_reader_that_went_away_is_no_failure_and_a_full_disk_is() {
    for (kind, fails) in [(ErrorKind::BrokenPipe, false), (ErrorKind::StorageFull, true)] {
        let mut stream = Stream::new(Failing(kind), noon);
        stream.emit(&Event::RunEnded);
        assert_eq!(stream.failed.is_some(), fails);
    }
}
