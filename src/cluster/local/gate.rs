//! Asks whether a [`Gate`] holds: short calls, to be repeated.

use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use ureq::Agent;
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig};

use super::wire::Gate;

/// No single question takes longer.
const PATIENCE: Duration = Duration::from_secs(1);

/// Asks on behalf of one node: with its kubelet's rights, which are for its own node alone, or on
/// the control plane with the controller manager's.
pub(super) struct Asker {
    agent: Agent,
    api: String,
    node: String,
    held: Vec<Gate>,
}

impl Asker {
    /// Reads the certificate from the node's folder of configuration.
    pub(super) fn new(conf: &Path, api: &str, node: &str) -> std::io::Result<Self> {
        let read = |file: &str| std::fs::read(conf.join(file));
        let certificate = |pem: &[u8]| Certificate::from_pem(pem).map_err(std::io::Error::other);
        let user = ["kube-controller-manager", "kubelet"]
            .into_iter()
            .find(|user| conf.join(format!("{user}.key")).exists())
            .unwrap_or("kubelet");
        let key = PrivateKey::from_pem(&read(&format!("{user}.key"))?);
        let key = key.map_err(std::io::Error::other)?;
        let chain = [certificate(&read(&format!("{user}.crt"))?)?];
        let client = ClientCert::new_with_certs(&chain, key);
        let tls = TlsConfig::builder()
            .root_certs(RootCerts::new_with_certs(&[certificate(&read("ca.crt")?)?]))
            .client_cert(Some(client))
            .build();
        let agent = Agent::config_builder()
            .tls_config(tls)
            .timeout_global(Some(PATIENCE))
            .http_status_as_error(false)
            .proxy(None)
            .build()
            .into();
        Ok(Self { agent, api: api.to_owned(), node: node.to_owned(), held: Vec::new() })
    }

    /// Whether all of them hold. What held once is not asked again: these are starts.
    pub(super) fn hold(&mut self, gates: &[Gate]) -> bool {
        gates.iter().all(|gate| {
            let holds = self.held.contains(gate) || self.ask(gate);
            if holds && !self.held.contains(gate) {
                self.held.push(gate.clone());
            }
            holds
        })
    }

    /// Has these asked again: what they stand for is started anew.
    pub(super) fn forget(&mut self, gates: &[Gate]) {
        self.held.retain(|gate| !gates.contains(gate));
    }

    fn ask(&self, gate: &Gate) -> bool {
        match gate {
            Gate::Tcp(address) => {
                TcpStream::connect_timeout(&SocketAddr::V4(*address), PATIENCE).is_ok()
            }
            Gate::Unix(path) => UnixStream::connect(path).is_ok(),
            Gate::Http(address, path) => self.get(&format!("http://{address}{path}")).is_some(),
            Gate::ApiReady => self.get(&format!("{}/readyz", self.api)).is_some(),
            Gate::Registered => self
                .get(&format!("{}/api/v1/nodes/{}", self.api, self.node))
                .and_then(|body| serde_json::from_str::<Value>(&body).ok())
                .is_some_and(|node| {
                    node["status"]["addresses"].as_array().is_some_and(|a| !a.is_empty())
                }),
            Gate::NodesReady(count) => self
                .get(&format!("{}/api/v1/nodes", self.api))
                .and_then(|body| serde_json::from_str::<Value>(&body).ok())
                .is_some_and(|list| {
                    let nodes = list["items"].as_array().into_iter().flatten();
                    nodes.filter(|node| is_ready(node)).count() >= *count
                }),
        }
    }

    /// The body of an answer with status 200.
    fn get(&self, url: &str) -> Option<String> {
        let mut response = self.agent.get(url).call().ok()?;
        let body = response.body_mut().read_to_string().ok()?;
        (response.status() == 200).then_some(body)
    }
}

fn is_ready(node: &Value) -> bool {
    let conditions = node["status"]["conditions"].as_array();
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}
