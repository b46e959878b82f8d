//! kube-proxy's nftables mode. Up to 1.36 and with session affinity, a Service's chain looks its endpoint
//! up in a map of chains, which bear the endpoints' addresses as names. Else it translates by itself: to the
//! one endpoint that it has, or to one of a map of addresses and ports.

use std::net::{IpAddr, SocketAddr};

use netlink_packet_netfilter::nftables::{
    DataAttribute, ExpressionAttribute, Expressions, Immediate, ListAttribute, Lookup,
    NfTablesMessage, RuleAttribute, RuleMessage, SetElementAttribute, SetElementList,
    SetElementMessage, VerdictAttribute,
};
use netlink_packet_netfilter::{NetfilterMessageInner, NetfilterProtoFamily};
use nix::errno::Errno;

use super::super::Subject;
use super::super::netlink::Socket;
use super::{PortRules, rules_of};
use crate::observation::Protocol;

const TABLE: &str = "kube-proxy";

/// What the rules in force do with the Service's ports, in the order of its ports.
pub(super) fn read(socket: &mut Socket, subject: &Subject) -> Result<Vec<PortRules>, Errno> {
    let family = super::family(subject.ip);
    let wanted: Vec<String> = (subject.ports.iter())
        .map(|port| {
            let protocol = super::protocol(port.protocol);
            format!("-{}/{}/{protocol}/{}", subject.namespace, subject.service, port.name)
        })
        .collect();
    let mut led: Vec<Vec<Leads>> = vec![Vec::new(); wanted.len()];
    rules_of(socket, family, TABLE, None, |rule| {
        let Some(chain) = rule.attributes.iter().find_map(|attribute| match attribute {
            RuleAttribute::Chain(chain) => Some(chain),
            _ => None,
        }) else {
            return;
        };
        if chain.starts_with("service-")
            && let Some(port) = wanted.iter().position(|name| chain.ends_with(name))
        {
            led[port].extend(leads(rule));
        }
    })?;
    let mut rejected = Vec::new();
    let rejecting = match subject.cluster_ip {
        Some(_) => "no-endpoint-services",
        None => "no-endpoint-nodeports",
    };
    elements(socket, family, rejecting, |element| rejected.extend(key(element)))?;
    let mut ports = Vec::new();
    for (port, led) in subject.ports.iter().zip(led) {
        let mut endpoints = Vec::new();
        for leads in led {
            match leads {
                Leads::To(endpoint) => endpoints.push(endpoint),
                Leads::By(map) => {
                    elements(socket, family, &map, |element| endpoints.extend(goes_to(element)))?;
                }
            }
        }
        endpoints.sort_unstable();
        endpoints.dedup();
        let key = match subject.cluster_ip {
            Some(address) => Some(service_key(address, port.protocol, port.service_port)),
            None => port.node_port.map(|node_port| node_port_key(port.protocol, node_port)),
        };
        let reject = key.is_some_and(|key| rejected.contains(&key));
        ports.push(PortRules { protocol: port.protocol, endpoints, reject });
    }
    Ok(ports)
}

/// Where a rule of a Service's chain leads.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Leads {
    To(SocketAddr),
    /// To one of those that a map of this name holds.
    By(String),
}

fn leads(rule: &RuleMessage) -> Option<Leads> {
    let expressions = rule.attributes.iter().find_map(|attribute| match attribute {
        RuleAttribute::Expressions(expressions) => Some(expressions),
        _ => None,
    })?;
    let parts = expressions.iter().filter_map(|expression| match expression {
        ListAttribute::Element(parts) => Some(parts),
        _ => None,
    });
    let (mut loaded, mut map, mut translates) = (Vec::new(), None, false);
    for part in parts.flatten() {
        let ExpressionAttribute::Data(expression) = part else { continue };
        match expression {
            Expressions::Immediate(parts) => loaded.extend(parts.iter().find_map(value)),
            Expressions::Lookup(parts) => map = map.or(looked_up(parts)),
            Expressions::Other { expression_type, .. } if expression_type == "nat" => {
                translates = true
            }
            _ => {}
        }
    }
    // What it looks up is where it translates to, or the chain that does.
    match (map, loaded.as_slice()) {
        (Some(map), _) => Some(Leads::By(map)),
        (None, [address, port]) if translates => Some(Leads::To(socket_address(address, port)?)),
        (None, _) => None,
    }
}

/// What is loaded into a register.
fn value(part: &Immediate) -> Option<&[u8]> {
    match part {
        Immediate::Data(DataAttribute::Value(bytes)) => Some(bytes),
        _ => None,
    }
}

/// The map that something is looked up in; `None` where it is only asked whether a set has it.
fn looked_up(lookup: &[Lookup]) -> Option<String> {
    if !lookup.iter().any(|part| matches!(part, Lookup::DestinationRegister(_))) {
        return None;
    }
    lookup.iter().find_map(|part| match part {
        Lookup::Set(name) => Some(name.clone()),
        _ => None,
    })
}

/// Of the bytes of an address and those that begin with a port.
fn socket_address(address: &[u8], port: &[u8]) -> Option<SocketAddr> {
    let address = match address.len() {
        4 => IpAddr::from(<[u8; 4]>::try_from(address).ok()?),
        _ => IpAddr::from(<[u8; 16]>::try_from(address).ok()?),
    };
    let port = u16::from_be_bytes(*port.first_chunk()?);
    Some(SocketAddr::new(address, port))
}

/// Gives each element of a set. A set that is not there has none.
fn elements(
    socket: &mut Socket,
    family: NetfilterProtoFamily,
    set: &str,
    mut each: impl FnMut(&[SetElementAttribute]),
) -> Result<(), Errno> {
    let attributes = vec![SetElementList::Table(TABLE.into()), SetElementList::Set(set.into())];
    let request = NfTablesMessage::GetSetElement(SetElementMessage { attributes });
    let dumped = socket.dump(family, request, |message| {
        let NetfilterMessageInner::NfTables(NfTablesMessage::NewSetElement(list)) = message.inner
        else {
            return;
        };
        for attribute in &list.attributes {
            let SetElementList::Elements(elements) = attribute else { continue };
            for element in elements {
                if let ListAttribute::Element(parts) = element {
                    each(parts);
                }
            }
        }
    });
    match dumped {
        Err(Errno::ENOENT) => Ok(()),
        result => result,
    }
}

fn key(element: &[SetElementAttribute]) -> Option<Vec<u8>> {
    element.iter().find_map(|part| match part {
        SetElementAttribute::Key(DataAttribute::Value(bytes)) => Some(bytes.clone()),
        _ => None,
    })
}

/// How a node port stands in a set: the protocol and the port, each in four bytes.
fn node_port_key(protocol: Protocol, port: u16) -> Vec<u8> {
    let number = match protocol {
        Protocol::Tcp => 6,
        Protocol::Udp => 17,
    };
    let [high, low] = port.to_be_bytes();
    vec![number, 0, 0, 0, high, low, 0, 0]
}

/// How a Service's own address stands in a set: the address, the protocol and the port, each in four
/// bytes (an IPv6 address in sixteen).
fn service_key(address: IpAddr, protocol: Protocol, port: u16) -> Vec<u8> {
    let mut key = match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    key.extend(node_port_key(protocol, port));
    key
}

/// The endpoint that an element leads to: by its chain, `endpoint-ABCD-ns/name/udp/port__10.231.1.5/7002`,
/// or by its address and its port, each in four bytes (an IPv6 address in sixteen).
fn goes_to(element: &[SetElementAttribute]) -> Option<SocketAddr> {
    element.iter().find_map(|part| match part {
        SetElementAttribute::Data(DataAttribute::Verdict(verdict)) => {
            verdict.iter().find_map(|part| match part {
                VerdictAttribute::Chain(chain) => endpoint(chain),
                _ => None,
            })
        }
        SetElementAttribute::Data(DataAttribute::Value(bytes)) => {
            let (address, port) = bytes.split_at_checked(bytes.len().checked_sub(4)?)?;
            socket_address(address, port)
        }
        _ => None,
    })
}

/// A chain's name can't hold colons: an address of IPv6 stands there with dots.
fn endpoint(chain: &str) -> Option<SocketAddr> {
    let (_, address) = chain.rsplit_once("__")?;
    let (address, port) = address.rsplit_once('/')?;
    let address: IpAddr = address.parse().or_else(|_| address.replace('.', ":").parse()).ok()?;
    Some(SocketAddr::new(address, port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_read_of_its_chains_name() {
        let of = endpoint("endpoint-2QFVDBYO-drainwatch/probe-001/udp/udp__10.244.2.2/7002");
        assert_eq!(of, Some("10.244.2.2:7002".parse().unwrap()));
        let of =
            endpoint("endpoint-5OJB2KTY-drainwatch/probe-001/udp/udp__fd64.7277.ff00.2..5/7002");
        assert_eq!(of, Some("[fd64:7277:ff00:2::5]:7002".parse().unwrap()));
        assert_eq!(endpoint("reject-chain"), None);
    }

    #[test]
    fn a_services_address_comes_before_its_protocol_and_port() {
        let key = service_key("10.96.7.9".parse().unwrap(), Protocol::Udp, 7002);
        assert_eq!(key, [10, 96, 7, 9, 17, 0, 0, 0, 0x1b, 0x5a, 0, 0]);
    }

    #[test]
    fn a_node_port_is_four_bytes_after_its_protocols_four() {
        assert_eq!(node_port_key(Protocol::Udp, 0x7ab4), [17, 0, 0, 0, 0x7a, 0xb4, 0, 0]);
    }
}
