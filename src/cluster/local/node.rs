//! A node's init: process 1 of the node's namespaces.
//!
//! Takes a [`NodeOrder`] on standard input, builds the node's view of the file system, starts its
//! daemons as each one's gates open, starts one anew where it is told to, reaps what ends, and tells
//! the supervisor on standard output.
//! It ends when the supervisor does; the kernel then ends everything else in the node. One thread
//! does all of it, so that nobody else waits for the same children.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::stat::{Mode, umask};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, chdir, sethostname};

use super::gate::Asker;
use super::mounts::{self, Bind};
use super::wire::{Daemon, NodeCommand, NodeOrder, NodeReport, send};
use super::{logs, paths};

/// How often closed gates are asked again.
const ASK_EVERY: Duration = Duration::from_millis(20);
/// A daemon whose turn has come is up within this time, or the node has failed.
const BOUND: Duration = Duration::from_secs(60);

/// `drainwatch internal node-init CLUSTER NODE` (the names are for whoever reads `ps`).
pub(super) fn main() -> ExitCode {
    let mut line = String::new();
    // Not the standard library's own reader, which would hide what it has read ahead.
    let Ok(stdin) = io::stdin().as_fd().try_clone_to_owned() else { return ExitCode::FAILURE };
    let mut orders = BufReader::new(File::from(stdin));
    if !matches!(orders.read_line(&mut line), Ok(1..)) {
        return ExitCode::FAILURE; // the supervisor is gone
    }
    let failed = |daemon: &str, reason: String| {
        let _ = send(io::stdout(), &NodeReport::Failed { daemon: daemon.into(), reason });
        ExitCode::FAILURE
    };
    let order: NodeOrder = match serde_json::from_str(&line) {
        Ok(order) => order,
        Err(error) => return failed("init", error.to_string()),
    };
    if let Err(error) = set_up(&order) {
        return failed("init", error.to_string());
    }
    match Init::new(order, orders).and_then(|mut init| init.run()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed("init", error.to_string()),
    }
}

fn set_up(order: &NodeOrder) -> io::Result<()> {
    umask(Mode::S_IWGRP | Mode::S_IWOTH);
    chdir("/")?;
    sethostname(&order.node)?;
    // As containers have it elsewhere: the soft limit must not be what stops a workload.
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    let c = &order.components;
    let bind = |from: &Path, to, writable| Bind { from: from.to_owned(), to, writable };
    let mut binds = vec![
        bind(&c.kubernetes, paths::KUBERNETES, false),
        bind(&c.etcd, paths::ETCD, false),
        bind(&c.containerd, paths::CONTAINERD, false),
        bind(&c.cni, paths::CNI, false),
        bind(&c.runc, paths::RUNC, false),
        bind(&order.conf, paths::CONF, false),
        bind(&order.logs, paths::LOGS, true),
    ];
    binds.extend(c.coredns.as_ref().map(|folder| bind(folder, paths::COREDNS, false)));
    mounts::build(&binds)?;
    for (name, value) in &order.sysctls {
        let file = Path::new("/proc/sys").join(name.replace('.', "/"));
        fs::write(&file, value)
            .map_err(|e| io::Error::new(e.kind(), format!("sysctl {name} = {value}: {e}")))?;
    }
    Ok(())
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    Waiting,
    Started(Pid, Instant),
    Up(Pid),
    /// Told to end; it waits for its turn again once it has.
    Ending(Pid),
    Ended,
}

struct Init {
    orders: BufReader<File>,
    daemons: Vec<(Daemon, State)>,
    asker: Asker,
    children: SignalFd,
    all_ready: bool,
}

impl Init {
    fn new(order: NodeOrder, orders: BufReader<File>) -> io::Result<Self> {
        let mut mask = SigSet::empty();
        mask.add(Signal::SIGCHLD);
        // Blocked here only: std gives children an empty mask.
        mask.thread_block()?;
        Ok(Self {
            orders,
            asker: Asker::new(Path::new(paths::CONF), &order.api, &order.node)?,
            daemons: order.daemons.into_iter().map(|d| (d, State::Waiting)).collect(),
            children: SignalFd::with_flags(&mask, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?,
            all_ready: false,
        })
    }

    /// Returns when the supervisor is gone.
    fn run(&mut self) -> io::Result<()> {
        loop {
            if !self.all_ready {
                self.advance()?;
            }
            let timeout = if self.all_ready {
                PollTimeout::NONE
            } else {
                // 20 fits into a u16
                PollTimeout::from(ASK_EVERY.as_millis() as u16)
            };
            let mut ready = [
                PollFd::new(self.orders.get_ref().as_fd(), PollFlags::POLLIN),
                PollFd::new(self.children.as_fd(), PollFlags::POLLIN),
            ];
            match poll(&mut ready, timeout) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
            if ready[0].any() == Some(true) && !self.obey()? {
                return Ok(());
            }
            self.reap()?;
        }
    }

    /// Does what was ordered; gives whether there is still somebody who orders.
    fn obey(&mut self) -> io::Result<bool> {
        loop {
            let mut line = String::new();
            if self.orders.read_line(&mut line)? == 0 {
                return Ok(false);
            }
            let NodeCommand::Restart { daemon } = serde_json::from_str(&line)?;
            let known = self.daemons.iter_mut().find(|(known, _)| known.name == daemon);
            match known {
                Some((daemon, state)) if let State::Up(pid) = *state => {
                    self.asker.forget(&daemon.ready);
                    *state = State::Ending(pid);
                    kill(pid, Signal::SIGTERM)?;
                }
                _ => {
                    let reason = "it is not up".to_owned();
                    send(io::stdout(), &NodeReport::Failed { daemon, reason })?;
                }
            }
            if self.orders.buffer().is_empty() {
                return Ok(true);
            }
        }
    }

    /// Starts what may start, and notes what is up.
    fn advance(&mut self) -> io::Result<()> {
        for (daemon, state) in &mut self.daemons {
            match *state {
                State::Waiting if self.asker.hold(&daemon.after) => {
                    let pid = start(daemon).map_err(|e| {
                        io::Error::new(e.kind(), format!("{}: {e}", daemon.program.display()))
                    })?;
                    *state = State::Started(pid, Instant::now());
                    send(io::stdout(), &NodeReport::Started { daemon: daemon.name.clone() })?;
                }
                State::Started(pid, _) if self.asker.hold(&daemon.ready) => {
                    *state = State::Up(pid);
                    send(io::stdout(), &NodeReport::Ready { daemon: daemon.name.clone() })?;
                }
                State::Started(_, since) if since.elapsed() > BOUND => {
                    let reason = format!(
                        "not up after {} s: {}",
                        BOUND.as_secs(),
                        logs::last_words(&log(&daemon.name))
                    );
                    let daemon = daemon.name.clone();
                    send(io::stdout(), &NodeReport::Failed { daemon, reason })?;
                    *state = State::Ended;
                }
                _ => {}
            }
        }
        if self.daemons.iter().all(|(_, state)| matches!(state, State::Up(_))) {
            self.all_ready = true;
            send(io::stdout(), &NodeReport::AllReady)?;
        }
        Ok(())
    }

    /// Waits for every child that has ended: daemons, and orphans of theirs.
    fn reap(&mut self) -> io::Result<()> {
        while let Ok(Some(_)) = self.children.read_signal() {}
        loop {
            let (pid, how) = match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, code)) => (pid, format!("ended with exit code {code}")),
                Ok(WaitStatus::Signaled(pid, signal, _)) => (pid, format!("ended by {signal}")),
                Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => return Ok(()),
                Ok(_) | Err(Errno::EINTR) => continue,
                Err(error) => return Err(error.into()),
            };
            let of = |state: &State| match state {
                State::Started(p, _) | State::Up(p) | State::Ending(p) => *p == pid,
                _ => false,
            };
            if let Some((daemon, state)) = self.daemons.iter_mut().find(|(_, s)| of(s)) {
                if matches!(state, State::Ending(_)) {
                    *state = State::Waiting;
                    self.all_ready = false;
                    continue;
                }
                *state = State::Ended;
                let reason = format!("{how}: {}", logs::last_words(&log(&daemon.name)));
                let daemon = daemon.name.clone();
                send(io::stdout(), &NodeReport::Ended { daemon, reason })?;
            }
        }
    }
}

fn log(daemon: &str) -> std::path::PathBuf {
    Path::new(paths::LOGS).join(format!("{daemon}.log"))
}

/// Starts a daemon. Its handle is let go of: [`Init::reap`] waits for all children.
fn start(daemon: &Daemon) -> io::Result<Pid> {
    let out = OpenOptions::new().create(true).append(true).open(log(&daemon.name))?;
    let tools = std::env::var("PATH").unwrap_or_else(|_| paths::SYSTEM.into());
    let child = Command::new(&daemon.program)
        .args(&daemon.args)
        .env_clear()
        .env("PATH", format!("{}:{tools}", paths::CONTAINERD))
        .env("HOME", "/root")
        .stdin(Stdio::null())
        .stdout(out.try_clone()?)
        .stderr(out)
        .spawn()?;
    Ok(Pid::from_raw(child.id().cast_signed()))
}
