//! How a record keeps what kernels told of many flows: a line for all entries or packets that differ
//! in their flows and times only, instead of a line each.
//!
//! Takes observations and gives the lines that stand for them, and back again; nothing is lost but
//! where one stood among others of the same nanosecond. Knows nothing of what they mean.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::clock::Ms;
use crate::observation::{
    Bound, DestroyedBy, EntryChange, Event, Observation, PacketKind, Protocol, Source,
};
use crate::timeline;

/// What is told with more time than this between stands in two lines.
const APART: Ms = Ms(1_000_000_000);

/// A line of a record's observations.
#[derive(schemars::JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "ObservationLine")]
pub(super) enum Line {
    /// Several entries or packets.
    Many(Many),
    /// Any other observation.
    One(Observation),
}

/// Entries or packets that have all but their flows and times in common.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[schemars(rename = "ObservationsOfFlows")]
pub(super) struct Many {
    /// The first one's time.
    #[serde(rename = "t_ms")]
    at: Ms,
    bound: Bound,
    plus_minus_ms: Option<f64>,
    source: Source,
    #[serde(flatten)]
    of: Kind,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(tag = "what", rename_all = "kebab-case")]
enum Kind {
    /// Each entry is a `conntrack` observation.
    ConntrackEntries {
        #[serde(flatten)]
        common: Common,
        entries: Vec<Entry>,
    },
    /// Each is a `packet` observation.
    Packets {
        #[serde(flatten)]
        common: Way,
        packets: Vec<Packet>,
    },
}

/// What entries have in common.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
struct Common {
    node: String,
    change: EntryChange,
    protocol: Protocol,
    to: SocketAddr,
    answered_by: SocketAddr,
    by: Option<DestroyedBy>,
}

/// What packets have in common.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
struct Way {
    node: String,
    interface: String,
    out: bool,
    kind: PacketKind,
    protocol: Protocol,
    sender: IpAddr,
    icmp_code: Option<u8>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
struct Entry {
    #[serde(rename = "t_ms")]
    at: Ms,
    client: SocketAddr,
    answers_to: SocketAddr,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    assured: Option<bool>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
struct Packet {
    #[serde(rename = "t_ms")]
    at: Ms,
    from: SocketAddr,
    to: SocketAddr,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    count: Option<u64>,
    #[serde(rename = "until_ms", default, skip_serializing_if = "Option::is_none")]
    until: Option<Ms>,
}

/// The same as it is written: without a copy of what there are most of.
#[derive(Serialize)]
#[serde(untagged)]
enum Written<'a> {
    Many(Many),
    One(&'a Observation),
}

/// Writes observations as lines.
pub(super) fn serialize<S: Serializer>(all: &[Observation], s: S) -> Result<S::Ok, S::Error> {
    s.collect_seq(pack(all))
}

/// Reads lines as observations, in the order of time.
pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<Observation>, D::Error> {
    d.deserialize_seq(Lines)
}

/// Reads one line after another, so that lines and what they stand for are not held at once.
struct Lines;

impl<'de> Visitor<'de> for Lines {
    type Value = Vec<Observation>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an array of observations")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut lines: A) -> Result<Self::Value, A::Error> {
        let (mut all, mut packed) = (Vec::new(), false);
        while let Some(line) = lines.next_element::<Line>()? {
            packed |= matches!(line, Line::Many(_));
            unpack(line, &mut all);
        }
        if packed {
            all.sort_by(timeline::compare);
        }
        Ok(all)
    }
}

impl<'de> Deserialize<'de> for Line {
    /// By its name, so that what is wrong with a line is said of what it is.
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        use serde::de::Error;
        let line = serde_json::Value::deserialize(d)?;
        let what = line.get("what").and_then(serde_json::Value::as_str);
        if matches!(what, Some("conntrack-entries" | "packets")) {
            return serde_json::from_value(line).map(Self::Many).map_err(Error::custom);
        }
        serde_json::from_value(line).map(Self::One).map_err(Error::custom)
    }
}

/// What must agree for two to stand in one line: the exactness of their times, and all of this.
type Key = (Bound, Option<u64>, Source, Of);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Of {
    Entries(Common),
    Packets(Way),
}

fn pack(all: &[Observation]) -> Vec<Written<'_>> {
    let mut lines: Vec<Written> = Vec::new();
    // Where the last line of a kind stands, and its last time.
    let mut last = HashMap::<Key, (usize, Ms)>::new();
    for observation in all {
        let Some((key, many)) = alone(observation) else {
            lines.push(Written::One(observation));
            continue;
        };
        let at = observation.at;
        if let Some((line, until)) = last.get_mut(&key)
            && at.0.saturating_sub(until.0) <= APART.0
            && let Some(Written::Many(before)) = lines.get_mut(*line)
        {
            *until = at;
            before.take_in(many);
            continue;
        }
        last.insert(key, (lines.len(), at));
        lines.push(Written::Many(many));
    }
    lines
}

/// A line for one observation, where it is one that can stand with others.
fn alone(observation: &Observation) -> Option<(Key, Many)> {
    let Observation { at, bound, plus_minus_ms, source, event } = observation;
    let (key, of) = match event.clone() {
        Event::Conntrack {
            node,
            change,
            protocol,
            client,
            to,
            answered_by,
            answers_to,
            assured,
            by,
        } => {
            let common = Common { node, change, protocol, to, answered_by, by };
            let entries = vec![Entry { at: *at, client, answers_to, assured }];
            (Of::Entries(common.clone()), Kind::ConntrackEntries { common, entries })
        }
        Event::Packet {
            node,
            interface,
            out,
            kind,
            protocol,
            sender,
            from,
            to,
            icmp_code,
            count,
            until,
        } => {
            let common = Way { node, interface, out, kind, protocol, sender, icmp_code };
            let count = (count != 1).then_some(count);
            let packets = vec![Packet { at: *at, from, to, count, until }];
            (Of::Packets(common.clone()), Kind::Packets { common, packets })
        }
        _ => return None,
    };
    let key = (*bound, plus_minus_ms.map(f64::to_bits), *source, key);
    let (bound, plus_minus_ms, source) = (*bound, *plus_minus_ms, *source);
    Some((key, Many { at: *at, bound, plus_minus_ms, source, of }))
}

impl Many {
    /// Takes in another's entries or packets.
    fn take_in(&mut self, other: Many) {
        match (&mut self.of, other.of) {
            (
                Kind::ConntrackEntries { entries, .. },
                Kind::ConntrackEntries { entries: more, .. },
            ) => entries.extend(more),
            (Kind::Packets { packets, .. }, Kind::Packets { packets: more, .. }) => {
                packets.extend(more);
            }
            // Their keys tell them apart.
            (Kind::ConntrackEntries { .. }, _) | (Kind::Packets { .. }, _) => {}
        }
    }
}

fn unpack(line: Line, all: &mut Vec<Observation>) {
    let Many { bound, plus_minus_ms, source, of, .. } = match line {
        Line::One(observation) => return all.push(observation),
        Line::Many(many) => many,
    };
    let observation = |at, event| Observation { at, bound, plus_minus_ms, source, event };
    match of {
        Kind::ConntrackEntries { common, entries } => {
            all.extend(entries.into_iter().map(|Entry { at, client, answers_to, assured }| {
                let Common { node, change, protocol, to, answered_by, by } = common.clone();
                let event = Event::Conntrack {
                    node,
                    change,
                    protocol,
                    client,
                    to,
                    answered_by,
                    answers_to,
                    assured,
                    by,
                };
                observation(at, event)
            }));
        }
        Kind::Packets { common, packets } => {
            all.extend(packets.into_iter().map(|Packet { at, from, to, count, until }| {
                let Way { node, interface, out, kind, protocol, sender, icmp_code } =
                    common.clone();
                let event = Event::Packet {
                    node,
                    interface,
                    out,
                    kind,
                    protocol,
                    sender,
                    from,
                    to,
                    icmp_code,
                    count: count.unwrap_or(1),
                    until,
                };
                observation(at, event)
            }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(ms: f64, port: u16, change: EntryChange) -> Observation {
        let by = (change == EntryChange::Destroy).then_some(DestroyedBy::Process);
        let event = Event::Conntrack {
            node: "node-1".into(),
            change,
            protocol: Protocol::Udp,
            client: SocketAddr::from(([10, 231, 0, 1], port)),
            to: "10.231.0.11:30072".parse().unwrap(),
            answered_by: "10.244.1.2:7002".parse().unwrap(),
            answers_to: SocketAddr::from(([10, 231, 0, 11], port)),
            assured: None,
            by,
        };
        Observation::at_most(Ms::from_ms(ms), Source::NodeConntrack, event)
    }

    fn packet(ms: f64, port: u16, count: u64) -> Observation {
        let event = Event::Packet {
            node: "node-2".into(),
            interface: "veth1".into(),
            out: false,
            kind: PacketKind::Unreachable,
            protocol: Protocol::Udp,
            sender: "10.244.1.2".parse().unwrap(),
            from: SocketAddr::from(([10, 231, 0, 11], port)),
            to: "10.244.1.2:7002".parse().unwrap(),
            icmp_code: Some(3),
            count,
            until: (count > 1).then(|| Ms::from_ms(ms + 40.0)),
        };
        Observation::exact(Ms::from_ms(ms), Source::NodePackets, event)
    }

    fn other(ms: f64) -> Observation {
        Observation::exact(Ms::from_ms(ms), Source::Flow, Event::Bye { flow: "tcp-1".into() })
    }

    #[derive(Serialize, Deserialize)]
    #[serde(transparent)]
    struct Record(#[serde(with = "super")] Vec<Observation>);

    fn told() -> Vec<Observation> {
        let mut all = Vec::new();
        for port in 0..1000 {
            let ms = f64::from(port);
            all.push(entry(ms / 7.0 - 3_000.123_457, 40_000 + port, EntryChange::New));
            all.push(entry(ms / 9.0 + 1_100.123_457, 40_000 + port, EntryChange::Destroy));
            all.push(packet(ms / 3.0 + 20.123_457, 40_000 + port, 1 + u64::from(port % 3)));
            all.push(other(ms));
        }
        all.sort_by(timeline::compare);
        all
    }

    #[test]
    fn what_is_packed_is_read_as_it_was() {
        let json = serde_json::to_string(&Record(told())).unwrap();
        assert_eq!(serde_json::from_str::<Record>(&json).unwrap().0, told());
    }

    #[test]
    fn a_flow_takes_little_of_a_record() {
        let told = told();
        let packed = pack(&told);
        let many: Vec<_> = packed.iter().filter(|line| matches!(line, Written::Many(_))).collect();
        assert_eq!(many.len(), 3, "one of entries made, one of packets, one of entries destroyed");
        let bytes = serde_json::to_string(&many).unwrap().len();
        assert!(bytes < 1000 * 300, "{} bytes a flow, of two entries and a packet", bytes / 1000);
    }

    #[test]
    fn what_lies_far_apart_stands_in_two_lines() {
        let far = [
            entry(0.0, 1, EntryChange::Destroy),
            entry(900.0, 2, EntryChange::Destroy),
            entry(2500.0, 3, EntryChange::Destroy),
        ];
        assert_eq!(pack(&far).len(), 2);
    }

    #[test]
    fn a_line_that_is_wrong_is_told_of_by_its_own_name() {
        let error = |text: &str| serde_json::from_str::<Record>(text).err().unwrap().to_string();
        let line = r#"[{"t_ms": 1.0, "bound": "exact", "plus_minus_ms": 0.0, "source": "flow", "#;
        let unknown = error(&format!(r#"{line}"what": "no-such-thing"}}]"#));
        assert!(unknown.contains("unknown variant `no-such-thing`"), "{unknown}");
        let packets = error(&format!(r#"{line}"what": "packets"}}]"#));
        assert!(packets.contains("missing field"), "{packets}");
    }
}
