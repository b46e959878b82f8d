//! The configuration files of a node: keys, kubeconfigs, and what each component reads.
//!
//! Takes the cluster's layout, gives files in a node's own folder. Paths inside them are the
//! node's view ([`paths`]), not the host's.

use std::fs;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use base64::prelude::{BASE64_STANDARD as BASE64, Engine};
use serde_json::json;

use super::layout::{Layout, NodeLayout, POD_RANGE, POD_RANGE6, SERVICE_ADDRESS};
use super::pki::{self, Authority, Subject};
use super::{PAUSE_IMAGE, dns, paths};
use crate::config::ProxyMode;

/// Writes a file that only its owner can read.
pub(super) fn write_private(path: &Path, text: &str) -> io::Result<()> {
    let mut options = fs::OpenOptions::new();
    options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)?
        .write_all(text.as_bytes())
}

/// Makes a folder that only its owner can enter.
pub(super) fn private_dir(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Writes all files of all nodes, and the administrator's kubeconfig, below `state`.
pub(super) fn write(state: &Path, layout: &Layout) -> io::Result<()> {
    let authority = Authority::new("drainwatch")?;
    for node in &layout.nodes {
        let conf = state.join(&node.name).join("conf");
        private_dir(&conf)?;
        private_dir(&state.join(&node.name).join("logs"))?;
        authority.write(&conf, "ca")?;
        write_node(&conf, &authority, layout, node)?;
        if node.control_plane {
            write_control_plane(&conf, &authority, layout, node)?;
        }
    }
    authority.write(state, "ca")?;
    // The group that kubeadm's own super-admin.conf has: bound by the API server itself.
    authority.issue(
        state,
        "admin",
        &Subject::client("kubernetes-admin", Some("system:masters")),
    )?;
    write_admin(state, layout)
}

/// Writes `STATE/kubeconfig`: one file that holds all it needs, so that a copy of it does too.
fn write_admin(state: &Path, layout: &Layout) -> io::Result<()> {
    let data = |file: &str| fs::read(state.join(file)).map(|pem| BASE64.encode(pem));
    let name = &layout.name;
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {
            "server": layout.api(), "certificate-authority-data": data("ca.crt")?}}],
        "users": [{"name": name, "user": {
            "client-certificate-data": data("admin.crt")?,
            "client-key-data": data("admin.key")?}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    });
    write_private(&state.join("kubeconfig"), &format!("{config:#}\n"))
}

fn write_node(
    conf: &Path,
    authority: &Authority,
    layout: &Layout,
    node: &NodeLayout,
) -> io::Result<()> {
    let inside = Path::new(paths::CONF);
    let user = format!("system:node:{}", node.name);
    authority.issue(conf, "kubelet", &Subject::client(&user, Some("system:nodes")))?;
    write_kubeconfig(conf, inside, "kubelet", &layout.api())?;
    authority.issue(
        conf,
        "kubelet-server",
        &Subject {
            common_name: &user,
            group: Some("system:nodes"),
            names: &[&node.name],
            addresses: &[IpAddr::V4(node.address)],
        },
    )?;
    authority.issue(conf, "kube-proxy", &Subject::client("system:kube-proxy", None))?;
    write_kubeconfig(conf, inside, "kube-proxy", &layout.api())?;
    write_private(&conf.join("kubelet.json"), &kubelet(layout, node).to_string())?;
    write_private(&conf.join("kube-proxy.json"), &kube_proxy(layout, node).to_string())?;
    write_private(&conf.join("containerd.toml"), &containerd())?;
    private_dir(&conf.join("cni"))?;
    write_private(&conf.join("cni/10-drainwatch.conflist"), &cni(node).to_string())
}

fn write_control_plane(
    conf: &Path,
    authority: &Authority,
    layout: &Layout,
    node: &NodeLayout,
) -> io::Result<()> {
    let inside = Path::new(paths::CONF);
    let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
    authority.issue(
        conf,
        "apiserver",
        &Subject {
            common_name: "kube-apiserver",
            group: None,
            names: &[
                "kubernetes",
                "kubernetes.default",
                "kubernetes.default.svc",
                "kubernetes.default.svc.cluster.local",
                "localhost",
                &node.name,
            ],
            addresses: &[IpAddr::V4(node.address), IpAddr::V4(SERVICE_ADDRESS), loopback],
        },
    )?;
    // As kubeadm does: a group that may use kubelets' APIs and no more would need a binding first.
    let kubelet_client = Subject::client("kube-apiserver-kubelet-client", Some("system:masters"));
    authority.issue(conf, "apiserver-kubelet-client", &kubelet_client)?;
    // The controller manager acts with its own rights for all of its controllers (daemons.rs).
    let users = [("kube-controller-manager", Some("system:masters")), ("kube-scheduler", None)];
    for (user, group) in users {
        authority.issue(conf, user, &Subject::client(&format!("system:{user}"), group))?;
        write_kubeconfig(conf, inside, user, &layout.api())?;
    }
    if layout.dns {
        // As the controller manager: a user that may read what it serves and no more would need
        // a role and a binding before it could start.
        authority.issue(conf, dns::USER, &Subject::client(dns::USER, Some("system:masters")))?;
        write_kubeconfig(conf, inside, dns::USER, &layout.api())?;
        write_private(&conf.join("Corefile"), &dns::corefile(node))?;
    }
    pki::service_account_keys(conf)?;
    let etcd = Authority::new("drainwatch-etcd")?;
    etcd.write(conf, "etcd-ca")?;
    etcd.issue(
        conf,
        "etcd",
        &Subject {
            common_name: &node.name,
            group: None,
            names: &["localhost"],
            addresses: &[loopback],
        },
    )?;
    etcd.issue(conf, "apiserver-etcd", &Subject::client("kube-apiserver-etcd-client", None))
}

/// Writes `DIR/USER.conf`, whose certificates are `INSIDE/USER.crt` and so on.
fn write_kubeconfig(dir: &Path, inside: &Path, user: &str, api: &str) -> io::Result<()> {
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "drainwatch", "cluster": {
            "server": api, "certificate-authority": inside.join("ca.crt")}}],
        "users": [{"name": user, "user": {
            "client-certificate": inside.join(format!("{user}.crt")),
            "client-key": inside.join(format!("{user}.key"))}}],
        "contexts": [{"name": "drainwatch", "context": {"cluster": "drainwatch", "user": user}}],
        "current-context": "drainwatch",
    });
    write_private(&dir.join(format!("{user}.conf")), &config.to_string())
}

fn kubelet(layout: &Layout, node: &NodeLayout) -> serde_json::Value {
    let conf = Path::new(paths::CONF);
    let mut config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
            "x509": {"clientCAFile": conf.join("ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": conf.join("kubelet-server.crt"),
        "tlsPrivateKeyFile": conf.join("kubelet-server.key"),
        "containerRuntimeEndpoint": format!("unix://{}", paths::CONTAINERD_SOCKET),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": node.cgroup,
        "enforceNodeAllocatable": [],
        "failSwapOn": false,
        "oomScoreAdj": 0,
        // The host's own resolver is out of a pod's reach.
        "resolvConf": "",
        // As in kind: how full the host's disk is must not evict pods.
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {"nodefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.available": "0%"},
        // The default lies in /usr, which is the host's.
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
    });
    // Without it pods are told addresses.
    if layout.dns {
        config["clusterDNS"] = json!([dns::ADDRESS.to_string()]);
        config["clusterDomain"] = json!(dns::DOMAIN);
    }
    if !layout.pod_sysctls.is_empty() {
        config["allowedUnsafeSysctls"] = json!(layout.pod_sysctls);
    }
    if node.cgroup_v1_refused {
        config["failCgroupV1"] = json!(false);
    }
    if node.control_plane && !node.takes_pods {
        config["registerWithTaints"] =
            json!([{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}]);
    }
    config
}

fn kube_proxy(layout: &Layout, node: &NodeLayout) -> serde_json::Value {
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": Path::new(paths::CONF).join("kube-proxy.conf")},
        "hostnameOverride": node.name,
        "mode": match layout.proxy_mode {
            ProxyMode::Iptables => "iptables",
            ProxyMode::Nftables => "nftables",
            ProxyMode::Ipvs => "ipvs",
        },
        // The range of all pods: a narrower one masquerades all pod-to-Service traffic.
        "clusterCIDR": layout.ranges(POD_RANGE, POD_RANGE6),
        "conntrack": conntrack(layout),
        "oomScoreAdj": 0,
        "ipvs": {"strictARP": layout.proxy_mode == ProxyMode::Ipvs},
    })
}

/// nf_conntrack_max can't be written in a net namespace of one's own. The timeouts of TCP can, and
/// are set by kube-proxy as on any node, unless the user has set them.
fn conntrack(layout: &Layout) -> serde_json::Value {
    let mut conntrack = json!({"maxPerCore": 0, "min": 0});
    for (key, sysctl) in [
        ("tcpEstablishedTimeout", "nf_conntrack_tcp_timeout_established"),
        ("tcpCloseWaitTimeout", "nf_conntrack_tcp_timeout_close_wait"),
    ] {
        if layout.sysctls.contains_key(&format!("net.netfilter.{sysctl}")) {
            conntrack[key] = json!("0s"); // left as it is
        }
    }
    conntrack
}

/// Without AppArmor: a profile that containerd loads stays in the host's kernel.
fn containerd() -> String {
    format!(
        r#"version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
oom_score = 0
disabled_plugins = ["io.containerd.nri.v1.nri"]

[grpc]
address = "{socket}"

[plugins."io.containerd.internal.v1.opt"]
path = "/var/lib/containerd/opt"

[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{PAUSE_IMAGE}"

[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true
disable_apparmor = true

[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["{cni}"]
conf_dir = "{conf}/cni"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
BinaryName = "{runc}"
SystemdCgroup = false
"#,
        socket = paths::CONTAINERD_SOCKET,
        cni = paths::CNI,
        conf = paths::CONF,
        runc = paths::RUNC,
    )
}

fn cni(node: &NodeLayout) -> serde_json::Value {
    let mut ranges = vec![json!([{"subnet": node.pods}])];
    let mut routes = vec![json!({"dst": "0.0.0.0/0"})];
    if let Some(ipv6) = &node.ipv6 {
        ranges.push(json!([{"subnet": ipv6.pods}]));
        routes.push(json!({"dst": "::/0"}));
    }
    json!({
        "cniVersion": "1.0.0",
        "name": "drainwatch",
        "plugins": [
            {"type": "ptp", "ipMasq": false, "ipam": {
                "type": "host-local",
                "ranges": ranges,
                "routes": routes}},
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ClusterSpec, ProviderKind};

    #[test]
    fn kube_proxy_leaves_the_timeouts_that_a_user_has_set() {
        let sysctl = |name: &str| (format!("net.netfilter.{name}"), "60".to_owned());
        let conntrack = |sysctls: &[(String, String)]| {
            let spec = ClusterSpec {
                provider: ProviderKind::Local,
                kubernetes: "1.34.0".into(),
                nodes: 1,
                proxy_mode: ProxyMode::Iptables,
                dns: false,
                pod_sysctls: Default::default(),
                dual_stack: false,
                sysctls: sysctls.iter().cloned().collect(),
            };
            super::conntrack(&Layout::new("dw-3f9a1c", &spec, Ipv4Addr::new(10, 231, 7, 0)))
        };
        assert_eq!(conntrack(&[]), json!({"maxPerCore": 0, "min": 0}));
        assert_eq!(
            conntrack(&[sysctl("nf_conntrack_tcp_timeout_close_wait")]),
            json!({"maxPerCore": 0, "min": 0, "tcpCloseWaitTimeout": "0s"})
        );
    }
}
