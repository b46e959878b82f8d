//! Source ports of dials, one after another.
//!
//! A port that the kernel chooses may be one that a dial had a moment ago. Connection tracking still
//! keeps that dial's entry then (30 s for UDP, 120 s for TCP that never connected), and leads the new
//! one the old way: it would be no new connection. So all ports have their turn before one comes again.

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;

use nix::libc;
use socket2::Socket;

/// What a kernel has where it does not tell.
const DEFAULT: RangeInclusive<u16> = 32_768..=60_999;
/// So many ports may be taken in a row.
const TRIES: u32 = 2_000;

/// The ports that a kernel gives to clients, and whose turn it is.
#[derive(Debug)]
pub struct Ports {
    range: RangeInclusive<u16>,
    next: u16,
}

impl Ports {
    /// Those of this thread's network namespace, from any one on: the next trial's dials should not
    /// begin where this one's did.
    pub fn here() -> Self {
        let range = read().unwrap_or(DEFAULT);
        let all = u64::from(range.end() - range.start()) + 1;
        let offset = RandomState::new().hash_one(std::process::id()) % all;
        let next = range.start() + offset as u16; // below the number of ports
        Self { range, next }
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
        let mut result = Ok(());
        for _ in 0..TRIES {
            result = socket.bind(&SocketAddr::new(any, self.take()).into());
            match &result {
                Err(error) if error.raw_os_error() == Some(libc::EADDRINUSE) => {}
                _ => break,
            }
        }
        result
    }

    fn take(&mut self) -> u16 {
        let port = self.next;
        self.next = if port == *self.range.end() { *self.range.start() } else { port + 1 };
        port
    }
}

fn read() -> Option<RangeInclusive<u16>> {
    let text = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok()?;
    let mut ends = text.split_ascii_whitespace().map(str::parse::<u16>);
    let (first, last) = (ends.next()?.ok()?, ends.next()?.ok()?);
    (first <= last).then_some(first..=last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use socket2::{Domain, Type};

    #[test]
    fn each_port_has_its_turn_and_taken_ones_are_passed_over() {
        let mut ports = Ports { range: 5..=7, next: 6 };
        let turns: Vec<_> = (0..5).map(|_| ports.take()).collect();
        assert_eq!(turns, [6, 7, 5, 6, 7]);

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
}
