//! Laws and tables of the whole of `config`, without files.

use std::path::Path;
use std::time::Duration;

use proptest::prelude::*;
use rstest::rstest;

use super::errors::Problems;
use super::source::Source;
use super::*;

/// Reads a text as if it were a file in `scenarios/`.
fn read(text: &str, set: &[&str]) -> Result<Matrix, Errors> {
    let file = Path::new("scenarios/x.toml");
    let source = Source::file(file, text.into(), 0);
    let set: Vec<String> = set.iter().map(ToString::to_string).collect();
    let mut problems = Problems::default();
    let matrix = arms::load(file, &source, &set, &[], &mut problems);
    problems.finish(matrix)
}

/// `line:column message` of each error.
pub(super) fn errors(text: &str, set: &[&str]) -> Vec<String> {
    read(text, set).err().map_or_else(Vec::new, |errors| told(&errors))
}

fn told(errors: &Errors) -> Vec<String> {
    let line = |problem: &errors::Problem| match &problem.place {
        Some(place) => {
            let (line, column) = place.line_column();
            format!("{line}:{column} {}", problem.message)
        }
        None => problem.message.clone(),
    };
    errors.problems().iter().map(line).collect()
}

pub(super) fn scenario(text: &str, set: &[&str]) -> Arm {
    read(text, set).unwrap_or_else(|e| panic!("{e}")).arms.remove(0)
}

/// Clients that stand on another node still reach the pod's hostPort; from outside it is the pod's
/// node that is addressed.
#[test]
fn a_host_port_is_entered_by_the_pods_node() {
    let flows = |text: &str| scenario(text, &[]).config.flows;
    let outside = flows("sigterm = 'exit'\nflows.via = 'host-port'");
    assert_eq!(outside.enter_by, EnterBy::PodNode);
    let within = flows("sigterm = 'exit'\nflows.via = 'host-port'\nflows.from = 'pod'");
    assert_eq!(within.enter_by, EnterBy::OtherNode);
}

#[test]
fn flows_of_ipv6_get_a_cluster_that_has_it() {
    let dual_stack = |text: &str| scenario(text, &[]).cluster.dual_stack;
    assert!(!dual_stack("sigterm = 'exit'"));
    assert!(dual_stack("sigterm = 'exit'\nflows.ip = 'ipv6'"));
    assert!(dual_stack("sigterm = 'exit'\ncluster.dual_stack = true"));
}

#[test]
fn the_last_source_port_may_be_used() {
    let text = "sigterm = 'exit'\nflows.tcp = 2\nflows.udp = 6\nflows.source_port = 65530";
    assert_eq!(scenario(text, &[]).config.flows.source_port, Some(65530));
}

#[test]
fn one_line_is_a_scenario() {
    let arm = scenario("sigterm = 'drain'", &[]);
    assert_eq!((arm.name.as_str(), arm.scenario.as_str()), ("x", "x"));
    insta::assert_snapshot!(serde_json::to_string_pretty(&arm).unwrap(), @r#"
    {
      "name": "x",
      "scenario": "x",
      "axes": [],
      "config": {
        "description": null,
        "sigterm": "drain",
        "drain_window_ms": 25000,
        "readiness": "fail",
        "trigger": "delete",
        "delete_grace_ms": null,
        "scale_to": null,
        "rollout": null,
        "observe_for_ms": null,
        "grace_period_ms": 30000,
        "settle_ms": 10000,
        "observe_after_ms": 2000,
        "repeats": 5,
        "evidence": true,
        "flows": {
          "tcp": 10,
          "udp": 10,
          "tcp_interval_ms": 100,
          "udp_interval_ms": 20,
          "silent_after_ms": 2000,
          "via": "node-port",
          "from": "outside",
          "enter_by": "other-node",
          "ip": "ipv4",
          "source_port": null
        },
        "dials": {
          "tcp": 0,
          "udp": 0,
          "timeout_ms": 1000
        },
        "pod": {
          "readiness_period_ms": 1000,
          "readiness_failures": 1,
          "pre_stop": null,
          "replicas": 1,
          "disruption_budget": null,
          "sysctls": {},
          "shell": false
        },
        "service": {
          "type": "node-port",
          "session_affinity": "none",
          "external_traffic_policy": "cluster",
          "internal_traffic_policy": "cluster"
        }
      },
      "cluster": {
        "provider": "auto",
        "kubernetes": "1.34.0",
        "nodes": 2,
        "proxy_mode": "iptables",
        "sysctls": {},
        "dns": false,
        "dual_stack": false
      }
    }
    "#);
}

#[test]
fn defaults_follow_what_is_set() {
    let arm = scenario("sigterm = 'drain'\ngrace_period = '60s'", &["grace_period=12s"]);
    assert_eq!(arm.config.drain_window, Some(Duration::from_secs(7)));
    let arm = scenario("sigterm = 'ignore'\ncluster.nodes = 1", &[]);
    assert_eq!(arm.config.readiness, Some(Readiness::Pass));
    assert_eq!((arm.config.drain_window, arm.config.flows.enter_by), (None, EnterBy::PodNode));
    let arm = scenario("sigterm = 'exit'", &[]);
    assert_eq!(arm.config.readiness, None);
}

#[test]
fn sysctls_may_be_written_in_any_way_that_toml_has() {
    let text = "sigterm = 'exit'\n[cluster.sysctls]\n'net.ipv4.a' = 1\nnet.ipv4.b = '2 3'";
    let arm = scenario(
        text,
        &[
            "cluster.sysctls.net.ipv4.c=4",
            "cluster={sysctls={net.d=5}}",
            "cluster.sysctls.\"net.e\"=6",
        ],
    );
    let sysctls: Vec<_> = arm.cluster.sysctls.iter().map(|(k, v)| format!("{k}={v}")).collect();
    assert_eq!(sysctls, ["net.d=5", "net.e=6", "net.ipv4.a=1", "net.ipv4.b=2 3", "net.ipv4.c=4"]);
}

#[rstest]
#[case::missing("repeats = 1", "1:1 `sigterm` is missing: what the app does on SIGTERM")]
#[case::nothing("", "1:1 neither a scenario nor a matrix")]
#[case::unknown("sigterm = 'exit'\nrepaets = 1", "2:1 unknown key `repaets`")]
#[case::misspelt("sigtrem = 'exit'", "1:1 unknown key `sigtrem`")]
#[case::word("sigterm = 'stop'", "1:11 `sigterm` cannot be `stop`")]
#[case::word_type("sigterm = 1", "1:11 `sigterm` must be a string, not a number")]
#[case::window_without_drain(
    "sigterm = 'exit'\ndrain_window = '1s'",
    "2:1 `drain_window` needs sigterm = \"drain\", and it is \"exit\""
)]
#[case::window_is_grace(
    "sigterm = 'drain'\ndrain_window = '30s'",
    "2:16 the drain_window (30s) is not below the grace_period (30s by default)"
)]
#[case::grace_too_short(
    "sigterm = 'drain'\ngrace_period = '5s'",
    "2:16 a grace_period of 5s leaves no drain_window: its default is the grace period less 5s"
)]
#[case::grace_in_parts(
    "sigterm = 'exit'\ngrace_period = '1500ms'",
    "2:16 `grace_period` must be a whole number of seconds"
)]
#[case::grace_zero(
    "sigterm = 'exit'\ngrace_period = '0s'",
    "2:16 `grace_period` must be at least 1s"
)]
#[case::no_unit("sigterm = 'exit'\nsettle = 3", "2:10 `settle` has no unit")]
#[case::no_unit_quoted("sigterm = 'exit'\nsettle = '3'", "2:10 `settle` has no unit")]
#[case::no_unit_float("sigterm = 'exit'\nsettle = 1.5", "2:10 `settle` has no unit")]
#[case::unit("sigterm = 'exit'\nsettle = '3 sek'", "2:13 `settle` has an unknown unit `sek`")]
#[case::negative("sigterm = 'exit'\nsettle = '-3s'", "2:10 `settle` must not be negative")]
#[case::months("sigterm = 'exit'\nsettle = '1M'", "2:12 `settle` has an unknown unit `M`")]
#[case::days("sigterm = 'exit'\nsettle = '1 h 0days'", "2:16 `settle` has an unknown unit `days`")]
#[case::nanoseconds("sigterm = 'exit'\nsettle = '5us'", "2:12 `settle` has an unknown unit `us`")]
#[case::zero_window("sigterm = 'drain'\ndrain_window = '0'", "2:16 `drain_window` has no unit")]
#[case::negative_number("sigterm = 'exit'\nsettle = -3", "2:10 `settle` must not be negative")]
#[case::long("sigterm = 'exit'\nsettle = '25h'", "2:10 `settle` must be at most 24h")]
#[case::longer(
    "sigterm = 'exit'\nsettle = '99999999999999999999999s'",
    "2:10 `settle` must be at most 24h"
)]
#[case::readiness_with_exit(
    "sigterm = 'exit'\nreadiness = 'pass'",
    "2:1 `readiness` with sigterm = \"exit\": the app is gone before it could answer a probe"
)]
#[case::no_flows(
    "sigterm = 'exit'\nflows.tcp = 0\nflows.udp = 0",
    "3:13 no flow at all: there would be nothing to measure"
)]
#[case::repeats("sigterm = 'exit'\nrepeats = 0", "2:11 `repeats` must be at least 1")]
#[case::many("sigterm = 'exit'\nrepeats = 10001", "2:11 `repeats` must be at most 10000")]
#[case::flows(
    "sigterm = 'exit'\nflows.udp = 99999999999999999999999999999999999999999999",
    "2:13 `flows.udp` must be at most 100000"
)]
#[case::minus("sigterm = 'exit'\nflows.udp = -1", "2:13 `flows.udp` must be at least 0")]
#[case::fraction(
    "sigterm = 'exit'\nrepeats = 2.0",
    "2:11 `repeats` must be a whole number, not a number with a fraction"
)]
#[case::interval(
    "sigterm = 'exit'\nflows.tcp_interval = '0s'",
    "2:22 `flows.tcp_interval` must be at least 1ms"
)]
#[case::silence(
    "sigterm = 'exit'\nflows.udp_interval = '2s'",
    "2:22 silent_after (2s by default) is not longer than udp_interval (2s)"
)]
#[case::failures(
    "sigterm = 'exit'\npod.readiness_failures = 0",
    "2:26 `pod.readiness_failures` must be at least 1"
)]
#[case::period(
    "sigterm = 'exit'\npod.readiness_period = '500ms'",
    "2:24 `pod.readiness_period` must be a whole number of seconds"
)]
#[case::nodes("sigterm = 'exit'\ncluster.nodes = 0", "2:17 `cluster.nodes` must be at least 1")]
#[case::entry(
    "sigterm = 'exit'\nflows.enter_by = 'other-node'\ncluster.nodes = 1",
    "2:18 enter_by = \"other-node\" in a cluster of one node"
)]
#[case::entry_slip(
    "sigterm = 'exit'\nflows.enter_by = 'other_node'",
    "2:18 `flows.enter_by` cannot be `other_node`"
)]
#[case::entry_name(
    "sigterm = 'exit'\nflows.enter_by = 'a b'",
    "2:18 `flows.enter_by` cannot be `a b`: no node has such a name"
)]
#[case::no_route_to_the_service(
    "sigterm = 'exit'\nflows.via = 'cluster-ip'",
    "2:13 via = \"cluster-ip\" from outside: no route leads to a Service's own address"
)]
#[case::no_route_to_the_pod(
    "sigterm = 'exit'\nflows.from = 'outside'\nflows.via = 'pod'",
    "3:13 via = \"pod\" from outside: no route leads to a local cluster's pods"
)]
#[case::host_port_of_another_node(
    "sigterm = 'exit'\nflows.via = 'host-port'\nflows.enter_by = 'other-node'",
    "3:18 enter_by = \"other-node\" with via = \"host-port\" from outside: only the pod's node has its hostPort"
)]
#[case::ipv6_without_it(
    "sigterm = 'exit'\nflows.ip = 'ipv6'\ncluster.dual_stack = false",
    "2:12 ip = \"ipv6\" in a cluster without IPv6"
)]
#[case::source_ports_beyond_the_last(
    "sigterm = 'exit'\nflows.source_port = 65530",
    "2:21 source_port = 65530 is too high for 10 flows: ports end at 65535"
)]
#[case::source_port_of_the_system(
    "sigterm = 'exit'\nflows.source_port = 80",
    "2:21 `flows.source_port` must be at least 1024"
)]
#[case::version(
    "sigterm = 'exit'\ncluster.kubernetes = 'v1.34.0'",
    "2:22 `cluster.kubernetes` is no version like 1.34.0: `v1.34.0`"
)]
#[case::version_type(
    "sigterm = 'exit'\ncluster.kubernetes = 1.34",
    "2:22 `cluster.kubernetes` must be a string, not a number with a fraction"
)]
#[case::sysctl(
    "sigterm = 'exit'\n[cluster.sysctls]\n'kernel.pid_max' = 1",
    "3:1 `kernel.pid_max` is no sysctl of a net namespace"
)]
#[case::table("sigterm = 'exit'\nflows = 3", "2:9 `flows` must be a table, not a number")]
#[case::below_the_table(
    "sigterm = 'exit'\n[flows]\nrepeats = 3",
    "3:1 unknown key `flows.repeats`"
)]
#[case::quoted_dots("sigterm = 'exit'\n'flows.tcp' = 3", "2:1 unknown key `flows.tcp`")]
#[case::twice("sigterm = 'exit'\nrepeats = 1\nrepeats = 2", "3:1 duplicate key `repeats`")]
#[case::no_quotes("sigterm = exit", "1:11 a string without quotes")]
#[case::word_like_a_boolean("sigterm = 'drain'\nreadiness = fail", "2:13 a string without quotes")]
#[case::words_in_an_array("sigterm = [fail, pass]", "1:12 a string without quotes")]
#[case::word_like_a_number(
    "sigterm = 'exit'\ndescription = nobody",
    "2:15 a string without quotes"
)]
#[case::time_like_a_date("sigterm = 'exit'\nsettle = 30-s # x", "2:10 a string without quotes")]
#[case::time_no_quotes("sigterm = 'exit'\nsettle = 30s", "2:10 a string without quotes")]
#[case::version_no_quotes(
    "sigterm = 'exit'\ncluster.kubernetes = 1.34.0",
    "2:22 a string without quotes"
)]
#[case::a_date(
    "sigterm = 'exit'\nsettle = 2000-13-01",
    "2:10 invalid date, expected month between 01 and 12"
)]
#[case::two_equals("sigterm = 'exit'\nrepeats == 3", "2:10 a second `=`")]
#[case::two_equals_in_a_time("sigterm = 'exit'\nsettle == 5", "2:9 a second `=`")]
#[case::two_equals_before_a_word("sigterm == 'exit'", "1:10 a second `=`")]
#[case::two_equals_in_flows("sigterm = 'exit'\nflows.tcp == 0\nflows.udp = 0", "2:12 a second `=`")]
#[case::two_equals_before_a_table("sigterm = 'exit'\nflows == { tcp = 1 }", "2:8 a second `=`")]
#[case::two_equals_in_a_matrix("scenarios == ['a']", "1:12 a second `=`")]
#[case::no_value("sigterm =\n", "1:10 a key without a value")]
#[case::provider(
    "sigterm = 'exit'\ncluster.provider = 'kind'",
    "2:20 `cluster.provider` cannot be `kind` yet"
)]
#[case::provider_and_node(
    "sigterm = 'exit'\ncluster.provider = 'context'\nflows.enter_by = 'dw-worker2'\ncluster.kubernetes = '1.99.0'",
    "2:20 `cluster.provider` cannot be `context` yet"
)]
#[case::old(
    "sigterm = 'exit'\ncluster.kubernetes = '1.32.9'",
    "2:22 no local cluster can have Kubernetes 1.32.9"
)]
#[case::new(
    "sigterm = 'exit'\ncluster.kubernetes = '9.9.9'",
    "2:22 no local cluster can have Kubernetes 9.9.9"
)]
#[case::no_node(
    "sigterm = 'exit'\nflows.enter_by = 'node-3'",
    "2:18 enter_by = \"node-3\": the cluster has no such node"
)]
#[case::parted("sigterm = 'exit'\nsettle = '1 0s'", "2:10 `settle` is no time: `1 0s`")]
#[case::decimals(
    "sigterm = 'exit'\nsettle = '0.1234567h'",
    "2:10 `settle` has more decimals than a time can hold"
)]
#[case::a_table_in_quotes(
    "sigterm = 'exit'\n'cluster.sysctls' = {}",
    "2:1 unknown key `cluster.sysctls`"
)]
#[case::no_such_sysctls(
    "sigterm = 'exit'\n[cluster.sysctls.kernel]",
    "2:18 `kernel` is no sysctl of a net namespace"
)]
#[case::axes_in_a_scenario("sigterm = 'exit'\n[axes]\nrepeats = [1]", "2:2 `axes` in a scenario")]
#[case::kubernetes_grace(
    "sigterm = 'exit'\nterminationGracePeriodSeconds = 30",
    "2:1 unknown key `terminationGracePeriodSeconds`"
)]
#[case::replicas("sigterm = 'exit'\nreplicas = 3", "2:1 unknown key `replicas`")]
#[case::kubernetes_surge(
    "sigterm = 'exit'\n[rollout]\nmaxSurge = 1",
    "3:1 unknown key `rollout.maxSurge`"
)]
#[case::axes_only("axes.repeats = [1]", "1:1 `scenarios` is missing")]
#[case::empty_matrix("scenarios = []", "1:13 no scenarios")]
#[case::unsafe_entry("scenarios = ['a/b']", "1:14 `a/b` is no safe name")]
#[case::reserved(
    "scenarios = ['environment']",
    "1:14 `environment` names something else in a run's folder"
)]
fn a_single_slip_is_a_single_error(#[case] text: &str, #[case] expected: &str) {
    assert_eq!(errors(text, &[]), [expected]);
}

/// What an axis or a misplaced key gets wrong is told once, and nothing is concluded from it.
#[rstest]
#[case::no_array(
    "axes.readiness = 'fail'",
    "2:18 the axis `readiness` must be an array of values, not a string"
)]
#[case::no_array_of_what_is_needed(
    "axes.sigterm = 'exit'",
    "2:16 the axis `sigterm` must be an array of values, not a string"
)]
#[case::empty("axes.readiness = []", "2:18 the axis `readiness` has no values")]
#[case::wrong_word("axes.readiness = ['fial']", "2:19 `readiness` cannot be `fial`")]
#[case::other_table("axes.cluster.sigterm = ['exit']", "2:14 unknown key `cluster.sigterm`")]
#[case::misspelt("axes.sigtrem = ['exit']", "2:6 unknown key `sigtrem`")]
#[case::above("readiness = 'fail'\n[axes]", "2:1 unknown key `readiness` in a matrix")]
#[case::below_another(
    "[axes]\n[cluster]\nreadiness = ['fail']",
    "4:1 unknown key `cluster.readiness`"
)]
#[case::no_axes("[axes]\n[cluster]\nnodes = 2", "2:2 no axes")]
#[case::no_axes_in_a_table("[axes.flows]", "2:2 no axes")]
fn a_slip_of_an_axis_is_a_single_error(#[case] lines: &str, #[case] expected: &str) {
    // One that takes no readiness, and one that has no sigterm of its own.
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.toml"), "sigterm = 'exit'").unwrap();
    std::fs::write(folder.path().join("b.toml"), "repeats = 1").unwrap();
    let scenario = if expected.contains("sig") { "b.toml" } else { "a.toml" };
    let file = folder.path().join("m.toml");
    std::fs::write(&file, format!("scenarios = ['{scenario}']\n{lines}")).unwrap();
    assert_eq!(told(&load(&file, &[], &[]).unwrap_err()), [expected]);
}

#[rstest]
#[case::ipvs("cluster.proxy_mode='ipvs'")]
#[case::named("flows.enter_by='node-2'")]
#[case::version("cluster.kubernetes='1.37.9'")]
#[case::no_settle("settle='0s'")]
#[case::no_udp("flows.udp=0")]
#[case::no_heartbeats("flows={udp=0,udp_interval='5s'}")]
#[case::no_heartbeats_of_tcp("flows={tcp=0,tcp_interval='5s'}")]
#[case::zero_window("drain_window='0s'")]
#[case::parts("grace_period='1m 30s'")]
#[case::crlf("description='x'\r\n")]
fn unusual_but_right(#[case] line: &str) {
    assert_eq!(errors(&format!("sigterm = 'drain'\n{line}"), &[]), [""; 0]);
}

#[test]
fn a_word_without_quotes_is_shown_with_them() {
    let help = |text: &str| read(text, &[]).unwrap_err().problems()[0].notes[0].clone();
    let help = |text: &str| help(text).replace("help: words and times stand in quotes: ", "");
    assert_eq!(help("readiness = fail # as ever"), "readiness = \"fail\"");
    assert_eq!(help("description = nobody is here"), "description = \"nobody is here\"");
    assert_eq!(help("flows = { enter_by = node-1 }"), "\"node-1\"");
    assert_eq!(help("sigterm = [fail, pass]"), "\"fail\"");
    assert_eq!(help("flows.silent_after = 30-s"), "flows.silent_after = \"30-s\"");
    assert_eq!(help("cluster.kubernetes = 1.34.0"), "cluster.kubernetes = \"1.34.0\"");
}

#[rstest]
#[case::dotted("flows.tcp = 'x'", &[], "for example flows.tcp = 10")]
#[case::in_a_table("[flows]\ntcp = 'x'", &[], "for example tcp = 10")]
#[case::inline("flows = {tcp='7'}", &[], "without quotes: tcp = 7")]
#[case::quoted("'settle' = 3", &[], "write it with its unit, in quotes: 'settle' = \"3s\"")]
#[case::whole("grace_period = 30.5", &[], "write it with its unit, in quotes: grace_period = \"31s\"")]
#[case::flag("", &["settle=1"], "write it with its unit: --set settle=1s")]
#[case::flag_number("", &["flows.tcp=x"], "for example --set flows.tcp=10")]
#[case::flag_version("", &["cluster.kubernetes=1.35"], "with the patch release: --set cluster.kubernetes=1.35.0")]
fn help_can_be_copied(#[case] line: &str, #[case] set: &[&str], #[case] expected: &str) {
    let errors = read(&format!("sigterm = 'exit'\n{line}"), set).unwrap_err();
    assert_eq!(errors.problems()[0].notes, [format!("help: {expected}")]);
}

#[test]
fn an_axis_lost_by_the_parser_is_one_error() {
    let text = "scenarios == ['a']\n[axes]\nrepeats == [1, 2]";
    assert_eq!(errors(text, &[]), ["1:12 a second `=`", "3:10 a second `=`"]);
}

#[test]
fn a_byte_order_mark_moves_no_column() {
    assert_eq!(
        errors("\u{feff}sigterm = 3", &[]),
        ["1:11 `sigterm` must be a string, not a number"]
    );
}

/// One wrong value hides no other, and nothing is concluded from it.
#[test]
fn everything_is_told_in_the_files_order() {
    let text = "drain_windw = '3s'\nsigterm = 'exit'\nreadiness = 'fail'\ngrace_period = 30\n\
                [flows]\ntcp = '10'\nfoo = 1\nsettle = 1 2\n[cluster]\nnodes = 99\n";
    assert_eq!(
        errors(text, &[]),
        [
            "1:1 unknown key `drain_windw`",
            "3:1 `readiness` with sigterm = \"exit\": the app is gone before it could answer a probe",
            "4:16 `grace_period` has no unit",
            "6:7 `flows.tcp` must be a whole number, not a string",
            "7:1 unknown key `flows.foo`",
            "8:10 a string without quotes",
            "10:9 `cluster.nodes` must be at most 16",
        ]
    );
}

#[rstest]
#[case::no_value("repeats", "1:7 --set takes KEY=VALUE")]
#[case::empty("repeats=", "1:15 `repeats` must be a whole number, not a string")]
#[case::wrong("repeats=x", "1:15 `repeats` must be a whole number, not a string")]
#[case::unknown("repaets=1", "1:7 unknown key `repaets`")]
#[case::short("proxy_mode=ipvs", "1:7 unknown key `proxy_mode`")]
#[case::table("flows=3", "1:7 `flows` holds other keys")]
#[case::axes("axes.readiness=[1]", "1:7 `axes.readiness` cannot be overridden")]
#[case::equals_in_quotes("cluster.sysctls.\"a=b\"=1", "1:7 `a=b` is no sysctl of a net namespace")]
#[case::quote_without_end("\"repeats=1", "1:7 unknown key `\"repeats`")]
#[case::contradiction(
    "drain_window=31s",
    "1:20 the drain_window (31s) is not below the grace_period (30s by default)"
)]
#[case::other_side(
    "sigterm=exit",
    "1:15 `readiness` with sigterm = \"exit\": the app is gone before it could answer a probe"
)]
fn a_flag_is_blamed_for_what_it_brings_about(#[case] flag: &str, #[case] expected: &str) {
    assert_eq!(errors("sigterm = 'drain'\nreadiness = 'pass'", &[flag]), [expected]);
}

#[test]
fn of_two_flags_the_later_counts() {
    let arm = scenario("sigterm = 'exit'", &["repeats=1", "repeats=2", "description=a b = c"]);
    assert_eq!(arm.config.repeats, 2);
    assert_eq!(arm.config.description.as_deref(), Some("a b = c"));
}

#[test]
fn a_file_of_nothing_but_errors_is_told_in_time() {
    let lines: String = (0..4_000).map(|n| format!("repeats{n} = 1\n")).collect();
    let inline: String = (0..4_000).map(|n| format!("x{n} = 1, ")).collect();
    for text in [lines, format!("sigterm = 'exit'\nflows = {{ {inline} }}"), "x".repeat(900_000)] {
        let errors = read(&text, &[]).unwrap_err();
        assert!(errors.to_string().len() < 200_000);
    }
}

/// Lines as people write them, right and wrong.
fn line() -> impl Strategy<Value = String> {
    let key = prop_oneof![
        prop::sample::select(schema::KEYS).prop_map(|key| key.name.to_string()),
        prop::sample::select(vec![
            "scenarios",
            "axes",
            "axes.repeats",
            "axes.'cluster.nodes'",
            "axes.flows.tcp",
            "cluster",
            "flows",
            "tcp",
            "sigtrem",
            "cluster.sysctls",
            "cluster.sysctls.net.a",
            "''",
            "'é'",
        ])
        .prop_map(String::from),
    ];
    let value = prop_oneof![
        prop::sample::select(vec![
            "'drain'",
            "'exit'",
            "'ignore'",
            "'pass'",
            "'2s'",
            "'3000ms'",
            "'10m'",
            "1",
            "0",
            "17",
            "-1",
            "1e9",
            "[]",
            "[1, 2]",
            "['1s', '1000ms', 3]",
            "{}",
            "{ tcp = 0, é = 'x' }",
            "true",
            "'delete'",
            "1979-05-27",
            "drain",
            "\"",
            "'''\n\n'''",
            "[['x'], [1]]",
            "'other-node'",
            "['x', 'y.toml', '../x']",
            "0xffffffffffffffffffffffff",
            "nan",
            "'µ é'",
        ])
        .prop_map(String::from),
        "[\"']?[0-9]{0,30}\\.?[a-zµ .]{0,4}[\"']?",
    ];
    prop_oneof![
        8 => (key, value).prop_map(|(key, value)| format!("{key} = {value}")),
        1 => prop::sample::select(vec!["[flows]", "[cluster]", "[axes]", "[[flows]]", "[cluster.sysctls]", "[x", "#"])
            .prop_map(String::from),
        1 => "\\PC{0,20}",
    ]
}

/// Every error can be shown, and those of files stand in the file.
fn assert_law(text: &str) -> Result<(), TestCaseError> {
    let errors = match read(text, &["repeats=1"]) {
        Ok(matrix) => {
            for arm in &matrix.arms {
                let config = &arm.config;
                prop_assert!(config.drain_window.is_none_or(|window| window < config.grace_period));
                prop_assert_eq!(config.drain_window.is_some(), config.sigterm == Sigterm::Drain);
                prop_assert_eq!(config.readiness.is_none(), config.sigterm == Sigterm::Exit);
                prop_assert!(config.flows.tcp + config.flows.udp > 0);
            }
            return Ok(());
        }
        Err(errors) => errors,
    };
    prop_assert!(errors.len() > 0);
    let mut last = 0;
    for problem in errors.problems() {
        let Some(place) = &problem.place else {
            return Err(TestCaseError::fail(format!("no place: {}", problem.message)));
        };
        prop_assert!(!problem.message.contains('\n'));
        if place.source.path.is_some() {
            prop_assert!(place.source.text.get(place.span.clone()).is_some());
            prop_assert!(place.line() <= text.lines().count().max(1));
            prop_assert!(place.span.start >= last);
            last = place.span.start;
        }
        prop_assert!(place.snippet().lines().any(|line| line.contains('^')));
    }
    let _ = errors.to_string();
    Ok(())
}

proptest! {
    #[test]
    fn any_text_is_read_or_blamed(text in any::<String>()) {
        assert_law(&text)?;
    }

    #[test]
    fn any_lines_are_read_or_blamed(lines in prop::collection::vec(line(), 0..12)) {
        assert_law(&lines.join("\n"))?;
    }

    #[test]
    fn any_bytes_are_read_or_blamed(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("x.toml");
        std::fs::write(&file, &bytes)?;
        if let Err(errors) = load(&file, &[], &[]) {
            prop_assert!(errors.to_string().contains("x.toml:"));
        }
    }

    #[test]
    fn any_flag_is_read_or_blamed(flag in "[a-z_.]{0,12}=?\\PC{0,12}") {
        let set: Vec<String> = vec![flag];
        let file = Path::new("x.toml");
        let source = Source::file(file, "sigterm = 'drain'".into(), 0);
        let mut problems = Problems::default();
        let matrix = arms::load(file, &source, &set, &[], &mut problems);
        if let Err(errors) = problems.finish(matrix) {
            prop_assert!(errors.to_string().contains("--set"));
        }
    }
}
