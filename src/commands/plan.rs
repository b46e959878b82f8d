//! `drainwatch plan`

use std::time::Duration;

use super::{Exit, say};
use crate::cli::PlanArgs;
use crate::config::{
    self, ClusterSpec, Dials, EnterBy, Flows, IpFamily, PreStop, Readiness, Scenario, Vantage, Via,
};
use crate::display::count;
use crate::display::json::{self, Event};
use crate::plan::{self, Arm, Plan};
use crate::run::limits::{self, Machine};

/// Runs the command.
pub fn run(args: &PlanArgs) -> Exit {
    let selection = &args.selection;
    match plan::load(&selection.file, &selection.choice.set, &selection.choice.only) {
        Ok(plan) if json::is_open() => tell(&plan),
        Ok(plan) => {
            // Another machine may be the one that runs it.
            if let Err(short) = limits::check_arms(&Machine::read(), &plan.arms) {
                say::line(&format_args!("warning: {short}"));
            }
            say::print(&render(&plan))
        }
        Err(errors) => say::errors(&errors),
    }
}

/// The same for programs.
fn tell(plan: &Plan) -> Exit {
    json::emit(&Event::Plan {
        matrix: &plan.matrix,
        arms: plan.arms.len(),
        trials: plan.trials(),
        expected_ms: json::ms(plan.expected_duration()),
        overrides: &plan.overrides,
        only: &plan.only,
    });
    for arm in &plan.arms {
        json::emit(&Event::PlannedArm {
            arm: &arm.name,
            scenario: &arm.scenario,
            axes: arm.axes.iter().map(|(key, value)| (&**key, &**value)).collect(),
            trials: arm.config.repeats,
            expected_ms: json::ms(arm.expected_duration()),
            config: &arm.config,
            cluster: &arm.cluster,
        });
    }
    Exit::Success
}

/// The whole text: a headline, a row an arm, the total, and what stands behind the arms.
fn render(plan: &Plan) -> String {
    let mut text = format!(
        "{}: {}, {}\n\n",
        plan.matrix,
        count(plan.arms.len(), "arm"),
        count(plan.trials() as usize, "trial"),
    );
    text.push_str(&table(plan));
    text.push('\n');
    text.push_str(&facts("flows", &plan.arms, |arm| flows(&arm.config.flows)));
    if plan.arms.iter().any(|arm| arm.config.dials.any()) {
        text.push_str(&facts("dials", &plan.arms, |arm| dials(&arm.config.dials)));
    }
    text.push_str(&facts("times", &plan.arms, |arm| times(&arm.config)));
    text.push_str(&facts("cluster", &plan.arms, |arm| cluster(&arm.cluster)));
    if !plan.overrides.is_empty() {
        let overrides = config::shown_text(&plan.overrides.join(", "));
        text.push_str(&format!("set      {overrides}\n"));
    }
    text
}

fn table(plan: &Plan) -> String {
    let header = ["arm", "sigterm", "drain", "readiness", "grace", "trigger", "trials", "expected"];
    let mut rows = vec![header.map(String::from)];
    rows.extend(plan.arms.iter().map(row));
    let mut total = [const { String::new() }; 8];
    total[0] = "total".into();
    total[6] = plan.trials().to_string();
    total[7] = about(plan.expected_duration());
    rows.push(total);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..header.len()).filter_map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for ((column, cell), width) in row.iter().enumerate().zip(&widths) {
            // Numbers stand right, words left.
            match column {
                6 => line.push_str(&format!("{cell:>width$}  ")),
                _ => line.push_str(&format!("{cell:width$}  ")),
            }
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn row(arm: &Arm) -> [String; 8] {
    let config = &arm.config;
    let dash = || "-".to_string();
    [
        arm.name.clone(),
        word(&config.sigterm),
        config.drain_window.map_or_else(dash, time),
        config.readiness.as_ref().map_or_else(dash, word::<Readiness>),
        time(config.grace_period),
        word(&config.trigger),
        config.repeats.to_string(),
        about(arm.expected_duration()),
    ]
}

/// What all arms share, in one line; where they differ, each variant above its arms.
fn facts(name: &str, arms: &[Arm], fact: impl Fn(&Arm) -> String) -> String {
    const NAMED: usize = 4;
    let mut variants: Vec<(String, Vec<&str>)> = Vec::new();
    for arm in arms {
        let fact = fact(arm);
        match variants.iter_mut().find(|(other, _)| *other == fact) {
            Some((_, arms)) => arms.push(&arm.name),
            None => variants.push((fact, vec![&arm.name])),
        }
    }
    let mut text = String::new();
    for (index, (fact, of)) in variants.iter().enumerate() {
        let name = if index == 0 { name } else { "" };
        text.push_str(&format!("{name:9}{fact}\n"));
        if variants.len() > 1 {
            let named: Vec<String> =
                of.iter().take(NAMED).map(|arm| format!("{:11}in {arm}\n", "")).collect();
            text.push_str(&named.concat());
            if of.len() > NAMED {
                text.push_str(&format!("{:11}and {} more\n", "", of.len() - NAMED));
            }
        }
    }
    text
}

fn flows(flows: &Flows) -> String {
    let entry = match &flows.enter_by {
        EnterBy::OtherNode => "another node than the pod's".to_string(),
        EnterBy::PodNode => "the pod's node".to_string(),
        EnterBy::Named(name) => format!("node {name}"),
    };
    // What most flows have goes without saying.
    let mut how = String::new();
    if (flows.via, flows.from) != (Via::NodePort, Vantage::Outside) {
        how += &format!(", {} from {}", word(&flows.via), word(&flows.from));
    }
    if flows.ip == IpFamily::Ipv6 {
        how += ", IPv6";
    }
    if let Some(port) = flows.source_port {
        how += &format!(", source ports from {port}");
    }
    format!(
        "{} TCP (a heartbeat each {}) and {} UDP ({}), by {entry}{how}; silent after {}",
        flows.tcp,
        time(flows.tcp_interval),
        flows.udp,
        time(flows.udp_interval),
        time(flows.silent_after),
    )
}

fn dials(dials: &Dials) -> String {
    let Dials { tcp, udp, timeout } = dials;
    match dials.any() {
        true => format!(
            "{tcp} TCP and {udp} UDP new connections a second; timed out after {}",
            time(*timeout)
        ),
        false => "no new connections".to_string(),
    }
}

fn times(config: &Scenario) -> String {
    let hook = match &config.pod.pre_stop {
        None => String::new(),
        Some(PreStop::Sleep(sleep)) => format!("; preStop sleeps {}", time(*sleep)),
        Some(PreStop::Exec(command)) => {
            config::shown_text(&format!("; preStop runs {}", command.join(" ")))
        }
    };
    let pods = match config.pod.replicas {
        1 => String::new(),
        n => format!("; {n} pods"),
    };
    format!(
        "settle {}, observe {} after the end; readiness probe each {}, {} to count{hook}{pods}",
        time(config.settle),
        time(config.observe_after),
        time(config.pod.readiness_period),
        count(config.pod.readiness_failures as usize, "failure"),
    )
}

fn cluster(cluster: &ClusterSpec) -> String {
    let sysctl =
        |(name, value): (&String, &String)| config::shown_text(&format!(", {name} = {value}"));
    let sysctls: Vec<String> = cluster.sysctls.iter().map(sysctl).collect();
    format!(
        "Kubernetes {}, {}, {}{}{} (provider: {}){}",
        cluster.kubernetes,
        count(cluster.nodes as usize, "node"),
        word(&cluster.proxy_mode),
        if cluster.dns { ", DNS" } else { "" },
        if cluster.dual_stack { ", IPv4 and IPv6" } else { "" },
        word(&cluster.provider),
        sysctls.concat(),
    )
}

/// An enum's word as it is written in TOML.
fn word<T: serde::Serialize>(value: &T) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        _ => String::new(),
    }
}

fn time(time: Duration) -> String {
    humantime::format_duration(time).to_string()
}

/// A time that is only expected: no finer than seconds.
fn about(expected: Duration) -> String {
    format!("~ {}", time(Duration::from_secs(expected.as_secs())))
}
