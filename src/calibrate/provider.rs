//! A provider whose clusters are listened to: another's, with a capture in each node.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;

use super::Method;
use super::capture::Capture;
use super::wire::Wire;
use crate::cluster::{Cluster, ClusterError, Node, NodeControl, Provider, ProviderFacts};
use crate::config::ClusterSpec;

/// Another provider's clusters, listened to from when they are up until they go.
pub struct Listening<'a> {
    inner: &'a dyn Provider,
    method: Method,
    heard: Arc<Mutex<Vec<Heard>>>,
}

/// What was heard in a cluster.
#[derive(Debug)]
pub struct Heard {
    /// Its name.
    pub cluster: String,
    /// Which flows were listened for.
    pub(super) method: Method,
    /// What passed for them.
    pub(super) wire: Wire,
    /// Packets that were missed, or of which the kernel told no time.
    pub missed: u64,
    /// How exactly the packets' times are known on the runner's clock, nanoseconds.
    pub plus_minus_ns: i64,
}

struct Listened {
    inner: Box<dyn Cluster>,
    capture: Capture,
    method: Method,
    heard: Arc<Mutex<Vec<Heard>>>,
}

impl<'a> Listening<'a> {
    /// To the clusters of this provider, for what this method compares.
    pub fn to(inner: &'a dyn Provider, method: Method) -> Self {
        Self { inner, method, heard: Arc::default() }
    }

    /// What was heard in the clusters that are gone.
    pub fn heard(&self) -> Vec<Heard> {
        std::mem::take(&mut self.heard.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[async_trait]
impl Provider for Listening<'_> {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn check(&self, spec: &ClusterSpec) -> Result<(), ClusterError> {
        self.inner.check(spec)
    }

    async fn up(&self, spec: &ClusterSpec, logs: &Path) -> Result<Box<dyn Cluster>, ClusterError> {
        let inner = self.inner.up(spec, logs).await?;
        let entries = || inner.nodes().iter().filter(|node| self.method.enters_by(node.takes_pods));
        let pids: Vec<i32> = entries().filter_map(|node| node.pid).collect();
        let failed = |source| ClusterError::Io { what: "listening on the nodes".into(), source };
        if pids.len() < entries().count() {
            return Err(failed(std::io::Error::other("the provider lets nobody into its nodes")));
        }
        let capture = Capture::start(&pids, self.method).map_err(failed)?;
        let (method, heard) = (self.method, Arc::clone(&self.heard));
        Ok(Box::new(Listened { inner, capture, method, heard }))
    }
}

#[async_trait]
impl Cluster for Listened {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn client(&self) -> kube::Client {
        self.inner.client()
    }

    fn kubeconfig(&self) -> &Path {
        self.inner.kubeconfig()
    }

    fn nodes(&self) -> &[Node] {
        self.inner.nodes()
    }

    async fn load_image(&self, archive: &Path) -> Result<(), ClusterError> {
        self.inner.load_image(archive).await
    }

    fn pod_process(&self, node: &str, uid: &str) -> Option<i32> {
        self.inner.pod_process(node, uid)
    }

    fn container_process(&self, node: &str, uid: &str, id: &str) -> Option<i32> {
        self.inner.container_process(node, uid, id)
    }

    fn control(&self) -> Option<&dyn NodeControl> {
        self.inner.control()
    }

    async fn facts(&self) -> Result<ProviderFacts, ClusterError> {
        self.inner.facts().await
    }

    async fn keep_logs(&self, into: &Path) -> std::io::Result<()> {
        self.inner.keep_logs(into).await
    }

    async fn broken(&mut self) -> String {
        self.inner.broken().await
    }

    async fn down(self: Box<Self>) -> Result<(), ClusterError> {
        let Self { inner, capture, method, heard } = *self;
        let cluster = inner.name().to_owned();
        let captured = capture.finish();
        heard.lock().unwrap_or_else(PoisonError::into_inner).push(Heard {
            cluster,
            method,
            wire: captured.wire,
            missed: captured.dropped + captured.unstamped,
            plus_minus_ns: captured.plus_minus_ns,
        });
        inner.down().await
    }
}
