//! Clusters of this host that are up, for whoever did not bring them up: found by their folders
//! and the locks on these ([`super::state`]).
//!
//! Takes nothing but names; gives what each cluster's supervisor has written into its folder.
//! Changes nothing but a cluster's images; the last look at an empty folder of clusters removes it.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::wire::{Order, UpNode};
use super::{files, images, state};
use crate::cluster::{ClusterError, Node};

/// How long another drainwatch may hold the lock of all clusters: for as long as one takes its
/// name and subnet, and sweeps up after others.
const PATIENCE: Duration = Duration::from_secs(15);
/// In a cluster's folder, from when it is up.
const FILE: &str = "cluster.json";

/// What a cluster that is up says of itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Running {
    /// `dw-3f9a1c`
    pub name: String,
    /// Without a `v`: `1.34.0`
    pub kubernetes: String,
    /// The administrator's.
    pub kubeconfig: PathBuf,
    /// The process whose end ends the cluster.
    pub owner: u32,
    /// When its components were up.
    pub since: Timestamp,
    nodes: Vec<UpNode>,
    ctr: PathBuf,
}

/// A cluster of this host.
#[derive(Clone, Debug)]
pub struct Found {
    /// `dw-3f9a1c`
    pub name: String,
    /// What it says of itself; `None` while it is coming up or going down.
    pub running: Option<Running>,
}

/// Writes it into the cluster's folder, whole or not at all.
pub(super) fn write(state: &Path, order: &Order, nodes: &[UpNode]) -> io::Result<()> {
    let running = Running {
        name: order.name.clone(),
        kubernetes: order.spec.kubernetes.clone(),
        kubeconfig: state.join("kubeconfig"),
        owner: order.owner,
        since: Timestamp::now(),
        nodes: nodes.to_vec(),
        ctr: order.components.containerd.join("ctr"),
    };
    let new = state.join("cluster.json.new");
    files::write_private(&new, &serde_json::to_string(&running)?)?;
    fs::rename(new, state.join(FILE))
}

/// The clusters of this host, by name. Those that their supervisor left behind are none.
///
/// # Errors
/// [`ClusterError::Missing`] where this user may not look; [`ClusterError::Io`].
pub fn list() -> Result<Vec<Found>, ClusterError> {
    read().map_err(|source| match source.kind() {
        io::ErrorKind::PermissionDenied => ClusterError::Missing {
            what: format!("{} can't be read: local clusters are root's", state::ROOT),
            remedy: "run drainwatch as root, for example with sudo".into(),
        },
        _ => ClusterError::Io { what: state::ROOT.into(), source },
    })
}

fn read() -> io::Result<Vec<Found>> {
    let Some(root) = state::lock_root_if_there(PATIENCE)? else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    for entry in state::look(&root) {
        let state::Entry::Running { name, .. } = entry else { continue };
        let text = fs::read(Path::new(state::ROOT).join(&name).join(FILE)).ok();
        let running = text.and_then(|text| serde_json::from_slice(&text).ok());
        found.push(Found { name, running });
    }
    state::leave_root(root);
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

/// The cluster of this name; without a name the only one that is up.
///
/// # Errors
/// [`ClusterError::Missing`] where there is none such, or more than one; those of [`list`].
pub fn find(name: Option<&str>) -> Result<Running, ClusterError> {
    pick(list()?, name)
}

fn pick(found: Vec<Found>, name: Option<&str>) -> Result<Running, ClusterError> {
    let missing =
        |what: String, remedy: &str| Err(ClusterError::Missing { what, remedy: remedy.to_owned() });
    let names: Vec<String> = found.iter().map(|cluster| cluster.name.clone()).collect();
    if let Some(name) = name {
        return match found.into_iter().find(|cluster| cluster.name == name) {
            Some(Found { running: Some(running), .. }) => Ok(running),
            Some(_) => missing(
                format!("the cluster {name} is not up: it is coming up or going down"),
                "see `drainwatch cluster list`",
            ),
            None if names.is_empty() => missing(
                format!("no cluster is named {name}: no local cluster is running"),
                "start one with `drainwatch cluster up`",
            ),
            None => missing(
                format!("no cluster is named {name}"),
                &format!("the local clusters are {}", names.join(", ")),
            ),
        };
    }
    let mut up: Vec<Running> = found.into_iter().filter_map(|cluster| cluster.running).collect();
    let all: Vec<&str> = up.iter().map(|running| &*running.name).collect();
    let all = format!("{} local clusters are running: {}", all.len(), all.join(", "));
    match (up.pop(), up.len()) {
        (Some(only), 0) => Ok(only),
        (Some(_), _) => missing(all, "name one with --cluster NAME"),
        (None, _) if names.is_empty() => {
            missing("no local cluster is running".into(), "start one with `drainwatch cluster up`")
        }
        (None, _) => missing(
            format!("no local cluster is up yet ({})", names.join(", ")),
            "see `drainwatch cluster list`",
        ),
    }
}

impl Running {
    /// The nodes; the first is the control plane.
    pub fn nodes(&self) -> Vec<Node> {
        let node = |node: &UpNode| Node {
            name: node.name.clone(),
            address: node.address,
            address6: node.address6,
            takes_pods: node.takes_pods,
            pid: Some(node.pid),
        };
        self.nodes.iter().map(node).collect()
    }

    /// Writes a copy of the kubeconfig, for its owner's eyes only, to a path where nothing is yet.
    /// It goes with the cluster, however that ends, unless somebody has changed it by then.
    ///
    /// # Errors
    /// Where something is there, or nothing can be written.
    pub fn copy_kubeconfig(&self, to: &Path) -> io::Result<()> {
        let text = fs::read(&self.kubeconfig)?;
        let state = self.kubeconfig.parent().unwrap_or(Path::new(state::ROOT));
        // Noted first: a copy that nobody knows of would stay.
        state::note_copy(state, to)?;
        let mut options = fs::OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(0o600).open(to)?;
        // Under sudo it is for whoever called it, who could not read root's.
        let id = |name| std::env::var(name).ok()?.parse::<u32>().ok();
        if let (Some(user), Some(group)) = (id("SUDO_UID"), id("SUDO_GID")) {
            std::os::unix::fs::fchown(&file, Some(user), Some(group))?;
        }
        file.write_all(&text)
    }

    /// Makes the images of an archive known to these nodes.
    ///
    /// # Errors
    /// [`ClusterError::Component`] with what containerd says; [`ClusterError::Io`].
    pub async fn load(&self, nodes: &[Node], archive: &Path) -> Result<(), ClusterError> {
        images::import(&self.ctr, nodes.iter(), archive).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(name: &str, up: bool) -> Found {
        let running = up.then(|| Running {
            name: name.into(),
            kubernetes: "1.34.0".into(),
            kubeconfig: "/k".into(),
            owner: 1,
            since: Timestamp::UNIX_EPOCH,
            nodes: Vec::new(),
            ctr: "/ctr".into(),
        });
        Found { name: name.into(), running }
    }

    #[test]
    fn the_only_cluster_needs_no_name_and_of_several_one_must_be_named() {
        let all = || vec![found("dw-1", true), found("dw-2", false), found("dw-3", true)];
        let name = |found, name| pick(found, name).map(|running| running.name);
        assert_eq!(name(all()[..2].to_vec(), None).unwrap(), "dw-1");
        assert_eq!(name(all(), Some("dw-3")).unwrap(), "dw-3");
        let told = [
            name(all(), None),
            name(all(), Some("dw-2")),
            name(all(), Some("dw-9")),
            name(all()[1..2].to_vec(), None),
            name(vec![], None),
            name(vec![], Some("dw-9")),
        ]
        .map(|result| result.unwrap_err().to_string());
        insta::assert_snapshot!("no_such_cluster", told.join("\n"));
    }
}
