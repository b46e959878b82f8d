//! One trial, from a fresh Deployment to a record.
//!
//! Takes an arm's context; drives workload, watches, flows and the trigger in their order, then
//! places and judges what was observed. Whatever ends it, a record results.

use std::net::Ipv4Addr;
use std::time::Duration;

use kube::api::Api;
use nix::sys::signal::Signal;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use super::clocks;
use super::context::ArmContext;
use super::events::{Phase, RunEvent};
use super::evidence;
use super::kernel::Kernel;
use super::limits::Machine;
use super::observe::{self, Stories};
use super::pace;
use super::preflight::{self, Failure, held};
use super::signals::Stop;
use crate::clock::{self, ClockRelation, Stamp};
use crate::config::Scenario;
use crate::evidence::Evidence;
use crate::flow::{self, FlowSpec, Flows};
use crate::observation::{Event, Observation, Protocol, Seen, Sink, Source, Target};
use crate::record::{self, Check, TRIAL_FORMAT, Trial};
use crate::trigger::{self, Aim, Answer};
use crate::verdict::Outcome;
use crate::watch::{Log, LogView, PodsView, SlicesView, Watching};
use crate::workload::{CONTAINER, NAMESPACE, NodePorts, Workload};
use crate::{timeline, verdict};

/// How long a pod may take to become Ready.
const READY_LIMIT: Duration = Duration::from_secs(60);
/// How long the endpoint, the rules and the first answers may take, each.
const PREFLIGHT_LIMIT: Duration = Duration::from_secs(10);
/// How often states are looked at while a trial settles and is observed. Observations carry
/// their own times; this only decides how soon the end is noticed.
const LOOK: Duration = Duration::from_millis(50);
/// Looking at thousands of flows takes their thread's time: once a story is observed, at most one part
/// in so many of it, as long as no more than this goes by between two looks.
const LOOK_SHARE: u32 = 50;
const LONGEST_LOOK: Duration = Duration::from_millis(250);
/// How long the API may take to answer the trigger.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// How long the log may take to end once its container has.
const LOG_LIMIT: Duration = Duration::from_millis(500);
/// How long the trigger waits for flows that are late with an answer.
const LIVELY_LIMIT: Duration = Duration::from_secs(1);
/// How long a trial may go on after its grace period before its time limit ends it.
const OVERTIME: Duration = Duration::from_secs(30);

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
    evidence: Option<Evidence>,
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
        evidence: None,
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

/// Removes what is left of a trial; its record tells where that failed.
pub async fn remove(
    context: &ArmContext<'_>,
    workload: &Workload,
    trial: &mut Trial,
    stop: &mut Stop,
) {
    context.tell(RunEvent::Phase { phase: Phase::Remove, expected: None });
    let client = context.cluster.client();
    let removed = tokio::select! {
        removed = workload.remove(&client) => removed,
        _ = stop.wait() => Ok(()), // the cluster goes, and all of it with it
    };
    if let Err(error) = removed {
        trial.runner_warnings.push(format!("left behind: {error}"));
    }
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
        let entry = preflight::node_to_enter_by(
            self.context.cluster.nodes(),
            &config.flows.enter_by,
            &target.node,
        )?;
        let instance = self.build_is_ours(&target.uid).await?;
        self.checks.push(held::build_is_ours(format!("instance {instance}")));
        self.endpoint_is_target(&target.uid).await?;
        self.checks.push(held::endpoint_is_target(format!("pod {}", target.pod)));
        preflight::dial((entry.address, ports.tcp).into(), &target.uid, PREFLIGHT_LIMIT).await?;
        if config.evidence {
            self.listen(ports);
        }
        let entry_address = format!("{} ({}), port {}", entry.name, entry.address, ports.tcp);
        self.checks.push(held::rules_programmed(entry_address));
        let cluster = self.context.cluster;
        self.kernel.watch(cluster, &self.pods.view());
        self.checks.push(self.kernel.conntrack_has_room(cluster.nodes(), &machine, config)?);
        let opening = Instant::now();
        let flows = flow::start(specs(config, entry.address, ports), self.sink.clone())
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
        let target = Target { instance, entry_node: entry.name.clone(), ..target };
        self.target = Some(target.clone());
        self.clocks_bounded(&target.uid)?;
        if !(self.pods.view().delivered && self.slices.view().delivered) {
            return Err(preflight::watches_deliver("one that has not").into());
        }

        self.phase(Phase::Settle, Some(config.settle));
        self.mark();
        let (before, in_pod) = (self.counters(), self.kernel.dropped_in_pod(&target.uid));
        let began = Instant::now();
        self.settle(&target.uid, began + config.settle).await?;
        // Before the last look, so that nothing but that lies between it and the trigger.
        self.mark();
        self.settle(&target.uid, Instant::now()).await?;
        let after = self.counters();
        self.checks.push(pace::kept_up_in_settle(&before, &after, began.elapsed())?);
        let in_pod =
            self.kernel.dropped_in_pod(&target.uid).zip(in_pod).map(|(a, b)| a.saturating_sub(b));
        self.checks.push(pace::dropped_in_settle(&before, &after, in_pod)?);

        self.phase(Phase::Observe, Some(self.context.arm.expected_story()));
        self.started_at = jiff::Timestamp::now();
        let aim = Aim { namespace: NAMESPACE, pod: &target.pod, deployment: &self.workload.name };
        let fire = trigger::fire(&client, config.trigger, &aim, &self.sink);
        let (sent, answer) = match timeout(ANSWER_LIMIT, fire).await {
            Ok(Ok(answered)) => answered,
            Ok(Err(error)) => return Err(preflight::trigger_answered(error.to_string()).into()),
            Err(_) => {
                let found = format!("no answer within {} s", ANSWER_LIMIT.as_secs());
                return Err(preflight::trigger_answered(found).into());
            }
        };
        if let Answer::Refused { status, message } = answer {
            return Err(Halt::Refused(format!("{status}: {message}")));
        }
        self.observe(&target.uid, &sent).await;
        Ok(())
    }

    /// Opens the evidence's listeners. They must stand before the first flow: the kernel tells of
    /// an entry's end only where somebody listened when it was made.
    fn listen(&mut self, ports: NodePorts) {
        let nodes = self.context.cluster.nodes();
        let mode = self.context.arm.cluster.proxy_mode;
        match evidence::start(nodes, &self.workload, ports, mode, &self.sink) {
            Ok(evidence) => self.evidence = evidence,
            Err(error) => self.warnings.push(format!("no kernel evidence: {error}")),
        }
    }

    /// Waits until one pod is Ready and follows its log from the start of its container.
    async fn target_ready(&mut self) -> Result<Target, Failure> {
        let started = self.pods.until(|view| {
            let mut live = view.live();
            live.any(|(_, pod)| pod.running.contains_key(CONTAINER))
        });
        let view = timeout(READY_LIMIT, started).await.ok().flatten();
        let view = view.ok_or_else(|| self.not_ready())?;
        let (uid, pod) = view
            .live()
            .find(|(_, pod)| pod.running.contains_key(CONTAINER))
            .map(|(uid, pod)| (uid.clone(), pod.clone()))
            .ok_or_else(|| self.not_ready())?;
        let api = Api::namespaced(self.context.cluster.client(), NAMESPACE);
        let log = Log { pod: pod.name.clone(), uid: uid.clone(), container: CONTAINER.to_owned() };
        self.log = Some(log.follow(api, self.sink.clone()));
        let ready = self.pods.until(|view| view.pods.get(&uid).is_some_and(|pod| pod.ready));
        if !matches!(timeout(READY_LIMIT, ready).await, Ok(Some(_))) {
            return Err(self.not_ready());
        }
        let view = self.pods.view();
        if view.live().count() != 1 {
            let names: Vec<_> = view.live().map(|(_, pod)| pod.name.as_str()).collect();
            return Err(preflight::target_ready(format!("pods {}", names.join(", "))));
        }
        let node = pod.node.unwrap_or_default();
        Ok(Target { pod: pod.name, uid, instance: String::new(), node, entry_node: String::new() })
    }

    fn not_ready(&self) -> Failure {
        let view = self.pods.view();
        let pods: Vec<String> = view
            .pods
            .values()
            .map(|pod| match (&pod.waiting, &pod.node) {
                (Some(reason), _) => format!("{} waiting: {reason}", pod.name),
                (None, None) => format!("{} not scheduled", pod.name),
                (None, Some(node)) => format!("{} not ready on {node}", pod.name),
            })
            .collect();
        let found = if pods.is_empty() { "no pod".to_owned() } else { pods.join(", ") };
        preflight::target_ready(format!("{found} after {} s", READY_LIMIT.as_secs()))
    }

    /// Checks the pod's image and the build that its log names; gives the process's instance.
    async fn build_is_ours(&mut self, uid: &str) -> Result<String, Failure> {
        let wanted = crate::workload::image::image_name();
        let view = self.pods.view();
        let image = view.pods.get(uid).and_then(|pod| pod.images.get(CONTAINER));
        if image.is_none_or(|image| !image.ends_with(&wanted)) {
            return Err(preflight::build_is_ours(format!("image {image:?}, not {wanted}")));
        }
        let Some(log) = &mut self.log else {
            return Err(preflight::build_is_ours("no log"));
        };
        let started = log.until(|view| view.started.is_some());
        let view = timeout(PREFLIGHT_LIMIT, started).await.ok().flatten();
        match view.and_then(|view| view.started) {
            Some(started) if started.version == env!("CARGO_PKG_VERSION") => {
                Ok(started.instance.clone())
            }
            Some(other) => Err(preflight::build_is_ours(format!("probe {}", other.version))),
            None => Err(preflight::build_is_ours("no line of the probe's log")),
        }
    }

    async fn endpoint_is_target(&mut self, uid: &str) -> Result<(), Failure> {
        let only = self.slices.until(|view| view.ready() == [uid]);
        if matches!(timeout(PREFLIGHT_LIMIT, only).await, Ok(Some(_))) {
            return Ok(());
        }
        let ready = self.slices.view().ready().join(", ");
        Err(preflight::endpoint_is_target(format!("ready endpoints [{ready}], target {uid}")))
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

    /// Lets the flows live until `end`; whatever befalls them or the target ends it.
    async fn settle(&mut self, uid: &str, end: Instant) -> Result<(), Failure> {
        let config = &self.context.arm.config;
        loop {
            let look = Instant::now() + LOOK;
            tokio::time::sleep_until(if Instant::now() < end { look.min(end) } else { look }).await;
            let Some(flows) = &self.flows else { return Err(preflight::settled("no flows")) };
            let now = Stamp::now();
            let states = flows.states();
            let late = states
                .iter()
                .find(|flow| observe::silent_for(flow, &now) > pace::lively(config, flow));
            let late = late.map(|flow| flow.id.clone());
            for flow in states {
                let silent = observe::silent_for(&flow, &now) >= config.flows.silent_after;
                let met = match &flow.current {
                    _ if flow.ended => "ended",
                    _ if silent => "silent",
                    _ if flow.failed => "failed on this machine",
                    _ if flow.refusals > 0 => "refused",
                    current if *current != flow.first => "answered by another process",
                    _ => continue,
                };
                let found = format!("{} {met}", flow.id);
                return Err(preflight::settled(found + &self.own_drops()));
            }
            let pods = self.pods.view();
            let steady = |pod: &crate::watch::PodState| pod.ready && !pod.terminating && !pod.gone;
            if !pods.pods.get(uid).is_some_and(steady) || pods.live().count() != 1 {
                return Err(preflight::settled("a change of the target's pod"));
            }
            if self.slices.view().ready() != [uid] {
                return Err(preflight::settled("a change of the endpoints"));
            }
            // What the trigger is to end must be alive when it is sent, not only not yet silent.
            match (late, Instant::now() >= end) {
                (None, true) => return Ok(()),
                (Some(flow), true) if Instant::now() >= end + LIVELY_LIMIT => {
                    return Err(preflight::settled(format!("{flow} without a recent answer")));
                }
                _ => {}
            }
        }
    }

    /// Watches until every story has ended and the container is gone, then a while longer.
    async fn observe(&mut self, uid: &str, sent: &Stamp) {
        let config = &self.context.arm.config;
        let limit = Instant::now() + config.grace_period + OVERTIME;
        let stories = Stories::new(config, uid, sent);
        let mut next = Instant::now();
        let complete = loop {
            tokio::time::sleep(LOOK).await;
            self.kernel.watch(self.context.cluster, &self.pods.view());
            self.kernel.look();
            let began = Instant::now();
            if began >= limit {
                break false;
            }
            if began < next {
                continue;
            }
            let flows = self.flows.as_ref().map(Flows::states).unwrap_or_default();
            next = Instant::now() + (began.elapsed() * LOOK_SHARE).min(LONGEST_LOOK);
            if stories.ended(&flows, &self.pods.view(), &self.slices.view(), &Stamp::now()) {
                break true;
            }
        };
        tokio::time::sleep(config.observe_after).await;
        if let Some(log) = &mut self.log {
            // What the app said last may still be on its way.
            let _ = timeout(LOG_LIMIT, log.until(|view| view.ended)).await;
        }
        let end = Event::ObservationEnded { complete };
        let _ = self.sink.send(Observation::exact(Stamp::now(), Source::Runner, end));
    }

    /// Ends flows and watches, places and judges what was seen.
    async fn finish(mut self, halt: Option<Halt>, repeat: u32) -> Trial {
        let clocks = self.clocks();
        let mut runner_warnings = std::mem::take(&mut self.warnings);
        // Before the flows are stopped: what the runner itself then ends is no evidence.
        if let Some(evidence) = self.evidence.take() {
            evidence.finish();
        }
        runner_warnings.extend(self.kernel.finish());
        if let Some(flows) = self.flows.take() {
            let counters = flows.counters();
            runner_warnings
                .extend(pace::kept_up(&counters).into_iter().chain(pace::unstamped(&counters)));
            flows.finish().await;
        }
        let mut seen: Vec<_> = [self.pods.gap(), self.slices.gap()].into_iter().flatten().collect();
        drop((self.pods, self.slices, self.log, self.sink));
        while let Ok(observation) = self.seen.try_recv() {
            seen.push(observation);
        }
        let (outcome, reason) = match halt {
            None => (Outcome::Measured, None),
            Some(Halt::Failed(failure)) => (Outcome::Aborted, Some(failure.to_string())),
            Some(Halt::Interrupted(signal)) => {
                (Outcome::Aborted, Some(format!("interrupted by {signal}")))
            }
            Some(Halt::Refused(answer)) => (Outcome::TriggerRefused, Some(answer)),
        };
        // A trigger that was not answered was sent all the same; without any, times count from
        // the trial's end.
        let sent = seen.iter().find(|o| matches!(o.event, Event::TriggerSent { .. }));
        let zero = sent.map_or_else(Stamp::now, |sent| sent.at.clone());
        let placed = timeline::place(seen, &zero, &clocks);
        runner_warnings.extend(placed.warnings);
        let context = self.context;
        let arm = context.arm;
        let verdict =
            verdict::judge(&placed.observations, &arm.config, self.target.as_ref(), outcome);
        Trial {
            format: TRIAL_FORMAT.to_owned(),
            id: format!("{}/{repeat:03}", arm.name),
            matrix: context.plan.matrix.clone(),
            arm: arm.name.clone(),
            scenario: arm.scenario.clone(),
            axes: arm.axes.iter().cloned().collect(),
            repeat,
            outcome,
            reason,
            tool: context.tool.clone(),
            config: arm.config.clone(),
            overrides: context.plan.overrides.clone(),
            environment: context.environment.clone(),
            clocks,
            started_at: self.started_at.to_string(),
            zero_ns: Some(zero.ns),
            target: self.target,
            checks: self.checks,
            observations: placed.observations,
            flows: verdict.flows,
            findings: verdict.findings,
            finding_bounds: verdict.finding_bounds,
            exactness: record::exactness(&arm.config),
            warnings: verdict.warnings,
            runner_warnings,
            imported: None,
        }
    }

    fn phase(&self, phase: Phase, expected: Option<Duration>) {
        self.context.tell(RunEvent::Phase { phase, expected });
    }
}

/// The scenario's flows, to one node's ports.
fn specs(config: &Scenario, node: Ipv4Addr, ports: NodePorts) -> Vec<FlowSpec> {
    let Scenario { flows, .. } = config;
    let of = |protocol, count, port, interval| {
        flow::specs(protocol, count, (node, port).into(), interval, flows.silent_after)
    };
    let mut specs = of(Protocol::Tcp, flows.tcp as usize, ports.tcp, flows.tcp_interval);
    specs.extend(of(Protocol::Udp, flows.udp as usize, ports.udp, flows.udp_interval));
    specs
}
