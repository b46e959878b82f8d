//! The connection tracking table: entries of flows to the Service's ports, made and destroyed, and by
//! whom, and those that stand.

use std::net::{IpAddr, SocketAddr};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_netfilter::conntrack::{
    ConntrackAttribute, ConntrackMessage, IPTuple, ProtoTuple, Protocol as Number, Status, Tuple,
};
use netlink_packet_netfilter::{NetfilterMessageInner, NetfilterProtoFamily};
use nix::errno::Errno;

use super::Subject;
use super::netlink::{Raw, Socket};
use crate::observation::{DestroyedBy, EntryChange, Event, Protocol};

/// What an event says of an entry that is about the Service; `None` for others.
pub(super) fn event<T>(raw: &Raw, node: &str, subject: &Subject) -> Option<Event<T>> {
    let NetfilterMessageInner::Conntrack(message) = raw.parse()?.inner else { return None };
    let created = raw.flags & (NLM_F_CREATE | NLM_F_EXCL) != 0;
    match message {
        ConntrackMessage::New(attributes) if created => {
            understand(&attributes, EntryChange::New, None, node, subject)
        }
        ConntrackMessage::Delete(attributes) => {
            // The kernel notes the netlink port of a process that deletes an entry.
            let by = match raw.port {
                0 => DestroyedBy::Kernel,
                _ => DestroyedBy::Process,
            };
            understand(&attributes, EntryChange::Destroy, Some(by), node, subject)
        }
        _ => None,
    }
}

/// The entries that are about the Service and stand now.
pub(super) fn standing<T>(
    socket: &mut Socket,
    node: &str,
    subject: &Subject,
) -> Result<Vec<Event<T>>, Errno> {
    let mut found = Vec::new();
    let request = ConntrackMessage::Get(Vec::new());
    socket.dump(NetfilterProtoFamily::Unspec, request, |message| {
        if let NetfilterMessageInner::Conntrack(ConntrackMessage::New(attributes)) = message.inner {
            found.extend(understand(&attributes, EntryChange::Stands, None, node, subject));
        }
    })?;
    Ok(found)
}

fn understand<T>(
    attributes: &[ConntrackAttribute],
    change: EntryChange,
    by: Option<DestroyedBy>,
    node: &str,
    subject: &Subject,
) -> Option<Event<T>> {
    let mut original = None;
    let mut reply = None;
    let mut status = None;
    for attribute in attributes {
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
    // One that is new has had no answer yet.
    let assured = status.filter(|_| change != EntryChange::New);
    Some(Event::Conntrack {
        node: node.to_owned(),
        change,
        protocol,
        client: original.from,
        to: original.to,
        answered_by: reply.from,
        answers_to: reply.to,
        assured: assured.map(|status| status.contains(Status::Assured)),
        by,
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
