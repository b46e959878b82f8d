//! The arrival of SIGTERM: its time, and a wake-up for whoever waits in epoll.

use std::io;
use std::sync::{Arc, OnceLock};
use std::thread;

use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signal::{SigSet, Signal};

use crate::process::Moment;

/// SIGTERM, whether and when it has arrived.
#[derive(Clone, Debug)]
pub struct Sigterm(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    arrived: OnceLock<Moment>,
    wake: EventFd,
}

impl Sigterm {
    /// Blocks SIGTERM in this thread and those that it starts from now on, and waits for it in a
    /// thread of its own: its time must not depend on what the others are doing. As pid 1, a
    /// process gets no signal that it does not wait for.
    ///
    /// # Errors
    /// The thread could not be started.
    pub fn watch() -> io::Result<Self> {
        let mut set = SigSet::empty();
        set.add(Signal::SIGTERM);
        set.thread_block()?;
        let wake = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let inner = Arc::new(Inner { arrived: OnceLock::new(), wake });
        let sigterm = Self(Arc::clone(&inner));
        thread::Builder::new().name("signals".to_owned()).spawn(move || {
            loop {
                let signal = set.wait();
                let now = Moment::now();
                // Only the first one counts.
                if signal.is_ok() && inner.arrived.set(now).is_ok() {
                    // The counter of an eventfd does not overflow by 1.
                    let _ = inner.wake.write(1);
                }
            }
        })?;
        Ok(sigterm)
    }

    /// When it arrived, if it has.
    pub fn arrived(&self) -> Option<Moment> {
        self.0.arrived.get().copied()
    }

    /// Readable once it has arrived, and for ever after.
    pub fn wake(&self) -> &EventFd {
        &self.0.wake
    }
}
