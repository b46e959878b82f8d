//! Source ports of dials, one after another.
//!
//! A port that the kernel chooses may be one that a dial had a moment ago. Connection tracking still
//! keeps that dial's entry then (30 s for UDP, 120 s for TCP that never connected), and leads the new
//! one the old way: it would be no new connection. So all ports have their turn before one comes again.
//! Ports that others had when the first dial was made have none, even once they are free: a dial from the
//! port of a flow that has ended would pass for that flow wherever addresses are compared.

use std::collections::HashSet;
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;

use nix::libc;
use socket2::Socket;

/// What a kernel has where it does not tell.
const DEFAULT: RangeInclusive<u16> = 32_768..=60_999;
/// The sockets of this thread's network namespace.
const FILES: [&str; 4] = [
    "/proc/thread-self/net/tcp",
    "/proc/thread-self/net/tcp6",
    "/proc/thread-self/net/udp",
    "/proc/thread-self/net/udp6",
];
/// So many ports may be taken in a row, since the first dial.
const TRIES: u32 = 2_000;

/// The ports that a kernel gives to clients, and whose turn it is.
#[derive(Debug)]
pub struct Ports {
    range: RangeInclusive<u16>,
    next: u16,
    /// In the range, and never given.
    others: HashSet<u16>,
}

impl Ports {
    /// Those of this thread's network namespace, from any one on: the next trial's dials should not
    /// begin where this one's did.
    pub fn here() -> Self {
        let range = read().unwrap_or(DEFAULT);
        let all = u64::from(range.end() - range.start()) + 1;
        let offset = RandomState::new().hash_one(std::process::id()) % all;
        let next = range.start() + offset as u16; // below the number of ports
        let others = FILES.iter().filter_map(|file| fs::read_to_string(file).ok());
        let others = others.flat_map(|text| text.lines().filter_map(port).collect::<Vec<_>>());
        Self { others: others.filter(|port| range.contains(port)).collect(), range, next }
    }

    /// Binds a socket, before it is connected to `remote`.
    ///
    /// # Errors
    /// Thousands of ports in a row are taken, or it is not allowed.
    pub fn bind(&mut self, socket: &Socket, remote: SocketAddr) -> io::Result<()> {
        let any = match remote {
            SocketAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let mut result = Err(io::Error::other("others have all source ports"));
        for _ in 0..TRIES {
            let Some(port) = self.take() else { break };
            result = socket.bind(&SocketAddr::new(any, port).into());
            match &result {
                Err(error) if error.raw_os_error() == Some(libc::EADDRINUSE) => {}
                _ => break,
            }
        }
        result
    }

    fn take(&mut self) -> Option<u16> {
        for _ in self.range.clone() {
            let port = self.next;
            self.next = if port == *self.range.end() { *self.range.start() } else { port + 1 };
            if !self.others.contains(&port) {
                return Some(port);
            }
        }
        None
    }
}

fn read() -> Option<RangeInclusive<u16>> {
    let text = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok()?;
    let mut ends = text.split_ascii_whitespace().map(str::parse::<u16>);
    let (first, last) = (ends.next()?.ok()?, ends.next()?.ok()?);
    (first <= last).then_some(first..=last)
}

/// The local port of a line such as `0: 0100007F:1B59 0200007F:0016 01 …`; none of the heading.
fn port(line: &str) -> Option<u16> {
    let (_, port) = line.split_ascii_whitespace().nth(1)?.rsplit_once(':')?;
    u16::from_str_radix(port, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use socket2::{Domain, Type};

    #[test]
    fn each_port_has_its_turn_and_taken_ones_are_passed_over() {
        let ports =
            |others: Vec<u16>| Ports { range: 5..=7, next: 6, others: HashSet::from_iter(others) };
        let turns = |mut ports: Ports| (0..5).map_while(|_| ports.take()).collect::<Vec<_>>();
        assert_eq!(turns(ports(vec![])), [6, 7, 5, 6, 7]);
        assert_eq!(turns(ports(vec![7])), [6, 5, 6, 5, 6]);
        assert_eq!(turns(ports(vec![5, 6, 7])), [0; 0]);

        let remote = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        let udp = || Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
        let port = |socket: &Socket| socket.local_addr().unwrap().as_socket().unwrap().port();
        let (first, second) = (udp(), udp());
        let mut ports = Ports::here();
        ports.bind(&first, remote).unwrap();
        // The same turn again: the port is taken now.
        ports.next = port(&first);
        ports.bind(&second, remote).unwrap();
        assert_ne!(port(&first), port(&second));
    }

    #[test]
    fn a_port_that_somebody_had_at_first_is_nobodys_once_it_is_free() {
        let flow = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let local = flow.local_addr().unwrap().port();
        let mut ports = Ports::here();
        drop(flow);
        assert!(ports.others.contains(&local));
        ports.next = local;
        assert_ne!(ports.take(), Some(local));
    }
}
