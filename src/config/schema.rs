//! The keys that may be set, and what each takes.
//!
//! One table for scenarios, `[cluster]`, axes and `--set`, so that a key is the same wherever it
//! stands. Knows neither defaults nor what contradicts what ([`super::resolve`] does).

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
}

impl Key {
    /// The last segment: `tcp` of `flows.tcp`.
    pub fn short(&self) -> &'static str {
        self.name.rsplit('.').next().unwrap_or(self.name)
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
    Key { name, kind, example }
}

/// All keys with fixed names.
pub(super) const KEYS: &[Key] = &[
    key("description", Kind::Text, "\"what it shows\""),
    key("sigterm", Kind::Word(&["exit", "drain", "ignore"]), "\"drain\""),
    key("drain_window", TIME, "\"25s\""),
    key("readiness", Kind::Word(&["fail", "pass"]), "\"fail\""),
    key("trigger", Kind::Word(&["delete", "evict", "scale-to-zero"]), "\"delete\""),
    key("grace_period", SECONDS, "\"30s\""),
    key("settle", TIME, "\"10s\""),
    key("observe_after", TIME, "\"2s\""),
    key("repeats", Kind::Count { min: 1, max: MAX_REPEATS }, "5"),
    key("flows.tcp", Kind::Count { min: 0, max: MAX_FLOWS }, "10"),
    key("flows.udp", Kind::Count { min: 0, max: MAX_FLOWS }, "10"),
    key("flows.tcp_interval", INTERVAL, "\"100ms\""),
    key("flows.udp_interval", INTERVAL, "\"20ms\""),
    key("flows.silent_after", INTERVAL, "\"2s\""),
    key("flows.enter_by", Kind::EnterBy, "\"other-node\""),
    key("pod.readiness_period", SECONDS, "\"1s\""),
    key("pod.readiness_failures", Kind::Count { min: 1, max: MAX_FAILURES }, "1"),
    key("cluster.provider", Kind::Word(&["auto", "local", "kind", "context"]), "\"auto\""),
    key("cluster.kubernetes", Kind::Version, "\"1.34.0\""),
    key("cluster.nodes", Kind::Count { min: 1, max: MAX_NODES }, "2"),
    key("cluster.proxy_mode", Kind::Word(&["iptables", "nftables", "ipvs"]), "\"iptables\""),
    key("cluster.dns", Kind::Truth, "true"),
];

/// Words that are known and not supported yet.
pub(super) const NOT_YET: [(&str, &str); 2] =
    [("cluster.provider", "kind"), ("cluster.provider", "context")];

/// The minor versions of Kubernetes 1 that local clusters are written for
/// (src/cluster/local/components/versions.rs has the same).
pub(super) const LOCAL_MINORS: std::ops::RangeInclusive<u32> = 33..=37;

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
const SYSCTL: Key = key("cluster.sysctls.*", Kind::Sysctl, "\"1\"");

/// Keys that hold other keys.
pub(super) const TABLES: &[&str] = &["flows", "pod", "cluster", SYSCTLS];

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
    let names = KEYS.iter().map(|key| key.name).chain(TABLES.iter().copied());
    names.filter_map(move |name| match table {
        "" => (!name.contains('.')).then_some(name),
        _ => name.strip_prefix(table)?.strip_prefix('.').filter(|rest| !rest.contains('.')),
    })
}
