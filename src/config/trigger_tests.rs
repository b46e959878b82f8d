//! What the triggers, the pod and the Service take, and what they contradict.

use std::time::Duration;

use rstest::rstest;

use super::tests::{errors, scenario};
use super::*;

#[test]
fn a_hook_leaves_less_to_drain() {
    let arm = scenario("sigterm = 'drain'\npod.pre_stop = '10s'", &[]);
    assert_eq!(arm.config.drain_window, Some(Duration::from_secs(15)));
    assert_eq!(arm.config.pod.pre_stop, Some(PreStop::Sleep(Duration::from_secs(10))));
    let arm = scenario("sigterm = 'exit'\npod.pre_stop = '0s'", &[]);
    assert_eq!(arm.config.pod.pre_stop, None);
    let exec = ["/drainwatch-probe", "sleep", "5000"].map(String::from);
    for written in ["'/drainwatch-probe sleep 5000'", "['/drainwatch-probe', 'sleep', '5000']"] {
        let arm = scenario(&format!("sigterm = 'exit'\npod.pre_stop_exec = {written}"), &[]);
        assert_eq!(arm.config.pod.pre_stop, Some(PreStop::Exec(exec.to_vec())));
    }
}

#[test]
fn a_trigger_has_the_defaults_of_its_own_keys_and_no_others() {
    let of = |text: &str| scenario(&format!("sigterm = 'exit'\n{text}"), &[]).config;
    let config = of("trigger = 'scale-down'\npod.replicas = 4");
    assert_eq!((config.pod.replicas, config.scale_to, config.rollout), (4, Some(3), None));
    let config = of("trigger = 'rollout'\nrollout.max_surge = 2");
    let rollout = Rollout { max_surge: Share::Count(2), max_unavailable: Share::Percent(25) };
    assert_eq!((config.rollout, config.observe_for), (Some(rollout), None));
    let config = of("trigger = 'delete-grace'\ndelete_grace = '2s'");
    assert_eq!(config.grace(), Duration::from_secs(2));
    assert_eq!(config.grace_period, Duration::from_secs(30));
    let config = of("trigger = 'relabel'");
    assert_eq!(config.observe_for, Some(Duration::from_secs(30)));
    let config = of("trigger = 'node-stop'");
    assert_eq!(config.observe_for, Some(Duration::from_secs(90)));
}

#[test]
fn what_the_pod_sets_the_kubelets_allow() {
    let arm = scenario("sigterm = 'exit'\npod.sysctls.'net.ipv4.icmp_ratelimit' = 0", &[]);
    assert_eq!(arm.config.pod.sysctls["net.ipv4.icmp_ratelimit"], "0");
    assert!(arm.cluster.sysctls.is_empty());
    let allowed: Vec<_> = arm.cluster.pod_sysctls.into_iter().collect();
    assert_eq!(allowed, ["net.ipv4.icmp_ratelimit"]);
}

#[rstest]
#[case::pod_sysctl(
    "sigterm = 'exit'\n[pod.sysctls]\n'kernel.shmmax' = 1",
    "3:1 `kernel.shmmax` is no sysctl of a net namespace"
)]
#[case::two_hooks(
    "sigterm = 'exit'\npod.pre_stop = '1s'\npod.pre_stop_exec = 'x'",
    "3:5 a pod has one preStop hook, and both pod.pre_stop and pod.pre_stop_exec are set"
)]
#[case::long_hook(
    "sigterm = 'exit'\npod.pre_stop = '31s'",
    "2:16 pre_stop (31s) is longer than the grace_period (30s by default)"
)]
#[case::hook_before_a_drain(
    "sigterm = 'drain'\npod.pre_stop = '10s'\ndrain_window = '20s'",
    "3:16 the drain_window (20s) is not below the grace_period (30s by default less the pre_stop of 10s)"
)]
#[case::hook_leaves_nothing(
    "sigterm = 'drain'\npod.pre_stop = '26s'",
    "2:16 a grace_period of 30s less the pre_stop of 26s leaves no drain_window: its default is the grace period less 5s"
)]
#[case::no_program(
    "sigterm = 'exit'\npod.pre_stop_exec = []",
    "2:21 `pod.pre_stop_exec` names no program"
)]
#[case::share(
    "sigterm = 'exit'\ntrigger = 'rollout'\nrollout.max_surge = '120%'",
    "3:21 `rollout.max_surge` is neither a number of pods nor a share: `120%`"
)]
#[case::grace_of_another_trigger(
    "sigterm = 'exit'\ndelete_grace = '5s'",
    "2:1 `delete_grace` needs trigger = \"delete-grace\", and it is \"delete\""
)]
#[case::no_delete_grace(
    "sigterm = 'exit'\ntrigger = 'delete-grace'",
    "2:11 trigger = \"delete-grace\" without a delete_grace"
)]
#[case::scale_to_of_another_trigger(
    "sigterm = 'exit'\nscale_to = 1",
    "2:1 `scale_to` needs trigger = \"scale-down\", and it is \"delete\""
)]
#[case::scale_down_of_one(
    "sigterm = 'exit'\ntrigger = 'scale-down'",
    "2:11 trigger = \"scale-down\" needs 2 replicas or more, and pod.replicas is 1 by default"
)]
#[case::scaled_to_as_many(
    "sigterm = 'exit'\ntrigger = 'scale-down'\npod.replicas = 2\nscale_to = 2",
    "4:12 scale_to (2) is not below pod.replicas (2)"
)]
#[case::rollout_of_another_trigger(
    "sigterm = 'exit'\n[rollout]\nmax_surge = 1",
    "3:1 `rollout.max_surge` needs trigger = \"rollout\", and it is \"delete\""
)]
#[case::no_rollout(
    "sigterm = 'exit'\ntrigger = 'rollout'\nrollout.max_surge = 0\nrollout.max_unavailable = '0%'",
    "4:27 neither a surge nor a missing pod is allowed: no rollout could begin"
)]
#[case::observed_to_its_end(
    "sigterm = 'exit'\nobserve_for = '5s'",
    "2:1 `observe_for` needs a trigger that terminates no pod, and it is \"delete\""
)]
#[case::drain_of_the_only_node(
    "sigterm = 'exit'\ntrigger = 'drain-node'\ncluster.nodes = 1",
    "2:11 trigger = \"drain-node\" in a cluster of one node"
)]
#[case::stop_of_the_only_node(
    "sigterm = 'exit'\ntrigger = 'node-stop'\ncluster.nodes = 1",
    "2:11 trigger = \"node-stop\" in a cluster of one node, which holds the API server"
)]
#[case::stop_of_the_way_in(
    "sigterm = 'exit'\ntrigger = 'node-stop'\nflows.enter_by = 'pod-node'",
    "3:18 trigger = \"node-stop\" with flows that enter by the pod's node: they would lose their way in, not their pod"
)]
#[case::stop_of_the_only_node_for_pods(
    "sigterm = 'exit'\ntrigger = 'node-stop'\nflows.enter_by = 'node-2'",
    "3:18 trigger = \"node-stop\" with flows that enter by the pod's node: they would lose their way in, not their pod"
)]
#[case::no_node_port(
    "sigterm = 'exit'\nservice.type = 'cluster-ip'",
    "2:16 service.type = \"cluster-ip\" with flows that go to a NodePort: there is none"
)]
#[case::no_endpoint_of_its_own(
    "sigterm = 'exit'\nservice.external_traffic_policy = 'local'",
    "2:35 external_traffic_policy = \"local\" with flows that enter by another node than the pod's by default: that one has no endpoint of its own"
)]
#[case::no_endpoint_on_the_control_plane(
    "sigterm = 'exit'\nservice.external_traffic_policy = 'local'\nflows.enter_by = 'node-1'",
    "2:35 external_traffic_policy = \"local\" with flows that enter by another node than the pod's: that one has no endpoint of its own"
)]
#[case::no_endpoint_beside_the_client(
    "sigterm = 'exit'\nflows.via = 'cluster-ip'\nflows.from = 'node'\nservice.internal_traffic_policy = 'local'",
    "4:35 internal_traffic_policy = \"local\" with flows that enter by another node than the pod's by default: that one has no endpoint of its own"
)]
#[case::more_pods_than_host_ports(
    "sigterm = 'exit'\nflows.via = 'host-port'\npod.replicas = 2",
    "3:16 2 replicas with via = \"host-port\", and 1 node takes pods: each takes one with this hostPort"
)]
#[case::no_host_port_for_a_rollout(
    "sigterm = 'exit'\nflows.via = 'host-port'\ntrigger = 'rollout'",
    "2:13 a rollout that takes no pod away first with via = \"host-port\", and 1 node takes pods: none has its hostPort left for a new pod"
)]
#[case::long_wait_for_a_dial(
    "sigterm = 'exit'\ndials.timeout = '31s'",
    "2:17 `dials.timeout` must be at most 30s"
)]
fn a_single_slip_is_a_single_error(#[case] text: &str, #[case] expected: &str) {
    assert_eq!(errors(text, &[]), [expected]);
}

#[test]
fn a_policy_is_held_against_the_clients_that_it_counts_for() {
    for text in [
        "flows.from = 'node'\nservice.external_traffic_policy = 'local'",
        "flows.from = 'pod'\nservice.external_traffic_policy = 'local'",
        "flows.enter_by = 'pod-node'\nservice.external_traffic_policy = 'local'",
        "flows.enter_by = 'node-2'\nservice.external_traffic_policy = 'local'",
        "service.internal_traffic_policy = 'local'",
        "flows.via = 'cluster-ip'\nflows.from = 'pod'\nflows.enter_by = 'pod-node'\n\
         service.internal_traffic_policy = 'local'",
    ] {
        scenario(&format!("sigterm = 'exit'\n{text}"), &[]);
    }
}

#[test]
fn a_host_port_of_each_node_may_be_taken() {
    let host_port = "sigterm = 'exit'\nflows.via = 'host-port'";
    for text in [
        "pod.replicas = 2\ncluster.nodes = 3",
        "cluster.nodes = 1",
        "trigger = 'rollout'\nrollout.max_unavailable = 1",
        "trigger = 'rollout'\nrollout.max_surge = 0",
        "trigger = 'rollout'\ncluster.nodes = 3",
        "trigger = 'rollout'\npod.replicas = 4\ncluster.nodes = 5",
    ] {
        scenario(&format!("{host_port}\n{text}"), &[]);
    }
    let told = errors(&format!("{host_port}\ntrigger = 'node-stop'"), &[]);
    assert_eq!(told.len(), 1, "{told:?}");
}

/// Each trigger is a scenario of two lines, but for those that need a key of their own.
#[test]
fn each_trigger_needs_no_more_than_its_name() {
    let Some(key) = schema::find("trigger") else { panic!("no key") };
    let schema::Kind::Word(words) = key.kind else { panic!("{key:?}") };
    for word in words {
        let own = match *word {
            "delete-grace" => "delete_grace = '5s'",
            "scale-down" => "pod.replicas = 2",
            _ => "",
        };
        let arm = scenario(&format!("sigterm = 'exit'\ntrigger = '{word}'\n{own}"), &[]);
        assert_eq!(arm.config.trigger.name(), *word);
        assert_eq!(arm.config.trigger.is_open(), arm.config.observe_for.is_some(), "{word}");
    }
}
