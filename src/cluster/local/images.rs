//! Images from archives into nodes: by each node's own containerd, reached through the node's root.
//!
//! Takes nodes with their processes, and an archive. Knows nothing of who runs the cluster.

use std::path::Path;
use std::process::Stdio;

use futures::future::try_join_all;

use super::paths;
use crate::cluster::{ClusterError, Node};

/// Imports an archive on nodes, on all of them at once.
///
/// # Errors
/// [`ClusterError::Component`] with what containerd says; [`ClusterError::Io`] where `ctr` can't be
/// run.
pub(super) async fn import(
    ctr: &Path,
    nodes: impl Iterator<Item = &Node>,
    archive: &Path,
) -> Result<(), ClusterError> {
    try_join_all(nodes.map(|node| import_on(ctr, node, archive))).await.map(drop)
}

async fn import_on(ctr: &Path, node: &Node, archive: &Path) -> Result<(), ClusterError> {
    let failed = |reason: String| ClusterError::Component {
        component: format!("image import on {}", node.name),
        reason,
        logs: None,
    };
    let Some(pid) = node.pid else { return Err(failed("the node has no process".into())) };
    let output = tokio::process::Command::new(ctr)
        .arg("--address")
        .arg(format!("/proc/{pid}/root{}", paths::CONTAINERD_SOCKET))
        .args(["--namespace", "k8s.io", "images", "import"])
        .arg(archive)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .map_err(|source| ClusterError::Io { what: ctr.display().to_string(), source })?;
    if output.status.success() {
        Ok(())
    } else {
        Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
    }
}
