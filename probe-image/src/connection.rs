//! One TCP flow as the app holds it: heartbeats in, answers out.
//!
//! Takes a stream that does not block, and the moments at which it can be read or written; knows
//! nothing of epoll or of SIGTERM.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Duration;

use drainwatch_probe::wire::{Answer, Bye, Frame, parse};
use nix::libc;
use socket2::SockRef;

use crate::process::{Moment, Process};

/// A connection. Dropping it closes it.
#[derive(Debug)]
pub struct Connection {
    /// The socket.
    pub stream: TcpStream,
    /// As its heartbeats say; 0 before the first.
    flow: u64,
    answered: u64,
    /// The beginning of a frame of which the rest has not arrived; usually empty.
    input: Vec<u8>,
    /// What the socket did not take yet; usually empty.
    output: Vec<u8>,
    /// It has said bye: what arrives is read, so that closing does not reset, and not answered.
    closing: bool,
}

/// The connection is done for: the peer has closed or reset it, or spoke another language.
#[derive(Debug)]
pub struct Gone;

impl From<io::Error> for Gone {
    fn from(_: io::Error) -> Self {
        Gone
    }
}

impl Connection {
    /// A connection that has just been accepted.
    ///
    /// # Errors
    /// Its options can't be set.
    pub fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let (input, output) = (Vec::new(), Vec::new());
        Ok(Self { stream, flow: 0, answered: 0, input, output, closing: false })
    }

    /// Whether it waits for the socket to take more. While it does, it reads nothing, so that a
    /// peer that does not read can't make it grow.
    pub fn is_stuck(&self) -> bool {
        !self.output.is_empty()
    }

    /// The socket can be read, has been closed or has failed: reads once, and answers.
    ///
    /// # Errors
    /// The connection is done for.
    pub fn on_readable(&mut self, process: &Process, buffer: &mut [u8]) -> Result<(), Gone> {
        let length = match self.stream.read(buffer) {
            Ok(0) => return Err(Gone),
            Ok(length) => length,
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                return Ok(());
            }
            Err(_) => return Err(Gone),
        };
        if self.closing {
            return Ok(());
        }
        if self.input.is_empty() {
            let used = self.answer(process, &buffer[..length])?;
            self.input.extend_from_slice(&buffer[used..length]);
        } else {
            let mut input = std::mem::take(&mut self.input);
            input.extend_from_slice(&buffer[..length]);
            let used = self.answer(process, &input)?;
            input.drain(..used);
            self.input = input;
        }
        self.on_writable()
    }

    /// The socket takes more.
    ///
    /// # Errors
    /// The connection is done for.
    pub fn on_writable(&mut self) -> Result<(), Gone> {
        while !self.output.is_empty() {
            match self.stream.write(&self.output) {
                Ok(length) => drop(self.output.drain(..length)),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Err(Gone),
            }
        }
        if self.closing {
            self.stream.shutdown(Shutdown::Write)?;
        }
        Ok(())
    }

    /// Says bye and sends FIN, as soon as the socket takes it. The peer's data is still read.
    ///
    /// # Errors
    /// The connection is done for.
    pub fn say_bye(&mut self) -> Result<(), Gone> {
        let (flow, answered) = (self.flow, self.answered);
        let bye = Bye { flow, answered, mono_ns: Moment::now().mono_ns };
        self.output.extend_from_slice(&bye.encode());
        self.closing = true;
        self.on_writable()
    }

    /// Resets the connection: the kernel sends a RST and forgets it. The descriptor stays open, since
    /// closing it takes half as long again.
    pub fn reset(&self) {
        let nobody = libc::sockaddr { sa_family: libc::AF_UNSPEC as _, sa_data: [0; 14] };
        let length = size_of::<libc::sockaddr>() as libc::socklen_t;
        // SAFETY: `nobody` is an address of this length and outlives the call.
        let done = unsafe { libc::connect(self.stream.as_raw_fd(), &raw const nobody, length) };
        if done != 0 {
            // Then the close to come, at the latest with the process, does it.
            let _ = SockRef::from(&self.stream).set_linger(Some(Duration::ZERO));
        }
    }

    /// Puts the answers to all whole frames of `bytes` into the output; gives how many bytes
    /// those frames had.
    fn answer(&mut self, process: &Process, bytes: &[u8]) -> Result<usize, Gone> {
        let mut used = 0;
        while let Some((frame, length)) = parse(&bytes[used..]).map_err(|_| Gone)? {
            let Frame::Heartbeat(heartbeat) = frame else { return Err(Gone) };
            let Moment { mono_ns, wall_ns } = Moment::now();
            Answer { heartbeat, mono_ns, wall_ns, speaker: &process.speaker }
                .encode(&mut self.output);
            self.flow = heartbeat.flow;
            self.answered += 1;
            used += length;
        }
        Ok(used)
    }
}
