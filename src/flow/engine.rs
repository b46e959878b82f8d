//! The thread that serves all flows: when a heartbeat is due, and which socket is ready.
//!
//! Takes the specs and owns the sockets; each flow's own part is in [`super::tcp`],
//! [`super::udp`] and [`super::story`]. One thread of its own, not the runtime's: the time at
//! which an answer is read must not depend on what else the runner does.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use drainwatch_probe::wire::Answer;
use nix::libc;
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags, EpollTimeout};
use socket2::Socket;

use super::arrival::{Arrival, Met, Room};
use super::ends::Ends;
use super::speakers::Speakers;
use super::story::{Counted, End, Refusal, Story};
use super::{Counters, FlowSpec, FlowState, tcp, udp};
use crate::clock::{WallClock, monotonic_ns};
use crate::observation::{Protocol, Sink};

/// The most that a heartbeat goes out before its time, nanoseconds.
const EARLY_NS: i64 = 2_000_000;

/// Flows are opened one after another, this far apart: a backlog of connects that is too long
/// for the app would be measured as delay.
const OPENING_PACE_NS: i64 = 200_000;
/// Heartbeats sent in one go, before what has arrived is read.
const SENDS_AT_ONCE: usize = 128;

/// All flows and what they share.
#[derive(Debug)]
pub struct Core {
    flows: Vec<Flow>,
    pub shared: Shared,
    epoll: Arc<Epoll>,
    /// When each flow wants to be opened or to send next.
    due: BinaryHeap<Reverse<(i64, usize)>>,
    room: Room,
    pub stopped: bool,
}

/// What flows share.
#[derive(Debug)]
pub struct Shared {
    pub sink: Sink,
    pub speakers: Speakers,
    pub counters: Counters,
    /// What the kernel's stamps of arrivals are converted by.
    pub wall: WallClock,
    /// When packets arrived that end flows, where they may be heard.
    ends: Option<Ends>,
}

#[derive(Debug)]
struct Flow {
    /// In its frames: its index, and what tells it from other runs' flows.
    number: u64,
    protocol: Protocol,
    remote: SocketAddr,
    source_port: Option<u16>,
    interval_ns: i64,
    /// Heartbeats are due at this instant and whole intervals after it.
    phase_ns: i64,
    story: Story,
    socket: FlowSocket,
}

#[derive(Debug)]
enum FlowSocket {
    Closed,
    Connecting(tcp::Link),
    Tcp(tcp::Link),
    Udp(udp::Link),
}

impl Shared {
    /// An answer has arrived on the flow with this number.
    pub fn answer(
        &mut self,
        answer: &Answer<'_>,
        arrival: Arrival,
        number: u64,
        story: &mut Story,
    ) {
        let heartbeat = answer.heartbeat;
        // An answer to the port's earlier owner, or to a heartbeat that has not been sent.
        let ours = heartbeat.flow == number && heartbeat.sequence < story.next_sequence();
        // When it was read bounds the clocks' difference in any case; when it arrived, almost.
        let by = ours.then(|| self.speakers.identify(answer, arrival.read_ns)).flatten();
        let Some(by) = by else {
            self.counters.stray += 1;
            return;
        };
        let met = arrival.met(heartbeat.sent_ns, &self.wall);
        if !arrival.is_stamped(heartbeat.sent_ns, &self.wall) {
            self.counters.unstamped += 1;
        }
        self.counters.max_unread_ns = self.counters.max_unread_ns.max(arrival.read_ns - met.at_ns);
        match story.answered(met, heartbeat.sequence, by, &self.sink) {
            Counted::Yes => self.counters.answered += 1,
            Counted::Late => self.counters.late += 1,
            Counted::Duplicate => {}
        }
    }
}

impl Shared {
    /// Takes in what was heard of flows' ends.
    pub fn hear(&mut self) {
        if let Some(ends) = &mut self.ends {
            ends.hear();
        }
    }

    /// When the packet arrived that an end was read off, if it was heard.
    fn heard(&mut self, end: &End, local: Option<SocketAddr>, remote: SocketAddr) -> Option<Met> {
        self.ends.as_mut()?.of(end, local?, remote)
    }
}

impl Core {
    /// The flows, none of them opened yet.
    pub fn new(specs: Vec<FlowSpec>, sink: Sink, epoll: Arc<Epoll>) -> Self {
        let start_ns = monotonic_ns();
        // The upper half is this run's; it only has to differ from those before.
        let run = RandomState::new().hash_one(start_ns) & !u64::from(u32::MAX);
        let flows: Vec<Flow> = specs
            .into_iter()
            .enumerate()
            .map(|(index, spec)| Flow {
                number: run | index as u64,
                protocol: spec.protocol,
                remote: spec.remote,
                source_port: spec.source_port,
                interval_ns: nanoseconds(spec.interval).max(1),
                phase_ns: start_ns + nanoseconds(spec.delay),
                story: Story::new(spec.id.into(), nanoseconds(spec.silent_after)),
                socket: FlowSocket::Closed,
            })
            .collect();
        let due = (0..flows.len())
            .map(|index| Reverse((start_ns + index as i64 * OPENING_PACE_NS, index)))
            .collect();
        let shared = Shared {
            sink,
            speakers: Speakers::default(),
            counters: Counters::default(),
            wall: WallClock::default(),
            ends: None,
        };
        Self { flows, shared, epoll, due, room: Room::new(16 << 10), stopped: false }
    }

    /// Hears, from now on, the packets that end flows; the event of it in epoll is `token`. To be
    /// called in the network namespace of the flows' sockets, before they are opened.
    pub fn listen_for_ends(&mut self, token: u64) {
        self.shared.ends = Ends::listen().filter(|ends| {
            self.epoll.add(ends.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, token)).is_ok()
        });
    }

    /// When something is due next, on the runner's clock.
    pub fn next_due(&self) -> Option<i64> {
        self.due.peek().map(|Reverse((at_ns, _))| *at_ns)
    }

    /// Answers are about to be gathered.
    pub fn gathered(&mut self) {
        self.shared.counters.gathered += 1;
    }

    /// Opens and sends what is due.
    pub fn tick(&mut self) {
        for _ in 0..SENDS_AT_ONCE {
            let now_ns = monotonic_ns();
            let Some(&Reverse((due_ns, index))) = self.due.peek() else { return };
            let flow = &mut self.flows[index];
            if due_ns > now_ns + flow.early_ns() {
                return;
            }
            self.due.pop();
            let next = match flow.socket {
                _ if flow.story.has_ended() => None,
                FlowSocket::Closed => flow.open(index, &self.epoll, &mut self.shared),
                _ => Some(flow.beat(due_ns, now_ns, &mut self.shared)),
            };
            self.due.extend(next.map(|at_ns| Reverse((at_ns, index))));
        }
    }

    /// Leaves out the heartbeats that are overdue now; how far this machine keeps up is counted from here.
    pub fn leave_overdue(&mut self) {
        let now_ns = monotonic_ns();
        let Self { flows, due, .. } = self;
        let next = |Reverse((due_ns, index)): Reverse<(i64, usize)>| match &flows[index] {
            flow if due_ns < now_ns && !matches!(flow.socket, FlowSocket::Closed) => {
                Reverse((flow.next_after(now_ns), index))
            }
            _ => Reverse((due_ns, index)),
        };
        *due = std::mem::take(due).into_iter().map(next).collect();
        let counters = &mut self.shared.counters;
        (counters.skipped, counters.max_late_ns) = (0, 0);
    }

    /// A flow's socket is ready.
    pub fn ready(&mut self, index: usize, events: EpollFlags) {
        let Core { flows, shared, epoll, due, room, .. } = self;
        let Some(flow) = flows.get_mut(index) else { return };
        match &mut flow.socket {
            FlowSocket::Closed => {}
            FlowSocket::Connecting(_) => {
                let next = flow.connected(index, epoll, shared);
                due.extend(next.map(|at_ns| Reverse((at_ns, index))));
            }
            FlowSocket::Tcp(link) => {
                if let Some((met, end)) = link.read(flow.number, &mut flow.story, shared, room) {
                    let heard = shared.heard(&end, link.local(), flow.remote);
                    let met = heard.filter(|heard| heard.at_ns <= met.at_ns).unwrap_or(met);
                    flow.end(met, end, shared);
                }
            }
            FlowSocket::Udp(link) => {
                if events.contains(EpollFlags::EPOLLERR) {
                    link.read_errors(None, &mut flow.story, shared);
                }
                if events.contains(EpollFlags::EPOLLIN) {
                    link.read(flow.number, &mut flow.story, shared, room);
                }
            }
        }
    }

    /// Stops all flows, at this instant.
    pub fn stop(&mut self) {
        // What has arrived by now was seen by now.
        let mut events = [EpollEvent::empty(); 256];
        let epoll = Arc::clone(&self.epoll);
        for _ in 0..=self.flows.len() / events.len() {
            let ready = epoll.wait(&mut events, EpollTimeout::ZERO).unwrap_or(0);
            for event in &events[..ready] {
                self.ready(usize::try_from(event.data()).unwrap_or(usize::MAX), event.events());
            }
        }
        self.look_for_drops(0, self.flows.len());
        self.stopped = true;
        let at_ns = monotonic_ns();
        for flow in &mut self.flows {
            flow.end(Met::done(at_ns), End::Stopped, &self.shared);
        }
    }

    /// What `count` flows are at, from the one with this index.
    pub fn states(&self, from: usize, count: usize) -> impl Iterator<Item = FlowState> {
        let flows = self.flows.iter().skip(from).take(count);
        flows.map(|flow| flow.story.state(flow.protocol))
    }

    /// Tells what the sockets of these flows have dropped; gives whether there are more flows.
    pub fn look_for_drops(&mut self, from: usize, count: usize) -> bool {
        let Self { flows, shared, .. } = self;
        for flow in flows.iter_mut().skip(from).take(count) {
            if let FlowSocket::Udp(link) = &mut flow.socket {
                link.tell_drops(&flow.story, shared);
            }
        }
        from + count < flows.len()
    }

    /// The stories, in the order of the specs.
    pub fn stories(&self) -> impl Iterator<Item = &Story> {
        self.flows.iter().map(|flow| &flow.story)
    }
}

impl Flow {
    /// Opens the socket. Gives when the flow is due next, if that is known already.
    fn open(&mut self, index: usize, epoll: &Epoll, shared: &mut Shared) -> Option<i64> {
        let opened = match self.protocol {
            Protocol::Tcp => tcp::Link::connect(self.remote, self.source_port).and_then(|link| {
                watch(epoll, link.as_fd(), EpollFlags::EPOLLOUT, index)?;
                self.socket = FlowSocket::Connecting(link);
                Ok(None)
            }),
            Protocol::Udp => {
                udp::Link::open(self.remote, self.source_port).and_then(|(link, local)| {
                    watch(epoll, link.as_fd(), EpollFlags::EPOLLIN, index)?;
                    self.socket = FlowSocket::Udp(link);
                    let at_ns = monotonic_ns();
                    self.story.opened(at_ns, local, self.remote, &shared.sink);
                    Ok(Some(self.next_after(at_ns)))
                })
            }
        };
        opened.unwrap_or_else(|error| {
            let at_ns = monotonic_ns();
            match error.raw_os_error().and_then(refusal_of) {
                // No route for now: UDP has no connection that could have failed.
                Some(refusal) if self.protocol == Protocol::Udp => {
                    self.story.refused(Met::done(at_ns), refusal, &shared.sink);
                    Some(self.next_after(at_ns))
                }
                Some(refusal) => {
                    self.end(Met::done(at_ns), End::Refused(refusal), shared);
                    None
                }
                None => {
                    self.end(Met::done(at_ns), End::Failed(error.to_string()), shared);
                    None
                }
            }
        })
    }

    /// The connect has succeeded or failed. Gives when the first heartbeat is due.
    fn connected(&mut self, index: usize, epoll: &Epoll, shared: &mut Shared) -> Option<i64> {
        let socket = std::mem::replace(&mut self.socket, FlowSocket::Closed);
        let FlowSocket::Connecting(mut link) = socket else { return None };
        let result = link.connected();
        let at_ns = monotonic_ns();
        let mut event = EpollEvent::new(EpollFlags::EPOLLIN, index as u64);
        let result = result.and_then(|local| {
            epoll.modify(link.as_fd(), &mut event)?;
            Ok(local)
        });
        match result {
            Ok(local) => {
                self.socket = FlowSocket::Tcp(link);
                if let Some(ends) = &mut shared.ends {
                    ends.await_end(local, self.remote);
                }
                self.story.opened(at_ns, local, self.remote, &shared.sink);
                Some(self.next_after(at_ns))
            }
            Err(error) => {
                let end = error
                    .raw_os_error()
                    .map_or_else(|| End::Failed(error.to_string()), tcp::end_of);
                self.end(Met::read(at_ns), end, shared);
                None
            }
        }
    }

    /// Sends the heartbeat that was due at `due_ns`. Gives when the next one is.
    fn beat(&mut self, due_ns: i64, now_ns: i64, shared: &mut Shared) -> i64 {
        let late_ns = (now_ns - due_ns).max(0);
        shared.counters.max_late_ns = shared.counters.max_late_ns.max(late_ns);
        shared.counters.skipped += u64::try_from(late_ns / self.interval_ns).unwrap_or(0);
        match &mut self.socket {
            FlowSocket::Tcp(link) => link.send(self.number, &mut self.story, shared),
            FlowSocket::Udp(link) => link.send(self.number, &mut self.story, shared),
            FlowSocket::Connecting(_) | FlowSocket::Closed => {}
        }
        self.next_after(now_ns.max(due_ns))
    }

    /// How long before its time a heartbeat may go out with another that is due. Each wake of a
    /// thread costs more than a send: at 20 ms and ten flows this halves them.
    fn early_ns(&self) -> i64 {
        match self.socket {
            FlowSocket::Closed => 0,
            _ => (self.interval_ns / 10).min(EARLY_NS),
        }
    }

    /// The flow's first heartbeat time after `at_ns`.
    fn next_after(&self, at_ns: i64) -> i64 {
        let since_ns = at_ns - self.phase_ns;
        if since_ns < 0 {
            return self.phase_ns;
        }
        self.phase_ns + (since_ns / self.interval_ns + 1) * self.interval_ns
    }

    fn end(&mut self, met: Met, end: End, shared: &Shared) {
        self.socket = FlowSocket::Closed;
        self.story.ended(met, end, &shared.sink);
    }
}

/// The refusal that an error stands for by itself, without an ICMP message to read.
pub fn refusal_of(errno: i32) -> Option<Refusal> {
    let refused = matches!(
        errno,
        libc::ECONNREFUSED
            | libc::EHOSTUNREACH
            | libc::ENETUNREACH
            | libc::EHOSTDOWN
            | libc::ENETDOWN
            | libc::ENONET
            | libc::ENOPROTOOPT
            | libc::EPROTO
    );
    refused.then_some(Refusal {
        port: errno == libc::ECONNREFUSED,
        sender: None,
        icmp_type: None,
        icmp_code: None,
        errno,
    })
}

/// Binds a socket to a port of its own, before it is connected to `remote`.
///
/// # Errors
/// That the port is taken, or not for this program.
pub fn bind(socket: &Socket, port: u16, remote: SocketAddr) -> io::Result<()> {
    let any = match remote {
        SocketAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // Not the bare error: as a flow's end it must say that the port was the matter.
    socket
        .bind(&SocketAddr::new(any, port).into())
        .map_err(|error| io::Error::new(error.kind(), format!("source port {port}: {error}")))
}

fn watch(epoll: &Epoll, fd: BorrowedFd<'_>, events: EpollFlags, index: usize) -> io::Result<()> {
    Ok(epoll.add(fd, EpollEvent::new(events, index as u64))?)
}

fn nanoseconds(duration: std::time::Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX / 4)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use nix::sys::epoll::EpollCreateFlags;

    use super::*;

    #[test]
    fn what_was_overdue_when_all_were_open_is_not_counted_and_what_is_later_is() {
        let peer = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let (interval, remote) = (Duration::from_millis(10), peer.local_addr().unwrap());
        let specs = super::super::specs(Protocol::Udp, 1, remote, interval, interval * 1_000);
        let epoll = Arc::new(Epoll::new(EpollCreateFlags::empty()).unwrap());
        let mut core = Core::new(specs, tokio::sync::mpsc::unbounded_channel().0, epoll);
        while core.shared.counters.sent == 0 {
            core.tick();
        }
        std::thread::sleep(interval * 5);
        let now_ns = monotonic_ns();
        core.leave_overdue();
        assert!(core.next_due().unwrap() >= now_ns);
        assert_eq!(core.shared.counters.skipped, 0);
        let due_ns = core.next_due().unwrap();
        while core.shared.counters.sent == 1 {
            core.tick();
        }
        let late_ns = core.shared.counters.max_late_ns;
        assert!(
            late_ns <= (monotonic_ns() - due_ns).max(0),
            "of what was overdue before: {late_ns}"
        );
        std::thread::sleep(interval * 5);
        core.tick();
        assert!(core.shared.counters.skipped >= 3);
    }
}
