//! The process that holds a pod's namespaces: it does nothing, and reaps orphans.

use std::io;

use nix::sys::signal::{SigSet, Signal};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};

/// Waits for SIGTERM or SIGINT.
///
/// # Errors
/// Signals can't be waited for.
pub fn run() -> io::Result<()> {
    let mut set = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGCHLD] {
        set.add(signal);
    }
    set.thread_block()?;
    while set.wait()? == Signal::SIGCHLD {
        // One SIGCHLD may stand for several children.
        while let Ok(status) = waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            if status == WaitStatus::StillAlive {
                break;
            }
        }
    }
    Ok(())
}
