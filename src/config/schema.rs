//! The keys that may be set, and what each takes.
//!
//! One table for scenarios, `[cluster]`, axes, `--set` and the JSON Schemas, so that a key is the
//! same wherever it stands. Knows not what contradicts what ([`super::resolve`] does, which the
//! defaults are told after).

use std::time::Duration;

/// What a key takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Any string.
    Text,
    /// One of these words.
    Word(&'static [&'static str]),
    /// A whole number.
    Count { min: u32, max: u32 },
    /// A time with its unit, at most [`LONGEST`].
    Time { min: Duration, whole_seconds: bool },
    /// `other-node`, `pod-node` or a node's name.
    EnterBy,
    /// A Kubernetes version.
    Version,
    /// A sysctl's value: a string or a whole number.
    Sysctl,
    /// `true` or `false`.
    Truth,
}

impl Kind {
    /// Whether it is written as a string in TOML, so that a flag may leave the quotes out.
    pub fn is_string(self) -> bool {
        !matches!(self, Self::Count { .. } | Self::Sysctl | Self::Truth)
    }
}

/// A key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Key {
    /// Dotted, from the scenario's top: `flows.tcp`.
    pub name: &'static str,
    pub kind: Kind,
    /// A value as written in TOML, for help.
    pub example: &'static str,
    /// The value that counts where none is set, as written in TOML; `None` where there is none, or
    /// where it hangs on other keys (`about` says how).
    pub default: Option<&'static str>,
    /// What it does, for whoever writes it.
    pub about: &'static str,
}

impl Key {
    /// The last segment: `tcp` of `flows.tcp`.
    pub fn short(&self) -> &'static str {
        self.name.rsplit('.').next().unwrap_or(self.name)
    }

    const fn default(mut self, value: &'static str) -> Self {
        self.default = Some(value);
        self
    }

    const fn about(mut self, text: &'static str) -> Self {
        self.about = text;
        self
    }
}

/// The longest time that may be set anywhere.
pub(super) const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);
/// Flows of one protocol in a trial.
const MAX_FLOWS: u32 = 100_000;
const MAX_REPEATS: u32 = 10_000;
const MAX_NODES: u32 = 16;
const MAX_FAILURES: u32 = 1_000;

/// Any time, zero too.
const TIME: Kind = Kind::Time { min: Duration::ZERO, whole_seconds: false };
/// A time between two heartbeats.
const INTERVAL: Kind = Kind::Time { min: Duration::from_millis(1), whole_seconds: false };
/// What Kubernetes takes in seconds, and not as 0.
const SECONDS: Kind = Kind::Time { min: Duration::from_secs(1), whole_seconds: true };

const fn key(name: &'static str, kind: Kind, example: &'static str) -> Key {
    Key { name, kind, example, default: None, about: "" }
}

/// All keys with fixed names.
pub(super) const KEYS: &[Key] = &[
    key("description", Kind::Text, "\"what it shows\"").about("What it shows, in your words."),
    key("sigterm", Kind::Word(&["exit", "drain", "ignore"]), "\"drain\"").about(
        "What the app does on SIGTERM. \"exit\": it resets its connections and exits at once. \
         \"drain\": it accepts nothing new, serves what it holds for the drain_window, closes it \
         cleanly and exits. \"ignore\": it goes on until SIGKILL.",
    ),
    key("drain_window", TIME, "\"25s\"").about(
        "How long the app serves what it holds after SIGTERM. Only with sigterm = \"drain\", and \
         below the grace_period. By default the grace_period less 5 s.",
    ),
    key("readiness", Kind::Word(&["fail", "pass"]), "\"fail\"").about(
        "What the app answers to its readiness probe once SIGTERM has arrived. By default \"fail\" \
         with sigterm = \"drain\" and \"pass\" with \"ignore\"; not with \"exit\", where nobody is \
         left to answer.",
    ),
    key("trigger", Kind::Word(&["delete", "evict", "scale-to-zero"]), "\"delete\"")
        .default("\"delete\"")
        .about(
            "What terminates the pod. \"delete\": it is deleted. \"evict\": it is evicted, as by \
             `kubectl drain`. \"scale-to-zero\": its Deployment is scaled to zero, so that no \
             replacement comes.",
        ),
    key("grace_period", SECONDS, "\"30s\"").default("\"30s\"").about(
        "The pod's terminationGracePeriodSeconds: from SIGTERM to SIGKILL. Whole seconds.",
    ),
    key("settle", TIME, "\"10s\"").default("\"10s\"").about(
        "How long flows must live before the trigger. A pod that is terminated less than 3 s after \
         its start gets SIGTERM late.",
    ),
    key("observe_after", TIME, "\"2s\"").default("\"2s\"").about(
        "How long to go on once every flow's story has ended and the container is gone.",
    ),
    key("repeats", Kind::Count { min: 1, max: MAX_REPEATS }, "5")
        .default("5")
        .about("Trials an arm."),
    key("evidence", Kind::Truth, "false").default("true").about(
        "Whether the nodes' kernels are listened to, where the provider can enter nodes: commits of \
         kube-proxy's rules, the flows' entries of the connection tracking tables, the packets that end \
         or refuse flows, and the ends of containers' processes. Each flow's cause then tells its chain, \
         link by link.",
    ),
    key("flows.tcp", Kind::Count { min: 0, max: MAX_FLOWS }, "10")
        .default("10")
        .about("TCP flows, all held at once. At least one flow in all."),
    key("flows.udp", Kind::Count { min: 0, max: MAX_FLOWS }, "10")
        .default("10")
        .about("UDP flows, all held at once. At least one flow in all."),
    key("flows.tcp_interval", INTERVAL, "\"100ms\"")
        .default("\"100ms\"")
        .about("Each TCP flow sends one heartbeat in each such interval."),
    key("flows.udp_interval", INTERVAL, "\"20ms\"")
        .default("\"20ms\"")
        .about("Each UDP flow sends one heartbeat in each such interval."),
    key("flows.silent_after", INTERVAL, "\"2s\"")
        .default("\"2s\"")
        .about("No answer for this long is silence. Longer than both intervals."),
    key("flows.enter_by", Kind::EnterBy, "\"other-node\"").about(
        "The node whose NodePort the flows enter by: \"other-node\" (one that the pod is not on), \
         \"pod-node\" (the pod's own) or a node's name. By default \"other-node\", in a cluster of one \
         node \"pod-node\".",
    ),
    key("pod.readiness_period", SECONDS, "\"1s\"")
        .default("\"1s\"")
        .about("The readiness probe's periodSeconds. Whole seconds."),
    key("pod.readiness_failures", Kind::Count { min: 1, max: MAX_FAILURES }, "1")
        .default("1")
        .about("The readiness probe's failureThreshold: failures in a row until the pod is unready."),
    key("cluster.provider", Kind::Word(&["auto", "local", "kind", "context"]), "\"auto\"")
        .default("\"auto\"")
        .about(
            "Who makes the cluster. \"local\": processes in namespaces of this machine, no Docker \
             needed. \"auto\" is \"local\" until kind is supported.",
        ),
    key("cluster.kubernetes", Kind::Version, "\"1.34.0\"")
        .default("\"1.34.0\"")
        .about("The version of Kubernetes, with its patch release."),
    key("cluster.nodes", Kind::Count { min: 1, max: MAX_NODES }, "2").default("2").about(
        "How many nodes. The first is the control plane and takes pods only when it is alone.",
    ),
    key("cluster.proxy_mode", Kind::Word(&["iptables", "nftables", "ipvs"]), "\"iptables\"")
        .default("\"iptables\"")
        .about("kube-proxy's mode."),
    key("cluster.dns", Kind::Truth, "true").default("false").about(
        "Whether the cluster has DNS (CoreDNS), for workloads that look names up. Names outside the \
         cluster are refused.",
    ),
];

/// Words that are known and not supported yet.
const NOT_YET: [(&str, &str); 2] = [("cluster.provider", "kind"), ("cluster.provider", "context")];

/// Whether this word of the key is known and not supported yet.
pub(super) fn is_not_yet(key: &str, word: &str) -> bool {
    NOT_YET.contains(&(key, word))
}

/// The minor versions of Kubernetes 1 that local clusters are written for.
pub const LOCAL_MINORS: std::ops::RangeInclusive<u32> = 33..=37;

/// The Kubernetes version where none is named: the one that the shipped matrices use.
pub const DEFAULT_KUBERNETES: &str = "1.34.0";

/// Kubernetes' own words, which people know, and what to write in their place.
pub(super) const KUBERNETES: [(&str, &str); 5] = [
    ("terminationGracePeriodSeconds", "did you mean `grace_period`? It takes a time: \"30s\""),
    ("periodSeconds", "did you mean `pod.readiness_period`? It takes a time: \"1s\""),
    ("failureThreshold", "did you mean `pod.readiness_failures`?"),
    ("preStop", "a preStop hook is not supported yet"),
    ("replicas", "more than one replica is not supported yet"),
];

/// Before the name of a sysctl.
pub(super) const SYSCTLS: &str = "cluster.sysctls";
/// Any sysctl.
pub(super) const SYSCTL: Key =
    key("cluster.sysctls.*", Kind::Sysctl, "\"1\"").about("A sysctl of a net namespace.");

/// More sysctls than these are a slip, and each arm keeps a copy of its own.
pub(super) const MAX_SYSCTLS: usize = 256;
/// A sysctl's name and its value are no longer, in bytes.
pub(super) const LONGEST_SYSCTL: usize = 200;

/// Keys that hold other keys, and what they are about.
pub(super) const TABLES: &[(&str, &str)] = &[
    ("flows", "The flows held to the pod."),
    ("pod", "The pod's readiness probe."),
    ("cluster", "The cluster that the trials run on. A matrix's counts before a scenario's."),
    (
        SYSCTLS,
        "Sysctls set in each node's net namespace before anything starts (not in the pods'). Quote \
         their names: \"net.ipv4.tcp_retries2\" = 5",
    ),
];

/// Whether this full name holds other keys.
pub(super) fn is_table(name: &str) -> bool {
    TABLES.iter().any(|(table, _)| *table == name)
}

/// The key of this full name.
pub(super) fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name).or_else(|| sysctl_name(name).map(|_| &SYSCTL))
}

/// `net.core.somaxconn` of `cluster.sysctls.net.core.somaxconn`.
pub(super) fn sysctl_name(name: &str) -> Option<&str> {
    name.strip_prefix(SYSCTLS)?.strip_prefix('.').filter(|rest| !rest.is_empty())
}

/// What stands directly in a table (`""` is the scenario itself), for suggestions.
pub(super) fn names_in(table: &str) -> impl Iterator<Item = &'static str> {
    let names = KEYS.iter().map(|key| key.name).chain(TABLES.iter().map(|(table, _)| *table));
    names.filter_map(move |name| match table {
        "" => (!name.contains('.')).then_some(name),
        _ => name.strip_prefix(table)?.strip_prefix('.').filter(|rest| !rest.contains('.')),
    })
}
