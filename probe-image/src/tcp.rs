//! TCP flows: one thread that serves all connections, and does on SIGTERM what it was told.

use std::io;
use std::net::TcpListener;
use std::num::NonZero;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use drainwatch_probe::log::{LogEvent, Readiness};
use drainwatch_probe::pace::{self, Pace};
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use socket2::Type;

use crate::connection::{Connection, Gone};
use crate::options::{OnSigterm, ServeOptions};
use crate::process::{Moment, Process};
use crate::signals::Sigterm;
use crate::socket;

const LISTENER: u64 = u64::MAX;
const SIGTERM: u64 = u64::MAX - 1;

/// How long a connection that said bye waits for the peer's FIN. Heartbeats that were under way
/// are read in that time: closed over unread data, the connection would be reset.
const LINGER: Duration = Duration::from_millis(250);
/// How many threads reset connections at most.
const RESETTERS: usize = 4;
/// How long to wait for free descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Resets connections by several threads. A reset takes the kernel the time of its RST's whole way
/// to the client; one after another, thousands would measure this program.
fn reset(connections: &[Connection]) {
    let reset = |some: &[Connection]| some.iter().for_each(Connection::reset);
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(RESETTERS);
    let each = connections.len().div_ceil(threads).max(1);
    thread::scope(|scope| {
        let mut parts = connections.chunks(each);
        let own = parts.next().unwrap_or_default();
        for part in parts {
            if thread::Builder::new().spawn_scoped(scope, move || reset(part)).is_err() {
                reset(part);
            }
        }
        reset(own);
    });
}

/// The app's TCP side.
#[derive(Debug)]
pub struct Server {
    process: Arc<Process>,
    sigterm: Sigterm,
    epoll: Epoll,
    listener: Option<TcpListener>,
    /// Nothing is accepted before this instant.
    accept_again: Option<Instant>,
    accept_failed: bool,
    /// By their token in epoll; `None` is free.
    connections: Vec<Option<Connection>>,
    free: Vec<usize>,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Serving,
    /// SIGTERM was ignored.
    Ignoring,
    Draining {
        until: Instant,
        /// It held connections when it began: once they are gone, there is nothing to wait for.
        held_any: bool,
    },
    /// Bye has been said.
    Closing {
        until: Instant,
    },
    Done,
}

impl Server {
    /// Listens on `port` (0: any).
    ///
    /// # Errors
    /// It could not.
    pub fn bind(port: u16, process: Arc<Process>, sigterm: Sigterm) -> io::Result<Self> {
        let socket = socket::bind(Type::STREAM, port)?;
        socket.listen(4096)?;
        socket.set_nonblocking(true)?;
        let listener = TcpListener::from(socket);
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        epoll.add(&listener, EpollEvent::new(EpollFlags::EPOLLIN, LISTENER))?;
        // Edge-triggered: it is never read.
        let edge = EpollFlags::EPOLLIN | EpollFlags::EPOLLET;
        epoll.add(sigterm.wake(), EpollEvent::new(edge, SIGTERM))?;
        Ok(Self {
            process,
            sigterm,
            epoll,
            listener: Some(listener),
            accept_again: None,
            accept_failed: false,
            connections: Vec::new(),
            free: Vec::new(),
            phase: Phase::Serving,
        })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// It does not.
    pub fn port(&self) -> io::Result<u16> {
        let listener = self.listener.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        Ok(listener.local_addr()?.port())
    }

    /// Serves until SIGTERM has been dealt with.
    ///
    /// # Errors
    /// epoll failed.
    pub fn run(mut self, options: &ServeOptions) -> io::Result<()> {
        let mut events = vec![EpollEvent::empty(); 256];
        let mut buffer = vec![0; 64 << 10];
        let mut pace = Pace::default();
        while self.phase != Phase::Done {
            if pace.is_busy(Moment::now().mono_ns) {
                thread::sleep(pace::GATHER);
            }
            let ready = match self.epoll.wait(&mut events, self.timeout()) {
                Ok(ready) => ready,
                Err(Errno::EINTR) => continue,
                Err(error) => return Err(error.into()),
            };
            for event in &events[..ready] {
                // Not only when its own event comes up: with many flows that is late.
                self.check_sigterm(options);
                if self.phase == Phase::Done {
                    break; // the connections that the rest is about are gone
                }
                match event.data() {
                    LISTENER => self.accept(),
                    SIGTERM => {}
                    token => self.serve(token as usize, event.events(), &mut buffer),
                }
            }
            self.check_time();
        }
        Ok(())
    }

    fn held(&self) -> usize {
        self.connections.len() - self.free.len()
    }

    /// How long epoll may wait.
    fn timeout(&self) -> EpollTimeout {
        let phase = match self.phase {
            Phase::Draining { until, .. } | Phase::Closing { until } => Some(until),
            Phase::Serving | Phase::Ignoring | Phase::Done => None,
        };
        let Some(first) = [phase, self.accept_again].into_iter().flatten().min() else {
            return EpollTimeout::NONE;
        };
        // Rounded up, so as not to spin for the rest of the last millisecond.
        let left = first.saturating_duration_since(Instant::now()) + Duration::from_micros(999);
        EpollTimeout::try_from(left).unwrap_or(EpollTimeout::MAX)
    }

    fn accept(&mut self) {
        while self.accept_again.is_none()
            && let Some(listener) = &self.listener
        {
            match listener.accept() {
                Ok((stream, _)) => {
                    // It may be gone again already.
                    if let Ok(connection) = Connection::new(stream) {
                        self.hold(connection);
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(e) if e.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    // Out of descriptors: the listener stays readable, so epoll must forget it
                    // for a while.
                    let _ = self.epoll.delete(listener);
                    self.accept_again = Some(Instant::now() + ACCEPT_PAUSE);
                    if !std::mem::replace(&mut self.accept_failed, true) {
                        let error = error.to_string();
                        self.process.log(Moment::now(), LogEvent::AcceptFailed { error });
                    }
                }
            }
        }
    }

    fn hold(&mut self, connection: Connection) {
        let token = self.free.pop().unwrap_or_else(|| {
            self.connections.push(None);
            self.connections.len() - 1
        });
        let event = EpollEvent::new(EpollFlags::EPOLLIN, token as u64);
        if self.epoll.add(&connection.stream, event).is_ok() {
            self.connections[token] = Some(connection);
        } else {
            self.free.push(token);
        }
    }

    fn serve(&mut self, token: usize, ready: EpollFlags, buffer: &mut [u8]) {
        // It may have gone earlier in the same round.
        let Some(Some(connection)) = self.connections.get_mut(token) else { return };
        let was_stuck = connection.is_stuck();
        let result = if was_stuck && !ready.contains(EpollFlags::EPOLLERR) {
            connection.on_writable()
        } else {
            connection.on_readable(&self.process, buffer)
        };
        self.after(token, was_stuck, result);
    }

    /// Drops a connection that is gone, and has epoll wait for what the others wait for.
    fn after(&mut self, token: usize, was_stuck: bool, result: Result<(), Gone>) {
        let Some(Some(connection)) = self.connections.get(token) else { return };
        let is_stuck = connection.is_stuck();
        let gone = result.is_err()
            || is_stuck != was_stuck && {
                let flags = if is_stuck { EpollFlags::EPOLLOUT } else { EpollFlags::EPOLLIN };
                let mut event = EpollEvent::new(flags, token as u64);
                self.epoll.modify(&connection.stream, &mut event).is_err()
            };
        if gone {
            self.connections[token] = None;
            self.free.push(token);
        }
    }

    fn check_sigterm(&mut self, options: &ServeOptions) {
        let (Phase::Serving, Some(arrived)) = (self.phase, self.sigterm.arrived()) else {
            return;
        };
        match options.on_sigterm {
            OnSigterm::Exit => self.reset_all(arrived),
            OnSigterm::Drain { window } => {
                // Who was let in by the kernel is held, too.
                self.accept();
                self.listener = None;
                self.accept_again = None;
                let flows = self.held() as u64;
                self.phase =
                    Phase::Draining { until: Instant::now() + window, held_any: flows > 0 };
                self.log_sigterm(arrived, options.readiness);
                self.process.log(Moment::now(), LogEvent::DrainStarted { flows });
            }
            OnSigterm::Ignore => {
                self.phase = Phase::Ignoring;
                self.log_sigterm(arrived, options.readiness);
            }
        }
    }

    fn log_sigterm(&self, arrived: Moment, readiness: Readiness) {
        self.process.log(arrived, LogEvent::Sigterm);
        if readiness == Readiness::Fail {
            // It answers so from the instant on at which SIGTERM was noticed.
            self.process.log(arrived, LogEvent::Readyz { status: Readiness::Fail });
        }
    }

    /// Resets all connections at once; only then there is time for the log.
    fn reset_all(&mut self, arrived: Moment) {
        let held = self.connections.drain(..).flatten().collect::<Vec<_>>();
        self.free.clear();
        let flows = held.len() as u64;
        reset(&held);
        let done = Moment::now();
        // The process ends in a moment, and closes them quicker than one call each.
        std::mem::forget(held);
        self.listener = None;
        self.phase = Phase::Done;
        self.process.log(arrived, LogEvent::Sigterm);
        self.process.log(done, LogEvent::ResetForced { flows });
    }

    fn check_time(&mut self) {
        if self.accept_again.is_some_and(|again| again <= Instant::now()) {
            self.accept_again = None;
            if let Some(listener) = &self.listener {
                let event = EpollEvent::new(EpollFlags::EPOLLIN, LISTENER);
                if self.epoll.add(listener, event).is_err() {
                    self.accept_again = Some(Instant::now() + ACCEPT_PAUSE);
                }
            }
        }
        match self.phase {
            Phase::Draining { until, held_any } => {
                let all_gone = held_any && self.held() == 0;
                if all_gone || until <= Instant::now() {
                    self.end_drain(all_gone);
                }
            }
            Phase::Closing { until } if self.held() == 0 || until <= Instant::now() => {
                self.connections.clear();
                self.phase = Phase::Done;
            }
            _ => {}
        }
    }

    fn end_drain(&mut self, all_gone: bool) {
        let (ended, flows) = (Moment::now(), self.held() as u64);
        for token in 0..self.connections.len() {
            if let Some(connection) = &mut self.connections[token] {
                let was_stuck = connection.is_stuck();
                let result = connection.say_bye();
                self.after(token, was_stuck, result);
            }
        }
        self.phase = match self.held() {
            0 => Phase::Done,
            _ => Phase::Closing { until: Instant::now() + LINGER },
        };
        self.process.log(ended, LogEvent::DrainEnded { all_gone, flows });
    }
}
