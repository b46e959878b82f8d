//! Signals, for a command that can't just end at the second one: what is run may want them.

use nix::sys::signal::Signal;
use tokio::signal::unix::{self, SignalKind, signal};

/// SIGINT, SIGTERM and SIGHUP, from when it is made. One that drainwatch was started to ignore
/// (`nohup`, a script's background) it goes on ignoring.
pub struct Signals {
    int: Option<unix::Signal>,
    term: Option<unix::Signal>,
    hup: Option<unix::Signal>,
}

impl Signals {
    /// Listens from now on. Needs a tokio runtime.
    pub fn listen() -> std::io::Result<Self> {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let ignored = ignored(&status);
        let listen = |which: Signal| {
            let heard = ignored & (1 << (which as u32 - 1)) == 0;
            heard.then(|| signal(SignalKind::from_raw(which as i32))).transpose()
        };
        Ok(Self {
            int: listen(Signal::SIGINT)?,
            term: listen(Signal::SIGTERM)?,
            hup: listen(Signal::SIGHUP)?,
        })
    }

    /// The next one. May be called off.
    pub async fn next(&mut self) -> Signal {
        tokio::select! {
            () = received(&mut self.int) => Signal::SIGINT,
            () = received(&mut self.term) => Signal::SIGTERM,
            () = received(&mut self.hup) => Signal::SIGHUP,
        }
    }
}

async fn received(signal: &mut Option<unix::Signal>) {
    let received = match signal {
        Some(signal) => signal.recv().await,
        None => None,
    };
    if received.is_none() {
        std::future::pending().await
    }
}

/// The mask of ignored signals in a process's status; bit 0 is signal 1.
fn ignored(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_is_hexadecimal() {
        assert_eq!(ignored("SigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\n"), 0x1001);
        assert_eq!(ignored(""), 0);
    }
}
