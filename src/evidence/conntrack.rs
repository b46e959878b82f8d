//! The connection tracking table: entries of flows to the Service's ports, made, changed and
//! destroyed, and by whom.

use std::net::{IpAddr, SocketAddr};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_netfilter::NetfilterMessageInner;
use netlink_packet_netfilter::conntrack::{
    ConntrackAttribute, ConntrackMessage, IPTuple, ProtoTuple, Protocol as Number, Status, Tuple,
};

use super::Subject;
use super::netlink::Raw;
use crate::observation::{DestroyedBy, EntryChange, Event, Protocol};

/// What an event says of an entry that is about the Service; `None` for others.
pub(super) fn event<T>(raw: &Raw, node: &str, subject: &Subject) -> Option<Event<T>> {
    let NetfilterMessageInner::Conntrack(message) = raw.parse()?.inner else { return None };
    let created = raw.flags & (NLM_F_CREATE | NLM_F_EXCL) != 0;
    let (change, attributes) = match message {
        ConntrackMessage::New(attributes) if created => (EntryChange::New, attributes),
        ConntrackMessage::New(attributes) => (EntryChange::Update, attributes),
        ConntrackMessage::Delete(attributes) => (EntryChange::Destroy, attributes),
        _ => return None,
    };
    let mut original = None;
    let mut reply = None;
    let mut status = None;
    for attribute in &attributes {
        match attribute {
            ConntrackAttribute::CtaTupleOrig(tuple) => original = ends(tuple),
            ConntrackAttribute::CtaTupleReply(tuple) => reply = ends(tuple),
            ConntrackAttribute::CtaStatus(bits) => status = Some(*bits),
            _ => {}
        }
    }
    let (original, reply) = (original?, reply?);
    let protocol = original.protocol;
    if !subject.is_of_service(protocol, original.to, reply.from) {
        return None;
    }
    Some(Event::Conntrack {
        node: node.to_owned(),
        change,
        protocol,
        client: original.from,
        to: original.to,
        answered_by: reply.from,
        answers_to: reply.to,
        assured: status.map(|status| status.contains(Status::Assured)),
        by: match change {
            // The kernel notes the netlink port of a process that deletes an entry.
            EntryChange::Destroy => Some(match raw.port {
                0 => DestroyedBy::Kernel,
                _ => DestroyedBy::Process,
            }),
            EntryChange::New | EntryChange::Update => None,
        },
    })
}

/// One direction of an entry.
#[derive(Clone, Copy)]
struct Ends {
    protocol: Protocol,
    from: SocketAddr,
    to: SocketAddr,
}

fn ends(tuple: &[Tuple]) -> Option<Ends> {
    let (mut protocol, mut source, mut destination) = (None, None, None);
    let (mut source_port, mut destination_port) = (None, None);
    for part in tuple {
        match part {
            Tuple::Ip(addresses) => {
                for address in addresses {
                    match address {
                        IPTuple::SourceAddress(address) => source = Some(*address),
                        IPTuple::DestinationAddress(address) => destination = Some(*address),
                        _ => {}
                    }
                }
            }
            Tuple::Proto(parts) => {
                for part in parts {
                    match part {
                        ProtoTuple::Protocol(Number::Tcp) => protocol = Some(Protocol::Tcp),
                        ProtoTuple::Protocol(Number::Udp) => protocol = Some(Protocol::Udp),
                        ProtoTuple::SourcePort(port) => source_port = Some(*port),
                        ProtoTuple::DestinationPort(port) => destination_port = Some(*port),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    let end = |address: Option<IpAddr>, port: Option<u16>| Some(SocketAddr::new(address?, port?));
    Some(Ends {
        protocol: protocol?,
        from: end(source, source_port)?,
        to: end(destination, destination_port)?,
    })
}
