//! What a reader should know before using a trial's figures.
//!
//! Takes the world, the judged flows and the scenario; gives sentences. Changes no figure.

use std::collections::BTreeMap;
use std::time::Duration;

use super::cause;
use super::fate::{Ending, Story};
use super::findings::Judged;
use super::world::World;
use super::{Fate, Outcome};
use crate::clock::Ms;
use crate::config::{Ends, Scenario, Sigterm, Trigger};
use crate::observation::{Event, Source};
use crate::observation::{Protocol, Target};

/// How long after its start a pod's deletion is taken up at once. The kubelet works on a pod again
/// only once its look at the containers, one a second, is newer than its last work on it. Measured
/// on 1.34.0: SIGTERM 773 - 1,723 ms after the trigger with a settle of 1 s, 22 - 93 ms with 3 s.
const SETTLED: Duration = Duration::from_secs(3);

/// The exit code of a container that was sent SIGKILL.
const KILLED: i32 = 137;

/// Below the drain window by less than this, a drain has lasted as long as it was to.
const DRAIN_SLACK_MS: f64 = 100.0;

/// The warnings, in a stable order: the watches', the target's, the flows'.
pub(super) fn warnings(
    world: &World,
    flows: &[Judged],
    config: &Scenario,
    target: Option<&Target>,
    outcome: Outcome,
) -> Vec<String> {
    let mut warnings = Vec::new();
    of_the_observation(world, outcome, &mut warnings);
    of_our_own_drops(world, flows, &mut warnings);
    if let Some(target) = target {
        of_the_target(world, config, target, outcome, &mut warnings);
    }
    of_the_flows(flows, config, target, outcome, &mut warnings);
    warnings
}

fn of_the_observation(world: &World, outcome: Outcome, warnings: &mut Vec<String>) {
    for gap in world.gaps.iter().filter(|gap| gap.until >= Ms(0)) {
        let watch = match gap.watch {
            Source::PodWatch => "the watch on Pods",
            Source::EndpointsliceWatch => "the watch on EndpointSlices",
            _ => "a watch",
        };
        let (from, until) = (gap.from.ms(), gap.until.ms());
        let reason = gap.reason;
        warnings.push(format!("{watch} saw nothing from {from:.1} to {until:.1} ms: {reason}"));
    }
    for (node, gap) in world.evidence_gaps.iter().filter(|(_, gap)| gap.until >= Ms(0)) {
        let what = match gap.watch {
            Source::NodeRules => "commits of rules",
            Source::NodeConntrack => "conntrack entries",
            _ => "packets",
        };
        let (from, until) = (gap.from.ms(), gap.until.ms());
        let reason = gap.reason;
        warnings.push(format!(
            "the kernel of {node} may have told of more {what} from {from:.1} to {until:.1} ms than was \
             heard, and no cause that rests on it is called measured across that: {reason}"
        ));
    }
    for reason in &world.logs_lost {
        warnings.push(format!("the app's log was not followed to its end: {reason}"));
    }
    match world.ended {
        Some((end, false)) => warnings.push(format!(
            "the observation was ended by its time limit, {:.1} ms after the trigger",
            end.at.ms()
        )),
        None if outcome == Outcome::Measured => {
            warnings.push("the end of the observation is not recorded".to_owned());
        }
        _ => {}
    }
}

/// What our own side dropped is no matter of the network; it lengthens what flows saw.
fn of_our_own_drops(world: &World, flows: &[Judged], warnings: &mut Vec<String>) {
    let mut pods = BTreeMap::<&str, (u64, Ms, Ms)>::new();
    for drops in world.drops.iter().filter(|drops| drops.until >= Ms(0)) {
        let (count, _, until) = pods.entry(drops.by).or_insert((0, drops.from, drops.until));
        *count = count.saturating_add(drops.count);
        *until = drops.until;
    }
    for (pod, (count, from, until)) in pods {
        let (from, until) = (from.ms(), until.ms());
        warnings.push(format!(
            "the probe's own sockets ({pod}) dropped {count} datagrams between {from:.1} and \
             {until:.1} ms: UDP outages may be shorter than they seem"
        ));
    }
    let here = flows.iter().flat_map(|(story, _)| &story.events).filter_map(|o| match o.event {
        Event::DroppedHere { count, .. } if o.at >= Ms(0) => Some(count),
        _ => None,
    });
    let (count, flows) =
        here.fold((0_u64, 0), |(sum, n), count| (sum.saturating_add(count), n + 1));
    if flows > 0 {
        warnings.push(format!(
            "this machine's own sockets dropped {count} datagrams of UDP flows, in {flows} readings: \
             outages may be shorter than they seem"
        ));
    }
    for (node, count) in &world.table_losses {
        warnings.push(format!(
            "the connection tracking table of {node} gave up {count} entries or packets after the \
             trigger, whosever they were: it may have been full (net.netfilter.nf_conntrack_max)"
        ));
    }
    if world.backlog_drops > 0 {
        warnings.push(format!(
            "this machine's network backlog dropped {} packets after the trigger, whosever they were \
             (net.core.netdev_max_backlog)",
            world.backlog_drops
        ));
    }
}

fn of_the_target(
    world: &World,
    config: &Scenario,
    target: &Target,
    outcome: Outcome,
    warnings: &mut Vec<String>,
) {
    for (what, at) in &world.endpoint.early {
        // Never put down to clock skew: a watch's arrival is on the runner's own clock.
        let ago = -at.ms();
        warnings.push(format!(
            "the target's endpoint was no longer {what} {ago:.1} ms before the trigger"
        ));
    }
    for (time, code) in &world.early_exits {
        let ago = -time.at.ms();
        warnings.push(format!(
            "the target's container ended {ago:.1} ms before the trigger (exit code {code})"
        ));
    }
    let another = |instance: &str| !target.instance.is_empty() && instance != target.instance;
    let ends = config.trigger.ends();
    let restarted = world.restarts > 0 || world.started.iter().any(|s| another(s.instance));
    if restarted && ends != Ends::Process {
        warnings.push("the target's container was restarted".to_owned());
    }
    match (world.sigterms.first(), outcome) {
        (None, Outcome::Measured) if ends == Ends::Pod => {
            warnings.push("no SIGTERM was seen by the app".to_owned());
        }
        (Some(_), Outcome::TriggerRefused) => {
            warnings.push("the app was sent SIGTERM although the trigger was refused".to_owned());
        }
        (Some(sigterm), _) => {
            let time = sigterm.time;
            if time.at.ms() + time.plus_minus_ms.unwrap_or(0.0) < 0.0 {
                let ago = -time.at.ms();
                warnings.push(format!("the app was sent SIGTERM {ago:.1} ms before the trigger"));
            }
            if another(sigterm.instance) {
                let other = "SIGTERM was seen by another process of the target than the flows'";
                warnings.push(other.to_owned());
            }
            if ends != Ends::Pod && outcome == Outcome::Measured {
                let name = config.trigger.name();
                warnings.push(format!("the app was sent SIGTERM, which is no part of {name}"));
            }
        }
        _ => {}
    }
    if outcome != Outcome::Measured {
        return;
    }
    match ends {
        Ends::Pod => of_the_termination(world, config, warnings),
        Ends::Process => exit(world, Some(KILLED), warnings),
        // Of a node that is gone nobody tells what became of its containers.
        Ends::Node => {}
        Ends::Nothing => exit(world, None, warnings),
    }
}

fn of_the_termination(world: &World, config: &Scenario, warnings: &mut Vec<String>) {
    if config.settle < SETTLED {
        let (settle, settled) = (config.settle.as_secs_f64(), SETTLED.as_secs());
        warnings.push(format!(
            "a settle of {settle} s is short: up to {settled} s after a pod's start the kubelet may \
             send SIGTERM a second late or more"
        ));
    }
    let killed = world.container_exit.is_some_and(|(_, code)| code == KILLED);
    let cut_short = killed && drain_exceeds_grace(config);
    // Once its object is gone, the API has nobody to tell a pod's end of.
    if config.trigger != Trigger::ForceDelete {
        let expected = match config.sigterm {
            Sigterm::Drain if cut_short => KILLED,
            Sigterm::Exit | Sigterm::Drain => 0,
            Sigterm::Ignore => KILLED,
        };
        exit(world, Some(expected), warnings);
        // A process that is killed says nothing more; one that exits does, unless its log was cut.
        if world.exiting.is_empty() && !killed && world.logs_lost.is_empty() {
            warnings.push("the app's log ends before the app said that it exits".to_owned());
        }
    }
    if world.endpoint.removed.is_none() {
        warnings.push("the endpoint's removal was not seen".to_owned());
    }
    if !cut_short {
        drain(world, config, warnings);
    }
}

/// Whether the deletion leaves the app less time than it drains for.
fn drain_exceeds_grace(config: &Scenario) -> bool {
    let hook = config.pod.pre_stop_sleep().unwrap_or_default();
    config.drain_window.is_some_and(|window| hook + window >= config.grace())
}

/// What is said of the container's end; `None`: there was to be none.
fn exit(world: &World, expected: Option<i32>, warnings: &mut Vec<String>) {
    match (world.container_exit, expected) {
        (None, Some(_)) => warnings.push("the container's exit was not seen".to_owned()),
        (Some((_, code)), Some(expected)) if code != expected => warnings
            .push(format!("the container exited with code {code}, where {expected} was expected")),
        (Some((_, code)), None) => {
            warnings.push(format!("the container exited with code {code}, where it was to live on"))
        }
        (None, None) | (Some(_), Some(_)) => {}
    }
}

/// An app that drains for less than its window cuts what it was to show.
fn drain(world: &World, config: &Scenario, warnings: &mut Vec<String>) {
    let (Some(window), Some(started)) = (config.drain_window, world.drains_started.first()) else {
        return;
    };
    let window = window.as_secs_f64() * 1e3;
    let ended = world.drains_ended.iter().find(|ended| ended.instance == started.instance);
    let Some(ended) = ended else {
        warnings.push("the end of the app's drain was not seen".to_owned());
        return;
    };
    let lasted = super::world::ms_between(ended.time.at, started.time.at);
    if lasted < window - DRAIN_SLACK_MS {
        let why = if ended.what { " (no flow was left)" } else { "" };
        warnings
            .push(format!("the app's drain ended early: after {lasted:.1} of {window:.0} ms{why}"));
    }
}

fn of_the_flows(
    flows: &[Judged],
    config: &Scenario,
    target: Option<&Target>,
    outcome: Outcome,
    warnings: &mut Vec<String>,
) {
    if outcome == Outcome::Measured {
        for (protocol, expected) in
            [(Protocol::Tcp, config.flows.tcp), (Protocol::Udp, config.flows.udp)]
        {
            let seen = flows.iter().filter(|(story, _)| story.protocol == protocol).count();
            if seen != expected as usize {
                let name = protocol.name();
                warnings.push(format!(
                    "{seen} {name} flows were observed, where {expected} were to be"
                ));
            }
        }
    }
    let mut of_flows = Grouped::default();
    for (story, ending) in flows {
        of_one_flow(story, ending, config, target, outcome, &mut of_flows);
    }
    warnings.extend(of_flows.lines());
}

fn of_one_flow<'a>(
    story: &Story<'a>,
    ending: &Ending,
    config: &Scenario,
    target: Option<&Target>,
    outcome: Outcome,
    warnings: &mut Grouped<'a>,
) {
    let id = story.id;
    let trouble = story.early_trouble(config.flows.silent_after);
    if let Some(trouble) = trouble {
        warnings.add(id, format!("{trouble} before the trigger"));
    // A silence is told by its last answer, which comes before what brings it about.
    } else if let Some(end) = ending.time.filter(|time| time.at < Ms(0))
        && ending.fate != Fate::Silent
        && outcome == Outcome::Measured
    {
        let ago = -end.at.ms();
        warnings.add(id, format!("its end lies before the trigger, by {ago:.1} ms"));
    }
    let failures = story.events.iter().filter_map(|o| match &o.event {
        Event::FlowFailed { error, .. } => Some(error),
        _ => None,
    });
    let mut failed = false;
    for error in failures {
        failed = true;
        warnings.add(id, format!("failed on the client's side, not the target's: {error}"));
    }
    if let (Some(first), Some(target)) = (story.spans.first(), target) {
        let process = target.instance.is_empty() || first.by.instance == target.instance;
        if first.by.uid != target.uid || !process {
            let pod = &first.by.pod;
            warnings.add(id, format!("answered first by {pod}, which is not the target"));
        }
    }
    if story.protocol == Protocol::Tcp && story.other().is_some() {
        warnings.add(id, "answered by two instances on one connection".to_owned());
    }
    if outcome == Outcome::Measured && ending.fate == Fate::NotMeasured && !failed {
        let why = match ending.untold {
            Some(untold) => cause::our_doing(untold),
            None => "never answered, or its end is not recorded".to_owned(),
        };
        warnings.add(id, format!("without a fate: {why}"));
    }
}

/// The flows of which one thing is to be said: thousands may share it.
#[derive(Default)]
struct Grouped<'a>(BTreeMap<String, Vec<&'a str>>);

impl<'a> Grouped<'a> {
    fn add(&mut self, flow: &'a str, what: String) {
        self.0.entry(what).or_default().push(flow);
    }

    /// `tcp-1, tcp-2, tcp-3 and 7 more: WHAT`
    fn lines(self) -> impl Iterator<Item = String> {
        self.0.into_iter().map(|(what, flows)| {
            let named = flows[..flows.len().min(3)].join(", ");
            match flows.len().saturating_sub(3) {
                0 => format!("{named}: {what}"),
                more => format!("{named} and {more} more: {what}"),
            }
        })
    }
}
