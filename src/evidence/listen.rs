//! Listeners in the nodes' kernels: what they say of a Service's flows, from inside the nodes'
//! network namespaces, and of containers' processes.
//!
//! Takes the nodes, the Service, processes and a [`Sink`]; gives observations of commits of
//! kube-proxy's rules, of entries of the connection tracking table, of packets that end or refuse a
//! flow and of processes' ends, with times on the runner's clock. Packets are told of at the end, each
//! kind once with how often it was repeated. It only listens. Knows nothing of the trigger or of fates.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use nix::errno::Errno;
use nix::libc;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::listener::{Listener, SOURCES};
use super::processes::{Awaited, Process};
use super::{conntrack, rules};
use crate::clock::Stamp;
use crate::config::{IpFamily, ProxyMode};
use crate::observation::{Event, Observation, Protocol, Sink, Source};

/// In epoll, the event that wakes the thread.
const WAKE: u64 = u64::MAX;
/// In epoll, the events of processes begin here.
const PROCESSES: u64 = 1 << 32;

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
    /// The node that turns what the flows go to into a pod's address: their entries are in its table.
    pub translator: String,
    /// The node that the target runs on.
    pub pod_node: String,
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
    pub(super) node: String,
    pub(super) what: &'static str,
    pub(super) source: io::Error,
}

impl Subject {
    /// Whether a packet or entry that goes to `to` (or comes from `from`) is of this Service.
    pub(super) fn is_of_service(
        &self,
        protocol: Protocol,
        to: SocketAddr,
        from: SocketAddr,
    ) -> bool {
        self.is_service(protocol, to) || self.is_service(protocol, from)
    }

    /// Whether this end of a flow is the Service's or one of its pods'.
    pub(super) fn is_service(&self, protocol: Protocol, end: SocketAddr) -> bool {
        let mut ports = self.ports.iter().filter(|port| port.protocol == protocol);
        ports.any(|port| {
            let ports = [port.node_port, Some(port.service_port), Some(port.pod_port)];
            ports.contains(&Some(end.port()))
        })
    }
}

/// Listeners that stand until [`Evidence::finish`] or until they are dropped.
#[derive(Debug)]
pub struct Evidence {
    orders: Arc<Mutex<Orders>>,
    wake: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread is told.
#[derive(Debug, Default)]
struct Orders {
    /// Processes to wait for.
    await_ends: Vec<Awaited>,
    stop: bool,
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
    let wake = Arc::new(wake.map_err(io::Error::from).map_err(failed("no eventfd"))?);
    let add = |fd: &dyn AsFd, token| {
        let added = epoll.add(fd.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, token));
        added.map_err(io::Error::from).map_err(failed("epoll"))
    };
    add(&wake, WAKE)?;
    let mut listeners = Vec::new();
    for (index, place) in places.iter().enumerate() {
        let listener = Listener::open(place, subject)?;
        for fd in listener.sockets() {
            add(&fd, index as u64)?;
        }
        listeners.push(listener);
    }
    let mut listening = Listening {
        epoll,
        wake: wake.clone(),
        orders: Arc::default(),
        listeners,
        processes: Vec::new(),
        subject: subject.clone(),
        sink: sink.clone(),
    };
    let orders = listening.orders.clone();
    listening.rules_in_force();
    let thread = std::thread::Builder::new()
        .name("evidence".to_owned())
        .spawn(move || listening.run())
        .map_err(failed("no thread"))?;
    Ok(Evidence { orders, wake, thread: Some(thread) })
}

impl Evidence {
    /// Waits, from now on, for the end of a process; `is_still_there` says whether its id was not
    /// another's by the time that there was a descriptor for it.
    ///
    /// # Errors
    /// It has gone already, or this kernel gives no descriptors for processes (before 5.3).
    pub fn await_end(
        &self,
        process: Process,
        is_still_there: impl FnOnce() -> bool,
    ) -> io::Result<()> {
        let awaited = Awaited::open(process)?;
        if !is_still_there() {
            return Err(Errno::ESRCH.into());
        }
        self.order(|orders| orders.await_ends.push(awaited));
        Ok(())
    }

    /// Takes in what has been told so far, tells it, and ends.
    pub fn finish(mut self) {
        self.stop();
    }

    fn order(&self, order: impl FnOnce(&mut Orders)) {
        // Nothing that holds the lock can leave half an order behind.
        order(&mut self.orders.lock().unwrap_or_else(PoisonError::into_inner));
        let _ = self.wake.write(1);
    }

    fn stop(&mut self) {
        self.order(|orders| orders.stop = true);
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

/// The thread that reads all sockets.
struct Listening {
    epoll: Epoll,
    wake: Arc<EventFd>,
    orders: Arc<Mutex<Orders>>,
    listeners: Vec<Listener>,
    processes: Vec<Awaited>,
    subject: Subject,
    sink: Sink,
}

impl Listening {
    fn run(mut self) {
        // SAFETY: takes numbers only; 0 is the calling thread. Where it is not allowed, events are
        // read later, and their times are upper bounds all the same.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
        let mut events = [EpollEvent::empty(); 16];
        let mut stopped = false;
        while !stopped {
            let ready = match self.epoll.wait(&mut events, EpollTimeout::NONE) {
                Ok(ready) => ready,
                Err(Errno::EINTR) => continue,
                Err(_) => break,
            };
            let at = Stamp::now();
            for event in &events[..ready] {
                match event.data() {
                    WAKE => stopped = self.take_orders(),
                    token if token >= PROCESSES => {
                        self.look(token - PROCESSES, event.events(), at.clone());
                    }
                    _ => {}
                }
            }
            // All of them, so that none of them is behind another for long.
            for index in 0..self.listeners.len() {
                self.hear(index);
            }
        }
        self.tell_the_rest();
    }

    /// Takes over the processes to wait for; gives whether to stop.
    fn take_orders(&mut self) -> bool {
        let _ = self.wake.read();
        let orders =
            std::mem::take(&mut *self.orders.lock().unwrap_or_else(PoisonError::into_inner));
        for awaited in orders.await_ends {
            // Told of changes only: one that has ended would wake this thread for ever.
            let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLET;
            let token = PROCESSES + self.processes.len() as u64;
            let _ = self.epoll.add(&awaited, EpollEvent::new(flags, token));
            self.processes.push(awaited);
        }
        orders.stop
    }

    fn look(&mut self, process: u64, flags: EpollFlags, at: Stamp) {
        let awaited = usize::try_from(process).ok().and_then(|i| self.processes.get_mut(i));
        if let Some(end) = awaited.and_then(|awaited| awaited.look(flags, at)) {
            let _ = self.sink.send(end);
        }
    }

    /// Tells all that was not told as it came: that the nodes' tables still hold, too.
    fn tell_the_rest(mut self) {
        for index in 0..self.listeners.len() {
            self.entries_that_stand(index);
            if let Some((since, reason)) = self.listeners[index].unread_rules.take() {
                self.tell_gap(index, Source::NodeRules, since, Stamp::now(), reason);
            }
        }
        let ends = self.processes.iter_mut().filter_map(Awaited::finish);
        let packets = self.listeners.into_iter().flat_map(Listener::finish);
        for seen in ends.chain(packets) {
            let _ = self.sink.send(seen);
        }
    }

    fn entries_that_stand(&mut self, index: usize) {
        let listener = &mut self.listeners[index];
        let Some(table) = &mut listener.table else { return };
        // Where it can't be read, that an entry stands is not known; what was told of ends still holds.
        let entries = conntrack::standing(table, &listener.node, &self.subject).unwrap_or_default();
        self.tell_entries(entries);
    }
}

impl Listening {
    fn tell_entries(&self, events: Vec<Event<Stamp>>) {
        let at = Stamp::now();
        for event in events {
            let seen = Observation::at_most(at.clone(), Source::NodeConntrack, event);
            let _ = self.sink.send(seen);
        }
    }

    /// Tells what the rules do before anything has changed. They lead to the target then: rules that lead
    /// nowhere are of a form that is not known here, and nothing is told of them but that.
    fn rules_in_force(&mut self) {
        for index in 0..self.listeners.len() {
            let (listener, at) = (&mut self.listeners[index], Stamp::now());
            let read = listener.rules.after(None, &self.subject);
            let read = read.map_err(|error| error.desc().to_owned());
            match read.and_then(|rules| rules::of_known_form(rules.unwrap_or_default())) {
                Ok(rules) => self.tell_rules(index, rules, None, &at),
                Err(reason) => listener.unread_rules = Some((at, reason)),
            }
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
        if listener.unread_rules.is_some() {
            return;
        }
        match listener.rules.after(commit, &self.subject) {
            Ok(changed) => {
                let process = commit.and_then(|commit| commit.process.as_deref());
                self.tell_rules(index, changed.unwrap_or_default(), process, &at);
            }
            Err(error) => self.gap(index, Source::NodeRules, error),
        }
    }

    fn tell_rules(
        &self,
        index: usize,
        rules: Vec<rules::PortRules>,
        process: Option<&str>,
        at: &Stamp,
    ) {
        for port in rules {
            let event = Event::Rules {
                node: self.listeners[index].node.clone(),
                protocol: port.protocol,
                endpoints: port.endpoints,
                reject: port.reject,
                process: process.map(str::to_owned),
            };
            let _ = self.sink.send(Observation::at_most(at.clone(), Source::NodeRules, event));
        }
    }

    fn hear_entries(&mut self, index: usize) {
        loop {
            let listener = &mut self.listeners[index];
            let Some(entries) = &mut listener.entries else { return };
            let mut told = Vec::new();
            let read = entries.read(|message| {
                told.extend(conntrack::event(&message, &listener.node, &self.subject));
            });
            match read {
                Ok(true) => self.tell_entries(told),
                Ok(false) => return self.all_heard(index, Source::NodeConntrack, Stamp::now()),
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
                Ok(Some(packet)) => listener.packet(packet),
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
        self.tell_gap(index, source, since, now, reason);
    }

    fn tell_gap(&self, index: usize, source: Source, since: Stamp, until: Stamp, reason: String) {
        let node = self.listeners[index].node.clone();
        let gap = Event::EvidenceGap { node, until, reason };
        let _ = self.sink.send(Observation::at_most(since, source, gap));
    }

    fn heard(&mut self, index: usize, source: Source) -> Option<&mut Stamp> {
        let place = SOURCES.iter().position(|known| *known == source)?;
        Some(&mut self.listeners[index].heard[place])
    }
}
