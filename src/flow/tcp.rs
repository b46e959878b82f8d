//! A TCP flow's socket: connects, sends heartbeats, reads answers, tells FIN from RST.
//!
//! Takes the moments at which the socket is ready; tells the flow's [`Story`] what it met. Knows
//! nothing of epoll or of when heartbeats are due.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

use drainwatch_probe::wire::{Frame, Heartbeat, parse};
use nix::errno::Errno;
use nix::libc;
use socket2::{Domain, Socket, Type};

use super::arrival::{self, Arrival, Met, Room};
use super::engine::{Shared, bind, refusal_of};
use super::story::{End, Story};
use crate::clock::monotonic_ns;

/// A TCP flow's socket. Dropping it closes it.
#[derive(Debug)]
pub struct Link {
    stream: TcpStream,
    /// Its own address, once it has connected.
    local: Option<SocketAddr>,
    /// The beginning of a frame of which the rest has not arrived; usually empty.
    input: Vec<u8>,
    /// The rest of a heartbeat that the socket took in part; usually empty.
    unsent: Vec<u8>,
    /// The error that a write met. The kernel reports it once, so that the read, which decides
    /// how the flow ended, does not see it.
    write_error: Option<i32>,
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Link {
    /// Begins to connect, from a port of its own where one is given. The socket turns writable once
    /// that has succeeded or failed.
    ///
    /// # Errors
    /// It failed at once: out of descriptors or ports, the port is taken, or there is no route.
    pub fn connect(remote: SocketAddr, port: Option<u16>) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(remote), Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        socket.set_tcp_nodelay(true)?;
        arrival::stamp(&socket);
        if let Some(port) = port {
            // A connection of an earlier trial, to another address, may not have been forgotten yet.
            socket.set_reuse_address(true)?;
            bind(&socket, port, remote)?;
        }
        match socket.connect(&remote.into()) {
            Err(e) if e.raw_os_error() != Some(libc::EINPROGRESS) => return Err(e),
            _ => {}
        }
        let stream = TcpStream::from(socket);
        Ok(Self { stream, local: None, input: Vec::new(), unsent: Vec::new(), write_error: None })
    }

    /// Whether it has connected; gives its own address.
    ///
    /// # Errors
    /// Why it has not.
    pub fn connected(&mut self) -> io::Result<SocketAddr> {
        match self.stream.take_error()? {
            Some(error) => Err(error),
            None => {
                self.stream.peer_addr()?;
                let local = self.stream.local_addr()?;
                self.local = Some(local);
                Ok(local)
            }
        }
    }

    /// Its own address, once it has connected.
    pub fn local(&self) -> Option<SocketAddr> {
        self.local
    }

    /// Sends a heartbeat.
    pub fn send(&mut self, number: u64, story: &mut Story, shared: &mut Shared) {
        if !self.unsent.is_empty() {
            match self.stream.write(&self.unsent) {
                Ok(length) => drop(self.unsent.drain(..length)),
                Err(error) => return self.not_sent(&error, shared),
            }
            if !self.unsent.is_empty() {
                shared.counters.skipped += 1;
                return;
            }
        }
        let (sequence, sent_ns) = (story.next_sequence(), monotonic_ns());
        let frame = Heartbeat { flow: number, sequence, sent_ns }.encode();
        match self.stream.write(&frame) {
            Ok(length) => {
                self.unsent.extend_from_slice(&frame[length..]);
                story.sent();
                shared.counters.sent += 1;
            }
            Err(error) => self.not_sent(&error, shared),
        }
    }

    fn not_sent(&mut self, error: &io::Error, shared: &mut Shared) {
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::EINTR) => shared.counters.skipped += 1,
            _ => shared.counters.failed += 1,
        }
        // EPIPE says only that the connection has ended; the read tells how.
        if !matches!(error.raw_os_error(), None | Some(libc::EAGAIN | libc::EINTR | libc::EPIPE)) {
            self.write_error = self.write_error.or(error.raw_os_error());
        }
    }

    /// Reads once. Gives the instant and the end, if this was it.
    pub fn read(
        &mut self,
        number: u64,
        story: &mut Story,
        shared: &mut Shared,
        room: &mut Room,
    ) -> Option<(Met, End)> {
        let result = arrival::receive(&self.stream, room);
        let arrival = Arrival::now(result.ok().and_then(|(_, stamp)| stamp), &mut shared.wall);
        let end = match result {
            Ok((0, _)) => self.write_error.map_or(End::Fin, end_of),
            Ok((length, _)) => {
                return self.take(&room.bytes[..length], arrival, number, story, shared);
            }
            Err(Errno::EAGAIN | Errno::EINTR) => return None,
            Err(error) => end_of(error as i32),
        };
        // Neither FIN nor RST brings its stamp to here.
        Some((Met::read(arrival.read_ns), end))
    }

    /// What has been read, all whole frames of it.
    fn take(
        &mut self,
        bytes: &[u8],
        arrival: Arrival,
        number: u64,
        story: &mut Story,
        shared: &mut Shared,
    ) -> Option<(Met, End)> {
        let mut joined = Vec::new();
        let mut rest = bytes;
        if !self.input.is_empty() {
            joined.append(&mut self.input);
            joined.extend_from_slice(bytes);
            rest = &joined;
        }
        loop {
            match parse(rest) {
                Ok(Some((frame, length))) => {
                    let is_last = rest.len() == length;
                    let arrival = if is_last { arrival } else { arrival.before_the_rest() };
                    match frame {
                        Frame::Answer(answer) => shared.answer(&answer, arrival, number, story),
                        Frame::Bye(_) => {
                            // It was sent after the last answer, which was not before this.
                            story.bye(
                                arrival.met(story.last_answer_ns(), &shared.wall),
                                &shared.sink,
                            );
                        }
                        Frame::Heartbeat(_) => shared.counters.stray += 1,
                    }
                    rest = &rest[length..];
                }
                Ok(None) => {
                    self.input.extend_from_slice(rest);
                    return None;
                }
                Err(error) => {
                    let error = format!("the peer sent what is {error}");
                    return Some((Met::read(arrival.read_ns), End::Failed(error)));
                }
            }
        }
    }
}

/// The end that an error of a read, a write or a connect stands for.
pub fn end_of(errno: i32) -> End {
    match errno {
        libc::ECONNRESET => End::Reset,
        libc::ETIMEDOUT => End::TimedOut,
        _ => refusal_of(errno).map_or_else(
            || End::Failed(io::Error::from_raw_os_error(errno).to_string()),
            End::Refused,
        ),
    }
}
