//! Network namespaces of other processes, and work in them.
//!
//! A socket belongs to the namespace of the thread that opened it, for as long as it lives. So a
//! thread that enters one is a thread of its own, which ends there. Knows nothing of nodes or pods.

use std::fs::File;
use std::io;
use std::sync::Arc;

use nix::sched::{CloneFlags, setns};

/// A network namespace. It stays for as long as this does, whatever becomes of its processes.
#[derive(Clone, Debug)]
pub struct NetNamespace(Arc<File>);

impl NetNamespace {
    /// That of a process, as this program numbers processes.
    ///
    /// # Errors
    /// There is no such process, or this program may not look at it.
    pub fn of_process(pid: i32) -> io::Result<Self> {
        Ok(Self(Arc::new(File::open(format!("/proc/{pid}/ns/net"))?)))
    }

    /// Has the calling thread enter it, for good. One system call, so that it may stand between fork
    /// and exec.
    ///
    /// # Errors
    /// This program may not.
    pub fn enter(&self) -> io::Result<()> {
        Ok(setns(&*self.0, CloneFlags::CLONE_NEWNET)?)
    }

    /// Runs `work` on a thread of its own that has entered it, and waits for what that gives.
    ///
    /// # Errors
    /// It could not be entered, or what `work` gives.
    pub fn inside<T: Send>(&self, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| self.enter().and_then(|()| work()));
            thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_namespace_of_no_process_is_an_error() {
        assert!(NetNamespace::of_process(-1).is_err());
    }
}
