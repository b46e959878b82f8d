//! The watch on EndpointSlices.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::Api;

use super::{Subject, Watching, start};
use crate::clock::Stamp;
use crate::observation::{Event, Sink, Source};

/// The endpoints that are listed now, by slice and pod UID.
#[derive(Clone, Debug, Default)]
pub struct SlicesView {
    /// By slice's name, then by pod UID.
    pub slices: BTreeMap<String, BTreeMap<String, EndpointState>>,
    /// Since when the endpoints that are ready have been these, and at least one.
    pub ready_since: Option<Stamp>,
    /// Whether an event has come through the watch itself, not only by the list.
    pub delivered: bool,
}

/// An endpoint's pod and conditions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointState {
    /// The pod's name.
    pub pod: String,
    /// The `ready` condition.
    pub ready: bool,
    /// The `serving` condition.
    pub serving: bool,
    /// The `terminating` condition.
    pub terminating: bool,
}

impl SlicesView {
    /// UIDs of the pods whose endpoints are ready.
    pub fn ready(&self) -> Vec<&str> {
        let all = self.slices.values().flatten();
        all.filter(|(_, endpoint)| endpoint.ready).map(|(uid, _)| uid.as_str()).collect()
    }

    /// The same, each once: a pod may stand in several slices.
    pub fn ready_set(&self) -> BTreeSet<String> {
        self.ready().into_iter().map(str::to_owned).collect()
    }

    /// Applies a change to one slice, keeping account of when the ready endpoints changed.
    fn change(
        &mut self,
        slice: String,
        now: Option<BTreeMap<String, EndpointState>>,
    ) -> Vec<Event<Stamp>> {
        let ready = self.ready().into_iter().map(str::to_owned).collect::<Vec<_>>();
        let events = replace(
            self.slices.entry(slice.clone()).or_default(),
            now.clone().unwrap_or_default(),
            &slice,
        );
        if now.is_none() {
            self.slices.remove(&slice);
        }
        if self.ready() != ready {
            self.ready_since = (!self.ready().is_empty()).then(Stamp::now);
        }
        events
    }

    /// Whether an endpoint of this pod is listed.
    pub fn lists(&self, uid: &str) -> bool {
        self.slices.values().any(|slice| slice.contains_key(uid))
    }
}

impl Watching<SlicesView> {
    /// Watches the slices with these labels.
    pub fn slices(api: Api<EndpointSlice>, selector: String, sink: Sink) -> Self {
        start(api, selector, Slices, sink)
    }
}

struct Slices;

impl Subject for Slices {
    type Object = EndpointSlice;
    type View = SlicesView;
    const SOURCE: Source = Source::EndpointsliceWatch;

    fn present(&mut self, object: EndpointSlice, view: &mut SlicesView) -> Vec<Event<Stamp>> {
        let name = object.metadata.name.clone().unwrap_or_default();
        view.change(name, Some(endpoints(&object)))
    }

    fn gone(&mut self, object: EndpointSlice, view: &mut SlicesView) -> Vec<Event<Stamp>> {
        let name = object.metadata.name.clone().unwrap_or_default();
        view.change(name, None)
    }

    fn listed(&mut self, view: &mut SlicesView, names: &[String]) -> Vec<Event<Stamp>> {
        let missing: Vec<_> = view.slices.keys().filter(|n| !names.contains(n)).cloned().collect();
        missing.into_iter().flat_map(|name| view.change(name, None)).collect()
    }

    fn delivered(view: &mut SlicesView) {
        view.delivered = true;
    }
}

/// A slice's endpoints that are pods. Conditions that are not set mean what the API says they do:
/// `ready` and `serving` true, `terminating` false.
fn endpoints(object: &EndpointSlice) -> BTreeMap<String, EndpointState> {
    let mut found = BTreeMap::new();
    for endpoint in &object.endpoints {
        let Some(target) = &endpoint.target_ref else { continue };
        let Some(uid) = target.uid.clone() else { continue };
        let conditions = endpoint.conditions.clone().unwrap_or_default();
        let ready = conditions.ready.unwrap_or(true);
        let state = EndpointState {
            pod: target.name.clone().unwrap_or_default(),
            ready,
            serving: conditions.serving.unwrap_or(ready),
            terminating: conditions.terminating.unwrap_or(false),
        };
        found.insert(uid, state);
    }
    found
}

/// Puts the endpoints as they are now in the place of those before and says what changed.
fn replace(
    before: &mut BTreeMap<String, EndpointState>,
    now: BTreeMap<String, EndpointState>,
    slice: &str,
) -> Vec<Event<Stamp>> {
    let mut events = Vec::new();
    for (uid, state) in before.iter().filter(|(uid, _)| !now.contains_key(*uid)) {
        events.push(Event::EndpointGone {
            slice: slice.to_owned(),
            pod: state.pod.clone(),
            uid: uid.clone(),
        });
    }
    for (uid, state) in now.iter().filter(|(uid, state)| before.get(*uid) != Some(state)) {
        events.push(Event::Endpoint {
            slice: slice.to_owned(),
            pod: state.pod.clone(),
            uid: uid.clone(),
            ready: state.ready,
            serving: state.serving,
            terminating: state.terminating,
        });
    }
    *before = now;
    events
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn slice(name: &str, endpoints: serde_json::Value) -> EndpointSlice {
        serde_json::from_value(json!({
            "metadata": {"name": name}, "addressType": "IPv4", "endpoints": endpoints,
        }))
        .expect("a slice")
    }

    fn endpoint(uid: &str, conditions: serde_json::Value) -> serde_json::Value {
        let target = json!({"kind": "Pod", "name": format!("pod-{uid}"), "uid": uid});
        json!({"addresses": ["10.0.0.1"], "conditions": conditions, "targetRef": target})
    }

    #[test]
    fn serving_turning_false_is_told() {
        let (mut subject, mut view) = (Slices, SlicesView::default());
        let draining = json!({"ready": false, "serving": true, "terminating": true});
        let failed = json!({"ready": false, "serving": false, "terminating": true});
        subject.present(slice("s", json!([endpoint("a", json!({"ready": true}))])), &mut view);
        assert_eq!(view.ready(), ["a"]);
        let events = subject.present(slice("s", json!([endpoint("a", draining)])), &mut view);
        assert!(matches!(&events[..], [Event::Endpoint { ready: false, serving: true, .. }]));
        let events = subject.present(slice("s", json!([endpoint("a", failed)])), &mut view);
        assert!(matches!(&events[..], [Event::Endpoint { serving: false, .. }]));
        assert!(view.ready().is_empty() && view.lists("a"));
    }

    #[test]
    fn an_endpoint_that_leaves_or_whose_slice_goes_is_gone() {
        let (mut subject, mut view) = (Slices, SlicesView::default());
        let both = json!([endpoint("a", json!({})), endpoint("b", json!({}))]);
        subject.present(slice("s", both), &mut view);
        let only_b = slice("s", json!([endpoint("b", json!({}))]));
        let events = subject.present(only_b.clone(), &mut view);
        assert!(matches!(&events[..], [Event::EndpointGone { uid, .. }] if uid == "a"));
        let events = subject.gone(only_b, &mut view);
        assert!(matches!(&events[..], [Event::EndpointGone { uid, .. }] if uid == "b"));
        assert!(!view.lists("b"));
    }

    #[test]
    fn null_conditions_are_what_the_api_says_they_are() {
        let (mut subject, mut view) = (Slices, SlicesView::default());
        let events = subject.present(slice("s", json!([endpoint("a", json!({}))])), &mut view);
        let told = &events[0];
        assert!(matches!(
            told,
            Event::Endpoint { ready: true, serving: true, terminating: false, .. }
        ));
    }
}
