//! Preflight: what must hold before a trial may begin, each check with its name and a hint.
//!
//! Takes the watches' views and the flows' states; gives the first check that does not hold.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use super::entry::Entry;
use crate::cluster::Node;
use crate::config::EnterBy;
use crate::observation::Identity;

/// A check that did not hold: the trial is aborted with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The check's name: `endpoint-is-target`.
    pub check: &'static str,
    /// What must hold.
    pub invariant: &'static str,
    /// What was found instead.
    pub found: String,
    /// What may help.
    pub hint: &'static str,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failure { check, invariant, found, hint } = self;
        write!(f, "{check}: {invariant}; found {found} ({hint})")
    }
}

/// The checks, by name, with their invariant and hint: as functions that give the failure, and in
/// `held` as functions that give what the record says of a check that held.
macro_rules! checks {
    ($($(#[$doc:meta])* $function:ident = $name:literal, $invariant:literal, $hint:literal;)*) => {
        $($(#[$doc])*
        pub fn $function(found: impl Into<String>) -> Failure {
            Failure { check: $name, invariant: $invariant, found: found.into(), hint: $hint }
        })*

        /// Checks that held, each with what was found.
        #[allow(dead_code)] // some are of value only where they fail
        pub mod held {
            use crate::record::Check;

            $(/// It held.
            pub fn $function(found: impl Into<String>) -> Check {
                let (check, invariant) = ($name.to_owned(), $invariant.to_owned());
                Check { check, invariant, found: found.into() }
            })*
        }
    };
}

checks! {
    /// The workload could not be created.
    workload_created = "workload-created", "the API takes the Deployment and the Service",
        "the cluster's logs say more";
    /// The pod did not become ready.
    target_ready = "target-ready", "one pod becomes Ready within its time",
        "is the node able to start containers? the cluster's logs say more";
    /// Not exactly one ready endpoint, or another pod's.
    endpoint_is_target = "endpoint-is-target", "exactly one endpoint is ready, and it is the target's, by UID",
        "does another pod carry the same labels?";
    /// A watch is connected but has told nothing.
    watches_deliver = "watches-deliver", "each watch has delivered an event, not only connected",
        "is the API server overloaded?";
    /// The pod runs another image or build.
    build_is_ours = "build-is-ours", "the pod runs the image and the probe of this build",
        "an image of the same name was loaded by somebody else";
    /// The limits of this machine are below what the flows need.
    limits = "limits", "this machine has descriptors, ports, memory and room in connection tracking for the flows",
        "use fewer flows, or raise what is short";
    /// The nodes' connection tracking has no room for the flows.
    conntrack_room = "conntrack-room", "each node's connection tracking has room for two entries a flow",
        "use fewer flows, or raise net.netfilter.nf_conntrack_max on this machine";
    /// No node fits `flows.enter_by`.
    entry_node = "entry-node", "there is a node that the flows can enter by",
        "set flows.enter_by to \"pod-node\" or give the cluster another node";
    /// What the flows go to has no address.
    entry_address = "entry-address", "what the flows go to has an address",
        "the cluster's logs say more";
    /// There is no place for the flows' clients.
    client_stands = "client-stands", "the clients' net namespace can be entered",
        "flows.from = \"outside\" needs none";
    /// The entry node does not let a dial through to the target.
    rules_programmed = "rules-programmed", "a dial by the entry node is answered by the target",
        "kube-proxy may be behind or down";
    /// A flow had no answer.
    flows_answered = "flows-answered", "every flow is answered",
        "is something between this machine and the node dropping packets?";
    /// A flow was answered by somebody else.
    flows_by_target = "flows-by-target", "every flow is answered by the target's process",
        "an old entry of connection tracking may lead elsewhere";
    /// The pod's clock can't be related to ours.
    clocks_bounded = "clocks-bounded", "the pod's clock is ours or is related to it within a bound",
        "the probe did not tell its boot_id";
    /// Something ended or changed while the flows had to live.
    settled = "settled", "every flow lives, unchanged, through the settle time",
        "something other than the trigger touches the flows; a longer settle shows whether it recurs";
    /// A new connection was not accepted, or by somebody else.
    dials_accepted = "dials-accepted", "each new connection is accepted by a ready pod through the settle time",
        "something other than the trigger touches the Service; a longer settle shows whether it recurs";
    /// New connections failed on this machine.
    dials_made = "dials-made", "new connections do not fail on this machine",
        "make fewer of them a second, or raise the limit on descriptors";
    /// This machine did not send what was due.
    kept_up = "kept-up", "this machine sends the heartbeats when they are due",
        "use fewer flows or longer intervals, or end what else keeps the processors busy";
    /// Our own buffers dropped datagrams.
    own_drops = "own-drops", "our own buffers drop at most one in a thousand of the datagrams in settle",
        "use fewer flows or longer intervals, or end what else keeps the processors busy";
    /// The other replicas are not there.
    others_ready = "others-ready", "the target and the other replicas are the ready endpoints, and nobody else is",
        "is there room for all replicas? the cluster's logs say more";
    /// The disruption budget has no count of the pods.
    budget_counts = "budget-counts", "the disruption budget has counted the pods, so that what it refuses is its own",
        "the cluster's logs say more";
    /// The trigger can't be used on this target or with this provider.
    trigger_possible = "trigger-possible", "the trigger has what it needs",
        "choose another trigger or provider";
    /// The trigger got no answer.
    trigger_answered = "trigger-answered", "the trigger is answered",
        "the API server may be down; its logs say more";
}

/// The node that flows enter by.
pub fn node_to_enter_by<'a>(
    nodes: &'a [Node],
    by: &EnterBy,
    target: &str,
) -> Result<&'a Node, Failure> {
    let found = match by {
        EnterBy::PodNode => nodes.iter().find(|node| node.name == target),
        EnterBy::OtherNode => nodes.iter().find(|node| node.name != target),
        EnterBy::Named(name) => nodes.iter().find(|node| node.name == *name),
    };
    found.ok_or_else(|| {
        let names: Vec<_> = nodes.iter().map(|node| node.name.as_str()).collect();
        let wanted = String::from(by.clone());
        entry_node(format!("nodes {} for {wanted}, pod on {target}", names.join(", ")))
    })
}

/// Checks that all flows were answered first by the target's process.
pub fn by_target<'a>(
    uid: &str,
    instance: &str,
    answered: impl Iterator<Item = (&'a str, Option<&'a Identity>)>,
) -> Result<(), Failure> {
    let mut others = BTreeSet::new();
    for (flow, by) in answered {
        match by {
            Some(by) if by.uid == uid && by.instance == instance => {}
            Some(by) => {
                others.insert(format!("{flow} answered by {} ({})", by.pod, by.instance));
            }
            None => {
                others.insert(format!("{flow} without an answer"));
            }
        }
    }
    let list: Vec<_> = others.into_iter().take(3).collect();
    if list.is_empty() { Ok(()) } else { Err(flows_by_target(list.join(", "))) }
}

/// Dials until the target answers, every 25 ms, at most for `limit`.
pub async fn dial(entry: &Entry, uid: &str, limit: Duration) -> Result<(), Failure> {
    let (from, remote) = (entry.namespace.as_ref(), entry.tcp);
    let mut last = "no answer".to_owned();
    let attempts = async {
        loop {
            match crate::flow::dial_in(from, remote, Duration::from_secs(1)).await {
                Ok(by) if by.uid == uid => return,
                Ok(by) => last = format!("an answer by {} at {remote}", by.pod),
                Err(error) => last = format!("{error} at {remote}"),
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
    };
    let in_time = tokio::time::timeout(limit, attempts).await.is_ok();
    if in_time { Ok(()) } else { Err(rules_programmed(last)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(uid: &str, instance: &str) -> Identity {
        Identity { pod: "p".into(), uid: uid.into(), instance: instance.into() }
    }

    #[test]
    fn an_answer_by_another_instance_of_the_same_pod_is_not_the_targets() {
        let (a, b) = (identity("u", "1"), identity("u", "2"));
        let answered = [("tcp-1", Some(&a)), ("udp-1", Some(&b))];
        let failure = by_target("u", "1", answered.into_iter()).unwrap_err();
        assert_eq!(failure.check, "flows-by-target");
        assert!(failure.to_string().contains("udp-1 answered by p (2)"), "{failure}");
    }

    fn node(name: &str) -> Node {
        let address = std::net::Ipv4Addr::LOCALHOST;
        Node { name: name.into(), address, address6: None, takes_pods: true, pid: None }
    }

    #[test]
    fn flows_enter_where_the_scenario_says() {
        let nodes = [node("node-1"), node("node-2")];
        let by = |by| node_to_enter_by(&nodes, &by, "node-2").map(|node| node.name.clone());
        assert_eq!(by(EnterBy::OtherNode).unwrap(), "node-1");
        assert_eq!(by(EnterBy::PodNode).unwrap(), "node-2");
        assert_eq!(by(EnterBy::Named("node-1".into())).unwrap(), "node-1");
        assert_eq!(by(EnterBy::Named("x".into())).unwrap_err().check, "entry-node");
        let alone = [node("node-2")];
        assert!(node_to_enter_by(&alone, &EnterBy::OtherNode, "node-2").is_err());
    }
}
