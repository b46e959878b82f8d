//! The layout of one cluster: names, addresses, ranges and cgroup paths, worked out once.
//!
//! Takes the order and a free subnet; pure, so that it can be tested without a cluster.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use crate::config::{ClusterSpec, ProxyMode};

/// All pods of a cluster. The host has no route to them, so each cluster can have the same.
pub(super) const POD_RANGE: &str = "10.244.0.0/16";
/// All Services of a cluster; likewise.
pub(super) const SERVICE_RANGE: &str = "10.96.0.0/16";
/// The same of IPv6, where a cluster has it: from a range that every site may use for itself.
pub(super) const POD_RANGE6: &str = "fd64:7277:ff00::/48";
/// The same of its Services.
pub(super) const SERVICE_RANGE6: &str = "fd64:7277:fe00::/112";
/// The first of them: the API server's own Service.
pub(super) const SERVICE_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);
/// How many nodes fit into the ranges above and a /24.
pub(super) const MOST_NODES: u32 = 200;

/// A cluster's layout.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Layout {
    /// `dw-3f9a1c`
    pub name: String,
    /// The first address of the node network's /24.
    pub subnet: Ipv4Addr,
    pub proxy_mode: ProxyMode,
    /// Whether it has DNS.
    pub dns: bool,
    /// Whether it has IPv6 beside IPv4.
    pub dual_stack: bool,
    /// What the user sets in each node.
    pub sysctls: BTreeMap<String, String>,
    /// Sysctls that kubelets let pods set, safe or not.
    pub pod_sysctls: Vec<String>,
    /// The first is the control plane.
    pub nodes: Vec<NodeLayout>,
}

/// A node's layout.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct NodeLayout {
    pub name: String,
    pub address: Ipv4Addr,
    /// Its pods' range.
    pub pods: String,
    /// The same two of IPv6, where the cluster has it.
    pub ipv6: Option<NodeIpv6>,
    pub control_plane: bool,
    pub takes_pods: bool,
    /// Below each hierarchy: `/drainwatch/dw-3f9a1c/node-1`.
    pub cgroup: String,
    /// Whether its kubelet has to be told that cgroup v1 is fine.
    pub cgroup_v1_refused: bool,
}

/// A node's part in IPv6.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct NodeIpv6 {
    pub address: Ipv6Addr,
    /// Its pods' range.
    pub pods: String,
}

/// Where a node's cgroups are, below each hierarchy.
pub(super) fn node_cgroup(cluster: &str, node: &str) -> String {
    format!("/{}/{cluster}/{node}", super::cgroup::TOP)
}

impl Layout {
    /// Lays a cluster out in the /24 that starts at `subnet`.
    pub(super) fn new(name: &str, spec: &ClusterSpec, subnet: Ipv4Addr) -> Self {
        let [a, b, c, _] = subnet.octets();
        let nodes = (0..spec.nodes.min(MOST_NODES) as u8).map(|i| {
            let node = format!("node-{}", i + 1);
            NodeLayout {
                address: Ipv4Addr::new(a, b, c, 10 + i + 1),
                pods: format!("10.244.{}.0/24", i + 1),
                ipv6: spec.dual_stack.then(|| NodeIpv6 {
                    address: address6(subnet, 10 + i + 1),
                    pods: format!("fd64:7277:ff00:{:x}::/64", i + 1),
                }),
                control_plane: i == 0,
                takes_pods: i > 0 || spec.nodes == 1,
                cgroup: node_cgroup(name, &node),
                cgroup_v1_refused: minor(&spec.kubernetes) >= 35,
                name: node,
            }
        });
        Self {
            name: name.to_owned(),
            subnet,
            proxy_mode: spec.proxy_mode,
            dns: spec.dns,
            dual_stack: spec.dual_stack,
            sysctls: spec.sysctls.clone(),
            pod_sysctls: spec.pod_sysctls.iter().cloned().collect(),
            nodes: nodes.collect(),
        }
    }

    /// The host's address in the node network, and the nodes' gateway.
    pub(super) fn gateway(&self) -> Ipv4Addr {
        let [a, b, c, _] = self.subnet.octets();
        Ipv4Addr::new(a, b, c, 1)
    }

    /// The same of IPv6, where the cluster has it: the first of a /64.
    pub(super) fn gateway6(&self) -> Option<Ipv6Addr> {
        self.dual_stack.then(|| address6(self.subnet, 1))
    }

    /// A range of IPv4 and, where the cluster has it, one of IPv6, as components are told them.
    pub(super) fn ranges(&self, ipv4: &str, ipv6: &str) -> String {
        if self.dual_stack { format!("{ipv4},{ipv6}") } else { ipv4.to_owned() }
    }

    /// The API server's address for everyone.
    pub(super) fn api(&self) -> String {
        format!("https://{}:6443", self.nodes[0].address)
    }

    /// The host's end of the cluster's network, unique on the host and at most 15 characters.
    pub(super) fn host_link(&self) -> String {
        host_link(&self.name)
    }
}

/// An address of the node network's /64: as free on this host as the /24 that it is named after.
fn address6(subnet: Ipv4Addr, host: u8) -> Ipv6Addr {
    let [a, b, c, _] = subnet.octets().map(u16::from);
    Ipv6Addr::new(0xfd64, 0x7277, a << 8 | b, c, 0, 0, 0, host.into())
}

/// The host's end of a cluster's network: `dw3f9a1c`.
pub(super) fn host_link(name: &str) -> String {
    name.replace('-', "")
}

/// The 34 of 1.34.0; 0 where there is none.
pub(super) fn minor(version: &str) -> u32 {
    version.split('.').nth(1).and_then(|m| m.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ProviderKind;

    fn spec(nodes: u32) -> ClusterSpec {
        ClusterSpec {
            provider: ProviderKind::Local,
            kubernetes: "1.34.0".into(),
            nodes,
            proxy_mode: ProxyMode::Iptables,
            sysctls: Default::default(),
            dns: false,
            pod_sysctls: Default::default(),
            dual_stack: false,
        }
    }

    #[test]
    fn the_first_node_takes_pods_only_when_alone() {
        let subnet = Ipv4Addr::new(10, 231, 7, 0);
        let takes = |n| -> Vec<bool> {
            Layout::new("dw-3f9a1c", &spec(n), subnet).nodes.iter().map(|n| n.takes_pods).collect()
        };
        assert_eq!(takes(1), [true]);
        assert_eq!(takes(3), [false, true, true]);
    }

    #[test]
    fn ipv6_stands_beside_ipv4_where_it_is_asked_for() {
        let subnet = Ipv4Addr::new(10, 231, 7, 0);
        let plain = Layout::new("dw-3f9a1c", &spec(2), subnet);
        assert_eq!((plain.gateway6(), &plain.nodes[1].ipv6), (None, &None));
        assert_eq!(plain.ranges("a", "b"), "a");

        let both = ClusterSpec { dual_stack: true, ..spec(2) };
        let both = Layout::new("dw-3f9a1c", &both, subnet);
        assert_eq!(both.gateway6().unwrap().to_string(), "fd64:7277:ae7:7::1");
        let node = both.nodes[1].ipv6.as_ref().unwrap();
        assert_eq!(node.address.to_string(), "fd64:7277:ae7:7::c");
        assert_eq!(node.pods, "fd64:7277:ff00:2::/64");
        assert_eq!(both.ranges("a", "b"), "a,b");
    }

    #[test]
    fn addresses_and_ranges_are_one_a_node() {
        let layout = Layout::new("dw-3f9a1c", &spec(200), Ipv4Addr::new(10, 231, 7, 0));
        assert_eq!(layout.gateway(), Ipv4Addr::new(10, 231, 7, 1));
        assert_eq!(layout.nodes[1].address, Ipv4Addr::new(10, 231, 7, 12));
        assert_eq!(layout.nodes[199].address, Ipv4Addr::new(10, 231, 7, 210));
        assert_eq!(layout.nodes[199].pods, "10.244.200.0/24");
        assert_eq!(layout.nodes[1].cgroup, "/drainwatch/dw-3f9a1c/node-2");
        assert!(layout.host_link().len() <= 15);
    }
}
