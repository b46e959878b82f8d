//! Ends of processes, by file descriptors that stand for them.
//!
//! A descriptor becomes readable as its process ends, once its sockets are closed, and hangs up as
//! somebody has waited for it. It goes on standing for the same process: a process id that is taken
//! again is another's.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::libc;
use nix::sys::epoll::EpollFlags;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::clock::Stamp;
use crate::observation::{Event, Observation, Seen, Source};

/// The first process of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// The node that it runs on.
    pub node: String,
    /// The pod's name.
    pub pod: String,
    /// The pod's UID.
    pub uid: String,
    /// The container's name.
    pub container: String,
    /// Its process id, as this machine numbers processes.
    pub pid: i32,
}

/// A process that is waited for.
#[derive(Debug)]
pub(super) struct Awaited {
    process: Process,
    fd: OwnedFd,
    /// When it was seen to have ended.
    ended: Option<Stamp>,
    told: bool,
}

impl Awaited {
    /// Begins to wait for a process that is there.
    pub fn open(process: Process) -> io::Result<Self> {
        let none = || io::Error::from(io::ErrorKind::InvalidInput);
        let pid = Pid::from_raw(process.pid).ok_or_else(none)?;
        let fd = pidfd_open(pid, PidfdFlags::NONBLOCK)?;
        Ok(Self { process, fd, ended: None, told: false })
    }

    /// Takes in what was seen of its descriptor at that time; gives its end once all is known of it.
    pub fn look(&mut self, flags: EpollFlags, at: Stamp) -> Option<Seen> {
        if flags.intersects(EpollFlags::EPOLLIN | EpollFlags::EPOLLHUP) {
            self.ended.get_or_insert(at);
        }
        // Its code is kept for those who hold a descriptor from when it has been waited for.
        match self.code() {
            Some(code) => self.tell(Some(code)),
            None => None,
        }
    }

    /// Its end, if it has ended and nobody was told: no more will be known of it.
    pub fn finish(&mut self) -> Option<Seen> {
        self.tell(self.code())
    }

    fn tell(&mut self, exit_code: Option<i32>) -> Option<Seen> {
        let at = self.ended.clone().filter(|_| !self.told)?;
        self.told = true;
        let Process { node, pod, uid, container, pid } = self.process.clone();
        let event = Event::ProcessExited { node, pod, uid, container, pid, exit_code };
        Some(Observation::at_most(at, Source::NodeProcesses, event))
    }

    /// `None` where it has not been waited for, or the kernel (before 6.15) keeps none.
    fn code(&self) -> Option<i32> {
        // SAFETY: all zeros are a valid `pidfd_info`.
        let mut info: libc::pidfd_info = unsafe { std::mem::zeroed() };
        info.mask = libc::PIDFD_INFO_EXIT.into();
        // SAFETY: the kernel reads and writes a `pidfd_info`, whose size is part of the request.
        let result =
            unsafe { libc::ioctl(self.fd.as_raw_fd(), libc::PIDFD_GET_INFO, &raw mut info) };
        let told = info.mask & u64::from(libc::PIDFD_INFO_EXIT) != 0;
        (Errno::result(result).is_ok() && told).then(|| as_containers_count(info.exit_code))
    }
}

impl AsFd for Awaited {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// An exit code of a wait status: 128 and the signal's number where a signal ended the process.
fn as_containers_count(status: i32) -> i32 {
    if libc::WIFSIGNALED(status) { 128 + libc::WTERMSIG(status) } else { libc::WEXITSTATUS(status) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};

    fn awaited(script: &str) -> (Child, Awaited) {
        let mut command = Command::new("sh");
        let child = command.args(["-c", script]).stdin(Stdio::piped()).spawn().unwrap();
        let process = Process {
            node: "node-2".into(),
            pod: "probe-1".into(),
            uid: "u".into(),
            container: "probe".into(),
            pid: child.id().cast_signed(),
        };
        (child, Awaited::open(process).unwrap())
    }

    fn ended(awaited: &mut Awaited) -> Option<Option<i32>> {
        match awaited.look(EpollFlags::EPOLLIN | EpollFlags::EPOLLHUP, Stamp::runner(5))?.event {
            Event::ProcessExited { exit_code, .. } => Some(exit_code),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_process_that_lives_has_no_end() {
        let (mut child, mut awaited) = awaited("read line");
        assert_eq!(awaited.look(EpollFlags::empty(), Stamp::runner(1)), None);
        assert_eq!(awaited.finish(), None);
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    #[test]
    fn an_end_is_told_once_with_its_time_and_its_code() {
        for (script, code) in [("exit 3", 3), ("kill -9 $$", 137)] {
            let (mut child, mut awaited) = awaited(script);
            child.wait().unwrap();
            let told = match ended(&mut awaited) {
                Some(told) => told,
                // A kernel that keeps no code: the end is told at the end.
                None => match awaited.finish().expect("it ended").event {
                    Event::ProcessExited { exit_code, .. } => exit_code,
                    other => panic!("{other:?}"),
                },
            };
            assert!(told.is_none_or(|told| told == code), "{told:?} of {script}");
            assert_eq!(awaited.finish(), None, "told twice");
        }
    }

    #[test]
    fn a_status_is_counted_as_containers_count() {
        assert_eq!([0, 3 << 8, 9, 15, 0x80 | 11].map(as_containers_count), [0, 3, 137, 143, 139]);
    }
}
