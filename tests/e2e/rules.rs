//! kube-proxy's nftables rules in each form that it has written, as the evidence reads them: in a network
//! namespace of its own, without a cluster.

use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use drainwatch::config::{IpFamily, ProxyMode};
use drainwatch::evidence::{Place, Subject, SubjectPort, start};
use drainwatch::observation::{Event, Protocol};
use nix::sched::{CloneFlags, unshare};

/// The tests of this file.
pub fn tests() -> Vec<(&'static str, fn())> {
    vec![
        ("rules_that_translate_by_themselves_are_read", translating),
        ("rules_that_lead_to_endpoints_chains_are_read", by_chains),
        ("rules_of_an_unknown_form_are_a_gap", unknown),
    ]
}

/// A network namespace with kube-proxy's table in it.
struct Node(Child);

impl Node {
    fn with(chains: &str) -> Self {
        let mut command = Command::new("sleep");
        command.arg("600");
        // SAFETY: one system call between fork and exec.
        unsafe { command.pre_exec(|| Ok(unshare(CloneFlags::CLONE_NEWNET)?)) };
        let node = Self(command.spawn().expect("sleep"));
        node.load(chains);
        node
    }

    /// Puts the table in force anew, in one commit.
    fn load(&self, chains: &str) {
        let table = format!(
            "table ip kube-proxy\ndelete table ip kube-proxy\ntable ip kube-proxy {{\n\
             map no-endpoint-services {{ type ipv4_addr . inet_proto . inet_service : verdict; }}\n\
             map no-endpoint-nodeports {{ type inet_proto . inet_service : verdict; }}\n\
             {chains}\n}}\n"
        );
        let pid = self.0.id().to_string();
        let mut nft = Command::new("nsenter")
            .args(["--net", "--target", &pid, "nft", "--file", "-"])
            .stdin(Stdio::piped())
            .spawn()
            .expect("nft");
        nft.stdin.take().expect("a pipe").write_all(table.as_bytes()).expect("a pipe");
        assert!(nft.wait().expect("nft").success(), "{table}");
    }

    /// What is told while it goes from its rules to `later`: those of UDP, in order, and the gaps.
    fn heard(&self, later: &str) -> (Vec<(Vec<SocketAddr>, bool)>, Vec<String>) {
        let port = |protocol: Protocol, number| SubjectPort {
            name: protocol.name().to_lowercase(),
            protocol,
            node_port: Some(number + 23_000),
            service_port: number,
            pod_port: number,
        };
        let subject = Subject {
            namespace: "lab".into(),
            service: "probe".into(),
            ports: vec![port(Protocol::Tcp, 7001), port(Protocol::Udp, 7002)],
            cluster_ip: None,
            ip: IpFamily::Ipv4,
            mode: ProxyMode::Nftables,
            translator: "node-1".into(),
            pod_node: "node-1".into(),
        };
        let (sink, mut seen) = tokio::sync::mpsc::unbounded_channel();
        let place = Place { node: "node-1".into(), pid: self.0.id().cast_signed() };
        let evidence = start(&[place], &subject, &sink).expect("listeners");
        self.load(later);
        evidence.finish();
        drop(sink);
        let (mut rules, mut gaps) = (Vec::new(), Vec::new());
        while let Some(told) = seen.blocking_recv() {
            match told.event {
                Event::Rules { protocol: Protocol::Udp, endpoints, reject, .. } => {
                    rules.push((endpoints, reject));
                }
                Event::EvidenceGap { reason, .. } => gaps.push(reason),
                _ => {}
            }
        }
        (rules, gaps)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn pods(addresses: &[&str]) -> Vec<SocketAddr> {
    addresses.iter().map(|address| address.parse().expect("an address")).collect()
}

const TCP: &str =
    "chain service-ABCDEFGH-lab/probe/tcp/tcp { meta l4proto tcp dnat to 10.244.2.2:7001; }";

/// As of 1.37: to one endpoint, to one of two, and nowhere.
fn translating() {
    let one =
        "chain service-IJKLMNOP-lab/probe/udp/udp { meta l4proto udp dnat to 10.244.2.2:7002; }";
    let two = "chain service-IJKLMNOP-lab/probe/udp/udp { meta l4proto udp dnat ip addr . port to \
               numgen random mod 2 map { 0 : 10.244.2.2 . 7002, 1 : 10.244.3.7 . 7002 }; }";
    let none = "chain service-IJKLMNOP-lab/probe/udp/udp { }\nchain reject-chain { reject; }";
    let rejecting =
        "add element ip kube-proxy no-endpoint-nodeports { udp . 30002 : goto reject-chain }";
    let node = Node::with(&format!("{TCP}\n{one}"));
    let (rules, gaps) = node.heard(&format!("{TCP}\n{two}"));
    assert_eq!(gaps, Vec::<String>::new());
    assert_eq!(
        rules,
        [
            (pods(&["10.244.2.2:7002"]), false),
            (pods(&["10.244.2.2:7002", "10.244.3.7:7002"]), false)
        ]
    );
    let (rules, gaps) =
        node.heard(&format!("{TCP}\n{none}\n}}\n{rejecting}\ntable ip kube-proxy {{"));
    assert_eq!(gaps, Vec::<String>::new());
    assert_eq!(rules.last(), Some(&(Vec::new(), true)));
}

/// Up to 1.36, and with session affinity: a map of chains.
fn by_chains() {
    let chain = |pod: &str, rules: &str| {
        format!("chain endpoint-QRSTUVWX-lab/probe/udp/udp__{pod}/7002 {{ {rules} }}\n")
    };
    let two = ["10.244.2.2", "10.244.3.7"];
    let ends: String = two
        .iter()
        .map(|pod| chain(pod, &format!("meta l4proto udp dnat to {pod}:7002;")))
        .collect();
    let jumps = "numgen random mod 2 vmap { \
                 0 : goto endpoint-QRSTUVWX-lab/probe/udp/udp__10.244.2.2/7002, \
                 1 : goto endpoint-QRSTUVWX-lab/probe/udp/udp__10.244.3.7/7002 };";
    let service = |rules: &str| {
        format!("{TCP}\n{ends}chain service-IJKLMNOP-lab/probe/udp/udp {{ {rules} }}\n")
    };
    let affine =
        "ip saddr @affinity-1 goto endpoint-QRSTUVWX-lab/probe/udp/udp__10.244.2.2/7002;\n";
    let set = "set affinity-1 { type ipv4_addr; flags dynamic,timeout; timeout 10800s; }\n";
    let node = Node::with(&service(jumps));
    let (rules, gaps) = node.heard(&format!("{set}{}", service(&format!("{affine}{jumps}"))));
    assert_eq!(gaps, Vec::<String>::new());
    let both = pods(&["10.244.2.2:7002", "10.244.3.7:7002"]);
    assert_eq!(rules, [(both, false)], "affinity leads to the same endpoints");
}

/// Seen on 1.37.2 before its form was known: the rules were told to lead nowhere.
fn unknown() {
    let unknown = "chain service-IJKLMNOP-lab/probe/udp/udp { counter; }";
    let node = Node::with(&format!("{TCP}\n{unknown}"));
    let (rules, gaps) = node.heard(&format!("{TCP}\n{unknown}\nchain other {{ }}"));
    assert_eq!(rules, []);
    assert_eq!(
        gaps,
        [
            "in kube-proxy's rules no endpoint of the Service's UDP port was found: they are of a form that is not known"
        ]
    );
}
