//! The command line.

use std::time::Duration;

use drainwatch_probe::log::Readiness;
use drainwatch_probe::{READYZ_PORT, TCP_PORT, UDP_PORT};

/// How it is used.
pub const USAGE: &str = "\
usage: drainwatch-probe serve --sigterm=exit|drain|ignore [OPTIONS]
       drainwatch-probe pause
       drainwatch-probe sleep MILLISECONDS
       drainwatch-probe shell ARGUMENTS

serve: answers flows; the environment's POD_NAME and POD_UID say for whom
  --sigterm=exit         on SIGTERM, resets all TCP connections and exits at once
  --sigterm=drain        on SIGTERM, goes on serving what it holds, says bye, closes, exits
  --sigterm=ignore       on SIGTERM, does nothing
  --drain-window-ms=N    how long it goes on, in milliseconds (with drain)
  --readiness=fail|pass  what /readyz answers once SIGTERM has arrived [default: fail]
  --tcp-port=N --udp-port=N --readyz-port=N
                         [default: 7001, 7002, 7003]; 0: any, the log's `listening` line says which
  --udp-receive-buffer=N what to ask for, in bytes a socket [default: 4194304]
pause: waits for SIGTERM or SIGINT, and reaps orphans
sleep: for preStop hooks
shell: runs drainwatch-probe with these arguments as its child, and passes no signals on
";

/// What is asked for; the kernel gives at most `net.core.rmem_max`.
const RECEIVE_BUFFER: usize = 4 << 20;

/// What to be.
#[derive(Debug, PartialEq, Eq)]
pub enum Mode {
    /// The app that is measured.
    Serve(ServeOptions),
    /// The process that holds a pod's namespaces.
    Pause,
    /// One that does nothing for so long, and ends.
    Sleep(Duration),
    /// The parent of another one with these arguments, which keeps signals to itself.
    Shell(Vec<String>),
}

/// How to be the app that is measured.
#[derive(Debug, PartialEq, Eq)]
pub struct ServeOptions {
    /// What to do on SIGTERM.
    pub on_sigterm: OnSigterm,
    /// What `/readyz` answers once SIGTERM has arrived.
    pub readiness: Readiness,
    /// Where to accept TCP flows; 0: any.
    pub tcp_port: u16,
    /// Where to answer UDP flows; 0: any.
    pub udp_port: u16,
    /// Where to answer `/readyz`; 0: any.
    pub readyz_port: u16,
    /// The receive buffer to ask for, bytes a UDP socket.
    pub udp_receive_buffer: usize,
}

/// What to do on SIGTERM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnSigterm {
    /// Reset all TCP connections and exit.
    Exit,
    /// Serve what is held for at most the window, close it cleanly and exit.
    Drain {
        /// How long.
        window: Duration,
    },
    /// Nothing.
    Ignore,
}

/// Reads the arguments (without the program's name).
///
/// # Errors
/// What is wrong with them.
pub fn parse(mut args: impl Iterator<Item = String>) -> Result<Mode, String> {
    match args.next().as_deref() {
        Some("pause") => match args.next() {
            None => Ok(Mode::Pause),
            Some(more) => Err(format!("pause takes no arguments, but there is {more:?}")),
        },
        Some("sleep") => match (args.next().map(|ms| ms.parse()), args.next()) {
            (Some(Ok(ms)), None) => Ok(Mode::Sleep(Duration::from_millis(ms))),
            _ => Err("sleep takes a number of milliseconds".to_owned()),
        },
        Some("shell") => {
            let arguments: Vec<_> = args.collect();
            // Told here: by the child it would be, too, but with this one still there.
            parse(arguments.iter().cloned()).map(|_| Mode::Shell(arguments))
        }
        Some("serve") => parse_serve(args).map(Mode::Serve),
        Some(other) => Err(format!("unknown command {other:?}")),
        None => Err("a command is missing".to_owned()),
    }
}

fn parse_serve(args: impl Iterator<Item = String>) -> Result<ServeOptions, String> {
    let mut sigterm = None;
    let mut window = None;
    let mut readiness = Readiness::Fail;
    let (mut tcp_port, mut udp_port, mut readyz_port) = (TCP_PORT, UDP_PORT, READYZ_PORT);
    let mut udp_receive_buffer = RECEIVE_BUFFER;
    for arg in args {
        let (name, value) =
            arg.split_once('=').ok_or_else(|| format!("{arg:?} is not --NAME=VALUE"))?;
        let wrong = || format!("{value:?} is no value for {name}");
        match name {
            "--sigterm" => sigterm = Some(value.to_owned()),
            "--drain-window-ms" => window = Some(value.parse().map_err(|_| wrong())?),
            "--readiness" => {
                readiness = match value {
                    "pass" => Readiness::Pass,
                    "fail" => Readiness::Fail,
                    _ => return Err(wrong()),
                }
            }
            "--tcp-port" => tcp_port = value.parse().map_err(|_| wrong())?,
            "--udp-port" => udp_port = value.parse().map_err(|_| wrong())?,
            "--udp-receive-buffer" => udp_receive_buffer = value.parse().map_err(|_| wrong())?,
            "--readyz-port" => readyz_port = value.parse().map_err(|_| wrong())?,
            _ => return Err(format!("unknown option {name}")),
        }
    }
    let on_sigterm = match (sigterm.as_deref(), window) {
        (Some("exit"), None) => OnSigterm::Exit,
        (Some("ignore"), None) => OnSigterm::Ignore,
        (Some("drain"), Some(ms)) => OnSigterm::Drain { window: Duration::from_millis(ms) },
        (Some("drain"), None) => return Err("--drain-window-ms is missing".to_owned()),
        (Some("exit" | "ignore"), Some(_)) => {
            return Err("--drain-window-ms goes with --sigterm=drain only".to_owned());
        }
        (Some(other), _) => return Err(format!("{other:?} is no value for --sigterm")),
        (None, _) => return Err("--sigterm is missing".to_owned()),
    };
    Ok(ServeOptions { on_sigterm, readiness, tcp_port, udp_port, readyz_port, udp_receive_buffer })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Mode, String> {
        parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn the_shortest_line_has_the_usual_ports() {
        assert_eq!(
            read("serve --sigterm=exit"),
            Ok(Mode::Serve(ServeOptions {
                on_sigterm: OnSigterm::Exit,
                readiness: Readiness::Fail,
                tcp_port: 7001,
                udp_port: 7002,
                readyz_port: 7003,
                udp_receive_buffer: 4 << 20,
            }))
        );
    }

    #[test]
    fn a_drain_has_a_window_and_nothing_else_has_one() {
        assert!(read("serve --sigterm=drain").is_err());
        assert!(read("serve --sigterm=exit --drain-window-ms=1").is_err());
        let Ok(Mode::Serve(options)) = read("serve --sigterm=drain --drain-window-ms=25000") else {
            panic!("a drain with its window");
        };
        assert_eq!(options.on_sigterm, OnSigterm::Drain { window: Duration::from_secs(25) });
    }

    #[test]
    fn a_shell_takes_what_its_child_takes() {
        let arguments = ["sleep", "5"].map(str::to_owned).to_vec();
        assert_eq!(read("shell sleep 5"), Ok(Mode::Shell(arguments)));
    }

    #[test]
    fn what_is_not_known_is_refused() {
        for line in [
            "",
            "sleep",
            "sleep 5s",
            "sleep 1 2",
            "shell",
            "shell serve",
            "pause now",
            "serve",
            "serve --sigterm",
            "serve --sigterm=stop",
            "serve --sigterm=exit --port=1",
            "serve --sigterm=exit --tcp-port=70000",
            "serve --sigterm=exit --readiness=maybe",
            "serve --sigterm=exit --udp-receive-buffer=4M",
            "serve --sigterm=drain --drain-window-ms=-1",
        ] {
            assert!(read(line).is_err(), "{line}");
        }
    }
}
