//! Listening on all of the pod's addresses, and room for many connections.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use socket2::{Domain, Socket, Type};

/// A socket on `port` of every address, IPv6 and IPv4, or IPv4 alone where there is no IPv6.
///
/// # Errors
/// It could not be bound.
pub fn bind(kind: Type, port: u16) -> io::Result<Socket> {
    let ipv6 = || {
        let socket = Socket::new(Domain::IPV6, kind, None)?;
        socket.set_only_v6(false)?;
        bind_to(socket, kind, (Ipv6Addr::UNSPECIFIED, port).into())
    };
    ipv6().or_else(|_| {
        let socket = Socket::new(Domain::IPV4, kind, None)?;
        bind_to(socket, kind, (Ipv4Addr::UNSPECIFIED, port).into())
    })
}

fn bind_to(socket: Socket, kind: Type, address: SocketAddr) -> io::Result<Socket> {
    if kind == Type::STREAM {
        // A restarted container finds its predecessor's connections in TIME_WAIT.
        socket.set_reuse_address(true)?;
    }
    socket.bind(&address.into())?;
    Ok(socket)
}

/// The port that a socket is bound to.
///
/// # Errors
/// It is not bound.
pub fn port(socket: &Socket) -> io::Result<u16> {
    let address = socket.local_addr()?;
    address.as_socket().map(|a| a.port()).ok_or_else(|| io::Error::other("not an IP socket"))
}

/// Allows this process as many descriptors as it may allow itself.
///
/// # Errors
/// The limit can't be read. That it can't be raised is no error: the usual one will do for most.
pub fn allow_many() -> io::Result<()> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft < hard {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
    Ok(())
}
