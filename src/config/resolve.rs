//! An arm's settings become a scenario and a cluster.
//!
//! Fills in the defaults and tells what contradicts what. Takes settings whose values are right
//! one by one; knows nothing of TOML, and of files only the places that it blames.

mod trigger;
mod workload;

use std::collections::BTreeSet;
use std::time::Duration;

use serde::Deserialize;
use serde::de::IntoDeserializer;
use serde::de::value::Error as WordError;

use super::errors::{Problem, Problems};
use super::scenario::{
    ClusterSpec, Dials, EnterBy, Flows, IpFamily, ProviderKind, ProxyMode, Readiness, Scenario,
    Sigterm, Vantage, Via,
};
use super::schema;
use super::settings::{Layer, Setting, Settings};
use super::source::Place;
use super::value::Value;
use super::workload::PreStop;
use trigger::Triggering;

/// What is left of the grace period after the default drain window.
const AFTER_DRAIN: Duration = Duration::from_secs(5);

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// The arm's scenario and cluster; `None` if there is a problem, told now or when a value was
/// read. `missing` is the place that lacks `sigterm`, if its absence is worth telling. Where
/// errors of syntax may have swallowed a key (not `whole`), nothing is concluded from a default.
pub(super) fn resolve(
    settings: &Settings,
    missing: Option<Place>,
    whole: bool,
    problems: &mut Problems,
) -> Option<(Scenario, ClusterSpec)> {
    let before = problems.count();
    let mut resolver = Resolver { settings, whole, problems };
    let sigterm: Option<Sigterm> = resolver.sigterm(missing);
    let cluster = resolver.cluster();
    let scenario = resolver.scenario(sigterm, cluster.as_ref());
    match (scenario, cluster) {
        (Some(scenario), Some(cluster)) if problems.count() == before => Some((scenario, cluster)),
        _ => None,
    }
}

/// A cluster without a scenario.
pub(super) fn cluster(settings: &Settings, problems: &mut Problems) -> Option<ClusterSpec> {
    Resolver { settings, whole: true, problems }.cluster()
}

struct Resolver<'a> {
    settings: &'a Settings,
    whole: bool,
    problems: &'a mut Problems,
}

impl Resolver<'_> {
    fn setting(&self, key: &str) -> Option<&Setting> {
        self.settings.get(key)
    }

    /// Whether the key is set by anything that could be read. Of an axis that is wrong itself
    /// nothing is concluded: it may be the axis that was not meant.
    fn is_given(&self, key: &str) -> bool {
        let broken = |setting: &Setting| setting.layer == Layer::Axis && setting.value.is_none();
        self.setting(key).is_some_and(|setting| !broken(setting))
    }

    /// The key's value or its default; `None` where the value is wrong.
    fn get<T>(&self, key: &str, default: T, read: impl Fn(&Value) -> Option<T>) -> Option<T> {
        match self.setting(key) {
            None => Some(default),
            Some(setting) => read(setting.value.as_ref()?),
        }
    }

    fn count(&self, key: &str, default: u32) -> Option<u32> {
        self.get(key, default, |value| match value {
            Value::Count(count) => Some(*count),
            _ => None,
        })
    }

    fn time(&self, key: &str, default: Duration) -> Option<Duration> {
        self.get(key, default, |value| match value {
            Value::Time(time) => Some(*time),
            _ => None,
        })
    }

    fn text(&self, key: &str, default: Option<String>) -> Option<Option<String>> {
        self.get(key, default, |value| match value {
            Value::Text(text) => Some(Some(text.clone())),
            _ => None,
        })
    }

    fn word<'de, T: Deserialize<'de>>(&self, key: &str, default: T) -> Option<T> {
        self.get(key, default, as_word)
    }

    /// False by default.
    fn truth(&self, key: &str, default: bool) -> Option<bool> {
        self.get(key, default, |value| match value {
            Value::Truth(truth) => Some(*truth),
            _ => None,
        })
    }

    fn sigterm(&mut self, missing: Option<Place>) -> Option<Sigterm> {
        match (self.setting("sigterm"), missing) {
            (Some(setting), _) => setting.value.as_ref().and_then(as_word),
            (None, Some(place)) => {
                self.problems.push(
                    Problem::at(place, "`sigterm` is missing: what the app does on SIGTERM").help(
                        "write sigterm = \"exit\", \"drain\" or \"ignore\" at the file's top",
                    ),
                );
                None
            }
            (None, None) => None,
        }
    }

    fn cluster(&mut self) -> Option<ClusterSpec> {
        let sysctls = self.sysctls(schema::SYSCTLS);
        let pod_sysctls = self.sysctls(schema::POD_SYSCTLS);
        self.version();
        Some(ClusterSpec {
            provider: self.word("cluster.provider", ProviderKind::Auto)?,
            kubernetes: self
                .text("cluster.kubernetes", Some(schema::DEFAULT_KUBERNETES.into()))??,
            nodes: self.count("cluster.nodes", 2)?,
            proxy_mode: self.word("cluster.proxy_mode", ProxyMode::Iptables)?,
            sysctls: sysctls?,
            dns: self.truth("cluster.dns", false)?,
            pod_sysctls: BTreeSet::from_iter(pod_sysctls?.into_keys()),
            dual_stack: self.dual_stack()?,
        })
    }

    fn dual_stack(&mut self) -> Option<bool> {
        let ip = self.word("flows.ip", IpFamily::Ipv4)?;
        let (key, ipv6) = ("cluster.dual_stack", ip == IpFamily::Ipv6);
        let dual_stack = self.get(key, ipv6, |value| match value {
            Value::Truth(truth) => Some(*truth),
            _ => None,
        })?;
        if ipv6 && !dual_stack {
            let message = "ip = \"ipv6\" in a cluster without IPv6";
            let help = "take cluster.dual_stack out, or set it to true";
            self.blame(["flows.ip", key], At::Value, message.into(), help);
            return None;
        }
        Some(dual_stack)
    }

    /// Told here, not when the first cluster is to come up: that may be hours into a run.
    fn version(&mut self) {
        let provider = self.word("cluster.provider", ProviderKind::Auto);
        let Some(Value::Text(version)) =
            self.setting("cluster.kubernetes").and_then(|setting| setting.value.as_ref())
        else {
            return;
        };
        let minor =
            version.strip_prefix("1.").and_then(|rest| rest.split('.').next()?.parse().ok());
        let known = minor.is_some_and(|minor: u32| schema::LOCAL_MINORS.contains(&minor));
        if !known && provider.is_some_and(is_local) {
            let (first, last) = (schema::LOCAL_MINORS.start(), schema::LOCAL_MINORS.end());
            let message = format!("no local cluster can have Kubernetes {version}");
            let help = format!("the supported versions are 1.{first} to 1.{last}");
            self.blame(["cluster.kubernetes", "cluster.provider"], At::Value, message, &help);
        }
    }

    /// Each part by itself first, so that one wrong value hides no contradiction of others.
    fn scenario(
        &mut self,
        sigterm: Option<Sigterm>,
        cluster: Option<&ClusterSpec>,
    ) -> Option<Scenario> {
        let grace_period = self.time("grace_period", secs(30));
        let pre_stop = self.pre_stop(grace_period);
        let drain_window = self.drain_window(sigterm, grace_period, pre_stop.as_ref());
        let readiness = self.readiness(sigterm);
        let flows = self.flows(cluster);
        let pod = self.pod(pre_stop);
        let replicas = self.count("pod.replicas", 1);
        let triggering = self.triggering(replicas, flows.as_ref(), cluster);
        let service = self.service(flows.as_ref(), cluster);
        if let (Some(replicas), Some(flows), Some(cluster)) = (replicas, &flows, cluster) {
            let rollout = triggering.as_ref().and_then(|triggering| triggering.rollout);
            self.host_ports(replicas, rollout, flows, cluster);
        }
        let Triggering { trigger, delete_grace, scale_to, rollout, observe_for } = triggering?;
        Some(Scenario {
            description: self.text("description", None)?,
            sigterm: sigterm?,
            drain_window: drain_window?,
            readiness: readiness?,
            trigger,
            delete_grace,
            scale_to,
            rollout,
            observe_for,
            grace_period: grace_period?,
            settle: self.time("settle", secs(10))?,
            observe_after: self.time("observe_after", secs(2))?,
            repeats: self.count("repeats", 5)?,
            evidence: self.truth("evidence", true)?,
            flows: flows?,
            dials: Dials {
                tcp: self.count("dials.tcp", 0)?,
                udp: self.count("dials.udp", 0)?,
                timeout: self.time("dials.timeout", Dials::DEFAULT_TIMEOUT)?,
            },
            pod: pod?,
            service: service?,
        })
    }

    fn drain_window(
        &mut self,
        sigterm: Option<Sigterm>,
        grace: Option<Duration>,
        pre_stop: Option<&Option<PreStop>>,
    ) -> Option<Option<Duration>> {
        let (key, given) = ("drain_window", self.setting("drain_window").is_some());
        if sigterm? != Sigterm::Drain {
            if self.is_given(key) {
                let message = format!("`drain_window` needs sigterm = \"drain\"{}", self.but());
                let help = "take it out: only an app that drains has a drain window";
                self.blame([key, "sigterm"], At::Key, message, help);
                return None;
            }
            return Some(None);
        }
        let grace = grace?;
        // How long another hook takes is not known beforehand.
        let hook = match pre_stop? {
            Some(PreStop::Sleep(time)) => *time,
            Some(PreStop::Exec(_)) | None => Duration::ZERO,
        };
        let left = grace.saturating_sub(hook);
        let less = match hook {
            Duration::ZERO => String::new(),
            hook => format!(" less the pre_stop of {}", time(hook)),
        };
        if !given {
            if left > AFTER_DRAIN {
                return Some(Some(left - AFTER_DRAIN));
            }
            let message = format!(
                "a grace_period of {}{less} leaves no drain_window: its default is the grace period less {}",
                time(grace),
                time(AFTER_DRAIN),
            );
            let help = match left.as_secs() / 2 {
                0 => "give more grace_period".to_owned(),
                half => {
                    format!("set a drain_window below the grace_period: drain_window = \"{half}s\"")
                }
            };
            let other = if hook.is_zero() { "sigterm" } else { "pod.pre_stop" };
            self.blame(["grace_period", other], At::Value, message, &help);
            return None;
        }
        let window = self.time(key, Duration::ZERO)?;
        if window < left {
            return Some(Some(window));
        }
        let message = format!(
            "the drain_window ({}) is not below the grace_period ({}{}{less})",
            time(window),
            time(grace),
            self.by_default("grace_period"),
        );
        let help =
            "the app would be killed before it had drained: shorten the one or lengthen the other";
        self.blame([key, "grace_period"], At::Value, message, help);
        None
    }

    fn readiness(&mut self, sigterm: Option<Sigterm>) -> Option<Option<Readiness>> {
        let default = match sigterm? {
            Sigterm::Exit if self.is_given("readiness") => {
                let message = "`readiness` with sigterm = \"exit\": the app is gone before it could answer a probe";
                let help = "take it out, or choose sigterm = \"drain\" or \"ignore\"";
                self.blame(["readiness", "sigterm"], At::Key, message.into(), help);
                return None;
            }
            Sigterm::Exit => return Some(None),
            Sigterm::Drain => Readiness::Fail,
            // Such an app reacts to nothing.
            Sigterm::Ignore => Readiness::Pass,
        };
        self.word("readiness", default).map(Some)
    }

    fn flows(&mut self, cluster: Option<&ClusterSpec>) -> Option<Flows> {
        let tcp = self.count("flows.tcp", 10);
        let udp = self.count("flows.udp", 10);
        if tcp == Some(0) && udp == Some(0) {
            let help = "hold at least one TCP or UDP flow to the pod";
            self.blame(
                ["flows.udp", "flows.tcp"],
                At::Value,
                "no flow at all: there would be nothing to measure".into(),
                help,
            );
        }
        let tcp_interval = self.time("flows.tcp_interval", millis(100));
        let udp_interval = self.time("flows.udp_interval", millis(20));
        let silent_after = self.time("flows.silent_after", secs(2));
        // The heartbeats of a protocol without flows are none.
        let slowest = [("tcp_interval", tcp, tcp_interval), ("udp_interval", udp, udp_interval)]
            .into_iter()
            .filter(|(_, flows, _)| flows.is_some_and(|flows| flows > 0))
            .filter_map(|(key, _, interval)| interval.map(|interval| (key, interval)))
            .max_by_key(|(_, interval)| *interval);
        if let (Some((key, interval)), Some(silent)) = (slowest, silent_after)
            && silent <= interval
        {
            let full = format!("flows.{key}");
            let message = format!(
                "silent_after ({}{}) is not longer than {key} ({}{})",
                time(silent),
                self.by_default("flows.silent_after"),
                time(interval),
                self.by_default(&full),
            );
            let help = "silence between two heartbeats is none: make it several intervals";
            self.blame(["flows.silent_after", &full], At::Value, message, help);
        }
        let source_port = self.source_port([("flows.tcp", tcp), ("flows.udp", udp)]);
        let via = self.word("flows.via", Via::NodePort);
        let from = self.word("flows.from", Vantage::Outside);
        self.route(via, from, cluster);
        let enter_by = self.enter_by(cluster, via, from);
        Some(Flows {
            tcp: tcp?,
            udp: udp?,
            tcp_interval: tcp_interval?,
            udp_interval: udp_interval?,
            silent_after: silent_after?,
            via: via?,
            from: from?,
            enter_by: enter_by?,
            ip: self.word("flows.ip", IpFamily::Ipv4)?,
            source_port: source_port?,
        })
    }

    fn source_port(&mut self, flows: [(&str, Option<u32>); 2]) -> Option<Option<u16>> {
        let key = "flows.source_port";
        let first = self.get(key, None, |value| match value {
            Value::Count(port) => Some(u16::try_from(*port).ok()),
            _ => None,
        })?;
        let Some(port) = first else { return Some(None) };
        let most = flows.into_iter().filter_map(|(key, count)| Some((key, count?)));
        let Some((flows, count)) = most.max_by_key(|(_, count)| *count) else { return Some(first) };
        let last = u32::from(u16::MAX);
        if u32::from(port) + count.saturating_sub(1) <= last {
            return Some(first);
        }
        let message =
            format!("source_port = {port} is too high for {count} flows: ports end at {last}");
        let help = format!("begin at {} or below", (last + 1).saturating_sub(count));
        self.blame([key, flows], At::Value, message, &help);
        None
    }

    /// Whether there is a way from where the clients stand to where they go.
    fn route(&mut self, via: Option<Via>, from: Option<Vantage>, cluster: Option<&ClusterSpec>) {
        let local = cluster.is_some_and(|cluster| is_local(cluster.provider));
        let message = match (via, from) {
            (Some(Via::ClusterIp), Some(Vantage::Outside)) => {
                "via = \"cluster-ip\" from outside: no route leads to a Service's own address"
            }
            (Some(Via::Pod), Some(Vantage::Outside)) if local => {
                "via = \"pod\" from outside: no route leads to a local cluster's pods"
            }
            _ => return,
        };
        let help = "set flows.from to \"node\" or \"pod\"";
        self.blame(["flows.via", "flows.from"], At::Value, message.into(), help);
    }

    fn enter_by(
        &mut self,
        cluster: Option<&ClusterSpec>,
        via: Option<Via>,
        from: Option<Vantage>,
    ) -> Option<EnterBy> {
        let nodes = cluster?.nodes;
        // A hostPort is one of the pod's node: from outside no other node has a part in it.
        let by_pod_node = via? == Via::HostPort && from? == Vantage::Outside;
        let default = if nodes >= 2 && !by_pod_node { "other-node" } else { "pod-node" };
        let enter_by = EnterBy::from(self.text("flows.enter_by", Some(default.into()))??);
        if enter_by == EnterBy::OtherNode && nodes < 2 {
            let message = "enter_by = \"other-node\" in a cluster of one node";
            let help = "enter by \"pod-node\", or have at least 2 nodes";
            self.blame(["flows.enter_by", "cluster.nodes"], At::Value, message.into(), help);
            return None;
        }
        if enter_by == EnterBy::OtherNode && by_pod_node {
            let message = "enter_by = \"other-node\" with via = \"host-port\" from outside: only the \
                           pod's node has its hostPort";
            let help = "enter by \"pod-node\", or set flows.from to \"node\" or \"pod\"";
            self.blame(["flows.enter_by", "flows.via"], At::Value, message.into(), help);
            return None;
        }
        if let EnterBy::Named(name) = &enter_by
            && is_local(cluster?.provider)
        {
            let names: Vec<String> = (1..=nodes).map(|n| format!("node-{n}")).collect();
            if !names.contains(name) {
                let message = format!("enter_by = {name:?}: the cluster has no such node");
                let help = format!("its nodes are {}", names.join(", "));
                self.blame(["flows.enter_by", "cluster.nodes"], At::Value, message, &help);
                return None;
            }
        }
        Some(enter_by)
    }

    /// `, and it is "exit"`: the two may stand in different files.
    fn but(&self) -> String {
        match self.setting("sigterm") {
            Some(setting) => format!(", and it is {:?}", setting.text),
            None => String::new(),
        }
    }

    fn by_default(&self, key: &str) -> &'static str {
        if self.setting(key).is_some() { "" } else { " by default" }
    }

    /// Tells a contradiction of two keys at the first, or at the second where that was set by a
    /// later layer (an axis, a flag) and so brought it about.
    fn blame(&mut self, keys: [&str; 2], at: At, message: String, help: &str) {
        let [first, second] = keys.map(|key| self.settings.get(key).map(|setting| (key, setting)));
        let (culprit, other, at) = match (first, second) {
            (None, _) | (_, None) if !self.whole => return,
            (Some(first), Some(second)) if second.1.layer > first.1.layer => {
                (second, Some(first), At::Value)
            }
            (Some(first), second) => (first, second, at),
            (None, Some(second)) => (second, None, At::Value),
            // Two defaults do not contradict each other.
            (None, None) => return,
        };
        let place = match at {
            At::Key => &culprit.1.key_place,
            At::Value => &culprit.1.value_place,
        };
        let mut problem = Problem::at(place.clone(), message).help(help);
        if let Some((key, other)) = other.filter(|(_, o)| o.key_place.source != place.source) {
            problem = problem.note(format!("{key} is set in {}", other.key_place.location()));
        }
        self.problems.push(problem);
    }
}

/// Which half of `key = value` is at fault.
#[derive(Clone, Copy)]
enum At {
    Key,
    Value,
}

fn as_word<'de, T: Deserialize<'de>>(value: &Value) -> Option<T> {
    match value {
        Value::Word(word) => {
            T::deserialize(IntoDeserializer::<WordError>::into_deserializer(*word)).ok()
        }
        _ => None,
    }
}

/// Whether its clusters are this machine's processes.
fn is_local(provider: ProviderKind) -> bool {
    matches!(provider, ProviderKind::Auto | ProviderKind::Local)
}

fn time(time: Duration) -> humantime::FormattedDuration {
    humantime::format_duration(time)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ServiceType, SessionAffinity, TrafficPolicy, Trigger};

    /// The words that may be written are those that the types know.
    #[test]
    fn every_word_of_the_schema_has_its_variant() {
        fn known(key: &str, word: &'static str) -> bool {
            let value = &Value::Word(word);
            match key {
                "sigterm" => as_word::<Sigterm>(value).is_some(),
                "readiness" => as_word::<Readiness>(value).is_some(),
                "trigger" => as_word::<Trigger>(value).is_some_and(|t| t.name() == word),
                "service.type" => as_word::<ServiceType>(value).is_some(),
                "service.session_affinity" => as_word::<SessionAffinity>(value).is_some(),
                "service.external_traffic_policy" | "service.internal_traffic_policy" => {
                    as_word::<TrafficPolicy>(value).is_some()
                }
                "flows.via" => as_word::<Via>(value).is_some(),
                "flows.from" => as_word::<Vantage>(value).is_some(),
                "flows.ip" => as_word::<IpFamily>(value).is_some(),
                "cluster.provider" => as_word::<ProviderKind>(value).is_some(),
                "cluster.proxy_mode" => as_word::<ProxyMode>(value).is_some(),
                _ => false,
            }
        }
        for key in schema::KEYS {
            if let schema::Kind::Word(words) = key.kind {
                for word in words {
                    assert!(known(key.name, word), "{} = {word}", key.name);
                }
            }
        }
    }
}
