//! `drainwatch cluster up`: a local cluster that stays until it is told to go, or for as long as
//! a command runs.
//!
//! Standard output holds what a shell can take (`export KUBECONFIG=…`), or is the command's;
//! all else is on standard error.

use std::fmt::Display;
use std::io::Read;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::super::{Exit, say, setup};
use super::command::{self, Command};
use super::kubeconfig::Copy;
use super::signals::Signals;
use crate::cli::ClusterUpArgs;
use crate::cluster::local::components::{self, Part};
use crate::cluster::local::{self, LocalProvider, PAUSE_IMAGE, Running};
use crate::cluster::{Cluster, ClusterError, Node, Provider};
use crate::config::{self, ClusterSpec, ProxyMode};
use crate::digest;
use crate::workload::image::{self, Image};

/// Within this time a second signal is the first one.
const TWICE: Duration = Duration::from_secs(1);

/// Runs the command.
pub fn run(args: &ClusterUpArgs) -> ExitCode {
    match prepare(args) {
        Ok(up) => up.run(),
        Err(exit) => exit,
    }
}

/// A cluster to bring up, with everything looked at that can be before.
struct Up<'a> {
    args: &'a ClusterUpArgs,
    spec: ClusterSpec,
    command: Option<Command>,
    copy: Option<Copy>,
    logs: PathBuf,
}

fn prepare(args: &ClusterUpArgs) -> Result<Up<'_>, ExitCode> {
    let spec = config::cluster(&options(args)).map_err(|errors| {
        say::line(&errors);
        Exit::Usage
    })?;
    let copy = args.kubeconfig.as_deref().map(Copy::to).transpose();
    let copy = copy.map_err(|text| say::error(Exit::Files, &text))?;
    if args.setup {
        let mut extras = components::extras(&spec).to_vec();
        extras.extend(command::needs_kubectl(&args.command).then_some(Part::Kubectl));
        setup::make_ready(vec![spec.kubernetes.clone()], &extras)?;
    }
    let kubectl = components::kubectl(&spec.kubernetes);
    let command = Command::find(&args.command, kubectl.as_deref())?;
    let checked = LocalProvider::default().check(&spec);
    checked.map_err(|error| say::error(Exit::Cluster, &error))?;
    let logs = logs().map_err(|error| say::error(Exit::Files, &error))?;
    Ok(Up { args, spec, command, copy, logs })
}

/// A folder for logs, made only where something goes wrong: a name that nobody could have guessed
/// and made before, since anybody can in the folder of temporary files.
fn logs() -> std::io::Result<PathBuf> {
    let mut bytes = [0; 8];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(std::env::temp_dir().join(format!("drainwatch-logs-{}", digest::hex(&bytes))))
}

/// The options that stand for keys of `[cluster]`.
fn options(args: &ClusterUpArgs) -> Vec<(&'static str, String)> {
    let one = |name, value: &Option<String>| value.clone().map(|value| (name, value));
    let mut options: Vec<_> = [
        one("--kubernetes", &args.kubernetes),
        one("--nodes", &args.nodes),
        one("--proxy-mode", &args.proxy_mode),
        args.dns.then(|| ("--dns", "true".to_owned())),
    ]
    .into_iter()
    .flatten()
    .collect();
    options.extend(args.sysctl.iter().map(|text| ("--sysctl", text.clone())));
    options
}

/// Why a cluster is taken down, and the exit code of that.
enum End {
    Signal(Signal),
    Broken,
    Command(u8),
    Failed(Exit),
}

impl Up<'_> {
    fn run(self) -> ExitCode {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let listened =
            |runtime: &tokio::runtime::Runtime| runtime.block_on(async { Signals::listen() });
        match runtime.and_then(|runtime| Ok((listened(&runtime)?, runtime))) {
            Ok((mut signals, runtime)) => runtime.block_on(self.up(&mut signals)),
            Err(error) => {
                say::error(Exit::Files, &format!("no threads or signals: {error}")).into()
            }
        }
    }

    async fn up(&self, signals: &mut Signals) -> ExitCode {
        self.say(&format_args!("bringing a cluster up: {} …", self.what()));
        let begun = Instant::now();
        let provider = LocalProvider::default();
        let up = tokio::select! {
            up = provider.up(&self.spec, &self.logs) => up,
            // Nobody waits for its end: its supervisor sees to that.
            signal = signals.next() => return Exit::Signal(signal as u8).into(),
        };
        let mut cluster = match up {
            Ok(cluster) => cluster,
            Err(error) => return say::error(Exit::Cluster, &error).into(),
        };
        let end = self.use_it(&mut *cluster, begun, signals).await;
        self.down(cluster, end, signals).await
    }

    /// Makes it usable, tells of it, and waits for whatever ends it.
    async fn use_it(
        &self,
        cluster: &mut dyn Cluster,
        begun: Instant,
        signals: &mut Signals,
    ) -> End {
        let usable = tokio::select! {
            usable = self.make_usable(cluster) => usable,
            signal = signals.next() => return End::Signal(signal),
        };
        let (running, version) = match usable {
            Ok(usable) => usable,
            Err((exit, error)) => return End::Failed(say::error(exit, &error)),
        };
        self.say(&format_args!(
            "cluster {} is up after {:.1} s: Kubernetes {version}, {}{}{}",
            running.name,
            begun.elapsed().as_secs_f64(),
            word(&self.spec.proxy_mode),
            if self.spec.dns { ", DNS" } else { "" },
            nodes(cluster.nodes()),
        ));
        match &self.command {
            Some(command) => self.attend(command, &running, cluster, signals).await,
            None => self.keep(&running, cluster, signals).await,
        }
    }

    /// What a cluster needs beyond its components to be of use to anybody; gives the API server's
    /// version too.
    async fn make_usable(
        &self,
        cluster: &dyn Cluster,
    ) -> Result<(Running, String), (Exit, ClusterError)> {
        let failed = |error| (Exit::Cluster, error);
        let running = local::find(Some(cluster.name())).map_err(failed)?;
        let io =
            |source| (Exit::Files, ClusterError::Io { what: "a temporary file".into(), source });
        let archive = image::Archive::of(&[Image::pause(PAUSE_IMAGE)]).map_err(io)?;
        // On every node: pods that tolerate its taint run on the control plane too.
        running.load(&running.nodes(), &archive.path()).await.map_err(failed)?;
        let version = cluster.client().apiserver_version().await;
        let version = version.map_err(|error| failed(error.into()))?.git_version;
        if let Some(copy) = &self.copy {
            copy.write(&running).map_err(|error| (Exit::Files, error))?;
        }
        Ok((running, version))
    }

    /// Keeps the cluster until a signal comes or a part of it ends.
    async fn keep(
        &self,
        running: &Running,
        cluster: &mut dyn Cluster,
        signals: &mut Signals,
    ) -> End {
        let path = self.copy.as_ref().map_or(&running.kubeconfig, |copy| &copy.path);
        self.say(&"Ctrl-C takes it down. For another shell:");
        let written = say::print(&format!("export KUBECONFIG={}\n", say::quoted(path)));
        if written != Exit::Success {
            return End::Failed(written);
        }
        tokio::select! {
            signal = signals.next() => End::Signal(signal),
            what = cluster.broken() => {
                say::error(Exit::Cluster, &what);
                End::Broken
            }
        }
    }

    /// Runs the command to its end.
    async fn attend(
        &self,
        command: &Command,
        running: &Running,
        cluster: &mut dyn Cluster,
        signals: &mut Signals,
    ) -> End {
        let mut child = match command.start(running) {
            Ok(child) => child,
            Err(error) => {
                say::line(&format_args!("error: {}: {error}", command.shown()));
                return End::Command(command::NOT_EXECUTABLE);
            }
        };
        loop {
            tokio::select! {
                status = child.wait() => match status {
                    Ok(status) => return End::Command(command::code(status)),
                    Err(error) => {
                        let text = format!("the command's end can't be waited for: {error}");
                        return End::Failed(say::error(Exit::Files, &text));
                    }
                },
                signal = signals.next() => command::pass_on(&child, signal),
                // What that means is the command's to say.
                what = cluster.broken() => { say::error(Exit::Cluster, &what); }
            }
        }
    }

    async fn down(&self, cluster: Box<dyn Cluster>, end: End, signals: &mut Signals) -> ExitCode {
        if matches!(end, End::Broken) && cluster.keep_logs(&self.logs).await.is_ok() {
            say::line(&format_args!("  logs: {}", self.logs.display()));
        }
        let name = cluster.name().to_owned();
        let begun = Instant::now();
        // A signal that comes twice, to a group and to each of it, is one.
        let impatient = async {
            loop {
                let signal = signals.next().await;
                if begun.elapsed() > TWICE {
                    break signal;
                }
            }
        };
        let down = tokio::select! {
            down = cluster.down() => down,
            // As above: it goes without being waited for.
            signal = impatient => return Exit::Signal(signal as u8).into(),
        };
        let code = match end {
            End::Signal(signal) => Exit::Signal(signal as u8).into(),
            End::Broken => Exit::Cluster.into(),
            End::Failed(exit) => exit.into(),
            End::Command(0) if down.is_err() => Exit::Cluster.into(),
            End::Command(code) => ExitCode::from(code),
        };
        match down {
            Ok(()) => self.say(&format_args!(
                "cluster {name} is gone ({:.1} s)",
                begun.elapsed().as_secs_f64()
            )),
            Err(error) => drop(say::error(Exit::Cluster, &error)),
        }
        if let Some(copy) = self.copy.as_ref().filter(|copy| copy.path.exists()) {
            let shown = copy.path.display();
            say::line(&format_args!("{shown} stays: it was changed while the cluster was up"));
        }
        code
    }

    /// `Kubernetes 1.34.0, 2 nodes, iptables`
    fn what(&self) -> String {
        let ClusterSpec { kubernetes, nodes, proxy_mode, dns, .. } = &self.spec;
        let plural = if *nodes == 1 { "node" } else { "nodes" };
        let dns = if *dns { ", DNS" } else { "" };
        format!("Kubernetes {kubernetes}, {nodes} {plural}, {}{dns}", word(proxy_mode))
    }

    /// Writes a line to standard error, unless nobody wants to know.
    fn say(&self, text: &dyn Display) {
        if !self.args.quiet {
            say::line(text);
        }
    }
}

/// One line a node, each after a line break.
fn nodes(nodes: &[Node]) -> String {
    let width = nodes.iter().map(|node| node.address.to_string().len()).max().unwrap_or(0);
    let line = |(index, node): (usize, &Node)| {
        let role = match (index, node.takes_pods) {
            (0, true) => "control plane, takes pods",
            (0, false) => "control plane, takes no pods",
            _ => "takes pods",
        };
        format!("\n  {}  {:width$}  {role}", node.name, node.address.to_string())
    };
    nodes.iter().enumerate().map(line).collect()
}

/// A proxy mode as it is written.
fn word(mode: &ProxyMode) -> &'static str {
    match mode {
        ProxyMode::Iptables => "iptables",
        ProxyMode::Nftables => "nftables",
        ProxyMode::Ipvs => "ipvs",
    }
}
