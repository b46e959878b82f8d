//! The local provider: each node a tree of processes in namespaces of its own.
//!
//! Takes a [`ClusterSpec`], gives a [`Cluster`] made of Kubernetes' own binaries. The runner (this
//! module) starts one supervisor a cluster, of the same binary, and holds a pipe to it; the
//! supervisor makes everything else, and removes it when it is told to or when the pipe ends.

pub mod components;
pub mod leftovers;

mod cgroup;
mod check;
mod cluster;
mod daemons;
mod dns;
mod facts;
mod files;
mod gate;
mod hold;
mod images;
mod layout;
mod logs;
mod mounts;
mod network;
mod node;
mod orphans;
mod paths;
mod pki;
mod ready;
mod runner;
mod running;
mod spawn;
mod state;
mod supervisor;
mod wire;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use async_trait::async_trait;

#[cfg(test)]
pub(crate) use check::fixture;

use super::machine::{Check, Machine};
use super::{Cluster, ClusterError, Provider};
use crate::config::ClusterSpec;

pub use running::{Found, Running, find, list};

/// The name of the image that pods' sandboxes run. It is in no registry: the archive given to
/// [`Cluster::load_image`] has to hold it.
pub const PAUSE_IMAGE: &str = "drainwatch.local/pause:1";

/// Makes clusters of processes on this host.
#[derive(Clone, Debug)]
pub struct LocalProvider {
    /// The drainwatch binary, which is also what the cluster's own processes run.
    pub executable: PathBuf,
}

impl Default for LocalProvider {
    fn default() -> Self {
        // Names this very binary even where its file has been replaced since.
        Self { executable: "/proc/self/exe".into() }
    }
}

#[async_trait]
impl Provider for LocalProvider {
    fn name(&self) -> &'static str {
        "local"
    }

    fn check(&self, spec: &ClusterSpec) -> Result<(), ClusterError> {
        check::check(spec)?;
        if spec.dual_stack && !Path::new("/proc/net/if_inet6").exists() {
            return Err(ClusterError::Missing {
                what: "this kernel has no IPv6, and the cluster is to have it".into(),
                remedy: "take flows.ip = \"ipv6\" and cluster.dual_stack out, or enable it".into(),
            });
        }
        Ok(())
    }

    async fn up(&self, spec: &ClusterSpec, logs: &Path) -> Result<Box<dyn Cluster>, ClusterError> {
        let components = check::check(spec)?;
        let up = runner::start(&self.executable, new_name()?, spec, components, logs).await?;
        Ok(Box::new(up))
    }
}

/// What a machine has of all that local clusters need, point by point.
pub fn checks(machine: &dyn Machine) -> Vec<Check> {
    check::all(machine)
}

/// `dw-3f9a1c`: chance decides, and the supervisor refuses a name that is taken.
fn new_name() -> Result<String, ClusterError> {
    let mut bytes = [0; 3];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(|source| ClusterError::Io { what: "/dev/urandom".into(), source })?;
    Ok(format!("dw-{:02x}{:02x}{:02x}", bytes[0], bytes[1], bytes[2]))
}

/// Entry of the processes that this provider starts of the same binary.
pub fn internal(args: &[String]) -> ExitCode {
    match args.first().map(String::as_str) {
        Some("supervise") => supervisor::main(),
        Some("node-init") => node::main(),
        Some("hold-bridge") => spawn::hold_bridge(),
        Some("hold") => hold::main(&args[1..]),
        _ => {
            eprintln!("drainwatch: no such internal command");
            ExitCode::from(2)
        }
    }
}
