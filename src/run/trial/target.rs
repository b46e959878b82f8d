//! The target before its trial: one pod, ready, ours, and its Service's only endpoint; then the other
//! replicas, beside it.

use std::collections::BTreeSet;
use std::time::Duration;

use kube::api::Api;
use tokio::time::timeout;

use super::{PREFLIGHT_LIMIT, Run};
use crate::observation::Target;
use crate::run::preflight::{self, Failure, held};
use crate::watch::{Log, PodState, PodsView};
use crate::workload::{CONTAINER, NAMESPACE};

/// How long a pod may take to become Ready.
const READY_LIMIT: Duration = Duration::from_secs(60);

impl Run<'_> {
    /// Waits until one pod is Ready and follows its log from the start of its container.
    pub(super) async fn target_ready(&mut self) -> Result<Target, Failure> {
        let started = self.pods.until(|view| {
            let mut live = view.live();
            live.any(|(_, pod)| pod.running.contains_key(CONTAINER))
        });
        let view = timeout(READY_LIMIT, started).await.ok().flatten();
        let view = view.ok_or_else(|| self.not_ready())?;
        let (uid, pod) = view
            .live()
            .find(|(_, pod)| pod.running.contains_key(CONTAINER))
            .map(|(uid, pod)| (uid.clone(), pod.clone()))
            .ok_or_else(|| self.not_ready())?;
        let api = Api::namespaced(self.context.cluster.client(), NAMESPACE);
        let log = Log { pod: pod.name.clone(), uid: uid.clone(), container: CONTAINER.to_owned() };
        self.log = Some(log.follow(api, self.sink.clone()));
        let ready = self.pods.until(|view| view.pods.get(&uid).is_some_and(|pod| pod.ready));
        if !matches!(timeout(READY_LIMIT, ready).await, Ok(Some(_))) {
            return Err(self.not_ready());
        }
        let view = self.pods.view();
        if view.live().count() != 1 {
            let names: Vec<_> = view.live().map(|(_, pod)| pod.name.as_str()).collect();
            return Err(preflight::target_ready(format!("pods {}", names.join(", "))));
        }
        let node = pod.node.unwrap_or_default();
        Ok(Target { pod: pod.name, uid, instance: String::new(), node, entry_node: String::new() })
    }

    fn not_ready(&self) -> Failure {
        preflight::target_ready(self.pods_told())
    }

    /// The pods that there are after the longest time that they may take.
    fn pods_told(&self) -> String {
        let view = self.pods.view();
        let told = |pod: &PodState| match (&pod.waiting, &pod.node) {
            _ if pod.ready => format!("{} ready", pod.name),
            (Some(reason), _) => format!("{} waiting: {reason}", pod.name),
            (None, None) => format!("{} not scheduled", pod.name),
            (None, Some(node)) => format!("{} not ready on {node}", pod.name),
        };
        let pods: Vec<String> = view.pods.values().map(told).collect();
        let found = if pods.is_empty() { "no pod".to_owned() } else { pods.join(", ") };
        format!("{found} after {} s", READY_LIMIT.as_secs())
    }

    /// Checks the pod's image and the build that its log names; gives the process's instance.
    pub(super) async fn build_is_ours(&mut self, uid: &str) -> Result<String, Failure> {
        let wanted = crate::workload::image::image_name();
        let view = self.pods.view();
        let image = view.pods.get(uid).and_then(|pod| pod.images.get(CONTAINER));
        if image.is_none_or(|image| !image.ends_with(&wanted)) {
            return Err(preflight::build_is_ours(format!("image {image:?}, not {wanted}")));
        }
        let Some(log) = &mut self.log else {
            return Err(preflight::build_is_ours("no log"));
        };
        let started = log.until(|view| view.started.is_some());
        let view = timeout(PREFLIGHT_LIMIT, started).await.ok().flatten();
        match view.and_then(|view| view.started) {
            Some(started) if started.version == env!("CARGO_PKG_VERSION") => {
                Ok(started.instance.clone())
            }
            Some(other) => Err(preflight::build_is_ours(format!("probe {}", other.version))),
            None => Err(preflight::build_is_ours("no line of the probe's log")),
        }
    }

    pub(super) async fn endpoint_is_target(&mut self, uid: &str) -> Result<(), Failure> {
        let only = self.slices.until(|view| view.ready() == [uid]);
        if matches!(timeout(PREFLIGHT_LIMIT, only).await, Ok(Some(_))) {
            return Ok(());
        }
        let ready = self.slices.view().ready().join(", ");
        Err(preflight::endpoint_is_target(format!("ready endpoints [{ready}], target {uid}")))
    }

    /// Has the other replicas made, now that the flows are held, and waits until they and the target
    /// are ready and nobody else is. Gives the UIDs of all of them.
    pub(super) async fn all_ready(&mut self, target: &Target) -> Result<BTreeSet<String>, Failure> {
        let config = &self.context.arm.config;
        let client = self.context.cluster.client();
        let replicas = config.pod.replicas;
        let mut all = BTreeSet::from([target.uid.clone()]);
        if replicas > 1 {
            let scaled = self.workload.scale_up(&client, &target.pod, replicas).await;
            scaled.map_err(|error| preflight::others_ready(error.to_string()))?;
            let wanted = replicas as usize;
            let ready = |view: &PodsView| {
                view.live().count() == wanted && view.live().all(|(_, pod)| pod.ready)
            };
            let Ok(Some(view)) = timeout(READY_LIMIT, self.pods.until(ready)).await else {
                return Err(preflight::others_ready(self.pods_told()));
            };
            all = view.live().map(|(uid, _)| uid.clone()).collect();
            let ready = self.slices.until(|view| view.ready_set() == all);
            if !(matches!(timeout(PREFLIGHT_LIMIT, ready).await, Ok(Some(_)))
                && all.contains(&target.uid))
            {
                let ready = self.slices.view().ready().join(", ");
                return Err(preflight::others_ready(format!("ready endpoints [{ready}]")));
            }
            let found = format!("target {} and {} others", target.pod, all.len() - 1);
            self.checks.push(held::others_ready(found));
        }
        if config.pod.disruption_budget.is_some() {
            let allowed = self.workload.budget_counts(&client, replicas).await;
            let allowed = allowed.map_err(|error| preflight::budget_counts(error.to_string()))?;
            let found = format!("{replicas} healthy, {allowed} disruptions allowed");
            self.checks.push(held::budget_counts(found));
        }
        Ok(all)
    }
}
