//! Triggers: what terminates the pod, or parts it from its clients.
//!
//! Takes a cluster, a scenario and the target. What a trigger needs is looked for beforehand
//! ([`prepare`]); then it is carried out, without retries ([`Prepared::fire`]), and says when that
//! began and what was answered. A refusal is an answer, not an error. What it has changed of the
//! cluster itself is changed back once the trial is over ([`undo`]).

mod deployment;
mod node;
mod pod;
mod service;

use crate::clock::Stamp;
use crate::cluster::{Cluster, ClusterError, NodeControl};
use crate::config::{Scenario, Trigger};
use crate::observation::{Event, Observation, Sink, Source};

/// What a trigger acts on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Aim {
    /// The namespace of all of it.
    pub namespace: String,
    /// The target pod's name.
    pub pod: String,
    /// Its UID.
    pub uid: String,
    /// The app's container in it.
    pub container: String,
    /// The node that it runs on.
    pub node: String,
    /// The node that the flows enter by.
    pub entry_node: String,
    /// The Deployment's and the Service's name.
    pub workload: String,
    /// The label selector of the trial's pods.
    pub selector: String,
}

/// What was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It was done.
    Accepted,
    /// The API refused: a disruption budget's 429, missing rights' 403. A status of 500 or more is no
    /// refusal: it does not tell what was done.
    Refused {
        /// The HTTP status.
        status: u16,
        /// The API's words.
        message: String,
    },
}

/// Why a trigger can't be used here; nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum Unfit {
    /// The provider has no power over nodes' processes.
    #[error("no power over the nodes' processes with this provider")]
    NoControl,
    /// The app's process was not found, or the provider tells of none.
    #[error("no process of container {container} of pod {pod} is known")]
    NoProcess {
        /// The pod.
        pod: String,
        /// The container.
        container: String,
    },
    /// The node must not be stopped.
    #[error("the target runs on {node}, which {why}")]
    Node {
        /// The target's node.
        node: String,
        /// What else it is.
        why: &'static str,
    },
    /// The API did not say what was to be known.
    #[error("the cluster's API: {0}")]
    Api(#[from] kube::Error),
}

/// Why it is not known what became of a trigger.
#[derive(Debug, thiserror::Error)]
pub enum FireError {
    /// The API gave no answer, or one that does not tell what was done.
    #[error("{0}")]
    Api(kube::Error),
    /// The provider could not do it, or not all of it.
    #[error("{0}")]
    Provider(ClusterError),
    /// The process could not be killed.
    #[error("the app's process: {0}")]
    Kill(nix::Error),
}

/// A trigger that has all it needs.
pub struct Prepared<'a> {
    client: kube::Client,
    trigger: Trigger,
    aim: &'a Aim,
    act: Act<'a>,
}

/// What is to be done.
enum Act<'a> {
    Delete { grace_s: Option<u32> },
    Evict,
    Scale { replicas: u32 },
    Rollout,
    Drain { pods: Vec<String> },
    Relabel,
    FailReadiness,
    DeleteService,
    Kill { pid: i32 },
    RestartKubeProxy(&'a dyn NodeControl),
    StopNode(&'a dyn NodeControl),
}

/// Looks for all that a scenario's trigger needs.
///
/// # Errors
/// What is missing.
pub async fn prepare<'a>(
    cluster: &'a dyn Cluster,
    config: &Scenario,
    aim: &'a Aim,
) -> Result<Prepared<'a>, Unfit> {
    let client = cluster.client();
    let control = || cluster.control().ok_or(Unfit::NoControl);
    let act = match config.trigger {
        Trigger::Delete => Act::Delete { grace_s: None },
        Trigger::ForceDelete => Act::Delete { grace_s: Some(0) },
        // At most a day, so that it fits.
        Trigger::DeleteGrace => Act::Delete { grace_s: Some(config.grace().as_secs() as u32) },
        Trigger::Evict => Act::Evict,
        Trigger::ScaleToZero => Act::Scale { replicas: 0 },
        Trigger::ScaleDown => Act::Scale { replicas: config.scale_to.unwrap_or(0) },
        Trigger::Rollout => Act::Rollout,
        Trigger::DrainNode => Act::Drain { pods: node::pods_on(&client, aim).await? },
        Trigger::Relabel => Act::Relabel,
        Trigger::ReadinessFail => Act::FailReadiness,
        Trigger::DeleteService => Act::DeleteService,
        Trigger::Crash => Act::Kill { pid: pod::process(cluster, aim).await? },
        Trigger::RestartKubeProxy => Act::RestartKubeProxy(control()?),
        Trigger::NodeStop => Act::StopNode(node::may_stop(control()?, cluster.nodes(), aim)?),
    };
    Ok(Prepared { client, trigger: config.trigger, aim, act })
}

/// Changes back what a trial's trigger has changed of its node. `node` is the target's, where the
/// trial came so far.
///
/// # Errors
/// The API did not take it.
pub async fn undo(
    client: &kube::Client,
    trigger: Trigger,
    node: Option<&str>,
) -> Result<(), kube::Error> {
    match (trigger, node) {
        (Trigger::DrainNode, Some(node)) => node::cordon(client, node, false).await,
        _ => Ok(()),
    }
}

impl Prepared<'_> {
    /// What was found, for the record.
    pub fn told(&self) -> String {
        let Aim { pod, node, .. } = self.aim;
        let on = match &self.act {
            Act::Drain { pods } => format!("{} on {node}", pods.join(", ")),
            Act::Kill { pid } => format!("process {pid} of {pod}"),
            Act::StopNode(_) => node.clone(),
            Act::RestartKubeProxy(_) => "each node".to_owned(),
            _ => pod.clone(),
        };
        format!("{} of {on}", self.trigger.name())
    }

    /// Carries it out. Gives the instant just before its first request or act, the zero of the
    /// trial, and the answer.
    ///
    /// # Errors
    /// No answer came, so that it is not known what was done.
    pub async fn fire(&self, sink: &Sink) -> Result<(Stamp, Answer), FireError> {
        let sent = Stamp::now();
        let told = Event::TriggerSent { trigger: self.trigger.name().to_owned() };
        // A receiver that is gone wants no observations.
        let _ = sink.send(Observation::exact(sent.clone(), Source::Runner, told));
        let (answer, told) = match self.carry_out().await? {
            Done::ByApi(Ok(())) => {
                (Answer::Accepted, Event::TriggerAnswered { status: 200, message: None })
            }
            Done::ByApi(Err(kube::Error::Api(refusal))) if refusal.code < 500 => {
                let (status, message) = (refusal.code, refusal.message.clone());
                let told = Event::TriggerAnswered { status, message: Some(message.clone()) };
                (Answer::Refused { status, message }, told)
            }
            Done::ByApi(Err(error)) => return Err(FireError::Api(error)),
            Done::Otherwise(text) => (Answer::Accepted, Event::TriggerDone { text }),
        };
        let _ = sink.send(Observation::at_most(Stamp::now(), Source::Runner, told));
        Ok((sent, answer))
    }

    async fn carry_out(&self) -> Result<Done, FireError> {
        let (client, aim) = (&self.client, self.aim);
        Ok(match &self.act {
            Act::Delete { grace_s } => Done::ByApi(pod::delete(client, aim, *grace_s).await),
            Act::Evict => Done::ByApi(pod::evict(client, &aim.namespace, &aim.pod).await),
            Act::Scale { replicas } => Done::ByApi(deployment::scale(client, aim, *replicas).await),
            Act::Rollout => Done::ByApi(deployment::change_template(client, aim).await),
            Act::Drain { pods } => Done::ByApi(node::drain(client, aim, pods).await),
            Act::Relabel => Done::ByApi(service::relabel(client, aim).await),
            Act::FailReadiness => Done::ByApi(service::fail_readiness(client, aim).await),
            Act::DeleteService => Done::ByApi(service::delete(client, aim).await),
            Act::Kill { pid } => {
                pod::kill(*pid).map_err(FireError::Kill)?;
                Done::Otherwise(format!("process {pid} was sent SIGKILL"))
            }
            Act::RestartKubeProxy(control) => {
                control.restart_kube_proxy().await.map_err(FireError::Provider)?;
                Done::Otherwise("kube-proxy is up again on each node".to_owned())
            }
            Act::StopNode(control) => {
                control.stop_node(&aim.node).await.map_err(FireError::Provider)?;
                Done::Otherwise(format!("{} has no process left", aim.node))
            }
        })
    }
}

/// What was done, and by whom.
enum Done {
    /// The API's answer.
    ByApi(Result<(), kube::Error>),
    /// By nobody who answers; how, in words.
    Otherwise(String),
}

#[cfg(test)]
mod tests;
