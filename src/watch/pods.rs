//! The watch on Pods.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::api::Api;

use super::{Subject, Watching, start};
use crate::clock::Stamp;
use crate::observation::{Event, Sink, Source};

/// The pods that were seen, by UID; those that are gone too.
#[derive(Clone, Debug, Default)]
pub struct PodsView {
    /// By UID.
    pub pods: BTreeMap<String, PodState>,
    /// Whether an event has come through the watch itself, not only by the list.
    pub delivered: bool,
}

/// What is known of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodState {
    /// Its name.
    pub name: String,
    /// The node it is scheduled on.
    pub node: Option<String>,
    /// Its Ready condition.
    pub ready: bool,
    /// Whether it has a deletion timestamp.
    pub terminating: bool,
    /// Restarts of its running containers, by container.
    pub running: BTreeMap<String, i32>,
    /// The ids that their runtime gave its containers, by container: a restarted one has another.
    pub ids: BTreeMap<String, String>,
    /// Exit codes of its containers that have terminated, with their restart count, by container.
    pub terminated: BTreeMap<String, (i32, i32)>,
    /// The images its containers were started from, as their status says.
    pub images: BTreeMap<String, String>,
    /// Why a container waits, as the kubelet says: `ErrImageNeverPull: …`.
    pub waiting: Option<String>,
    /// Whether its object is gone.
    pub gone: bool,
}

impl PodsView {
    /// Pods that are neither terminating nor gone.
    pub fn live(&self) -> impl Iterator<Item = (&String, &PodState)> {
        self.pods.iter().filter(|(_, pod)| !pod.gone && !pod.terminating)
    }
}

impl Watching<PodsView> {
    /// Watches the pods with these labels.
    pub fn pods(api: Api<Pod>, selector: String, sink: Sink) -> Self {
        start(api, selector, Pods, sink)
    }
}

struct Pods;

impl Subject for Pods {
    type Object = Pod;
    type View = PodsView;
    const SOURCE: Source = Source::PodWatch;

    fn present(&mut self, object: Pod, view: &mut PodsView) -> Vec<Event<Stamp>> {
        let Some(uid) = object.metadata.uid.clone() else { return Vec::new() };
        let mut events = Vec::new();
        let name = object.metadata.name.clone().unwrap_or_default();
        let state = view.pods.entry(uid.clone()).or_insert_with(|| {
            events.push(Event::PodSeen { pod: name.clone(), uid: uid.clone() });
            PodState { name: name.clone(), ..PodState::default() }
        });
        update(state, &object, &uid, &mut events);
        events
    }

    fn gone(&mut self, object: Pod, view: &mut PodsView) -> Vec<Event<Stamp>> {
        // The last state that the server knew comes with the deletion, the exit code in it.
        let mut events = self.present(object.clone(), view);
        let Some(uid) = object.metadata.uid else { return events };
        if let Some(state) = view.pods.get_mut(&uid) {
            events.extend(vanish(state, &uid));
        }
        events
    }

    fn listed(&mut self, view: &mut PodsView, names: &[String]) -> Vec<Event<Stamp>> {
        let missing = view.pods.iter_mut().filter(|(_, pod)| !names.contains(&pod.name));
        missing.flat_map(|(uid, pod)| vanish(pod, uid)).collect()
    }

    fn delivered(view: &mut PodsView) {
        view.delivered = true;
    }
}

fn vanish(state: &mut PodState, uid: &str) -> Option<Event<Stamp>> {
    let first = !std::mem::replace(&mut state.gone, true);
    first.then(|| Event::PodGone { pod: state.name.clone(), uid: uid.to_owned() })
}

/// Takes an object's state in and says what is new in it.
fn update(state: &mut PodState, object: &Pod, uid: &str, events: &mut Vec<Event<Stamp>>) {
    let (pod, uid) = (state.name.clone(), uid.to_owned());
    let node = object.spec.as_ref().and_then(|spec| spec.node_name.clone());
    if let (None, Some(node)) = (&state.node, &node) {
        let (pod, uid) = (pod.clone(), uid.clone());
        events.push(Event::PodScheduled { pod, uid, node: node.clone() });
    }
    state.node = node;
    if object.metadata.deletion_timestamp.is_some() && !state.terminating {
        state.terminating = true;
        let grace_s = object.metadata.deletion_grace_period_seconds;
        events.push(Event::PodTerminating { pod: pod.clone(), uid: uid.clone(), grace_s });
    }
    let Some(status) = &object.status else { return };
    state.waiting = None;
    for container in status.container_statuses.iter().flatten() {
        update_container(state, container, &uid, events);
    }
    let conditions = status.conditions.iter().flatten();
    let ready = conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == "True");
    if ready != state.ready {
        state.ready = ready;
        events.push(Event::PodReady { pod, uid, ready });
    }
}

fn update_container(
    state: &mut PodState,
    status: &ContainerStatus,
    uid: &str,
    events: &mut Vec<Event<Stamp>>,
) {
    let (pod, uid, container) = (state.name.clone(), uid.to_owned(), status.name.clone());
    let restarts = status.restart_count;
    state.images.insert(container.clone(), status.image.clone());
    // `containerd://ID`
    if let Some((_, id)) = status.container_id.as_deref().and_then(|id| id.split_once("://")) {
        state.ids.insert(container.clone(), id.to_owned());
    }
    let Some(now) = &status.state else { return };
    if let Some(waiting) = &now.waiting {
        let reason = waiting.reason.clone().unwrap_or_default();
        let message = waiting.message.clone().unwrap_or_default();
        state.waiting = Some(format!("{reason}: {message}").trim_end_matches(": ").to_owned());
    }
    // A container that was restarted between two events shows its end in the last state only.
    let ended = now.terminated.as_ref().map(|t| (t, restarts));
    let before = status.last_state.as_ref().and_then(|last| last.terminated.as_ref());
    let ended = ended.or(before.map(|t| (t, restarts - 1)));
    if let Some((end, restarts)) = ended
        && state.terminated.get(&container).is_none_or(|(_, seen)| *seen < restarts)
    {
        state.terminated.insert(container.clone(), (end.exit_code, restarts));
        events.push(Event::ContainerTerminated {
            pod: pod.clone(),
            uid: uid.clone(),
            container: container.clone(),
            exit_code: end.exit_code,
            reason: end.reason.clone(),
        });
    }
    if now.running.is_some() {
        if state.running.insert(container.clone(), restarts) != Some(restarts) {
            events.push(Event::ContainerStarted { pod, uid, container, restarts });
        }
    } else {
        state.running.remove(&container);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(status: Value, deleting: bool) -> Pod {
        let mut pod = json!({
            "metadata": {"name": "probe-1", "uid": "u1"},
            "spec": {"nodeName": "node-2", "containers": []},
            "status": status,
        });
        if deleting {
            pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            pod["metadata"]["deletionGracePeriodSeconds"] = json!(30);
        }
        serde_json::from_value(pod).expect("a pod")
    }

    fn status(ready: &str, state: Value, last: Value, restarts: i32) -> Value {
        json!({
            "conditions": [{"type": "Ready", "status": ready}],
            "containerStatuses": [{
                "name": "probe", "image": "probe:1", "imageID": "", "ready": ready == "True",
                "restartCount": restarts, "state": state, "lastState": last,
            }],
        })
    }

    fn whats(events: &[Event<Stamp>]) -> Vec<String> {
        events
            .iter()
            .map(|e| match e {
                Event::PodSeen { .. } => "seen".into(),
                Event::PodScheduled { node, .. } => format!("on {node}"),
                Event::ContainerStarted { restarts, .. } => format!("started {restarts}"),
                Event::PodReady { ready, .. } => format!("ready {ready}"),
                Event::PodTerminating { grace_s, .. } => format!("terminating {grace_s:?}"),
                Event::ContainerTerminated { exit_code, .. } => format!("exit {exit_code}"),
                Event::PodGone { .. } => "gone".into(),
                other => format!("{other:?}"),
            })
            .collect()
    }

    #[test]
    fn each_change_is_told_once() {
        let (mut subject, mut view) = (Pods, PodsView::default());
        let running = json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}});
        let up = || pod(status("True", running.clone(), json!({}), 0), false);
        let first = subject.present(up(), &mut view);
        assert_eq!(whats(&first), ["seen", "on node-2", "started 0", "ready true"]);
        assert_eq!(whats(&subject.present(up(), &mut view)), Vec::<String>::new());
        let ended = json!({"terminated": {"exitCode": 137, "reason": "Error"}});
        let down = || pod(status("False", ended.clone(), json!({}), 0), true);
        let end = subject.gone(down(), &mut view);
        assert_eq!(whats(&end), ["terminating Some(30)", "exit 137", "ready false", "gone"]);
        assert!(subject.listed(&mut view, &[]).is_empty(), "gone is told once");
    }

    #[test]
    fn a_restart_between_two_events_shows_the_exit_and_the_start() {
        let (mut subject, mut view) = (Pods, PodsView::default());
        let running = json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}});
        subject.present(pod(status("True", running.clone(), json!({}), 0), false), &mut view);
        let last = json!({"terminated": {"exitCode": 2}});
        let again = subject.present(pod(status("True", running, last, 1), false), &mut view);
        assert_eq!(whats(&again), ["exit 2", "started 1"]);
    }

    #[test]
    fn what_a_new_list_lacks_is_gone() {
        let (mut subject, mut view) = (Pods, PodsView::default());
        subject.present(pod(json!({}), false), &mut view);
        assert_eq!(whats(&subject.listed(&mut view, &["other".into()])), ["gone"]);
        assert_eq!(view.live().count(), 0);
    }
}
