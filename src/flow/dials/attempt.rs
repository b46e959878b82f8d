//! One dial: a new socket, one question, its first answer.
//!
//! Takes the moments at which the socket is ready; gives what the dial met, once that is known. Knows
//! nothing of when dials are due or of their order.
//!
//! A TCP dial is closed with a RST (`SO_LINGER` of 0) once it has been answered. A plain close would
//! leave its port in TIME_WAIT here for 60 s and its entry in each node's connection tracking for 120 s:
//! at a few hundred dials a second both run full, and a dial that fails for that would be our doing. The
//! app reads the RST as the end of a connection that it has served; nothing is counted of it.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use drainwatch_probe::wire::{Answer, Frame, Heartbeat, SHORT_FRAME, parse};
use nix::libc;
use nix::sys::epoll::EpollFlags;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{Ipv4RecvErr, Ipv6RecvErr};
use socket2::{Domain, Socket, Type};

use super::ledger::Met;
use super::ports::Ports;
use crate::clock::monotonic_ns;
use crate::flow::engine::refusal_of;
use crate::flow::speakers::Speakers;
use crate::flow::udp::next_error;
use crate::observation::{DialOutcome, Protocol};

/// The one question's sequence number.
const FIRST: u64 = 1;

/// A dial under way. Dropping it closes its socket.
#[derive(Debug)]
pub struct Attempt {
    line: Line,
    remote: SocketAddr,
    /// In its frames: what tells its answer from others'.
    number: u64,
    pub started_ns: i64,
    pub connected_ns: Option<i64>,
}

#[derive(Debug)]
enum Line {
    /// The beginning of a frame of which the rest has not arrived; usually empty.
    Tcp(TcpStream, Vec<u8>),
    Udp(UdpSocket),
}

/// What a dial met, and when that was known; `None` while it goes on.
pub type Step = Option<(i64, Met)>;

impl AsFd for Attempt {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.line {
            Line::Tcp(stream, _) => stream.as_fd(),
            Line::Udp(socket) => socket.as_fd(),
        }
    }
}

/// A socket of a dial to `remote`, with a port of its own.
fn socket(protocol: Protocol, remote: SocketAddr, ports: &mut Ports) -> io::Result<Socket> {
    let kind = match protocol {
        Protocol::Tcp => Type::STREAM,
        Protocol::Udp => Type::DGRAM,
    };
    let socket = Socket::new(Domain::for_address(remote), kind, None)?;
    socket.set_nonblocking(true)?;
    tell_errors(&socket, remote, true)?;
    if protocol == Protocol::Tcp {
        socket.set_tcp_nodelay(true)?;
        socket.set_linger(Some(Duration::ZERO))?;
    }
    ports.bind(&socket, remote)?;
    Ok(socket)
}

/// Whether the kernel is to tell who sent the ICMP message that an error came from.
fn tell_errors(socket: &impl AsFd, remote: SocketAddr, tell: bool) -> io::Result<()> {
    match remote {
        SocketAddr::V4(_) => setsockopt(socket, Ipv4RecvErr, &tell)?,
        SocketAddr::V6(_) => setsockopt(socket, Ipv6RecvErr, &tell)?,
    }
    Ok(())
}

impl Attempt {
    /// Opens a socket and sends the SYN or the datagram. The socket turns writable (TCP) or readable
    /// (UDP) once there is more to know.
    ///
    /// # Errors
    /// When it was known that it failed at once, and how.
    pub fn start(
        protocol: Protocol,
        remote: SocketAddr,
        number: u64,
        ports: &mut Ports,
    ) -> Result<Self, (i64, Met)> {
        let socket = socket(protocol, remote, ports).map_err(|error| now(Met::failed_here(error)));
        let socket = socket?;
        let connecting = |socket: &Socket| match socket.connect(&remote.into()) {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(now(met(&error))),
            _ => Ok(()),
        };
        match protocol {
            Protocol::Tcp => {
                let started_ns = monotonic_ns();
                connecting(&socket)?;
                let line = Line::Tcp(socket.into(), Vec::new());
                Ok(Self { line, remote, number, started_ns, connected_ns: None })
            }
            Protocol::Udp => {
                connecting(&socket)?;
                let line = Line::Udp(socket.into());
                let started_ns = monotonic_ns();
                let mut attempt = Self { line, remote, number, started_ns, connected_ns: None };
                attempt.ask().map_err(|error| now(met(&error)))?;
                Ok(attempt)
            }
        }
    }

    /// What the dial waits for first.
    pub fn interest(&self) -> EpollFlags {
        match self.line {
            Line::Tcp(..) => EpollFlags::EPOLLOUT,
            Line::Udp(_) => EpollFlags::EPOLLIN,
        }
    }

    /// The dial has waited for as long as it may.
    pub fn timed_out(&self) -> Met {
        Met::only(match (&self.line, self.connected_ns) {
            (Line::Tcp(..), None) => DialOutcome::NotConnected,
            _ => DialOutcome::Unanswered,
        })
    }

    /// Its socket is ready. `has_connected` is called once a TCP dial waits to be read.
    pub fn ready(
        &mut self,
        speakers: &mut Speakers,
        buffer: &mut [u8],
        has_connected: impl FnOnce(BorrowedFd<'_>) -> io::Result<()>,
    ) -> Step {
        match &self.line {
            Line::Tcp(stream, _) if self.connected_ns.is_none() => {
                if let Err(error) = connected(stream) {
                    let at_ns = monotonic_ns();
                    // The ICMP message behind it, where it was one and no RST.
                    let refusal = next_error(stream).and_then(|error| error.what.ok());
                    return Some((at_ns, refusal.map_or_else(|| met(&error), Met::refused)));
                }
                self.connected_ns = Some(monotonic_ns());
                self.connected(has_connected).err().map(|error| now(met_connected(&error)))
            }
            Line::Tcp(..) => self.read_stream(speakers, buffer),
            Line::Udp(socket) => {
                if let Some(error) = next_error(socket) {
                    let at_ns = monotonic_ns();
                    let met = error.what.map_or_else(
                        |errno| Met::failed_here(io::Error::from_raw_os_error(errno)),
                        Met::refused,
                    );
                    return Some((at_ns, met));
                }
                self.read_datagram(speakers, buffer)
            }
        }
    }

    /// It has connected: asks.
    fn connected(
        &mut self,
        has_connected: impl FnOnce(BorrowedFd<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        // Of a connection that stands an ICMP message is no end, unless these are told.
        tell_errors(self, self.remote, false)?;
        self.ask()?;
        has_connected(self.as_fd())
    }

    fn ask(&mut self) -> io::Result<()> {
        let sent_ns = monotonic_ns();
        let frame = Heartbeat { flow: self.number, sequence: FIRST, sent_ns }.encode();
        let sent = match &mut self.line {
            Line::Tcp(stream, _) => stream.write(&frame)?,
            Line::Udp(socket) => socket.send(&frame)?,
        };
        // A new socket's buffer is empty: it takes a few bytes whole.
        if sent == SHORT_FRAME { Ok(()) } else { Err(ErrorKind::WriteZero.into()) }
    }

    fn read_stream(&mut self, speakers: &mut Speakers, buffer: &mut [u8]) -> Step {
        let Line::Tcp(stream, input) = &mut self.line else { return None };
        let result = stream.read(buffer);
        let at_ns = monotonic_ns();
        let length = match result {
            Ok(0) => return Some((at_ns, Met::only(DialOutcome::Closed))),
            Ok(length) => length,
            Err(error) if is_nothing(&error) => return None,
            Err(error) => return Some((at_ns, met_connected(&error))),
        };
        input.extend_from_slice(&buffer[..length]);
        let mut rest = input.as_slice();
        loop {
            match parse(rest) {
                Ok(Some((Frame::Answer(answer), _))) if is_answer(&answer, self.number) => {
                    return accepted(&answer, at_ns, speakers);
                }
                // A bye: the FIN that follows says the rest.
                Ok(Some((_, length))) => rest = &rest[length..],
                Ok(None) => break,
                Err(error) => {
                    let error = format!("the peer sent what is {error}");
                    return Some((at_ns, Met::failed_here(error)));
                }
            }
        }
        let used = input.len() - rest.len();
        input.drain(..used);
        None
    }

    fn read_datagram(&self, speakers: &mut Speakers, buffer: &mut [u8]) -> Step {
        let Line::Udp(socket) = &self.line else { return None };
        let result = socket.recv(buffer);
        let at_ns = monotonic_ns();
        match result {
            Ok(length) => match parse(&buffer[..length]) {
                Ok(Some((Frame::Answer(answer), used)))
                    if used == length && is_answer(&answer, self.number) =>
                {
                    accepted(&answer, at_ns, speakers)
                }
                // Not ours: the port's earlier owner may have had it coming.
                _ => None,
            },
            Err(error) if is_nothing(&error) => None,
            Err(error) => Some((at_ns, met(&error))),
        }
    }
}

/// Whether it has connected.
fn connected(stream: &TcpStream) -> io::Result<()> {
    match stream.take_error()? {
        Some(error) => Err(error),
        None => stream.peer_addr().map(drop),
    }
}

fn is_answer(answer: &Answer<'_>, number: u64) -> bool {
    answer.heartbeat.flow == number && answer.heartbeat.sequence == FIRST
}

fn accepted(answer: &Answer<'_>, at_ns: i64, speakers: &mut Speakers) -> Step {
    let met = match speakers.identify(answer, at_ns) {
        Some(by) => Met::accepted(by.clone()),
        None => Met::failed_here("an answer that does not say by whom"),
    };
    Some((at_ns, met))
}

fn is_nothing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

fn now(met: Met) -> (i64, Met) {
    (monotonic_ns(), met)
}

/// What an error stands for before there is a connection.
fn met(error: &io::Error) -> Met {
    match error.raw_os_error() {
        Some(libc::ECONNRESET) => Met::only(DialOutcome::Reset),
        Some(libc::ETIMEDOUT) => Met::only(DialOutcome::NotConnected),
        errno => match errno.and_then(refusal_of) {
            Some(refusal) => Met::refused(refusal),
            None => Met::failed_here(error),
        },
    }
}

/// What it stands for once there is one.
fn met_connected(error: &io::Error) -> Met {
    match error.raw_os_error() {
        // A write after the peer's RST.
        Some(libc::EPIPE) => Met::only(DialOutcome::Reset),
        Some(libc::ETIMEDOUT) => Met::only(DialOutcome::Unanswered),
        _ => met(error),
    }
}
