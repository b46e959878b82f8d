//! The programs that a node runs: their arguments, what each waits for, when it is up.
//!
//! Takes a [`Layout`], gives [`Daemon`]s in the node's view of the file system. Everything that
//! is not here is the component's default: what is measured is real behaviour.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;

use super::layout::{Layout, NodeLayout, SERVICE_RANGE, SERVICE_RANGE6};
use super::wire::{Daemon, Gate};
use super::{dns, paths};

const ETCD: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 2379);
const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";
const FLEX_VOLUMES: &str = "/var/lib/kubelet/volume-plugins";

/// All daemons of a node, in the order in which they are looked at.
pub(super) fn of(layout: &Layout, node: &NodeLayout) -> Vec<Daemon> {
    let mut daemons = Vec::new();
    if node.control_plane {
        daemons.extend([etcd(node), api_server(layout, node)]);
    }
    daemons.push(containerd());
    daemons.push(kubelet(node));
    if node.control_plane {
        daemons.extend([controller_manager(layout), scheduler()]);
        daemons.extend(layout.dns.then(dns::daemon));
    }
    daemons.push(kube_proxy(layout));
    daemons
}

fn conf(file: &str) -> String {
    format!("{}/{file}", paths::CONF)
}

fn local(port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)
}

fn daemon(folder: &str, name: &str, args: Vec<String>) -> Daemon {
    Daemon {
        name: name.to_owned(),
        program: Path::new(folder).join(name),
        args,
        after: Vec::new(),
        ready: Vec::new(),
    }
}

fn etcd(node: &NodeLayout) -> Daemon {
    let client = format!("https://{ETCD}");
    let peer = format!("https://{}", local(2380));
    let args = [
        ("name", node.name.clone()),
        ("data-dir", "/var/lib/etcd".into()),
        ("listen-client-urls", client.clone()),
        ("advertise-client-urls", client),
        ("listen-peer-urls", peer.clone()),
        ("initial-advertise-peer-urls", peer.clone()),
        ("initial-cluster", format!("{}={peer}", node.name)),
        ("client-cert-auth", "true".into()),
        ("trusted-ca-file", conf("etcd-ca.crt")),
        ("cert-file", conf("etcd.crt")),
        ("key-file", conf("etcd.key")),
        ("peer-client-cert-auth", "true".into()),
        ("peer-trusted-ca-file", conf("etcd-ca.crt")),
        ("peer-cert-file", conf("etcd.crt")),
        ("peer-key-file", conf("etcd.key")),
        // One member in memory: there is nobody to elect and nothing to save.
        ("heartbeat-interval", "10".into()),
        ("election-timeout", "100".into()),
        ("unsafe-no-fsync", "true".into()),
    ];
    Daemon { ready: vec![Gate::Tcp(ETCD)], ..daemon(paths::ETCD, "etcd", flags(&args)) }
}

fn api_server(layout: &Layout, node: &NodeLayout) -> Daemon {
    let args = [
        ("advertise-address", node.address.to_string()),
        ("secure-port", "6443".into()),
        ("etcd-servers", format!("https://{ETCD}")),
        ("etcd-cafile", conf("etcd-ca.crt")),
        ("etcd-certfile", conf("apiserver-etcd.crt")),
        ("etcd-keyfile", conf("apiserver-etcd.key")),
        ("tls-cert-file", conf("apiserver.crt")),
        ("tls-private-key-file", conf("apiserver.key")),
        ("client-ca-file", conf("ca.crt")),
        ("kubelet-client-certificate", conf("apiserver-kubelet-client.crt")),
        ("kubelet-client-key", conf("apiserver-kubelet-client.key")),
        ("kubelet-certificate-authority", conf("ca.crt")),
        ("kubelet-preferred-address-types", "InternalIP".into()),
        ("authorization-mode", "Node,RBAC".into()),
        ("enable-admission-plugins", "NodeRestriction".into()),
        ("service-account-issuer", ISSUER.into()),
        ("service-account-key-file", conf("sa.pub")),
        ("service-account-signing-key-file", conf("sa.key")),
        ("service-cluster-ip-range", layout.ranges(SERVICE_RANGE, SERVICE_RANGE6)),
        ("allow-privileged", "true".into()),
    ];
    Daemon {
        after: vec![Gate::Tcp(ETCD)],
        ready: vec![Gate::ApiReady],
        ..daemon(paths::KUBERNETES, "kube-apiserver", flags(&args))
    }
}

fn containerd() -> Daemon {
    let args = [("config", conf("containerd.toml"))];
    Daemon {
        ready: vec![Gate::Unix(paths::CONTAINERD_SOCKET.into())],
        ..daemon(paths::CONTAINERD, "containerd", flags(&args))
    }
}

fn kubelet(node: &NodeLayout) -> Daemon {
    let ipv6 = node.ipv6.as_ref().map(|ipv6| format!(",{}", ipv6.address));
    let args = [
        ("config", conf("kubelet.json")),
        ("kubeconfig", conf("kubelet.conf")),
        ("node-ip", format!("{}{}", node.address, ipv6.unwrap_or_default())),
        ("hostname-override", node.name.clone()),
    ];
    Daemon {
        after: vec![Gate::Unix(paths::CONTAINERD_SOCKET.into()), Gate::ApiReady],
        ready: vec![Gate::Registered],
        ..daemon(paths::KUBERNETES, "kubelet", flags(&args))
    }
}

/// With one identity for all controllers, the flag's default. With a service account each, its
/// start asks for one token after another at its client's 20 calls a second, and no node loses its
/// not-ready taint for four seconds; a higher rate would change how controllers act later on.
///
/// Started last: a node that is not Ready when it looks for the first time gets a NoExecute taint,
/// and it looks again after five seconds only.
fn controller_manager(layout: &Layout) -> Daemon {
    let kubeconfig = conf("kube-controller-manager.conf");
    let args = [
        ("kubeconfig", kubeconfig.clone()),
        ("authentication-kubeconfig", kubeconfig.clone()),
        ("authorization-kubeconfig", kubeconfig),
        ("bind-address", "127.0.0.1".into()),
        ("client-ca-file", conf("ca.crt")),
        ("root-ca-file", conf("ca.crt")),
        ("service-account-private-key-file", conf("sa.key")),
        ("leader-elect", "false".into()),
        ("flex-volume-plugin-dir", FLEX_VOLUMES.into()),
    ];
    Daemon {
        after: vec![Gate::NodesReady(layout.nodes.len())],
        ready: vec![Gate::Tcp(local(10257))],
        ..daemon(paths::KUBERNETES, "kube-controller-manager", flags(&args))
    }
}

fn scheduler() -> Daemon {
    let kubeconfig = conf("kube-scheduler.conf");
    let args = [
        ("kubeconfig", kubeconfig.clone()),
        ("authentication-kubeconfig", kubeconfig.clone()),
        ("authorization-kubeconfig", kubeconfig),
        ("bind-address", "127.0.0.1".into()),
        ("leader-elect", "false".into()),
    ];
    Daemon {
        after: vec![Gate::ApiReady],
        ready: vec![Gate::Tcp(local(10259))],
        ..daemon(paths::KUBERNETES, "kube-scheduler", flags(&args))
    }
}

fn kube_proxy(_layout: &Layout) -> Daemon {
    let args = [("config", conf("kube-proxy.json"))];
    Daemon {
        // Started earlier it would look for its node's address once a second only.
        after: vec![Gate::Registered],
        ready: vec![Gate::Http(local(10256), "/healthz".into())],
        ..daemon(paths::KUBERNETES, "kube-proxy", flags(&args))
    }
}

fn flags(pairs: &[(&str, String)]) -> Vec<String> {
    pairs.iter().map(|(name, value)| format!("--{name}={value}")).collect()
}
