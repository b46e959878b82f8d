//! Evidence for a trial: where to listen, and for which Service and address of it.

use super::entry::Entry;
use crate::cluster::Node;
use crate::config::ProxyMode;
use crate::evidence::{self, Evidence, EvidenceError, Place, Subject, SubjectPort};
use crate::observation::{Protocol, Sink};
use crate::workload::{NAMESPACE, NodePorts, Workload};
use drainwatch_probe::{TCP_PORT, UDP_PORT};

/// Opens the listeners in each node that can be entered; `None` where none can.
pub(super) fn start(
    nodes: &[Node],
    workload: &Workload,
    ports: NodePorts,
    entry: &Entry,
    mode: ProxyMode,
    sink: &Sink,
) -> Result<Option<Evidence>, EvidenceError> {
    let place = |node: &Node| Some(Place { node: node.name.clone(), pid: node.pid? });
    let places: Vec<_> = nodes.iter().filter_map(place).collect();
    if places.is_empty() {
        return Ok(None);
    }
    let port = |name: &str, protocol, node_port, pod_port| SubjectPort {
        name: name.to_owned(),
        protocol,
        node_port,
        service_port: pod_port,
        pod_port,
    };
    let subject = Subject {
        namespace: NAMESPACE.to_owned(),
        service: workload.name.clone(),
        ports: vec![
            port("tcp", Protocol::Tcp, ports.tcp, TCP_PORT),
            port("udp", Protocol::Udp, ports.udp, UDP_PORT),
        ],
        cluster_ip: entry.cluster_ip(),
        ip: entry.family(),
        mode,
    };
    evidence::start(&places, &subject, sink).map(Some)
}
