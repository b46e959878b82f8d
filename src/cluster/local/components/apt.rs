//! The host's tools, from its package manager where that is apt.
//!
//! Takes the packages that are lacking; installs them or says who could. Installs nothing that
//! starts a daemon: containerd and etcd never come from here.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::host::{self, Search};
use super::process::{self, Ending, Failure, Stop};
use super::stopped;
use crate::cluster::ClusterError;

/// How this host's tools can be installed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Installer {
    /// With this apt-get.
    Apt(PathBuf),
    /// By the user, for this reason.
    Nobody(String),
}

impl Installer {
    /// Finds out.
    pub fn of(search: &Search) -> Self {
        match search.find("apt-get") {
            Some(apt) if host::is_root() => Self::Apt(apt),
            Some(_) => Self::Nobody(format!("only root can, and this is {}", host::user())),
            None => Self::Nobody("there is no apt-get here".into()),
        }
    }
}

/// Packages of tools, each once.
pub fn packages(tools: &[(&'static str, &'static str)]) -> Vec<&'static str> {
    let mut packages: Vec<&str> = tools.iter().map(|(_, package)| *package).collect();
    packages.sort_unstable();
    packages.dedup();
    packages
}

/// The error for tools that this process can't install.
pub fn refused(tools: &[(&'static str, &'static str)], why: &str) -> ClusterError {
    let names: Vec<&str> = tools.iter().map(|(tool, _)| *tool).collect();
    let packages = packages(tools).join(" ");
    ClusterError::Missing {
        what: format!("the host's {} must be installed, and {why}", names.join(", ")),
        remedy: format!(
            "Install them, then run this again. Debian and Ubuntu: `sudo apt-get install -y \
             --no-install-recommends {packages}`; elsewhere the packages of these names, or \
             similar ones."
        ),
    }
}

/// Installs packages; brings apt's lists up to date first where that turns out to be needed.
pub fn install(
    apt: &Path,
    search: &Search,
    packages: &[&str],
    log: &Path,
    stop: &Stop,
    tick: &mut dyn FnMut(),
) -> Result<(), ClusterError> {
    let mut run = |arguments: &[&str]| {
        let mut command = Command::new(apt);
        command
            .args(["-o", "DPkg::Lock::Timeout=60"])
            .args(arguments)
            .env("PATH", search.as_path())
            .env("DEBIAN_FRONTEND", "noninteractive")
            // Else Ubuntu restarts services of the user's after each installation.
            .env("NEEDRESTART_SUSPEND", "1");
        process::run(&mut command, None, log, Ending::Patient, stop, tick)
    };
    let mut install = vec!["install", "-y", "--no-install-recommends"];
    install.extend(packages);
    let result = match run(&install) {
        Err(Failure::Ended(..)) => run(&["update"]).and_then(|()| run(&install)),
        other => other,
    };
    result.map_err(|failure| match failure {
        Failure::Stopped => stopped(),
        failure => ClusterError::Component {
            component: format!("packages {}", packages.join(" ")),
            reason: format!("apt-get: {failure}"),
            logs: Some(log.to_owned()),
        },
    })
}
