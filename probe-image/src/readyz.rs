//! `GET /readyz`: what kubelet's readiness probe asks, and the way to have it fail.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use drainwatch_probe::FAIL_PATH;
use drainwatch_probe::log::{LogEvent, Readiness};
use socket2::Type;

use crate::process::{Moment, Process};
use crate::signals::Sigterm;
use crate::socket;

/// Who takes longer is not waited for, since others wait behind.
const PATIENCE: Duration = Duration::from_secs(1);

/// Answers on `port` (0: any) until the process ends: 200, and once SIGTERM has arrived what
/// `afterwards` says. A POST to [`FAIL_PATH`] makes it fail from then on. Gives the port.
///
/// # Errors
/// The port could not be bound, or the thread not started.
pub fn serve(
    port: u16,
    afterwards: Readiness,
    sigterm: &Sigterm,
    process: &Arc<Process>,
) -> io::Result<u16> {
    let socket = socket::bind(Type::STREAM, port)?;
    socket.listen(128)?;
    let port = socket::port(&socket)?;
    let (listener, sigterm) = (TcpListener::from(socket), sigterm.clone());
    let process = Arc::clone(process);
    thread::Builder::new().name("readyz".to_owned()).spawn(move || {
        let mut told_to_fail = false;
        for stream in listener.incoming() {
            match stream {
                Ok(stream) => {
                    let passes = sigterm.arrived().is_none() || afterwards == Readiness::Pass;
                    // Who goes away before the answer does not want it.
                    let told = answer(stream, passes && !told_to_fail).unwrap_or(false);
                    if told && !told_to_fail {
                        told_to_fail = true;
                        let status = Readiness::Fail;
                        process.log(Moment::now(), LogEvent::Readyz { status });
                    }
                }
                // Out of descriptors: the flows have them. Later, perhaps.
                Err(_) => thread::sleep(Duration::from_millis(100)),
            }
        }
    })?;
    Ok(port)
}

/// Answers one request; gives whether it is to fail from now on.
fn answer(mut stream: TcpStream, ready: bool) -> io::Result<bool> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut request = [0; 4096];
    let mut length = 0;
    while !request[..length].windows(4).any(|end| end == b"\r\n\r\n") {
        match stream.read(&mut request[length..])? {
            0 => return Ok(false), // it is gone, or its request does not fit
            n => length += n,
        }
    }
    let mut words = request.split(|byte| *byte == b' ');
    let (method, path) = (words.next(), words.next());
    let told = method == Some(b"POST") && path == Some(FAIL_PATH.as_bytes());
    let (status, body) = match path {
        _ if told => ("200 OK", "failing\n"),
        Some(b"/readyz") if ready => ("200 OK", "ok\n"),
        Some(b"/readyz") => ("503 Service Unavailable", "terminating or told to fail\n"),
        _ => ("404 Not Found", "not found\n"),
    };
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n{body}"
    )?;
    Ok(told)
}
