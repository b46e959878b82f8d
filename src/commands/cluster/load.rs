//! `drainwatch cluster load`: images of an archive into a cluster that runs. Their names go to
//! standard output.

use std::time::Instant;

use super::super::{Exit, say};
use super::{CLUSTER_VARIABLE, archive};
use crate::cli::ClusterLoadArgs;
use crate::cluster::local::{self, Running};
use crate::cluster::{ClusterError, Node};

/// Runs the command.
pub fn run(args: &ClusterLoadArgs) -> Exit {
    let names = match archive::names(&args.archive) {
        Ok(names) => names,
        Err(why) => {
            return say::error(Exit::Usage, &format_args!("{}: {why}", args.archive.display()));
        }
    };
    let variable = || std::env::var(CLUSTER_VARIABLE).ok().filter(|name| !name.is_empty());
    let named = args.cluster.clone().or_else(variable);
    let begun = Instant::now();
    let (running, nodes) = match local::find(named.as_deref()).and_then(|r| load(r, args)) {
        Ok(loaded) => loaded,
        Err(error) => return say::error(Exit::Cluster, &error),
    };
    say::line(&format_args!(
        "loaded into {} ({}) in {:.1} s:",
        running.name,
        nodes.iter().map(|node| &*node.name).collect::<Vec<_>>().join(", "),
        begun.elapsed().as_secs_f64()
    ));
    let exit = say::print(&(names.join("\n") + "\n"));
    for name in names.iter().filter(|name| archive::is_pulled_always(name)) {
        say::line(&format_args!(
            "note: pods of {name} need imagePullPolicy: Never or IfNotPresent; what is tagged \
             latest would be pulled by default"
        ));
    }
    exit
}

fn load(running: Running, args: &ClusterLoadArgs) -> Result<(Running, Vec<Node>), ClusterError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime =
        runtime.map_err(|source| ClusterError::Io { what: "a runtime".into(), source })?;
    let mut nodes = running.nodes();
    nodes.retain(|node| node.takes_pods);
    runtime.block_on(running.load(&nodes, &args.archive))?;
    Ok((running, nodes))
}
