//! UDP flows: a few sockets on one port, each with a reader that does nothing but answer.
//!
//! Several sockets, because one socket's receive buffer is small on a stock kernel (208 KiB) and
//! a datagram that is dropped there would be measured as silence.

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread;

use drainwatch_probe::pace::{self, Pace};
use drainwatch_probe::wire::{Answer, Frame, MAX_FRAME, SHORT_FRAME, parse};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::Type;

use crate::process::{Moment, Process};
use crate::signals::Sigterm;
use crate::socket;

const SOCKETS: usize = 2;

/// Answers on `port` (0: any), with receive buffers of this size, until the process ends; once `until`
/// has arrived, nobody is answered any more. Gives the port.
///
/// # Errors
/// The port could not be bound, or a thread not started.
pub fn serve(
    port: u16,
    receive_buffer: usize,
    process: &Arc<Process>,
    until: Option<&Sigterm>,
) -> io::Result<u16> {
    // The first socket is bound without SO_REUSEPORT: with it, another process of the same user
    // could hold the port already, and the two would share its flows.
    let first = socket::bind(Type::DGRAM, port)?;
    first.set_reuse_port(true)?;
    let port = socket::port(&first)?;
    let family = first.local_addr()?;
    let mut sockets = vec![first];
    while sockets.len() < SOCKETS {
        let next = socket2::Socket::new(family.domain(), Type::DGRAM, None)?;
        if family.is_ipv6() {
            next.set_only_v6(false)?;
        }
        next.set_reuse_port(true)?;
        next.bind(&family)?;
        sockets.push(next);
    }
    for socket in sockets {
        let _ = socket.set_recv_buffer_size(receive_buffer);
        socket.set_nonblocking(true)?;
        let (socket, process) = (UdpSocket::from(socket), Arc::clone(process));
        let until = until.cloned();
        thread::Builder::new()
            .name("udp".to_owned())
            .spawn(move || answer_all(&socket, &process.speaker, until.as_ref()))?;
    }
    Ok(port)
}

fn answer_all(socket: &UdpSocket, speaker: &[u8], until: Option<&Sigterm>) {
    // One byte more than a heartbeat, so that a longer datagram is seen to be none.
    let mut datagram = [0; SHORT_FRAME + 1];
    let mut answer = Vec::with_capacity(MAX_FRAME);
    let mut pace = Pace::default();
    loop {
        // Errors are those of single datagrams, or pass: an answer that can't be sent is one that
        // the client misses.
        let (length, client) = match socket.recv_from(&mut datagram) {
            Ok(received) => received,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if pace.is_busy(Moment::now().mono_ns) {
                    thread::sleep(pace::GATHER);
                }
                wait(socket, PollFlags::POLLIN);
                continue;
            }
            Err(_) => continue,
        };
        // Read all the same: the socket stays, and is full of nothing that looks like a drop.
        if until.is_some_and(|signal| signal.arrived().is_some()) {
            continue;
        }
        let Ok(Some((Frame::Heartbeat(heartbeat), used))) = parse(&datagram[..length]) else {
            continue;
        };
        if used != length {
            continue;
        }
        let Moment { mono_ns, wall_ns } = Moment::now();
        answer.clear();
        Answer { heartbeat, mono_ns, wall_ns, speaker }.encode(&mut answer);
        while socket.send_to(&answer, client).is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock)
        {
            wait(socket, PollFlags::POLLOUT);
        }
    }
}

/// Waits until the socket can be read, or written.
fn wait(socket: &UdpSocket, what: PollFlags) {
    // It fails on wrong arguments only, and on signals: then the socket is tried again.
    let _ = poll(&mut [PollFd::new(socket.as_fd(), what)], PollTimeout::NONE);
}
