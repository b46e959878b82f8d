//! Processes of clusters on this host, told by their command line and by who started them: which
//! clusters have a living supervisor, and which processes have lost theirs.
//!
//! Reads `/proc`. A process is an orphan only if everything speaks for it: drainwatch's own command
//! line, root's, in namespaces as a supervisor makes them, and no living supervisor as its parent.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::state::is_cluster_name;

/// A process that drainwatch started of its own binary (`drainwatch internal ROLE …`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Process {
    pub pid: i32,
    parent: i32,
    /// In clock ticks since boot: with the pid it names a process for good.
    started: u64,
    /// `node-init`, then its arguments.
    words: Vec<String>,
    uid: u32,
    /// How many pid namespaces it is in, as seen from here: 1 for this process's own.
    depth: usize,
    /// Whether it is in this process's net namespace.
    our_net: bool,
}

impl Process {
    /// Its role and arguments: `node-init dw-3f9a1c node-1`.
    pub(super) fn command(&self) -> String {
        self.words.join(" ")
    }

    /// The cluster that it says it belongs to.
    pub(super) fn cluster(&self) -> Option<&str> {
        self.words.get(1).map(String::as_str).filter(|name| is_cluster_name(name))
    }

    fn is(&self, role: &str) -> bool {
        self.words.first().is_some_and(|word| word == role)
    }

    /// Whether it is the init of a cluster's node.
    pub(super) fn is_node(&self) -> bool {
        self.is("node-init") && self.cluster().is_some()
    }
}

/// All of them that can be seen from here.
pub(super) fn all() -> Vec<Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| read(entry.file_name().to_str()?.parse().ok()?)).collect()
}

/// Supervisors that live, by their cluster.
pub(super) fn supervisors(all: &[Process]) -> BTreeMap<String, i32> {
    let supervisors = all.iter().filter(|process| process.is("supervise") && process.uid == 0);
    supervisors.filter_map(|process| Some((process.cluster()?.to_owned(), process.pid))).collect()
}

/// Those that have lost their supervisor.
pub(super) fn orphans(all: &[Process]) -> Vec<Process> {
    let alive = supervisors(all);
    let parent_lives =
        |process: &Process| all.iter().any(|p| p.pid == process.parent && p.is("supervise"));
    let orphan = |process: &&Process| {
        process.uid == 0
            && !parent_lives(process)
            && match process.words.first().map(String::as_str) {
                // Of another container's cluster it would be deeper.
                Some("node-init") => {
                    process.depth == 2
                        && process.cluster().is_some_and(|name| !alive.contains_key(name))
                }
                Some("hold-bridge") => {
                    process.words.len() == 1 && process.depth == 1 && !process.our_net
                }
                _ => false,
            }
    };
    all.iter().filter(orphan).cloned().collect()
}

fn read(pid: i32) -> Option<Process> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let words = words(&line)?;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let (parent, started) = parse_stat(&stat)?;
    let net = |pid: &str| fs::metadata(format!("/proc/{pid}/ns/net")).map(|m| (m.dev(), m.ino()));
    // Another user's can't be told: taken for ours, so that nothing comes of it.
    let our_net = match (net(&pid.to_string()), net("self")) {
        (Ok(its), Ok(own)) => its == own,
        _ => true,
    };
    let (uid, depth) = parse_status(&status)?;
    Some(Process { pid, parent, started, words, uid, depth, our_net })
}

/// Role and arguments of `drainwatch internal ROLE …`, as the supervisor and the runner write it.
fn words(line: &[u8]) -> Option<Vec<String>> {
    let text = std::str::from_utf8(line.strip_suffix(b"\0")?).ok()?;
    let mut words = text.split('\0').map(str::to_owned);
    match (words.next()?.as_str(), words.next()?.as_str()) {
        ("drainwatch", "internal") => Some(words.collect()),
        _ => None,
    }
}

/// The parent and the start of a process that has not ended; the name in brackets may hold anything.
fn parse_stat(stat: &str) -> Option<(i32, u64)> {
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split_whitespace().collect();
    if matches!(fields.first(), Some(&("Z" | "X")) | None) {
        return None;
    }
    Some((fields.get(1)?.parse().ok()?, fields.get(19)?.parse().ok()?))
}

/// The real user, and the number of pid namespaces.
fn parse_status(status: &str) -> Option<(u32, usize)> {
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.split_whitespace().collect::<Vec<_>>())
    };
    Some((field("Uid:")?.first()?.parse().ok()?, field("NSpid:")?.len()))
}

/// Ends an orphan, and waits for that: the very process that was found, whatever has its number
/// meanwhile.
pub(super) fn end(orphan: &Process, patience: Duration) -> io::Result<()> {
    let gone = || io::Error::from(io::ErrorKind::NotFound);
    let pid = Pid::from_raw(orphan.pid).ok_or_else(gone)?;
    let handle = match pidfd_open(pid, PidfdFlags::empty()) {
        Err(rustix::io::Errno::SRCH) => return Ok(()),
        result => result?,
    };
    // The handle stays with the process that it was opened for.
    match read(orphan.pid) {
        Some(now) if now.started == orphan.started && now.words == orphan.words => {}
        _ => return Ok(()),
    }
    match pidfd_send_signal(&handle, Signal::KILL) {
        Err(rustix::io::Errno::SRCH) => return Ok(()),
        result => result?,
    }
    let mut ended = [PollFd::new(handle.as_fd(), PollFlags::POLLIN)];
    let timeout = PollTimeout::try_from(patience).unwrap_or(PollTimeout::MAX);
    match poll(&mut ended, timeout)? {
        0 => Err(io::Error::other(format!("still there {} s after a kill", patience.as_secs()))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: i32, parent: i32, words: &str, depth: usize) -> Process {
        let words = words.split(' ').map(str::to_owned).collect();
        Process { pid, parent, started: 1, words, uid: 0, depth, our_net: false }
    }

    fn pids(all: &[Process]) -> Vec<i32> {
        orphans(all).iter().map(|process| process.pid).collect()
    }

    #[test]
    fn a_living_supervisor_keeps_its_own_and_no_others() {
        let all = [
            process(10, 9, "supervise dw-000001", 1),
            process(11, 10, "hold-bridge", 1),
            process(12, 10, "node-init dw-000001 node-1", 2),
            process(21, 1, "hold-bridge", 1),
            process(22, 1, "node-init dw-000002 node-1", 2),
            process(30, 9, "hold", 1),
        ];
        assert_eq!(pids(&all), [21, 22]);
        assert_eq!(supervisors(&all), BTreeMap::from([("dw-000001".into(), 10)]));
    }

    #[test]
    fn what_does_not_look_like_ours_in_everything_is_let_be() {
        let mut of_a_user = process(1, 0, "hold-bridge", 1);
        of_a_user.uid = 1000;
        let mut in_our_net = process(2, 0, "hold-bridge", 1);
        in_our_net.our_net = true;
        let all = [
            of_a_user,
            in_our_net,
            process(3, 0, "hold-bridge", 2),
            process(4, 0, "hold-bridge more", 1),
            process(5, 0, "node-init dw-000001 node-1", 1),
            process(6, 0, "node-init dw-000001 node-1", 3),
            process(7, 0, "node-init ../../etc node-1", 2),
            process(8, 0, "supervise dw-000003", 1),
            // Its parent is lost, but the cluster's supervisor lives elsewhere.
            process(9, 0, "node-init dw-000003 node-1", 2),
        ];
        assert_eq!(pids(&all), [0; 0]);
    }

    #[test]
    fn a_process_is_told_by_its_whole_command_line() {
        assert_eq!(words(b"drainwatch\0internal\0hold-bridge\0"), Some(vec!["hold-bridge".into()]));
        assert_eq!(words(b"vim\0internal\0hold-bridge\0"), None);
        assert_eq!(words(b"drainwatch internal hold-bridge\0"), None);
        assert_eq!(words(b""), None);
        let fields = "0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 812 0";
        assert_eq!(parse_stat(&format!("7 (a) Z 9 (b)) S 3 {fields}")), Some((3, 812)));
        assert_eq!(parse_stat(&format!("7 (x) Z 3 {fields}")), None);
        let status = "Name:\tx\nUid:\t0\t5\t0\t0\nNSpid:\t900\t1\n";
        assert_eq!(parse_status(status), Some((0, 2)));
    }
}
