//! The form of a report, as far as it is read: names as in its JSON, unknown keys passed over.

use serde::Deserialize;

#[derive(Debug, Deserialize)]
pub struct Report {
    pub drainwatch_version: String,
    pub git_commit: String,
    pub environment: Environment,
    pub trial: Trial,
}

#[derive(Debug, Deserialize)]
pub struct Environment {
    pub kubernetes_version: String,
    pub node_count: u32,
    pub kube_proxy_mode: String,
    pub cni: String,
    pub warnings: Vec<String>,
}

#[derive(Debug, Deserialize)]
pub struct Trial {
    pub id: String,
    pub config: Config,
    pub timeline: Vec<Event>,
    pub flows: Vec<Flow>,
    pub summary: Summary,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    pub tcp_flows: u32,
    pub udp_flows: u32,
    pub grace_period_seconds: u32,
    pub drain_behavior: DrainBehavior,
    pub drain_max_seconds: u32,
    pub trigger: Trigger,
    pub target_host: String,
    pub settle_seconds: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DrainBehavior {
    ExitNow,
    Drain,
    Ignore,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Trigger {
    Delete,
    Evict,
    Scale,
}

#[derive(Debug, Deserialize)]
pub struct Event {
    pub t_ms: i64,
    pub source: Source,
    pub event: String,
    #[serde(default)]
    pub detail: String,
    #[serde(default)]
    pub approximate: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    Orchestrator,
    Client,
    K8s,
    Probe,
}

#[derive(Debug, Deserialize)]
pub struct Flow {
    pub id: String,
    pub proto: Proto,
    pub outcome: Outcome,
    pub t_terminal_ms: Option<i64>,
    pub last_data_t_ms: Option<i64>,
    #[serde(default)]
    pub detail: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Proto {
    Tcp,
    Udp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    DrainedCleanClose,
    Severed,
    ReadTimeout,
    SurvivedObservationWindow,
    NotMeasured,
}

#[derive(Debug, Deserialize)]
pub struct Summary {
    pub notes: Vec<String>,
}

impl Trial {
    /// The events of this source and name, in the order of the report.
    pub fn events(&self, source: Source, name: &str) -> impl Iterator<Item = &Event> {
        self.timeline.iter().filter(move |event| event.source == source && event.event == name)
    }

    /// The first of them; the timeline is in the order of time.
    pub fn first(&self, source: Source, name: &str) -> Option<&Event> {
        self.events(source, name).min_by_key(|event| event.t_ms)
    }
}

impl Event {
    /// `VALUE` of the ` KEY=VALUE ` in its detail.
    pub fn detail_of(&self, key: &str) -> Option<&str> {
        let mut words = self.detail.split_whitespace();
        words.find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
    }
}
