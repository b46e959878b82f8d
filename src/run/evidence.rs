//! Evidence for a trial: where to listen, for which Service and address of it, and which processes'
//! ends to wait for.

use std::collections::BTreeMap;

use super::entry::Entry;
use crate::cluster::{Cluster, Node};
use crate::config::ProxyMode;
use crate::evidence::{self, Evidence, EvidenceError, Place, Process, Subject, SubjectPort};
use crate::observation::{Protocol, Sink, Target};
use crate::record::Check;
use crate::watch::PodsView;
use crate::workload::{CONTAINER, NAMESPACE, NodePorts, Workload};
use drainwatch_probe::{TCP_PORT, UDP_PORT};

/// What the record says of where it was listened.
pub(super) fn check(found: impl Into<String>) -> Check {
    Check {
        check: "kernel-evidence".to_owned(),
        invariant: "the kernel of each node that can be entered is listened to".to_owned(),
        found: found.into(),
    }
}

/// What listens in a trial.
#[derive(Debug)]
pub(super) struct Listeners {
    evidence: Evidence,
    /// The nodes that are listened in.
    pub nodes: Vec<String>,
    /// Containers whose process is waited for, by id; `Err` where that could not be had, and of which
    /// pod.
    awaited: BTreeMap<String, Result<(), String>>,
}

/// Opens the listeners in each node that can be entered; `None` where none can. The target's name and
/// UID need not be known yet, its nodes must be.
pub(super) fn start(
    nodes: &[Node],
    workload: &Workload,
    ports: NodePorts,
    entry: &Entry,
    mode: ProxyMode,
    target: &Target,
    sink: &Sink,
) -> Result<Option<Listeners>, EvidenceError> {
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
        translator: entry.translator(&target.node).to_owned(),
        pod_node: target.node.clone(),
    };
    let evidence = evidence::start(&places, &subject, sink)?;
    let nodes = places.into_iter().map(|place| place.node).collect();
    Ok(Some(Listeners { evidence, nodes, awaited: BTreeMap::new() }))
}

impl Listeners {
    /// Waits, from now on, for the end of each container of the app that runs: of a restarted one, too.
    pub fn await_ends(&mut self, cluster: &dyn Cluster, pods: &PodsView) {
        for (uid, pod) in pods.pods.iter().filter(|(_, pod)| pod.running.contains_key(CONTAINER)) {
            let (Some(node), Some(id)) = (&pod.node, pod.ids.get(CONTAINER)) else { continue };
            if self.awaited.contains_key(id) {
                continue;
            }
            let process = || cluster.container_process(node, uid, id);
            let Some(pid) = process() else { continue };
            let of = Process {
                node: node.clone(),
                pod: pod.name.clone(),
                uid: uid.clone(),
                container: CONTAINER.to_owned(),
                pid,
            };
            let awaited = self.evidence.await_end(of, || process() == Some(pid));
            let awaited = awaited.map_err(|error| {
                format!(
                    "when the process of pod {} ends is not told by the kernel: {error}",
                    pod.name
                )
            });
            self.awaited.insert(id.clone(), awaited);
        }
    }

    /// Has all told that was heard; gives a warning for each process that could not be waited for.
    pub fn finish(self) -> Vec<String> {
        self.evidence.finish();
        self.awaited.into_values().filter_map(Result::err).collect()
    }
}
