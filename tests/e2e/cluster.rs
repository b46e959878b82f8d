//! Local clusters: that they are real, that they keep to themselves, and that nothing of them is
//! left, whichever way they end. Each test is also held to leaving the host as it was (main.rs).

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use drainwatch::cluster::environment::{self, UNKNOWN};
use drainwatch::cluster::local::{PAUSE_IMAGE, components};
use drainwatch::cluster::{Cluster, ClusterError, Provider};
use drainwatch::config::{ClusterSpec, ProviderKind, ProxyMode};
use drainwatch::workload::image::{self, Image};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, ListParams, PostParams};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use crate::host::Host;
use crate::{DRAINWATCH, local};

/// All tests, with their names.
pub fn tests() -> Vec<(&'static str, fn())> {
    vec![
        ("a_cluster_is_what_was_asked_for", a_cluster_is_what_was_asked_for),
        ("each_proxy_mode_is_the_one_that_kube_proxy_tells", each_proxy_mode),
        ("a_lone_node_takes_pods", a_lone_node_takes_pods),
        ("two_clusters_stand_side_by_side", two_clusters),
        ("pods_see_each_other_unmasked", pods_see_each_other_unmasked),
        ("a_pod_ignores_no_signal_and_knows_its_cluster", pods_start_clean),
        ("a_dropped_cluster_goes", a_dropped_cluster_goes),
        ("a_runner_ended_by_sigint_leaves_nothing", runner_ended_by_sigint),
        ("a_killed_runner_leaves_nothing", killed_runner),
        ("a_runner_killed_on_the_way_up_leaves_nothing", runner_killed_on_the_way_up),
        ("a_killed_supervisor_is_swept_up_after", killed_supervisor),
        ("a_component_that_ends_at_once_is_named", component_ends_at_once),
        ("a_component_that_ends_later_is_a_warning", component_ends_later),
        ("a_sysctl_that_does_not_exist_is_named", wrong_sysctl),
    ]
}

/// Two nodes of the default version.
pub fn spec() -> ClusterSpec {
    ClusterSpec {
        provider: ProviderKind::Local,
        kubernetes: "1.34.0".into(),
        nodes: 2,
        proxy_mode: ProxyMode::Iptables,
        sysctls: BTreeMap::new(),
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Runtime::new().unwrap().block_on(future)
}

async fn up(spec: &ClusterSpec) -> Box<dyn Cluster> {
    let logs = tempfile::tempdir().unwrap();
    local().up(spec, logs.path()).await.unwrap_or_else(|error| panic!("{error}"))
}

async fn load_probe(cluster: &dyn Cluster) {
    cluster.load_image(archive().path()).await.unwrap();
}

/// The images that pods need.
fn archive() -> tempfile::NamedTempFile {
    let archive = tempfile::NamedTempFile::new().unwrap();
    image::write_archive(archive.as_file(), &[Image::probe(), Image::pause(PAUSE_IMAGE)]).unwrap();
    archive
}

fn a_cluster_is_what_was_asked_for() {
    block_on(async {
        let mut spec = spec();
        spec.sysctls.insert("net.ipv4.icmp_ratelimit".into(), "0".into());
        let cluster = up(&spec).await;
        let nodes = cluster.nodes().to_vec();
        assert_eq!(nodes.iter().map(|n| &*n.name).collect::<Vec<_>>(), ["node-1", "node-2"]);
        assert_eq!(nodes.iter().map(|n| n.takes_pods).collect::<Vec<_>>(), [false, true]);

        // Keys are root's alone.
        let kubeconfig = cluster.kubeconfig().to_owned();
        assert_eq!(fs::metadata(&kubeconfig).unwrap().permissions().mode() & 0o777, 0o600);
        let folder = kubeconfig.parent().unwrap();
        assert_eq!(fs::metadata(folder).unwrap().permissions().mode() & 0o777, 0o700);

        let api: Api<Node> = Api::all(cluster.client());
        let listed = api.list(&ListParams::default()).await.unwrap().items;
        let taints = |node: &Node| -> Vec<String> {
            let taints = node.spec.as_ref().and_then(|s| s.taints.clone()).unwrap_or_default();
            taints.into_iter().map(|t| format!("{}:{}", t.key, t.effect)).collect()
        };
        assert_eq!(taints(&listed[0]), ["node-role.kubernetes.io/control-plane:NoSchedule"]);
        assert_eq!(taints(&listed[1]), [""; 0]);
        let labels = listed[0].metadata.labels.clone().unwrap();
        assert_eq!(labels["node-role.kubernetes.io/control-plane"], "");

        // The API server reaches a kubelet only if it can verify it.
        for node in &nodes {
            let path = format!("/api/v1/nodes/{}/proxy/healthz", node.name);
            let request = http::Request::get(path).body(Vec::new()).unwrap();
            assert_eq!(cluster.client().request_text(request).await.unwrap(), "ok");
        }

        let environment = environment::read(&*cluster, "local").await.unwrap();
        let fixed = |key: &str| environment.fixed.get(key).unwrap_or_else(|| panic!("no {key}"));
        assert_eq!(fixed("server"), "v1.34.0");
        assert_eq!(fixed("nodes"), "2");
        assert_eq!(fixed("proxy mode"), "iptables");
        assert_eq!(fixed("cni"), "ptp + host-local");
        assert_eq!(fixed("node/node-2/kubelet"), "v1.34.0");
        assert!(fixed("node/node-1/container runtime").starts_with("containerd://"));
        assert_eq!(fixed("node/node-2/net.ipv4.icmp_ratelimit"), "0");
        assert_eq!(fixed("node/node-2/net.ipv4.icmp_ratemask"), "6168");
        // Components of a user's folder may not tell their versions.
        let unknown = environment
            .fixed
            .iter()
            .filter(|(key, value)| *value == UNKNOWN && !key.starts_with("version/"));
        assert_eq!(unknown.count(), 0, "{environment:#?}");
        let warnings = environment.warnings.iter().filter(|w| !w.starts_with("version/"));
        assert_eq!(warnings.count(), 0, "{environment:#?}");
        let again = environment::read(&*cluster, "local").await.unwrap();
        assert_eq!(environment.digest, again.digest);

        let logs = tempfile::tempdir().unwrap();
        cluster.keep_logs(logs.path()).await.unwrap();
        assert!(logs.path().join("node-1/kube-apiserver.log").exists());
        assert!(logs.path().join("node-2/kubelet.log").exists());
        cluster.down().await.unwrap();
        assert!(!folder.exists());
    });
}

fn each_proxy_mode() {
    block_on(async {
        let spec = ClusterSpec { proxy_mode: ProxyMode::Nftables, ..spec() };
        let cluster = up(&spec).await;
        let environment = environment::read(&*cluster, "local").await.unwrap();
        assert_eq!(environment.fixed["proxy mode"], "nftables");
        assert_eq!(environment.fixed["node/node-2/proxy mode"], "nftables");
        cluster.down().await.unwrap();

        let spec = ClusterSpec { proxy_mode: ProxyMode::Ipvs, ..spec };
        match local().check(&spec) {
            Ok(()) => {
                let cluster = up(&spec).await;
                let environment = environment::read(&*cluster, "local").await.unwrap();
                assert_eq!(environment.fixed["proxy mode"], "ipvs");
                cluster.down().await.unwrap();
            }
            Err(error) => assert!(error.to_string().contains("ip_vs"), "{error}"),
        }
    });
}

fn a_lone_node_takes_pods() {
    block_on(async {
        let cluster = up(&ClusterSpec { nodes: 1, ..spec() }).await;
        assert!(cluster.nodes()[0].takes_pods);
        load_probe(&*cluster).await;
        run_pod(cluster.client(), "lone").await;
        cluster.down().await.unwrap();
    });
}

fn two_clusters() {
    block_on(async {
        let (one, two) = tokio::join!(async { up(&spec()).await }, async { up(&spec()).await });
        assert_ne!(one.name(), two.name());
        let address = |cluster: &dyn Cluster| cluster.nodes()[0].address.octets();
        assert_ne!(address(&*one)[..3], address(&*two)[..3]);
        tokio::join!(load_probe(&*one), load_probe(&*two));
        // Pods of the same name and in the same place: each kubelet removes the folders and
        // cgroups of pods that it does not know, so a shared one would show here.
        tokio::join!(run_pod(one.client(), "twin"), run_pod(two.client(), "twin"));
        one.down().await.unwrap();
        tokio::time::sleep(Duration::from_secs(3)).await;
        let pods: Api<Pod> = Api::default_namespaced(two.client());
        let pod = pods.get("twin").await.unwrap();
        let statuses = pod.status.unwrap().container_statuses.unwrap();
        assert!(statuses[0].ready && statuses[0].restart_count == 0, "{statuses:?}");
        two.down().await.unwrap();
    });
}

/// A pod that runs the pause program under the probe's image; gives its address once it is Ready.
async fn run_pod(client: kube::Client, name: &str) -> std::net::Ipv4Addr {
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

/// The process of a pod's container, in this host's numbers, by the pod's address.
fn pod_process(address: std::net::Ipv4Addr) -> i32 {
    let address = address.to_string();
    let mut pids: Vec<i32> = fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let table = fs::read_to_string(format!("/proc/{pid}/net/fib_trie")).unwrap_or_default();
            line.windows(5).any(|w| w == b"pause")
                && table.lines().any(|l| l.trim() == format!("|-- {address}"))
        })
        .collect();
    pids.sort_unstable();
    *pids.last().unwrap_or_else(|| panic!("no process has {address}"))
}

/// kube-proxy with a wrong range of pods masquerades what pods send to Services, and hardly
/// anything else notices.
fn pods_see_each_other_unmasked() {
    block_on(async {
        for proxy_mode in [ProxyMode::Iptables, ProxyMode::Nftables] {
            let cluster = up(&ClusterSpec { proxy_mode, ..spec() }).await;
            load_probe(&*cluster).await;
            let server = run_pod(cluster.client(), "server").await;
            let client = run_pod(cluster.client(), "client").await;
            let service = expose(&*cluster, "server", server).await;
            let seen = tokio::task::spawn_blocking(move || {
                let listener = in_net_of(pod_process(server), || {
                    std::net::TcpListener::bind("0.0.0.0:8080").unwrap()
                });
                let dial = |to: std::net::Ipv4Addr, port: u16| {
                    in_net_of(pod_process(client), move || {
                        connect((to, port).into(), Duration::from_secs(10))
                    })
                };
                let direct = dial(server, 8080);
                let (_, from_pod) = listener.accept().unwrap();
                let by_service = dial(service, 80);
                let (_, from_service) = listener.accept().unwrap();
                drop((direct, by_service));
                [from_pod.ip(), from_service.ip()]
            });
            assert_eq!(seen.await.unwrap(), [client, client], "{proxy_mode:?}");
            cluster.down().await.unwrap();
        }
    });
}

fn connect(to: std::net::SocketAddr, bound: Duration) -> std::net::TcpStream {
    let deadline = Instant::now() + bound;
    loop {
        match std::net::TcpStream::connect_timeout(&to, Duration::from_secs(1)) {
            Ok(stream) => return stream,
            Err(error) => assert!(Instant::now() < deadline, "{to}: {error}"),
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A Service with one hand-made endpoint; gives its address.
async fn expose(
    cluster: &dyn Cluster,
    name: &str,
    endpoint: std::net::Ipv4Addr,
) -> std::net::Ipv4Addr {
    use k8s_openapi::api::core::v1::Service;
    use k8s_openapi::api::discovery::v1::EndpointSlice;
    let services: Api<Service> = Api::default_namespaced(cluster.client());
    let slices: Api<EndpointSlice> = Api::default_namespaced(cluster.client());
    let ports = json!([{"port": 80, "targetPort": 8080}]);
    let service = json!({"metadata": {"name": name}, "spec": {"ports": ports}});
    let service = services
        .create(&PostParams::default(), &serde_json::from_value(service).unwrap())
        .await
        .unwrap();
    let slice = json!({
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": name}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [endpoint.to_string()], "conditions": {"ready": true}}],
        "ports": [{"port": 8080, "protocol": "TCP"}],
    });
    slices.create(&PostParams::default(), &serde_json::from_value(slice).unwrap()).await.unwrap();
    service.spec.unwrap().cluster_ip.unwrap().parse().unwrap()
}

/// Runs something on a thread in a process's net namespace.
fn in_net_of<T: Send>(pid: i32, work: impl FnOnce() -> T + Send) -> T {
    let namespace = fs::File::open(format!("/proc/{pid}/ns/net")).unwrap();
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            nix::sched::setns(namespace, nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            work()
        });
        thread.join().unwrap()
    })
}

/// A signal that the runner ignores, or that its terminal does, must not be ignored by a workload.
fn pods_start_clean() {
    // As under nohup, and in a script's background.
    let mut holder = Holder::start(&[], "trap '' HUP INT QUIT PIPE TERM; exec \"$@\"");
    holder.up();
    block_on(async {
        let address = run_pod(holder.client().await, "clean").await;
        let pid = pod_process(address);
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let mask = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            u64::from_str_radix(line.trim(), 16).unwrap()
        };
        // Of the standard signals; a runtime may ignore SIGPIPE by itself.
        assert_eq!(mask("SigIgn:") & 0x7fff_ffff & !(1 << 12), 0, "{status}");
        assert_eq!(mask("SigBlk:"), 0, "{status}");
        let account = format!("/proc/{pid}/root/var/run/secrets/kubernetes.io/serviceaccount");
        let ca = fs::read_to_string(Path::new(&account).join("ca.crt")).unwrap();
        assert!(ca.starts_with("-----BEGIN CERTIFICATE-----"), "{ca}");
    });
    assert!(holder.end().success());
}

fn a_dropped_cluster_goes() {
    let before = Host::read();
    block_on(async {
        drop(up(&spec()).await);
    });
    before.assert_unchanged();
    // Also one that is not up yet.
    block_on(async {
        let spec = spec();
        let (provider, logs) = (local(), tempfile::tempdir().unwrap());
        let up = provider.up(&spec, logs.path());
        let _ = tokio::time::timeout(Duration::from_millis(700), up).await;
    });
}

/// `drainwatch internal hold`: a runner that can be ended in any way.
struct Holder {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
    kubeconfig: PathBuf,
    _archive: tempfile::NamedTempFile,
    _logs: tempfile::TempDir,
}

impl Holder {
    /// `shell` runs it as `"$@"`.
    fn start(arguments: &[&str], shell: &str) -> Self {
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

    fn plain() -> Self {
        Self::start(&[], "exec \"$@\"")
    }

    /// Waits until the cluster is up.
    fn up(&mut self) {
        let line = self.lines.next().expect("the cluster is up").unwrap();
        let up: serde_json::Value = serde_json::from_str(&line).unwrap();
        self.kubeconfig = up["kubeconfig"].as_str().unwrap().into();
    }

    async fn client(&self) -> kube::Client {
        use kube::config::{Config, KubeConfigOptions, Kubeconfig};
        let file = Kubeconfig::read_from(&self.kubeconfig).unwrap();
        let mut config =
            Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.unwrap();
        config.proxy_url = None;
        kube::Client::try_from(config).unwrap()
    }

    fn signal(&mut self, signal: Signal) -> ExitStatus {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).unwrap();
        self.child.wait().unwrap()
    }

    /// Ends its input, and waits.
    fn end(mut self) -> ExitStatus {
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

fn runner_ended_by_sigint() {
    let mut holder = Holder::plain();
    holder.up();
    assert_eq!(holder.signal(Signal::SIGINT).code(), Some(130));
}

fn killed_runner() {
    let before = Host::read();
    let mut holder = Holder::plain();
    holder.up();
    assert_ne!(before.new_since("link"), [""; 0]);
    assert_ne!(before.new_since("cgroup"), [""; 0]);
    assert_ne!(before.new_since("process"), [""; 0]);
    let begun = Instant::now();
    holder.signal(Signal::SIGKILL);
    before.assert_unchanged();
    assert!(begun.elapsed() < Duration::from_secs(5), "it took {:?}", begun.elapsed());
}

/// At instants that lie within each of the steps on the way up.
fn runner_killed_on_the_way_up() {
    for after_ms in [20, 60, 120, 250, 500, 1_500, 3_000] {
        let before = Host::read();
        let mut holder = Holder::plain();
        std::thread::sleep(Duration::from_millis(after_ms));
        holder.signal(Signal::SIGKILL);
        if let Err(difference) = before.wait_unchanged() {
            panic!("killed after {after_ms} ms: {difference}");
        }
    }
}

fn killed_supervisor() {
    let before = Host::read();
    let mut holder = Holder::plain();
    holder.up();
    let processes = before.new_since("process");
    let supervisor = processes.iter().find(|p| p.contains("internal supervise")).unwrap();
    let pid = supervisor.split(' ').next().unwrap().parse().unwrap();
    kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
    holder.signal(Signal::SIGKILL);
    // The nodes go with it; folders stay, and the next cluster finds them.
    let deadline = Instant::now() + Duration::from_secs(10);
    while !before.new_since("process").is_empty() {
        assert!(Instant::now() < deadline, "{:?}", before.new_since("process"));
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_ne!(before.new_since("cgroup"), [""; 0]);
    let mut next = Holder::plain();
    next.up();
    assert!(next.end().success());
}

/// A flat folder of the components in which one is another program.
fn components_with(name: &str, program: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let good = components::locate("1.34.0").unwrap();
    for from in [&good.kubernetes, &good.etcd, &good.containerd, &good.cni] {
        for entry in fs::read_dir(from).unwrap().flatten() {
            let to = folder.path().join(entry.file_name());
            if entry.file_name() != name && !to.exists() {
                // A link would lead out of what a node sees.
                if fs::hard_link(entry.path(), &to).is_err() {
                    fs::copy(entry.path(), &to).unwrap();
                }
            }
        }
    }
    // Asked for its version, it says what the real one would.
    let real =
        [&good.kubernetes, &good.etcd].map(|f| f.join(name)).into_iter().find(|f| f.exists());
    let script = format!(
        "#!/bin/sh\ncase $1 in --version|-version|-v) exec {} \"$@\";; esac\n{program}\n",
        real.unwrap().display()
    );
    let path = folder.path().join(name);
    fs::write(&path, script).unwrap();
    fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
    folder
}

fn component_ends_at_once() {
    let folder = components_with(
        "kube-scheduler",
        "case $1 in --version) echo Kubernetes v1.34.0; exit;; esac\n\
         echo 'Error: it rains' >&2; echo bye >&2; exit 3",
    );
    let logs = tempfile::tempdir().unwrap();
    let output = Command::new(DRAINWATCH)
        .args(["internal", "hold", "--logs"])
        .arg(logs.path())
        .env(components::FOLDER_VARIABLE, folder.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(4));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("kube-scheduler on node-1: ended with exit code 3"), "{stderr}");
    assert!(stderr.contains("Error: it rains"), "{stderr}");
    let log = fs::read_to_string(logs.path().join("node-1/kube-scheduler.log")).unwrap();
    assert_eq!(log, "Error: it rains\nbye\n");
    assert!(logs.path().join("node-2/containerd.log").exists());
}

fn component_ends_later() {
    block_on(async {
        let cluster = up(&spec()).await;
        let init = cluster.nodes()[1].pid.unwrap();
        let children = fs::read_to_string(format!("/proc/{init}/task/{init}/children")).unwrap();
        let kubelet = children.split_whitespace().find(|pid| {
            let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.contains("/kubelet\0")
        });
        let kubelet = kubelet.unwrap().parse().unwrap();
        kill(Pid::from_raw(kubelet), Signal::SIGKILL).unwrap();
        let deadline = Instant::now() + Duration::from_secs(5);
        loop {
            let warnings = cluster.facts().await.unwrap().warnings;
            if warnings.iter().any(|w| w.contains("kubelet on node-2 ended by SIGKILL")) {
                break;
            }
            assert!(Instant::now() < deadline, "{warnings:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        cluster.down().await.unwrap();
    });
}

fn wrong_sysctl() {
    block_on(async {
        let mut spec = spec();
        spec.sysctls.insert("net.ipv4.no_such_thing".into(), "1".into());
        let logs = tempfile::tempdir().unwrap();
        match local().up(&spec, logs.path()).await.map(|cluster| cluster.name().to_owned()) {
            Err(error @ ClusterError::Component { .. }) => {
                assert!(error.to_string().contains("net.ipv4.no_such_thing = 1"), "{error}");
            }
            other => panic!("{other:?}"),
        }
        spec.sysctls = BTreeMap::from([("vm.swappiness".into(), "1".into())]);
        let error = local().check(&spec).unwrap_err().to_string();
        assert!(error.contains("vm.swappiness"), "{error}");
    });
}
