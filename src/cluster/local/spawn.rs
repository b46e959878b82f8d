//! How the supervisor starts processes of its own binary in new namespaces, tied to its own life.
//!
//! To be called on the supervisor's main thread alone: the kernel ends these processes with the
//! *thread* that started them.

use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};

use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{SigHandler, Signal, signal};

/// A process that holds the bridge's net namespace and does nothing else.
pub(super) fn bridge_holder() -> io::Result<Child> {
    let mut command = own("hold-bridge", &[]);
    let namespaces = CloneFlags::CLONE_NEWNET;
    // SAFETY: system calls only, as in `prepare`.
    unsafe { command.pre_exec(move || prepare(namespaces)) };
    command.spawn()
}

/// A node's init, process 1 of a new pid namespace, in new namespaces of every other kind too.
pub(super) fn node_init(cluster: &str, node: &str) -> io::Result<Child> {
    let mut command = own("node-init", &[cluster, node]);
    let namespaces = CloneFlags::CLONE_NEWNS
        | CloneFlags::CLONE_NEWNET
        | CloneFlags::CLONE_NEWUTS
        | CloneFlags::CLONE_NEWIPC;
    // SAFETY: system calls only, as in `prepare`.
    unsafe { command.pre_exec(move || prepare(namespaces)) };
    // The pid namespace is the one that this thread's next child starts in; then back to our own.
    let own_pids = File::open("/proc/self/ns/pid")?;
    unshare(CloneFlags::CLONE_NEWPID)?;
    let child = command.spawn();
    setns(&own_pids, CloneFlags::CLONE_NEWPID)?;
    child
}

/// `drainwatch internal hold-bridge`: until the supervisor is gone.
pub(super) fn hold_bridge() -> ExitCode {
    // A new namespace has packet filters look into bridges, where the kernel can. Nobody filters here.
    for family in ["iptables", "ip6tables", "arptables"] {
        let _ = std::fs::write(format!("/proc/sys/net/bridge/bridge-nf-call-{family}"), "0");
    }
    let _ = io::copy(&mut io::stdin(), &mut io::sink());
    ExitCode::SUCCESS
}

fn own(role: &str, args: &[&str]) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("drainwatch").args(["internal", role]).args(args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

/// Between fork and exec: new namespaces, an end with the supervisor's, and no signal ignored,
/// whatever the runner was started with (`nohup`), since that would reach the workload.
fn prepare(namespaces: CloneFlags) -> io::Result<()> {
    set_pdeathsig(Signal::SIGKILL)?;
    for number in Signal::iterator() {
        if number != Signal::SIGKILL && number != Signal::SIGSTOP {
            // SAFETY: the default action runs no code of ours.
            unsafe { signal(number, SigHandler::SigDfl) }?;
        }
    }
    unshare(namespaces)?;
    Ok(())
}
