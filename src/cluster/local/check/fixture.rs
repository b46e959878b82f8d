//! A made-up machine for tests.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::cluster::local::components::Ready;
use crate::cluster::machine::{Answer, Limit, Machine};

/// Everything that a machine tells, as a test wants it.
#[derive(Clone)]
pub(crate) struct Fixture {
    pub platform: (&'static str, &'static str),
    pub root: bool,
    pub descriptors: Option<(u64, u64)>,
    pub free: u64,
    pub kubernetes: Result<Ready, String>,
    pub files: BTreeMap<String, String>,
    pub tools: BTreeSet<String>,
    pub answers: BTreeMap<String, Answer>,
    pub trials: BTreeMap<String, Answer>,
}

impl Fixture {
    /// A Debian machine that has all, without a folder of modules.
    pub fn full() -> Self {
        let machine = Self {
            root: true,
            kubernetes: Ok(Ready {
                place: "/root/.cache/drainwatch".into(),
                versions: vec!["1.34.0".into(), "1.37.2".into()],
                faults: Vec::new(),
            }),
            descriptors: Some((1024, 524_288)),
            free: 80 << 30,
            ..Self::bare()
        };
        let tools = [
            "runc",
            "iptables",
            "ip6tables",
            "iptables-restore",
            "nft",
            "conntrack",
            "ip",
            "nsenter",
            "unshare",
            "mount",
            "go",
            "docker",
            "kind",
            "kubectl",
            "true",
        ];
        let says = [
            ("runc --version", "runc version 1.1.5+ds1\ncommit: 1.1.5"),
            ("iptables --version", "iptables v1.8.9 (nf_tables)"),
            ("nft --version", "nftables v1.0.6 (Lester Gooch #5)"),
            ("conntrack --version", "conntrack v1.4.7 (conntrack-tools)"),
            ("ip -V", "ip utility, iproute2-6.1.0, libbpf 1.1.0"),
            ("go env GOVERSION", "go1.26.8"),
            ("docker version --format {{.Server.Version}}", "27.3.1"),
            ("kind version", "kind v0.30.0 go1.24.6 linux/amd64"),
            ("kubectl version --client", "Client Version: v1.34.0\nKustomize Version: v5.7.1"),
        ];
        let mut machine = tools.into_iter().fold(machine, Self::with_tool);
        for (question, text) in says {
            machine = machine.answering(question, Answer::Said(text.into()));
        }
        for tool in ["true", "ip", "iptables-restore", "nft", "conntrack"] {
            machine = machine.trying(tool, Answer::Said(String::new()));
        }
        for namespace in ["ipc", "mnt", "net", "pid", "uts"] {
            machine = machine.with(&format!("/proc/self/ns/{namespace}"), "");
        }
        machine
            .with("/etc/os-release", "ID=debian\n")
            .with("/proc/filesystems", "nodev\ttmpfs\n\text4\nnodev\toverlay\n")
            .with("/proc/self/status", "Name:\tx\nCapEff:\t000001ffffffffff\n")
            .with("/proc/sys/fs/inotify/max_user_instances", "128\n")
            .with("/proc/sys/kernel/random/boot_id", "0\n")
            .with("/proc/sys/net/netfilter/nf_conntrack_events", "2\n")
            .with("/sys/module/ip_vs", "")
            .unified("cpuset cpu io memory hugetlb pids rdma misc\n")
    }

    /// A Linux machine on which nothing is installed, for a plain user.
    pub fn bare() -> Self {
        let machine = Self {
            platform: ("linux", "x86_64"),
            root: false,
            descriptors: Some((256, 512)),
            free: 200 << 20,
            kubernetes: Ok(Ready { place: "/home/u/.cache/drainwatch".into(), ..Ready::default() }),
            files: BTreeMap::new(),
            tools: BTreeSet::new(),
            answers: BTreeMap::new(),
            trials: BTreeMap::new(),
        };
        machine
            .with("/proc/meminfo", "MemTotal: 8046152 kB\nMemAvailable: 7000000 kB\n")
            .with("/proc/sys/kernel/osrelease", "6.1.0-18-amd64\n")
            .with("/proc/sys/net/ipv4/ip_local_port_range", "32768\t60999\n")
            .with("/proc/sys/kernel/threads-max", "62703\n")
            .with("/sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n")
    }

    /// With a file, or another text in it.
    pub fn with(mut self, path: &str, text: &str) -> Self {
        self.files.insert(path.into(), text.into());
        self
    }

    /// With cgroup version 2 alone, and these controllers at its root.
    pub fn unified(self, controllers: &str) -> Self {
        self.with(
            "/proc/self/mountinfo",
            "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n",
        )
        .with("/sys/fs/cgroup/cgroup.controllers", controllers)
    }

    fn with_tool(mut self, tool: &str) -> Self {
        self.tools.insert(tool.into());
        self
    }

    pub fn without_tool(mut self, tool: &str) -> Self {
        assert!(self.tools.remove(tool), "{tool}");
        self
    }

    /// With another answer to a question: `nft --version`.
    pub fn answering(mut self, question: &str, answer: Answer) -> Self {
        self.answers.insert(question.into(), answer);
        self
    }

    /// With another end of this tool's trials.
    pub fn trying(mut self, tool: &str, answer: Answer) -> Self {
        self.trials.insert(tool.into(), answer);
        self
    }
}

impl Machine for Fixture {
    fn platform(&self) -> (&str, &str) {
        self.platform
    }

    fn is_root(&self) -> bool {
        self.root
    }

    fn user(&self) -> String {
        if self.root { "root".into() } else { "u".into() }
    }

    fn read(&self, path: &str) -> Option<String> {
        self.files.get(path).cloned()
    }

    fn exists(&self, path: &str) -> bool {
        self.files.contains_key(path)
    }

    fn has(&self, tool: &str) -> bool {
        self.tools.contains(tool)
    }

    fn ask(&self, tool: &str, arguments: &[&str]) -> Answer {
        if !self.has(tool) {
            return Answer::Absent;
        }
        let question = format!("{tool} {}", arguments.join(" "));
        let answer = self.answers.get(&question).cloned();
        answer.unwrap_or_else(|| Answer::Failed(format!("nobody knows what `{question}` says")))
    }

    fn try_out(&self, tool: &str, _: &[&str], _: &str) -> Answer {
        assert!(self.root, "only root can try {tool} out");
        match self.has(tool) {
            true => self.trials.get(tool).cloned().unwrap_or(Answer::Absent),
            false => Answer::Absent,
        }
    }

    fn limit(&self, limit: Limit) -> Option<(u64, u64)> {
        match limit {
            Limit::Descriptors => self.descriptors,
            Limit::Processes => Some((31_351, 31_351)),
        }
    }

    fn free(&self, _: &Path) -> Option<u64> {
        Some(self.free)
    }

    fn processors(&self) -> Option<usize> {
        Some(2)
    }

    fn kubernetes(&self) -> Result<Ready, String> {
        self.kubernetes.clone()
    }

    fn results(&self) -> PathBuf {
        "/home/u/results".into()
    }
}
