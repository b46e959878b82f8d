//! What a local cluster needs of this machine, looked at before anything is started, and point by
//! point for `drainwatch doctor`.

mod kernel;
mod points;
mod tools;

#[cfg(test)]
pub(crate) mod fixture;

use super::components::{self, Components};
use super::layout::MOST_NODES;
use crate::cluster::ClusterError;
use crate::cluster::machine::{Check, Here, Machine, State};
use crate::config::{ClusterSpec, ProxyMode};

/// The nodes of a cluster where nothing else is said.
const USUAL_NODES: u32 = 2;

/// All that a local cluster of the usual kind needs of a machine, and what some need.
pub fn all(machine: &dyn Machine) -> Vec<Check> {
    let mut checks = vec![points::system(machine)];
    if machine.platform().0 != "linux" {
        return checks; // the rest would be guesses
    }
    checks.extend([points::privileges(machine), points::kernel(machine)]);
    checks.extend(kernel::features(machine));
    checks.extend([
        kernel::conntrack_events(machine),
        kernel::ipvs(machine),
        points::cgroups(machine),
        points::boot_id(machine),
    ]);
    checks.extend(tools::all(machine));
    checks.extend([
        points::memory(machine, USUAL_NODES),
        points::inotify(machine, USUAL_NODES),
        points::state_disk(machine),
        points::components(machine),
        points::go(machine),
    ]);
    checks
}

/// Gives the components where a cluster like this can be made here.
pub(super) fn check(spec: &ClusterSpec) -> Result<Components, ClusterError> {
    let machine = Here::of_environment();
    demand(points::privileges(&machine))?;
    if spec.nodes == 0 || spec.nodes > MOST_NODES {
        return missing(
            &format!("a local cluster of {} nodes", spec.nodes),
            &format!("set cluster.nodes to 1 … {MOST_NODES}"),
        );
    }
    if let Some(name) = spec.sysctls.keys().find(|name| !namespaced(name)) {
        return missing(
            &format!("cluster.sysctls: {name} is no sysctl of a net namespace"),
            "only names that start with \"net.\" can be set for a node alone",
        );
    }
    if spec.proxy_mode == ProxyMode::Ipvs {
        demand(Check { state: required(kernel::ipvs(&machine).state), ..kernel::ipvs(&machine) })?;
    }
    demand(points::cgroups(&machine))?;
    demand(points::memory(&machine, spec.nodes))?;
    demand(points::inotify(&machine, spec.nodes))?;
    demand(points::state_disk(&machine))?;
    components::locate_with(&spec.kubernetes, components::extras(spec))
}

/// What is only a warning for most is needed here.
fn required(state: State) -> State {
    if state == State::Ok { State::Ok } else { State::Lacks }
}

fn demand(check: Check) -> Result<(), ClusterError> {
    match check.state {
        State::Ok | State::Warn => Ok(()),
        State::Lacks => missing(&check.found, &check.remedy.unwrap_or_default()),
    }
}

fn namespaced(sysctl: &str) -> bool {
    sysctl.starts_with("net.") && !sysctl.contains(['/', ' ']) && !sysctl.contains("..")
}

fn missing<T>(what: &str, remedy: &str) -> Result<T, ClusterError> {
    Err(ClusterError::Missing { what: what.into(), remedy: remedy.into() })
}
