//! The kernel in a trial: whose counters are read and when, what they say of our own buffers, and what
//! is listened to.
//!
//! Takes the cluster's nodes and pods; has [`Counters`] and [`Listeners`] tell what they see. Judges
//! nothing.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::evidence::Listeners;
use super::limits::Machine;
use super::preflight::{self, Failure, held};
use crate::cluster::{Cluster, Node};
use crate::config::Scenario;
use crate::evidence::counters::{CONNTRACK_ENTRIES, Counters, Place};
use crate::observation::Sink;
use crate::record::Check;
use crate::watch::PodsView;
use crate::workload::CONTAINER;

/// What is read of the kernel in one trial.
pub struct Kernel {
    counters: Counters,
    listeners: Option<Listeners>,
    /// Pods whose counters can't be read, and why.
    uncounted: BTreeMap<String, String>,
}

impl Kernel {
    /// Counters that are told to `sink`.
    pub fn new(sink: Sink) -> Self {
        Self { counters: Counters::new(sink), listeners: None, uncounted: BTreeMap::new() }
    }

    /// Has these listeners go on until the end.
    pub fn listen(&mut self, listeners: Listeners) {
        self.listeners = Some(listeners);
    }

    /// Reads, from now on, the counters of the nodes and of each pod whose container runs, and waits for
    /// the ends of those containers where evidence is to be had.
    pub fn watch(&mut self, cluster: &dyn Cluster, pods: &PodsView) {
        if let Some(listeners) = &mut self.listeners {
            listeners.await_ends(cluster, pods);
        }
        let proc = |pid: i32| PathBuf::from(format!("/proc/{pid}"));
        for node in cluster.nodes() {
            let place = Place::Node(node.name.clone());
            if let Some(pid) = node.pid.filter(|_| !self.counters.watches(&place)) {
                // A kernel without connection tracking has none to tell.
                let _ = self.counters.watch(place, &proc(pid));
            }
        }
        for (uid, pod) in pods.live().filter(|(_, pod)| pod.running.contains_key(CONTAINER)) {
            let place = Place::Pod(uid.clone());
            if self.counters.watches(&place) {
                continue;
            }
            let node = pod.node.as_deref().unwrap_or_default();
            let watched = match cluster.pod_process(node, uid) {
                Some(pid) => self.counters.watch(place, &proc(pid)).map_err(|e| e.to_string()),
                None => Err("the provider knows no process of it".to_owned()),
            };
            match watched {
                Ok(()) => self.uncounted.remove(&pod.name),
                Err(reason) => self.uncounted.insert(pod.name.clone(), reason),
            };
        }
    }

    /// Reads all and tells all.
    pub fn mark(&mut self) {
        self.counters.mark();
    }

    /// Reads the nodes' and the pods' and tells those that moved.
    pub fn look(&mut self) {
        self.counters.look();
    }

    /// Tells all for the last time; gives a warning for each pod and process of which nothing is known.
    pub fn finish(mut self) -> Vec<String> {
        let mut warnings = self.listeners.map(Listeners::finish).unwrap_or_default();
        self.counters.finish();
        let warning =
            |(pod, reason)| format!("what the sockets of pod {pod} dropped is not known: {reason}");
        warnings.extend(self.uncounted.into_iter().map(warning));
        warnings
    }

    /// What a pod's sockets have dropped since they are watched; `None` where that is not known.
    pub fn dropped_in_pod(&self, uid: &str) -> Option<u64> {
        self.counters.dropped_in_pod(uid)
    }

    /// For a check that it may be the reason of: what our own buffers have dropped, `here` those of
    /// the flows' sockets. Empty where they have not.
    pub fn own_drops(&self, here: u64, pods: &PodsView) -> String {
        let in_pods = pods.pods.keys().filter_map(|uid| self.dropped_in_pod(uid)).sum::<u64>();
        match (here, in_pods) {
            (0, 0) => String::new(),
            _ => format!(
                "; our own buffers dropped datagrams: the flows' sockets {here}, the probe's {in_pods}"
            ),
        }
    }

    /// Checks that each node's connection tracking has room for the flows.
    pub fn conntrack_has_room(
        &self,
        nodes: &[Node],
        machine: &Machine,
        config: &Scenario,
    ) -> Result<Check, Failure> {
        let mut found = Vec::new();
        for node in nodes {
            let place = Place::Node(node.name.clone());
            let Some(entries) = self.counters.value(&place, CONNTRACK_ENTRIES) else {
                found.push(format!("{} does not tell", node.name));
                continue;
            };
            found.push(format!("{} holds {entries}", node.name));
            if !machine.has_room_beside(entries, config) {
                return Err(preflight::conntrack_room(found.join(", ")));
            }
        }
        Ok(held::conntrack_room(found.join(", ")))
    }
}
