//! The command of `cluster up -- CMD`: found before the cluster is made, run with its kubeconfig,
//! and what its end means for drainwatch's own.

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus};

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::Child;

use super::super::say;
use super::CLUSTER_VARIABLE;
use crate::cluster::local::Running;

/// What shells give for a command that is not there, and for one that can't be run.
const NOT_FOUND: u8 = 127;
pub const NOT_EXECUTABLE: u8 = 126;

const KUBECTL: &str = "kubectl";

/// Whether a command is kubectl, and this machine has none.
pub fn needs_kubectl(words: &[OsString]) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    words.first().is_some_and(|name| name == KUBECTL)
        && !std::env::split_paths(&path).any(|folder| folder.join(KUBECTL).is_file())
}

/// A command that was found.
pub struct Command {
    program: PathBuf,
    arguments: Vec<OsString>,
    path: OsString,
}

impl Command {
    /// Finds it by `PATH`, to which `more` is added; `None` where there is no command at all.
    ///
    /// # Errors
    /// The exit code, where it is not there or can't be run. That has been told.
    pub fn find(words: &[OsString], more: Option<&Path>) -> Result<Option<Self>, ExitCode> {
        let Some((name, arguments)) = words.split_first() else { return Ok(None) };
        let shown = Path::new(name).display();
        let own = std::env::var_os("PATH").unwrap_or_default();
        let folders: Vec<PathBuf> =
            std::env::split_paths(&own).chain(more.map(Into::into)).collect();
        // Folders that came out of split_paths hold no colon; the cache's path may.
        let path = std::env::join_paths(&folders).unwrap_or(own);
        let candidates: Vec<PathBuf> = if name.as_encoded_bytes().contains(&b'/') {
            vec![name.into()]
        } else {
            folders.iter().map(|folder| folder.join(name)).collect()
        };
        let mut there = candidates.iter().filter(|path| path.is_file()).peekable();
        if there.peek().is_none() {
            let remedy = if name == KUBECTL {
                "\n  `drainwatch setup --kubectl` gets it (as does --setup)"
            } else {
                ""
            };
            say::line(&format_args!("error: {shown}: no such command{remedy}"));
            return Err(NOT_FOUND.into());
        }
        let executable = |path: &&PathBuf| {
            path.metadata().is_ok_and(|meta| meta.permissions().mode() & 0o111 != 0)
        };
        match there.find(executable) {
            Some(program) => {
                let (program, arguments) = (program.clone(), arguments.to_vec());
                Ok(Some(Self { program, arguments, path }))
            }
            None => {
                say::line(&format_args!("error: {shown}: it is no executable file"));
                Err(NOT_EXECUTABLE.into())
            }
        }
    }

    /// Its program, for people.
    pub fn shown(&self) -> impl std::fmt::Display {
        self.program.display()
    }

    /// Starts it for a cluster, on drainwatch's own terminal and files. To be called on the main
    /// thread: the command is told to end when the thread that started it is gone.
    pub fn start(&self, cluster: &Running) -> std::io::Result<Child> {
        let mut command = tokio::process::Command::new(&self.program);
        command
            .args(&self.arguments)
            .env("PATH", &self.path)
            .env("KUBECONFIG", &cluster.kubeconfig)
            .env(CLUSTER_VARIABLE, &cluster.name);
        // SAFETY: one system call, which touches nothing of the parent's memory.
        unsafe { command.pre_exec(|| Ok(set_pdeathsig(Signal::SIGTERM)?)) };
        command.spawn()
    }
}

/// Passes a signal on, unless the command has it already: the terminal sends Ctrl-C to every
/// process of its foreground.
pub fn pass_on(child: &Child, signal: Signal) {
    if signal == Signal::SIGINT && in_foreground() {
        return;
    }
    if let Some(pid) = child.id() {
        let _ = kill(Pid::from_raw(pid.cast_signed()), signal); // it may just have ended
    }
}

fn in_foreground() -> bool {
    let terminal = std::fs::File::open("/dev/tty");
    terminal.is_ok_and(|terminal| {
        nix::unistd::tcgetpgrp(terminal).is_ok_and(|group| group == nix::unistd::getpgrp())
    })
}

/// A command's exit code as shells give it: 128 and the signal where one ended it.
pub fn code(status: ExitStatus) -> u8 {
    let signal = status.signal().map(|signal| 128 + signal);
    // Both are at most 255 by the system's own rules.
    u8::try_from(status.code().or(signal).unwrap_or(1)).unwrap_or(1)
}
