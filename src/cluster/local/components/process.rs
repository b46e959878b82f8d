//! Runs a program to its end, or to the user's Ctrl-C: its output goes into a file, its
//! descendants end with it.
//!
//! Knows nothing of what it runs.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

/// How long a program has to end by itself once it was told to.
const PATIENCE: Duration = Duration::from_secs(2);

/// How a setup is told to end: a clone goes to whoever hears the user's signals.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Ends the setup: programs that it runs are killed, temporary files are removed.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it was told to.
    pub fn is_stopped(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// How a program is ended when it has to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Asked to, killed if it has not ended soon; killed when this process ends.
    Prompt,
    /// Asked to and waited for, and left alone when this process ends: a package manager must not
    /// be cut off halfway.
    Patient,
}

/// How a program went wrong.
#[derive(Debug)]
pub enum Failure {
    /// It could not be started or waited for.
    Io(io::Error),
    /// It ended with an error; its last lines.
    Ended(ExitStatus, String),
    /// It took longer than it may.
    TooLong,
    /// The user ended it.
    Stopped,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Io(error) => write!(f, "{error}"),
            Self::Ended(status, last) if last.is_empty() => write!(f, "{status}"),
            Self::Ended(status, last) => {
                write!(f, "{status}; its last lines:")?;
                last.lines().try_for_each(|line| write!(f, "\n    {line}"))
            }
            Self::TooLong => write!(f, "it did not end in time"),
            Self::Stopped => write!(f, "ended by the user"),
        }
    }
}

/// Runs a program with standard error (and, where it was not directed elsewhere, standard output)
/// appended to `log`. `tick` is called several times a second.
pub fn run(
    command: &mut Command,
    output: Option<&Path>,
    log: &Path,
    ending: Ending,
    stop: &Stop,
    tick: &mut dyn FnMut(),
) -> Result<(), Failure> {
    let open = |path: &Path| File::options().create(true).append(true).open(path);
    let errors = open(log).map_err(Failure::Io)?;
    let out = match output {
        Some(path) => File::create(path),
        None => errors.try_clone(),
    };
    command.stdin(Stdio::null()).stdout(out.map_err(Failure::Io)?).stderr(errors);
    let child = start(command, ending).map_err(Failure::Io)?;
    let status = until_end(child, ending, None, stop, tick)?;
    if status.success() { Ok(()) } else { Err(Failure::Ended(status, last_lines(log))) }
}

/// Runs a program that answers at once, and gives what it wrote on both outputs.
pub fn ask(command: &mut Command, at_most: Duration) -> Result<String, Failure> {
    command.stdin(Stdio::null());
    ask_as_it_is(command, at_most)
}

/// The same, with a standard input of little text.
pub fn ask_with(command: &mut Command, input: &str, at_most: Duration) -> Result<String, Failure> {
    let (reader, mut writer) = io::pipe().map_err(Failure::Io)?;
    // It fits into the pipe, so that nobody has to wait for the program to read it.
    writer.write_all(input.as_bytes()).map_err(Failure::Io)?;
    drop(writer); // the end of its input
    command.stdin(reader);
    ask_as_it_is(command, at_most)
}

fn ask_as_it_is(command: &mut Command, at_most: Duration) -> Result<String, Failure> {
    let (mut reader, writer) = io::pipe().map_err(Failure::Io)?;
    command.stdout(writer.try_clone().map_err(Failure::Io)?).stderr(writer);
    let child = start(command, Ending::Prompt);
    // The command holds the pipe's writing ends: as long as it does, reading does not end.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let child = child.map_err(Failure::Io)?;
    // Versions fit into the pipe, so the program never waits for its reader.
    let status = until_end(child, Ending::Prompt, Some(at_most), &Stop::default(), &mut || ())?;
    let mut text = Vec::new();
    reader.read_to_end(&mut text).map_err(Failure::Io)?;
    let text = String::from_utf8_lossy(&text).into_owned();
    if status.success() { Ok(text) } else { Err(Failure::Ended(status, tail(&text))) }
}

/// Starts it as the leader of a process group of its own.
fn start(command: &mut Command, ending: Ending) -> io::Result<Child> {
    command.process_group(0);
    if ending == Ending::Prompt {
        // The signal comes when this thread ends: it is the one that waits for the program.
        let with_us = || nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).map_err(io::Error::from);
        // SAFETY: prctl is async-signal-safe, and nothing else is called between fork and exec.
        unsafe { command.pre_exec(with_us) };
    }
    // ETXTBSY: another thread forked while a freshly written binary was still open for writing.
    let mut tries = 0;
    loop {
        match command.spawn() {
            Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy && tries < 20 => {
                tries += 1;
                std::thread::sleep(Duration::from_millis(20));
            }
            other => return other,
        }
    }
}

fn until_end(
    mut child: Child,
    ending: Ending,
    at_most: Option<Duration>,
    stop: &Stop,
    tick: &mut dyn FnMut(),
) -> Result<ExitStatus, Failure> {
    let began = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status),
            Ok(None) => {}
            Err(error) => return Err(Failure::Io(error)),
        }
        let late = at_most.is_some_and(|limit| began.elapsed() > limit);
        if late || stop.is_stopped() {
            end(&mut child, ending);
            return Err(if late { Failure::TooLong } else { Failure::Stopped });
        }
        tick();
        std::thread::sleep(pause);
        // Short programs are told at once, long ones cost nothing.
        pause = (pause * 2).min(Duration::from_millis(100));
    }
}

/// Ends the group: politely first, since Go and apt put their temporary files away.
fn end(child: &mut Child, ending: Ending) {
    let group = Pid::from_raw(child.id().cast_signed());
    // Failures mean that it has ended already.
    let _ = killpg(group, Signal::SIGINT);
    if ending == Ending::Prompt {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline && matches!(child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = killpg(group, Signal::SIGKILL);
    }
    let _ = child.wait();
}

/// The last lines of a log: what a person needs to see first.
fn last_lines(log: &Path) -> String {
    let read = || -> io::Result<String> {
        let mut file = File::open(log)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(4096)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(tail(&String::from_utf8_lossy(&bytes)))
    };
    read().unwrap_or_default()
}

fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(8)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_failure_tells_the_last_lines_of_the_log() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let error = run(
            &mut shell("for i in 1 2 3 4 5 6 7 8 9; do echo line $i; done; echo bad >&2; exit 3"),
            None,
            &log,
            Ending::Prompt,
            &Stop::default(),
            &mut || (),
        )
        .unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("exit status: 3; its last lines:\n    line 3\n"), "{text}");
        assert!(text.ends_with("\n    bad"), "{text}");
    }

    #[test]
    fn stopping_ends_the_descendants_too() {
        let folder = tempfile::tempdir().unwrap();
        let (log, pid) = (folder.path().join("log"), folder.path().join("pid"));
        let stop = Stop::default();
        let mut command = shell("sleep 60 & echo $! > pid; wait");
        command.current_dir(folder.path());
        let result = run(&mut command, None, &log, Ending::Prompt, &stop, &mut || {
            if std::fs::read_to_string(&pid).is_ok_and(|text| text.ends_with('\n')) {
                stop.stop();
            }
        });
        assert!(matches!(result, Err(Failure::Stopped)), "{result:?}");
        let pid: i32 = std::fs::read_to_string(&pid).unwrap().trim().parse().unwrap();
        let gone = || {
            // It may be a zombie for a moment, until init or a subreaper collects it.
            std::fs::read_to_string(format!("/proc/{pid}/stat"))
                .map_or(true, |stat| stat.contains(") Z "))
        };
        let deadline = Instant::now() + Duration::from_secs(5);
        while !gone() {
            assert!(Instant::now() < deadline, "sleep is still there");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    #[test]
    fn asking_is_bounded() {
        assert_eq!(ask(&mut shell("echo a; echo b >&2"), PATIENCE).unwrap(), "a\nb\n");
        let began = Instant::now();
        let result = ask(&mut shell("exec sleep 60"), Duration::from_millis(50));
        assert!(matches!(result, Err(Failure::TooLong)), "{result:?}");
        assert!(began.elapsed() < Duration::from_secs(5));
    }
}
