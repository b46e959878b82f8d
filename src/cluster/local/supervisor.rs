//! The supervisor: one process a cluster, which outlives the runner and removes everything.
//!
//! Takes an [`Order`] and then commands on standard input, tells the runner on standard output.
//! The end of its standard input means that the runner is gone, however it went. Its main thread
//! starts every process: the kernel ends nodes with the *thread* that started them.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::process::{Child, ExitCode};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use nix::unistd::{Pid, chdir, dup2_stderr, setsid};

use super::layout::Layout;
use super::state::{self, State};
use super::wire::{self, NodeCommand, NodeOrder, NodeReport, Order, Report, UpNode, send};
use super::{cgroup, daemons, files, logs, network, running, spawn};

/// All components of all nodes are up within this time, or the cluster has failed.
const BOUND: Duration = Duration::from_secs(120);
/// How long the end may take before what is left is named.
const END_BOUND: Duration = Duration::from_secs(10);

/// `drainwatch internal supervise CLUSTER` (the name is for whoever reads `ps`).
pub(super) fn main() -> ExitCode {
    // A Ctrl-C on the runner's terminal does not reach another session.
    let _ = setsid();
    let _ = chdir("/");
    outlive_signals();
    let mut line = String::new();
    let mut stdin = BufReader::new(io::stdin());
    if !matches!(stdin.read_line(&mut line), Ok(1..)) {
        return ExitCode::FAILURE;
    }
    let order: Order = match serde_json::from_str(&line) {
        Ok(order) => order,
        Err(error) => {
            eprintln!("drainwatch: an order that can't be read: {error}");
            return ExitCode::FAILURE;
        }
    };
    let (events, inbox) = mpsc::channel();
    let to = events.clone();
    std::thread::spawn(move || listen(stdin, &to));
    Supervisor::run(order, &events, &inbox)
}

/// SIGINT, SIGTERM and SIGHUP are for the runner. Handlers that do nothing, since ignored signals
/// would be inherited by every process of the cluster, up to the workload's.
fn outlive_signals() {
    extern "C" fn nothing(_: i32) {}
    let action = SigAction::new(SigHandler::Handler(nothing), SaFlags::SA_RESTART, SigSet::empty());
    for number in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        // SAFETY: the handler does nothing, so it may run at any point.
        let _ = unsafe { sigaction(number, &action) };
    }
}

/// What the main thread reacts to.
enum Event {
    /// The runner wants the cluster gone, or is gone itself.
    End,
    /// The runner wants something else.
    Asked(wire::Command),
    Node(usize, NodeReport),
    /// A node's init is gone.
    NodeGone(usize),
}

fn listen(from: impl BufRead, to: &Sender<Event>) {
    for line in from.lines() {
        match line.map(|line| serde_json::from_str(&line)) {
            Ok(Ok(wire::Command::Down)) | Err(_) => break,
            Ok(Ok(command)) => drop(to.send(Event::Asked(command))),
            Ok(Err(error)) => eprintln!("a command that can't be read: {error}"),
        }
    }
    let _ = to.send(Event::End);
}

fn listen_node(index: usize, from: impl io::Read, to: &Sender<Event>) {
    for line in BufReader::new(from).lines() {
        match line.map(|line| serde_json::from_str(&line)) {
            Ok(Ok(report)) => drop(to.send(Event::Node(index, report))),
            Ok(Err(error)) => eprintln!("a node's report that can't be read: {error}"),
            Err(_) => break,
        }
    }
    let _ = to.send(Event::NodeGone(index));
}

/// Why there is no cluster.
enum Stop {
    Asked,
    Failed { component: String, reason: String },
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Failed { component: "set-up".into(), reason: error.to_string() }
    }
}

/// What has been made so far, and has to go again.
struct Supervisor<'a> {
    order: Order,
    events: &'a Sender<Event>,
    inbox: &'a Receiver<Event>,
    started: Instant,
    state: Option<State>,
    layout: Option<Layout>,
    bridge: Option<Child>,
    nodes: Vec<Child>,
    /// Which of them were stopped because the runner wanted it.
    stopped: Vec<usize>,
}

impl<'a> Supervisor<'a> {
    fn run(order: Order, events: &'a Sender<Event>, inbox: &'a Receiver<Event>) -> ExitCode {
        let mut it = Self {
            order,
            events,
            inbox,
            started: Instant::now(),
            state: None,
            layout: None,
            bridge: None,
            nodes: Vec::new(),
            stopped: Vec::new(),
        };
        let stop = it.up().and_then(|()| it.watch()).err().unwrap_or(Stop::Asked);
        let kept = match (&stop, &it.state) {
            (Stop::Failed { .. }, Some(state)) => {
                logs::copy(&state.path, &it.order.logs).is_ok().then(|| it.order.logs.clone())
            }
            _ => None,
        };
        let left = it.down();
        let report = match stop {
            Stop::Asked => Report::Down { left },
            Stop::Failed { component, reason } => Report::Failed { component, reason, logs: kept },
        };
        let _ = send(io::stdout(), &report); // the runner may be gone
        ExitCode::SUCCESS
    }

    fn note(&self, text: &str) {
        eprintln!("{:7.3} {text}", self.started.elapsed().as_secs_f64());
    }

    fn up(&mut self) -> Result<(), Stop> {
        let name = self.order.name.clone();
        let root = state::lock_root()?;
        state::sweep(&root);
        let state = self.state.insert(State::create(&root, &name)?);
        let path = state.path.clone();
        dup2_stderr(File::create(path.join("supervisor.log"))?).map_err(io::Error::from)?;
        state.create_cgroups(&root, &name)?;

        // Forks come before the lock is given back; they wait for their orders.
        let bridge = self.bridge.insert(spawn::bridge_holder()?).id().cast_signed();
        let mut pids = Vec::new();
        for index in 0..self.order.spec.nodes {
            let mut child = spawn::node_init(&name, &format!("node-{}", index + 1))?;
            pids.push(child.id().cast_signed());
            let stdout = child.stdout.take();
            self.nodes.push(child);
            let to = self.events.clone();
            let index = index as usize;
            std::thread::spawn(move || match stdout {
                Some(stdout) => listen_node(index, stdout, &to),
                None => drop(to.send(Event::NodeGone(index))),
            });
        }
        let seed = u32::from_str_radix(name.trim_start_matches("dw-"), 16).unwrap_or(0);
        let layout = Layout::new(&name, &self.order.spec, network::free_subnet(seed)?);
        let layout = &*self.layout.insert(layout);
        network::connect_host(layout, bridge)?;
        drop(root);

        network::connect_nodes(layout, bridge, &pids)?;
        files::write(&path, layout)?;
        for ((node, pid), child) in layout.nodes.iter().zip(&pids).zip(&mut self.nodes) {
            cgroup::create(&node.cgroup, node.takes_pods)?;
            cgroup::enter(&node.cgroup, Pid::from_raw(*pid))?;
            let mut sysctls = self.order.spec.sysctls.clone();
            sysctls.entry("net.ipv4.ip_forward".into()).or_insert_with(|| "1".into());
            if node.ipv6.is_some() {
                let forwarding = "net.ipv6.conf.all.forwarding";
                sysctls.entry(forwarding.into()).or_insert_with(|| "1".into());
            }
            let order = NodeOrder {
                node: node.name.clone(),
                components: self.order.components.clone(),
                conf: path.join(&node.name).join("conf"),
                logs: path.join(&node.name).join("logs"),
                api: layout.api(),
                sysctls,
                daemons: daemons::of(layout, node),
            };
            match &mut child.stdin {
                Some(stdin) => send(stdin, &order)?,
                None => return Err(io::Error::other("a node's init has no standard input").into()),
            }
        }
        self.note("nodes started");
        self.wait_ready()?;
        let layout = self.layout.as_ref().ok_or_else(|| io::Error::other("no layout"))?;
        let nodes = layout.nodes.iter().zip(&pids).map(|(node, pid)| UpNode {
            name: node.name.clone(),
            address: node.address,
            address6: node.ipv6.as_ref().map(|ipv6| ipv6.address),
            takes_pods: node.takes_pods,
            pid: *pid,
        });
        let nodes: Vec<UpNode> = nodes.collect();
        running::write(&path, &self.order, &nodes)?;
        let report = Report::Up {
            kubeconfig: path.join("kubeconfig"),
            subnet: format!("{}/24", layout.subnet),
            nodes,
            state: path,
        };
        let _ = send(io::stdout(), &report); // a runner that is gone shows by the end of stdin
        Ok(())
    }

    fn wait_ready(&mut self) -> Result<(), Stop> {
        let mut ready = 0;
        while ready < self.nodes.len() {
            let left = BOUND.saturating_sub(self.started.elapsed());
            match self.inbox.recv_timeout(left) {
                Ok(Event::End) => return Err(Stop::Asked),
                // Before it is up the runner asks for nothing.
                Ok(Event::Asked(_)) => {}
                Ok(Event::NodeGone(index)) => {
                    let component = format!("init on node-{}", index + 1);
                    return Err(Stop::Failed { component, reason: "it ended".into() });
                }
                Ok(Event::Node(index, report)) => {
                    self.note(&format!("node-{} {}", index + 1, text(&report)));
                    match report {
                        NodeReport::AllReady => ready += 1,
                        NodeReport::Ended { daemon, reason }
                        | NodeReport::Failed { daemon, reason } => {
                            let component = format!("{daemon} on node-{}", index + 1);
                            return Err(Stop::Failed { component, reason });
                        }
                        NodeReport::Started { .. } | NodeReport::Ready { .. } => {}
                    }
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    let reason = format!("not up after {} s", BOUND.as_secs());
                    return Err(Stop::Failed { component: "cluster".into(), reason });
                }
            }
        }
        Ok(())
    }

    /// Watches a cluster that is up. A component that ends is told, not mended: what goes on then
    /// is for the runner to say.
    fn watch(&mut self) -> Result<(), Stop> {
        while let Ok(event) = self.inbox.recv() {
            if let Event::Asked(command) = event {
                self.obey(command)?;
            } else {
                self.heed(event)?;
            }
        }
        Ok(())
    }

    /// Tells what has ended although nobody asked it to.
    fn heed(&self, event: Event) -> Result<(), Stop> {
        let (component, reason) = match event {
            Event::End => return Err(Stop::Asked),
            Event::NodeGone(index) | Event::Node(index, _) if self.stopped.contains(&index) => {
                return Ok(());
            }
            Event::NodeGone(index) => (format!("init on node-{}", index + 1), "ended".into()),
            Event::Node(index, NodeReport::Ended { daemon, reason }) => {
                (format!("{daemon} on node-{}", index + 1), reason)
            }
            Event::Node(..) | Event::Asked(_) => return Ok(()),
        };
        self.note(&format!("{component} {reason}"));
        let _ = send(io::stdout(), &Report::Ended { component, reason });
        Ok(())
    }

    /// Does what the runner asks for, and answers.
    fn obey(&mut self, command: wire::Command) -> Result<(), Stop> {
        let done = match command {
            wire::Command::Down => return Err(Stop::Asked),
            wire::Command::Restart { daemon } => self.restart(&daemon)?,
            wire::Command::StopNode { node } => {
                self.stop_node(&node).map_err(|error| error.to_string())
            }
        };
        let report = match done {
            Ok(()) => Report::Done,
            Err(reason) => Report::NotDone { reason },
        };
        let _ = send(io::stdout(), &report); // the runner may be gone
        Ok(())
    }

    /// Has a daemon started anew on each node and waits until all are up. The reason is given why
    /// one is not.
    fn restart(&mut self, daemon: &str) -> Result<Result<(), String>, Stop> {
        let order = NodeCommand::Restart { daemon: daemon.to_owned() };
        let mut waiting = Vec::new();
        for (index, child) in self.nodes.iter_mut().enumerate() {
            if let Some(stdin) = child.stdin.as_mut().filter(|_| !self.stopped.contains(&index)) {
                send(stdin, &order)?;
                waiting.push(index);
            }
        }
        let deadline = Instant::now() + BOUND;
        while !waiting.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(event) = self.inbox.recv_timeout(left) else {
                return Ok(Err(format!("{daemon} is not up after {} s", BOUND.as_secs())));
            };
            match &event {
                Event::Node(index, NodeReport::Ready { daemon: up }) if up == daemon => {
                    waiting.retain(|waited| waited != index);
                }
                Event::Node(
                    index,
                    NodeReport::Failed { daemon: which, reason }
                    | NodeReport::Ended { daemon: which, reason },
                ) if which == daemon => {
                    return Ok(Err(format!("{daemon} on node-{}: {reason}", index + 1)));
                }
                _ => self.heed(event)?,
            }
        }
        self.note(&format!("{daemon} restarted"));
        Ok(Ok(()))
    }

    /// Cuts a node off, so that what its end has the kernel send reaches nobody, and ends it.
    fn stop_node(&mut self, name: &str) -> io::Result<()> {
        let nodes = self.layout.iter().flat_map(|layout| &layout.nodes);
        let index = nodes.into_iter().position(|node| node.name == name);
        let (Some(index), Some(bridge)) = (index, &self.bridge) else {
            return Err(io::Error::other(format!("there is no node {name}")));
        };
        network::cut_node(bridge.id().cast_signed(), name)?;
        self.stopped.push(index);
        self.note(&format!("{name} stops"));
        let child = &mut self.nodes[index];
        child.kill()?;
        if ended(child, END_BOUND) {
            Ok(())
        } else {
            Err(io::Error::other(format!("{name} is still there")))
        }
    }

    /// Removes everything that [`Supervisor::up`] has made, as far as it came. Gives what is left.
    fn down(mut self) -> Vec<String> {
        // With its process 1 the kernel kills everything in a node; all of them at once, as each
        // takes a moment.
        for child in self.nodes.iter_mut().chain(&mut self.bridge) {
            let _ = child.kill();
        }
        let mut left = Vec::new();
        if let Some(layout) = &self.layout {
            let link = layout.host_link();
            if !network::disconnect_host(&link) {
                left.push(format!("link {link}"));
            }
        }
        for child in self.nodes.iter_mut().chain(&mut self.bridge) {
            if !ended(child, END_BOUND) {
                left.push(format!("process {}", child.id()));
            }
        }
        left.extend(cgroup::remove(&self.order.name, END_BOUND));
        if let Some(state) = self.state {
            left.extend(state.remove());
        }
        left
    }
}

fn ended(child: &mut Child, bound: Duration) -> bool {
    let deadline = Instant::now() + bound;
    loop {
        match child.try_wait() {
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(5)),
            Ok(None) => return false,
            Ok(Some(_)) | Err(_) => return true,
        }
    }
}

fn text(report: &NodeReport) -> String {
    match report {
        NodeReport::Started { daemon } => format!("{daemon} started"),
        NodeReport::Ready { daemon } => format!("{daemon} up"),
        NodeReport::AllReady => "all up".into(),
        NodeReport::Ended { daemon, reason } => format!("{daemon} {reason}"),
        NodeReport::Failed { daemon, reason } => format!("{daemon} failed: {reason}"),
    }
}
