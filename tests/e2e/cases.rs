//! What users of Kubernetes reported in public, as matrices under `matrices/cases/`: each one's right
//! verdict. They take a quarter of an hour and two versions of Kubernetes, so they are run when asked for:
//! `cargo test --test e2e -- --ignored case_`.

use std::path::Path;
use std::process::Command;

use drainwatch::observation::{Event, Protocol};
use drainwatch::record::Trial;
use drainwatch::verdict::{Basis, Fate, LinkKind, Outcome};

use super::trials::{fates, saw, trials, words};

/// The tests of this file.
pub fn tests() -> Vec<(&'static str, fn())> {
    vec![
        ("case_udp_without_endpoints", udp_without_endpoints),
        ("case_a_fixed_source_port_does_not_stick_to_a_dead_pod", fixed_source_port),
        ("case_an_unready_pod_loses_udp_and_keeps_tcp", unready_pod),
        ("case_a_proxy_restart_ends_no_connection", proxy_restart),
        ("case_a_pod_that_leaves_its_service_keeps_its_connections", relabel),
        ("case_new_connections_fail_in_a_rollout_without_prestop", rollout),
        ("case_a_serving_pod_that_terminates_is_still_dialled", local_policy),
        ("case_a_prestop_hook_that_hangs_does_not_double_the_grace", hung_prestop),
        ("case_a_shell_as_pid_1_swallows_sigterm", shell),
        ("case_a_budget_refuses_an_eviction", budget),
    ]
}

/// Applies a case with one repeat; gives its trials and the exit code.
fn apply(case: &str) -> (Vec<Trial>, i32) {
    let folder = tempfile::tempdir().expect("a folder");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let output = folder.path().join("run");
    let done = Command::new(super::DRAINWATCH)
        .args(["apply", "--setup", "--set", "repeats=1", "--output"])
        .args([&output, &root.join("matrices/cases").join(case)])
        .output()
        .expect("drainwatch runs");
    let code = done.status.code().unwrap_or(-1);
    assert!([0, 3].contains(&code), "{}", words(&done));
    (trials(&output), code)
}

/// The trials of a case of which every one must be measured.
fn measured(case: &str) -> Vec<Trial> {
    let (trials, code) = apply(case);
    for trial in &trials {
        assert_eq!(trial.outcome, Outcome::Measured, "{}: {:?}", trial.id, trial.reason);
    }
    assert_eq!(code, 0);
    trials
}

fn all(trial: &Trial, protocol: Protocol, fate: Fate) {
    let fates = fates(trial, protocol);
    assert!(fates.iter().all(|one| *one == fate), "{}: {fates:?}", trial.id);
}

fn axis<'a>(trial: &'a Trial, name: &str) -> &'a str {
    let axis = trial.axes.iter().find(|(key, _)| key.ends_with(name));
    axis.map(|(_, value)| value.as_str()).expect("the axis")
}

/// kubernetes/kubernetes#139628. With the fix no entry leads a flow past the rules that reject it; how many
/// flows hear of that is up to the limit on ICMP.
fn udp_without_endpoints() {
    for trial in measured("udp-without-endpoints.toml") {
        let fixed = axis(&trial, "kubernetes") == "1.37.2" && axis(&trial, "via") == "cluster-ip";
        let mut silent = 0;
        for flow in &trial.flows {
            let cause = flow.cause.as_ref().expect("a cause");
            let text = format!("{} {}: {:?}: {}", trial.id, flow.id, flow.fate, cause.text);
            assert_eq!(cause.basis, Basis::Measured, "{text}");
            let links = |kind| cause.chain.iter().any(|link| link.what == kind);
            match (fixed, flow.fate) {
                (true, Fate::Refused | Fate::Silent) => {
                    assert!(links(LinkKind::RulesReject), "{text}");
                    assert!(links(LinkKind::EntryDestroyed), "{text}");
                }
                (false, Fate::Silent) => assert!(links(LinkKind::EntryStands), "{text}"),
                (false, Fate::Refused) => assert!(!links(LinkKind::EntryDestroyed), "{text}"),
                _ => panic!("{text}"),
            }
            silent += u32::from(flow.fate == Fate::Silent);
        }
        assert!(fixed || silent > 0, "{}", trial.id);
    }
}

/// kubernetes/kubernetes#59368, #19029
fn fixed_source_port() {
    for trial in measured("fixed-source-port.toml") {
        all(&trial, Protocol::Udp, Fate::Rehomed);
        all(&trial, Protocol::Tcp, Fate::Drained);
    }
}

/// kubernetes/kubernetes#137986
fn unready_pod() {
    for trial in measured("unready-pod.toml") {
        all(&trial, Protocol::Udp, Fate::Rehomed);
        all(&trial, Protocol::Tcp, Fate::Survived);
    }
}

/// kubernetes/kubernetes#122740
fn proxy_restart() {
    for trial in measured("proxy-restart.toml") {
        all(&trial, Protocol::Tcp, Fate::Survived);
        let fates = fates(&trial, Protocol::Udp);
        let lives = |fate: &Fate| matches!(fate, Fate::Survived | Fate::Rehomed);
        assert!(fates.iter().all(lives), "{}: {fates:?}", trial.id);
        let ended = |event: &Event| matches!(event, Event::ContainerTerminated { .. });
        assert!(!saw(&trial, ended), "{}", trial.id);
    }
}

/// kubernetes/kubernetes#100698, #101968
fn relabel() {
    for trial in measured("relabel.toml") {
        all(&trial, Protocol::Tcp, Fate::Survived);
        assert!(trial.findings.endpoint_removed_ms.is_some(), "{}", trial.id);
    }
}

/// kubernetes/kubernetes#86280, zalando/skipper#652
fn rollout() {
    for trial in measured("rollout-prestop.toml") {
        let failed = trial.findings.dials.failed_tcp_dials.expect("dials were made");
        match axis(&trial, "pre_stop") {
            "0s" => assert!(failed > 0, "{}", trial.id),
            _ => assert_eq!(failed, 0, "{}", trial.id),
        }
    }
}

/// kubernetes/kubernetes#85643, envoyproxy/gateway#9211
fn local_policy() {
    for trial in measured("local-policy.toml") {
        let first = trial.findings.dials.first_failed_tcp_dial_ms.expect("they fail at last");
        let exit = trial.findings.container_exit_ms.expect("it ends");
        match axis(&trial, "readiness") {
            // The dial that is under way when the app is killed fails too.
            "pass" => assert!(first > exit - 1500.0, "{}: {first} of {exit}", trial.id),
            _ => assert!(first < exit - 3000.0, "{}: {first} of {exit}", trial.id),
        }
    }
}

/// kubernetes/kubernetes#115817, #117373
fn hung_prestop() {
    for trial in measured("hung-prestop.toml") {
        assert_eq!(trial.findings.container_exit_code, Some(137), "{}", trial.id);
        let exit = trial.findings.container_exit_ms.expect("it ends");
        assert!((6000.0..11_000.0).contains(&exit), "{}: {exit}", trial.id);
    }
}

/// livekit/egress#1384
fn shell() {
    for trial in measured("shell-as-pid-1.toml") {
        assert_eq!(trial.findings.sigterm_ms, None, "{}", trial.id);
        assert_eq!(trial.findings.container_exit_code, Some(137), "{}", trial.id);
        let told = trial.warnings.iter().any(|warning| warning.contains("no SIGTERM was seen"));
        assert!(told, "{:?}", trial.warnings);
    }
}

/// kubernetes/kubernetes#66811
fn budget() {
    let (trials, code) = apply("disruption-budget.toml");
    assert_eq!(code, 3);
    for trial in trials {
        assert_eq!(trial.outcome, Outcome::TriggerRefused, "{}: {:?}", trial.id, trial.reason);
        all(&trial, Protocol::Tcp, Fate::Survived);
    }
}
