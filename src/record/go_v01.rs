//! Reports of the Go tool of the same name, version 0.1 (`ARM/trial-001/report.json`).
//!
//! Takes a report; gives a [`Trial`] with what the report states and nothing else: it holds no
//! observations of ours, so its flows and figures are its own, under our names where both mean the
//! same. What a report does not say is null, an empty text or, in the configuration, zero.

mod find;
mod findings;
mod flows;
mod report;

use std::path::Path;
use std::time::Duration;

use super::io::ReadError;
use super::{EnvironmentRef, Imported, TRIAL_FORMAT, Tool, Trial};
use crate::clock::ClockRelation;
use crate::config::{
    Dials, EnterBy, Flows, IpFamily, Pod, Readiness, Scenario, Service, Sigterm, Trigger, Vantage,
    Via,
};
use crate::observation::Target;
use crate::verdict::{FlowRecord, Outcome};

pub use find::find;

use report::{Config, DrainBehavior, Environment, Event, Report, Source};

/// The tool, as tables name it.
const TOOL: &str = "drainwatch (Go)";

/// Reads the report of a trial of `arm`. `matrix` names the folder that the arms are in.
pub fn read(path: &Path, matrix: &str, arm: &str) -> Result<Trial, ReadError> {
    let bytes = super::io::read_bytes(path)?;
    let wrong = |reason: String| ReadError::GoReport { path: path.to_owned(), reason };
    let report: Report =
        serde_json::from_slice(&bytes).map_err(|error| wrong(error.to_string()))?;
    check_version(&report.drainwatch_version).map_err(wrong)?;
    let folder = path.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy();
    let repeat = repeat(&report.trial.id).ok_or_else(|| {
        wrong(format!("its id is {:?}, not trial-001 or the like", report.trial.id))
    })?;
    if report.trial.id != folder {
        return Err(wrong(format!(
            "holds {}, which belongs in a folder of that name",
            report.trial.id
        )));
    }
    Ok(trial(report, matrix, arm, repeat))
}

/// `trial-NNN`: its number.
fn repeat(name: &str) -> Option<u32> {
    let number = name.strip_prefix("trial-")?;
    let digits = number.len() >= 3 && number.bytes().all(|b| b.is_ascii_digit());
    number.parse().ok().filter(|repeat| digits && *repeat > 0)
}

/// A version that names itself is to be 0.1; builds without one carry a commit.
fn check_version(version: &str) -> Result<(), String> {
    let mut numbers = version.trim_start_matches('v').split(['.', '-']).map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) if (major, minor) != (0, 1) => {
            Err(format!("was written by {TOOL} {version}; this build reads reports of 0.1"))
        }
        _ => Ok(()),
    }
}

fn trial(report: Report, matrix: &str, arm: &str, repeat: u32) -> Trial {
    let Report { drainwatch_version, git_commit, environment, trial } = report;
    let target = target(&trial);
    let (outcome, reason) = outcome(&trial);
    let flows: Vec<FlowRecord> = trial.flows.iter().map(flows::flow).collect();
    let (findings, finding_bounds) = match outcome {
        Outcome::Measured => {
            findings::of(&trial, &flows, target.as_ref().map(|target| target.pod.as_str()))
        }
        Outcome::Aborted | Outcome::TriggerRefused => Default::default(),
    };
    let warnings = warnings(&trial, outcome);
    let told = environment.warnings.iter().map(|warning| format!("environment: {warning}"));
    Trial {
        format: TRIAL_FORMAT.to_owned(),
        id: format!("{arm}/{repeat:03}"),
        matrix: matrix.to_owned(),
        arm: arm.to_owned(),
        scenario: String::new(),
        axes: Default::default(),
        repeat,
        outcome,
        reason,
        config: config(&trial),
        overrides: Vec::new(),
        environment: EnvironmentRef {
            file: String::new(),
            digest: String::new(),
            cluster: String::new(),
        },
        clocks: clocks(),
        // Of a run of several trials it tells one time: that of the run's start.
        started_at: String::new(),
        zero_ns: None,
        target,
        checks: Vec::new(),
        observations: Vec::new(),
        flows,
        dials: Vec::new(),
        findings,
        finding_bounds,
        exactness: None,
        warnings,
        runner_warnings: told.chain(trial.summary.notes).collect(),
        imported: Some(Imported {
            from: format!("{TOOL} {drainwatch_version}"),
            cluster: cluster(&environment),
        }),
        tool: Tool {
            version: drainwatch_version,
            commit: git_commit,
            dirty: None,
            runner_sha256: String::new(),
            probe_sha256: String::new(),
        },
    }
}

/// A report is written only of a trial whose trigger the API took; what `drainwatch client` writes
/// in the same form has no trigger, and its times another zero.
fn outcome(trial: &report::Trial) -> (Outcome, Option<String>) {
    if trial.first(Source::Orchestrator, "trigger_issued").is_none() {
        let reason = "its report has no trigger: the times are not from one".to_owned();
        return (Outcome::Aborted, Some(reason));
    }
    let answer = trial.first(Source::Orchestrator, "trigger_api_returned");
    match answer.and_then(|event| event.detail.strip_prefix("api call returned an error: ")) {
        Some(error) => (Outcome::TriggerRefused, Some(error.to_owned())),
        None => (Outcome::Measured, None),
    }
}

/// The pod that the trigger names; of its UID and its node the report says nothing.
fn target(trial: &report::Trial) -> Option<Target> {
    let trigger = trial.first(Source::Orchestrator, "trigger_issued")?;
    let (_, pod) = trigger.detail_of("target")?.split_once('/')?;
    let instance = trial
        .events(Source::Probe, "probe_started")
        .find_map(|event| event.detail_of("instance"))
        .unwrap_or_default();
    Some(Target {
        pod: pod.to_owned(),
        uid: String::new(),
        instance: instance.to_owned(),
        node: String::new(),
        entry_node: String::new(),
    })
}

fn config(trial: &report::Trial) -> Scenario {
    let Config {
        tcp_flows,
        udp_flows,
        grace_period_seconds,
        drain_behavior,
        drain_max_seconds,
        trigger,
        target_host,
        settle_seconds,
    } = &trial.config;
    let seconds = |s: &u32| Duration::from_secs((*s).into());
    let said = |event| trial.first(Source::Probe, event).is_some();
    Scenario {
        description: None,
        sigterm: match drain_behavior {
            DrainBehavior::ExitNow => Sigterm::Exit,
            DrainBehavior::Drain => Sigterm::Drain,
            DrainBehavior::Ignore => Sigterm::Ignore,
        },
        drain_window: (*drain_behavior == DrainBehavior::Drain).then(|| seconds(drain_max_seconds)),
        readiness: match drain_behavior {
            DrainBehavior::Drain if said("readyz_now_503") => Some(Readiness::Fail),
            DrainBehavior::Ignore if said("sigterm_ignored") => Some(Readiness::Pass),
            _ => None,
        },
        trigger: match trigger {
            report::Trigger::Delete => Trigger::Delete,
            report::Trigger::Evict => Trigger::Evict,
            report::Trigger::Scale => Trigger::ScaleToZero,
        },
        delete_grace: None,
        scale_to: None,
        rollout: None,
        observe_for: None,
        grace_period: seconds(grace_period_seconds),
        settle: seconds(settle_seconds),
        observe_after: Duration::ZERO,
        repeats: 0,
        evidence: false,
        flows: Flows {
            tcp: *tcp_flows,
            udp: *udp_flows,
            tcp_interval: Duration::ZERO,
            udp_interval: Duration::ZERO,
            silent_after: Duration::ZERO,
            via: Via::NodePort,
            from: Vantage::Outside,
            enter_by: EnterBy::Named(target_host.clone()),
            ip: IpFamily::Ipv4,
            source_port: None,
        },
        dials: Dials::default(),
        pod: Pod::plain(Duration::ZERO, 0),
        service: Service::default(),
    }
}

/// Its sources under its own names. The probe's wall clock was subtracted from another wall clock.
fn clocks() -> Vec<ClockRelation> {
    let one = |source: &str| ClockRelation {
        source: source.to_owned(),
        same_clock: true,
        offset_ms: Some(0.0),
        plus_minus_ms: Some(0.0),
    };
    let probe = ClockRelation {
        source: "probe".to_owned(),
        same_clock: false,
        offset_ms: None,
        plus_minus_ms: None,
    };
    vec![one("orchestrator"), one("client"), one("k8s"), probe]
}

/// `Kubernetes 1.34.0, 2 nodes, iptables`
fn cluster(environment: &Environment) -> String {
    let Environment { kubernetes_version, node_count, kube_proxy_mode, cni, .. } = environment;
    let named = |what: &str, name: &str| match name {
        "unknown" | "" => format!("{what} unknown"),
        // It says how it found the name out, in parentheses.
        name => name.split(" (").next().unwrap_or(name).to_owned(),
    };
    format!(
        "Kubernetes {}, {node_count} {}, {}, {}",
        kubernetes_version.trim_start_matches('v'),
        if *node_count == 1 { "node" } else { "nodes" },
        named("proxy mode", kube_proxy_mode),
        named("CNI", cni),
    )
}

/// What a reader should know that the report does not say itself.
fn warnings(trial: &report::Trial, outcome: Outcome) -> Vec<String> {
    let mut warnings = Vec::new();
    if outcome != Outcome::Measured {
        return warnings;
    }
    let exit = trial.events(Source::K8s, "container_terminated").find(|event| event.t_ms >= 0);
    let end = trial.first(Source::Orchestrator, "observation_window_closed");
    match (end, exit) {
        (None, _) => warnings.push("the end of the observation is not in the report".to_owned()),
        (Some(Event { t_ms, .. }), exit) if exit.is_none_or(|exit| exit.t_ms > *t_ms) => {
            warnings.push(format!(
                "the observation ended {t_ms} ms after the trigger, before the container's exit: \
                 what its flows met later is not known"
            ));
        }
        _ => {}
    }
    for (protocol, proto, configured) in [
        ("TCP", report::Proto::Tcp, trial.config.tcp_flows),
        ("UDP", report::Proto::Udp, trial.config.udp_flows),
    ] {
        let told = trial.flows.iter().filter(|flow| flow.proto == proto).count();
        if told != configured as usize {
            warnings
                .push(format!("{configured} {protocol} flows were configured, {told} are told of"));
        }
    }
    warnings
}

#[cfg(test)]
mod tests;
