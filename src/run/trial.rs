//! One trial, from a fresh Deployment to a record.
//!
//! Takes an arm's context; drives workload, watches, flows and the trigger in their order: the
//! target and its preflight (`target`), the settle time (`settle`), the trigger and what follows
//! (`act`). What was observed is placed and judged (`finish`). Whatever ends it, a record results.

mod act;
mod finish;
mod settle;
mod target;

use std::time::Duration;

use kube::api::Api;
use nix::sys::signal::Signal;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::clocks;
use super::context::ArmContext;
use super::dials;
use super::entry::Entry;
use super::events::{Phase, RunEvent};
use super::evidence;
use super::kernel::Kernel;
use super::limits::Machine;
use super::pace;
use super::preflight::{self, Failure, held};
use super::signals::Stop;
use crate::clock::{self, ClockRelation};
use crate::flow::dials::{Dials, DialsState};
use crate::flow::{self, Flows};
use crate::observation::{Seen, Sink, Target};
use crate::record::{Check, Trial};
use crate::trigger::{self, Aim};
use crate::watch::{LogView, PodsView, SlicesView, Watching};
use crate::workload::{CONTAINER, NAMESPACE, NodePorts, Workload};

/// How long the endpoint, the rules and the first answers may take, each.
const PREFLIGHT_LIMIT: Duration = Duration::from_secs(10);
/// How often states are looked at while a trial settles and is observed. Observations carry
/// their own times; this only decides how soon the end is noticed.
const LOOK: Duration = Duration::from_millis(50);

/// Why a trial did not come to its end.
enum Halt {
    /// A check did not hold.
    Failed(Failure),
    /// The API refused the trigger.
    Refused(String),
    /// A signal ended the run.
    Interrupted(Signal),
}

impl From<Failure> for Halt {
    fn from(failure: Failure) -> Self {
        Halt::Failed(failure)
    }
}

/// A trial under way: what must outlive an interruption.
struct Run<'a> {
    context: &'a ArmContext<'a>,
    workload: Workload,
    sink: Sink,
    seen: mpsc::UnboundedReceiver<Seen>,
    pods: Watching<PodsView>,
    slices: Watching<SlicesView>,
    log: Option<Watching<LogView>>,
    flows: Option<Flows>,
    dials: Option<Dials>,
    /// What the record should say of how it was measured.
    warnings: Vec<String>,
    kernel: Kernel,
    checks: Vec<Check>,
    target: Option<Target>,
    started_at: jiff::Timestamp,
}

/// Runs one trial and gives its record, and the workload that is left of it.
pub async fn run(context: &ArmContext<'_>, repeat: u32, stop: &mut Stop) -> (Trial, Workload) {
    let workload = Workload::new(repeat);
    let (sink, seen) = mpsc::unbounded_channel();
    let client = context.cluster.client();
    let slices_of = format!("kubernetes.io/service-name={}", workload.name);
    let mut run = Run {
        context,
        pods: Watching::pods(
            Api::namespaced(client.clone(), NAMESPACE),
            workload.selector(),
            sink.clone(),
        ),
        slices: Watching::slices(
            Api::namespaced(client.clone(), NAMESPACE),
            slices_of,
            sink.clone(),
        ),
        workload,
        kernel: Kernel::new(sink.clone()),
        checks: Vec::new(),
        sink,
        seen,
        log: None,
        flows: None,
        dials: None,
        warnings: Vec::new(),
        target: None,
        started_at: jiff::Timestamp::now(),
    };
    let halt = tokio::select! {
        result = run.perform() => result.err(),
        signal = stop.wait() => Some(Halt::Interrupted(signal)),
    };
    let workload = run.workload.clone();
    (run.finish(halt, repeat).await, workload)
}

/// Removes what is left of a trial. Gives whether nothing is left of it in the cluster; its record tells
/// where that failed.
pub async fn remove(
    context: &ArmContext<'_>,
    workload: &Workload,
    trial: &mut Trial,
    stop: &mut Stop,
) -> bool {
    context.tell(RunEvent::Phase { phase: Phase::Remove, expected: None });
    let client = context.cluster.client();
    let node = trial.target.as_ref().map(|target| target.node.as_str());
    let removal = async {
        let undone = trigger::undo(&client, trial.config.trigger, node).await;
        let removed = workload.remove(&client).await;
        let undone = undone.map_err(|error| error.to_string());
        undone.and(removed.map_err(|error| error.to_string()))
    };
    let removed = tokio::select! {
        removed = removal => removed,
        _ = stop.wait() => Ok(()), // the cluster goes, and all of it with it
    };
    let left = removed.err();
    trial.runner_warnings.extend(left.iter().map(|error| format!("left behind: {error}")));
    left.is_none()
}

impl Run<'_> {
    async fn perform(&mut self) -> Result<(), Halt> {
        let config = &self.context.arm.config;
        self.phase(Phase::Workload, None);
        let machine = Machine::read();
        if let Some(short) = machine.short_of(config).first() {
            return Err(preflight::limits(short.what.clone()).into());
        }
        self.checks.push(held::limits(machine.figures(config)));
        let client = self.context.cluster.client();
        let ports = self
            .workload
            .create(&client, config)
            .await
            .map_err(|error| preflight::workload_created(error.to_string()))?;
        let target = self.target_ready().await?;

        self.phase(Phase::Preflight, None);
        let cluster = self.context.cluster;
        let entry = Entry::find(cluster, config, &self.workload, ports, &target).await?;
        let instance = self.build_is_ours(&target.uid).await?;
        self.checks.push(held::build_is_ours(format!("instance {instance}")));
        self.endpoint_is_target(&target.uid).await?;
        self.checks.push(held::endpoint_is_target(format!("pod {}", target.pod)));
        preflight::dial(&entry, &target.uid, PREFLIGHT_LIMIT).await?;
        let target = Target { entry_node: entry.node.clone(), ..target };
        if config.evidence {
            self.listen(ports, &entry, &target);
        }
        self.checks.push(held::rules_programmed(entry.words()));
        self.kernel.watch(cluster, &self.pods.view());
        self.checks.push(self.kernel.conntrack_has_room(cluster.nodes(), &machine, config)?);
        let opening = Instant::now();
        let (namespace, specs) = (entry.namespace.clone(), entry.specs(config));
        let flows = flow::start_in(namespace, specs, self.sink.clone())
            .map_err(|error| preflight::limits(format!("no thread for the flows: {error}")))?;
        let flows = self.flows.insert(flows);
        if let Err(missing) = flows.all_answered(PREFLIGHT_LIMIT).await {
            let first: Vec<_> =
                missing.iter().take(3).map(|flow| format!("{} {}", flow.flow, flow.why)).collect();
            let found = format!("{} without: {}", missing.len(), first.join(", "));
            return Err(preflight::flows_answered(found + &self.own_drops()).into());
        }
        let took = opening.elapsed().as_secs_f64() * 1e3;
        let states = flows.states();
        let answered = states.iter().map(|flow| (&*flow.id, flow.first.as_deref()));
        preflight::by_target(&target.uid, &instance, answered)?;
        let all = states.len();
        self.checks.push(held::flows_answered(format!("{all} of {all} within {took:.0} ms")));
        let target = Target { instance, ..target };
        self.target = Some(target.clone());
        self.clocks_bounded(&target.uid)?;
        let pods = self.all_ready(&target).await?;
        let aim = self.aim(&target);
        let trigger = trigger::prepare(cluster, config, &aim).await;
        let trigger = trigger.map_err(|unfit| preflight::trigger_possible(unfit.to_string()))?;
        self.checks.push(held::trigger_possible(trigger.told()));
        if !(self.pods.view().delivered && self.slices.view().delivered) {
            return Err(preflight::watches_deliver("one that has not").into());
        }

        self.phase(Phase::Settle, Some(config.settle));
        self.dial(&entry)?;
        if let Some(flows) = &self.flows {
            flows.leave_overdue();
        }
        self.mark();
        let (before, in_pod) = (self.counters(), self.kernel.dropped_in_pod(&target.uid));
        let began = Instant::now();
        self.settle(&target.uid, &pods, began + config.settle).await?;
        // Before the last look, so that nothing but that lies between it and the trigger.
        self.mark();
        self.settle(&target.uid, &pods, Instant::now()).await?;
        let after = self.counters();
        self.checks.push(pace::kept_up_in_settle(&before, &after, began.elapsed())?);
        let in_pod =
            self.kernel.dropped_in_pod(&target.uid).zip(in_pod).map(|(a, b)| a.saturating_sub(b));
        self.checks.push(pace::dropped_in_settle(&before, &after, in_pod)?);
        if self.dials.is_some() {
            self.checks.push(dials::settled(&self.dial_states())?);
        }

        self.phase(Phase::Observe, Some(self.context.arm.expected_story()));
        self.started_at = jiff::Timestamp::now();
        let sent = self.fire(&trigger).await?;
        self.observe(&target.uid, &sent).await;
        dials::all_made_here(&self.dial_states())?;
        Ok(())
    }

    /// Begins to make new connections, if the scenario has any.
    fn dial(&mut self, entry: &Entry) -> Result<(), Failure> {
        let specs = dials::specs(&self.context.arm.config, entry);
        if !specs.is_empty() {
            let dials = flow::dials::start_in(entry.namespace.clone(), specs, self.sink.clone());
            let failed = |error| preflight::dials_made(format!("no thread for them: {error}"));
            self.dials = Some(dials.map_err(failed)?);
        }
        Ok(())
    }

    fn dial_states(&self) -> Vec<DialsState> {
        self.dials.as_ref().map(Dials::states).unwrap_or_default()
    }

    /// Opens the evidence's listeners. They must stand before the first flow: the kernel tells of
    /// an entry's end only where somebody listened when it was made.
    fn listen(&mut self, ports: NodePorts, entry: &Entry, target: &Target) {
        let nodes = self.context.cluster.nodes();
        let mode = self.context.arm.cluster.proxy_mode;
        match evidence::start(nodes, &self.workload, ports, entry, mode, target, &self.sink) {
            Ok(Some(listeners)) => {
                self.checks.push(evidence::check(listeners.nodes.join(", ")));
                self.kernel.listen(listeners);
            }
            // The record says so, and its causes are inferred: no matter of this trial.
            Ok(None) => self.checks.push(evidence::check("none: this provider enters no node")),
            Err(error) => self.warnings.push(format!("no kernel evidence: {error}")),
        }
    }

    fn clocks_bounded(&self, uid: &str) -> Result<(), Failure> {
        let bounded = |clock: &ClockRelation| {
            clock.source == format!("pod:{uid}") && clock.plus_minus_ms.is_some()
        };
        if self.clocks().iter().any(bounded) {
            return Ok(());
        }
        Err(preflight::clocks_bounded("no relation of the target's clock"))
    }

    /// How the pods' clocks relate to the runner's, by `boot_id` or by the flows' round trips.
    fn clocks(&self) -> Vec<ClockRelation> {
        let ours = clock::boot_id();
        let samples = self.flows.as_ref().map(Flows::clock_samples).unwrap_or_default();
        let mut clocks: Vec<_> =
            samples.iter().map(|sample| clocks::relate(ours.as_deref(), sample)).collect();
        // A trial that ends before its first flow still knows the clock of the log that it read.
        if let Some(log) = &self.log
            && let Some(started) = log.view().started
            && ours.as_deref() == Some(&started.boot_id)
            && let source = format!("pod:{}", started.uid)
            && clocks.iter().all(|clock| clock.source != source)
        {
            clocks.push(clocks::one_clock(source));
        }
        clocks
    }

    /// Has all counters read and told: the kernel's and the flows' own.
    fn mark(&mut self) {
        self.kernel.watch(self.context.cluster, &self.pods.view());
        self.kernel.mark();
        if let Some(flows) = &self.flows {
            flows.look_for_drops();
        }
    }

    /// What our own buffers have dropped by now, in words.
    fn own_drops(&mut self) -> String {
        self.mark();
        self.kernel.own_drops(self.counters().dropped, &self.pods.view())
    }

    fn counters(&self) -> flow::Counters {
        self.flows.as_ref().map(Flows::counters).unwrap_or_default()
    }

    /// What the trigger acts on.
    fn aim(&self, target: &Target) -> Aim {
        Aim {
            namespace: NAMESPACE.to_owned(),
            pod: target.pod.clone(),
            uid: target.uid.clone(),
            container: CONTAINER.to_owned(),
            node: target.node.clone(),
            entry_node: target.entry_node.clone(),
            workload: self.workload.name.clone(),
            selector: self.workload.selector(),
        }
    }

    fn phase(&self, phase: Phase, expected: Option<Duration>) {
        self.context.tell(RunEvent::Phase { phase, expected });
    }
}
