//! The command line: what can be asked, and which command answers.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::commands;

/// Measures what really happens to connections when a Kubernetes pod is terminated.
#[derive(Debug, Parser)]
#[command(name = "drainwatch", version, about)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a matrix (or a scenario) and write its records and tables
    Apply(ApplyArgs),
    /// Validate scenario and matrix files without running anything
    Check(CheckArgs),
    /// Print the arms, trials and expected duration of a matrix
    Plan(PlanArgs),
    /// Judge recorded trials anew and write their tables
    Summarize(SummarizeArgs),
    /// Build or install what local clusters need
    #[command(after_help = SETUP_ENVIRONMENT)]
    Setup(SetupArgs),
    /// Say what this machine can do and what it lacks
    #[command(after_help = DOCTOR_EXIT_CODES)]
    Doctor(DoctorArgs),
    /// List and remove what earlier runs left on this machine
    Clean(CleanArgs),
    /// Bring a local cluster up on its own, and load images into one
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// Processes that drainwatch starts of itself
    #[command(hide = true)]
    Internal {
        /// Which one, and its arguments.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
}

const SETUP_ENVIRONMENT: &str = "\
Environment:
  DRAINWATCH_COMPONENTS=DIR  A folder that holds all components, used as it is instead of the cache
  DRAINWATCH_MIRROR=URL      Where release binaries are, each release host as a folder below it";

const DOCTOR_EXIT_CODES: &str = "\
Exit codes: 0 where local clusters can be made here, 4 where something that they need is lacking.";

/// Which file, and what of it.
#[derive(Debug, Args)]
pub struct Selection {
    /// A matrix or scenario file (TOML)
    pub file: PathBuf,
    /// Override any key: `--set repeats=1 --set cluster.proxy_mode=nftables`
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Only these arms (by name); may be given more than once
    #[arg(long, value_name = "ARM")]
    pub only: Vec<String>,
}

/// `drainwatch apply`
#[derive(Debug, Args)]
pub struct ApplyArgs {
    /// The file and what of it.
    #[command(flatten)]
    pub selection: Selection,
    /// Where to write [default: results/MATRIX-TIME/, UTC]
    #[arg(long, value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// Build or install what is missing first, as `drainwatch setup` does
    #[arg(long)]
    pub setup: bool,
    /// No progress, only the result and errors
    #[arg(short, long)]
    pub quiet: bool,
    /// A line for every event, warnings of trials included
    #[arg(short, long, conflicts_with = "quiet")]
    pub verbose: bool,
}

/// `drainwatch check`
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Scenario and matrix files (TOML)
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
}

/// `drainwatch plan`
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// The file and what of it.
    #[command(flatten)]
    pub selection: Selection,
}

/// `drainwatch summarize`
#[derive(Debug, Args)]
pub struct SummarizeArgs {
    /// Folders of runs
    #[arg(required = true, value_name = "DIR")]
    pub dirs: Vec<PathBuf>,
    /// Where to write the tables [default: the folder, where one was given; else standard output]
    #[arg(long, value_name = "DIR")]
    pub output: Option<PathBuf>,
}

/// `drainwatch setup`
#[derive(Debug, Args)]
pub struct SetupArgs {
    /// Kubernetes versions to make ready [default: 1.34.0]
    #[arg(long = "kubernetes", value_name = "VERSION")]
    pub kubernetes: Vec<String>,
    /// CoreDNS too, for clusters with DNS
    #[arg(long)]
    pub dns: bool,
    /// kubectl too, for machines that have none
    #[arg(long)]
    pub kubectl: bool,
    /// Take the components from this folder instead of downloading or building them
    #[arg(long, value_name = "DIR")]
    pub from: Option<PathBuf>,
    /// Only say what would be done
    #[arg(long)]
    pub dry_run: bool,
}

/// `drainwatch doctor`
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Text for people, or a JSON list of all points
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = Format::Text)]
    pub format: Format,
    /// Also ask the hosts that components come from whether they can be reached
    #[arg(long)]
    pub online: bool,
}

/// How results are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// `drainwatch clean`
#[derive(Debug, Args)]
pub struct CleanArgs {
    /// The cache of components too: what `drainwatch setup` made
    #[arg(long)]
    pub cache: bool,
    /// Only list what would be removed
    #[arg(long, conflicts_with = "yes")]
    pub dry_run: bool,
    /// Remove without asking
    #[arg(long)]
    pub yes: bool,
}

/// `drainwatch cluster`
#[derive(Debug, Subcommand)]
pub enum ClusterCommand {
    /// Bring a cluster up and keep it until Ctrl-C, or for as long as a command runs
    #[command(after_help = CLUSTER_UP_EXAMPLES)]
    Up(ClusterUpArgs),
    /// Make the images of an archive known to a cluster that runs
    Load(ClusterLoadArgs),
    /// List the local clusters of this host
    List,
}

const CLUSTER_UP_EXAMPLES: &str = "\
Examples:
  drainwatch cluster up                          # then paste the line that it prints
  drainwatch cluster up -- kubectl get nodes     # up, the command, down; gives its exit code
  drainwatch cluster up --nodes 3 --dns -- bash  # a shell in which kubectl finds the cluster";

/// `drainwatch cluster up`
#[derive(Debug, Args)]
pub struct ClusterUpArgs {
    /// The Kubernetes version [default: 1.34.0]
    #[arg(long, value_name = "VERSION")]
    pub kubernetes: Option<String>,
    /// How many nodes; the first is the control plane, and takes pods only when alone [default: 2]
    #[arg(long, value_name = "N")]
    pub nodes: Option<String>,
    /// kube-proxy's mode: iptables, nftables or ipvs [default: iptables]
    #[arg(long, value_name = "MODE")]
    pub proxy_mode: Option<String>,
    /// With the cluster's DNS (CoreDNS)
    #[arg(long)]
    pub dns: bool,
    /// Set in each node's net namespace (not in the pods'); may be given more than once
    #[arg(long, value_name = "NAME=VALUE")]
    pub sysctl: Vec<String>,
    /// Write a copy of the kubeconfig there, for as long as the cluster is up
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Build or install what is missing first, as `drainwatch setup` does
    #[arg(long)]
    pub setup: bool,
    /// Nothing on standard error but errors
    #[arg(short, long)]
    pub quiet: bool,
    /// A command to run with KUBECONFIG set; the cluster goes when it ends
    #[arg(last = true, value_name = "CMD")]
    pub command: Vec<std::ffi::OsString>,
}

/// `drainwatch cluster load`
#[derive(Debug, Args)]
pub struct ClusterLoadArgs {
    /// The archive: of `docker save`, or an OCI image layout in a tar file
    #[arg(value_name = "IMAGE.tar")]
    pub archive: PathBuf,
    /// Into which cluster, where several run [default: $DRAINWATCH_CLUSTER, or the only one]
    #[arg(long, value_name = "NAME")]
    pub cluster: Option<String>,
}

/// Parses the arguments, runs the command, gives its exit code.
pub fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Apply(args) => commands::apply::run(&args),
        Command::Check(args) => commands::check::run(&args),
        Command::Plan(args) => commands::plan::run(&args),
        Command::Summarize(args) => commands::summarize::run(&args),
        Command::Setup(args) => commands::setup::run(&args),
        Command::Doctor(args) => commands::doctor::run(&args),
        Command::Clean(args) => commands::clean::run(&args),
        Command::Cluster(command) => commands::cluster::run(&command),
        Command::Internal { args } => crate::cluster::local::internal(&args),
    }
}
