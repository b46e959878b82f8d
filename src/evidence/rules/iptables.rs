//! kube-proxy's iptables mode, as `iptables-nft` keeps it: rules of nftables that carry iptables'
//! own matches. Each rule of a Service's chain `KUBE-SVC-…` names its endpoint in a comment.

use std::net::SocketAddr;

use netlink_packet_core::Nla;
use netlink_packet_netfilter::NetfilterProtoFamily;
use netlink_packet_netfilter::nftables::{
    ExpressionAttribute, Expressions, ListAttribute, RuleAttribute, RuleMessage,
};
use nix::errno::Errno;
use sha2::{Digest, Sha256};

use super::super::netlink::Socket;
use super::super::{Subject, SubjectPort};
use super::{PortRules, rules_of};

/// In the kernel's `nft_match` expression: the match's name, and what it was told.
const MATCH_NAME: u16 = 1;
const MATCH_INFO: u16 = 3;

/// What the rules in force do with the Service's ports, in the order of its ports.
pub(super) fn read(socket: &mut Socket, subject: &Subject) -> Result<Vec<PortRules>, Errno> {
    let family = super::family(subject.ip);
    let mut rejected = Vec::new();
    let rejecting = match subject.cluster_ip {
        Some(_) => "KUBE-SERVICES",
        None => "KUBE-EXTERNAL-SERVICES",
    };
    comments(socket, family, "filter", rejecting, |comment| rejected.push(comment))?;
    let mut ports = Vec::new();
    for port in &subject.ports {
        let name = port_name(subject, port);
        let mut endpoints = Vec::new();
        comments(socket, family, "nat", &chain(&name, port), |comment| {
            endpoints.extend(endpoint(&comment, &name));
        })?;
        endpoints.sort_unstable();
        let reject = rejected.iter().any(|comment| *comment == format!("{name} has no endpoints"));
        ports.push(PortRules { protocol: port.protocol, endpoints, reject });
    }
    Ok(ports)
}

/// `drainwatch/probe-001:udp`
fn port_name(subject: &Subject, port: &SubjectPort) -> String {
    format!("{}/{}:{}", subject.namespace, subject.service, port.name)
}

/// The chain of a Service's port: kube-proxy names it by a hash.
fn chain(name: &str, port: &SubjectPort) -> String {
    let hash = Sha256::digest(format!("{name}{}", super::protocol(port.protocol)));
    format!("KUBE-SVC-{}", &base32(&hash)[..16])
}

/// RFC 4648, without padding.
fn base32(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
    let bit =
        |index: usize| bytes.get(index / 8).is_some_and(|byte| byte >> (7 - index % 8) & 1 == 1);
    let digit = |at: usize| (0..5).fold(0, |digit, i| digit << 1 | usize::from(bit(at * 5 + i)));
    (0..(bytes.len() * 8).div_ceil(5)).map(|at| char::from(ALPHABET[digit(at)])).collect()
}

/// The endpoint that a comment names: `drainwatch/probe-001:udp -> 10.231.1.5:7002`.
fn endpoint(comment: &str, name: &str) -> Option<SocketAddr> {
    comment.strip_prefix(name)?.strip_prefix(" -> ")?.parse().ok()
}

/// The comments of a chain's rules. A chain that is not there has none.
fn comments(
    socket: &mut Socket,
    family: NetfilterProtoFamily,
    table: &str,
    chain: &str,
    mut each: impl FnMut(String),
) -> Result<(), Errno> {
    let dumped = rules_of(socket, family, table, Some(chain), |rule| each_comment(rule, &mut each));
    match dumped {
        Err(Errno::ENOENT) => Ok(()),
        result => result,
    }
}

fn each_comment(rule: &RuleMessage, each: &mut impl FnMut(String)) {
    for attribute in &rule.attributes {
        let RuleAttribute::Expressions(expressions) = attribute else { continue };
        for expression in expressions {
            let ListAttribute::Element(parts) = expression else { continue };
            for part in parts {
                if let ExpressionAttribute::Data(Expressions::Other { expression_type, attributes }) =
                    part
                    && expression_type == "match"
                    && text(attributes, MATCH_NAME).as_deref() == Some("comment")
                    && let Some(comment) = text(attributes, MATCH_INFO)
                {
                    each(comment);
                }
            }
        }
    }
}

/// An attribute's text up to its first zero byte.
fn text(attributes: &[netlink_packet_core::DefaultNla], kind: u16) -> Option<String> {
    let attribute = attributes.iter().find(|attribute| attribute.kind() == kind)?;
    let mut value = vec![0; attribute.value_len()];
    attribute.emit_value(&mut value);
    let end = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
    String::from_utf8(value[..end].to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base32_is_that_of_rfc_4648() {
        let cases = [("f", "MY"), ("fo", "MZXQ"), ("foo", "MZXW6"), ("foob", "MZXW6YQ")];
        for (text, expected) in cases {
            assert_eq!(base32(text.as_bytes()), expected);
        }
    }

    #[test]
    fn an_endpoint_is_read_of_its_own_port_only() {
        let name = "drainwatch/probe-001:udp";
        let of = |comment: &str| endpoint(comment, name);
        let expected = Some("10.244.2.2:7002".parse().unwrap());
        assert_eq!(of("drainwatch/probe-001:udp -> 10.244.2.2:7002"), expected);
        assert_eq!(of("drainwatch/probe-001:udp cluster IP"), None);
        assert_eq!(of("drainwatch/probe-001:tcp -> 10.244.2.2:7001"), None);
    }
}
