//! The network of one cluster: a bridge in a net namespace of its own, a link to each node, and
//! one to the host that carries the nodes' gateway address.
//!
//! So the host has one link a cluster, and neither its conntrack nor its firewall sees traffic
//! between nodes. Takes a [`Layout`] and process ids; knows nothing of Kubernetes.

use std::io::{self, Write};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use super::layout::{Layout, NodeLayout};
use crate::netns::NetNamespace;

/// Where node networks are taken from, in this order: little used corners of the private ranges,
/// and the range for benchmarks (RFC 2544). First address and how many /24 there are.
const POOLS: [(Ipv4Addr, u32); 3] = [
    (Ipv4Addr::new(10, 231, 0, 0), 256),
    (Ipv4Addr::new(172, 30, 0, 0), 256),
    (Ipv4Addr::new(198, 18, 0, 0), 512),
];

/// A range of addresses: first address and length of the prefix.
type Range = (Ipv4Addr, u8);

/// Finds a /24 that no address and no route of this host lies in. `seed` spreads clusters over
/// the pool. The caller holds the lock of all clusters until the address is taken.
pub(super) fn free_subnet(seed: u32) -> io::Result<Ipv4Addr> {
    let addresses = json(&["-j", "-4", "address"])?;
    let routes = json(&["-j", "-4", "route", "show", "table", "all"])?;
    choose(seed, &in_use(&addresses, &routes)).ok_or_else(|| {
        io::Error::other("no free /24 within 10.231.0.0/16, 172.30.0.0/16 or 198.18.0.0/15")
    })
}

fn in_use(addresses: &serde_json::Value, routes: &serde_json::Value) -> Vec<Range> {
    let mut used = Vec::new();
    for link in addresses.as_array().into_iter().flatten() {
        for info in link["addr_info"].as_array().into_iter().flatten() {
            let length = info["prefixlen"].as_u64().unwrap_or(32) as u8;
            used.extend(info["local"].as_str().and_then(|a| a.parse().ok()).map(|a| (a, length)));
        }
    }
    for route in routes.as_array().into_iter().flatten() {
        let Some(text) = route["dst"].as_str() else { continue };
        let (address, length) = text.split_once('/').unwrap_or((text, "32"));
        if let (Ok(address), Ok(length)) = (address.parse(), length.parse()) {
            used.push((address, length));
        }
    }
    // A default route, however it is written, takes nothing.
    used.retain(|(_, length)| *length > 1);
    used
}

fn choose(seed: u32, used: &[Range]) -> Option<Ipv4Addr> {
    let free = |subnet: Ipv4Addr| {
        !used.iter().any(|(address, length)| {
            let mask = u32::MAX << (32 - u32::from(*length.min(&24)));
            subnet.to_bits() & mask == address.to_bits() & mask
        })
    };
    POOLS.iter().find_map(|(first, count)| {
        (0..*count)
            .map(|i| Ipv4Addr::from_bits(first.to_bits() + (((seed % count + i) % count) << 8)))
            .find(|subnet| free(*subnet))
    })
}

/// Takes the subnet for this cluster: from here on others see it in use.
pub(super) fn connect_host(layout: &Layout, bridge: i32) -> io::Result<()> {
    let link = layout.host_link();
    let gateway = layout.gateway();
    let mut text = format!(
        "link add {link} type veth peer name host netns {bridge}\n\
         address add {gateway}/24 dev {link}\n"
    );
    if let Some(gateway) = layout.gateway6() {
        text += &address6(gateway, &link);
    }
    text += &format!("link set {link} up\n");
    batch(None, &text)
}

/// Nobody else can have the address: it need not be looked for first, which takes a second.
fn address6(address: Ipv6Addr, link: &str) -> String {
    format!("address add {address}/64 dev {link} nodad\n")
}

/// Makes the bridge, and a link from it to each node. `nodes` are the inits' process ids.
pub(super) fn connect_nodes(layout: &Layout, bridge: i32, nodes: &[i32]) -> io::Result<()> {
    let inside = NetNamespace::of_process(bridge)?;
    let mut text = String::from(
        "link set lo up\n\
         link add bridge type bridge\n\
         link set bridge up\n\
         link set host master bridge\n\
         link set host up\n",
    );
    for (node, pid) in layout.nodes.iter().zip(nodes) {
        let name = &node.name;
        text += &format!(
            "link add {name} type veth peer name eth0 netns {pid}\n\
             link set {name} master bridge\n\
             link set {name} up\n"
        );
    }
    batch(Some(&inside), &text)?;
    inside.inside(past_the_firewall)?;
    for (node, pid) in layout.nodes.iter().zip(nodes) {
        batch(Some(&NetNamespace::of_process(*pid)?), &node_batch(layout, node))?;
    }
    Ok(())
}

/// Has what crosses the bridge go past iptables there, which has no rules: it is a switch, and the nodes
/// have their own. Where the kernel can't send it that way at all, there is nothing to turn off.
fn past_the_firewall() -> io::Result<()> {
    for family in ["iptables", "ip6tables"] {
        let path = format!("/proc/sys/net/bridge/bridge-nf-call-{family}");
        match std::fs::write(path, "0") {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// A node's own links, address and routes: directly to each other node's pods, and by the host to
/// anything else (Service addresses need some route before kube-proxy's rules see them).
fn node_batch(layout: &Layout, node: &NodeLayout) -> String {
    let mut text = format!(
        "link set lo up\n\
         address add {}/24 dev eth0\n\
         link set eth0 up\n\
         route add default via {}\n",
        node.address,
        layout.gateway()
    );
    if let (Some(ipv6), Some(gateway)) = (&node.ipv6, layout.gateway6()) {
        text += &address6(ipv6.address, "eth0");
        text += &format!("route add ::/0 via {gateway}\n");
    }
    for other in layout.nodes.iter().filter(|other| other.name != node.name) {
        text += &format!("route add {} via {}\n", other.pods, other.address);
        if let Some(ipv6) = &other.ipv6 {
            text += &format!("route add {} via {}\n", ipv6.pods, ipv6.address);
        }
    }
    text
}

/// Takes a node's link down at the bridge, as if its cable were pulled.
pub(super) fn cut_node(bridge: i32, node: &str) -> io::Result<()> {
    batch(Some(&NetNamespace::of_process(bridge)?), &format!("link set {node} down\n"))
}

/// Removes the host's end. The kernel frees a dead namespace's links late; the next cluster must
/// not find them. Gives whether it is gone.
pub(super) fn disconnect_host(link: &str) -> bool {
    let there = || std::path::Path::new("/sys/class/net").join(link).exists();
    !there() || batch(None, &format!("link delete {link}\n")).is_ok() || !there()
}

fn json(args: &[&str]) -> io::Result<serde_json::Value> {
    let output = Command::new("ip").args(args).output()?;
    if !output.status.success() {
        return Err(failed(&output.stderr));
    }
    // `ip` prints nothing at all for an empty list.
    Ok(serde_json::from_slice(&output.stdout).unwrap_or_default())
}

/// Runs `ip -batch` in a net namespace, or in this one.
fn batch(namespace: Option<&NetNamespace>, text: &str) -> io::Result<()> {
    let mut command = Command::new("ip");
    command.args(["-batch", "-"]).stdin(Stdio::piped()).stdout(Stdio::null());
    command.stderr(Stdio::piped());
    if let Some(namespace) = namespace {
        let namespace = namespace.clone();
        // SAFETY: setns is one system call and touches nothing of the parent's memory.
        unsafe { command.pre_exec(move || namespace.enter()) };
    }
    let mut child = command.spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(text.as_bytes())?;
    }
    let output = child.wait_with_output()?;
    if output.status.success() { Ok(()) } else { Err(failed(&output.stderr)) }
}

fn failed(stderr: &[u8]) -> io::Error {
    io::Error::other(format!("ip: {}", String::from_utf8_lossy(stderr).trim().replace('\n', "; ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_subnet_in_use_is_passed_over() {
        let used = [(Ipv4Addr::new(10, 231, 0, 0), 24), (Ipv4Addr::new(10, 231, 1, 7), 32)];
        assert_eq!(choose(0, &used), Some(Ipv4Addr::new(10, 231, 2, 0)));
        assert_eq!(choose(258, &used), Some(Ipv4Addr::new(10, 231, 2, 0)));
    }

    #[test]
    fn a_wide_route_takes_its_whole_range() {
        let used = [(Ipv4Addr::new(10, 0, 0, 0), 8)];
        assert_eq!(choose(5, &used), Some(Ipv4Addr::new(172, 30, 5, 0)));
    }

    #[test]
    fn addresses_and_routes_count_but_default_routes_do_not() {
        let addresses = json!([{"addr_info": [{"local": "192.0.2.2", "prefixlen": 24}]}]);
        let routes = json!([{"dst": "default"}, {"dst": "0.0.0.0/1"}, {"dst": "10.0.0.0/8"}, {"dst": "10.1.2.3"}]);
        assert_eq!(
            in_use(&addresses, &routes),
            [
                (Ipv4Addr::new(192, 0, 2, 2), 24),
                (Ipv4Addr::new(10, 0, 0, 0), 8),
                (Ipv4Addr::new(10, 1, 2, 3), 32)
            ]
        );
    }
}
