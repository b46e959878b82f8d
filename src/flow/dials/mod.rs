//! Dials: new connections at a set rate, each with one question and its first answer.
//!
//! Takes [`DialSpec`]s and a [`Sink`]; gives observations of what dials met ([`Event::Dials`]) with
//! times on the runner's clock, and cheap snapshots for whoever waits. A dial's instant is its start,
//! when its SYN or datagram was sent. Knows nothing of Kubernetes, of the trigger or of fates.
//!
//! [`Event::Dials`]: crate::observation::Event::Dials

mod attempt;
mod engine;
mod ledger;
mod ports;
mod spread;

use std::io;
use std::net::SocketAddr;
use std::num::NonZero;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;

use self::engine::Core;
use super::{WAKE, run_before_others, wait};
use crate::clock::{Stamp, monotonic_ns};
use crate::netns::NetNamespace;
use crate::observation::{Identity, Protocol, Sink};

/// Dials of one protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DialSpec {
    /// What they speak.
    pub protocol: Protocol,
    /// Whom they ask.
    pub remote: SocketAddr,
    /// How many a second, evenly spaced.
    pub per_second: NonZero<u32>,
    /// No answer for this long after its start, and a dial has timed out.
    pub timeout: Duration,
}

/// What the dials of one protocol have met so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DialsState {
    /// What they speak.
    pub protocol: Protocol,
    /// Dials made.
    pub made: u64,
    /// Those that were answered.
    pub accepted: u64,
    /// Those that the cluster failed.
    pub failed: u64,
    /// What the first of those met, in words.
    pub first_failure: Option<String>,
    /// The latest start among them.
    pub last_failed: Option<Stamp>,
    /// Those that failed on this machine.
    pub failed_here: u64,
    /// Why the first of those did.
    pub first_failed_here: Option<String>,
    /// Who answered.
    pub by: Vec<Arc<Identity>>,
    /// The longest that an answer took, nanoseconds.
    pub slowest_ns: i64,
    /// The start of the oldest dial of which it is not known what it meets.
    pub oldest_under_way: Option<Stamp>,
    /// Dials that this machine did not make in their interval.
    pub skipped: u64,
    /// The longest that a dial was made after its time, nanoseconds.
    pub max_late_ns: i64,
}

impl DialsState {
    /// Before the first.
    pub fn new(protocol: Protocol) -> Self {
        Self {
            protocol,
            made: 0,
            accepted: 0,
            failed: 0,
            first_failure: None,
            last_failed: None,
            failed_here: 0,
            first_failed_here: None,
            by: Vec::new(),
            slowest_ns: 0,
            oldest_under_way: None,
            skipped: 0,
            max_late_ns: 0,
        }
    }
}

/// Something to be done by the dials' thread, which owns them.
type Request = Box<dyn FnOnce(&mut Core) + Send>;

/// Dials that are being made. Dropped without [`Dials::finish`], they end all the same.
#[derive(Debug)]
pub struct Dials {
    requests: mpsc::Sender<Request>,
    wake: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

/// Makes dials until [`Dials::finish`]; at most one spec a protocol.
///
/// # Errors
/// The thread that makes them could not be started. A dial that can't be made is no error here: it is
/// observed.
pub fn start(specs: Vec<DialSpec>, sink: Sink) -> io::Result<Dials> {
    start_in(None, specs, sink)
}

/// The same, with sockets of a network namespace; `None` is this program's own.
///
/// # Errors
/// Those of [`start`], and that the namespace can't be entered.
pub fn start_in(
    namespace: Option<NetNamespace>,
    specs: Vec<DialSpec>,
    sink: Sink,
) -> io::Result<Dials> {
    let epoll = Arc::new(Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?);
    let wake = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
    epoll.add(&*wake, EpollEvent::new(EpollFlags::EPOLLIN, WAKE))?;
    let (requests, to_do) = mpsc::channel();
    let (tell, entered) = mpsc::sync_channel(1);
    let thread = {
        let wake = Arc::clone(&wake);
        let serve = move || {
            // The thread opens all dials' sockets, and so it stays there.
            let there = namespace.map_or(Ok(()), |namespace| namespace.enter());
            let is_there = there.is_ok();
            let _ = tell.send(there); // it is waited for below
            if is_there {
                serve(Core::new(specs, &sink, Arc::clone(&epoll)), &epoll, &wake, &to_do);
            }
        };
        std::thread::Builder::new().name("dials".to_owned()).spawn(serve)?
    };
    entered.recv().map_err(io::Error::other)??;
    Ok(Dials { requests, wake, thread: Some(thread) })
}

/// Makes dials until they are stopped and all are known. Opens all of their sockets.
fn serve(mut core: Core, epoll: &Epoll, wake: &EventFd, requests: &mpsc::Receiver<Request>) {
    run_before_others();
    let mut events = [EpollEvent::empty(); 64];
    while !core.is_done() {
        let timeout = core.next_due().map(|due_ns| {
            TimeSpec::from_duration(Duration::from_nanos(
                u64::try_from(due_ns - monotonic_ns()).unwrap_or(0),
            ))
        });
        let ready = match wait(epoll, &mut events, timeout) {
            Ok(ready) => ready,
            Err(Errno::EINTR) => 0,
            // It fails on wrong arguments only, and out of memory: try again, not in a rush.
            Err(_) => {
                std::thread::sleep(Duration::from_millis(10));
                0
            }
        };
        let mut asked = false;
        for event in &events[..ready] {
            match event.data() {
                WAKE => asked = true,
                token => core.ready(token),
            }
        }
        core.tick(ready == events.len());
        if asked {
            // Read before the requests are: one that comes after them wakes again.
            let _ = wake.read();
            requests.try_iter().for_each(|request| request(&mut core));
        }
    }
    core.finish();
}

impl Dials {
    /// What each protocol's dials have met so far; nothing once they have been stopped.
    pub fn states(&self) -> Vec<DialsState> {
        self.ask(|core| core.states()).unwrap_or_default()
    }

    /// An instant is near that no observation of dials may reach across: nothing is told until
    /// [`Dials::release`].
    pub fn hold(&self) {
        // Waited for: what is known a moment later must be held back already.
        let _ = self.ask(Core::hold);
    }

    /// The instant, if it came.
    pub fn release(&self, boundary: Option<&Stamp>) {
        let boundary_ns = boundary.map(|stamp| stamp.ns);
        self.send(move |core| core.release(boundary_ns));
    }

    /// Makes no more dials, and emits what has not been told: all of it is in the sink when this
    /// returns. Waits for those under way, each its timeout at most, or gives them up
    /// (`Unfinished`).
    pub async fn finish(mut self, wait: bool) {
        self.send(move |core| core.stop(wait));
        if let Some(thread) = self.thread.take() {
            // It ends by itself; a panic in it has been told on stderr.
            let _ = tokio::task::spawn_blocking(move || thread.join()).await;
        }
    }

    /// Has the thread do something, and waits for what it gives; `None` once it has ended.
    fn ask<T: Send + 'static>(
        &self,
        what: impl FnOnce(&mut Core) -> T + Send + 'static,
    ) -> Option<T> {
        let (reply, answer) = mpsc::sync_channel(1);
        self.send(move |core| {
            let _ = reply.send(what(core)); // it is waited for below
        });
        answer.recv().ok()
    }

    /// Has the thread do something. One that is gone makes no dials.
    fn send(&self, what: impl FnOnce(&mut Core) + Send + 'static) {
        if self.requests.send(Box::new(what)).is_ok() {
            // An eventfd's counter does not overflow by 1.
            let _ = self.wake.write(1);
        }
    }
}

impl Drop for Dials {
    fn drop(&mut self) {
        self.send(|core| core.stop(false));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
