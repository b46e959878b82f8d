//! The flows' way to the target: from which net namespace, to which addresses, by which node.
//!
//! Takes the scenario, the cluster and the target; makes the client pod where clients stand in one.
//! Gives the flows' specifications. Knows nothing of what becomes of them.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};

use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::Api;

use super::preflight::{self, Failure};
use crate::cluster::{Cluster, Node};
use crate::config::{Flows, IpFamily, Scenario, Vantage, Via};
use crate::flow::{self, FlowSpec};
use crate::netns::NetNamespace;
use crate::observation::{Protocol, Target};
use crate::workload::{NAMESPACE, NodePorts, Workload};
use drainwatch_probe::{TCP_PORT, UDP_PORT};

/// The flows' way to the target.
pub struct Entry {
    /// The node that they enter by.
    pub node: String,
    /// Where TCP flows go.
    pub tcp: SocketAddr,
    /// Where UDP flows go.
    pub udp: SocketAddr,
    /// Where their sockets are opened; `None` is the runner's own namespace.
    pub namespace: Option<NetNamespace>,
    via: Via,
    from: Vantage,
}

impl Entry {
    /// Finds it for a trial whose target is ready.
    ///
    /// # Errors
    /// No node, address or namespace fits the scenario.
    pub async fn find(
        cluster: &dyn Cluster,
        config: &Scenario,
        workload: &Workload,
        ports: NodePorts,
        target: &Target,
    ) -> Result<Self, Failure> {
        let flows = &config.flows;
        let node = preflight::node_to_enter_by(cluster.nodes(), &flows.enter_by, &target.node)?;
        if flows.via == Via::HostPort && flows.from == Vantage::Outside && node.name != target.node
        {
            let found = format!("{} for a hostPort of {}", node.name, target.node);
            return Err(preflight::entry_node(found));
        }
        let (tcp, udp) = match flows.via {
            Via::NodePort => {
                let address = address_of(cluster.nodes(), &node.name, flows.ip)?;
                let (tcp, udp) = ports.tcp.zip(ports.udp).ok_or_else(|| {
                    preflight::entry_address(format!("NodePort of Service {}", workload.name))
                })?;
                (at(address, tcp), at(address, udp))
            }
            via => {
                let address = match via {
                    Via::ClusterIp => cluster_ip(cluster, workload).await?,
                    Via::HostPort => address_of(cluster.nodes(), &target.node, flows.ip)?,
                    Via::NodePort | Via::Pod => pod_ip(cluster, &target.pod, flows.ip).await?,
                };
                (at(address, TCP_PORT), at(address, UDP_PORT))
            }
        };
        let namespace = namespace(cluster, flows.from, workload, node).await?;
        let (via, from) = (flows.via, flows.from);
        let entry = Self { node: node.name.clone(), tcp, udp, namespace, via, from };
        entry.ports_are_free(flows)?;
        Ok(entry)
    }

    /// The scenario's flows.
    pub fn specs(&self, config: &Scenario) -> Vec<FlowSpec> {
        let Scenario { flows, .. } = config;
        let of = |protocol, count: u32, remote, interval| {
            let mut specs =
                flow::specs(protocol, count as usize, remote, interval, flows.silent_after);
            for (spec, port) in specs.iter_mut().zip(source_ports(flows, count)) {
                spec.source_port = Some(port);
            }
            specs
        };
        let mut specs = of(Protocol::Tcp, flows.tcp, self.tcp, flows.tcp_interval);
        specs.extend(of(Protocol::Udp, flows.udp, self.udp, flows.udp_interval));
        specs
    }

    /// The Service's own address, where they go there.
    pub fn cluster_ip(&self) -> Option<IpAddr> {
        (self.via == Via::ClusterIp).then_some(self.tcp.ip())
    }

    /// The node that turns where they go into a pod's address: a hostPort is the pod's node's, and
    /// another node only leads there.
    pub fn translator<'a>(&'a self, pod_node: &'a str) -> &'a str {
        match self.via {
            Via::HostPort => pod_node,
            Via::NodePort | Via::ClusterIp | Via::Pod => &self.node,
        }
    }

    /// The family of their addresses.
    pub fn family(&self) -> IpFamily {
        if self.tcp.is_ipv6() { IpFamily::Ipv6 } else { IpFamily::Ipv4 }
    }

    /// As the record tells it: `node-1, to 10.231.4.11:30072`.
    pub fn words(&self) -> String {
        let from = match self.from {
            Vantage::Outside => "",
            Vantage::Node => ", from within it",
            Vantage::Pod => ", from a pod on it",
        };
        format!("{}{from}, to {}", self.node, self.tcp)
    }

    /// Tries fixed source ports out: a flow's own failure would only tell of its own.
    fn ports_are_free(&self, flows: &Flows) -> Result<(), Failure> {
        let Some(first) = flows.source_port else { return Ok(()) };
        let any = |port| match self.tcp {
            SocketAddr::V4(_) => at(std::net::Ipv4Addr::UNSPECIFIED, port),
            SocketAddr::V6(_) => at(std::net::Ipv6Addr::UNSPECIFIED, port),
        };
        let try_out = || {
            let busy = |protocol: Protocol, port: u16, error: io::Error| {
                let message = format!("{} source port {port}: {error}", protocol.name());
                io::Error::new(error.kind(), message)
            };
            for port in source_ports(flows, flows.tcp) {
                TcpListener::bind(any(port)).map_err(|e| busy(Protocol::Tcp, port, e))?;
            }
            for port in source_ports(flows, flows.udp) {
                UdpSocket::bind(any(port)).map_err(|e| busy(Protocol::Udp, port, e))?;
            }
            Ok(())
        };
        let tried = match &self.namespace {
            Some(namespace) => namespace.inside(try_out),
            None => try_out(),
        };
        tried.map_err(|error| {
            preflight::limits(format!("{error}; flows.source_port = {first} needs it"))
        })
    }
}

/// The fixed source ports of this many flows; none where they are not fixed.
fn source_ports(flows: &Flows, count: u32) -> impl Iterator<Item = u16> + use<> {
    flows.source_port.into_iter().flat_map(|first| first..=u16::MAX).take(count as usize)
}

fn at(address: impl Into<IpAddr>, port: u16) -> SocketAddr {
    SocketAddr::new(address.into(), port)
}

fn address_of(nodes: &[Node], name: &str, family: IpFamily) -> Result<IpAddr, Failure> {
    let node = nodes.iter().find(|node| node.name == name);
    let address = node.and_then(|node| match family {
        IpFamily::Ipv4 => Some(node.address.into()),
        IpFamily::Ipv6 => node.address6.map(IpAddr::from),
    });
    address.ok_or_else(|| preflight::entry_address(format!("node {name}")))
}

async fn cluster_ip(cluster: &dyn Cluster, workload: &Workload) -> Result<IpAddr, Failure> {
    let services: Api<Service> = Api::namespaced(cluster.client(), NAMESPACE);
    let service = services.get(&workload.name).await.map_err(api)?;
    let address = service.spec.and_then(|spec| spec.cluster_ip?.parse().ok());
    address.ok_or_else(|| preflight::entry_address(format!("Service {}", workload.name)))
}

async fn pod_ip(cluster: &dyn Cluster, pod: &str, family: IpFamily) -> Result<IpAddr, Failure> {
    let pods: Api<Pod> = Api::namespaced(cluster.client(), NAMESPACE);
    let status = pods.get(pod).await.map_err(api)?.status;
    let addresses = status.and_then(|status| status.pod_ips).unwrap_or_default();
    let mut addresses = addresses.iter().filter_map(|address| address.ip.parse().ok());
    let address =
        addresses.find(|address: &IpAddr| address.is_ipv6() == (family == IpFamily::Ipv6));
    address.ok_or_else(|| preflight::entry_address(format!("pod {pod}")))
}

fn api(error: kube::Error) -> Failure {
    preflight::entry_address(error.to_string())
}

/// The namespace that clients stand in; makes the client pod that lends it.
async fn namespace(
    cluster: &dyn Cluster,
    from: Vantage,
    workload: &Workload,
    node: &Node,
) -> Result<Option<NetNamespace>, Failure> {
    let (whose, pid) = match from {
        Vantage::Outside => return Ok(None),
        Vantage::Node => (node.name.clone(), node.pid),
        Vantage::Pod => {
            let made = workload.create_client(&cluster.client(), &node.name).await;
            let uid = made.map_err(|error| preflight::client_stands(error.to_string()))?;
            (format!("the client pod on {}", node.name), cluster.pod_process(&node.name, &uid))
        }
    };
    let pid = pid.ok_or_else(|| {
        preflight::client_stands(format!("the provider knows no process of {whose}"))
    })?;
    let namespace = NetNamespace::of_process(pid);
    namespace.map(Some).map_err(|error| preflight::client_stands(format!("{whose}: {error}")))
}
