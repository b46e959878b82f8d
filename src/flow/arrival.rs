//! When what a flow's socket gives had arrived: by the kernel's stamp, or by the time it was read.
//!
//! Takes a socket and the clocks; gives bytes and instants on the runner's clock, each with how it
//! relates to the arrival. Knows nothing of frames or stories.

use std::io::IoSliceMut;
use std::os::fd::{AsFd, AsRawFd};

use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt, sockopt};

use crate::clock::WallClock;
use crate::observation::Bound;

/// An instant on the runner's clock, and how it relates to the thing itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Met {
    /// Nanoseconds since boot.
    pub at_ns: i64,
    pub bound: Bound,
    /// Half the width of the interval that it lies in since two clocks had to be related.
    pub plus_minus_ns: i64,
}

impl Met {
    /// The runner did it itself.
    pub fn done(at_ns: i64) -> Self {
        Self { at_ns, bound: Bound::Exact, plus_minus_ns: 0 }
    }

    /// It was read then, and had arrived then or before.
    pub fn read(at_ns: i64) -> Self {
        Self { at_ns, bound: Bound::AtMost, plus_minus_ns: 0 }
    }

    /// The kernel stamped it as it arrived.
    pub fn stamped(at_ns: i64, plus_minus_ns: i64) -> Self {
        Self { at_ns, bound: Bound::Exact, plus_minus_ns }
    }
}

/// What was read, and when that had arrived.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// When it was read, nanoseconds since boot.
    pub read_ns: i64,
    /// The kernel's stamp, on the wall clock.
    stamp_ns: Option<i64>,
    /// Whether the stamp may be that of something that came after it.
    may_be_later: bool,
}

impl Arrival {
    /// To be called at once when something was read, with its stamp.
    pub fn now(stamp_ns: Option<i64>, wall: &mut WallClock) -> Self {
        Self { read_ns: wall.read(), stamp_ns, may_be_later: false }
    }

    /// The arrival of what was read before the rest of it: several segments that are read at once have
    /// the last one's stamp.
    pub fn before_the_rest(self) -> Self {
        Self { may_be_later: true, ..self }
    }

    /// Whether the kernel's time of it is known: its own, or that of what was read with it.
    pub fn is_stamped(&self, not_before_ns: i64, wall: &WallClock) -> bool {
        self.stamped_ns(not_before_ns, wall).is_some()
    }

    fn stamped_ns(&self, not_before_ns: i64, wall: &WallClock) -> Option<i64> {
        self.stamp_ns.and_then(|stamp| wall.monotonic(stamp, not_before_ns, self.read_ns))
    }

    /// The instant of the arrival. It was not before `not_before_ns`.
    pub fn met(&self, not_before_ns: i64, wall: &WallClock) -> Met {
        match self.stamped_ns(not_before_ns, wall) {
            Some(at_ns) if self.may_be_later => {
                Met { bound: Bound::AtMost, ..Met::stamped(at_ns, wall.plus_minus_ns()) }
            }
            Some(at_ns) => Met::stamped(at_ns, wall.plus_minus_ns()),
            None => Met::read(self.read_ns),
        }
    }
}

/// Room for what is read from a socket.
#[derive(Debug)]
pub struct Room {
    pub bytes: Vec<u8>,
    control: Vec<u8>,
}

impl Room {
    /// For this many bytes at once.
    pub fn new(length: usize) -> Self {
        Self { bytes: vec![0; length], control: nix::cmsg_space!(libc::timespec) }
    }
}

/// Has the kernel stamp what arrives at a socket.
pub fn stamp(socket: &impl AsFd) {
    // Where the kernel knows no stamps, the time of the reading is taken.
    let _ = setsockopt(socket, sockopt::ReceiveTimestampns, &true);
}

/// Reads once; gives how many bytes there are in `room`, and the stamp. Of several segments that
/// TCP gives at once, the stamp is the last one's.
pub fn receive(socket: &impl AsRawFd, room: &mut Room) -> Result<(usize, Option<i64>), Errno> {
    let mut parts = [IoSliceMut::new(&mut room.bytes)];
    let control = Some(room.control.as_mut_slice());
    let message = recvmsg::<()>(socket.as_raw_fd(), &mut parts, control, MsgFlags::empty())?;
    let stamp_ns = message.cmsgs().ok().and_then(|mut controls| controls.find_map(stamp_of));
    Ok((message.bytes, stamp_ns))
}

/// The stamp that a control message carries, nanoseconds of the wall clock.
pub fn stamp_of(control: ControlMessageOwned) -> Option<i64> {
    match control {
        ControlMessageOwned::ScmTimestampns(time) => {
            Some(time.tv_sec() * 1_000_000_000 + time.tv_nsec())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
    use std::time::{Duration, Instant};

    use super::*;
    use crate::clock::monotonic_ns;

    const LATE: Duration = Duration::from_millis(60);
    /// What two clocks that are related may be off, at most.
    const RELATED_NS: i64 = 100_000;

    /// Has something sent and read late, until the kernel stamps it: it begins to some time after
    /// the first socket asked for that. Then the stamp lies where it was sent.
    fn is_stamped(socket: &impl AsRawFd, mut send: impl FnMut()) {
        let (mut wall, mut room) = (WallClock::default(), Room::new(64));
        let begun = Instant::now();
        loop {
            let before_ns = monotonic_ns();
            send();
            let after_ns = monotonic_ns();
            std::thread::sleep(LATE);
            let (length, stamp) = receive(socket, &mut room).unwrap();
            assert_eq!(&room.bytes[..length], b"hello");
            let arrival = Arrival::now(stamp, &mut wall);
            let met = arrival.met(before_ns, &wall);
            assert!(before_ns <= met.at_ns && met.at_ns <= arrival.read_ns);
            if met.bound == Bound::Exact && met.at_ns <= after_ns + RELATED_NS {
                assert!(arrival.read_ns - met.at_ns > LATE.as_nanos() as i64 / 2);
                return;
            }
            assert!(begun.elapsed() < Duration::from_secs(20), "never stamped: {met:?}");
        }
    }

    #[test]
    fn a_datagram_that_is_read_late_has_the_time_of_its_arrival() {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        stamp(&socket);
        let to = socket.local_addr().unwrap();
        let from = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        is_stamped(&socket, || {
            from.send_to(b"hello", to).unwrap();
        });
    }

    #[test]
    fn a_segment_that_is_read_late_has_the_time_of_its_arrival() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut from = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (socket, _) = listener.accept().unwrap();
        stamp(&socket);
        is_stamped(&socket, || from.write_all(b"hello").unwrap());
    }

    #[test]
    fn without_a_stamp_the_time_of_the_reading_is_an_upper_bound() {
        let mut wall = WallClock::default();
        let arrival = Arrival::now(None, &mut wall);
        assert_eq!(arrival.met(i64::MIN, &wall), Met::read(arrival.read_ns));
        assert!(!arrival.is_stamped(i64::MIN, &wall));
    }

    #[test]
    fn of_segments_that_are_read_at_once_the_last_ones_time_is_an_upper_bound_of_the_others() {
        let mut wall = WallClock::default();
        let read_ns = wall.read();
        let realtime = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let stamp = i64::try_from(realtime.as_nanos()).unwrap();
        let last = Arrival::now(Some(stamp), &mut wall);
        let first = last.before_the_rest();
        let (last_met, first_met) = (last.met(read_ns, &wall), first.met(read_ns, &wall));
        assert_eq!((last_met.bound, first_met.bound), (Bound::Exact, Bound::AtMost));
        assert_eq!(last_met.at_ns, first_met.at_ns);
        assert!(first.is_stamped(read_ns, &wall));
    }
}
