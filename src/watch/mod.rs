//! Watches: what the Kubernetes API says, as it says it.
//!
//! Takes a client and a selector; gives observations on a [`Sink`] and the latest state on a
//! channel. The list-and-watch loop is our own, since its reconnects must be quick and each gap
//! must be recorded. Knows nothing of flows or of what the figures are used for.

mod log;
mod pods;
mod slices;

use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt};
use kube::Resource;
use kube::api::{Api, ListParams, WatchEvent, WatchParams};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::clock::Stamp;
use crate::observation::{Event, Observation, Seen, Sink, Source};

pub use log::{Log, LogView};
pub use pods::{PodState, PodsView};
pub use slices::{EndpointState, SlicesView};

/// A watch that runs until it is dropped.
pub struct Watching<V> {
    view: watch::Receiver<V>,
    lost: Lost,
    source: Source,
    task: AbortHandle,
}

/// Since when, and why, a watch sees nothing; `None` while it sees.
type Lost = Arc<Mutex<Option<(Stamp, String)>>>;

impl<V: Clone> Watching<V> {
    /// The latest state.
    pub fn view(&self) -> V {
        self.view.borrow().clone()
    }

    /// The gap that a watch is in now, which it could tell only once it were over.
    pub fn gap(&self) -> Option<Seen> {
        let lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (at, reason) = lost?;
        let gap = Event::WatchGap { until: Stamp::now(), reason };
        Some(Observation::at_most(at, self.source, gap))
    }

    /// Waits until the state satisfies a condition and gives it; `None` if the watch has ended.
    pub async fn until(&mut self, condition: impl FnMut(&V) -> bool) -> Option<V> {
        self.view.wait_for(condition).await.ok().map(|view| view.clone())
    }
}

impl<V> Drop for Watching<V> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What a watch makes of the objects that it is told of. One that is called with every object's
/// present state can tell a list from a watch event by nothing but the calls.
trait Subject: Send + 'static {
    /// The kind of object.
    type Object: Resource + Clone + DeserializeOwned + Debug + Send + 'static;
    /// The state that it keeps.
    type View: Clone + Default + Send + Sync + 'static;
    /// Which watch this is, in observations.
    const SOURCE: Source;

    /// An object is as given: new, changed or unchanged.
    fn present(&mut self, object: Self::Object, view: &mut Self::View) -> Vec<Event<Stamp>>;
    /// An object is gone.
    fn gone(&mut self, object: Self::Object, view: &mut Self::View) -> Vec<Event<Stamp>>;
    /// A new list is complete: what it did not hold is gone.
    fn listed(&mut self, view: &mut Self::View, names: &[String]) -> Vec<Event<Stamp>>;
    /// The first event has come through the watch itself.
    fn delivered(view: &mut Self::View);
}

/// The longest that a watch waits before it connects again.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// The shortest, after the first immediate try.
const SHORTEST_PAUSE: Duration = Duration::from_millis(20);

/// Starts the list-and-watch loop of a subject.
fn start<S: Subject>(
    api: Api<S::Object>,
    selector: String,
    subject: S,
    sink: Sink,
) -> Watching<S::View>
where
    <S::Object as Resource>::DynamicType: Default,
{
    let (publish, view) = watch::channel(S::View::default());
    let lost = Lost::default();
    let task = Loop { api, selector, subject, sink, publish, lost: Arc::clone(&lost) };
    let task = tokio::spawn(task.run()).abort_handle();
    Watching { view, lost, source: S::SOURCE, task }
}

struct Loop<S: Subject> {
    api: Api<S::Object>,
    selector: String,
    subject: S,
    sink: Sink,
    publish: watch::Sender<S::View>,
    lost: Lost,
}

/// Why a watch's stream is over.
enum Over {
    /// The server closed it; it can be taken up at the last version.
    Closed(String),
    /// The version is too old or the stream broke: a new list is needed.
    Broken(String),
}

impl<S: Subject> Loop<S> {
    async fn run(mut self) {
        let mut version: Option<String> = None;
        let mut pause = Duration::ZERO;
        loop {
            let began = Instant::now();
            let reason = match self.connect(&mut version).await {
                Over::Closed(reason) => reason,
                Over::Broken(reason) => {
                    version = None;
                    reason
                }
            };
            self.lost().get_or_insert((Stamp::now(), reason));
            // One that has stood for a while is taken up at once, one that falls at once is not.
            if began.elapsed() > LONGEST_PAUSE {
                pause = Duration::ZERO;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
        }
    }

    /// Lists where there is no version to go on from, then watches until the stream is over.
    async fn connect(&mut self, version: &mut Option<String>) -> Over {
        let from = match version.take() {
            Some(version) => version,
            None => {
                let params = ListParams::default().labels(&self.selector);
                match self.api.list(&params).await {
                    Ok(list) => {
                        let version = list.metadata.resource_version.clone().unwrap_or_default();
                        self.list(list.items);
                        version
                    }
                    Err(error) => return Over::Broken(format!("list: {error}")),
                }
            }
        };
        *version = Some(from.clone());
        let params = WatchParams::default().labels(&self.selector).timeout(290);
        let mut stream = match self.api.watch(&params, &from).await {
            Ok(stream) => stream.boxed(),
            Err(error) => return Over::Broken(format!("watch: {error}")),
        };
        let lost = self.lost().take();
        if let Some((at, reason)) = lost {
            let gap = Event::WatchGap { until: Stamp::now(), reason };
            self.emit(at, vec![gap]);
        }
        loop {
            let event = match stream.try_next().await {
                Ok(Some(event)) => event,
                Ok(None) => return Over::Closed("the server closed the stream".into()),
                Err(error) => return Over::Broken(error.to_string()),
            };
            let at = Stamp::now();
            let events = match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    *version = object.meta().resource_version.clone();
                    self.change(|subject, view| subject.present(object, view))
                }
                WatchEvent::Deleted(object) => {
                    *version = object.meta().resource_version.clone();
                    self.change(|subject, view| subject.gone(object, view))
                }
                WatchEvent::Bookmark(mark) => {
                    *version = Some(mark.metadata.resource_version);
                    continue;
                }
                WatchEvent::Error(status) => {
                    return Over::Broken(format!("{} {}", status.code, status.message));
                }
            };
            self.emit(at, events);
        }
    }

    fn lost(&self) -> MutexGuard<'_, Option<(Stamp, String)>> {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in a whole list.
    fn list(&mut self, items: Vec<S::Object>) {
        let at = Stamp::now();
        let names: Vec<String> = items.iter().filter_map(|o| o.meta().name.clone()).collect();
        let subject = &mut self.subject;
        let mut events = Vec::new();
        self.publish.send_modify(|view| {
            for object in items {
                events.extend(subject.present(object, view));
            }
            events.extend(subject.listed(view, &names));
        });
        self.emit(at, events);
    }

    fn change(
        &mut self,
        apply: impl FnOnce(&mut S, &mut S::View) -> Vec<Event<Stamp>>,
    ) -> Vec<Event<Stamp>> {
        let subject = &mut self.subject;
        let mut events = Vec::new();
        self.publish.send_modify(|view| {
            events = apply(subject, view);
            S::delivered(view);
        });
        events
    }

    /// Sends observations that arrived at `at`. A receiver that is gone wants no more of them.
    fn emit(&self, at: Stamp, events: Vec<Event<Stamp>>) {
        for event in events {
            let _ = self.sink.send(Observation::at_most(at.clone(), S::SOURCE, event));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::{Value, json};
    use std::collections::VecDeque;
    use tokio::sync::mpsc;

    fn pod(name: &str, version: &str) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "uid": format!("uid-{name}"), "resourceVersion": version},
        })
    }

    fn list(version: &str, items: Vec<Value>) -> String {
        let metadata = json!({"resourceVersion": version});
        json!({"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": items})
            .to_string()
    }

    fn event(kind: &str, object: Value) -> String {
        format!("{}\n", json!({"type": kind, "object": object}))
    }

    /// An API server that gives these answers, one a request, and then none; and what it was asked.
    fn api(
        answers: Vec<String>,
    ) -> (Api<k8s_openapi::api::core::v1::Pod>, Arc<Mutex<Vec<String>>>) {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&asked);
        let answers = Arc::new(Mutex::new(VecDeque::from(answers)));
        let service = tower::service_fn(move |request: Request<Body>| {
            let query = request.uri().query().unwrap_or_default();
            let version = query.split('&').find_map(|part| part.strip_prefix("resourceVersion="));
            let asked = if query.contains("watch=true") {
                format!("watch from {}", version.unwrap_or("?"))
            } else {
                "list".to_owned()
            };
            log.lock().expect("no panic while held").push(asked);
            let answer = answers.lock().expect("no panic while held").pop_front();
            async move {
                match answer {
                    Some(text) => Response::builder().body(Body::from(text.into_bytes())),
                    None => std::future::pending().await,
                }
            }
        });
        (Api::namespaced(kube::Client::new(service, "ns"), "ns"), asked)
    }

    async fn until_asked(asked: &Mutex<Vec<String>>, count: usize) -> Vec<String> {
        let enough = async {
            while asked.lock().expect("no panic while held").len() < count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), enough).await.expect("asked in time");
        asked.lock().expect("no panic while held").clone()
    }

    fn told(seen: &mut mpsc::UnboundedReceiver<crate::observation::Seen>) -> Vec<String> {
        let mut told = Vec::new();
        while let Ok(observation) = seen.try_recv() {
            told.push(match observation.event {
                Event::PodSeen { pod, .. } => format!("seen {pod}"),
                Event::PodGone { pod, .. } => format!("gone {pod}"),
                Event::WatchGap { reason, until } => {
                    assert!(observation.at <= until, "a gap ends after it began");
                    format!("gap: {reason}")
                }
                other => format!("{other:?}"),
            });
        }
        told
    }

    #[tokio::test]
    async fn a_version_that_is_too_old_leads_to_a_new_list_and_a_recorded_gap() {
        let expired = json!({
            "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 410,
            "message": "too old resource version", "reason": "Expired",
        });
        let (api, asked) = api(vec![
            list("5", vec![pod("a", "4")]),
            event("ADDED", pod("b", "6")) + &event("ERROR", expired),
            list("9", vec![pod("b", "6"), pod("c", "8")]),
        ]);
        let (sink, mut seen) = mpsc::unbounded_channel();
        let mut watching = Watching::pods(api, "app=x".into(), sink);
        let delivered = watching.until(|view| view.delivered);
        tokio::time::timeout(Duration::from_secs(10), delivered).await.expect("an event");
        assert_eq!(until_asked(&asked, 4).await, ["list", "watch from 5", "list", "watch from 9"]);
        // The gap is told once the new watch stands, which this server never lets it.
        assert_eq!(told(&mut seen), ["seen a", "seen b", "seen c", "gone a"]);
        let gap = watching.gap().expect("the gap that it is in");
        assert!(matches!(gap.event, Event::WatchGap { reason, .. } if reason.contains("too old")));
    }

    #[tokio::test]
    async fn a_stream_that_the_server_closes_is_taken_up_where_it_was() {
        let (api, asked) = api(vec![
            list("5", vec![]),
            event("ADDED", pod("a", "7")),
            event("DELETED", pod("a", "8")),
        ]);
        let (sink, mut seen) = mpsc::unbounded_channel();
        let watching = Watching::pods(api, "app=x".into(), sink);
        let asked = until_asked(&asked, 4).await;
        assert_eq!(asked, ["list", "watch from 5", "watch from 7", "watch from 8"]);
        assert_eq!(
            told(&mut seen),
            ["seen a", "gap: the server closed the stream", "gone a"],
            "the gap stands before what came after it",
        );
        drop(watching);
    }
}
