//! The runner's side of a local cluster: starts the supervisor and speaks with it.
//!
//! The pipe to the supervisor's standard input is what keeps the cluster: letting go of it, by
//! being dropped or by dying, is what ends it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::{Mutex, mpsc, watch};

use super::cluster::LocalCluster;
use super::components::{self, Components};
use super::wire::{self, Order, Report};
use super::{paths, ready};
use crate::cluster::ClusterError;
use crate::config::ClusterSpec;

/// The supervisor's own bounds are shorter; a supervisor that exceeds this one is stuck.
const DOWN_BOUND: Duration = Duration::from_secs(30);

/// The pipes to a supervisor, and its process.
pub(super) struct Supervisor {
    child: Child,
    stdin: Option<ChildStdin>,
    reports: mpsc::UnboundedReceiver<Result<Report, ClusterError>>,
    /// Components that have ended although nobody asked them to, each with why.
    pub ended: watch::Receiver<Vec<String>>,
    /// How many of them [`Supervisor::broken`] has told.
    told: usize,
}

/// Makes a cluster and waits until it can be used.
pub(super) async fn start(
    executable: &Path,
    name: String,
    spec: &ClusterSpec,
    components: Components,
    logs: &Path,
) -> Result<LocalCluster, ClusterError> {
    // The supervisor works in another folder.
    let logs = std::path::absolute(logs).map_err(|source| io("the logs' folder", source))?;
    let versions = components.versions.clone();
    let ctr = components.containerd.join("ctr");
    let mut supervisor = Supervisor::spawn(executable, &name)?;
    supervisor
        .say(&Order {
            name: name.clone(),
            owner: std::process::id(),
            spec: spec.clone(),
            components,
            logs: logs.clone(),
        })
        .await?;
    let (kubeconfig, state, subnet, nodes) = match supervisor.hear().await? {
        Report::Up { kubeconfig, state, subnet, nodes } => (kubeconfig, state, subnet, nodes),
        Report::Failed { component, reason, logs } => {
            supervisor.end().await?;
            return Err(ClusterError::Component { component, reason, logs });
        }
        other => return Err(unexpected(&other)),
    };
    let mut cluster = LocalCluster {
        client: client(&kubeconfig).await?,
        nodes: nodes
            .into_iter()
            .map(|node| crate::cluster::Node {
                name: node.name,
                address: node.address,
                address6: node.address6,
                takes_pods: node.takes_pods,
                pid: Some(node.pid),
            })
            .collect(),
        name,
        kubeconfig,
        state,
        subnet,
        dns: spec.dns,
        versions,
        ctr,
        supervisor: Mutex::new(Some(supervisor)),
    };
    match cluster.usable().await {
        Ok(()) => Ok(cluster),
        Err(error) => {
            let kept = super::logs::copy(&cluster.state, &logs).is_ok().then_some(logs);
            cluster.end().await?;
            Err(match error {
                ClusterError::Component { component, reason, .. } => {
                    ClusterError::Component { component, reason, logs: kept }
                }
                other => other,
            })
        }
    }
}

impl LocalCluster {
    /// Waits until the cluster can be used, or one of its components ends.
    async fn usable(&mut self) -> Result<(), ClusterError> {
        let Some(supervisor) = self.supervisor.get_mut() else { return Ok(()) };
        tokio::select! {
            usable = ready::wait(&self.client, &self.nodes, self.dns) => usable,
            report = supervisor.hear() => Err(match report? {
                Report::Ended { component, reason } => {
                    ClusterError::Component { component, reason, logs: None }
                }
                other => unexpected(&other),
            }),
        }
    }

    /// Has the supervisor do something with the nodes and waits until it has.
    pub(super) async fn command(&self, command: wire::Command) -> Result<(), ClusterError> {
        match &mut *self.supervisor.lock().await {
            Some(supervisor) => supervisor.command(&command).await,
            None => Err(failed("it ended")),
        }
    }

    /// Removes all of it and waits for that.
    pub(super) async fn end(&mut self) -> Result<(), ClusterError> {
        match self.supervisor.get_mut().take() {
            Some(mut supervisor) => supervisor.down().await,
            None => Ok(()),
        }
    }
}

impl Supervisor {
    fn spawn(executable: &Path, name: &str) -> Result<Self, ClusterError> {
        let mut child = Command::new(executable)
            .arg0("drainwatch")
            .args(["internal", "supervise", name])
            .env("PATH", tools())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|source| io(&executable.display().to_string(), source))?;
        let stdin = child.stdin.take();
        let Some(stdout) = child.stdout.take() else {
            return Err(failed("it has no standard output"));
        };
        let (to, reports) = mpsc::unbounded_channel();
        let (tell, ended) = watch::channel(Vec::new());
        tokio::spawn(listen(stdout, to, tell));
        Ok(Self { child, stdin, reports, ended, told: 0 })
    }

    async fn say(&mut self, message: &impl serde::Serialize) -> Result<(), ClusterError> {
        let mut line = Vec::new();
        wire::send(&mut line, message).map_err(|source| io("the supervisor", source))?;
        let Some(stdin) = &mut self.stdin else { return Err(failed("it has no standard input")) };
        stdin.write_all(&line).await.map_err(|source| io("the supervisor", source))
    }

    /// Its next report. May be called off and called again.
    async fn hear(&mut self) -> Result<Report, ClusterError> {
        self.reports.recv().await.unwrap_or_else(|| Err(failed("it ended")))
    }

    /// The next component that ends although nobody asked it to, with why. May be called off.
    pub(super) async fn broken(&mut self) -> String {
        loop {
            if let Some(next) = self.ended.borrow_and_update().get(self.told) {
                self.told += 1;
                return next.clone();
            }
            if self.ended.changed().await.is_err() {
                // Its last words have been told.
                std::future::pending::<()>().await;
            }
        }
    }

    async fn command(&mut self, command: &wire::Command) -> Result<(), ClusterError> {
        // What is there by now answers no command, or one that nobody waits for any more.
        while self.reports.try_recv().is_ok() {}
        self.say(command).await?;
        loop {
            match self.hear().await? {
                Report::Done => return Ok(()),
                Report::NotDone { reason } => return Err(failed(&reason)),
                // Told by `ended` too.
                Report::Ended { .. } => {}
                other => return Err(unexpected(&other)),
            }
        }
    }

    async fn down(&mut self) -> Result<(), ClusterError> {
        // Where it can't be told, letting go of the pipe says the same.
        let _ = self.say(&wire::Command::Down).await;
        self.stdin = None;
        let last = async {
            loop {
                match self.hear().await? {
                    Report::Down { left } => return Ok::<_, ClusterError>(left),
                    Report::Failed { .. } => return Ok(Vec::new()),
                    Report::Up { .. }
                    | Report::Ended { .. }
                    | Report::Done
                    | Report::NotDone { .. } => {}
                }
            }
        };
        let left = match tokio::time::timeout(DOWN_BOUND, last).await {
            Ok(left) => left?,
            Err(_) => return Err(failed("it did not remove the cluster in time")),
        };
        self.end().await?;
        if left.is_empty() {
            Ok(())
        } else {
            Err(failed(&format!("it could not remove {}", left.join(", "))))
        }
    }

    /// Waits for its end.
    async fn end(&mut self) -> Result<(), ClusterError> {
        match tokio::time::timeout(DOWN_BOUND, self.child.wait()).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(source)) => Err(io("the supervisor", source)),
            Err(_) => Err(failed("it did not end")),
        }
    }
}

/// Where the cluster's processes look for the host's tools: where those were found.
fn tools() -> OsString {
    let set = std::env::var_os(components::SEARCH_VARIABLE).or_else(|| std::env::var_os("PATH"));
    let mut path = set.unwrap_or_default();
    path.push(":");
    path.push(paths::SYSTEM);
    path
}

/// Reads the supervisor's reports for as long as it lives, whoever asks for them or not.
async fn listen(
    from: ChildStdout,
    to: mpsc::UnboundedSender<Result<Report, ClusterError>>,
    ended: watch::Sender<Vec<String>>,
) {
    let mut lines = BufReader::new(from).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let report = serde_json::from_str(&line).map_err(|e| failed(&format!("{line}: {e}")));
        if let Ok(Report::Ended { component, reason }) = &report {
            ended.send_modify(|all| all.push(format!("{component} {reason}")));
        }
        let _ = to.send(report); // nobody listens any more once the cluster is dropped
    }
    ended.send_modify(|all| all.push("the cluster's supervisor ended".into()));
}

async fn client(kubeconfig: &PathBuf) -> Result<kube::Client, ClusterError> {
    use kube::config::{Config, KubeConfigOptions, Kubeconfig};
    let wrong = |e: kube::config::KubeconfigError| failed(&format!("its kubeconfig: {e}"));
    let file = Kubeconfig::read_from(kubeconfig).map_err(wrong)?;
    let options = KubeConfigOptions::default();
    let mut config = Config::from_custom_kubeconfig(file, &options).await.map_err(wrong)?;
    // kube repeats refused calls (429, 503, 504) by itself: a refusal is something to measure.
    config.default_retry = false;
    // The environment's proxy does not know this cluster.
    config.proxy_url = None;
    Ok(kube::Client::try_from(config)?)
}

fn io(what: &str, source: std::io::Error) -> ClusterError {
    ClusterError::Io { what: what.to_owned(), source }
}

fn failed(reason: &str) -> ClusterError {
    ClusterError::Component { component: "supervisor".into(), reason: reason.into(), logs: None }
}

fn unexpected(report: &Report) -> ClusterError {
    failed(&format!("an unexpected report: {report:?}"))
}
