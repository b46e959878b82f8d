//! What the nodes' kernels told, by flow: entries of connection tracking tables, and packets.
//!
//! Takes a trial's observations; gives lines of one flow's story. All that stories know of the form of
//! these observations stands here.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};

use super::Told;
use super::cast::Cast;
use crate::clock::Ms;
use crate::observation::{
    DestroyedBy, EntryChange, Event, Observation, PacketKind, Protocol, Source,
};
use crate::record::Trial;
use crate::verdict::FlowRecord;

/// A packet has passed the nodes in less than this, in nanoseconds.
const ON_ITS_WAY: i64 = 10_000_000;

/// A change of one flow's entry.
struct Entry<'a> {
    at: Ms,
    /// What it was told in.
    of: &'a Observation,
    protocol: Protocol,
    client: SocketAddr,
    answers_to: SocketAddr,
}

/// A packet of one flow.
struct Packet<'a> {
    at: Ms,
    /// What it was told in.
    of: &'a Observation,
    protocol: Protocol,
    from: SocketAddr,
    to: SocketAddr,
}

fn entries(trial: &Trial) -> impl Iterator<Item = Entry<'_>> {
    trial.observations.iter().filter_map(|of| match of.event {
        Event::Conntrack { protocol, client, answers_to, .. } => {
            Some(Entry { at: of.at, of, protocol, client, answers_to })
        }
        _ => None,
    })
}

fn packets(trial: &Trial) -> impl Iterator<Item = Packet<'_>> {
    trial.observations.iter().filter_map(|of| match of.event {
        Event::Packet { protocol, from, to, .. } => {
            Some(Packet { at: of.at, of, protocol, from, to })
        }
        _ => None,
    })
}

/// What was told of a flow, in the order of time: it is known by its own address and, behind the node
/// that it enters by, by the one that the node gave it.
pub(super) fn of_flow<'a>(
    trial: &'a Trial,
    flow: &FlowRecord,
    local: SocketAddr,
    cast: &Cast,
) -> Vec<Told<'a>> {
    let protocol = flow.protocol;
    let mut known = HashSet::from([local]);
    let own = entries(trial).filter(|entry| entry.client == local && entry.protocol == protocol);
    known.extend(own.map(|entry| entry.answers_to));
    let entries =
        entries(trial).filter(|entry| entry.protocol == protocol && known.contains(&entry.client));
    let mut told: Vec<_> = entries
        .filter_map(|entry| {
            let text = entry_in_words(&entry, local, cast)?;
            Some(Told::at(entry.of, entry.at.ms(), text))
        })
        .collect();
    let packets = packets(trial).filter(|packet| {
        packet.protocol == protocol && (known.contains(&packet.from) || known.contains(&packet.to))
    });
    let mut packets: Vec<_> = packets.collect();
    packets.sort_by_key(|packet| packet.at);
    told.extend(passages(&packets, flow, &known, cast));
    told
}

/// A packet is seen at each interface that it passes: one line for all of its way, but for where its
/// passing is a link of the flow's chain.
fn passages<'a>(
    packets: &[Packet<'a>],
    flow: &FlowRecord,
    known: &HashSet<SocketAddr>,
    cast: &Cast,
) -> Vec<Told<'a>> {
    let is_link = |at: Ms| {
        let mut chain = flow.cause.iter().flat_map(|cause| &cause.chain);
        chain.any(|link| link.source == Source::NodePackets && Ms::from_ms(link.t_ms) == at)
    };
    let mut told: Vec<Told> = Vec::new();
    let mut last = None;
    for packet in packets {
        let Event::Packet { node, interface, out, kind, .. } = &packet.of.event else { continue };
        let way = (*kind, known.contains(&packet.to));
        let hop = format!("{} by {interface}", if *out { "out" } else { "in" });
        let goes_on = last.is_some_and(|(before, since, _)| {
            before == way && packet.at.0.saturating_sub(since) <= ON_ITS_WAY
        });
        match (told.last_mut(), last) {
            (Some(line), Some((_, since, at_node))) if goes_on && !is_link(packet.at) => {
                let place = if at_node == node { ", ".to_owned() } else { format!("; {node} ") };
                line.line.text += &format!("{place}{hop}");
                last = Some((way, since, node));
            }
            _ => {
                let text = format!("{}: {node} {hop}", packet_in_words(packet, cast));
                told.push(Told::at(packet.of, packet.at.ms(), text));
                last = Some((way, packet.at.0, node));
            }
        }
    }
    told
}

/// The target's address: before the trigger it held every flow, so that their entries lead to it.
pub(super) fn address_of_target(trial: &Trial) -> Option<IpAddr> {
    let entry_node = &trial.target.as_ref()?.entry_node;
    let flows: HashSet<SocketAddr> = trial.observations.iter().filter_map(opened_from).collect();
    let mut led = entries(trial).filter_map(|entry| match &entry.of.event {
        Event::Conntrack { node, answered_by, .. }
            if entry.at < Ms(0) && node == entry_node && flows.contains(&entry.client) =>
        {
            Some(answered_by.ip())
        }
        _ => None,
    });
    let first = led.next()?;
    led.all(|other| other == first).then_some(first)
}

/// A flow's own address, as its socket was bound.
pub(super) fn opened_from(observation: &Observation) -> Option<SocketAddr> {
    match observation.event {
        Event::FlowOpened { local, .. } => Some(local),
        _ => None,
    }
}

/// `None` for what is no change of an entry.
fn entry_in_words(entry: &Entry, local: SocketAddr, cast: &Cast) -> Option<String> {
    let Event::Conntrack { node, change, answered_by, by, .. } = &entry.of.event else {
        return None;
    };
    let what = match (change, by) {
        (EntryChange::New, _) => "made",
        (EntryChange::Stands, _) => "still there at the end",
        (EntryChange::Destroy, Some(DestroyedBy::Process)) => "deleted by a process",
        (EntryChange::Destroy, Some(DestroyedBy::Kernel)) => "dropped by the kernel itself",
        (EntryChange::Destroy, None) => "gone",
    };
    let pod = cast.address(*answered_by);
    let behind = match entry.client {
        client if client == local => String::new(),
        client => format!(", of the flow as {client}"),
    };
    Some(format!("{node}: its entry to {pod} is {what}{behind}"))
}

/// The one ICMP and the other number what is unreachable differently.
fn unreachable(sender: IpAddr, code: Option<u8>) -> String {
    match (sender, code) {
        (IpAddr::V4(_), Some(3)) => "ICMP port unreachable".to_owned(),
        (IpAddr::V6(_), Some(4)) => "ICMPv6 port unreachable".to_owned(),
        (IpAddr::V4(_), Some(code)) => format!("ICMP unreachable (code {code})"),
        (IpAddr::V6(_), Some(code)) => format!("ICMPv6 unreachable (code {code})"),
        (_, None) => "ICMP unreachable".to_owned(),
    }
}

fn packet_in_words(packet: &Packet, cast: &Cast) -> String {
    let Event::Packet { kind, sender, icmp_code, .. } = &packet.of.event else {
        return String::new();
    };
    let what = match (kind, icmp_code) {
        (PacketKind::Rst, _) => "RST".to_owned(),
        (PacketKind::Fin, _) => "FIN".to_owned(),
        (PacketKind::Unreachable, code) => unreachable(*sender, *code),
    };
    format!("{what} from {}", cast.ip(*sender))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_icmp_has_its_own_codes() {
        let of = |sender: &str, code| unreachable(sender.parse().unwrap(), Some(code));
        assert_eq!(of("10.244.2.2", 3), "ICMP port unreachable");
        assert_eq!(of("fd00::2", 4), "ICMPv6 port unreachable");
        assert_eq!(of("fd00::2", 3), "ICMPv6 unreachable (code 3)", "an address, not a port");
        assert_eq!(of("10.244.2.2", 1), "ICMP unreachable (code 1)");
    }
}
