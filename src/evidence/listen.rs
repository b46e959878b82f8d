//! Listeners in the nodes' kernels: what they say of a Service's flows, from inside the nodes'
//! network namespaces.
//!
//! Takes the nodes, the Service and a [`Sink`]; gives observations of commits of kube-proxy's
//! rules, of entries of the connection tracking table and of packets that end or refuse a flow,
//! with times on the runner's clock. It only listens. Knows nothing of the trigger or of fates.

use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::thread::JoinHandle;

use nix::errno::Errno;
use nix::libc;
use nix::sched::{CloneFlags, setns};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::conntrack;
use super::netlink::{self, Socket};
use super::packets::Packets;
use super::rules::{self, Rules};
use crate::clock::Stamp;
use crate::config::{IpFamily, ProxyMode};
use crate::observation::{Event, Observation, Protocol, Sink, Source};

/// In epoll, the event that wakes the thread to stop it.
const WAKE: u64 = u64::MAX;

/// How much sooner than others this thread gets a processor, as `nice` counts: the time of an event
/// is when it was read.
const NICE: i32 = -10;

/// The Service that the flows go to, and who programs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub service: String,
    /// Its ports.
    pub ports: Vec<SubjectPort>,
    /// Its own address, where that is what the flows go to; `None`: they go to node ports.
    pub cluster_ip: Option<IpAddr>,
    /// The family of its addresses.
    pub ip: IpFamily,
    /// How kube-proxy programs it.
    pub mode: ProxyMode,
}

/// One port of the Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubjectPort {
    /// Its name in the Service.
    pub name: String,
    /// What it carries.
    pub protocol: Protocol,
    /// The port of each node.
    pub node_port: Option<u16>,
    /// The port of the Service's own address.
    pub service_port: u16,
    /// The pods' port.
    pub pod_port: u16,
}

/// A node to listen in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The node's name.
    pub node: String,
    /// A process in its namespaces, as this program sees it.
    pub pid: i32,
}

/// Why a node's kernel could not be listened to.
#[derive(Debug, thiserror::Error)]
#[error("{node}: {what}: {source}")]
pub struct EvidenceError {
    node: String,
    what: &'static str,
    source: io::Error,
}

impl Subject {
    /// Whether a packet or entry that goes to `to` (or comes from `from`) is of this Service.
    pub(super) fn is_of_service(
        &self,
        protocol: Protocol,
        to: SocketAddr,
        from: SocketAddr,
    ) -> bool {
        self.ports.iter().filter(|port| port.protocol == protocol).any(|port| {
            let ports = [port.node_port, Some(port.service_port), Some(port.pod_port)];
            [to, from].iter().any(|end| ports.contains(&Some(end.port())))
        })
    }
}

/// Listeners that stand until [`Evidence::finish`] or until they are dropped.
#[derive(Debug)]
pub struct Evidence {
    wake: EventFd,
    thread: Option<JoinHandle<()>>,
}

/// Opens all listeners; they stand when this returns.
///
/// # Errors
/// A node's namespace could not be entered, or a socket not be opened in it.
pub fn start(places: &[Place], subject: &Subject, sink: &Sink) -> Result<Evidence, EvidenceError> {
    let failed = |what| {
        move |source: io::Error| EvidenceError { node: "the runner".to_owned(), what, source }
    };
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(io::Error::from);
    let epoll = epoll.map_err(failed("no epoll"))?;
    let wake = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK);
    let wake = wake.map_err(io::Error::from).map_err(failed("no eventfd"))?;
    let add = |fd: &dyn AsFd, token| {
        let added = epoll.add(fd.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, token));
        added.map_err(io::Error::from).map_err(failed("epoll"))
    };
    add(&wake, WAKE)?;
    let mut listeners = Vec::new();
    for (index, place) in places.iter().enumerate() {
        let listener = Listener::open(place, subject)?;
        for (source, fd) in listener.sockets().into_iter().enumerate() {
            add(&fd, (index * SOURCES.len() + source) as u64)?;
        }
        listeners.push(listener);
    }
    let mut listening = Listening { listeners, subject: subject.clone(), sink: sink.clone() };
    listening.rules_in_force();
    let thread = std::thread::Builder::new()
        .name("evidence".to_owned())
        .spawn(move || listening.run(&epoll))
        .map_err(failed("no thread"))?;
    Ok(Evidence { wake, thread: Some(thread) })
}

impl Evidence {
    /// Takes in what has been told so far, and ends.
    pub fn finish(mut self) {
        self.stop();
    }

    fn stop(&mut self) {
        let _ = self.wake.write(1);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Evidence {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The sockets of a listener, in the order of their tokens.
const SOURCES: [Source; 3] = [Source::NodeRules, Source::NodeConntrack, Source::NodePackets];

/// One node's sockets.
#[derive(Debug)]
struct Listener {
    node: String,
    commits: Socket,
    rules: Rules,
    entries: Socket,
    packets: Packets,
    /// When each source was last known to have told all.
    heard: [Stamp; SOURCES.len()],
}

impl Listener {
    /// Opens the sockets from a thread that enters the node's network namespace and ends: a socket
    /// stays in the namespace that it was opened in.
    fn open(place: &Place, subject: &Subject) -> Result<Self, EvidenceError> {
        let mode = subject.mode;
        let failed = |what, source| EvidenceError { node: place.node.clone(), what, source };
        let opened = std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                let namespace = File::open(format!("/proc/{}/ns/net", place.pid))
                    .map_err(|error| failed("its network namespace", error))?;
                setns(namespace, CloneFlags::CLONE_NEWNET)
                    .map_err(|error| failed("its network namespace", error.into()))?;
                let groups =
                    [netlink::CONNTRACK_NEW, netlink::CONNTRACK_UPDATE, netlink::CONNTRACK_DESTROY];
                let socket = |groups: &[u32]| {
                    Socket::open(groups).map_err(|error| failed("a netlink socket", error))
                };
                let rules = Rules::open(mode).map_err(|error| failed("a netlink socket", error))?;
                let packets = Packets::open().map_err(|error| failed("a packet socket", error))?;
                let heard = [(); SOURCES.len()].map(|()| Stamp::now());
                let node = place.node.clone();
                let commits = socket(&[netlink::NFTABLES])?;
                Ok(Self { node, commits, rules, entries: socket(&groups)?, packets, heard })
            });
            inside.join()
        });
        opened.unwrap_or_else(|_| Err(failed("a thread", io::Error::other("it panicked"))))
    }

    fn sockets(&self) -> [&dyn AsFd; SOURCES.len()] {
        [&self.commits, &self.entries, &self.packets]
    }
}

/// The thread that reads all sockets.
struct Listening {
    listeners: Vec<Listener>,
    subject: Subject,
    sink: Sink,
}

impl Listening {
    fn run(mut self, epoll: &Epoll) {
        // SAFETY: takes numbers only; 0 is the calling thread. Where it is not allowed, events are
        // read later, and their times are upper bounds all the same.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
        let mut events = [EpollEvent::empty(); 16];
        loop {
            let ready = match epoll.wait(&mut events, EpollTimeout::NONE) {
                Ok(ready) => ready,
                Err(Errno::EINTR) => continue,
                Err(_) => return,
            };
            let stopped = events[..ready].iter().any(|event| event.data() == WAKE);
            // All of them, so that none of them is behind another for long.
            for index in 0..self.listeners.len() {
                self.hear(index);
            }
            if stopped {
                return;
            }
        }
    }
}

impl Listening {
    /// Tells what the rules do before anything has changed.
    fn rules_in_force(&mut self) {
        for index in 0..self.listeners.len() {
            self.rules_after(index, None, Stamp::now());
        }
    }

    /// Takes in all that one node's sockets have.
    fn hear(&mut self, index: usize) {
        self.hear_commits(index);
        self.hear_entries(index);
        self.hear_packets(index);
    }

    fn hear_commits(&mut self, index: usize) {
        loop {
            let mut commits = Vec::new();
            let read = self.listeners[index]
                .commits
                .read(|message| commits.extend(rules::commit(&message)));
            let at = Stamp::now();
            match read {
                Ok(true) => {
                    for commit in &commits {
                        self.rules_after(index, Some(commit), at.clone());
                    }
                }
                Ok(false) => return self.all_heard(index, Source::NodeRules, at),
                Err(error) => {
                    self.gap(index, Source::NodeRules, error);
                    self.rules_after(index, None, Stamp::now());
                    if error != Errno::ENOBUFS {
                        return;
                    }
                }
            }
        }
    }

    fn rules_after(&mut self, index: usize, commit: Option<&rules::Commit>, at: Stamp) {
        let listener = &mut self.listeners[index];
        match listener.rules.after(commit, &self.subject) {
            Ok(changed) => {
                let process = commit.and_then(|commit| commit.process.clone());
                for port in changed.into_iter().flatten() {
                    let event = Event::Rules {
                        node: listener.node.clone(),
                        protocol: port.protocol,
                        endpoints: port.endpoints,
                        reject: port.reject,
                        process: process.clone(),
                    };
                    let _ =
                        self.sink.send(Observation::at_most(at.clone(), Source::NodeRules, event));
                }
            }
            Err(error) => self.gap(index, Source::NodeRules, error),
        }
    }

    fn hear_entries(&mut self, index: usize) {
        loop {
            let listener = &mut self.listeners[index];
            let mut events = Vec::new();
            let read = listener.entries.read(|message| {
                events.extend(conntrack::event(&message, &listener.node, &self.subject));
            });
            let at = Stamp::now();
            match read {
                Ok(true) => {
                    for event in events {
                        let seen = Observation::at_most(at.clone(), Source::NodeConntrack, event);
                        let _ = self.sink.send(seen);
                    }
                }
                Ok(false) => return self.all_heard(index, Source::NodeConntrack, at),
                Err(error) => {
                    self.gap(index, Source::NodeConntrack, error);
                    if error != Errno::ENOBUFS {
                        return;
                    }
                }
            }
        }
    }

    fn hear_packets(&mut self, index: usize) {
        loop {
            let listener = &mut self.listeners[index];
            match listener.packets.next(&self.subject) {
                Ok(Some(packet)) => {
                    let event = Event::Packet {
                        node: listener.node.clone(),
                        interface: packet.interface,
                        out: packet.out,
                        kind: packet.what.kind,
                        protocol: packet.what.protocol,
                        sender: packet.what.sender,
                        from: packet.what.from,
                        to: packet.what.to,
                        icmp_code: packet.what.code,
                    };
                    let place =
                        if packet.stamped { Observation::exact } else { Observation::at_most };
                    let at = Stamp::runner(packet.at_ns);
                    let _ = self.sink.send(place(at, Source::NodePackets, event));
                }
                Ok(None) => {
                    if listener.packets.dropped() > 0 {
                        self.gap(index, Source::NodePackets, Errno::ENOBUFS);
                    }
                    return self.all_heard(index, Source::NodePackets, Stamp::now());
                }
                Err(error) => return self.gap(index, Source::NodePackets, error),
            }
        }
    }

    /// A source has told all that there was at this time.
    fn all_heard(&mut self, index: usize, source: Source, at: Stamp) {
        if let Some(heard) = self.heard(index, source) {
            *heard = at;
        }
    }

    /// Between the last time at which a source had told all and now, events may be missing.
    fn gap(&mut self, index: usize, source: Source, error: Errno) {
        let now = Stamp::now();
        let since = match self.heard(index, source) {
            Some(heard) => std::mem::replace(heard, now.clone()),
            None => now.clone(),
        };
        let reason = match error {
            Errno::ENOBUFS => "the kernel dropped events that were not read in time".to_owned(),
            error => error.desc().to_owned(),
        };
        let node = self.listeners[index].node.clone();
        let gap = Event::EvidenceGap { node, until: now, reason };
        let _ = self.sink.send(Observation::at_most(since, source, gap));
    }

    fn heard(&mut self, index: usize, source: Source) -> Option<&mut Stamp> {
        let place = SOURCES.iter().position(|known| *known == source)?;
        Some(&mut self.listeners[index].heard[place])
    }
}
