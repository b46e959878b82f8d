//! A machine as checks see it: files of the kernel, tools, limits, and what it can do when tried.
//!
//! [`Machine`] is the seam: [`Here`] is this machine, tests make theirs up. Looking changes
//! nothing: what is tried out is tried in a process of its own, in namespaces that end with it.
//! A [`Check`] is what one look gives. Knows nothing of what is needed for what.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::resource::{Resource, getrlimit};

use super::local::components::host::{self, Search};
use super::local::components::process::{self, Failure};
use super::local::components::{self, Ready};

/// How long a tool may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// One point that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Check {
    /// What was looked at: `cgroups`.
    pub name: &'static str,
    /// How it stands.
    pub state: State,
    /// What was found.
    pub found: String,
    /// What the user can do about it.
    pub remedy: Option<String>,
}

/// How a point stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// As it should be.
    Ok,
    /// Something works less well, or not at all that only some need; or it can't be told.
    Warn,
    /// What can't be done without.
    Lacks,
}

impl State {
    /// `ok`, `warn`, `lacks`
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Lacks => "lacks",
        }
    }
}

impl Check {
    /// As it should be.
    pub fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, state: State::Ok, found: found.into(), remedy: None }
    }

    /// Worse than it could be.
    pub fn warn(name: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { name, state: State::Warn, found: found.into(), remedy: Some(remedy.into()) }
    }

    /// Not enough.
    pub fn lacks(name: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { state: State::Lacks, ..Self::warn(name, found, remedy) }
    }
}

/// What a tool answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is not here.
    Absent,
    /// It failed, and how.
    Failed(String),
    /// What it wrote.
    Said(String),
}

/// A limit of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Open descriptors.
    Descriptors,
    /// Processes of this user.
    Processes,
}

/// A machine to be looked at.
pub trait Machine {
    /// System and processor, as Rust calls them: `linux`, `x86_64`.
    fn platform(&self) -> (&str, &str);
    /// Whether this process is root's.
    fn is_root(&self) -> bool;
    /// Who this process runs as.
    fn user(&self) -> String;
    /// A file's text, where it can be read.
    fn read(&self, path: &str) -> Option<String>;
    /// Whether something is there.
    fn exists(&self, path: &str) -> bool;
    /// Whether a tool is here.
    fn has(&self, tool: &str) -> bool;
    /// Asks a tool of the host something that changes nothing.
    fn ask(&self, tool: &str, arguments: &[&str]) -> Answer;
    /// Has a tool do something in new namespaces of its own (mount, net, pid, uts, ipc).
    fn try_out(&self, tool: &str, arguments: &[&str], input: &str) -> Answer;
    /// Soft and hard limit.
    fn limit(&self, limit: Limit) -> Option<(u64, u64)>;
    /// Free bytes where a path is or would be.
    fn free(&self, path: &Path) -> Option<u64>;
    /// How many processors this process may use.
    fn processors(&self) -> Option<usize>;
    /// Kubernetes versions that clusters can be made of.
    fn kubernetes(&self) -> Result<Ready, String>;
    /// Where results are written by default.
    fn results(&self) -> PathBuf;
}

/// This machine.
#[derive(Debug)]
pub struct Here(Search);

impl Here {
    /// With the tools that the environment names.
    pub fn of_environment() -> Self {
        Self(Search::of_environment())
    }

    fn command(&self, tool: &str) -> Option<Command> {
        let mut command = Command::new(self.0.find(tool)?);
        command.current_dir("/").env("PATH", self.0.as_path());
        if tool == "go" {
            // It would count this call in a file of the user's, and might fetch another Go.
            command.env_remove("HOME").env_remove("XDG_CONFIG_HOME").env("GOTOOLCHAIN", "local");
        }
        Some(command)
    }
}

impl Machine for Here {
    fn platform(&self) -> (&str, &str) {
        (std::env::consts::OS, std::env::consts::ARCH)
    }

    fn is_root(&self) -> bool {
        host::is_root()
    }

    fn user(&self) -> String {
        host::user()
    }

    fn read(&self, path: &str) -> Option<String> {
        std::fs::read_to_string(path).ok()
    }

    fn exists(&self, path: &str) -> bool {
        Path::new(path).exists()
    }

    fn has(&self, tool: &str) -> bool {
        self.0.find(tool).is_some()
    }

    fn ask(&self, tool: &str, arguments: &[&str]) -> Answer {
        match self.command(tool) {
            Some(mut command) => answer(process::ask(command.args(arguments), PATIENCE)),
            None => Answer::Absent,
        }
    }

    fn try_out(&self, tool: &str, arguments: &[&str], input: &str) -> Answer {
        let Some(found) = self.0.find(tool) else { return Answer::Absent };
        // The file itself: links to it may lead through /run, which is covered there. Its name
        // is what tells some programs who they are.
        let program = found.canonicalize().unwrap_or(found);
        let mut command = Command::new(program);
        command.arg0(tool).args(arguments).current_dir("/").env("PATH", self.0.as_path());
        // SAFETY: system calls only; paths are short, so that nothing is allocated for them.
        unsafe { command.pre_exec(alone) };
        answer(process::ask_with(&mut command, input, PATIENCE))
    }

    fn limit(&self, limit: Limit) -> Option<(u64, u64)> {
        let resource = match limit {
            Limit::Descriptors => Resource::RLIMIT_NOFILE,
            Limit::Processes => Resource::RLIMIT_NPROC,
        };
        getrlimit(resource).ok()
    }

    fn free(&self, path: &Path) -> Option<u64> {
        host::free_space(path).map(|(_, free)| free)
    }

    fn processors(&self) -> Option<usize> {
        std::thread::available_parallelism().ok().map(Into::into)
    }

    fn kubernetes(&self) -> Result<Ready, String> {
        components::ready().map_err(|error| error.to_string())
    }

    fn results(&self) -> PathBuf {
        std::path::absolute("results").unwrap_or_else(|_| "results".into())
    }
}

/// Between fork and exec: namespaces of which nothing is left, and no way to write below /run,
/// where iptables in its older form has a lock.
fn alone() -> std::io::Result<()> {
    const NONE: Option<&str> = None;
    unshare(
        CloneFlags::CLONE_NEWNS
            | CloneFlags::CLONE_NEWNET
            | CloneFlags::CLONE_NEWPID
            | CloneFlags::CLONE_NEWUTS
            | CloneFlags::CLONE_NEWIPC,
    )?;
    mount(NONE, "/", NONE, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NONE)?;
    mount(Some("tmpfs"), "/run", Some("tmpfs"), MsFlags::empty(), NONE)?;
    Ok(())
}

fn answer(result: Result<String, Failure>) -> Answer {
    match result {
        Ok(text) => Answer::Said(text.trim().to_owned()),
        // What it wrote last says more than its exit code.
        Err(Failure::Ended(_, last)) if !last.trim().is_empty() => {
            Answer::Failed(last.split_whitespace().collect::<Vec<_>>().join(" "))
        }
        Err(failure) => Answer::Failed(failure.to_string()),
    }
}
