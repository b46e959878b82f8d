//! The command line: what can be asked, and which command answers.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use crate::commands::{self, Exit};
use crate::display::json;

/// The program's name.
pub const NAME: &str = "drainwatch";

/// Measures what really happens to connections when a Kubernetes pod is terminated.
#[derive(Debug, Parser)]
#[command(name = NAME, version, long_version = LONG_VERSION, about, after_help = EXAMPLES)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// Which build it is, so that a bug report names it.
const LONG_VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    "\ncommit: ",
    env!("DRAINWATCH_COMMIT"),
    "\nwith local changes: ",
    env!("DRAINWATCH_DIRTY"),
);

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a matrix (or a scenario) and write its records and tables
    #[command(after_help = APPLY_EXAMPLES)]
    Apply(ApplyArgs),
    /// Validate scenario and matrix files without running anything
    #[command(after_help = CHECK_EXAMPLES)]
    Check(CheckArgs),
    /// Print the arms, trials and expected duration of a matrix
    #[command(after_help = PLAN_EXAMPLES)]
    Plan(PlanArgs),
    /// Judge recorded trials anew and write their tables
    #[command(after_help = SUMMARIZE_EXAMPLES)]
    Summarize(SummarizeArgs),
    /// Tell the story of a recorded trial, or of one of its flows, line by line
    #[command(after_help = EXPLAIN_EXAMPLES)]
    Explain(ExplainArgs),
    /// Print the JSON Schemas of the files that drainwatch reads and writes
    #[command(after_help = SCHEMA_EXAMPLES)]
    Schema(SchemaArgs),
    /// Build or install what local clusters need
    #[command(after_help = SETUP_ENVIRONMENT)]
    Setup(SetupArgs),
    /// Say what this machine can do and what it lacks
    #[command(after_help = DOCTOR_EXAMPLES)]
    Doctor(DoctorArgs),
    /// List and remove what earlier runs left on this machine
    #[command(after_help = CLEAN_EXAMPLES)]
    Clean(CleanArgs),
    /// Bring a local cluster up on its own, and load images into one
    #[command(subcommand, after_help = CLUSTER_UP_EXAMPLES)]
    Cluster(ClusterCommand),
    /// Measure how far reported instants are off on this machine, against packets
    #[command(after_help = CALIBRATE_EXAMPLES)]
    Calibrate(CalibrateArgs),
    /// Print a completion script for a shell
    #[command(after_help = COMPLETIONS_EXAMPLES)]
    Completions(CompletionsArgs),
    /// Print a manual page, or write them all into a folder
    #[command(after_help = MAN_EXAMPLES)]
    Man(ManArgs),
    /// Processes that drainwatch starts of itself
    #[command(hide = true)]
    Internal {
        /// Which one, and its arguments.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
}

const EXAMPLES: &str = "\
Examples:
  drainwatch check scenarios/drain-delete.toml
  drainwatch plan matrices/paper.toml
  sudo drainwatch apply --setup matrices/paper.toml
  drainwatch summarize results/paper-20261130T140006Z
  drainwatch explain results/paper-20261130T140006Z/drain-delete/trial-001.json udp-3";

const APPLY_EXAMPLES: &str = "\
Examples:
  sudo drainwatch apply matrices/paper.toml
  sudo drainwatch apply scenarios/exit-delete.toml --set repeats=1 --output results/try
  sudo drainwatch apply matrices/paper.toml --only drain-evict --only drain-scale
  sudo drainwatch apply matrices/readiness.toml --format json
  sudo drainwatch apply --resume results/paper-20261130T140006Z

--resume DIR runs the trials of a run that are missing or aborted, each arm's in a new cluster. The
plan is the one in DIR/run.json; a FILE given with it has to come to the same arms. The trials of an
arm are of one build, one configuration and one environment, or the arm is refused: each key that
differs is named, and the exit code is 3. Of build and configuration that is known before anything
is started; where an arm's environment differs, the other arms still run. The record of an aborted
trial that is run again is kept in DIR/ARM/superseded/.

Exit codes: 0 every trial measured; 2 the command line, a TOML file or the folder to resume is
wrong; 3 a trial aborted, a trigger or an arm refused; 4 the cluster could not be had; 5 files could
not be written; 130, 143, 129 ended by a signal.";

const CHECK_EXAMPLES: &str = "\
Examples:
  drainwatch check scenarios/drain-delete.toml matrices/paper.toml
  drainwatch check matrices/paper.toml --format json";

const PLAN_EXAMPLES: &str = "\
Examples:
  drainwatch plan matrices/readiness.toml
  drainwatch plan matrices/paper.toml --only exit-delete --set cluster.proxy_mode=nftables";

const SUMMARIZE_EXAMPLES: &str = "\
Examples:
  drainwatch summarize results/paper-20261130T140006Z
  drainwatch summarize results/paper-20261130T131804Z results/paper-20261130T140006Z
  drainwatch summarize results/paper-20261130T140006Z tests/go-v0.1 --output results/beside

A folder of reports of the Go tool of the same name, version 0.1 (ARM/trial-001/report.json), is read as it
is; its rows say that they are imported.";

const EXPLAIN_EXAMPLES: &str = "\
Examples:
  drainwatch explain results/paper-20261130T140006Z/drain-delete/trial-001.json
  drainwatch explain results/paper-20261130T140006Z/drain-delete/trial-001.json udp-3
  drainwatch explain tests/go-v0.1/exit-delete/trial-001

Each line is something that was observed, with its time from the trigger, who saw it and how exact that
is. Of a flow the links of the chain that led to its end are numbered in the order of cause and effect.";

const SETUP_ENVIRONMENT: &str = "\
Examples:
  sudo drainwatch setup
  sudo drainwatch setup --kubernetes 1.34.0 --kubernetes 1.33.4
  drainwatch setup --dry-run

Environment:
  DRAINWATCH_COMPONENTS=DIR  A folder that holds all components, used as it is instead of the cache
  DRAINWATCH_MIRROR=URL      Where release binaries are, each release host as a folder below it";

const SCHEMA_EXAMPLES: &str = "\
Examples:
  drainwatch schema scenario
  drainwatch schema --output schema";

const DOCTOR_EXAMPLES: &str = "\
Examples:
  drainwatch doctor
  drainwatch doctor --format json

Exit codes: 0 where local clusters can be made here, 4 where something that they need is lacking.";

const CLEAN_EXAMPLES: &str = "\
Examples:
  drainwatch clean --dry-run
  drainwatch clean --yes
  drainwatch clean --cache";

const CALIBRATE_EXAMPLES: &str = "\
Examples:
  sudo drainwatch calibrate
  sudo drainwatch calibrate --flows 10 --output calibration.json

Runs trials under each number of flows in local clusters, and compares what they report with the
packets on the nodes' interfaces, by the kernel's own times. The figures are kept in
~/.local/state/drainwatch/calibration.json ($XDG_STATE_HOME); from then on the record of a trial on
this machine, of no more flows and heartbeats than were tried, says how far it may be off.

Exit codes: 0 the figures were measured and are kept; 2 the command line is wrong; 3 a trial aborted
or packets were missed, and nothing is kept; 4 the cluster could not be had; 5 files could not be
written.";

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  drainwatch completions bash > ~/.local/share/bash-completion/completions/drainwatch
  drainwatch completions zsh > ~/.zfunc/_drainwatch
  drainwatch completions fish > ~/.config/fish/completions/drainwatch.fish";

const MAN_EXAMPLES: &str = "\
Examples:
  drainwatch man apply | man -l -
  drainwatch man --output ~/.local/share/man/man1";

/// Which file, and what of it.
#[derive(Debug, Args)]
pub struct Selection {
    /// A matrix or scenario file (TOML)
    pub file: PathBuf,
    /// What of it.
    #[command(flatten)]
    pub choice: Choice,
}

/// What is otherwise than the file says.
#[derive(Debug, Args)]
pub struct Choice {
    /// Override any key: `--set repeats=1 --set cluster.proxy_mode=nftables`
    #[arg(long = "set", value_name = "KEY=VALUE", requires = "file")]
    pub set: Vec<String>,
    /// Only these arms (by name); may be given more than once
    #[arg(long, value_name = "ARM", requires = "file")]
    pub only: Vec<String>,
}

/// To whom the command speaks.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct Told {
    /// Text for people, or for programs events on standard output (see docs/events.md)
    #[arg(long, value_enum, value_name = "text|json", hide_possible_values = true)]
    #[arg(default_value_t = Format::Text)]
    pub format: Format,
}

/// What is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Text for people
    #[default]
    Text,
    /// JSON for programs, on standard output alone
    Json,
}

/// `drainwatch apply`
#[derive(Debug, Args)]
pub struct ApplyArgs {
    /// A matrix or scenario file (TOML)
    #[arg(required_unless_present = "resume")]
    pub file: Option<PathBuf>,
    /// What of it.
    #[command(flatten)]
    pub choice: Choice,
    /// Where to write [default: results/MATRIX-TIME/, UTC]
    #[arg(long, value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// Go on with the run in this folder: its missing and aborted trials
    #[arg(long, value_name = "DIR", conflicts_with = "output")]
    pub resume: Option<PathBuf>,
    /// Leave the last cluster up for a look, until Ctrl-C
    #[arg(long)]
    pub keep_cluster: bool,
    /// Build or install what is missing first, as `drainwatch setup` does
    #[arg(long)]
    pub setup: bool,
    /// No progress, only the result and errors
    #[arg(short, long)]
    pub quiet: bool,
    /// A line for every event, warnings of trials included
    #[arg(short, long, conflicts_with = "quiet")]
    pub verbose: bool,
    /// To whom.
    #[command(flatten)]
    pub told: Told,
}

/// `drainwatch check`
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Scenario and matrix files (TOML)
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// To whom.
    #[command(flatten)]
    pub told: Told,
}

/// `drainwatch plan`
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// The file and what of it.
    #[command(flatten)]
    pub selection: Selection,
    /// To whom.
    #[command(flatten)]
    pub told: Told,
}

/// `drainwatch summarize`
#[derive(Debug, Args)]
pub struct SummarizeArgs {
    /// Folders of runs, or of the Go tool's reports
    #[arg(required = true, value_name = "DIR")]
    pub dirs: Vec<PathBuf>,
    /// Where to write the tables [default: the run's folder, where one was given; else standard output]
    #[arg(long, value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// To whom.
    #[command(flatten)]
    pub told: Told,
}

/// `drainwatch explain`
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// The trial: a record's file, or a run's folder, the arm and the trial's number
    #[arg(value_name = "RUN/ARM/TRIAL")]
    pub trial: PathBuf,
    /// One flow: udp-3 [default: the trial's own story, and what became of each flow]
    pub flow: Option<String>,
    /// Text for people, or the same as one JSON object
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = Format::Text)]
    pub format: Format,
}

/// `drainwatch schema`
#[derive(Debug, Args)]
pub struct SchemaArgs {
    /// Of which file [default: all, as one object by their names]
    #[arg(value_name = "NAME")]
    pub name: Option<commands::schema::Name>,
    /// Write NAME.json into this folder instead
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
    /// To whom.
    #[command(flatten)]
    pub told: Told,
}

/// `drainwatch calibrate`
#[derive(Debug, Args)]
pub struct CalibrateArgs {
    /// How many flows of each protocol to hold, one after another
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "10,1000,8000")]
    #[arg(value_parser = commands::calibrate::numbers)]
    pub flows: Vec<u32>,
    /// Write the figures as JSON, too
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// The Kubernetes version [default: 1.34.0]
    #[arg(long, value_name = "VERSION")]
    pub kubernetes: Option<String>,
    /// No progress, only the result and errors
    #[arg(short, long)]
    pub quiet: bool,
}

/// `drainwatch completions`
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell
    pub shell: Shell,
}

/// `drainwatch man`
#[derive(Debug, Args)]
pub struct ManArgs {
    /// Whose page to print [default: the program's own]
    pub command: Vec<String>,
    /// Write every page into this folder instead
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    pub output: Option<PathBuf>,
}

/// The command line as it is shown to people: without the processes that it starts of itself.
pub fn shown() -> clap::Command {
    let whole = Cli::command();
    let commands: Vec<clap::Command> =
        whole.get_subcommands().filter(|command| !command.is_hide_set()).cloned().collect();
    clap::Command::new(NAME)
        .version(env!("CARGO_PKG_VERSION"))
        .about(whole.get_about().cloned().unwrap_or_default())
        .after_help(EXAMPLES)
        .subcommand_required(true)
        .subcommands(commands)
}

impl Command {
    /// Its name where it is asked to tell events.
    fn tells_events(&self) -> Option<&'static str> {
        let (name, told) = match self {
            Command::Apply(args) => ("apply", args.told),
            Command::Check(args) => ("check", args.told),
            Command::Plan(args) => ("plan", args.told),
            Command::Summarize(args) => ("summarize", args.told),
            Command::Setup(args) => ("setup", args.told),
            // `doctor` and `explain` write their JSON as one value.
            Command::Doctor(_)
            | Command::Clean(_)
            | Command::Explain(_)
            | Command::Cluster(_)
            | Command::Calibrate(_)
            | Command::Schema(_)
            | Command::Completions(_)
            | Command::Man(_)
            | Command::Internal { .. } => return None,
        };
        (told.format == Format::Json).then_some(name)
    }
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
    #[command(after_help = CLUSTER_LOAD_EXAMPLES)]
    Load(ClusterLoadArgs),
    /// List the local clusters of this host
    #[command(after_help = CLUSTER_LIST_EXAMPLES)]
    List,
}

const CLUSTER_LOAD_EXAMPLES: &str = "\
Examples:
  drainwatch cluster load image.tar
  drainwatch cluster load image.tar --cluster dw-3f9a1c";

const CLUSTER_LIST_EXAMPLES: &str = "\
Examples:
  drainwatch cluster list";

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
    let command = Cli::parse().command;
    if let Some(name) = command.tells_events() {
        json::open(name);
    }
    let exit: Exit = match command {
        Command::Apply(args) => commands::apply::run(&args),
        Command::Check(args) => commands::check::run(&args),
        Command::Plan(args) => commands::plan::run(&args),
        Command::Summarize(args) => commands::summarize::run(&args),
        Command::Explain(args) => commands::explain::run(&args),
        Command::Schema(args) => commands::schema::run(&args),
        Command::Setup(args) => commands::setup::run(&args),
        Command::Doctor(args) => commands::doctor::run(&args),
        Command::Clean(args) => commands::clean::run(&args),
        Command::Calibrate(args) => commands::calibrate::run(&args),
        Command::Cluster(command) => return commands::cluster::run(&command),
        Command::Completions(args) => commands::completions::run(&args),
        Command::Man(args) => commands::man::run(&args),
        Command::Internal { args } => return crate::cluster::local::internal(&args),
    };
    commands::end(exit).into()
}
