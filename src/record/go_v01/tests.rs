//! What is read off the report of a real trial, and off the same one with other words in it.

use std::fs;

use rstest::rstest;
use serde_json::{Value, json};

use super::find::REPORT_FILE;
use super::*;
use crate::observation::Bound;
use crate::verdict::Fate;

const REPORT: &str = include_str!("../../../tests/go-v0.1/exit-delete/trial-001/report.json");

fn value() -> Value {
    serde_json::from_str(REPORT).unwrap()
}

fn read_value(value: &Value) -> Result<Trial, ReadError> {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("trial-001");
    fs::create_dir(&folder).unwrap();
    let path = folder.join(REPORT_FILE);
    fs::write(&path, value.to_string()).unwrap();
    read(&path, "matrix", "arm")
}

fn trial_of(value: &Value) -> Trial {
    read_value(value).unwrap()
}

/// The timeline without the events of these names.
fn without(value: &mut Value, names: &[&str]) {
    let timeline = value["trial"]["timeline"].as_array_mut().unwrap();
    timeline.retain(|event| !names.iter().any(|name| event["event"] == *name));
}

#[test]
fn the_whole_of_a_report() {
    let trial = trial_of(&value());
    let mut text = Vec::new();
    super::super::layout::write(&mut text, &trial).unwrap();
    insta::assert_snapshot!(String::from_utf8(text).unwrap());
}

#[test]
fn times_are_cut_off_and_the_probes_have_no_bound() {
    let bounds = trial_of(&value()).finding_bounds;
    let of = |name: &str| (bounds[name].bound, bounds[name].plus_minus_ms);
    assert_eq!(of("last_tcp_end_ms"), (Bound::Exact, Some(1.0)));
    assert_eq!(of("endpoint_removed_ms"), (Bound::AtMost, Some(1.0)));
    assert_eq!(of("dead_endpoint_window_ms"), (Bound::AtMost, Some(1.0)));
    assert_eq!(of("sigterm_ms"), (Bound::Exact, None));
    assert_eq!(of("app_shutdown_ms"), (Bound::Exact, Some(2.0)));
}

#[rstest]
#[case("econnreset", Fate::Reset)]
#[case("econnreset on write", Fate::Reset)]
#[case("econnrefused (icmp port unreachable)", Fate::Refused)]
#[case("econnrefused on write (icmp port unreachable)", Fate::Refused)]
#[case("eof-without-drain-announcement", Fate::Closed)]
#[case("answered by probe instance b, was a", Fate::Rehomed)]
#[case("answered by probe instance a, was a", Fate::Severed)]
#[case("rehomed onto a different probe instance", Fate::Severed)]
#[case("udp-silence-6-datagrams", Fate::Silent)]
#[case("epipe", Fate::Severed)]
#[case("ehostunreach", Fate::Severed)]
#[case("write deadline exceeded", Fate::Severed)]
#[case("", Fate::Severed)]
fn how_a_flow_was_severed_stands_in_its_detail(#[case] detail: &str, #[case] fate: Fate) {
    let mut report = value();
    report["trial"]["flows"][10]["detail"] = detail.into();
    let flow = &trial_of(&report).flows[10];
    assert_eq!(flow.fate, fate);
    let cause = flow.cause.as_ref().map(|cause| cause.text.clone());
    assert_eq!(cause, (fate == Fate::Severed).then(|| format!("reported as: {detail}")));
    // Silence begins with the last answer, not with its judgement.
    assert_eq!(flow.ended_ms, Some(if fate == Fate::Silent { -146.0 } else { 2353.0 }));
}

#[rstest]
#[case("drained-clean-close", Fate::Drained, Some(29.0))]
#[case("read-timeout", Fate::Silent, Some(-144.0))]
#[case("survived-observation-window", Fate::Survived, None)]
#[case("not-measured", Fate::NotMeasured, None)]
fn outcomes(#[case] outcome: &str, #[case] fate: Fate, #[case] ended_ms: Option<f64>) {
    let mut report = value();
    report["trial"]["flows"][0]["outcome"] = outcome.into();
    let trial = trial_of(&report);
    assert_eq!((trial.flows[0].fate, trial.flows[0].ended_ms), (fate, ended_ms));
    // Of a flow without an end nothing says that it was not the last one.
    let known = fate == Fate::Drained;
    assert_eq!(trial.findings.last_tcp_end_ms.is_some(), known);
    assert_eq!(trial.findings.dead_endpoint_window_ms.is_some(), known);
}

#[test]
fn the_figures_of_a_drain() {
    let mut report = value();
    report["trial"]["config"]["drain_behavior"] = "drain".into();
    for flow in report["trial"]["flows"].as_array_mut().unwrap() {
        if flow["proto"] == "udp" {
            flow["detail"] = "answered by probe instance b, was a".into();
        }
    }
    let Trial { findings, config, .. } = trial_of(&report);
    assert_eq!(config.drain_window, Some(Duration::from_secs(25)));
    // 25 s less (the last move at 2353 ms less SIGTERM at 27 ms).
    assert_eq!(findings.unused_drain_ms, Some(22_674.0));
    assert_eq!((findings.first_rehomed_ms, findings.first_refused_ms), (Some(353.0), None));
    assert_eq!(findings.dead_endpoint_window_ms, None);
}

#[test]
fn a_kill_is_told_by_its_code() {
    let mut report = value();
    report["trial"]["config"]["drain_behavior"] = "ignore".into();
    report["trial"]["config"]["grace_period_seconds"] = 0.into();
    let timeline = report["trial"]["timeline"].as_array_mut().unwrap();
    let exit = timeline.iter_mut().find(|e| e["event"] == "container_terminated").unwrap();
    exit["detail"] = "probe exitCode=137 reason=Error signal=0 finishedAt=2026".into();
    let Trial { findings, finding_bounds, .. } = trial_of(&report);
    assert_eq!(findings.container_exit_code, Some(137));
    // The last connection's end at 29 ms less SIGTERM at 27 ms.
    assert_eq!(findings.sigkill_after_grace_ms, Some(2.0));
    assert_eq!(finding_bounds["sigkill_after_grace_ms"].plus_minus_ms, None);
}

#[test]
fn endpoints_of_other_pods_are_not_the_targets() {
    let mut report = value();
    for event in report["trial"]["timeline"].as_array_mut().unwrap() {
        let detail =
            event["detail"].as_str().unwrap_or_default().replace("Pod/drainwatch", "Pod/x");
        event["detail"] = detail.into();
    }
    let findings = trial_of(&report).findings;
    assert_eq!((findings.endpoint_not_ready_ms, findings.endpoint_removed_ms), (None, None));
}

#[test]
fn an_observation_that_ended_before_the_containers_exit_is_warned_of() {
    let warned = |report: &Value| trial_of(report).warnings.join("; ");
    assert_eq!(warned(&value()), "");
    let mut report = value();
    without(&mut report, &["container_terminated"]);
    let text = "the observation ended 7377 ms after the trigger, before the container's exit";
    assert!(warned(&report).starts_with(text), "{}", warned(&report));
    // The report's timeline goes on after its observation.
    let mut report = value();
    let timeline = report["trial"]["timeline"].as_array_mut().unwrap();
    let exit = timeline.iter_mut().find(|e| e["event"] == "container_terminated").unwrap();
    exit["t_ms"] = 9000.into();
    assert!(warned(&report).starts_with(text), "{}", warned(&report));
    without(&mut report, &["observation_window_closed"]);
    assert_eq!(warned(&report), "the end of the observation is not in the report");
}

#[test]
fn without_a_trigger_nothing_counts() {
    let mut report = value();
    without(&mut report, &["trigger_issued"]);
    let trial = trial_of(&report);
    assert_eq!(trial.outcome, Outcome::Aborted);
    assert_eq!(trial.findings, Default::default());
    let mut report = value();
    for event in report["trial"]["timeline"].as_array_mut().unwrap() {
        if event["event"] == "trigger_api_returned" {
            event["detail"] = "api call returned an error: 429 budget".into();
        }
    }
    let trial = trial_of(&report);
    assert_eq!(trial.outcome, Outcome::TriggerRefused);
    assert_eq!(trial.reason.as_deref(), Some("429 budget"));
}

#[test]
fn an_import_is_not_judged_anew() {
    let mut trial = trial_of(&value());
    trial.observations = crate::stories::drain(1).observations;
    let before = trial.clone();
    trial.judge_anew();
    assert_eq!(trial, before);
}

#[rstest]
#[case::newer("/drainwatch_version", json!("0.2.0"), "this build reads reports of 0.1")]
#[case::outcome("/trial/flows/0/outcome", json!("lost"), "unknown variant `lost`")]
#[case::behaviour("/trial/config/drain_behavior", json!("crash"), "unknown variant `crash`")]
#[case::text("/trial/flows/0/t_terminal_ms", json!("29"), "invalid type: string")]
#[case::id("/trial/id", json!("trial-002"), "belongs in a folder of that name")]
#[case::no_id("/trial/id", json!("../x"), "not trial-001 or the like")]
fn bad_reports(#[case] pointer: &str, #[case] wrong: Value, #[case] why: &str) {
    let mut report = value();
    *report.pointer_mut(pointer).unwrap() = wrong;
    let error = read_value(&report).unwrap_err().to_string();
    assert!(error.contains("trial-001/report.json: ") && error.contains(why), "{error}");
}

#[rstest]
#[case("0.1.0", true)]
#[case("v0.1.0-10-g173d102", true)]
#[case("173d102", true)]
#[case("0.2.0-rc1", false)]
#[case("1.0.0", false)]
fn versions(#[case] version: &str, #[case] read: bool) {
    assert_eq!(check_version(version).is_ok(), read);
}

#[test]
fn the_cluster_is_what_the_report_tells_of_it() {
    let told = |mode: &str, cni: &str| {
        let mut report = value();
        report["environment"]["kube_proxy_mode"] = mode.into();
        report["environment"]["cni"] = cni.into();
        report["environment"]["node_count"] = 2.into();
        trial_of(&report).imported.unwrap().cluster
    };
    assert_eq!(
        told("iptables", "kindnet (identified by DaemonSet name; best effort)"),
        "Kubernetes 1.34.0, 2 nodes, iptables, kindnet"
    );
    assert!(told("unknown", "unknown").ends_with("proxy mode unknown, CNI unknown"));
}
