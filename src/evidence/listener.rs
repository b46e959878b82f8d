//! The sockets of one node, opened in its network namespace, and what they have told so far.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use nix::sched::{CloneFlags, setns};

use super::netlink::{self, Socket};
use super::packets::{Packet, Packets};
use super::repeats::Repeats;
use super::rules::Rules;
use super::{EvidenceError, Place, Subject};
use crate::clock::Stamp;
use crate::observation::{PacketKind, Seen, Source};

/// What a listener hears, each by a socket of its own.
pub(super) const SOURCES: [Source; 3] =
    [Source::NodeRules, Source::NodeConntrack, Source::NodePackets];

/// One node's sockets.
#[derive(Debug)]
pub(super) struct Listener {
    pub node: String,
    /// Whether this node turns what flows go to into a pod's address.
    translates: bool,
    /// Whether the target runs on it.
    target: bool,
    pub commits: Socket,
    pub rules: Rules,
    /// Since when nothing can be told of the rules, and why.
    pub unread_rules: Option<(Stamp, String)>,
    /// Entries are heard of at the node that translates: what it did with them decides.
    pub entries: Option<Socket>,
    /// Asks for the table there.
    pub table: Option<Socket>,
    pub packets: Packets,
    passed: Repeats,
    /// When each source was last known to have told all.
    pub heard: [Stamp; SOURCES.len()],
}

impl Listener {
    /// Opens the sockets from a thread that enters the node's network namespace and ends: a socket
    /// stays in the namespace that it was opened in.
    pub fn open(place: &Place, subject: &Subject) -> Result<Self, EvidenceError> {
        let failed = |what, source| EvidenceError { node: place.node.clone(), what, source };
        let opened = std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                let namespace = File::open(format!("/proc/{}/ns/net", place.pid))
                    .map_err(|error| failed("its network namespace", error))?;
                setns(namespace, CloneFlags::CLONE_NEWNET)
                    .map_err(|error| failed("its network namespace", error.into()))?;
                let socket = |groups: &[u32]| {
                    Socket::open(groups).map_err(|error| failed("a netlink socket", error))
                };
                let translates = place.node == subject.translator;
                let there = |groups: &[u32]| translates.then(|| socket(groups)).transpose();
                let rules = Rules::open(subject.mode);
                Ok(Self {
                    node: place.node.clone(),
                    translates,
                    target: place.node == subject.pod_node,
                    commits: socket(&[netlink::NFTABLES])?,
                    rules: rules.map_err(|error| failed("a netlink socket", error))?,
                    unread_rules: None,
                    entries: there(&[netlink::CONNTRACK_NEW, netlink::CONNTRACK_DESTROY])?,
                    table: there(&[])?,
                    packets: Packets::open().map_err(|error| failed("a packet socket", error))?,
                    passed: Repeats::default(),
                    heard: [(); SOURCES.len()].map(|()| Stamp::now()),
                })
            });
            inside.join()
        });
        opened.unwrap_or_else(|_| Err(failed("a thread", io::Error::other("it panicked"))))
    }

    /// What is readable when there is something to hear.
    pub fn sockets(&self) -> Vec<&dyn AsFd> {
        let mut sockets: Vec<&dyn AsFd> = vec![&self.commits, &self.packets];
        sockets.extend(self.entries.as_ref().map(|entries| entries as &dyn AsFd));
        sockets
    }

    /// Takes a packet in where it tells more than another that was, or will be, told of: as it comes
    /// from a pod, as it leaves the node that translates, and where a node itself refuses.
    pub fn packet(&mut self, packet: Packet) {
        let from_a_pod = !packet.out && (self.target || !self.translates);
        let refusal = packet.what.kind == PacketKind::Unreachable;
        let made_here = packet.out && refusal && !self.passed.passes(&packet);
        if from_a_pod || packet.out && self.translates || made_here {
            self.passed.add(packet);
        }
    }

    /// The packets.
    pub fn finish(self) -> Vec<Seen> {
        self.passed.finish(&self.node).collect()
    }
}
