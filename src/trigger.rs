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
            deployments
                .patch_scale(aim.deployment, &PatchParams::default(), &patch)
                .await
                .map(drop)
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
    let body = serde_json::to_vec(&eviction).map_err(kube::Error::SerdeError)?;
    let created: Result<serde_json::Value, _> =
        pods.create_subresource("eviction", pod, &PostParams::default(), body).await;
    created.map(drop)
}
