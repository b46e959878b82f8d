//! What the nodes' kernels told, by flow: entries of connection tracking tables, and packets.
//!
//! Takes a trial's observations; gives lines of one flow's story. All that stories know of the form of
//! these observations stands here.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};

use super::Told;
use super::cast::Cast;
use crate::clock::Ms;
use crate::observation::{DestroyedBy, EntryChange, Event, Observation, PacketKind, Protocol};
use crate::record::Trial;

/// A change of one flow's entry.
struct Entry<'a> {
    at: Ms,
    /// What it was told in.
    of: &'a Observation,
    protocol: Protocol,
    client: SocketAddr,
    answers_to: SocketAddr,
    assured: Option<bool>,
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
        Event::Conntrack { protocol, client, answers_to, assured, .. } => {
            Some(Entry { at: of.at, of, protocol, client, answers_to, assured })
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
    protocol: Protocol,
    local: SocketAddr,
    cast: &Cast,
) -> Vec<Told<'a>> {
    let mut known = HashSet::from([local]);
    let own = entries(trial).filter(|entry| entry.client == local && entry.protocol == protocol);
    known.extend(own.map(|entry| entry.answers_to));
    let entries =
        entries(trial).filter(|entry| entry.protocol == protocol && known.contains(&entry.client));
    let packets = packets(trial).filter(|packet| {
        packet.protocol == protocol && (known.contains(&packet.from) || known.contains(&packet.to))
    });
    let entries = entries.map(|entry| (entry.at, entry.of, entry_in_words(&entry, cast)));
    let packets = packets.map(|packet| (packet.at, packet.of, packet_in_words(&packet, cast)));
    let mut told: Vec<_> = entries.chain(packets).collect();
    told.sort_by_key(|(at, ..)| *at);
    told.into_iter().map(|(at, of, text)| Told::at(of, at.ms(), text)).collect()
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

fn entry_in_words(entry: &Entry, cast: &Cast) -> String {
    let Event::Conntrack { node, change, to, answered_by, by, .. } = &entry.of.event else {
        return String::new();
    };
    let what = match (change, by) {
        (EntryChange::New, _) => "made",
        (EntryChange::Update, _) if entry.assured == Some(true) => "assured",
        (EntryChange::Update, _) => "changed",
        (EntryChange::Destroy, Some(DestroyedBy::Process)) => "deleted by a process",
        (EntryChange::Destroy, Some(DestroyedBy::Kernel)) => "dropped by the kernel itself",
        (EntryChange::Destroy, None) => "gone",
    };
    let (client, pod) = (entry.client, cast.address(*answered_by));
    format!("{node}: conntrack entry {what}: {client} → {to} leads to {pod}")
}

fn packet_in_words(packet: &Packet, cast: &Cast) -> String {
    let Event::Packet { node, interface, out, kind, sender, icmp_code, .. } = &packet.of.event
    else {
        return String::new();
    };
    let way = if *out { "leaves by" } else { "comes in by" };
    let (sender, to) = (cast.ip(*sender), cast.address(packet.to));
    let what = match kind {
        PacketKind::Rst => format!("RST from {sender} to {to}"),
        PacketKind::Fin => format!("FIN from {sender} to {to}"),
        PacketKind::Unreachable => match icmp_code {
            Some(3) => format!("ICMP port unreachable from {sender}, about {to},"),
            Some(code) => format!("ICMP unreachable (code {code}) from {sender}, about {to},"),
            None => format!("ICMP unreachable from {sender}, about {to},"),
        },
    };
    format!("{node}: {what} {way} {interface}")
}
