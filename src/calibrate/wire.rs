//! What passed for each flow: first and last answers, FIN, RST and refusals, with their times.
//!
//! Takes IPv4 packets as they leave a node; keeps instants, not packets: what it holds does not grow
//! with heartbeats. Pure.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;

use drainwatch_probe::wire::{Frame, Speaker, parse};

use crate::observation::Protocol;

/// A flow as packets name it: its own end and the one that it asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ends {
    pub protocol: Protocol,
    pub client: SocketAddr,
    pub remote: SocketAddr,
}

/// What passed, by flow.
#[derive(Debug, Default)]
pub struct Wire {
    flows: HashMap<Ends, Passed>,
    /// Who answered, as answers carry it, and the instance in it.
    speakers: Vec<(Box<[u8]>, String)>,
}

/// What passed for one flow, in nanoseconds since boot.
#[derive(Clone, Debug, Default)]
pub struct Passed {
    answers: Vec<Answers>,
    pub byes: Vec<i64>,
    pub fins: Vec<i64>,
    pub resets: Vec<i64>,
    /// ICMP "destination unreachable" about its datagrams.
    pub refusals: Vec<i64>,
}

/// The answers of one instance to one flow.
#[derive(Clone, Copy, Debug)]
struct Answers {
    speaker: usize,
    last_sequence: u64,
    first_ns: i64,
    last_ns: i64,
}

impl Wire {
    /// A packet has left a node, IP header first; it may be cut off.
    pub fn take(&mut self, packet: &[u8], at_ns: i64) {
        let Some(ip) = Ip::parse(packet) else { return };
        let taken = match ip.protocol {
            6 => self.tcp(&ip, at_ns),
            17 => self.udp(&ip, at_ns),
            1 => self.icmp(&ip, at_ns),
            _ => None,
        };
        // What is cut off within its headers, or of another protocol, is nobody's.
        taken.unwrap_or_default();
    }

    /// What passed for a flow.
    pub fn of(&self, ends: &Ends) -> Option<&Passed> {
        self.flows.get(ends)
    }

    /// The first and the last answer of an instance.
    pub fn answers(&self, passed: &Passed, instance: &str) -> Option<(i64, i64)> {
        let by = |answers: &&Answers| self.speakers[answers.speaker].1 == instance;
        passed.answers.iter().find(by).map(|answers| (answers.first_ns, answers.last_ns))
    }

    fn flow(&mut self, protocol: Protocol, client: SocketAddr, remote: SocketAddr) -> &mut Passed {
        self.flows.entry(Ends { protocol, client, remote }).or_default()
    }

    fn tcp(&mut self, ip: &Ip<'_>, at_ns: i64) -> Option<()> {
        let (from, to) = ip.ends()?;
        let data = usize::from(*ip.rest.get(12)? >> 4) * 4;
        let flags = *ip.rest.get(13)?;
        self.frames(Protocol::Tcp, to, from, ip.rest.get(data..)?, at_ns);
        if flags & 0x04 != 0 {
            self.flow(Protocol::Tcp, to, from).resets.push(at_ns);
        } else if flags & 0x01 != 0 {
            self.flow(Protocol::Tcp, to, from).fins.push(at_ns);
        }
        Some(())
    }

    fn udp(&mut self, ip: &Ip<'_>, at_ns: i64) -> Option<()> {
        let (from, to) = ip.ends()?;
        self.frames(Protocol::Udp, to, from, ip.rest.get(8..)?, at_ns);
        Some(())
    }

    fn icmp(&mut self, ip: &Ip<'_>, at_ns: i64) -> Option<()> {
        if *ip.rest.first()? != 3 {
            return None;
        }
        let about = Ip::parse(ip.rest.get(8..)?)?;
        let (from, to) = about.ends()?;
        if about.protocol == 17 {
            self.flow(Protocol::Udp, from, to).refusals.push(at_ns);
        }
        Some(())
    }

    /// All whole frames that a packet begins with.
    fn frames(
        &mut self,
        protocol: Protocol,
        client: SocketAddr,
        remote: SocketAddr,
        mut bytes: &[u8],
        at_ns: i64,
    ) {
        while let Ok(Some((frame, length))) = parse(bytes) {
            bytes = &bytes[length..];
            match frame {
                Frame::Answer(answer) => {
                    let Some(speaker) = self.speaker(answer.speaker) else { continue };
                    let sequence = answer.heartbeat.sequence;
                    let passed = self.flow(protocol, client, remote);
                    passed.answer(speaker, sequence, at_ns);
                }
                Frame::Bye(_) => self.flow(protocol, client, remote).byes.push(at_ns),
                Frame::Heartbeat(_) => {}
            }
        }
    }

    fn speaker(&mut self, encoded: &[u8]) -> Option<usize> {
        let found = self.speakers.iter().rposition(|(known, _)| **known == *encoded);
        found.or_else(|| {
            let instance = Speaker::parse(encoded).ok()?.instance.to_owned();
            self.speakers.push((encoded.into(), instance));
            Some(self.speakers.len() - 1)
        })
    }
}

impl Passed {
    /// Without the packets of other flows that had the same ports, before or after. (Answers name
    /// their instance, and each trial has its own.)
    pub fn within(&self, life: &RangeInclusive<i64>) -> Self {
        let within = |all: &[i64]| all.iter().copied().filter(|at| life.contains(at)).collect();
        Self {
            answers: self.answers.clone(),
            byes: within(&self.byes),
            fins: within(&self.fins),
            resets: within(&self.resets),
            refusals: within(&self.refusals),
        }
    }

    fn answer(&mut self, speaker: usize, sequence: u64, at_ns: i64) {
        match self.answers.iter_mut().find(|answers| answers.speaker == speaker) {
            // A segment that TCP sends again carries no new answer.
            Some(answers) if sequence > answers.last_sequence => {
                (answers.last_sequence, answers.last_ns) = (sequence, at_ns);
            }
            Some(_) => {}
            None => self.answers.push(Answers {
                speaker,
                last_sequence: sequence,
                first_ns: at_ns,
                last_ns: at_ns,
            }),
        }
    }
}

/// An IPv4 header and what follows it.
struct Ip<'a> {
    protocol: u8,
    from: IpAddr,
    to: IpAddr,
    rest: &'a [u8],
}

impl<'a> Ip<'a> {
    fn parse(packet: &'a [u8]) -> Option<Self> {
        let first = *packet.first()?;
        if first >> 4 != 4 {
            return None;
        }
        let address = |at: usize| -> Option<IpAddr> {
            let octets: [u8; 4] = packet.get(at..at + 4)?.try_into().ok()?;
            Some(Ipv4Addr::from(octets).into())
        };
        let header = usize::from(first & 0xf) * 4;
        Some(Self {
            protocol: *packet.get(9)?,
            from: address(12)?,
            to: address(16)?,
            rest: packet.get(header..)?,
        })
    }

    /// Source and destination, with the ports that the transport's header begins with.
    fn ends(&self) -> Option<(SocketAddr, SocketAddr)> {
        let port = |at: usize| -> Option<u16> {
            Some(u16::from_be_bytes(self.rest.get(at..at + 2)?.try_into().ok()?))
        };
        Some((SocketAddr::new(self.from, port(0)?), SocketAddr::new(self.to, port(2)?)))
    }
}

#[cfg(test)]
mod tests {
    use drainwatch_probe::wire::{Answer, Bye, Heartbeat};

    use super::*;

    const NODE: [u8; 4] = [10, 231, 4, 10];
    const RUNNER: [u8; 4] = [10, 231, 4, 1];

    fn ip(protocol: u8, from: [u8; 4], to: [u8; 4], rest: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, protocol, 0, 0];
        packet.extend(from);
        packet.extend(to);
        packet.extend(rest);
        packet
    }

    fn answer(sequence: u64, instance: &str) -> Vec<u8> {
        let speaker = Speaker { pod: "p", uid: "u", instance, boot_id: "b" }.encode().unwrap();
        let heartbeat = Heartbeat { flow: 1, sequence, sent_ns: 0 };
        let mut bytes = Vec::new();
        Answer { heartbeat, mono_ns: 0, wall_ns: 0, speaker: &speaker }.encode(&mut bytes);
        bytes
    }

    fn ports() -> Vec<u8> {
        [30_001u16.to_be_bytes(), 40_000u16.to_be_bytes()].concat()
    }

    fn udp(payload: &[u8]) -> Vec<u8> {
        ip(17, NODE, RUNNER, &[&ports()[..], &[0; 4], payload].concat())
    }

    fn tcp(flags: u8, payload: &[u8]) -> Vec<u8> {
        let header = [&ports()[..], &[0; 8], &[0x50, flags], &[0; 6], payload].concat();
        ip(6, NODE, RUNNER, &header)
    }

    fn ends(protocol: Protocol) -> Ends {
        let (client, remote) = ((RUNNER, 40_000).into(), (NODE, 30_001).into());
        Ends { protocol, client, remote }
    }

    #[test]
    fn the_first_and_the_last_answer_of_each_instance_are_kept() {
        let mut wire = Wire::default();
        for (at, sequence, instance) in [(1, 1, "old"), (2, 2, "old"), (5, 7, "new"), (6, 8, "new")]
        {
            wire.take(&udp(&answer(sequence, instance)), at);
        }
        let passed = wire.of(&ends(Protocol::Udp)).unwrap();
        assert_eq!(wire.answers(passed, "old"), Some((1, 2)));
        assert_eq!(wire.answers(passed, "new"), Some((5, 6)));
        assert_eq!(wire.answers(passed, "other"), None);
    }

    #[test]
    fn a_segment_that_is_sent_again_is_no_new_answer() {
        let mut wire = Wire::default();
        let two = [answer(1, "old"), answer(2, "old")].concat();
        wire.take(&tcp(0x18, &two), 3);
        wire.take(&tcp(0x18, &two), 9);
        let passed = wire.of(&ends(Protocol::Tcp)).unwrap();
        assert_eq!(wire.answers(passed, "old"), Some((3, 3)));
    }

    #[test]
    fn bye_and_fin_may_come_in_one_packet_and_a_reset_is_no_fin() {
        let mut wire = Wire::default();
        let bye = Bye { flow: 1, answered: 1, mono_ns: 0 }.encode();
        wire.take(&tcp(0x19, &bye), 4);
        wire.take(&tcp(0x15, &[]), 5);
        let passed = wire.of(&ends(Protocol::Tcp)).unwrap();
        assert_eq!(
            (&passed.byes[..], &passed.fins[..], &passed.resets[..]),
            (&[4][..], &[4][..], &[5][..])
        );
    }

    #[test]
    fn a_refusal_is_the_flows_whose_datagram_it_quotes() {
        let mut wire = Wire::default();
        let sent = [40_000u16.to_be_bytes(), 30_001u16.to_be_bytes()].concat();
        let quoted = ip(17, RUNNER, NODE, &sent);
        wire.take(&ip(1, NODE, RUNNER, &[&[3, 3, 0, 0, 0, 0, 0, 0][..], &quoted].concat()), 8);
        assert_eq!(wire.of(&ends(Protocol::Udp)).unwrap().refusals, [8]);
    }

    #[test]
    fn what_is_cut_off_is_nobodys_and_no_panic() {
        let whole = tcp(0x11, &answer(1, "old"));
        for length in 0..33 {
            let mut wire = Wire::default();
            wire.take(&whole[..length], 1);
            assert!(wire.flows.is_empty(), "{length}");
        }
    }
}
