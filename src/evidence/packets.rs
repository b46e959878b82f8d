//! Packets that end or refuse a flow, as they pass a node: TCP's RST and FIN, and ICMP
//! "destination unreachable", with their sender and the interface that they came in or left by.
//!
//! A packet socket on all interfaces of the node, with a filter in the kernel, so that heartbeats
//! never reach this program. Times are the kernel's own, of the packet.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use nix::errno::Errno;
use nix::libc;
use socket2::SockFilter;

use super::Subject;
use super::tap::{Direction, Heard, Tap, instruction};
use crate::observation::{PacketKind, Protocol};

/// Headers are all that is looked at: IP with options, ICMP, and the headers that ICMP quotes.
pub(crate) const HEADERS: usize = 256;

/// The kernel's numbers of what IP carries.
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP: u8 = 1;
const ICMP6: u8 = 58;
/// "Destination unreachable", of the one ICMP and of the other.
const UNREACHABLE: u8 = 3;
const UNREACHABLE6: u8 = 1;
/// Bytes of IPv6's own header.
const IPV6_HEADER: u32 = 40;

/// Packets of one network namespace.
#[derive(Debug)]
pub(super) struct Packets(Tap);

/// A packet, and when and where it passed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Packet {
    /// On the monotonic clock, in nanoseconds since boot.
    pub at_ns: i64,
    /// Whether that is the kernel's time of it; else it is when it was read.
    pub stamped: bool,
    /// The interface's name.
    pub interface: String,
    /// Whether it left by the interface; else it came in by it.
    pub out: bool,
    pub what: What,
}

/// What a packet says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct What {
    pub kind: PacketKind,
    pub protocol: Protocol,
    /// Who sent this packet, by its IP header.
    pub sender: IpAddr,
    /// The ends of the packet that it is about: itself, or the one that an ICMP message refuses.
    pub from: SocketAddr,
    pub to: SocketAddr,
    /// Of an ICMP message.
    pub code: Option<u8>,
}

impl Packets {
    /// Opens a socket for this thread's network namespace.
    pub fn open() -> io::Result<Self> {
        Tap::open(&filter(), Direction::Both).map(Self)
    }

    /// The next packet to a client of the Service, or about a client's; `None` if there is none now.
    pub fn next(&mut self, subject: &Subject) -> Result<Option<Packet>, Errno> {
        loop {
            let mut headers = [0; HEADERS];
            let Some(heard) = self.0.next(&mut headers)? else { return Ok(None) };
            let Some(what) = understand(&headers[..heard.length]) else { continue };
            let service = match what.kind {
                PacketKind::Unreachable => what.to,
                PacketKind::Rst | PacketKind::Fin => what.from,
            };
            if !subject.is_service(what.protocol, service) {
                continue;
            }
            let Heard { at_ns, stamped, out, .. } = heard;
            let interface = self.0.interface(heard.interface);
            return Ok(Some(Packet { at_ns, stamped, interface, out, what }));
        }
    }

    /// How many packets the kernel dropped since this was last asked.
    pub fn dropped(&self) -> u32 {
        self.0.dropped()
    }
}

impl AsFd for Packets {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// TCP with RST or FIN, or ICMP "destination unreachable", of IPv4 (no later fragments) or of IPv6
/// (no headers in between).
pub(crate) fn filter() -> Vec<SockFilter> {
    use nix::libc::{
        BPF_ABS, BPF_B, BPF_H, BPF_IND, BPF_JEQ, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_LDX,
        BPF_MSH, BPF_RET, BPF_W,
    };
    const PROTOCOL: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_PROTOCOL).cast_unsigned();
    let statement = |code: u32, k: u32| instruction(code, k, 0, 0);
    let equal = |k: u32, jt: u8, jf: u8| instruction(BPF_JMP | BPF_JEQ | BPF_K, k, jt, jf);
    vec![
        /* 0 */ statement(BPF_LD | BPF_W | BPF_ABS, PROTOCOL),
        /* 1 */ equal(libc::ETH_P_IP as u32, 1, 0),
        /* 2 */ equal(libc::ETH_P_IPV6 as u32, 10, 17),
        /* 3 */ statement(BPF_LD | BPF_H | BPF_ABS, 6),
        /* 4 */ instruction(BPF_JMP | BPF_JSET | BPF_K, 0x1fff, 15, 0),
        /* 5 */ statement(BPF_LDX | BPF_B | BPF_MSH, 0),
        /* 6 */ statement(BPF_LD | BPF_B | BPF_ABS, 9),
        /* 7 */ equal(TCP.into(), 0, 2),
        /* 8 */ statement(BPF_LD | BPF_B | BPF_IND, 13),
        /* 9 */ instruction(BPF_JMP | BPF_JSET | BPF_K, 0x05, 11, 10),
        /* 10 */ equal(ICMP.into(), 0, 9),
        /* 11 */ statement(BPF_LD | BPF_B | BPF_IND, 0),
        /* 12 */ equal(UNREACHABLE.into(), 8, 7),
        /* 13 */ statement(BPF_LD | BPF_B | BPF_ABS, 6),
        /* 14 */ equal(TCP.into(), 0, 2),
        /* 15 */ statement(BPF_LD | BPF_B | BPF_ABS, IPV6_HEADER + 13),
        /* 16 */ instruction(BPF_JMP | BPF_JSET | BPF_K, 0x05, 4, 3),
        /* 17 */ equal(ICMP6.into(), 0, 2),
        /* 18 */ statement(BPF_LD | BPF_B | BPF_ABS, IPV6_HEADER),
        /* 19 */ equal(UNREACHABLE6.into(), 1, 0),
        /* 20 */ statement(BPF_RET | BPF_K, 0),
        /* 21 */ statement(BPF_RET | BPF_K, HEADERS as u32),
    ]
}

/// Reads a packet that passed the filter.
pub(crate) fn understand(packet: &[u8]) -> Option<What> {
    let (number, sender, receiver, rest) = ip(packet)?;
    if number == TCP {
        let flags = *rest.get(13)?;
        let kind = if flags & 0x04 != 0 { PacketKind::Rst } else { PacketKind::Fin };
        let (from, to) = ends(sender, receiver, rest)?;
        return Some(What { kind, protocol: Protocol::Tcp, sender, from, to, code: None });
    }
    let code = Some(*rest.get(1)?);
    let (number, from, to, rest) = ip(rest.get(8..)?)?;
    let protocol = match number {
        TCP => Protocol::Tcp,
        UDP => Protocol::Udp,
        _ => return None,
    };
    let (from, to) = ends(from, to, rest)?;
    Some(What { kind: PacketKind::Unreachable, protocol, sender, from, to, code })
}

/// The protocol's number, source, destination, and what follows the header.
fn ip(packet: &[u8]) -> Option<(u8, IpAddr, IpAddr, &[u8])> {
    if packet.first()? >> 4 == 6 {
        let address = |at: usize| -> Option<IpAddr> {
            let octets: [u8; 16] = packet.get(at..at + 16)?.try_into().ok()?;
            Some(Ipv6Addr::from(octets).into())
        };
        let rest = packet.get(IPV6_HEADER as usize..)?;
        return Some((*packet.get(6)?, address(8)?, address(24)?, rest));
    }
    let address = |at: usize| -> Option<IpAddr> {
        let octets: [u8; 4] = packet.get(at..at + 4)?.try_into().ok()?;
        Some(Ipv4Addr::from(octets).into())
    };
    let header = usize::from(packet.first()? & 0xf) * 4;
    Some((*packet.get(9)?, address(12)?, address(16)?, packet.get(header..)?))
}

/// Source and destination, with the ports that the transport's header begins with.
fn ends(from: IpAddr, to: IpAddr, header: &[u8]) -> Option<(SocketAddr, SocketAddr)> {
    let port = |at: usize| Some(u16::from_be_bytes(header.get(at..at + 2)?.try_into().ok()?));
    Some((SocketAddr::new(from, port(0)?), SocketAddr::new(to, port(2)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An IPv4 header of 20 bytes and what follows it.
    fn ipv4_packet(number: u8, from: [u8; 4], to: [u8; 4], rest: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, number, 0, 0];
        packet.extend(from);
        packet.extend(to);
        packet.extend(rest);
        packet
    }
    const POD: [u8; 4] = [10, 244, 2, 2];
    const NODE: [u8; 4] = [10, 231, 4, 11];

    #[test]
    fn a_reset_is_told_from_a_fin_and_has_its_ends() {
        let header = |flags: u8| {
            [&7001u16.to_be_bytes()[..], &4000u16.to_be_bytes(), &[0; 9], &[flags]].concat()
        };
        let of = |flags| understand(&ipv4_packet(6, POD, NODE, &header(flags))).unwrap();
        assert_eq!(of(0x14).kind, PacketKind::Rst);
        assert_eq!(of(0x11).kind, PacketKind::Fin);
        assert_eq!(of(0x15).kind, PacketKind::Rst, "both: nothing comes after a RST");
        let what = of(0x04);
        assert_eq!(
            (what.from, what.to),
            ("10.244.2.2:7001".parse().unwrap(), "10.231.4.11:4000".parse().unwrap())
        );
    }

    #[test]
    fn a_refusal_is_about_the_datagram_that_it_quotes() {
        let quoted = ipv4_packet(
            17,
            NODE,
            POD,
            &[&4000u16.to_be_bytes()[..], &7002u16.to_be_bytes()].concat(),
        );
        let icmp = [&[3, 3, 0, 0, 0, 0, 0, 0][..], &quoted].concat();
        let what = understand(&ipv4_packet(1, POD, NODE, &icmp)).unwrap();
        assert_eq!(what.kind, PacketKind::Unreachable);
        assert_eq!((what.protocol, what.code), (Protocol::Udp, Some(3)));
        assert_eq!(what.sender, IpAddr::from(POD));
        assert_eq!(what.from, "10.231.4.11:4000".parse().unwrap());
        assert_eq!(what.to, "10.244.2.2:7002".parse().unwrap());
    }

    /// The same of IPv6.
    fn ipv6_packet(number: u8, from: &str, to: &str, rest: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x60, 0, 0, 0, 0, 0, number, 64];
        packet.extend(from.parse::<Ipv6Addr>().unwrap().octets());
        packet.extend(to.parse::<Ipv6Addr>().unwrap().octets());
        packet.extend(rest);
        packet
    }

    #[test]
    fn ipv6_is_understood_like_ipv4() {
        let ports = [&4000u16.to_be_bytes()[..], &7002u16.to_be_bytes()].concat();
        let quoted = ipv6_packet(17, "fd00::1", "fd00::2", &ports);
        let icmp = [&[1, 4, 0, 0, 0, 0, 0, 0][..], &quoted].concat();
        let what = understand(&ipv6_packet(58, "fd00::2", "fd00::1", &icmp)).unwrap();
        assert_eq!((what.kind, what.protocol), (PacketKind::Unreachable, Protocol::Udp));
        assert_eq!((what.sender, what.code), ("fd00::2".parse().unwrap(), Some(4)));
        assert_eq!(what.from, "[fd00::1]:4000".parse().unwrap());
        assert_eq!(what.to, "[fd00::2]:7002".parse().unwrap());

        let reset = [&ports[..], &[0; 9], &[0x04]].concat();
        let what = understand(&ipv6_packet(6, "fd00::1", "fd00::2", &reset)).unwrap();
        assert_eq!((what.kind, what.from), (PacketKind::Rst, "[fd00::1]:4000".parse().unwrap()));
    }

    #[test]
    fn what_is_cut_off_is_not_understood() {
        for whole in
            [ipv4_packet(6, POD, NODE, &[0; 14]), ipv6_packet(6, "fd00::1", "fd00::2", &[0; 14])]
        {
            for length in 0..whole.len() {
                assert_eq!(understand(&whole[..length]), None, "{length}");
            }
        }
    }
}
