//! Triggers against an API that gives every request one answer.

use super::*;
use http::{Request, Response};
use kube::client::Body;
use serde_json::json;
use std::sync::{Arc, Mutex};
use tokio::sync::mpsc;

/// An API server that gives every request this answer, and the requests that it was sent.
fn api(status: u16, body: serde_json::Value) -> (kube::Client, Arc<Mutex<Vec<String>>>) {
    let requests = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&requests);
    let service = tower::service_fn(move |request: Request<Body>| {
        let line = format!("{} {}", request.method(), request.uri().path());
        log.lock().expect("no test panics while it holds this").push(line);
        let response =
            Response::builder().status(status).body(Body::from(body.to_string().into_bytes()));
        async move { response }
    });
    (kube::Client::new(service, "default"), requests)
}

fn aim() -> Aim {
    let text = str::to_owned;
    Aim {
        namespace: text("ns"),
        pod: text("p-1"),
        uid: text("u-1"),
        container: text("probe"),
        node: text("node-2"),
        entry_node: text("node-1"),
        workload: text("p"),
        selector: text("trial=p"),
    }
}

/// Carries an act out; gives the answer, and the requests and observations that it made.
async fn fire(
    trigger: Trigger,
    act: Act<'_>,
    status: u16,
    body: serde_json::Value,
) -> (Stamp, Answer, Vec<String>, Vec<crate::observation::Seen>) {
    let (client, requests) = api(status, body);
    let (sink, mut seen) = mpsc::unbounded_channel();
    let aim = aim();
    let prepared = Prepared { client, trigger, aim: &aim, act };
    let (sent, answer) = prepared.fire(&sink).await.expect("an answer");
    drop((sink, prepared));
    let mut observations = Vec::new();
    while let Some(observation) = seen.recv().await {
        observations.push(observation);
    }
    let requests = requests.lock().expect("no test panics while it holds this").clone();
    (sent, answer, requests, observations)
}

fn refusal(code: u16, message: &str) -> serde_json::Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
        "message": message, "reason": "TooManyRequests",
    })
}

#[tokio::test]
async fn a_budgets_429_is_a_refusal_after_one_request() {
    let body = refusal(429, "Cannot evict pod as it would violate the pod's disruption budget.");
    let (sent, answer, requests, seen) = fire(Trigger::Evict, Act::Evict, 429, body).await;
    let Answer::Refused { status: 429, message } = answer else { panic!("{answer:?}") };
    assert!(message.contains("disruption budget"));
    assert_eq!(requests, ["POST /api/v1/namespaces/ns/pods/p-1/eviction"]);
    let [first, second] = &seen[..] else { panic!("{seen:?}") };
    assert_eq!((&first.at, first.bound), (&sent, crate::observation::Bound::Exact));
    assert!(matches!(&first.event, Event::TriggerSent { trigger } if trigger == "evict"));
    assert!(matches!(second.event, Event::TriggerAnswered { status: 429, .. }));
}

/// The API server could not carry it out, or does not know whether it did: that is no refusal.
#[tokio::test]
async fn a_status_of_500_or_more_leaves_open_what_was_done() {
    for status in [500, 503, 504] {
        let (client, _) = api(status, refusal(status, "error trying to reach service"));
        let (sink, _seen) = mpsc::unbounded_channel();
        let (aim, act) = (aim(), Act::FailReadiness);
        let prepared = Prepared { client, trigger: Trigger::ReadinessFail, aim: &aim, act };
        let error = prepared.fire(&sink).await.expect_err("it is not known");
        assert!(error.to_string().contains("trying to reach service"), "{error}");
    }
}

/// A drain that may not go on is no drain: what was left of it is not tried.
#[tokio::test]
async fn the_first_refusal_ends_a_drain() {
    let pods = || vec!["p-1".to_owned(), "p-2".to_owned()];
    let refused = refusal(403, "no");
    let act = Act::Drain { pods: pods() };
    let (_, answer, requests, _) = fire(Trigger::DrainNode, act, 403, refused).await;
    assert!(matches!(answer, Answer::Refused { status: 403, .. }), "{answer:?}");
    assert_eq!(requests, ["PATCH /api/v1/nodes/node-2"]);

    let done = json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "node-2"}});
    let act = Act::Drain { pods: pods() };
    let (_, answer, requests, _) = fire(Trigger::DrainNode, act, 200, done).await;
    assert_eq!(answer, Answer::Accepted);
    assert_eq!(
        requests,
        [
            "PATCH /api/v1/nodes/node-2",
            "POST /api/v1/namespaces/ns/pods/p-1/eviction",
            "POST /api/v1/namespaces/ns/pods/p-2/eviction",
        ]
    );
}

#[tokio::test]
async fn each_trigger_is_one_request_of_its_own() {
    let pod = json!({"metadata": {"name": "p-1"}, "kind": "Pod", "apiVersion": "v1"});
    let scale = json!({"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": {}});
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 201});
    let deployment = json!({"kind": "Deployment", "apiVersion": "apps/v1", "metadata": {}});
    for (trigger, act, body, expected) in [
        (
            Trigger::Delete,
            Act::Delete { grace_s: None },
            pod.clone(),
            "DELETE /api/v1/namespaces/ns/pods/p-1",
        ),
        (
            Trigger::ForceDelete,
            Act::Delete { grace_s: Some(0) },
            pod.clone(),
            "DELETE /api/v1/namespaces/ns/pods/p-1",
        ),
        (
            Trigger::Evict,
            Act::Evict,
            status.clone(),
            "POST /api/v1/namespaces/ns/pods/p-1/eviction",
        ),
        (
            Trigger::ScaleToZero,
            Act::Scale { replicas: 0 },
            scale,
            "PATCH /apis/apps/v1/namespaces/ns/deployments/p/scale",
        ),
        (
            Trigger::Rollout,
            Act::Rollout,
            deployment,
            "PATCH /apis/apps/v1/namespaces/ns/deployments/p",
        ),
        (Trigger::Relabel, Act::Relabel, pod, "PATCH /api/v1/namespaces/ns/pods/p-1"),
        (
            Trigger::ReadinessFail,
            Act::FailReadiness,
            json!("failing"),
            "POST /api/v1/namespaces/ns/pods/p-1:7003/proxy/readyz/fail",
        ),
        (
            Trigger::DeleteService,
            Act::DeleteService,
            status,
            "DELETE /api/v1/namespaces/ns/services/p",
        ),
    ] {
        let (_, answer, requests, _) = fire(trigger, act, 200, body).await;
        assert_eq!(answer, Answer::Accepted, "{trigger:?}");
        assert_eq!(requests, [expected], "{trigger:?}");
    }
}

/// The kernel is asked, not the API; the record tells it as what it is.
#[tokio::test]
async fn a_crash_is_the_end_of_a_process_and_no_request() {
    let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("sleep");
    let act = Act::Kill { pid: child.id() as i32 };
    let (_, answer, requests, seen) = fire(Trigger::Crash, act, 500, json!(null)).await;
    assert_eq!(answer, Answer::Accepted);
    assert!(requests.is_empty());
    assert!(matches!(&seen[1].event, Event::TriggerDone { .. }), "{seen:?}");
    use std::os::unix::process::ExitStatusExt;
    assert_eq!(child.wait().expect("its end").signal(), Some(9));
}

#[tokio::test]
async fn only_a_drain_leaves_the_node_to_be_mended() {
    let node = json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "node-2"}});
    for (trigger, node_name, expected) in [
        (Trigger::DrainNode, Some("node-2"), vec!["PATCH /api/v1/nodes/node-2"]),
        (Trigger::DrainNode, None, vec![]),
        (Trigger::Delete, Some("node-2"), vec![]),
    ] {
        let (client, requests) = api(200, node.clone());
        undo(&client, trigger, node_name).await.expect("undone");
        assert_eq!(*requests.lock().unwrap(), expected, "{trigger:?}");
    }
}

struct Nothing;

#[async_trait::async_trait]
impl NodeControl for Nothing {
    async fn restart_kube_proxy(&self) -> Result<(), ClusterError> {
        Ok(())
    }
    async fn stop_node(&self, _: &str) -> Result<(), ClusterError> {
        Ok(())
    }
}

#[test]
fn a_node_that_the_flows_or_the_api_need_is_not_stopped() {
    let node = |name: &str| crate::cluster::Node {
        name: name.into(),
        address: std::net::Ipv4Addr::LOCALHOST,
        address6: None,
        takes_pods: true,
        pid: None,
    };
    let nodes = [node("node-1"), node("node-2"), node("node-3")];
    let why = |target: &str, entry: &str| {
        let aim = Aim { node: target.into(), entry_node: entry.into(), ..aim() };
        node::may_stop(&Nothing, &nodes, &aim).err().map(|unfit| unfit.to_string())
    };
    assert_eq!(why("node-2", "node-1"), None);
    let entered = why("node-2", "node-2").expect("unfit");
    assert_eq!(entered, "the target runs on node-2, which the flows enter by");
    assert!(why("node-1", "node-2").expect("unfit").contains("control plane"));
}
