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
    #[command(after_help = APPLY_RESUMED)]
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
    /// Processes that drainwatch starts of itself
    #[command(hide = true)]
    Internal {
        /// Which one, and its arguments.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
}

const APPLY_RESUMED: &str = "\
--resume DIR runs the trials of a run that are missing or aborted, each arm's in a new cluster. The
plan is the one in DIR/run.json; a FILE given with it has to come to the same arms. The trials of an
arm are of one build, one configuration and one environment, or the arm is refused: each key that
differs is named, and the exit code is 3. Of build and configuration that is known before anything
is started; where an arm's environment differs, the other arms still run. The record of an aborted
trial that is run again is kept in DIR/ARM/superseded/.

Exit codes: 0 every trial measured; 2 the command line, a TOML file or the folder to resume is
wrong; 3 a trial aborted, a trigger or an arm refused; 4 the cluster could not be had; 5 files could
not be written; 130, 143, 129 ended by a signal.";

const SETUP_ENVIRONMENT: &str = "\
Environment:
  DRAINWATCH_COMPONENTS=DIR  A folder that holds all components, used as it is instead of the cache
  DRAINWATCH_MIRROR=URL      Where release binaries are, each release host as a folder below it";

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
    /// Take the components from this folder instead of downloading or building them
    #[arg(long, value_name = "DIR")]
    pub from: Option<PathBuf>,
    /// Only say what would be done
    #[arg(long)]
    pub dry_run: bool,
}

/// Parses the arguments, runs the command, gives its exit code.
pub fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Apply(args) => commands::apply::run(&args),
        Command::Check(args) => commands::check::run(&args),
        Command::Plan(args) => commands::plan::run(&args),
        Command::Summarize(args) => commands::summarize::run(&args),
        Command::Setup(args) => commands::setup::run(&args),
        Command::Internal { args } => crate::cluster::local::internal(&args),
    }
}
