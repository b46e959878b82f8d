//! The probe: the app in the pod that drainwatch terminates.
//!
//! Takes its behaviour from the command line and who it is from the environment; answers flows,
//! and does on SIGTERM what it was told. Tells what it does in its log ([`drainwatch_probe::log`])
//! and writes nothing else. Needs no root, no files and no name resolution.

mod connection;
mod options;
mod pause;
mod process;
mod readyz;
mod shell;
mod signals;
mod socket;
mod tcp;
mod udp;

use std::io;
use std::process::ExitCode;
use std::sync::Arc;

use drainwatch_probe::log::LogEvent;

use crate::options::{Mode, OnSigterm, ServeOptions};
use crate::process::{Moment, Process};
use crate::signals::Sigterm;

fn main() -> ExitCode {
    let result = match options::parse(std::env::args().skip(1)) {
        Ok(Mode::Pause) => pause::run(),
        Ok(Mode::Sleep(time)) => {
            std::thread::sleep(time);
            Ok(())
        }
        Ok(Mode::Shell(arguments)) => match shell::run(&arguments) {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
        Ok(Mode::Serve(options)) => serve(&options),
        Err(message) => {
            eprintln!("drainwatch-probe: {message}\n\n{}", options::USAGE);
            return ExitCode::from(2);
        }
    };
    if let Err(error) = result {
        eprintln!("drainwatch-probe: {error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn serve(options: &ServeOptions) -> io::Result<()> {
    let process = Arc::new(Process::new()?);
    process.log(Moment::now(), LogEvent::Started { version: env!("CARGO_PKG_VERSION").to_owned() });

    // Before any other thread starts: they inherit that SIGTERM is blocked.
    let sigterm = Sigterm::watch()?;
    socket::allow_many()?;
    // An app that exits at once answers nobody while it resets what it holds.
    let until = matches!(options.on_sigterm, OnSigterm::Exit).then_some(&sigterm);
    let udp_port = udp::serve(options.udp_port, options.udp_receive_buffer, &process, until)?;
    let readyz_port = readyz::serve(options.readyz_port, options.readiness, &sigterm, &process)?;
    let server = tcp::Server::bind(options.tcp_port, Arc::clone(&process), sigterm)?;
    let tcp_port = server.port()?;
    process.log(Moment::now(), LogEvent::Listening { tcp_port, udp_port, readyz_port });

    server.run(options)?;
    process.log(Moment::now(), LogEvent::Exiting { code: 0 });
    // The other threads, and with them the UDP sockets, end with the process.
    Ok(())
}
