//! kube-proxy's rules: what each commit left for the Service's ports.
//!
//! The kernel tells of a commit by its generation; what it left is read right after. Where another
//! commit has come in between, what was read is that one's, and is kept for its own event.

mod iptables;
mod nftables;

use std::net::SocketAddr;

use netlink_packet_netfilter::nftables::{
    GenAttribute, GenMessage, NfTablesMessage, RuleAttribute, RuleMessage,
};
use netlink_packet_netfilter::{NetfilterMessageInner, NetfilterProtoFamily};
use nix::errno::Errno;

use super::Subject;
use super::netlink::{Raw, Socket};
use crate::config::{IpFamily, ProxyMode};
use crate::observation::Protocol;

/// The kernel's number of `NFT_MSG_NEWGEN`, in the subsystem nftables.
const NEW_GENERATION: u16 = 10 << 8 | 15;
/// Rules that change while they are read are read again this often.
const TRIES: u32 = 5;

/// What the rules do with one port of the Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PortRules {
    pub protocol: Protocol,
    /// Where new flows may go, sorted.
    pub endpoints: Vec<SocketAddr>,
    /// Whether they are rejected instead.
    pub reject: bool,
}

/// One node's rules, as last read.
#[derive(Debug)]
pub(super) struct Rules {
    /// Asks for dumps; another socket hears of commits.
    socket: Socket,
    mode: ProxyMode,
    /// Of which generation, and what.
    read: Option<(u32, Vec<PortRules>)>,
    told: Option<Vec<PortRules>>,
}

/// A commit: its generation, and which process made it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Commit {
    pub generation: u32,
    pub process: Option<String>,
}

/// The commit that a message tells of, if it tells of one.
pub(super) fn commit(raw: &Raw) -> Option<Commit> {
    if raw.kind != NEW_GENERATION {
        return None;
    }
    let message = raw.parse()?;
    let NetfilterMessageInner::NfTables(NfTablesMessage::NewGen(message)) = message.inner else {
        return None;
    };
    let mut commit = Commit { generation: 0, process: None };
    for attribute in message.attributes {
        match attribute {
            GenAttribute::Id(id) => commit.generation = id,
            GenAttribute::ProcName(name) => commit.process = Some(name),
            _ => {}
        }
    }
    Some(commit)
}

impl Rules {
    /// Opens a socket for the rules of this thread's network namespace.
    pub fn open(mode: ProxyMode) -> std::io::Result<Self> {
        Ok(Self { socket: Socket::open(&[])?, mode, read: None, told: None })
    }

    /// What a commit left for the Service, where that is news; `None` where it left all as it was.
    /// Without a commit: what is in force now.
    ///
    /// # Errors
    /// The rules could not be read.
    pub fn after(
        &mut self,
        commit: Option<&Commit>,
        subject: &Subject,
    ) -> Result<Option<Vec<PortRules>>, Errno> {
        let known = |read: &Self| read.read.as_ref().map(|(generation, _)| *generation);
        let wanted = commit.map(|commit| commit.generation);
        // What was read before may be of this commit already, or of a later one.
        let newer = |known: u32, wanted: u32| known.wrapping_sub(wanted).cast_signed() >= 0;
        if !matches!((known(self), wanted), (Some(known), Some(wanted)) if newer(known, wanted)) {
            self.read = Some(self.read_in_force(subject)?);
        }
        let Some((generation, rules)) = &self.read else { return Ok(None) };
        if wanted.is_some_and(|wanted| wanted != *generation) || self.told.as_ref() == Some(rules) {
            return Ok(None);
        }
        self.told = Some(rules.clone());
        Ok(self.told.clone())
    }

    /// The rules and the generation that they are of.
    fn read_in_force(&mut self, subject: &Subject) -> Result<(u32, Vec<PortRules>), Errno> {
        let mut last = Errno::EINTR;
        for _ in 0..TRIES {
            let before = self.generation()?;
            let read = match self.mode {
                ProxyMode::Nftables => nftables::read(&mut self.socket, subject),
                ProxyMode::Iptables | ProxyMode::Ipvs => iptables::read(&mut self.socket, subject),
            };
            match read {
                Ok(rules) if self.generation()? == before => return Ok((before, rules)),
                Ok(_) => {}
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn generation(&mut self) -> Result<u32, Errno> {
        let request = NfTablesMessage::GetGen(GenMessage { attributes: Vec::new() });
        let answer = self.socket.get(NetfilterProtoFamily::Unspec, request)?;
        let NetfilterMessageInner::NfTables(NfTablesMessage::NewGen(message)) = answer.inner else {
            return Err(Errno::EBADMSG);
        };
        let id = message.attributes.iter().find_map(|attribute| match attribute {
            GenAttribute::Id(id) => Some(*id),
            _ => None,
        });
        id.ok_or(Errno::EBADMSG)
    }
}

/// The rules of a Service that has endpoints, and so lead new flows somewhere: else they are of a form that
/// is not known here.
///
/// # Errors
/// Why they are not.
pub(super) fn of_known_form(rules: Vec<PortRules>) -> Result<Vec<PortRules>, String> {
    match rules.iter().find(|port| port.endpoints.is_empty() && !port.reject) {
        Some(port) => Err(format!(
            "in kube-proxy's rules no endpoint of the Service's {} port was found: they are of a form \
             that is not known",
            protocol(port.protocol).to_uppercase(),
        )),
        None => Ok(rules),
    }
}

/// Gives each rule of a table, or of one of its chains.
fn rules_of(
    socket: &mut Socket,
    family: NetfilterProtoFamily,
    table: &str,
    chain: Option<&str>,
    mut each: impl FnMut(&RuleMessage),
) -> Result<(), Errno> {
    let mut attributes = vec![RuleAttribute::Table(table.to_owned())];
    attributes.extend(chain.map(|chain| RuleAttribute::Chain(chain.to_owned())));
    let request = NfTablesMessage::GetRule(RuleMessage { attributes });
    socket.dump(family, request, |message| {
        if let NetfilterMessageInner::NfTables(NfTablesMessage::NewRule(rule)) = &message.inner {
            each(rule);
        }
    })
}

/// Of the tables that kube-proxy writes for these addresses.
fn family(ip: IpFamily) -> NetfilterProtoFamily {
    match ip {
        IpFamily::Ipv4 => NetfilterProtoFamily::IPv4,
        IpFamily::Ipv6 => NetfilterProtoFamily::IPv6,
    }
}

/// As kube-proxy writes it.
fn protocol(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
    }
}
