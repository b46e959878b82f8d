//! `GET /readyz`: what kubelet's readiness probe asks.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use drainwatch_probe::log::Readiness;
use socket2::Type;

use crate::signals::Sigterm;
use crate::socket;

/// Who takes longer is not waited for, since others wait behind.
const PATIENCE: Duration = Duration::from_secs(1);

/// Answers on `port` (0: any) until the process ends: 200, and once SIGTERM has arrived what
/// `afterwards` says. Gives the port.
///
/// # Errors
/// The port could not be bound, or the thread not started.
pub fn serve(port: u16, afterwards: Readiness, sigterm: &Sigterm) -> io::Result<u16> {
    let socket = socket::bind(Type::STREAM, port)?;
    socket.listen(128)?;
    let port = socket::port(&socket)?;
    let (listener, sigterm) = (TcpListener::from(socket), sigterm.clone());
    thread::Builder::new().name("readyz".to_owned()).spawn(move || {
        for stream in listener.incoming() {
            match stream {
                Ok(stream) => {
                    let ready = || sigterm.arrived().is_none() || afterwards == Readiness::Pass;
                    // Who goes away before the answer does not want it.
                    let _ = answer(stream, ready);
                }
                // Out of descriptors: the flows have them. Later, perhaps.
                Err(_) => thread::sleep(Duration::from_millis(100)),
            }
        }
    })?;
    Ok(port)
}

fn answer(mut stream: TcpStream, ready: impl Fn() -> bool) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut request = [0; 4096];
    let mut length = 0;
    while !request[..length].windows(4).any(|end| end == b"\r\n\r\n") {
        match stream.read(&mut request[length..])? {
            0 => return Ok(()), // it is gone, or its request does not fit
            n => length += n,
        }
    }
    let path = request.split(|byte| *byte == b' ').nth(1);
    let (status, body) = match path {
        Some(b"/readyz") if ready() => ("200 OK", "ok\n"),
        Some(b"/readyz") => ("503 Service Unavailable", "terminating\n"),
        _ => ("404 Not Found", "not found\n"),
    };
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n{body}"
    )
}
