//! `drainwatch cluster`: local clusters on their own, without an experiment.

mod archive;
mod command;
mod kubeconfig;
mod list;
mod load;
mod signals;
mod up;

use std::process::ExitCode;

use crate::cli::ClusterCommand;

/// Names the cluster that a command is run in: set for the command of `cluster up -- CMD`.
const CLUSTER_VARIABLE: &str = "DRAINWATCH_CLUSTER";

/// Runs the command.
pub fn run(command: &ClusterCommand) -> ExitCode {
    match command {
        ClusterCommand::Up(args) => up::run(args),
        ClusterCommand::Load(args) => load::run(args).into(),
        ClusterCommand::List => list::run().into(),
    }
}
