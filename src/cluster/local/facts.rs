//! What the local provider knows of the environment: versions of components and tools as they were
//! located, kube-proxy's mode as it tells it, each node's sysctls. What can't be read is `unknown`, with a warning.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::time::Duration;

use super::cgroup;
use super::cluster::LocalCluster;
use crate::cluster::environment::UNKNOWN;
use crate::cluster::{Node, ProviderFacts};
use crate::netns::NetNamespace;

/// What decides about flows in a node's net namespace.
const SYSCTLS: [&str; 13] = [
    "net.core.rmem_max",
    "net.core.wmem_max",
    "net.ipv4.icmp_msgs_burst",
    "net.ipv4.icmp_msgs_per_sec",
    "net.ipv4.icmp_ratelimit",
    "net.ipv4.icmp_ratemask",
    "net.ipv4.ip_local_port_range",
    "net.netfilter.nf_conntrack_max",
    "net.netfilter.nf_conntrack_tcp_be_liberal",
    "net.netfilter.nf_conntrack_tcp_timeout_close_wait",
    "net.netfilter.nf_conntrack_tcp_timeout_established",
    "net.netfilter.nf_conntrack_udp_timeout",
    "net.netfilter.nf_conntrack_udp_timeout_stream",
];
/// The same, of IPv6: where a cluster has it.
const SYSCTLS6: [&str; 2] = ["net.ipv6.icmp.ratelimit", "net.ipv6.icmp.ratemask"];
/// What decides about the runner's own sockets.
const RUNNER_SYSCTLS: [&str; 3] =
    ["net.core.rmem_max", "net.core.wmem_max", "net.ipv4.ip_local_port_range"];
const PROXY_METRICS: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 10249);
const PATIENCE: Duration = Duration::from_secs(2);

/// Reads all of it.
pub(super) async fn read(cluster: &LocalCluster) -> ProviderFacts {
    let nodes = cluster.nodes.clone();
    let read = tokio::task::spawn_blocking(move || of_host_and_nodes(&nodes));
    let mut facts = read.await.unwrap_or_else(|error| ProviderFacts {
        warnings: vec![format!("the provider's facts: {error}")],
        ..ProviderFacts::default()
    });
    for (name, version) in &cluster.versions {
        let key = format!("version/{name}");
        if version == UNKNOWN {
            facts.warnings.push(format!("{key}: the program does not tell it"));
        }
        facts.fixed.insert(key, version.clone());
    }
    for (key, value) in [
        ("cni", "ptp + host-local"),
        ("etcd", "in memory, unsafe-no-fsync"),
        ("node file systems", "in memory"),
        ("dns", if cluster.dns { "CoreDNS" } else { "none" }),
    ] {
        facts.fixed.insert(key.into(), value.into());
    }
    if cluster.nodes.iter().any(|node| node.address6.is_some()) {
        facts.fixed.insert("address families".into(), "IPv4 and IPv6".into());
    }
    facts.varying.insert("node network".into(), cluster.subnet.clone());
    if let Some(supervisor) = &*cluster.supervisor.lock().await {
        let ended = supervisor.ended.borrow();
        facts.warnings.extend(ended.iter().map(|what| format!("ended: {what}")));
    }
    facts
}

fn of_host_and_nodes(nodes: &[Node]) -> ProviderFacts {
    let mut notes = Notes(ProviderFacts::default());
    notes.put("cgroup version", cgroup::version().map(Into::into));
    for name in RUNNER_SYSCTLS {
        notes.put(&format!("runner/{name}"), sysctl(name));
    }
    let mut modes = BTreeMap::new();
    for node in nodes {
        let inside = inside(node);
        let of_ipv6 = SYSCTLS6.into_iter().filter(|_| node.address6.is_some());
        for name in SYSCTLS.into_iter().chain(of_ipv6) {
            let value = match &inside {
                Ok(inside) => inside.sysctl(name),
                Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
            };
            notes.put(&format!("node/{}/{name}", node.name), value);
        }
        let mode = inside.and_then(|inside| inside.proxy_mode);
        if let Ok(mode) = &mode {
            modes.insert(node.name.clone(), mode.clone());
        }
        notes.put(&format!("node/{}/proxy mode", node.name), mode);
    }
    let mut distinct: Vec<&String> = modes.values().collect();
    distinct.dedup();
    notes.put(
        "proxy mode",
        match distinct[..] {
            [mode] if modes.len() == nodes.len() => Ok(mode.clone()),
            _ => Err(io::Error::other(format!("the nodes say {modes:?}"))),
        },
    );
    notes.0
}

struct Notes(ProviderFacts);

impl Notes {
    fn put(&mut self, key: &str, value: io::Result<String>) {
        let value = value.unwrap_or_else(|error| {
            self.0.warnings.push(format!("{key} could not be read: {error}"));
            UNKNOWN.into()
        });
        self.0.fixed.insert(key.into(), value);
    }
}

/// What only a thread in the node's net namespace can read.
struct Inside {
    /// A kernel without the file (an older one shows some to the first namespace only) is no error.
    sysctls: BTreeMap<&'static str, io::Result<String>>,
    proxy_mode: io::Result<String>,
}

impl Inside {
    fn sysctl(&self, name: &str) -> io::Result<String> {
        match self.sysctls.get(name) {
            Some(Ok(value)) => Ok(value.clone()),
            Some(Err(error)) => Err(io::Error::new(error.kind(), error.to_string())),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }
}

fn inside(node: &Node) -> io::Result<Inside> {
    let pid = node.pid.ok_or_else(|| io::Error::other("the node has no process"))?;
    NetNamespace::of_process(pid)?.inside(|| {
        let names = SYSCTLS.into_iter().chain(SYSCTLS6);
        let sysctls = names.map(|name| (name, sysctl(name))).collect();
        Ok(Inside { sysctls, proxy_mode: proxy_mode() })
    })
}

/// A sysctl of this thread's net namespace, with its blanks made plain.
fn sysctl(name: &str) -> io::Result<String> {
    let file = format!("/proc/sys/{}", name.replace('.', "/"));
    match fs::read_to_string(file) {
        Ok(text) => Ok(text.split_whitespace().collect::<Vec<_>>().join(" ")),
        // Part of the environment: this kernel has none, or shows it to the host alone.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok("none".into()),
        Err(error) => Err(error),
    }
}

/// kube-proxy's own word for its mode; it listens on its node's loopback alone.
fn proxy_mode() -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&PROXY_METRICS.into(), PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"GET /proxyMode HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.contains(" 200 ") => Ok(body.trim().to_owned()),
        _ => Err(io::Error::other(format!("kube-proxy answered {:?}", answer.lines().next()))),
    }
}
