//! A UDP flow's socket: sends heartbeats whether or not they are answered, reads answers, and
//! asks the kernel's error queue who refused and with which ICMP code.
//!
//! Takes the moments at which the socket is ready; tells the flow's [`Story`] what it met. Knows
//! nothing of epoll or of when heartbeats are due.

use std::io::{self, ErrorKind, IoSliceMut};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use drainwatch_probe::wire::{Frame, Heartbeat, parse};
use nix::cmsg_space;
use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::sockopt::{Ipv4RecvErr, Ipv6RecvErr};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, setsockopt};
use socket2::{Domain, Socket, Type};

use super::arrival::{self, Arrival, Met, Room};
use super::engine::{Shared, bind, refusal_of};
use super::story::{Refusal, Story};
use crate::clock::monotonic_ns;

/// A UDP flow's socket, connected: one source port for the life of the flow.
#[derive(Debug)]
pub struct Link {
    socket: UdpSocket,
    /// What its receive buffer had dropped when that was last looked at.
    dropped: u32,
    looked_ns: i64,
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Link {
    /// Binds a port, this one where one is given, and connects it to `remote`; gives its own
    /// address, too.
    ///
    /// # Errors
    /// Out of descriptors or ports, the port is taken, or there is no route.
    pub fn open(remote: SocketAddr, port: Option<u16>) -> io::Result<(Self, SocketAddr)> {
        let socket = Socket::new(Domain::for_address(remote), Type::DGRAM, None)?;
        socket.set_nonblocking(true)?;
        match remote {
            SocketAddr::V4(_) => setsockopt(&socket, Ipv4RecvErr, &true)?,
            SocketAddr::V6(_) => setsockopt(&socket, Ipv6RecvErr, &true)?,
        }
        arrival::stamp(&socket);
        if let Some(port) = port {
            bind(&socket, port, remote)?;
        }
        socket.connect(&remote.into())?;
        let socket = UdpSocket::from(socket);
        let local = socket.local_addr()?;
        Ok((Self { socket, dropped: 0, looked_ns: monotonic_ns() }, local))
    }

    /// Tells what this socket has dropped since it was last looked at: datagrams that had arrived,
    /// and that its buffer had no room for.
    pub fn tell_drops(&mut self, story: &Story, shared: &mut Shared) {
        // A kernel that does not say so (before 4.11) is one whose drops are not known.
        let Some(dropped) = self.count_of_drops() else { return };
        let at_ns = monotonic_ns();
        let (more, since_ns) = (dropped.wrapping_sub(self.dropped), self.looked_ns);
        (self.dropped, self.looked_ns) = (dropped, at_ns);
        if more > 0 {
            shared.counters.dropped += u64::from(more);
            story.dropped_here(since_ns, at_ns, more.into(), &shared.sink);
        }
    }

    /// The kernel's own count of what it dropped at this socket.
    fn count_of_drops(&self) -> Option<u32> {
        const DROPS: usize = libc::SK_MEMINFO_DROPS as usize;
        let mut info = [0_u32; DROPS + 1];
        let mut length = size_of_val(&info) as libc::socklen_t;
        // SAFETY: `info` is writable for `length` bytes, and both outlive the call.
        let result = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_MEMINFO,
                info.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        (result == 0 && length as usize == size_of_val(&info)).then_some(info[DROPS])
    }

    /// Sends a heartbeat.
    pub fn send(&mut self, number: u64, story: &mut Story, shared: &mut Shared) {
        // A send first reports what earlier ones met, and then sends nothing: hence twice.
        for _ in 0..2 {
            let (sequence, sent_ns) = (story.next_sequence(), monotonic_ns());
            let frame = Heartbeat { flow: number, sequence, sent_ns }.encode();
            match self.socket.send(&frame) {
                Ok(_) => {
                    story.sent();
                    shared.counters.sent += 1;
                    shared.counters.datagrams += 1;
                    return;
                }
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                    shared.counters.skipped += 1;
                    return;
                }
                Err(error) => {
                    self.read_errors(error.raw_os_error(), story, shared);
                    if error.raw_os_error() == Some(libc::EPERM) {
                        break; // that was this datagram, not an earlier one
                    }
                }
            }
        }
        shared.counters.failed += 1;
    }

    /// The socket can be read: reads one datagram.
    pub fn read(&mut self, number: u64, story: &mut Story, shared: &mut Shared, room: &mut Room) {
        match arrival::receive(&self.socket, room) {
            Ok((length, stamp)) => {
                let arrival = Arrival::now(stamp, &mut shared.wall);
                match parse(&room.bytes[..length]) {
                    Ok(Some((Frame::Answer(answer), used))) if used == length => {
                        shared.answer(&answer, arrival, number, story);
                    }
                    _ => shared.counters.stray += 1,
                }
            }
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            Err(error) => self.read_errors(Some(error as i32), story, shared),
        }
    }

    /// The socket has an error: reads the error queue to its end. `errno` is what a call gave.
    pub fn read_errors(&mut self, errno: Option<i32>, story: &mut Story, shared: &mut Shared) {
        let mut any = false;
        while let Some(error) = next_error(&self.socket) {
            let arrival = Arrival::now(error.stamp_ns, &mut shared.wall);
            let met = arrival.met(error.sent_ns, &shared.wall);
            any = true;
            note(met, error.what, story, shared);
        }
        // Reading the queue clears the socket's error. An error without an entry in the queue is
        // a local one, or the copy of one whose entry was read between its two halves.
        let bare = errno.or_else(|| self.socket.take_error().ok()??.raw_os_error());
        if let Some(errno) = bare
            && !any
            && !(errno == libc::ECONNREFUSED && story.is_refused())
            // In a node's own namespace: its rules dropped the datagram. Where they say why, that
            // stands in the queue.
            && errno != libc::EPERM
        {
            let refusal = refusal_of(errno);
            note(Met::read(monotonic_ns()), refusal.ok_or(errno), story, shared);
        }
    }
}

/// An entry of a socket's error queue.
#[derive(Clone, Copy, Debug)]
pub struct SocketError {
    /// A refusal, or another error.
    pub what: Result<Refusal, i32>,
    /// The kernel's stamp of it, on the wall clock, where it was asked for.
    stamp_ns: Option<i64>,
    /// When the heartbeat was sent that met it; the beginning of time where that is not known.
    sent_ns: i64,
}

/// The oldest entry of a socket's error queue.
pub fn next_error(socket: &impl AsRawFd) -> Option<SocketError> {
    let mut data = [0; 64];
    let mut iov = [IoSliceMut::new(&mut data)];
    let mut space = cmsg_space!(libc::timespec, libc::sock_extended_err, libc::sockaddr_in6);
    let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
    let message =
        recvmsg::<SockaddrStorage>(socket.as_raw_fd(), &mut iov, Some(&mut space), flags).ok()?;
    let (mut stamp_ns, mut what) = (None, None);
    for control in message.cmsgs().ok()? {
        match control {
            ControlMessageOwned::Ipv4RecvErr(error, sender) => {
                // In network byte order, as the kernel keeps it.
                let sender = sender.map(|a| IpAddr::from(a.sin_addr.s_addr.to_ne_bytes()));
                what = Some(refusal(&error, sender));
            }
            ControlMessageOwned::Ipv6RecvErr(error, sender) => {
                let sender = sender.map(|a| IpAddr::from(a.sin6_addr.s6_addr));
                what = Some(refusal(&error, sender));
            }
            control => stamp_ns = stamp_ns.or(arrival::stamp_of(control)),
        }
    }
    // An entry that says nothing is an error all the same.
    let what = what.unwrap_or(Err(libc::EPROTO));
    let length = message.bytes;
    // The heartbeat that met it comes back with it.
    let sent_ns = match parse(&data[..length]) {
        Ok(Some((Frame::Heartbeat(heartbeat), _))) => heartbeat.sent_ns,
        _ => i64::MIN,
    };
    Some(SocketError { what, stamp_ns, sent_ns })
}

fn note(met: Met, what: Result<Refusal, i32>, story: &mut Story, shared: &mut Shared) {
    match what {
        Ok(refusal) => story.refused(met, refusal, &shared.sink),
        Err(errno) => {
            let error = io::Error::from_raw_os_error(errno).to_string();
            story.failed(met.at_ns, error, &shared.sink);
        }
    }
}

/// What an entry of the error queue says.
fn refusal(error: &libc::sock_extended_err, sender: Option<IpAddr>) -> Result<Refusal, i32> {
    let errno = error.ee_errno as i32;
    match error.ee_origin {
        // Too long for the path is no refusal: it can't be, with datagrams this small.
        libc::SO_EE_ORIGIN_ICMP | libc::SO_EE_ORIGIN_ICMP6 if errno != libc::EMSGSIZE => {
            Ok(Refusal {
                port: errno == libc::ECONNREFUSED,
                sender,
                icmp_type: Some(error.ee_type),
                icmp_code: Some(error.ee_code),
                errno,
            })
        }
        _ => refusal_of(errno).ok_or(errno),
    }
}
