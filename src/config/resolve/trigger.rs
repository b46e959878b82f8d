//! The trigger, what it takes, and what it contradicts.

use std::time::Duration;

use super::{At, Resolver, secs};
use crate::config::scenario::{ClusterSpec, EnterBy, Flows, Via};
use crate::config::trigger::{Rollout, Share, Trigger};
use crate::config::value::Value;

/// How long to observe where nothing need end.
const OBSERVE_FOR: Duration = secs(30);
/// The same of a node that stops: the cluster misses it after 50 s (since 1.32, before after 40 s).
const OBSERVE_A_NODE_FOR: Duration = secs(90);

/// A trigger and what it takes.
pub(super) struct Triggering {
    pub trigger: Trigger,
    pub delete_grace: Option<Duration>,
    pub scale_to: Option<u32>,
    pub rollout: Option<Rollout>,
    pub observe_for: Option<Duration>,
}

impl Resolver<'_> {
    /// The trigger; `replicas` and `flows` are what it may contradict.
    pub(super) fn triggering(
        &mut self,
        replicas: Option<u32>,
        flows: Option<&Flows>,
        cluster: Option<&ClusterSpec>,
    ) -> Option<Triggering> {
        let trigger: Trigger = self.word("trigger", Trigger::Delete)?;
        let delete_grace = self.delete_grace(trigger);
        let scale_to = self.scale_to(trigger, replicas);
        let rollout = self.rollout(trigger);
        let observe_for = self.observe_for(trigger);
        if let Some(cluster) = cluster {
            self.nodes_for(trigger, flows, cluster);
        }
        Some(Triggering {
            trigger,
            delete_grace: delete_grace?,
            scale_to: scale_to?,
            rollout: rollout?,
            observe_for: observe_for?,
        })
    }

    /// Tells that a key which only one kind of trigger takes is set with another. Gives whether.
    fn goes_with(&mut self, key: &str, needs: &str, trigger: Trigger) -> bool {
        if !self.is_given(key) {
            return false;
        }
        let message = format!("`{key}` needs {needs}, and it is {:?}", trigger.name());
        let help = "take it out, or choose another trigger";
        self.blame([key, "trigger"], At::Key, message, help);
        true
    }

    fn delete_grace(&mut self, trigger: Trigger) -> Option<Option<Duration>> {
        let key = "delete_grace";
        if trigger != Trigger::DeleteGrace {
            let wrong = self.goes_with(key, "trigger = \"delete-grace\"", trigger);
            return if wrong { None } else { Some(None) };
        }
        if self.setting(key).is_some() {
            return self.time(key, Duration::ZERO).map(Some);
        }
        let message = "trigger = \"delete-grace\" without a delete_grace";
        let help = "set delete_grace to the deletion's own grace period, such as \"5s\"";
        self.blame(["trigger", key], At::Value, message.into(), help);
        None
    }

    fn scale_to(&mut self, trigger: Trigger, replicas: Option<u32>) -> Option<Option<u32>> {
        let key = "scale_to";
        if trigger != Trigger::ScaleDown {
            let wrong = self.goes_with(key, "trigger = \"scale-down\"", trigger);
            return if wrong { None } else { Some(None) };
        }
        let replicas = replicas?;
        if replicas < 2 {
            let message = format!(
                "trigger = \"scale-down\" needs 2 replicas or more, and pod.replicas is {replicas}{}",
                self.by_default("pod.replicas")
            );
            let help = "set pod.replicas to 2 or more, or use trigger = \"scale-to-zero\"";
            self.blame(["trigger", "pod.replicas"], At::Value, message, help);
            return None;
        }
        let scale_to = self.count(key, replicas - 1)?;
        if scale_to >= replicas {
            let message = format!("scale_to ({scale_to}) is not below pod.replicas ({replicas})");
            let help = "scaled to as many as there are, no pod would go";
            self.blame([key, "pod.replicas"], At::Value, message, help);
            return None;
        }
        Some(Some(scale_to))
    }

    fn rollout(&mut self, trigger: Trigger) -> Option<Option<Rollout>> {
        let [surge, unavailable] = ["rollout.max_surge", "rollout.max_unavailable"];
        if trigger != Trigger::Rollout {
            let mut wrong = false;
            for key in [surge, unavailable] {
                wrong |= self.goes_with(key, "trigger = \"rollout\"", trigger);
            }
            return if wrong { None } else { Some(None) };
        }
        let default = Rollout::default();
        let max_surge = self.share(surge, default.max_surge);
        let max_unavailable = self.share(unavailable, default.max_unavailable);
        let rollout = Rollout { max_surge: max_surge?, max_unavailable: max_unavailable? };
        if rollout.max_surge.is_nothing() && rollout.max_unavailable.is_nothing() {
            let message = "neither a surge nor a missing pod is allowed: no rollout could begin";
            let help = "let one of rollout.max_surge and rollout.max_unavailable be more than 0";
            self.blame([unavailable, surge], At::Value, message.into(), help);
            return None;
        }
        Some(Some(rollout))
    }

    fn share(&self, key: &str, default: Share) -> Option<Share> {
        self.get(key, default, |value| match value {
            Value::Share(share) => Some(*share),
            _ => None,
        })
    }

    fn observe_for(&mut self, trigger: Trigger) -> Option<Option<Duration>> {
        let key = "observe_for";
        if !trigger.is_open() {
            let wrong = self.goes_with(key, "a trigger that terminates no pod", trigger);
            return if wrong { None } else { Some(None) };
        }
        let default = match trigger {
            Trigger::NodeStop => OBSERVE_A_NODE_FOR,
            _ => OBSERVE_FOR,
        };
        self.time(key, default).map(Some)
    }

    /// Whether the cluster has the nodes that the trigger needs.
    fn nodes_for(&mut self, trigger: Trigger, flows: Option<&Flows>, cluster: &ClusterSpec) {
        let alone = match trigger {
            Trigger::DrainNode => "trigger = \"drain-node\" in a cluster of one node",
            Trigger::NodeStop => {
                "trigger = \"node-stop\" in a cluster of one node, which holds the API server"
            }
            _ => return,
        };
        if cluster.nodes < 2 {
            let help = "have at least 2 nodes";
            self.blame(["trigger", "cluster.nodes"], At::Value, alone.into(), help);
            return;
        }
        if trigger != Trigger::NodeStop {
            return;
        }
        // With two nodes the pod can only be on the second: the first is the control plane.
        let by_pod_node = match flows.map(|flows| &flows.enter_by) {
            Some(EnterBy::PodNode) => true,
            Some(EnterBy::Named(name)) => cluster.nodes == 2 && name == "node-2",
            _ => false,
        };
        if by_pod_node {
            let message = "trigger = \"node-stop\" with flows that enter by the pod's node: they \
                           would lose their way in, not their pod";
            let by_host_port = flows.is_some_and(|flows| flows.via == Via::HostPort);
            let help = match by_host_port {
                // From outside no other node leads there.
                true => "enter by \"other-node\", with flows.from set to \"node\" or \"pod\"",
                false => "enter by \"other-node\"",
            };
            self.blame(["flows.enter_by", "trigger"], At::Value, message.into(), help);
        }
    }
}
