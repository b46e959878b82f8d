//! What the nodes' kernels tell of trials on real clusters: each flow's end has a chain of which every
//! link was recorded, in both proxy modes.

use drainwatch::observation::{EntryChange, Event, Observation, Protocol};
use drainwatch::record::Trial;
use drainwatch::verdict::{Basis, Fate, FlowRecord, LinkKind};

use crate::trials::Lab;

/// The tests of this file.
pub fn tests() -> Vec<(&'static str, fn())> {
    vec![
        ("each_flows_end_has_a_measured_chain_with_iptables", || chains("iptables")),
        ("each_flows_end_has_a_measured_chain_with_nftables", || chains("nftables")),
        ("without_evidence_the_kernels_tell_nothing", without),
    ]
}

/// The app exits, drains or is killed, with a replacement and without. (Evidence is the default.)
fn chains(proxy_mode: &str) {
    let settle = "settle = \"3s\"";
    let exit = format!("sigterm = \"exit\"\n{settle}");
    let scale = format!("{exit}\ntrigger = \"scale-to-zero\"");
    let drain =
        format!("sigterm = \"drain\"\ngrace_period = \"8s\"\ndrain_window = \"4s\"\n{settle}");
    let ignore = format!("sigterm = \"ignore\"\ngrace_period = \"3s\"\n{settle}");
    let lab = Lab::with_own_settle(
        &[("exit", &exit), ("scale", &scale), ("drain", &drain), ("ignore", &ignore)],
        &format!("[cluster]\nprovider = \"local\"\nproxy_mode = \"{proxy_mode}\"\n"),
    );
    for trial in lab.run() {
        assert_eq!(trial.flows.len(), 8, "{}", trial.id);
        trial.flows.iter().for_each(|flow| has_a_chain(&trial, flow));
        let gap = |o: &&Observation| matches!(o.event, Event::EvidenceGap { .. });
        assert_eq!(trial.observations.iter().find(gap), None, "{}", trial.id);
        assert!(trial.checks.iter().any(|check| check.check == "kernel-evidence"), "{}", trial.id);
        processes(&trial);
        rules(&trial);
    }
}

fn has_a_chain(trial: &Trial, flow: &FlowRecord) {
    let id = (&trial.id, &flow.id, flow.fate);
    let cause = flow.cause.as_ref().unwrap_or_else(|| panic!("{id:?}: no cause"));
    assert_eq!(cause.basis, Basis::Measured, "{id:?}: {}", cause.text);
    let kinds: Vec<_> = cause.chain.iter().map(|link| link.what).collect();
    let needed: &[LinkKind] = match (trial.scenario.as_str(), flow.protocol, flow.fate) {
        ("exit" | "scale", Protocol::Tcp, Fate::Reset) => &[LinkKind::Sigterm, LinkKind::SentByPod],
        ("drain", Protocol::Tcp, Fate::Drained) => {
            &[LinkKind::Sigterm, LinkKind::DrainEnded, LinkKind::SentByPod]
        }
        ("ignore", Protocol::Tcp, Fate::Closed | Fate::Reset) => {
            &[LinkKind::Sigterm, LinkKind::ProcessExit, LinkKind::SentByPod]
        }
        ("exit" | "drain" | "ignore", Protocol::Udp, Fate::Rehomed) => &[
            LinkKind::EndpointNotReady,
            LinkKind::RulesWithoutTarget,
            LinkKind::EntryDestroyed,
            LinkKind::EntryMade,
            LinkKind::Answered,
        ],
        ("scale", Protocol::Udp, Fate::Refused) => {
            &[LinkKind::Sigterm, LinkKind::ProcessExit, LinkKind::Refusal, LinkKind::Refused]
        }
        ("scale", Protocol::Udp, Fate::Silent) => {
            &[LinkKind::ProcessExit, LinkKind::RulesWithoutTarget, LinkKind::EntryStands]
        }
        _ => panic!("{id:?}: not the fate that was expected"),
    };
    for link in needed.iter().chain([&LinkKind::Trigger]) {
        assert!(kinds.contains(link), "{id:?}: {link:?} is not among {kinds:?}");
    }
}

/// The kernel tells of the process's end before the watch does of the container's, with the same code.
fn processes(trial: &Trial) {
    let target = trial.target.as_ref().expect("a target");
    let ends: Vec<_> = (trial.observations.iter())
        .filter_map(|o| match &o.event {
            Event::ProcessExited { uid, exit_code, .. } if *uid == target.uid => Some(*exit_code),
            _ => None,
        })
        .collect();
    let [code] = ends[..] else { panic!("{}: {} ends", trial.id, ends.len()) };
    // A kernel before 6.15 keeps no code.
    let findings = &trial.findings;
    assert!(code.is_none() || code == findings.container_exit_code, "{}: {code:?}", trial.id);
    let (process, container) = (findings.process_exit_ms, findings.container_exit_ms);
    assert!(process.expect("told") < container.expect("told"), "{}", trial.id);
}

fn rules(trial: &Trial) {
    let findings = &trial.findings;
    let removed = findings.rules_removed_ms.unwrap_or_else(|| panic!("{}: no rules", trial.id));
    let ready = findings.endpoint_not_ready_ms.expect("told");
    // The watch and kube-proxy hear of an endpoint in either order.
    assert!(removed > ready - 100.0, "{}: {removed} {ready}", trial.id);
    let exits = trial.scenario == "exit" || trial.scenario == "scale";
    assert_eq!(findings.dead_rule_window_ms.is_some(), exits, "{}", trial.id);
}

/// Where it is not asked for, nothing of it is recorded; the counters are.
fn without() {
    let text = "sigterm = \"exit\"\nevidence = false";
    let trials = Lab::new(&[("without", text)], "[cluster]\nprovider = \"local\"\n").run();
    let [trial] = &trials[..] else { panic!("{} trials", trials.len()) };
    let told = trial.observations.iter().find(|o| {
        matches!(
            o.event,
            Event::Rules { .. }
                | Event::Conntrack { change: EntryChange::New | EntryChange::Stands, .. }
                | Event::Packet { .. }
                | Event::ProcessExited { .. }
        )
    });
    assert_eq!(told, None);
    assert_eq!(trial.findings.rules_removed_ms, None);
    assert!(trial.observations.iter().any(|o| matches!(o.event, Event::Counters { .. })));
}
