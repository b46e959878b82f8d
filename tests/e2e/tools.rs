//! What tests of clusters share: clusters, pods, and runners that can be ended in any way.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use drainwatch::cluster::local::PAUSE_IMAGE;
use drainwatch::cluster::{Cluster, Provider};
use drainwatch::config::{ClusterSpec, ProviderKind, ProxyMode};
use drainwatch::workload::image::{self, Image};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, PostParams};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use crate::{DRAINWATCH, local};

/// Two nodes of the default version.
pub fn spec() -> ClusterSpec {
    ClusterSpec {
        provider: ProviderKind::Local,
        kubernetes: "1.34.0".into(),
        nodes: 2,
        proxy_mode: ProxyMode::Iptables,
        sysctls: BTreeMap::new(),
        dns: false,
        pod_sysctls: Default::default(),
        dual_stack: false,
    }
}

pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Runtime::new().unwrap().block_on(future)
}

pub async fn up(spec: &ClusterSpec) -> Box<dyn Cluster> {
    let logs = tempfile::tempdir().unwrap();
    local().up(spec, logs.path()).await.unwrap_or_else(|error| panic!("{error}"))
}

pub async fn load_probe(cluster: &dyn Cluster) {
    cluster.load_image(archive().path()).await.unwrap();
}

/// The images that pods need.
pub fn archive() -> tempfile::NamedTempFile {
    let archive = tempfile::NamedTempFile::new().unwrap();
    image::write_archive(archive.as_file(), &[Image::probe(), Image::pause(PAUSE_IMAGE)]).unwrap();
    archive
}

/// A pod that runs the pause program under the probe's image; gives its address once it is Ready.
pub async fn run_pod(client: kube::Client, name: &str) -> Ipv4Addr {
    let pods: Api<Pod> = Api::default_namespaced(client);
    let pod = serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "main",
                "image": image::image_name(),
                "imagePullPolicy": "Never",
                "args": ["pause"],
            }],
        },
    }));
    pods.create(&PostParams::default(), &pod.unwrap()).await.unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let status = pods.get(name).await.unwrap().status.unwrap_or_default();
        let running = status.phase.as_deref() == Some("Running");
        if let (true, Some(address)) = (running, &status.pod_ip) {
            return address.parse().unwrap();
        }
        assert!(Instant::now() < deadline, "{status:#?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// The process of a pod's container, in this host's numbers, by the pod's address: clusters side by
/// side give out the same ones.
pub fn pod_process(cluster: &str, address: Ipv4Addr) -> i32 {
    let address = address.to_string();
    let mut pids: Vec<i32> = fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let table = fs::read_to_string(format!("/proc/{pid}/net/fib_trie")).unwrap_or_default();
            let cgroups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
            line.windows(5).any(|w| w == b"pause")
                && cgroups.contains(&format!("/{cluster}/"))
                && table.lines().any(|l| l.trim() == format!("|-- {address}"))
        })
        .collect();
    pids.sort_unstable();
    *pids.last().unwrap_or_else(|| panic!("no process has {address}"))
}

/// A client by a kubeconfig.
pub async fn client_of(kubeconfig: &Path) -> kube::Client {
    use kube::config::{Config, KubeConfigOptions, Kubeconfig};
    let file = Kubeconfig::read_from(kubeconfig).unwrap();
    let mut config =
        Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.unwrap();
    config.proxy_url = None;
    kube::Client::try_from(config).unwrap()
}

/// `drainwatch internal hold`: a runner that can be ended in any way.
pub struct Holder {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
    kubeconfig: PathBuf,
    _archive: tempfile::NamedTempFile,
    _logs: tempfile::TempDir,
}

impl Holder {
    /// `shell` runs it as `"$@"`.
    pub fn start(arguments: &[&str], shell: &str) -> Self {
        let archive = archive();
        let logs = tempfile::tempdir().unwrap();
        let mut child = Command::new("sh")
            .args(["-c", shell, "sh", DRAINWATCH, "internal", "hold"])
            .args(arguments)
            .arg("--logs")
            .arg(logs.path())
            .arg("--image")
            .arg(archive.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, stdin, lines, kubeconfig: PathBuf::new(), _archive: archive, _logs: logs }
    }

    pub fn plain() -> Self {
        Self::start(&[], "exec \"$@\"")
    }

    /// Waits until the cluster is up.
    pub fn up(&mut self) {
        let line = self.lines.next().expect("the cluster is up").unwrap();
        let up: serde_json::Value = serde_json::from_str(&line).unwrap();
        self.kubeconfig = up["kubeconfig"].as_str().unwrap().into();
    }

    /// The cluster's name: the folder that its kubeconfig lies in bears it.
    pub fn cluster(&self) -> &str {
        let folder = self.kubeconfig.parent().and_then(Path::file_name);
        folder.and_then(|name| name.to_str()).expect("the cluster is up")
    }

    pub async fn client(&self) -> kube::Client {
        client_of(&self.kubeconfig).await
    }

    pub fn signal(&mut self, signal: Signal) -> ExitStatus {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).unwrap();
        self.child.wait().unwrap()
    }

    /// Ends its input, and waits.
    pub fn end(mut self) -> ExitStatus {
        drop(self.stdin.take());
        self.child.wait().unwrap()
    }
}

/// Not even a failed test leaves one behind.
impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
