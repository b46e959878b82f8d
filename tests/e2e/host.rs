//! What a cluster could leave on the host: looked at before and after.
//!
//! Other clusters may come and go on the same host: what belongs to one that these tests did not
//! start is not looked at.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// An environment variable that tells the processes of these tests from others'.
pub const MARK: &str = "DRAINWATCH_E2E";

/// Paths that Kubernetes' parts make where they run, all but one of them fixed.
const FIXED_PATHS: [&str; 13] = [
    "/etc/cni",
    "/etc/containerd",
    "/etc/kubernetes",
    "/opt/cni",
    "/opt/containerd",
    "/opt/nri",
    "/run/containerd",
    "/usr/libexec/kubernetes",
    "/var/lib/cni",
    "/var/lib/containerd",
    "/var/lib/kubelet",
    "/var/log/containers",
    "/var/log/pods",
];

/// Sysctls of the whole host that kubelet or kube-proxy would set.
const SYSCTLS: [&str; 9] = [
    "kernel/keys/root_maxbytes",
    "kernel/keys/root_maxkeys",
    "kernel/panic",
    "kernel/panic_on_oops",
    "net/ipv4/conf/all/route_localnet",
    "net/ipv4/ip_forward",
    "net/netfilter/nf_conntrack_max",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
];

/// Everything that is compared, one item a line: `link eth0`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host(BTreeSet<String>);

impl Host {
    /// Reads it.
    pub fn read() -> Self {
        let others = Others::read();
        let mut items = BTreeSet::new();
        let mut note = |kind: &str, item: &str| {
            if !others.own(item) {
                items.insert(format!("{kind} {item}"));
            }
        };
        for link in names("/sys/class/net") {
            note("link", &link);
        }
        for name in names("/run/netns") {
            note("netns", &name);
        }
        for line in fs::read_to_string("/proc/self/mountinfo").unwrap().lines() {
            note("mount", line.split(' ').nth(4).unwrap());
        }
        for path in FIXED_PATHS.iter().filter(|path| Path::new(path).exists()) {
            note("path", path);
        }
        for name in names("/run/drainwatch") {
            note("path", &format!("/run/drainwatch/{name}"));
        }
        for name in SYSCTLS {
            let value = fs::read_to_string(format!("/proc/sys/{name}")).unwrap_or_default();
            note("sysctl", &format!("{name}={}", value.trim()));
        }
        for arguments in [&["-4", "route", "show", "table", "all"][..], &["rule"][..]] {
            let output = Command::new("ip").args(arguments).output().unwrap();
            for line in String::from_utf8_lossy(&output.stdout).lines() {
                note("routing", line.trim());
            }
        }
        let rules = Command::new("iptables-save").output().unwrap().stdout;
        for line in String::from_utf8_lossy(&rules).lines().filter(|l| !l.starts_with('#')) {
            note("iptables", line);
        }
        for name in names("/tmp").iter().filter(|name| name.starts_with("runc")) {
            note("path", &format!("/tmp/{name}"));
        }
        cgroups(Path::new("/sys/fs/cgroup"), 3, &mut note);
        for pid in names("/proc").iter().filter(|name| name.parse::<u32>().is_ok()) {
            let Ok(line) = fs::read(format!("/proc/{pid}/cmdline")) else { continue };
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            // Each process that a cluster is made of, other than a workload's.
            let marks = ["internal supervise", "internal node-init", "internal hold", PROGRAMS];
            if marks.iter().any(|mark| line.contains(mark)) && !others.runs(pid) {
                note("process", &format!("{pid} {line}"));
            }
        }
        if others.0.is_empty() {
            let folders =
                names("/sys/fs/cgroup").into_iter().map(|h| format!("/sys/fs/cgroup/{h}"));
            for top in folders.chain(["/sys/fs/cgroup".into(), "/run".into()]) {
                let top = format!("{top}/drainwatch");
                if Path::new(&top).exists() {
                    note("path", &top);
                }
            }
        }
        Self(items)
    }

    /// Waits, for 10 s at most, until the host is again as it was.
    pub fn wait_unchanged(&self) -> Result<(), String> {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let now = Self::read();
            let new: Vec<_> = now.0.difference(&self.0).collect();
            let gone: Vec<_> = self.0.difference(&now.0).filter(|item| !passing(item)).collect();
            if new.is_empty() && gone.is_empty() {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!("left on the host: {new:#?}\ngone from it: {gone:#?}"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// That, or a failed test.
    pub fn assert_unchanged(&self) {
        if let Err(difference) = self.wait_unchanged() {
            panic!("{difference}");
        }
    }

    /// What is here now and was not before.
    pub fn new_since(&self, kind: &str) -> Vec<String> {
        let now = Self::read();
        let new = now.0.difference(&self.0);
        new.filter_map(|item| item.strip_prefix(kind)?.strip_prefix(' ').map(Into::into)).collect()
    }
}

/// Whether an item may be of another's cluster that ended while it was looked at. (A link that is
/// just being removed shows as its number: `if42`.)
fn passing(item: &str) -> bool {
    ["drainwatch", " dw", "dev if"].iter().any(|mark| item.contains(mark))
}

/// Where nodes see the components: processes of a cluster have it in their command line.
const PROGRAMS: &str = "/run/drainwatch/";

/// Clusters that these tests did not start: name and the pid namespaces of their nodes.
struct Others(BTreeMap<String, BTreeSet<PathBuf>>);

impl Others {
    fn read() -> Self {
        let mut others: BTreeMap<String, BTreeSet<PathBuf>> = BTreeMap::new();
        for pid in names("/proc").iter().filter(|name| name.parse::<u32>().is_ok()) {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).into_owned();
            let words: Vec<&str> = line.split('\0').collect();
            let ["internal", role @ ("supervise" | "node-init"), name] =
                words[1..4.min(words.len())]
            else {
                continue;
            };
            if marked(pid) {
                continue;
            }
            let namespaces = others.entry(name.to_owned()).or_default();
            if role == "node-init" {
                namespaces.extend(fs::read_link(format!("/proc/{pid}/ns/pid")));
            }
        }
        Self(others)
    }

    /// Whether an item names one of them.
    fn own(&self, item: &str) -> bool {
        self.0
            .keys()
            .any(|name| item.contains(name.as_str()) || item.contains(&name.replace('-', "")))
    }

    /// Whether a process is of one of them, or of another's runner.
    fn runs(&self, pid: &str) -> bool {
        // One that has just ended is nobody's.
        let Ok(namespace) = fs::read_link(format!("/proc/{pid}/ns/pid")) else { return true };
        let outside = fs::read_link("/proc/self/ns/pid").is_ok_and(|own| own == namespace);
        !marked(pid) && (outside || self.0.values().any(|all| all.contains(&namespace)))
    }
}

/// Whether a process, or what started it, is of these tests. (Nodes' daemons have an environment
/// of their own.)
fn marked(pid: &str) -> bool {
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let mark = format!("{MARK}={}", std::process::id());
    environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
}

fn names(folder: &str) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

fn cgroups(folder: &Path, depth: u32, note: &mut impl FnMut(&str, &str)) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if !entry.file_type().is_ok_and(|t| t.is_dir()) || depth == 0 {
            continue;
        }
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with("dw-") || name == "kubepods" {
            note("cgroup", &entry.path().display().to_string());
        }
        cgroups(&entry.path(), depth - 1, note);
    }
}
