//! Ways in: by each address that leads to the pod, and from each place that clients can stand at.

use std::net::SocketAddr;

use drainwatch::config::Via;
use drainwatch::observation::{Event, Protocol};
use drainwatch::record::Trial;
use drainwatch::verdict::{Basis, Fate, Outcome};

use super::trials::{Lab, fates};

/// The tests of this file.
pub fn tests() -> Vec<(&'static str, fn())> {
    vec![
        ("a_cluster_ip_is_reached_from_a_node_and_from_a_pod", cluster_ip),
        ("a_host_port_and_the_pod_itself_are_reached", host_port_and_pod),
        ("flows_of_ipv6_have_the_fates_of_ipv4", ipv6),
    ]
}

const EXIT: &str = "sigterm = \"exit\"\nevidence = true";

/// Each flow's own address and the one that it went to.
fn ends(trial: &Trial) -> Vec<(Protocol, SocketAddr, SocketAddr)> {
    let end = |event: &Event| match event {
        Event::FlowOpened { flow, local, remote } => {
            let tcp = flow.starts_with("tcp");
            Some((if tcp { Protocol::Tcp } else { Protocol::Udp }, *local, *remote))
        }
        _ => None,
    };
    trial.observations.iter().filter_map(|seen| end(&seen.event)).collect()
}

/// Where the clients' addresses begin, and the address that the flows go to.
fn went(trial: &Trial, from: &str, to: &str) {
    assert_eq!(trial.outcome, Outcome::Measured, "{}: {:?}", trial.id, trial.reason);
    let ends = ends(trial);
    assert_eq!(ends.len(), 8, "{}", trial.id);
    for (_, local, remote) in ends {
        assert!(local.to_string().starts_with(from), "{}: from {local}", trial.id);
        assert!(remote.to_string().starts_with(to), "{}: to {remote}", trial.id);
    }
}

fn udp_is_measured(trial: &Trial) {
    for flow in trial.flows.iter().filter(|flow| flow.protocol == Protocol::Udp) {
        let cause = flow.cause.as_ref();
        let cause = cause.unwrap_or_else(|| panic!("{} {}: no cause", trial.id, flow.id));
        assert_eq!(cause.basis, Basis::Measured, "{} {}: {}", trial.id, flow.id, cause.text);
    }
}

/// With a replacement UDP is moved to it, without one nobody takes it over, and both are measured.
fn cluster_ip() {
    let scale = format!("{EXIT}\ntrigger = \"scale-to-zero\"");
    let flows = "via = \"cluster-ip\"\nfrom = \"pod\"\nsource_port = 41000";
    let lab = Lab::with_own_flows(
        &[("exit", EXIT, flows), ("scale", &scale, flows)],
        "[axes]\n\"flows.from\" = [\"node\", \"pod\"]\n\
         \"cluster.proxy_mode\" = [\"iptables\", \"nftables\"]\n",
    );
    let trials = lab.run();
    assert_eq!(trials.len(), 8);
    for trial in &trials {
        let pod = trial.arm.contains("from=pod");
        went(trial, if pod { "10.244." } else { "10." }, "10.96.");
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            let own = ends(trial).into_iter().filter(|(of, ..)| *of == protocol);
            let mut ports: Vec<u16> = own.map(|(_, local, _)| local.port()).collect();
            ports.sort_unstable();
            assert_eq!(ports, [41000, 41001, 41002, 41003], "{}", trial.id);
        }
        assert_eq!(fates(trial, Protocol::Tcp), [Fate::Reset; 4], "{}", trial.id);
        let udp = fates(trial, Protocol::Udp);
        match trial.scenario.as_str() {
            "exit" => assert_eq!(udp, [Fate::Rehomed; 4], "{}", trial.id),
            _ => assert!(
                udp.iter().all(|fate| matches!(fate, Fate::Refused | Fate::Silent)),
                "{}: {udp:?}",
                trial.id
            ),
        }
        udp_is_measured(trial);
    }
}

/// A hostPort leads to the replacement once that has it; the pod's own address leads nowhere else.
fn host_port_and_pod() {
    let to_pod = "via = \"pod\"\nfrom = \"pod\"";
    let lab = Lab::with_own_flows(
        &[("host-port", EXIT, "via = \"host-port\""), ("pod", EXIT, to_pod)],
        "",
    );
    for trial in &lab.run() {
        let node = |name: &str| {
            let target = trial.target.as_ref().expect("a target");
            (target.node == name, target.entry_node == name)
        };
        let udp = fates(trial, Protocol::Udp);
        match trial.config.flows.via {
            Via::HostPort => {
                went(trial, "", "10.");
                assert_eq!(node("node-2"), (true, true), "{}", trial.id);
                assert_eq!(udp, [Fate::Rehomed; 4], "{}", trial.id);
            }
            _ => {
                went(trial, "10.244.1.", "10.244.2.");
                let nobody =
                    |fate: &Fate| matches!(fate, Fate::Refused | Fate::Silent | Fate::Unreachable);
                assert!(udp.iter().all(nobody), "{}: {udp:?}", trial.id);
            }
        }
        udp_is_measured(trial);
    }
}

/// By NodePort from outside and by ClusterIP from a pod, in both proxies.
fn ipv6() {
    let lab = Lab::with_own_flows(
        &[
            ("node-port", EXIT, "ip = \"ipv6\""),
            ("cluster-ip", EXIT, "ip = \"ipv6\"\nvia = \"cluster-ip\"\nfrom = \"pod\""),
        ],
        "[axes]\n\"cluster.proxy_mode\" = [\"iptables\", \"nftables\"]\n",
    );
    let trials = lab.run();
    assert_eq!(trials.len(), 4);
    for trial in &trials {
        let (from, to) = match trial.config.flows.via {
            Via::ClusterIp => ("[fd64:7277:ff00:1:", "[fd64:7277:fe00:"),
            _ => ("[fd64:7277:", "[fd64:7277:"),
        };
        went(trial, from, to);
        assert_eq!(fates(trial, Protocol::Tcp), [Fate::Reset; 4], "{}", trial.id);
        assert_eq!(fates(trial, Protocol::Udp), [Fate::Rehomed; 4], "{}", trial.id);
        udp_is_measured(trial);
    }
}
