//! Flows: long-lived client connections that ask, and tell who answered, from when to when.
//!
//! Takes [`FlowSpec`]s and a [`Sink`]; gives observations of the source [`Source::Flow`] with
//! times on the runner's clock, and cheap snapshots for whoever waits. Knows nothing of
//! Kubernetes, of the trigger or of fates.
//!
//! [`Source::Flow`]: crate::observation::Source::Flow

mod arrival;
mod dial;
pub mod dials;
mod ends;
mod engine;
mod speakers;
mod story;
mod tcp;
mod udp;

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use drainwatch_probe::pace::{self, Pace};
use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;

use crate::clock::{Stamp, monotonic_ns};
use crate::netns::NetNamespace;
use crate::observation::{Identity, Protocol, Sink};

pub use dial::{dial, dial_in};

use self::engine::Core;
use self::story::Story;

/// In epoll, the event that wakes the thread to stop it.
const WAKE: u64 = u64::MAX;
/// In epoll, the event that tells of packets that end flows.
const ENDS: u64 = u64::MAX - 1;

/// One flow to keep up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowSpec {
    /// Unique among the flows: `tcp-1`.
    pub id: String,
    /// What it speaks.
    pub protocol: Protocol,
    /// Whom it asks.
    pub remote: SocketAddr,
    /// Its own port; `None`: one that the kernel chooses.
    pub source_port: Option<u16>,
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
            source_port: None,
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
    start_in(None, specs, sink)
}

/// The same, with sockets of a network namespace; `None` is this program's own.
///
/// # Errors
/// Those of [`start`], and that the namespace can't be entered.
pub fn start_in(
    namespace: Option<NetNamespace>,
    specs: Vec<FlowSpec>,
    sink: Sink,
) -> io::Result<Flows> {
    let epoll = Arc::new(Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?);
    let wake = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
    epoll.add(&*wake, EpollEvent::new(EpollFlags::EPOLLIN, WAKE))?;
    let (requests, to_do) = mpsc::channel();
    let (tell, entered) = mpsc::sync_channel(1);
    let thread = {
        let (core, wake) = (Core::new(specs, sink, Arc::clone(&epoll)), Arc::clone(&wake));
        let serve = move || {
            // The thread opens all flows' sockets, and so it stays there.
            let there = namespace.map_or(Ok(()), |namespace| namespace.enter());
            let is_there = there.is_ok();
            let _ = tell.send(there); // it is waited for below
            if is_there {
                serve(core, &epoll, &wake, &to_do);
            }
        };
        std::thread::Builder::new().name("flows".to_owned()).spawn(serve)?
    };
    entered.recv().map_err(io::Error::other)??;
    Ok(Flows { requests, wake, thread: Some(thread) })
}

/// The lowest of the real-time priorities, in turn with others that have it.
const REAL_TIME: i32 = 1;
/// How much sooner than others the flows' thread gets a processor where it may not have that, as
/// `nice` counts.
const NICE: i32 = -10;

/// Has this thread run before others. A cluster that starts a pod keeps every processor of a small
/// machine busy; heartbeats and answers that wait for one would be measured as the network's delay.
/// `nice` counts among the processes of a session only, where the kernel groups them by session.
fn run_before_others() {
    let priority = libc::sched_param { sched_priority: REAL_TIME };
    // SAFETY: `priority` outlives the call; 0 is the calling thread.
    let done = unsafe { libc::sched_setscheduler(0, libc::SCHED_RR, &raw const priority) };
    if done != 0 {
        // SAFETY: takes numbers only; 0 is the calling thread. Where it is not allowed, the
        // counters tell how late heartbeats were all the same.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
    }
}

/// How many flows are looked at before those that are ready have their turn again.
const AT_ONCE: usize = 256;

/// Something to be done by the flows' thread. It owns the flows: under a lock, whoever looks at
/// them and loses its processor would keep answers waiting until it has one again.
type Request = Box<dyn FnOnce(&mut Core) + Send>;

/// Serves the flows until they are stopped.
fn serve(mut core: Core, epoll: &Epoll, wake: &EventFd, requests: &mpsc::Receiver<Request>) {
    run_before_others();
    core.listen_for_ends(ENDS);
    let mut events = [EpollEvent::empty(); 256];
    let mut pace = Pace::default();
    while !core.stopped {
        if pace.is_busy(monotonic_ns()) {
            core.gathered();
            std::thread::sleep(pace::GATHER);
        }
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
                ENDS => core.shared.hear(),
                index => core.ready(usize::try_from(index).unwrap_or(usize::MAX), event.events()),
            }
        }
        core.tick();
        if asked {
            // Read before the requests are: one that comes after them wakes again.
            let _ = wake.read();
            requests.try_iter().for_each(|request| request(&mut core));
        }
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

/// Flows that are kept up. Dropped without [`Flows::finish`], they end all the same.
#[derive(Debug)]
pub struct Flows {
    requests: mpsc::Sender<Request>,
    wake: Arc<EventFd>,
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
    /// Those of them that were datagrams.
    pub datagrams: u64,
    /// How often answers were gathered before they were read, up to half a millisecond later.
    pub gathered: u64,
    /// Answers that the kernel did not stamp, or whose stamp could not be converted: their times are
    /// those of the reading.
    pub unstamped: u64,
    /// The longest that an answer had lain unread, nanoseconds: so much later than they were are times
    /// that are only read.
    pub max_unread_ns: i64,
    /// Answers counted in spans.
    pub answered: u64,
    /// Answers of an instance that another one had already followed.
    pub late: u64,
    /// Frames and datagrams that were none of ours.
    pub stray: u64,
    /// Heartbeats that this machine did not send in their interval: too late, or its buffers full. Since
    /// what was overdue was last left out, as the longest delay is.
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
            let over = deadline <= tokio::time::Instant::now();
            let answered = self.ask(move |core| {
                let missing = || core.stories().filter(|story| !story.was_answered());
                if missing().next().is_none() {
                    return Some(Ok(()));
                }
                let hopeless = over || missing().all(Story::has_ended);
                hopeless.then(|| Err(missing().map(Story::why_not_answered).collect()))
            });
            if let Some(answered) = answered {
                return answered;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// What each flow is at, in the order of the specs.
    pub fn states(&self) -> Vec<FlowState> {
        let mut states = Vec::new();
        for part in 0.. {
            // In parts: to look at thousands must not keep answers waiting for all of them.
            let some =
                self.ask(move |core| core.states(part * AT_ONCE, AT_ONCE).collect::<Vec<_>>());
            let last = some.len() < AT_ONCE;
            states.extend(some);
            if last {
                break;
            }
        }
        states
    }

    /// Looks at what the flows' sockets have dropped since they were last looked at. Told is what
    /// moved; all are looked at once more when they are finished.
    pub fn look_for_drops(&self) {
        let mut part = 0;
        while self.ask(move |core| core.look_for_drops(part * AT_ONCE, AT_ONCE)) {
            part += 1;
        }
    }

    /// Has flows leave out the heartbeats that are overdue by now. To be called when they are open: to open
    /// thousands keeps a small machine from sending, which says nothing of how it keeps up from then on.
    pub fn leave_overdue(&self) {
        self.ask(Core::leave_overdue);
    }

    /// How the clocks of the pods that answered relate to the runner's, one entry a pod.
    pub fn clock_samples(&self) -> Vec<ClockSample> {
        self.ask(|core| core.shared.speakers.clock_samples())
    }

    /// Sums over all flows.
    pub fn counters(&self) -> Counters {
        self.ask(|core| core.shared.counters)
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
        // A thread that is gone serves no flows.
        let _ = self.send(Core::stop);
    }

    /// Has the flows' thread do something, and waits for what it gives.
    fn ask<T: Send + 'static>(&self, what: impl FnOnce(&mut Core) -> T + Send + 'static) -> T {
        let (reply, answer) = mpsc::sync_channel(1);
        let sent = self.send(move |core| {
            let _ = reply.send(what(core)); // it is waited for below
        });
        // While there are `Flows`, the thread ends by a panic only, which it has told: here it goes on.
        sent.and_then(|()| answer.recv().ok()).expect("the flows' thread has not panicked")
    }

    fn send(&self, what: impl FnOnce(&mut Core) + Send + 'static) -> Option<()> {
        self.requests.send(Box::new(what)).ok()?;
        // An eventfd's counter does not overflow by 1.
        let _ = self.wake.write(1);
        Some(())
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
