//! A dial: one TCP connection, one heartbeat, one answer.
//!
//! Takes an address; gives who answered, or why nobody did.

use std::io::{Error, ErrorKind, Result};
use std::net::SocketAddr;
use std::time::Duration;

use drainwatch_probe::wire::{self, Frame, Heartbeat, Speaker};
use socket2::{Domain, Socket, Type};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;

use crate::clock::monotonic_ns;
use crate::netns::NetNamespace;
use crate::observation::Identity;

/// Connects to `remote`, asks once, and closes.
///
/// # Errors
/// What the socket met; `TimedOut` where no answer came within `limit`; `InvalidData` where the
/// answer was no frame of ours.
pub async fn dial(remote: SocketAddr, limit: Duration) -> Result<Identity> {
    dial_in(None, remote, limit).await
}

/// The same, from a network namespace; `None` is this program's own.
///
/// # Errors
/// Those of [`dial`], and that the namespace can't be entered.
pub async fn dial_in(
    namespace: Option<&NetNamespace>,
    remote: SocketAddr,
    limit: Duration,
) -> Result<Identity> {
    let open = || {
        let socket = Socket::new(Domain::for_address(remote), Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    };
    let socket = match namespace {
        Some(namespace) => namespace.inside(open)?,
        None => open()?,
    };
    let socket = TcpSocket::from_std_stream(socket.into());
    match tokio::time::timeout(limit, ask(socket, remote)).await {
        Ok(result) => result,
        Err(_) => Err(Error::new(ErrorKind::TimedOut, "no answer")),
    }
}

async fn ask(socket: TcpSocket, remote: SocketAddr) -> Result<Identity> {
    let mut stream = socket.connect(remote).await?;
    let heartbeat = Heartbeat { flow: 0, sequence: 0, sent_ns: monotonic_ns() };
    stream.write_all(&heartbeat.encode()).await?;
    let mut bytes = Vec::with_capacity(wire::MAX_FRAME);
    loop {
        let foreign = |_| Error::new(ErrorKind::InvalidData, "an answer that is not the probe's");
        match wire::parse(&bytes).map_err(foreign)? {
            Some((Frame::Answer(answer), _)) => {
                let speaker = Speaker::parse(answer.speaker).map_err(foreign)?;
                return Ok(Identity {
                    pod: speaker.pod.to_owned(),
                    uid: speaker.uid.to_owned(),
                    instance: speaker.instance.to_owned(),
                });
            }
            Some(_) => return Err(ErrorKind::InvalidData.into()),
            None => {}
        }
        if stream.read_buf(&mut bytes).await? == 0 {
            return Err(Error::new(ErrorKind::UnexpectedEof, "closed without an answer"));
        }
    }
}
