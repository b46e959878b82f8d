//! Packets that a node saw, each kind once with how often it was repeated, so that a record does not
//! grow with datagrams.
//!
//! Takes packets; gives observations at the end. The first and the last of each kind keep their times.

use std::collections::HashMap;

use super::packets::{Packet, What};
use crate::clock::Stamp;
use crate::observation::{Event, Observation, Seen, Source};

/// A packet is a repeated one where less than this has gone by. (The ICMP limiter lets one a second
/// pass.)
const REPEATED_NS: i64 = 2_000_000_000;
/// A packet passes a node in less than this.
const PASSING_NS: i64 = 10_000_000;

/// What one node has seen.
#[derive(Debug, Default)]
pub(super) struct Repeats {
    packets: Vec<Repeated>,
    /// Where in `packets` the last of its kind stands.
    last: HashMap<(String, bool, What), usize>,
    /// When a packet last came in.
    came_in: HashMap<What, i64>,
}

#[derive(Debug)]
struct Repeated {
    first: Packet,
    count: u64,
    until_ns: i64,
}

impl Repeats {
    /// Takes in a packet.
    pub fn add(&mut self, packet: Packet) {
        let Packet { at_ns, out, what, .. } = packet;
        if !out {
            self.came_in.insert(what, at_ns);
        }
        let index = self.packets.len();
        let last = self.last.entry((packet.interface.clone(), out, what)).or_insert(index);
        if let Some(before) = self.packets.get_mut(*last)
            && at_ns - before.until_ns < REPEATED_NS
        {
            before.count += 1;
            before.until_ns = at_ns;
            return;
        }
        *last = index;
        self.packets.push(Repeated { first: packet, count: 1, until_ns: at_ns });
    }

    /// Whether a packet that leaves has just come in, and only passes this node.
    pub fn passes(&self, packet: &Packet) -> bool {
        let came_in = self.came_in.get(&packet.what);
        packet.out && came_in.is_some_and(|at_ns| packet.at_ns - at_ns < PASSING_NS)
    }

    /// All of them.
    pub fn finish(self, node: &str) -> impl Iterator<Item = Seen> {
        self.packets.into_iter().map(move |Repeated { first, count, until_ns }| {
            let Packet { at_ns, stamped, interface, out, what } = first;
            let event = Event::Packet {
                node: node.to_owned(),
                interface,
                out,
                kind: what.kind,
                protocol: what.protocol,
                sender: what.sender,
                from: what.from,
                to: what.to,
                icmp_code: what.code,
                count,
                until: (count > 1).then(|| Stamp::runner(until_ns)),
            };
            let place = if stamped { Observation::exact } else { Observation::at_most };
            place(Stamp::runner(at_ns), Source::NodePackets, event)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::{PacketKind, Protocol};

    const MS: i64 = 1_000_000;

    fn refusal(ms: i64, out: bool, from: &str) -> Packet {
        let what = What {
            kind: PacketKind::Unreachable,
            protocol: Protocol::Udp,
            sender: "10.244.1.2".parse().unwrap(),
            from: from.parse().unwrap(),
            to: "10.244.1.2:7002".parse().unwrap(),
            code: Some(3),
        };
        Packet { at_ns: ms * MS, stamped: true, interface: "veth1".into(), out, what }
    }

    #[test]
    fn packets_that_are_repeated_are_counted_and_the_first_and_last_keep_their_times() {
        let mut repeats = Repeats::default();
        for ms in [0, 20, 40, 60, 5_000] {
            repeats.add(refusal(ms, false, "10.0.0.1:4000"));
        }
        repeats.add(refusal(5_010, false, "10.0.0.1:4001"));
        repeats.add(refusal(5_020, true, "10.0.0.1:4000"));
        let told: Vec<_> = (repeats.finish("node-2"))
            .map(|seen| match seen.event {
                Event::Packet { count, until, .. } => {
                    (seen.at.ns / MS, count, until.map(|until| until.ns / MS))
                }
                other => panic!("{other:?}"),
            })
            .collect();
        let expected = [(0, 4, Some(60)), (5_000, 1, None), (5_010, 1, None), (5_020, 1, None)];
        assert_eq!(told, expected);
    }

    #[test]
    fn a_packet_that_has_just_come_in_only_passes() {
        let mut repeats = Repeats::default();
        repeats.add(refusal(0, false, "10.0.0.1:4000"));
        assert!(repeats.passes(&refusal(0, true, "10.0.0.1:4000")));
        assert!(!repeats.passes(&refusal(0, true, "10.0.0.1:4001")), "another one");
        assert!(!repeats.passes(&refusal(500, true, "10.0.0.1:4000")), "made here, later");
    }
}
