//! A local cluster that is up.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use tokio::sync::Mutex;

use super::runner::Supervisor;
use super::wire::Command;
use super::{cgroup, facts, images, layout, logs};
use crate::cluster::{Cluster, ClusterError, Node, NodeControl, ProviderFacts};

/// A cluster of processes on this host. Dropping it lets go of its supervisor, which removes it.
pub(super) struct LocalCluster {
    pub name: String,
    pub client: kube::Client,
    pub kubeconfig: PathBuf,
    pub state: PathBuf,
    pub subnet: String,
    pub nodes: Vec<Node>,
    pub dns: bool,
    pub versions: BTreeMap<String, String>,
    pub ctr: PathBuf,
    pub supervisor: Mutex<Option<Supervisor>>,
}

#[async_trait]
impl Cluster for LocalCluster {
    fn name(&self) -> &str {
        &self.name
    }

    fn client(&self) -> kube::Client {
        self.client.clone()
    }

    fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    async fn load_image(&self, archive: &Path) -> Result<(), ClusterError> {
        images::import(&self.ctr, self.nodes.iter(), archive).await
    }

    fn pod_process(&self, node: &str, uid: &str) -> Option<i32> {
        let node = layout::node_cgroup(&self.name, node);
        cgroup::processes_of_pod(&node, uid).into_iter().min_by_key(|pid| started(*pid))
    }

    fn container_process(&self, node: &str, uid: &str, id: &str) -> Option<i32> {
        let node = layout::node_cgroup(&self.name, node);
        cgroup::processes_of_container(&node, uid, id).into_iter().min_by_key(|pid| started(*pid))
    }

    fn control(&self) -> Option<&dyn NodeControl> {
        Some(self)
    }

    async fn facts(&self) -> Result<ProviderFacts, ClusterError> {
        Ok(facts::read(self).await)
    }

    async fn keep_logs(&self, into: &Path) -> std::io::Result<()> {
        logs::copy(&self.state, into)
    }

    async fn broken(&mut self) -> String {
        match self.supervisor.get_mut() {
            Some(supervisor) => supervisor.broken().await,
            None => std::future::pending().await,
        }
    }

    async fn down(mut self: Box<Self>) -> Result<(), ClusterError> {
        self.end().await
    }
}

#[async_trait]
impl NodeControl for LocalCluster {
    async fn restart_kube_proxy(&self) -> Result<(), ClusterError> {
        self.command(Command::Restart { daemon: "kube-proxy".to_owned() }).await
    }

    async fn stop_node(&self, node: &str) -> Result<(), ClusterError> {
        self.command(Command::StopNode { node: node.to_owned() }).await
    }
}

/// When a process was started, in ticks since boot; one that has gone comes last.
fn started(pid: i32) -> u64 {
    // After the name, which stands in parentheses and may hold anything.
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .ok()
        .and_then(|stat| stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.parse().ok())
        .unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_was_started_after_the_first_one_and_one_that_is_gone_comes_last() {
        let own = started(std::process::id() as i32);
        assert!(started(1) <= own && own < u64::MAX);
        assert_eq!(started(-1), u64::MAX);
    }
}
