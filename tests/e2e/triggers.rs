//! Each trigger on a real local cluster, with windows short enough for CI: what it does to the pod,
//! and that the next trial finds the cluster as this one did.

use drainwatch::observation::{Event, Protocol};
use drainwatch::record::Trial;
use drainwatch::verdict::{Fate, Outcome};

use super::trials::{Lab, fates, saw, trials, words};

/// The tests of this file.
pub fn tests() -> Vec<(&'static str, fn())> {
    vec![
        ("a_prestop_hook_delays_sigterm", pre_stop),
        ("controllers_end_the_pod_and_others_take_over", controllers),
        ("a_deletion_has_the_grace_that_it_is_given", graces),
        ("a_pod_that_lives_on_keeps_its_tcp_flows", living),
        ("a_crash_is_the_end_of_a_process_and_not_of_its_pod", crash),
        ("a_refused_trigger_is_no_pass_and_leaves_the_node_as_it_was", refused),
        ("a_stopped_node_says_nothing_and_costs_a_cluster", node_stop),
        ("a_pod_has_the_sysctls_that_it_asks_for", sysctls),
    ]
}

/// An app that drains for two seconds.
const DRAIN: &str = "sigterm = \"drain\"\ngrace_period = \"6s\"\ndrain_window = \"2s\"";

fn measured(trial: &Trial) {
    assert_eq!(trial.outcome, Outcome::Measured, "{}: {:?}", trial.id, trial.reason);
    let complete = |event: &Event| matches!(event, Event::ObservationEnded { complete: true });
    assert!(saw(trial, complete), "{}", trial.id);
}

/// SIGTERM comes after the hook; the endpoint does not wait for it.
fn pre_stop() {
    let exec = "pod.pre_stop_exec = \"/drainwatch-probe sleep 1500\"";
    let lab = Lab::new(
        &[
            ("sleep", "sigterm = \"exit\"\npod.pre_stop = \"2s\""),
            ("exec", &format!("sigterm = \"exit\"\n{exec}")),
        ],
        "",
    );
    let trials = lab.run();
    trials.iter().for_each(measured);
    for (trial, least) in trials.iter().zip([2000.0, 1500.0]) {
        let findings = &trial.findings;
        let sigterm = findings.sigterm_ms.expect("a SIGTERM");
        assert!((least..least + 2500.0).contains(&sigterm), "{}: {sigterm}", trial.id);
        assert!(findings.endpoint_not_ready_ms.expect("seen") < least, "{}", trial.id);
        assert_eq!(fates(trial, Protocol::Tcp), [Fate::Reset; 4]);
    }
}

/// With replicas beside it, the target is the one that goes.
fn controllers() {
    let lab = Lab::new(
        &[
            ("rollout", &format!("{DRAIN}\ntrigger = \"rollout\"\nrollout.max_unavailable = 0")),
            ("down", &format!("{DRAIN}\ntrigger = \"scale-down\"\npod.replicas = 3\nscale_to = 1")),
            ("node", &format!("{DRAIN}\ntrigger = \"drain-node\"\ncluster.nodes = 3")),
        ],
        "",
    );
    let trials = lab.run();
    let [rollout, down, node] = &trials[..] else { panic!("{} trials", trials.len()) };
    for trial in &trials {
        measured(trial);
        assert_eq!(fates(trial, Protocol::Tcp), [Fate::Drained; 4], "{}", trial.id);
        assert_eq!(fates(trial, Protocol::Udp), [Fate::Rehomed; 4], "{}", trial.id);
    }
    let ready = rollout.findings.replacement_ready_ms.expect("a replacement");
    assert!(ready < rollout.findings.sigterm_ms.expect("a SIGTERM"), "it was ready before");
    assert_eq!(down.findings.replacement_ready_ms, None, "nobody new was needed");
    let target = node.target.as_ref().expect("a target");
    let moved = node.flows.iter().find(|flow| flow.protocol == Protocol::Udp).expect("a flow");
    assert_ne!(moved.spans.last().expect("a span").by.uid, target.uid);
}

/// The app drains for longer than a short deletion lets it; forced, the API forgets it at once.
fn graces() {
    // Kubelets leave an app two seconds at least, whatever they are told.
    let grace = "sigterm = \"drain\"\ngrace_period = \"9s\"\ndrain_window = \"6s\"\n\
                 trigger = \"delete-grace\"\ndelete_grace = \"3s\"";
    let force = format!("{DRAIN}\ntrigger = \"force-delete\"");
    let trials = Lab::new(&[("grace", grace), ("force", &force)], "").run();
    let [grace, force] = &trials[..] else { panic!("{} trials", trials.len()) };
    trials.iter().for_each(measured);
    assert_eq!(grace.findings.container_exit_code, Some(137));
    let cut = |fate: &Fate| matches!(fate, Fate::Closed | Fate::Reset);
    assert!(fates(grace, Protocol::Tcp).iter().all(cut), "{:?}", grace.flows);
    let removed = force.findings.endpoint_removed_ms.expect("removed");
    assert!(removed < 1500.0, "the API forgot it at once: {removed}");
}

/// What leaves the Service, or loses it, goes on: TCP survives the whole observation.
fn living() {
    let of = |trigger: &str| {
        // A replacement has to come up before it can take anything over.
        let time = if trigger == "relabel" { "15s" } else { "6s" };
        format!("sigterm = \"drain\"\ntrigger = \"{trigger}\"\nobserve_for = \"{time}\"")
    };
    let names = ["relabel", "readiness-fail", "delete-service", "restart-kube-proxy"];
    let texts = names.map(of);
    let scenarios: Vec<_> = names.iter().copied().zip(texts.iter().map(String::as_str)).collect();
    let trials = Lab::new(&scenarios, "").run();
    let [relabel, readiness, service, proxy] = &trials[..] else { panic!("{}", trials.len()) };
    for trial in &trials {
        measured(trial);
        assert_eq!(fates(trial, Protocol::Tcp), [Fate::Survived; 4], "{}", trial.id);
        assert_eq!(trial.findings.sigterm_ms, None, "{}", trial.id);
        assert_eq!(trial.findings.container_exit_ms, None, "{}", trial.id);
    }
    assert_eq!(fates(relabel, Protocol::Udp), [Fate::Rehomed; 4]);
    let target = relabel.target.as_ref().expect("a target");
    let gone = |event: &Event| matches!(event, Event::PodGone { uid, .. } if *uid == target.uid);
    assert!(!saw(relabel, gone), "the watch still sees the pod that left");
    assert!(readiness.findings.endpoint_not_serving_ms.is_some());
    assert_eq!(readiness.findings.endpoint_removed_ms, None);
    assert!(service.findings.endpoint_removed_ms.is_some());
    assert_eq!(fates(proxy, Protocol::Udp), [Fate::Survived; 4]);
    assert!(saw(proxy, |event| matches!(event, Event::TriggerDone { .. })));
}

fn crash() {
    let trials = Lab::new(&[("crash", "sigterm = \"exit\"\ntrigger = \"crash\"")], "").run();
    let [crash] = &trials[..] else { panic!("{} trials", trials.len()) };
    measured(crash);
    assert_eq!(crash.findings.container_exit_code, Some(137));
    assert_eq!(crash.findings.sigterm_ms, None);
    let cut = |fate: &Fate| matches!(fate, Fate::Closed | Fate::Reset);
    assert!(fates(crash, Protocol::Tcp).iter().all(cut), "{:?}", crash.flows);
    for flow in crash.flows.iter().filter(|flow| flow.fate == Fate::Rehomed) {
        let (first, last) = (&flow.spans[0], flow.spans.last().expect("a span"));
        assert_eq!(first.by.uid, last.by.uid, "the same pod");
        assert_ne!(first.by.instance, last.by.instance, "another process");
    }
}

/// Twice, in one cluster: the second one finds the node as the first one did.
fn refused() {
    let lab = Lab::new(
        &[
            ("evict", &format!("{DRAIN}\ntrigger = \"evict\"\npod.disruption_budget = 1")),
            ("node", &format!("{DRAIN}\ntrigger = \"drain-node\"\npod.disruption_budget = 1")),
        ],
        "",
    );
    let output = lab.apply().args(["--set", "repeats=2"]).output().expect("drainwatch runs");
    assert_eq!(output.status.code(), Some(3), "{}", words(&output));
    let trials = trials(&lab.output());
    assert_eq!(trials.len(), 4);
    for trial in &trials {
        assert_eq!(trial.outcome, Outcome::TriggerRefused, "{}: {:?}", trial.id, trial.reason);
        let reason = trial.reason.as_deref().unwrap_or_default();
        assert!(reason.starts_with("429: ") && reason.contains("disruption budget"), "{reason}");
    }
}

/// The second trial has a cluster of its own.
fn node_stop() {
    let text = "sigterm = \"drain\"\ntrigger = \"node-stop\"\nobserve_for = \"6s\"";
    let lab = Lab::new(&[("stop", text)], "");
    let output = lab.apply().args(["--set", "repeats=2"]).output().expect("drainwatch runs");
    assert!(output.status.success(), "{}", words(&output));
    let trials = trials(&lab.output());
    let [first, second] = &trials[..] else { panic!("{} trials", trials.len()) };
    assert_ne!(first.environment.cluster, second.environment.cluster);
    for trial in &trials {
        measured(trial);
        assert_eq!(trial.findings.sigterm_ms, None);
        for flow in &trial.flows {
            let lost = matches!(flow.fate, Fate::Silent | Fate::Unreachable);
            assert!(lost, "{} {}: {:?}", trial.id, flow.id, flow.fate);
        }
    }
}

/// The sysctl is one that Kubernetes calls unsafe; the kubelet of this arm's cluster takes it.
fn sysctls() {
    let text = "sigterm = \"exit\"\ntrigger = \"scale-to-zero\"\npod.sysctls.\"net.ipv4.icmp_ratelimit\" = 0";
    let trials = Lab::new(&[("sysctls", text)], "").run();
    trials.iter().for_each(measured);
}
