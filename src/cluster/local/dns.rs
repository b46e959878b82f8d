//! The cluster's DNS: CoreDNS as a process of the first node, and what makes pods find it: the
//! Service that they are told, and its one hand-made endpoint.
//!
//! Takes the layout; gives a daemon, its configuration and objects. Names outside the cluster are
//! refused: nodes have no way out.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Api, PostParams};
use serde_json::json;

use super::layout::NodeLayout;
use super::paths;
use super::wire::{Daemon, Gate};
use crate::netns::NetNamespace;

/// The Service's address, as kubeadm has it: the tenth of the range.
pub(super) const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 10);
/// The cluster's zone.
pub(super) const DOMAIN: &str = "cluster.local";
/// The user that it is to the API server, and its files' stem.
pub(super) const USER: &str = "coredns";
/// What it serves, besides each other name under the same roof: the reverse zones.
const ZONES: [&str; 3] = [DOMAIN, "in-addr.arpa", "ip6.arpa"];
const READY: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 8181);
/// How long one question may take.
const PATIENCE: Duration = Duration::from_millis(250);
const NAMESPACE: &str = "kube-system";
const SERVICE: &str = "kube-dns";

/// CoreDNS on the control plane. It is up once it has read the API, which tests of the first name
/// that they look up rely on.
pub(super) fn daemon() -> Daemon {
    Daemon {
        name: USER.into(),
        program: [paths::COREDNS, USER].iter().collect(),
        args: vec!["-conf".into(), format!("{}/Corefile", paths::CONF)],
        after: vec![Gate::ApiReady],
        ready: vec![Gate::Http(READY, "/ready".into())],
    }
}

/// Its configuration: kubeadm's, less what leads out of the cluster and the cache (kubeadm's does
/// not hold the cluster's own names). It listens on the node's
/// address alone, where the endpoint says that it is.
pub(super) fn corefile(node: &NodeLayout) -> String {
    let zones = ZONES.map(|zone| format!("{zone}:53")).join(" ");
    format!(
        "{zones} {{\n\
         \x20   bind {}\n\
         \x20   errors\n\
         \x20   ready {READY}\n\
         \x20   kubernetes {} {{\n\
         \x20       kubeconfig {}/{USER}.conf\n\
         \x20       pods insecure\n\
         \x20       ttl 30\n\
         \x20   }}\n\
         \x20   loadbalance\n\
         }}\n",
        node.address,
        ZONES.join(" "),
        paths::CONF,
    )
}

/// Makes the Service and its endpoint at the first node's address, where they are not yet there.
pub(super) async fn expose(client: &kube::Client, at: Ipv4Addr) -> kube::Result<()> {
    let labels = json!({"k8s-app": "kube-dns", "kubernetes.io/name": "CoreDNS"});
    let service = json!({
        "metadata": {"name": SERVICE, "labels": labels},
        "spec": {
            "clusterIP": ADDRESS.to_string(),
            "ports": [
                {"name": "dns", "port": 53, "protocol": "UDP"},
                {"name": "dns-tcp", "port": 53, "protocol": "TCP"},
            ],
        },
    });
    let slice = json!({
        "metadata": {"name": SERVICE, "labels": {"kubernetes.io/service-name": SERVICE}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [at.to_string()], "conditions": {"ready": true}}],
        "ports": [
            {"name": "dns", "port": 53, "protocol": "UDP"},
            {"name": "dns-tcp", "port": 53, "protocol": "TCP"},
        ],
    });
    let parsed = kube::Error::SerdeError;
    let services: Api<Service> = Api::namespaced(client.clone(), NAMESPACE);
    // Looked for first: to make it anew is refused for its address, not for its name.
    if services.get_opt(SERVICE).await?.is_none() {
        let service = serde_json::from_value(service).map_err(parsed)?;
        services.create(&PostParams::default(), &service).await?;
    }
    let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), NAMESPACE);
    if slices.get_opt(SERVICE).await?.is_none() {
        let slice = serde_json::from_value(slice).map_err(parsed)?;
        slices.create(&PostParams::default(), &slice).await?;
    }
    Ok(())
}

/// Whether a client in a node's namespace is answered at the Service's address. Blocks for as long
/// as [`PATIENCE`].
pub(super) fn answers(pid: i32) -> bool {
    NetNamespace::of_process(pid).and_then(|node| node.inside(ask)).unwrap_or(false)
}

fn ask() -> io::Result<bool> {
    // A socket of its own each time: what the node did with the first datagram of one, it does
    // with all of them.
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.connect((ADDRESS, 53))?;
    socket.send(&question(&format!("kubernetes.default.svc.{DOMAIN}")))?;
    let mut answer = [0; 512];
    let length = socket.recv(&mut answer)?;
    Ok(has_answer(&answer[..length]))
}

/// A question for a name's addresses (RFC 1035, section 4).
fn question(name: &str) -> Vec<u8> {
    // An id, recursion desired, one question.
    let mut text = vec![0x64, 0x77, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        text.push(label.len() as u8); // a label is at most 63 bytes long
        text.extend(label.bytes());
    }
    text.extend([0, 0, 1, 0, 1]); // the root, type A, class IN
    text
}

/// Whether this is a response without an error and with at least one record.
fn has_answer(text: &[u8]) -> bool {
    matches!(text, [0x64, 0x77, flags, code, _, _, high, low, ..]
        if flags & 0x80 != 0 && code & 0x0f == 0 && (*high, *low) != (0, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_records_are_an_answer() {
        let asked = question("a.bc");
        assert_eq!(asked[12..], [1, b'a', 2, b'b', b'c', 0, 0, 1, 0, 1]);
        assert!(!has_answer(&asked));
        let answer = |code: u8, records: u8| [0x64, 0x77, 0x85, 0x80 | code, 0, 1, 0, records, 0];
        assert!(has_answer(&answer(0, 1)));
        assert!(!has_answer(&answer(0, 0)));
        assert!(!has_answer(&answer(3, 1)));
        assert!(!has_answer(&answer(0, 1)[1..]));
    }

    #[test]
    fn the_configuration_serves_both_directions() {
        let node = NodeLayout {
            name: "node-1".into(),
            address: Ipv4Addr::new(10, 231, 7, 11),
            pods: "10.244.1.0/24".into(),
            ipv6: None,
            control_plane: true,
            takes_pods: true,
            cgroup: "/drainwatch/dw-3f9a1c/node-1".into(),
            cgroup_v1_refused: false,
        };
        insta::assert_snapshot!(corefile(&node), @r"
        cluster.local:53 in-addr.arpa:53 ip6.arpa:53 {
            bind 10.231.7.11
            errors
            ready 127.0.0.1:8181
            kubernetes cluster.local in-addr.arpa ip6.arpa {
                kubeconfig /run/drainwatch/conf/coredns.conf
                pods insecure
                ttl 30
            }
            loadbalance
        }
        ");
    }
}
