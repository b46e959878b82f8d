//! Packets that end or refuse a flow, as they pass a node: TCP's RST and FIN, and ICMP
//! "destination unreachable", with their sender and the interface that they came in or left by.
//!
//! A packet socket on all interfaces of the node, with a filter in the kernel, so that heartbeats
//! never reach this program. Times are the kernel's own, of the packet.

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{ControlMessageOwned, LinkAddr, MsgFlags, recvmsg, setsockopt, sockopt};
use nix::time::{ClockId, clock_gettime};
use socket2::{Domain, SockAddr, SockFilter, Type};

use super::{Subject, netlink};
use crate::clock::monotonic_ns;
use crate::observation::{PacketKind, Protocol};

/// Headers are all that is looked at: IP with options, ICMP, and the headers that ICMP quotes.
const HEADERS: usize = 256;

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

/// A packet socket of one network namespace.
#[derive(Debug)]
pub(super) struct Packets {
    socket: socket2::Socket,
    control: Vec<u8>,
}

/// A packet, and when and where it passed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Packet {
    /// On the monotonic clock, in nanoseconds since boot.
    pub at_ns: i64,
    /// The interface's name.
    pub interface: String,
    /// Whether it left by the interface; else it came in by it.
    pub out: bool,
    pub what: What,
}

/// What a packet says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct What {
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
        // Without a protocol it hears nothing yet: the filter comes first.
        let socket = socket2::Socket::new(Domain::PACKET, Type::DGRAM, None)?;
        socket.set_nonblocking(true)?;
        netlink::enlarge(&socket);
        socket.attach_filter(&filter())?;
        setsockopt(&socket, sockopt::ReceiveTimestampns, &true)?;
        socket.bind(&all_interfaces())?;
        Ok(Self { socket, control: nix::cmsg_space!(libc::timespec) })
    }

    /// The next packet to a client of the Service, or about a client's; `None` if there is none now.
    pub fn next(&mut self, subject: &Subject) -> Result<Option<Packet>, Errno> {
        loop {
            let mut headers = [0; HEADERS];
            let Some((length, from, at_ns)) = self.receive(&mut headers)? else { return Ok(None) };
            let Some(what) = understand(&headers[..length]) else { continue };
            let service = match what.kind {
                PacketKind::Unreachable => what.to,
                PacketKind::Rst | PacketKind::Fin => what.from,
            };
            if !subject.is_service(what.protocol, service) {
                continue;
            }
            let at_ns = at_ns.unwrap_or_else(monotonic_ns);
            let interface = self.interface(from.ifindex());
            let out = from.pkttype() == libc::PACKET_OUTGOING;
            return Ok(Some(Packet { at_ns, interface, out, what }));
        }
    }

    fn receive(
        &mut self,
        headers: &mut [u8],
    ) -> Result<Option<(usize, LinkAddr, Option<i64>)>, Errno> {
        let mut parts = [IoSliceMut::new(headers)];
        let control = Some(self.control.as_mut_slice());
        let fd = self.socket.as_raw_fd();
        let message = match recvmsg::<LinkAddr>(fd, &mut parts, control, MsgFlags::empty()) {
            Ok(message) => message,
            Err(Errno::EAGAIN) => return Ok(None),
            Err(error) => return Err(error),
        };
        let real = message.cmsgs()?.find_map(|control| match control {
            ControlMessageOwned::ScmTimestampns(time) => Some(time),
            _ => None,
        });
        let address = message.address.ok_or(Errno::EBADMSG)?;
        let at = real.and_then(|real| monotonic(real.tv_sec() * 1_000_000_000 + real.tv_nsec()));
        Ok(Some((message.bytes, address, at)))
    }

    /// How many packets the kernel dropped since this was last asked.
    pub fn dropped(&self) -> u32 {
        let mut statistics = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
        let mut length = size_of::<libc::tpacket_stats>() as libc::socklen_t;
        // SAFETY: the kernel writes a `tpacket_stats` of this length, which outlives the call.
        unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                std::ptr::from_mut(&mut statistics).cast(),
                &raw mut length,
            );
        }
        statistics.tp_drops
    }

    /// An interface's name in the socket's namespace; its number where it has none any more.
    fn interface(&self, index: usize) -> String {
        // SAFETY: all zeros are a valid `ifreq`.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        request.ifr_ifru.ifru_ifindex = i32::try_from(index).unwrap_or(0);
        // SAFETY: the kernel reads the index from the `ifreq` and writes the name into it.
        let result = unsafe {
            libc::ioctl(self.socket.as_raw_fd(), libc::SIOCGIFNAME as _, &raw mut request)
        };
        if result != 0 {
            return format!("interface {index}");
        }
        let name = request.ifr_name.iter().map(|c| c.cast_unsigned()).take_while(|c| *c != 0);
        String::from_utf8_lossy(&name.collect::<Vec<_>>()).into_owned()
    }
}

impl AsFd for Packets {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Both clocks are read as one within this; a thread that loses its processor in between tries again.
const AS_ONE_NS: i64 = 10_000;
/// As often as this.
const TRIES: u32 = 5;

/// A wall-clock instant of a moment ago, on the monotonic clock.
fn monotonic(real_ns: i64) -> Option<i64> {
    let mut nearest: Option<(i64, i64)> = None;
    for _ in 0..TRIES {
        let before = monotonic_ns();
        let now = clock_gettime(ClockId::CLOCK_REALTIME).ok()?;
        let apart = monotonic_ns() - before;
        let age = now.tv_sec() * 1_000_000_000 + now.tv_nsec() - real_ns;
        if nearest.is_none_or(|(least, _)| apart < least) {
            nearest = Some((apart, before + apart / 2 - age));
        }
        if apart <= AS_ONE_NS {
            break;
        }
    }
    nearest.map(|(_, at)| at)
}

/// Every interface, every protocol: only those who ask for all hear what leaves, too.
fn all_interfaces() -> SockAddr {
    // SAFETY: a `sockaddr_ll` fits into the storage and is written whole, and its length is given.
    let ((), address) = unsafe {
        SockAddr::try_init(|storage, length| {
            let mut link: libc::sockaddr_ll = std::mem::zeroed();
            link.sll_family = libc::AF_PACKET as u16;
            link.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
            storage.cast::<libc::sockaddr_ll>().write(link);
            *length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
            Ok(())
        })
    }
    .unwrap_or_else(|_| unreachable!("the closure gives Ok"));
    address
}

/// TCP with RST or FIN, or ICMP "destination unreachable", of IPv4 (no later fragments) or of IPv6
/// (no headers in between).
fn filter() -> Vec<SockFilter> {
    use nix::libc::{
        BPF_ABS, BPF_B, BPF_H, BPF_IND, BPF_JEQ, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_LDX,
        BPF_MSH, BPF_RET, BPF_W,
    };
    const PROTOCOL: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_PROTOCOL).cast_unsigned();
    let statement = |code: u32, k: u32| jump(code, k, 0, 0);
    let equal = |k: u32, jt: u8, jf: u8| jump(BPF_JMP | BPF_JEQ | BPF_K, k, jt, jf);
    vec![
        /* 0 */ statement(BPF_LD | BPF_W | BPF_ABS, PROTOCOL),
        /* 1 */ equal(libc::ETH_P_IP as u32, 1, 0),
        /* 2 */ equal(libc::ETH_P_IPV6 as u32, 10, 17),
        /* 3 */ statement(BPF_LD | BPF_H | BPF_ABS, 6),
        /* 4 */ jump(BPF_JMP | BPF_JSET | BPF_K, 0x1fff, 15, 0),
        /* 5 */ statement(BPF_LDX | BPF_B | BPF_MSH, 0),
        /* 6 */ statement(BPF_LD | BPF_B | BPF_ABS, 9),
        /* 7 */ equal(TCP.into(), 0, 2),
        /* 8 */ statement(BPF_LD | BPF_B | BPF_IND, 13),
        /* 9 */ jump(BPF_JMP | BPF_JSET | BPF_K, 0x05, 11, 10),
        /* 10 */ equal(ICMP.into(), 0, 9),
        /* 11 */ statement(BPF_LD | BPF_B | BPF_IND, 0),
        /* 12 */ equal(UNREACHABLE.into(), 8, 7),
        /* 13 */ statement(BPF_LD | BPF_B | BPF_ABS, 6),
        /* 14 */ equal(TCP.into(), 0, 2),
        /* 15 */ statement(BPF_LD | BPF_B | BPF_ABS, IPV6_HEADER + 13),
        /* 16 */ jump(BPF_JMP | BPF_JSET | BPF_K, 0x05, 4, 3),
        /* 17 */ equal(ICMP6.into(), 0, 2),
        /* 18 */ statement(BPF_LD | BPF_B | BPF_ABS, IPV6_HEADER),
        /* 19 */ equal(UNREACHABLE6.into(), 1, 0),
        /* 20 */ statement(BPF_RET | BPF_K, 0),
        /* 21 */ statement(BPF_RET | BPF_K, HEADERS as u32),
    ]
}

fn jump(code: u32, k: u32, jt: u8, jf: u8) -> SockFilter {
    SockFilter::new(code as u16, jt, jf, k)
}

/// Reads a packet that passed the filter.
fn understand(packet: &[u8]) -> Option<What> {
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

    #[test]
    fn a_wall_clock_instant_is_placed_between_the_readings_around_it() {
        for _ in 0..1000 {
            let before = monotonic_ns();
            let now = clock_gettime(ClockId::CLOCK_REALTIME).unwrap();
            let after = monotonic_ns();
            let placed = monotonic(now.tv_sec() * 1_000_000_000 + now.tv_nsec()).unwrap();
            // A wall clock that is being set right runs at another rate meanwhile.
            let slack = 1_000_000;
            assert!(
                (before - slack..=after + slack).contains(&placed),
                "{before} {placed} {after}"
            );
        }
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
