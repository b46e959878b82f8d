//! Triggers: what terminates the pod.
//!
//! Takes a client and the target; sends one request, without retries, and says when it was sent
//! and what the API answered. A refusal is an answer, not an error.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::Eviction;
use kube::api::{Api, DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
use serde_json::json;

use crate::clock::Stamp;
use crate::config::Trigger;
use crate::observation::{Event, Observation, Sink, Source};

/// What a trigger acts on.
#[derive(Clone, Debug)]
pub struct Aim<'a> {
    /// The namespace of both.
    pub namespace: &'a str,
    /// The pod's name.
    pub pod: &'a str,
    /// The Deployment's name.
    pub deployment: &'a str,
}

/// What the API answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It took the request.
    Accepted,
    /// It refused: a disruption budget's 429, missing rights' 403.
    Refused {
        /// The HTTP status.
        status: u16,
        /// The API's words.
        message: String,
    },
}

impl Trigger {
    /// The name as in TOML.
    pub fn name(self) -> &'static str {
        match self {
            Trigger::Delete => "delete",
            Trigger::Evict => "evict",
            Trigger::ScaleToZero => "scale-to-zero",
        }
    }
}

/// Sends the trigger's request. Gives the instant just before it was sent, the zero of the trial,
/// and the API's answer; an error where no answer came.
pub async fn fire(
    client: &kube::Client,
    trigger: Trigger,
    aim: &Aim<'_>,
    sink: &Sink,
) -> Result<(Stamp, Answer), kube::Error> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), aim.namespace);
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), aim.namespace);
    let sent = Stamp::now();
    let told = Event::TriggerSent { trigger: trigger.name().to_owned() };
    // A receiver that is gone wants no observations.
    let _ = sink.send(Observation::exact(sent.clone(), Source::Runner, told));
    let result = match trigger {
        Trigger::Delete => pods.delete(aim.pod, &DeleteParams::default()).await.map(drop),
        Trigger::Evict => evict(&pods, aim.pod).await,
        Trigger::ScaleToZero => {
            let patch = Patch::Merge(json!({"spec": {"replicas": 0}}));
            deployments.patch_scale(aim.deployment, &PatchParams::default(), &patch).await.map(drop)
        }
    };
    let answer = match result {
        Ok(()) => Answer::Accepted,
        Err(kube::Error::Api(status)) => {
            Answer::Refused { status: status.code, message: status.message }
        }
        Err(error) => return Err(error),
    };
    let (status, message) = match &answer {
        Answer::Accepted => (200, None),
        Answer::Refused { status, message } => (*status, Some(message.clone())),
    };
    let told = Event::TriggerAnswered { status, message };
    let _ = sink.send(Observation::at_most(Stamp::now(), Source::Runner, told));
    Ok((sent, answer))
}

/// An Eviction without delete options. (`Api::evict` of kube 5.0 always sends some.)
async fn evict(pods: &Api<Pod>, pod: &str) -> Result<(), kube::Error> {
    let eviction = Eviction {
        metadata: ObjectMeta { name: Some(pod.to_owned()), ..ObjectMeta::default() },
        delete_options: None,
    };
    let created: Result<serde_json::Value, _> =
        pods.create_subresource("eviction", pod, &PostParams::default(), &eviction).await;
    created.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{Request, Response};
    use kube::client::Body;
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

    const AIM: Aim<'_> = Aim { namespace: "ns", pod: "p-1", deployment: "p" };

    #[tokio::test]
    async fn a_budgets_429_is_a_refusal_after_one_request() {
        let refusal = json!({
            "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 429,
            "message": "Cannot evict pod as it would violate the pod's disruption budget.",
            "reason": "TooManyRequests",
        });
        let (client, requests) = api(429, refusal);
        let (sink, mut seen) = mpsc::unbounded_channel();
        let (sent, answer) = fire(&client, Trigger::Evict, &AIM, &sink).await.expect("an answer");
        let Answer::Refused { status: 429, message } = answer else { panic!("{answer:?}") };
        assert!(message.contains("disruption budget"));
        assert_eq!(*requests.lock().unwrap(), ["POST /api/v1/namespaces/ns/pods/p-1/eviction"]);
        let first = seen.recv().await.expect("the trigger");
        assert_eq!((first.at, first.bound), (sent, crate::observation::Bound::Exact));
        assert!(matches!(first.event, Event::TriggerSent { trigger } if trigger == "evict"));
        let second = seen.recv().await.expect("the answer");
        assert!(matches!(second.event, Event::TriggerAnswered { status: 429, .. }));
    }

    #[tokio::test]
    async fn each_trigger_is_one_request_of_its_own() {
        for (trigger, body, expected) in [
            (
                Trigger::Delete,
                json!({"metadata": {"name": "p-1"}, "kind": "Pod", "apiVersion": "v1"}),
                "DELETE /api/v1/namespaces/ns/pods/p-1",
            ),
            (
                Trigger::Evict,
                json!({"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 201}),
                "POST /api/v1/namespaces/ns/pods/p-1/eviction",
            ),
            (
                Trigger::ScaleToZero,
                json!({"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": {}}),
                "PATCH /apis/apps/v1/namespaces/ns/deployments/p/scale",
            ),
        ] {
            let (client, requests) = api(200, body);
            let (sink, _seen) = mpsc::unbounded_channel();
            let (_, answer) = fire(&client, trigger, &AIM, &sink).await.expect("an answer");
            assert_eq!(answer, Answer::Accepted);
            assert_eq!(*requests.lock().unwrap(), [expected]);
        }
    }
}
