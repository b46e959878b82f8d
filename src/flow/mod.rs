//! Flows: long-lived client connections that ask, and tell who answered, from when to when.
//!
//! Takes [`FlowSpec`]s and a [`Sink`]; gives observations of the source [`Source::Flow`] with
//! times on the runner's clock, and cheap snapshots for whoever waits. Knows nothing of
//! Kubernetes, of the trigger or of fates.
//!
//! [`Source::Flow`]: crate::observation::Source::Flow

mod dial;
mod engine;
mod speakers;
mod story;
mod tcp;
mod udp;

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;

use crate::clock::{Stamp, monotonic_ns};
use crate::observation::{Identity, Protocol, Sink};

pub use dial::dial;

use self::engine::Core;
use self::story::Story;

/// In epoll, the event that wakes the thread to stop it.
const WAKE: u64 = u64::MAX;

/// One flow to keep up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowSpec {
    /// Unique among the flows: `tcp-1`.
    pub id: String,
    /// What it speaks.
    pub protocol: Protocol,
    /// Whom it asks.
    pub remote: SocketAddr,
    /// One heartbeat each.
    pub interval: Duration,
    /// No answer for this long is a silence.
    pub silent_after: Duration,
    /// Where in the interval its heartbeats lie, so that flows don't send in step.
    pub delay: Duration,
}

/// `count` flows of one protocol, `tcp-1` and so on, spread evenly over the interval.
pub fn specs(
    protocol: Protocol,
    count: usize,
    remote: SocketAddr,
    interval: Duration,
    silent_after: Duration,
) -> Vec<FlowSpec> {
    let name = match protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
    };
    (0..count)
        .map(|index| FlowSpec {
            id: format!("{name}-{}", index + 1),
            protocol,
            remote,
            interval,
            silent_after,
            delay: interval.mul_f64(index as f64 / count as f64),
        })
        .collect()
}

/// Opens the flows and keeps them up until [`Flows::finish`].
///
/// # Errors
/// The thread that serves them could not be started. A flow that can't be opened is no error
/// here: it is observed (`FlowFailed`, `Refused`, …) and has ended.
pub fn start(specs: Vec<FlowSpec>, sink: Sink) -> io::Result<Flows> {
    let epoll = Arc::new(Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?);
    let wake = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
    epoll.add(&wake, EpollEvent::new(EpollFlags::EPOLLIN, WAKE))?;
    let core = Arc::new(Mutex::new(Core::new(specs, sink, Arc::clone(&epoll))));
    let thread = {
        let core = Arc::clone(&core);
        std::thread::Builder::new().name("flows".to_owned()).spawn(move || serve(&core, &epoll))?
    };
    Ok(Flows { core, wake, thread: Some(thread) })
}

/// How much sooner than others the flows' thread gets a processor, as `nice` counts. A cluster that
/// starts a pod keeps every processor of a small machine busy; heartbeats and answers that wait for
/// one would be measured as the network's delay.
const NICE: i32 = -10;

/// How many flows are looked at before their thread gets its turn again.
const AT_ONCE: usize = 256;

/// Serves the flows until they are stopped.
fn serve(core: &Mutex<Core>, epoll: &Epoll) {
    // SAFETY: takes numbers only; 0 is the calling thread. Where it is not allowed, the counters
    // tell how late heartbeats were all the same.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
    let mut events = [EpollEvent::empty(); 256];
    let mut due = lock(core).next_due();
    loop {
        let timeout = due.map(|due_ns| {
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
        let mut core = lock(core);
        if core.stopped {
            return;
        }
        for event in &events[..ready] {
            core.ready(usize::try_from(event.data()).unwrap_or(usize::MAX), event.events());
        }
        core.tick();
        due = core.next_due();
    }
}

/// Waits for events. The plain call's timeout is in whole milliseconds: all sends of one millisecond
/// would go out together.
fn wait(epoll: &Epoll, events: &mut [EpollEvent], timeout: Option<TimeSpec>) -> nix::Result<usize> {
    let time = timeout.map(|timeout| *timeout.as_ref());
    let time = time.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: `events` is writable for as many `epoll_event`s as it has (`EpollEvent` is one), and
    // `time` is null or points at a `timespec` that outlives the call. No signal mask is given.
    let ready = unsafe {
        libc::syscall(
            libc::SYS_epoll_pwait2,
            epoll.0.as_raw_fd(),
            events.as_mut_ptr(),
            events.len(),
            time,
            ptr::null::<libc::sigset_t>(),
            0usize,
        )
    };
    match Errno::result(ready) {
        Ok(ready) => Ok(usize::try_from(ready).unwrap_or(0)),
        // Kernels before 5.11, and filters that don't know it: the same by two calls.
        Err(Errno::ENOSYS | Errno::EPERM) => {
            ppoll(&mut [PollFd::new(epoll.0.as_fd(), PollFlags::POLLIN)], timeout, None)?;
            epoll.wait(events, EpollTimeout::ZERO)
        }
        Err(error) => Err(error),
    }
}

/// A panic elsewhere does not make what the flows have seen less true.
fn lock(core: &Mutex<Core>) -> MutexGuard<'_, Core> {
    core.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Flows that are kept up. Dropped without [`Flows::finish`], they end all the same.
#[derive(Debug)]
pub struct Flows {
    core: Arc<Mutex<Core>>,
    wake: EventFd,
    thread: Option<JoinHandle<()>>,
}

/// What a flow is at now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowState {
    /// Its id.
    pub id: Arc<str>,
    /// What it speaks.
    pub protocol: Protocol,
    /// Who answered first.
    pub first: Option<Arc<Identity>>,
    /// Who answered last.
    pub current: Option<Arc<Identity>>,
    /// When the last answer arrived.
    pub last_answer: Option<Stamp>,
    /// Heartbeats sent since the last answer arrived.
    pub unanswered: u64,
    /// Refused or unreachable, since the last answer arrived.
    pub refusals: u64,
    /// Something failed here, not at the peer; the flow may go on.
    pub failed: bool,
    /// Its socket is done for: closed, reset, timed out or failed. UDP only ends by failing here.
    pub ended: bool,
}

/// A flow that has not been answered in time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotAnswered {
    /// Its id.
    pub flow: String,
    /// What it met instead.
    pub why: String,
}

/// How one pod's clock relates to the runner's, from the round trips of the flows that it answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClockSample {
    /// The pod's UID.
    pub uid: String,
    /// Its kernel's boot id; `None` where the pod could not read it. When it equals the runner's,
    /// `CLOCK_MONOTONIC` is one clock and the rest of this is of no importance.
    pub boot_id: Option<String>,
    /// The shortest round trip of the first second in which it answered.
    pub first: RoundTrip,
    /// The shortest round trip of the last seconds in which it answered (at most two).
    pub latest: RoundTrip,
}

/// A heartbeat and its answer, as a bound on the difference of two clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundTrip {
    /// When the answer arrived, on the runner's clock, nanoseconds.
    pub at_ns: i64,
    /// The pod's `CLOCK_MONOTONIC` less the runner's, nanoseconds.
    pub offset_ns: i64,
    /// The truth is within this of `offset_ns`: half the round trip.
    pub plus_minus_ns: i64,
}

/// Sums over all flows since [`start`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Heartbeats sent.
    pub sent: u64,
    /// Answers counted in spans.
    pub answered: u64,
    /// Answers of an instance that another one had already followed.
    pub late: u64,
    /// Frames and datagrams that were none of ours.
    pub stray: u64,
    /// Heartbeats that this machine did not send in their interval: too late, or its buffers full.
    pub skipped: u64,
    /// Datagrams that had arrived and that flows' own sockets dropped, as far as they were looked at.
    pub dropped: u64,
    /// Heartbeats that the peer's or the network's error kept from being sent.
    pub failed: u64,
    /// The longest that a heartbeat was sent after its time, nanoseconds: how far this machine
    /// kept up.
    pub max_late_ns: i64,
}

impl Flows {
    /// Waits until each flow has been answered.
    ///
    /// # Errors
    /// `timeout` is over, or no flow is left that could still be answered: those that were not.
    pub async fn all_answered(&self, timeout: Duration) -> Result<(), Vec<NotAnswered>> {
        let deadline = tokio::time::Instant::now() + timeout;
        loop {
            {
                let core = lock(&self.core);
                let missing = || core.stories().filter(|story| !story.was_answered());
                if missing().next().is_none() {
                    return Ok(());
                }
                if missing().all(Story::has_ended) || deadline <= tokio::time::Instant::now() {
                    return Err(missing().map(Story::why_not_answered).collect());
                }
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// What each flow is at, in the order of the specs.
    pub fn states(&self) -> Vec<FlowState> {
        let mut states = Vec::new();
        for part in 0.. {
            // In parts: whoever looks at thousands must not keep answers waiting for all of them.
            let core = lock(&self.core);
            let before = states.len();
            states.extend(core.states(part * AT_ONCE, AT_ONCE));
            if states.len() - before < AT_ONCE {
                break;
            }
        }
        states
    }

    /// Looks at what the flows' sockets have dropped since they were last looked at. Told is what
    /// moved; all are looked at once more when they are finished.
    pub fn look_for_drops(&self) {
        let mut part = 0;
        while lock(&self.core).look_for_drops(part * AT_ONCE, AT_ONCE) {
            part += 1;
        }
    }

    /// How the clocks of the pods that answered relate to the runner's, one entry a pod.
    pub fn clock_samples(&self) -> Vec<ClockSample> {
        lock(&self.core).shared.speakers.clock_samples()
    }

    /// Sums over all flows.
    pub fn counters(&self) -> Counters {
        lock(&self.core).shared.counters
    }

    /// Stops all flows, and emits what was still open: spans, silences, refusals, and
    /// `FlowStopped` for each flow that had not ended by itself. All of it is in the sink when
    /// this returns.
    pub async fn finish(mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            // It ends with its present round; a panic in it has been told on stderr.
            let _ = tokio::task::spawn_blocking(move || thread.join()).await;
        }
    }

    fn stop(&self) {
        lock(&self.core).stop();
        // An eventfd's counter does not overflow by 1.
        let _ = self.wake.write(1);
    }
}

impl Drop for Flows {
    fn drop(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
