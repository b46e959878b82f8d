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
    /// A time with its unit, at most `most` and never more than [`LONGEST`].
    Time { min: Duration, most: Duration, whole_seconds: bool },
    /// `other-node`, `pod-node` or a node's name.
    EnterBy,
    /// A Kubernetes version.
    Version,
    /// A sysctl's value: a string or a whole number.
    Sysctl,
    /// `true` or `false`.
    Truth,
    /// A number of pods, or a share of the replicas such as `25%`.
    Share,
    /// A program and its arguments: one string without quotes in it, or a list of strings.
    Command,
}

impl Kind {
    /// Whether it is written as a string in TOML, so that a flag may leave the quotes out.
    pub fn is_string(self) -> bool {
        !matches!(
            self,
            Self::Count { .. } | Self::Sysctl | Self::Truth | Self::Share | Self::Command
        )
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
/// The most flows of one protocol that a trial may have.
pub const MAX_FLOWS: u32 = 100_000;
/// New connections of one protocol a second. Each has its source port to itself for 30 s at least, which
/// more of them would run out of.
const MAX_DIALS: u32 = 900;
const MAX_REPEATS: u32 = 10_000;
const MAX_NODES: u32 = 16;
const MAX_FAILURES: u32 = 1_000;
/// More pods than a node takes by default.
const MAX_REPLICAS: u32 = 100;

/// In the order in which help lists them.
const TRIGGERS: &[&str] = &[
    "delete",
    "evict",
    "scale-to-zero",
    "scale-down",
    "rollout",
    "drain-node",
    "force-delete",
    "delete-grace",
    "relabel",
    "readiness-fail",
    "crash",
    "delete-service",
    "restart-kube-proxy",
    "node-stop",
];
const POLICIES: &[&str] = &["cluster", "local"];

/// Any time, zero too.
const TIME: Kind = time(Duration::ZERO);
/// A time between two heartbeats.
const INTERVAL: Kind = time(Duration::from_millis(1));
/// A time within which to be answered. A trial's end waits for the last one, and limits count on a source
/// port's being free again after so long.
const DIAL_TIME: Kind = Kind::Time {
    min: Duration::from_millis(10),
    most: Duration::from_secs(30),
    whole_seconds: false,
};
/// What Kubernetes takes in seconds, and not as 0.
const SECONDS: Kind =
    Kind::Time { min: Duration::from_secs(1), most: LONGEST, whole_seconds: true };
/// What Kubernetes takes in seconds, 0 too.
const HOOK: Kind = Kind::Time { min: Duration::ZERO, most: LONGEST, whole_seconds: true };

/// Any time from this on.
const fn time(min: Duration) -> Kind {
    Kind::Time { min, most: LONGEST, whole_seconds: false }
}

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
         below the grace_period. By default the grace_period less 5 s, and less the sleep of a pod.pre_stop.",
    ),
    key("readiness", Kind::Word(&["fail", "pass"]), "\"fail\"").about(
        "What the app answers to its readiness probe once SIGTERM has arrived. By default \"fail\" \
         with sigterm = \"drain\" and \"pass\" with \"ignore\"; not with \"exit\", where nobody is \
         left to answer.",
    ),
    key("trigger", Kind::Word(TRIGGERS), "\"delete\"").default("\"delete\"").about(
        "What is done to the pod. It is deleted (\"delete\"), with a grace period of 0 \
         (\"force-delete\") or of its own (\"delete-grace\"); evicted (\"evict\"), as `kubectl drain` \
         does with all of a node's pods (\"drain-node\": the node is cordoned too, and the workload's \
         pods on it are evicted once each); its Deployment is scaled to zero (\"scale-to-zero\") or to \
         fewer replicas, the pod being the first that goes (\"scale-down\"), or gets a new pod template \
         (\"rollout\"). Or nothing terminates it: its label is changed, so that it leaves the Service and \
         lives on (\"relabel\"), its readiness begins to fail (\"readiness-fail\"), its Service is deleted \
         (\"delete-service\"), kube-proxy is started anew on each node (\"restart-kube-proxy\"). Or it goes \
         without goodbye: the app is killed with SIGKILL (\"crash\"), or its node is cut off and killed \
         (\"node-stop\"; each trial then has a cluster of its own). What the API refuses is a trial of \
         its own kind, trigger-refused, and is not tried again.",
    ),
    key("delete_grace", SECONDS, "\"5s\"").about(
        "The grace period of the deletion itself, in the place of the pod's. Only with trigger = \
         \"delete-grace\", which needs it. Whole seconds; kubelets leave an app 2 s at least.",
    ),
    key("scale_to", Kind::Count { min: 0, max: MAX_REPLICAS }, "1").about(
        "How many replicas are left. Only with trigger = \"scale-down\", and below pod.replicas. By \
         default one less than those.",
    ),
    key("rollout.max_surge", Kind::Share, "1").about(
        "How many pods may be there beyond pod.replicas: a number, or a share such as \"25%\" (rounded \
         up). Only with trigger = \"rollout\". By default \"25%\", as in Kubernetes.",
    ),
    key("rollout.max_unavailable", Kind::Share, "0").about(
        "How many of pod.replicas may be missing: a number, or a share such as \"25%\" (rounded down). \
         Only with trigger = \"rollout\". By default \"25%\", as in Kubernetes.",
    ),
    key("observe_for", INTERVAL, "\"30s\"").about(
        "How long to observe at most after a trigger that terminates no pod, and after which flows may \
         live on: only with trigger = \"relabel\", \"readiness-fail\", \"delete-service\", \
         \"restart-kube-proxy\" and \"node-stop\". A flow that is still answered at its end has \
         survived. By default 30 s, with \"node-stop\" 90 s (the cluster takes 50 s to miss a node).",
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
    key("flows.via", Kind::Word(&["node-port", "cluster-ip", "host-port", "pod"]), "\"node-port\"")
        .default("\"node-port\"")
        .about(
            "What address the flows go to. \"node-port\": a node's, at the Service's NodePort. \
             \"cluster-ip\": the Service's own; only from a node or a pod. \"host-port\": the pod's \
             node's, at a hostPort of the pod. \"pod\": the pod's own; only from a node or a pod.",
        ),
    key("flows.from", Kind::Word(&["outside", "node", "pod"]), "\"outside\"")
        .default("\"outside\"")
        .about(
            "Where the flows' clients stand: \"outside\" of the nodes, in the net namespace of the \
             \"node\" that they enter by, or in that of a client \"pod\" on it.",
        ),
    key("flows.enter_by", Kind::EnterBy, "\"other-node\"").about(
        "The node whose NodePort the flows enter by, and on which clients stand that do not stand \
         outside: \"other-node\" (one that the pod is not on), \"pod-node\" (the pod's own) or a \
         node's name. By default \"other-node\"; \"pod-node\" in a cluster of one node, and from \
         outside with via = \"host-port\".",
    ),
    key("flows.ip", Kind::Word(&["ipv4", "ipv6"]), "\"ipv4\"").default("\"ipv4\"").about(
        "The family of the flows' addresses. \"ipv6\" needs a cluster with both families, which the \
         arm's is then by default.",
    ),
    key("flows.source_port", Kind::Count { min: 1024, max: 65_535 }, "40000").about(
        "The first of fixed source ports: tcp-1 and udp-1 have this one, the next ones the next. By \
         default each flow has a port that the kernel chooses.",
    ),
    key("dials.tcp", Kind::Count { min: 0, max: MAX_DIALS }, "50")
        .default("0")
        .about("New TCP connections a second, evenly spaced, each with one question and its first answer."),
    key("dials.udp", Kind::Count { min: 0, max: MAX_DIALS }, "50")
        .default("0")
        .about("New UDP sockets a second, evenly spaced, each with one datagram and its first answer."),
    key("dials.timeout", DIAL_TIME, "\"1s\"")
        .default("\"1s\"")
        .about("No answer for this long, and a new connection has timed out. At most 30 s."),
    key("pod.readiness_period", SECONDS, "\"1s\"")
        .default("\"1s\"")
        .about("The readiness probe's periodSeconds. Whole seconds."),
    key("pod.readiness_failures", Kind::Count { min: 1, max: MAX_FAILURES }, "1")
        .default("1")
        .about("The readiness probe's failureThreshold: failures in a row until the pod is unready."),
    key("pod.pre_stop", HOOK, "\"5s\"").about(
        "A preStop hook that sleeps (lifecycle.preStop.sleep): SIGTERM comes so much later, and the \
         grace_period runs meanwhile. Whole seconds; 0s is no hook.",
    ),
    key("pod.pre_stop_exec", Kind::Command, "\"/drainwatch-probe sleep 5000\"").about(
        "A preStop hook that runs a command in the app's container (lifecycle.preStop.exec), in the place \
         of pod.pre_stop: a string, parted at its spaces, or a list of strings. The image holds nothing but \
         /drainwatch-probe, which can sleep for a number of milliseconds.",
    ),
    key("pod.replicas", Kind::Count { min: 1, max: MAX_REPLICAS }, "3").default("1").about(
        "How many pods the Deployment has. The others come up once all flows are held by the target, and \
         are ready before the settle time begins.",
    ),
    key("pod.disruption_budget", Kind::Count { min: 0, max: MAX_REPLICAS }, "1").about(
        "minAvailable of the pods' PodDisruptionBudget, which may refuse evictions. By default there is \
         no budget.",
    ),
    key("pod.shell", Kind::Truth, "true").default("false").about(
        "Whether the app is started by a process that passes no signals on, as by `sh -c` without exec: \
         the container's first process gets SIGTERM, and the app never hears of it.",
    ),
    key("service.type", Kind::Word(&["node-port", "cluster-ip"]), "\"node-port\"")
        .default("\"node-port\"")
        .about("The Service's type."),
    key("service.session_affinity", Kind::Word(&["none", "client-ip"]), "\"client-ip\"")
        .default("\"none\"")
        .about("The Service's sessionAffinity: whether a client stays with the pod that it got first."),
    key("service.external_traffic_policy", Kind::Word(POLICIES), "\"local\"")
        .default("\"cluster\"")
        .about(
            "The Service's externalTrafficPolicy: whether a node port leads to all endpoints or only to \
             those on the node itself.",
        ),
    key("service.internal_traffic_policy", Kind::Word(POLICIES), "\"local\"")
        .default("\"cluster\"")
        .about(
            "The Service's internalTrafficPolicy: whether its cluster IP leads to all endpoints or only to \
             those on the client's node.",
        ),
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
    key("cluster.dual_stack", Kind::Truth, "true").about(
        "Whether nodes, pods and Services have IPv6 addresses beside IPv4 ones. By default with \
         flows.ip = \"ipv6\" alone.",
    ),
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

/// Words that people know, most of them Kubernetes' own, and what to write in their place.
pub(super) const KUBERNETES: [(&str, &str); 13] = [
    ("trials", "did you mean `repeats`? It is how many trials an arm has"),
    ("terminationGracePeriodSeconds", "did you mean `grace_period`? It takes a time: \"30s\""),
    ("gracePeriodSeconds", "did you mean `delete_grace`? It takes a time: \"5s\""),
    ("periodSeconds", "did you mean `pod.readiness_period`? It takes a time: \"1s\""),
    ("failureThreshold", "did you mean `pod.readiness_failures`?"),
    ("preStop", "did you mean `pod.pre_stop`? It takes a time: \"5s\""),
    ("replicas", "did you mean `pod.replicas`?"),
    ("minAvailable", "did you mean `pod.disruption_budget`?"),
    ("maxSurge", "did you mean `rollout.max_surge`?"),
    ("maxUnavailable", "did you mean `rollout.max_unavailable`?"),
    ("sessionAffinity", "did you mean `service.session_affinity`?"),
    ("externalTrafficPolicy", "did you mean `service.external_traffic_policy`?"),
    ("internalTrafficPolicy", "did you mean `service.internal_traffic_policy`?"),
];

/// Before the name of a sysctl of the nodes.
pub(super) const SYSCTLS: &str = "cluster.sysctls";
/// Before the name of a sysctl of the pod.
pub(super) const POD_SYSCTLS: &str = "pod.sysctls";
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
    ("dials", "New connections made from settle on, by the way that the flows go."),
    ("rollout", "How a rollout goes on: the Deployment's rollingUpdate. Not both of them nothing."),
    ("pod", "The pod: its readiness probe, its preStop hook, how many there are of it."),
    (
        POD_SYSCTLS,
        "Sysctls of the pod's own net namespace (its securityContext.sysctls; kubelets allow them). Quote \
         their names: \"net.ipv4.icmp_ratelimit\" = 0",
    ),
    ("service", "The Service in front of the pods."),
    ("cluster", "The cluster that the trials run on. A matrix's counts before a scenario's."),
    (
        SYSCTLS,
        "Sysctls set in each node's net namespace before anything starts (not in the pods'). Quote \
         their names: \"net.ipv4.tcp_retries2\" = 5",
    ),
];

/// A longest time in words: `24h`, not humantime's `1day`.
pub(super) fn words(most: Duration) -> String {
    match most.as_secs() {
        hours if hours > 0 && hours % 3600 == 0 => format!("{}h", hours / 3600),
        _ => humantime::format_duration(most).to_string(),
    }
}

/// Whether this full name holds other keys.
pub(super) fn is_table(name: &str) -> bool {
    TABLES.iter().any(|(table, _)| *table == name)
}

/// Whether this table is one of sysctls, or stands in one: `cluster.sysctls.net` without quotes.
pub(super) fn is_of_sysctls(table: &str) -> bool {
    [SYSCTLS, POD_SYSCTLS].iter().any(|sysctls| table.starts_with(sysctls))
}

/// The key of this full name.
pub(super) fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name).or_else(|| sysctl_name(name).map(|_| &SYSCTL))
}

/// `net.core.somaxconn` of `cluster.sysctls.net.core.somaxconn`, and of the pod's likewise.
pub(super) fn sysctl_name(name: &str) -> Option<&str> {
    [SYSCTLS, POD_SYSCTLS].iter().find_map(|table| sysctl_of(table, name))
}

/// The same in one of the tables of sysctls.
pub(super) fn sysctl_of<'a>(table: &str, name: &'a str) -> Option<&'a str> {
    name.strip_prefix(table)?.strip_prefix('.').filter(|rest| !rest.is_empty())
}

/// What stands directly in a table (`""` is the scenario itself), for suggestions.
pub(super) fn names_in(table: &str) -> impl Iterator<Item = &'static str> {
    let names = KEYS.iter().map(|key| key.name).chain(TABLES.iter().map(|(table, _)| *table));
    names.filter_map(move |name| match table {
        "" => (!name.contains('.')).then_some(name),
        _ => name.strip_prefix(table)?.strip_prefix('.').filter(|rest| !rest.contains('.')),
    })
}
