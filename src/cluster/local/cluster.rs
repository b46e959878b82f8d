//! A local cluster that is up.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use async_trait::async_trait;

use super::runner::Supervisor;
use super::{facts, images, logs};
use crate::cluster::{Cluster, ClusterError, Node, ProviderFacts};

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
    pub supervisor: Option<Supervisor>,
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
        let nodes = self.nodes.iter().filter(|node| node.takes_pods);
        images::import(&self.ctr, nodes, archive).await
    }

    async fn facts(&self) -> Result<ProviderFacts, ClusterError> {
        Ok(facts::read(self).await)
    }

    async fn keep_logs(&self, into: &Path) -> std::io::Result<()> {
        logs::copy(&self.state, into)
    }

    async fn broken(&mut self) -> String {
        match &mut self.supervisor {
            Some(supervisor) => supervisor.broken().await,
            None => std::future::pending().await,
        }
    }

    async fn down(mut self: Box<Self>) -> Result<(), ClusterError> {
        self.end().await
    }
}
