//! Signals: the first asks the run to end, a second ends the process at once.

use nix::sys::signal::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Tells whether a signal has asked the run to end, and which.
#[derive(Clone, Debug)]
pub struct Stop(watch::Receiver<Option<Signal>>);

impl Stop {
    /// Listens for SIGINT, SIGTERM and SIGHUP from now on. Needs a tokio runtime.
    pub fn listen() -> std::io::Result<Self> {
        let (send, receive) = watch::channel(None);
        let mut int = signal(SignalKind::interrupt())?;
        let mut term = signal(SignalKind::terminate())?;
        let mut hup = signal(SignalKind::hangup())?;
        tokio::spawn(async move {
            loop {
                let caught = tokio::select! {
                    _ = int.recv() => Signal::SIGINT,
                    _ = term.recv() => Signal::SIGTERM,
                    _ = hup.recv() => Signal::SIGHUP,
                };
                if send.borrow().is_some() {
                    // The supervisors see our end of their pipes close and remove the clusters.
                    std::process::exit(128 + caught as i32);
                }
                send.send_replace(Some(caught));
            }
        });
        Ok(Self(receive))
    }

    /// The signal that asked, if one has.
    pub fn asked(&self) -> Option<Signal> {
        *self.0.borrow()
    }

    /// Waits until a signal asks.
    pub async fn wait(&mut self) -> Signal {
        loop {
            if let Some(signal) = *self.0.borrow_and_update() {
                return signal;
            }
            if self.0.changed().await.is_err() {
                // The listener lives as long as the runtime; without it no signal can come.
                std::future::pending::<()>().await;
            }
        }
    }
}

#[cfg(test)]
impl Stop {
    /// One that has been asked by this signal already, or never is.
    pub fn already(signal: Option<Signal>) -> Self {
        Self(watch::channel(signal).1)
    }
}
