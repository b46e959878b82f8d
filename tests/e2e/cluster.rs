//! Local clusters: that they are real, what was asked for, and keep to themselves.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use drainwatch::cluster::environment::{self, UNKNOWN};
use drainwatch::cluster::{Cluster, Provider};
use drainwatch::config::{ClusterSpec, ProxyMode};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, ListParams, PostParams};
use serde_json::json;

use crate::local;
use crate::tools::{Holder, block_on, load_probe, pod_process, run_pod, spec, up};

/// All of them, with their names.
pub fn tests() -> Vec<(&'static str, fn())> {
    vec![
        ("a_cluster_is_what_was_asked_for", a_cluster_is_what_was_asked_for),
        ("each_proxy_mode_is_the_one_that_kube_proxy_tells", each_proxy_mode),
        ("a_lone_node_takes_pods", a_lone_node_takes_pods),
        ("two_clusters_stand_side_by_side", two_clusters),
        ("pods_see_each_other_unmasked", pods_see_each_other_unmasked),
        ("a_pod_ignores_no_signal_and_knows_its_cluster", pods_start_clean),
    ]
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
            let name = cluster.name().to_owned();
            let seen = tokio::task::spawn_blocking(move || {
                let [server_process, client_process] =
                    [server, client].map(|pod| pod_process(&name, pod));
                let listener =
                    in_net_of(server_process, || TcpListener::bind("0.0.0.0:8080").unwrap());
                let dial = |to: Ipv4Addr, port: u16| {
                    in_net_of(client_process, move || {
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

fn connect(to: SocketAddr, bound: Duration) -> TcpStream {
    let deadline = Instant::now() + bound;
    loop {
        match TcpStream::connect_timeout(&to, Duration::from_secs(1)) {
            Ok(stream) => return stream,
            Err(error) => assert!(Instant::now() < deadline, "{to}: {error}"),
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A Service with one hand-made endpoint; gives its address.
async fn expose(cluster: &dyn Cluster, name: &str, endpoint: Ipv4Addr) -> Ipv4Addr {
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
pub fn in_net_of<T: Send>(pid: i32, work: impl FnOnce() -> T + Send) -> T {
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
        let pid = pod_process(holder.cluster(), address);
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
