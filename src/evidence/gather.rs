//! What a node's kernel tells of many flows, gathered into few observations, so that a record
//! grows little with flows and not with packets.
//!
//! Takes entries and packets, each with its time; gives observations at the end. Loses no time: each
//! entry and each packet that is not a repeated one keeps its own.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, SocketAddr};

use super::conntrack::{self, Told};
use super::packets::{Packet, What};
use crate::clock::Stamp;
use crate::observation::{
    Entry, Event, Observation, PacketKind, Passed, Protocol, Seen, Source,
};

/// What is of one kind stands in one observation, unless this much time lies between.
const APART_NS: i64 = 1_000_000_000;
/// A packet is a repeated one where less than this has gone by. (The ICMP limiter lets one a second
/// pass.)
const REPEATED_NS: i64 = 2_000_000_000;
/// A packet passes a node in less than this.
const PASSING_NS: i64 = 10_000_000;

/// What one node's kernel has told.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    entries: Vec<(conntrack::Group, Entry<Stamp>)>,
    packets: Vec<(Kind, Passed<Stamp>)>,
    /// Where in `packets` the last of this kind and these ends stands.
    last: HashMap<(Kind, SocketAddr, SocketAddr), usize>,
    /// When a packet last came in.
    came_in: HashMap<What, i64>,
}

/// What packets that are told of together have in common.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Kind {
    interface: String,
    out: bool,
    kind: PacketKind,
    protocol: Protocol,
    sender: IpAddr,
    code: Option<u8>,
}

impl Gathered {
    /// Takes in what was told of an entry.
    pub fn entry(&mut self, told: Told, at: Stamp) {
        let Told { of, client, answers_to, assured } = told;
        self.entries.push((of, Entry { at, client, answers_to, assured }));
    }

    /// Takes in a packet. One like another of a moment ago is counted with it.
    pub fn packet(&mut self, packet: Packet) {
        let Packet { at_ns, interface, out, what } = packet;
        let at = Stamp::runner(at_ns);
        if !out {
            self.came_in.insert(what, at_ns);
        }
        let kind = Kind {
            interface,
            out,
            kind: what.kind,
            protocol: what.protocol,
            sender: what.sender,
            code: what.code,
        };
        let index = self.packets.len();
        let last = self.last.entry((kind.clone(), what.from, what.to)).or_insert(index);
        if let Some((_, before)) = self.packets.get_mut(*last)
            && at_ns - before.until.as_ref().unwrap_or(&before.at).ns < REPEATED_NS
        {
            before.count += 1;
            before.until = Some(at);
            return;
        }
        *last = index;
        let passed = Passed { at, from: what.from, to: what.to, count: 1, until: None };
        self.packets.push((kind, passed));
    }

    /// Whether a packet that leaves has just come in, and only passes this node.
    pub fn passes(&self, packet: &Packet) -> bool {
        let came_in = self.came_in.get(&packet.what);
        packet.out && came_in.is_some_and(|at_ns| packet.at_ns - at_ns < PASSING_NS)
    }

    /// All of it, as observations.
    pub fn finish(self, node: &str) -> Vec<Seen> {
        let entries = groups(self.entries, |entry| entry.at.ns).into_iter().map(|(of, entries)| {
            let conntrack::Group { change, protocol, to, answered_by, by } = of;
            let at = entries[0].at.clone();
            let node = node.to_owned();
            let event = Event::Conntrack { node, change, protocol, to, answered_by, by, entries };
            Observation::at_most(at, Source::NodeConntrack, event)
        });
        let packets = groups(self.packets, |packet| packet.at.ns).into_iter().map(|(of, packets)| {
            let at = packets[0].at.clone();
            let event = Event::Packets {
                node: node.to_owned(),
                interface: of.interface,
                out: of.out,
                kind: of.kind,
                protocol: of.protocol,
                sender: of.sender,
                icmp_code: of.code,
                packets,
            };
            Observation::exact(at, Source::NodePackets, event)
        });
        entries.chain(packets).collect()
    }
}

/// What is of one kind, in the order of time, parted where there is much time between two. No group
/// is empty.
fn groups<K: Ord, V>(mut all: Vec<(K, V)>, at_ns: impl Fn(&V) -> i64) -> Vec<(K, Vec<V>)> {
    all.sort_by(|(a, x), (b, y)| a.cmp(b).then(at_ns(x).cmp(&at_ns(y))));
    let mut groups: Vec<(K, Vec<V>)> = Vec::new();
    for (kind, value) in all {
        match groups.last_mut() {
            Some((last, group))
                if *last == kind
                    && group.last().is_some_and(|v| at_ns(&value) - at_ns(v) < APART_NS) =>
            {
                group.push(value);
            }
            _ => groups.push((kind, vec![value])),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::{DestroyedBy, EntryChange};

    const MS: i64 = 1_000_000;

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn refusal(ms: i64, out: bool, from: &str) -> Packet {
        let what = What {
            kind: PacketKind::Unreachable,
            protocol: Protocol::Udp,
            sender: "10.244.1.2".parse().unwrap(),
            from: at(from),
            to: at("10.244.1.2:7002"),
            code: Some(3),
        };
        Packet { at_ns: ms * MS, interface: "veth1".into(), out, what }
    }

    fn destroyed(client: &str, by: DestroyedBy) -> Told {
        let of = conntrack::Group {
            change: EntryChange::Destroy,
            protocol: Protocol::Udp,
            to: at("10.231.0.11:30072"),
            answered_by: at("10.244.1.2:7002"),
            by: Some(by),
        };
        let answers_to = at("10.231.0.11:61000");
        Told { of, client: at(client), answers_to, assured: None }
    }

    #[test]
    fn packets_that_are_repeated_are_counted_and_the_first_and_last_keep_their_times() {
        let mut gathered = Gathered::default();
        for ms in [0, 20, 40, 60, 5_000] {
            gathered.packet(refusal(ms, false, "10.0.0.1:4000"));
        }
        gathered.packet(refusal(30, false, "10.0.0.1:4001"));
        let seen = gathered.finish("node-2");
        let told: Vec<_> = (seen.iter())
            .map(|seen| match &seen.event {
                Event::Packets { packets, .. } => {
                    let until = |p: &Passed<Stamp>| p.until.as_ref().map(|until| until.ns / MS);
                    packets.iter().map(|p| (p.at.ns / MS, p.count, until(p))).collect::<Vec<_>>()
                }
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(told, [vec![(0, 4, Some(60)), (30, 1, None)], vec![(5_000, 1, None)]]);
    }

    #[test]
    fn entries_are_told_together_where_only_the_client_differs() {
        let mut gathered = Gathered::default();
        for port in 4000..5000 {
            let client = format!("10.0.0.1:{port}");
            let at = Stamp::runner(i64::from(port) * MS);
            gathered.entry(destroyed(&client, DestroyedBy::Process), at);
        }
        let by_kernel = destroyed("10.0.0.2:1", DestroyedBy::Kernel);
        gathered.entry(by_kernel, Stamp::runner(4500 * MS));
        let seen = gathered.finish("node-1");
        let sizes: Vec<_> = (seen.iter())
            .map(|seen| match &seen.event {
                Event::Conntrack { by, entries, .. } => {
                    assert_eq!(seen.at, entries[0].at);
                    (by.unwrap(), entries.len())
                }
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(sizes, [(DestroyedBy::Kernel, 1), (DestroyedBy::Process, 1000)]);
        let event = seen[1].event.clone().map_times(|stamp| crate::clock::Ms(stamp.ns));
        let json = serde_json::to_string(&event).unwrap();
        assert!(json.len() < 1000 * 100, "{} bytes an entry", json.len() / 1000);
    }

    #[test]
    fn a_packet_that_has_just_come_in_only_passes() {
        let mut gathered = Gathered::default();
        gathered.packet(refusal(0, false, "10.0.0.1:4000"));
        assert!(gathered.passes(&refusal(0, true, "10.0.0.1:4000")));
        assert!(!gathered.passes(&refusal(0, true, "10.0.0.1:4001")), "another one");
        assert!(!gathered.passes(&refusal(500, true, "10.0.0.1:4000")), "made here, later");
    }
}
