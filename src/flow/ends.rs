//! When the packets that end TCP flows arrived: FIN and RST reach a socket without a time.
//!
//! Takes flows' own addresses as they are opened; hears the FIN and RST packets of the thread's
//! network namespace; gives the kernel's time of a flow's. A packet is heard before its socket is
//! told of it, so that it has always been heard when a flow reads its end.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use super::arrival::Met;
use super::story::End;
use crate::evidence::packets::{HEADERS, filter, understand};
use crate::evidence::tap::{Direction, Tap};
use crate::observation::PacketKind;

/// The ends of flows that were heard.
#[derive(Debug)]
pub struct Ends {
    tap: Tap,
    /// By the flow's own end and the other.
    heard: HashMap<(SocketAddr, SocketAddr), Heard>,
}

/// The first FIN and the first RST of a flow, nanoseconds since boot.
#[derive(Clone, Copy, Debug, Default)]
struct Heard {
    fin_ns: Option<i64>,
    rst_ns: Option<i64>,
}

impl Ends {
    /// Hears the ends of this thread's network namespace; `None` where that is not allowed.
    pub fn listen() -> Option<Self> {
        let tap = Tap::open(&filter(), Direction::In).ok()?;
        Some(Self { tap, heard: HashMap::new() })
    }

    /// From now on this flow's are remembered.
    pub fn await_end(&mut self, local: SocketAddr, remote: SocketAddr) {
        self.heard.insert((local, remote), Heard::default());
    }

    /// Takes in what was heard.
    pub fn hear(&mut self) {
        let mut headers = [0; HEADERS];
        while let Ok(Some(heard)) = self.tap.next(&mut headers) {
            if heard.out || !heard.stamped {
                continue;
            }
            let Some(what) = understand(&headers[..heard.length]) else { continue };
            let Some(flow) = self.heard.get_mut(&(what.to, what.from)) else { continue };
            let place = match what.kind {
                PacketKind::Fin => &mut flow.fin_ns,
                PacketKind::Rst => &mut flow.rst_ns,
                PacketKind::Unreachable => continue,
            };
            place.get_or_insert(heard.at_ns);
        }
    }

    /// When the packet arrived that this end was read off, if it was heard. Nothing more is
    /// remembered of the flow.
    pub fn of(&mut self, end: &End, local: SocketAddr, remote: SocketAddr) -> Option<Met> {
        self.hear();
        let heard = self.heard.remove(&(local, remote))?;
        let at_ns = match end {
            End::Fin => heard.fin_ns?,
            End::Reset => heard.rst_ns?,
            _ => return None,
        };
        Some(Met::stamped(at_ns, self.tap.plus_minus_ns()))
    }
}

impl AsFd for Ends {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tap.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::time::{Duration, Instant};

    use socket2::SockRef;

    use super::*;
    use crate::clock::monotonic_ns;

    /// Has a connection ended, and gives its end as it was heard, with the time around it.
    fn ended(end: &End, how: impl Fn(TcpStream)) -> Option<(i64, Met)> {
        let mut ends = Ends::listen()?; // not everybody may
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let begun = Instant::now();
        // The kernel begins to stamp some time after it was asked to.
        loop {
            let flow = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (local, remote) = (flow.local_addr().unwrap(), flow.peer_addr().unwrap());
            ends.await_end(local, remote);
            let (peer, _) = listener.accept().unwrap();
            let before_ns = monotonic_ns();
            how(peer);
            let after_ns = monotonic_ns();
            std::thread::sleep(Duration::from_millis(20));
            let met = ends.of(end, local, remote).expect("it was heard");
            assert!(ends.heard.is_empty(), "nothing more is remembered");
            if met.at_ns <= after_ns + 100_000 {
                return Some((before_ns, met));
            }
            assert!(begun.elapsed() < Duration::from_secs(20), "never stamped: {met:?}");
        }
    }

    #[test]
    fn a_fin_that_is_read_late_has_the_time_of_its_packet() {
        let Some((before_ns, met)) = ended(&End::Fin, drop) else { return };
        assert!(met.at_ns >= before_ns - 100_000, "{met:?}");
    }

    #[test]
    fn a_reset_that_is_read_late_has_the_time_of_its_packet() {
        let reset = |peer: TcpStream| {
            SockRef::from(&peer).set_linger(Some(Duration::ZERO)).unwrap();
        };
        let Some((before_ns, met)) = ended(&End::Reset, reset) else { return };
        assert!(met.at_ns >= before_ns - 100_000, "{met:?}");
    }

    #[test]
    fn the_end_of_another_flow_is_none() {
        let Some(mut ends) = Ends::listen() else { return };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let remote = listener.local_addr().unwrap();
        let other = (Ipv4Addr::LOCALHOST, 1).into();
        ends.await_end(other, remote);
        drop(TcpStream::connect(remote).unwrap());
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(ends.of(&End::Fin, other, remote), None);
    }
}
