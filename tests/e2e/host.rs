//! What a cluster could leave on the host: looked at before and after.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Paths that Kubernetes' parts make where they run, all but one of them fixed.
const FIXED_PATHS: [&str; 14] = [
    "/etc/cni",
    "/etc/containerd",
    "/etc/kubernetes",
    "/opt/cni",
    "/opt/containerd",
    "/opt/nri",
    "/run/containerd",
    "/run/drainwatch",
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
        let mut items = BTreeSet::new();
        let mut note = |kind: &str, item: &str| items.insert(format!("{kind} {item}"));
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
            let own = ["internal supervise", "internal node-init", "internal hold"];
            let path = ["/run/drainwatch/", "containerd-shim"];
            if own.iter().chain(&path).any(|mark| line.contains(mark)) {
                note("process", &format!("{pid} {line}"));
            }
        }
        Self(items)
    }

    /// Waits, for 10 s at most, until the host is again as it was.
    pub fn wait_unchanged(&self) -> Result<(), String> {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let now = Self::read();
            if now == *self {
                return Ok(());
            }
            if Instant::now() > deadline {
                let new: Vec<_> = now.0.difference(&self.0).collect();
                let gone: Vec<_> = self.0.difference(&now.0).collect();
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

fn names(folder: &str) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

fn cgroups(folder: &Path, depth: u32, note: &mut impl FnMut(&str, &str) -> bool) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if !entry.file_type().is_ok_and(|t| t.is_dir()) || depth == 0 {
            continue;
        }
        if entry.file_name() == "drainwatch" || entry.file_name() == "kubepods" {
            note("cgroup", &entry.path().display().to_string());
        }
        cgroups(&entry.path(), depth - 1, note);
    }
}
