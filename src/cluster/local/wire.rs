//! What the runner, the supervisor and the nodes' inits say to each other: one JSON value a line
//! on the pipes of standard input and output. Knows nothing of how any of it is done.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::components::Components;
use crate::config::ClusterSpec;

/// Runner to supervisor, first line: the cluster to make.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Order {
    pub name: String,
    /// The runner's process.
    pub owner: u32,
    pub spec: ClusterSpec,
    pub components: Components,
    /// Where the components' logs are copied when the cluster can't be had.
    pub logs: PathBuf,
}

/// Runner to supervisor, afterwards. The end of the pipe means the same as [`Command::Down`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Command {
    Down,
    /// End a daemon on each node that has it, and start it anew.
    Restart {
        daemon: String,
    },
    /// Cut a node off, and end all of its processes.
    StopNode {
        node: String,
    },
}

/// Supervisor to runner.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub(super) enum Report {
    /// Every component of every node is up.
    Up { kubeconfig: PathBuf, state: PathBuf, subnet: String, nodes: Vec<UpNode> },
    /// A component ended although nobody asked it to, after the cluster was up.
    Ended { component: String, reason: String },
    /// What was commanded has been done.
    Done,
    /// It has not, or not all of it.
    NotDone { reason: String },
    /// The cluster could not be had; all of it is gone again.
    Failed { component: String, reason: String, logs: Option<PathBuf> },
    /// All of it is gone, but for what is named here.
    Down { left: Vec<String> },
}

/// A node that is up.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct UpNode {
    pub name: String,
    pub address: Ipv4Addr,
    #[serde(default)]
    pub address6: Option<Ipv6Addr>,
    pub takes_pods: bool,
    pub pid: i32,
}

/// Supervisor to a node's init, first line. It comes once the node's links and cgroups
/// are there, so it also means "go". The end of the pipe means that the supervisor is gone.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct NodeOrder {
    pub node: String,
    pub components: Components,
    /// The node's own folder of keys and configuration, on the host.
    pub conf: PathBuf,
    /// The node's own folder of logs, on the host.
    pub logs: PathBuf,
    /// `https://ADDRESS:6443`
    pub api: String,
    pub sysctls: BTreeMap<String, String>,
    pub daemons: Vec<Daemon>,
}

/// Supervisor to a node's init, afterwards.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum NodeCommand {
    /// End a daemon and start it anew; [`NodeReport::Ready`] says that it is up again.
    Restart { daemon: String },
}

/// A program that a node's init starts, and when.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Daemon {
    pub name: String,
    pub program: PathBuf,
    pub args: Vec<String>,
    /// What must hold before it is started.
    pub after: Vec<Gate>,
    /// What holds once it is up.
    pub ready: Vec<Gate>,
}

/// Something that can be asked again and again until it holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Gate {
    /// A TCP connection is accepted.
    Tcp(SocketAddrV4),
    /// A connection to a unix socket is accepted.
    Unix(PathBuf),
    /// A path is answered with 200 over plain HTTP.
    Http(SocketAddrV4, String),
    /// The API server says that it is ready.
    ApiReady,
    /// The node is registered and has an address.
    Registered,
    /// This many nodes are Ready.
    NodesReady(usize),
}

/// A node's init to the supervisor.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub(super) enum NodeReport {
    Started {
        daemon: String,
    },
    Ready {
        daemon: String,
    },
    /// All daemons of the node are up.
    AllReady,
    /// A daemon ended.
    Ended {
        daemon: String,
        reason: String,
    },
    /// The node could not be set up, or a daemon did not become ready in time.
    Failed {
        daemon: String,
        reason: String,
    },
}

/// Writes one line; the reader splits at newlines, so it goes out in one piece.
pub(super) fn send(mut to: impl Write, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    to.write_all(&line)?;
    to.flush()
}
