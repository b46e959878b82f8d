//! The JSON Schemas against the parser: what the one turns down, the other turns down.

use std::path::Path;
use std::sync::LazyLock;

use jsonschema::Validator;
use proptest::prelude::*;
use serde_json::Value;

use super::errors::Problems;
use super::schema::{KEYS, Kind, LONGEST, SYSCTL, is_not_yet};
use super::source::Source;
use super::*;

static SCENARIO: LazyLock<Validator> = LazyLock::new(|| validator(&json_schema::scenario()));
static MATRIX: LazyLock<Validator> = LazyLock::new(|| validator(&json_schema::matrix()));

fn validator(schema: &Value) -> Validator {
    jsonschema::draft202012::new(schema).unwrap()
}

/// What the parser says of a file in `scenarios/`; by name it finds the shipped scenarios.
fn parse(text: &str) -> Result<Matrix, Errors> {
    let file = Path::new("scenarios/x.toml");
    let source = Source::file(file, text.into(), 0);
    let mut problems = Problems::default();
    let matrix = arms::load(file, &source, &[], &[], &mut problems);
    problems.finish(matrix)
}

/// The document as an editor sees it; `None` where its syntax is broken.
fn json(text: &str) -> Option<Value> {
    serde_json::to_value(toml::from_str::<toml::Table>(text).ok()?).ok()
}

/// Each key with a value of its own in a scenario where it makes sense.
fn scenario_with(name: &str, value: &str) -> String {
    let sigterm = if name == "sigterm" { "" } else { "sigterm = 'drain'\n" };
    let beside = match name {
        "delete_grace" => "trigger = 'delete-grace'\n",
        "scale_to" => "trigger = 'scale-down'\npod.replicas = 3\n",
        "rollout.max_surge" | "rollout.max_unavailable" => "trigger = 'rollout'\n",
        "observe_for" => "trigger = 'relabel'\n",
        "service.external_traffic_policy" if value.contains("local") => {
            "flows.enter_by = 'pod-node'\n"
        }
        _ => "",
    };
    format!("{sigterm}{beside}{name} = {value}\n")
}

/// Whether the schema and the parser take a value of a key, and what the parser says.
fn both(schema: &Validator, text: &str) -> (bool, Option<String>) {
    let json = json(text).unwrap_or_else(|| panic!("no TOML: {text}"));
    (schema.is_valid(&json), parse(text).err().map(|errors| errors.to_string()))
}

fn keys() -> impl Iterator<Item = (&'static str, schema::Key)> {
    let fixed = KEYS.iter().map(|key| (key.name, key.clone()));
    fixed.chain([("cluster.sysctls.'net.ipv4.x'", SYSCTL), ("pod.sysctls.'net.ipv4.x'", SYSCTL)])
}

#[test]
fn every_key_is_explained_and_its_example_is_right() {
    for (name, key) in keys() {
        assert!(key.about.ends_with('.'), "{name}");
        let text = scenario_with(name, key.example);
        assert_eq!(both(&SCENARIO, &text), (true, None), "{text}");
    }
}

/// The table tells the defaults that `resolve` fills in.
#[test]
fn every_default_of_the_table_is_the_parsers() {
    let arm = |text: &str| {
        let arm = parse(text).unwrap_or_else(|e| panic!("{text}\n{e}")).arms.remove(0);
        serde_json::to_value(arm).unwrap()
    };
    let plain = arm("sigterm = 'drain'");
    let mut without = Vec::new();
    for key in KEYS {
        match key.default {
            Some(default) => {
                assert_eq!(arm(&scenario_with(key.name, default)), plain, "{}", key.name)
            }
            None => without.push(key.name),
        }
    }
    let conditional = [
        "description",
        "sigterm",
        "drain_window",
        "readiness",
        "delete_grace",
        "scale_to",
        "rollout.max_surge",
        "rollout.max_unavailable",
        "observe_for",
        "flows.enter_by",
        "flows.source_port",
        "pod.pre_stop",
        "pod.pre_stop_exec",
        "pod.disruption_budget",
        "cluster.dual_stack",
    ];
    assert_eq!(without, conditional);
    assert_eq!(parse("sigterm = 'exit'").unwrap().arms[0].cluster.kubernetes, DEFAULT_KUBERNETES);
}

#[test]
fn a_wrong_type_is_turned_down_by_both() {
    for (name, key) in keys() {
        let mut wrong = vec!["2.5", "[1]", "{ a = 1 }"];
        if key.kind != Kind::Command {
            wrong.push("['drain']");
        }
        match key.kind {
            // A string or a number.
            Kind::Share => wrong.extend(["'5'", "'x'", "-1"]),
            Kind::Count { .. } => wrong.extend(["'5'", "'x'", "''"]),
            // A string or a number.
            Kind::Sysctl => wrong.extend(["''", "'  '"]),
            _ => wrong.extend(["5", "0", "-1"]),
        }
        if key.kind != Kind::Truth {
            wrong.push("true");
        }
        for value in wrong {
            // Another sysctl's table, to TOML.
            if key.kind == Kind::Sysctl && value == "{ a = 1 }" {
                continue;
            }
            let (valid, error) = both(&SCENARIO, &scenario_with(name, value));
            assert!(!valid && error.is_some(), "{name} = {value}: {valid} {error:?}");
        }
    }
}

#[test]
fn a_value_beyond_its_limits_is_turned_down_by_both() {
    let long = |n: usize| format!("'{}'", "a".repeat(n));
    for (name, key) in keys() {
        let wrong: Vec<String> = match key.kind {
            Kind::Count { min, max } => {
                vec![(i64::from(min) - 1).to_string(), (i64::from(max) + 1).to_string()]
            }
            Kind::Word(words) => {
                let not_yet = words.iter().filter(|word| is_not_yet(name, word));
                let not_yet = not_yet.map(|word| format!("'{word}'"));
                not_yet.chain(["''".into(), "'other'".into(), "'Exit'".into()]).collect()
            }
            Kind::Time { .. } => {
                ["''", "'5'", "'-1s'", "'5 sek'", "'1M'", "'1 0s'", "'1.s'", "'s'"]
                    .map(String::from)
                    .into()
            }
            Kind::EnterBy => {
                vec!["''".into(), "'a b'".into(), "'A'".into(), "'-a'".into(), long(64)]
            }
            Kind::Version => {
                ["'1.34'", "'v1.34.0'", "'1.34.00'", "'1.1000.0'", "''"].map(String::from).into()
            }
            Kind::Sysctl => vec![long(201), r#""a\nb""#.into(), r#""\u0000""#.into()],
            Kind::Truth => ["0", "'true'"].map(String::from).into(),
            Kind::Share => {
                ["-1", "101", "''", "'25'", "'101%'", "'+5%'", "'%'"].map(String::from).into()
            }
            Kind::Command => ["''", "'  '", "[]", "[1]"].map(String::from).into(),
            Kind::Text => continue,
        };
        for value in wrong {
            let (valid, error) = both(&SCENARIO, &scenario_with(name, &value));
            assert!(!valid && error.is_some(), "{name} = {value}: {valid} {error:?}");
        }
    }
}

/// What a pattern can't say without being unreadable, the description says.
#[test]
fn the_limits_of_a_time_are_the_parsers_alone() {
    for (name, key) in keys() {
        let Kind::Time { min, most, whole_seconds } = key.kind else { continue };
        assert!(most <= LONGEST, "{name}");
        let too_long = if most == LONGEST { "must be at most 24h" } else { "must be at most 30s" };
        let mut wrong = vec![(format!("'{}s'", most.as_secs() + 1), too_long)];
        if !min.is_zero() {
            wrong.push(("'0s'".into(), "must be at least"));
        }
        if whole_seconds {
            wrong.push(("'1500ms'".into(), "must be a whole number of seconds"));
        }
        for (value, why) in wrong {
            let (valid, error) = both(&SCENARIO, &scenario_with(name, &value));
            assert!(valid && error.as_ref().is_some_and(|e| e.contains(why)), "{name}: {error:?}");
        }
    }
}

#[test]
fn contradictions_of_a_pair_of_keys_are_turned_down_by_both() {
    for text in [
        "sigterm = 'exit'\ndrain_window = '1s'",
        "sigterm = 'ignore'\ndrain_window = '1s'",
        "sigterm = 'exit'\nreadiness = 'pass'",
        "sigterm = 'exit'\nflows = { tcp = 0, udp = 0 }",
        "repeats = 1",
        "sigterm = 'exit'\nx = 1",
        "sigterm = 'exit'\nflows.x = 1",
        "sigterm = 'exit'\n'flows.tcp' = 1",
        "sigterm = 'exit'\n'cluster.sysctls' = {}",
        "sigterm = 'exit'\ncluster.sysctls.kernel = {}",
        "sigterm = 'exit'\ncluster.sysctls.'kernel.pid_max' = 1",
        "sigterm = 'exit'\nscenarios = []\n",
    ] {
        let (valid, error) = both(&SCENARIO, text);
        assert!(!valid && error.is_some(), "{text}");
    }
}

#[test]
fn a_matrix_is_turned_down_by_both() {
    for text in [
        "scenarios = []",
        "scenarios = 'drain-delete'",
        "scenarios = ['drain-delete', 'drain-delete']",
        "scenarios = ['a b']",
        "scenarios = ['scenarios/drain-delete']",
        "scenarios = ['drain-delete']\naxes = {}",
        "scenarios = ['drain-delete']\naxes.settle = []",
        "scenarios = ['drain-delete']\naxes.settle = '1s'",
        "scenarios = ['drain-delete']\naxes.settle = ['1s', '1s']",
        "scenarios = ['drain-delete']\naxes.proxy_mode = ['ipvs']",
        "scenarios = ['drain-delete']\naxes.description = ['x']",
        "scenarios = ['drain-delete']\naxes.'cluster.sysctls.kernel.x' = [1]",
        "scenarios = ['drain-delete']\nsettle = '1s'",
        "scenarios = ['drain-delete']\ncluster.nodes = 17",
        "axes.settle = ['1s']",
    ] {
        let (valid, error) = both(&MATRIX, text);
        assert!(!valid && error.is_some(), "{text}");
    }
    for text in [
        "scenarios = ['drain-delete', '../scenarios/exit-delete.toml']",
        "scenarios = ['drain-delete']\naxes.settle = ['1s', '2s']\naxes.flows.tcp = [1]",
        "scenarios = ['drain-delete']\naxes.'cluster.sysctls.net.ipv4.x' = [1, 'a']",
        "scenarios = ['drain-delete']\naxes.cluster.sysctls.net.ipv4.x = [1, 'a']",
        "scenarios = ['drain-delete']\naxes.cluster.'sysctls.net.ipv4.x' = [1, 'a']",
        "scenarios = ['drain-delete']\naxes.cluster.sysctls.net.'ipv4.x' = [1, 'a']",
        "scenarios = ['drain-delete']\n[cluster.sysctls]\nnet.ipv4.x = 1\n'net.ipv4.y' = '1 2'",
    ] {
        assert_eq!(both(&MATRIX, text), (true, None), "{text}");
    }
}

/// Every spelling of TOML that the parser takes.
#[test]
fn sysctls_may_be_quoted_where_one_likes() {
    for line in [
        "cluster.sysctls.'net.ipv4.x' = 1",
        "cluster.sysctls.net.ipv4.x = 1",
        "cluster.sysctls.net.'ipv4.x' = 1",
        "cluster.sysctls.net.'ipv4.x' = { y = 1, 'z.a' = '2' }",
        "cluster.sysctls.'net.ipv4' = { x = 1 }",
        "cluster.sysctls.net = {}",
    ] {
        assert_eq!(both(&SCENARIO, &format!("sigterm = 'exit'\n{line}")), (true, None), "{line}");
    }
}

/// Keys as people may spell them, in a scenario and in `[axes]`.
fn key() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => prop::sample::select(KEYS).prop_map(|key| key.name.to_owned()),
        1 => prop::sample::select(KEYS).prop_map(|key| format!("'{}'", key.name)),
        1 => prop::sample::select(vec![
            "flows", "pod", "cluster", "cluster.sysctls", "'cluster.sysctls'", "x", "flows.x", "''",
            "cluster.sysctls.net", "cluster.sysctls.net.ipv4.x", "cluster.sysctls.'net.ipv4.x'",
            "cluster.sysctls.'net.ipv4'.y", "cluster.sysctls.net.'ipv4.x'", "cluster.'sysctls.net.x'",
            "cluster.sysctls.kernel.x", "cluster.sysctls.'net.'", "cluster.sysctls.net.'a b'",
        ]).prop_map(String::from),
    ]
}

fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => prop::sample::select(KEYS).prop_map(|key| key.example.to_owned()),
        1 => prop::sample::select(vec![
            "0", "1", "-1", "17", "100001", "2.5", "true", "{}", "[]", "''", "'0s'", "'1.5s'", "'1 h'",
            "'node-2'", "'kind'", "'ignore'", "'exit'", "{ tcp = 0, udp = 0 }", "{ tcp = 3 }",
            "{ net = { a = 1 } }", "1979-05-27", "'1.36.12'",
        ]).prop_map(String::from),
        2 => "'[0-9 .]{0,3}[ \t]?(m|ms|s|h|d)?[ ]?[0-9.]{0,2}(ms|s)?'",
        1 => "'[a-z0-9. \u{a0}-]{0,6}'",
    ]
}

fn matrix_line() -> impl Strategy<Value = String> {
    let values = prop::collection::vec(value(), 0..3).prop_map(|values| values.join(", "));
    prop_oneof![
        4 => (key(), values).prop_map(|(key, values)| format!("axes.{key} = [{values}]")),
        1 => (key(), value()).prop_map(|(key, value)| format!("axes.{key} = {value}")),
        1 => (key(), value()).prop_map(|(key, value)| format!("{key} = {value}")),
    ]
}

/// What the parser takes, the schema takes.
fn assert_law(schema: &Validator, text: &str) -> Result<(), TestCaseError> {
    let Some(json) = json(text) else { return Ok(()) };
    if let Ok(_taken) = parse(text) {
        let error = schema.validate(&json).err().map(|error| error.to_string());
        prop_assert!(error.is_none(), "{text}\n{error:?}");
    }
    Ok(())
}

proptest! {
    #[test]
    fn a_scenario_that_the_parser_takes_is_valid(lines in prop::collection::vec((key(), value()), 0..4)) {
        let lines = lines.iter().map(|(key, value)| format!("{key} = {value}\n"));
        assert_law(&SCENARIO, &format!("sigterm = 'drain'\n{}", lines.collect::<String>()))?;
    }

    #[test]
    fn a_matrix_that_the_parser_takes_is_valid(lines in prop::collection::vec(matrix_line(), 0..3)) {
        assert_law(&MATRIX, &format!("scenarios = ['drain-delete']\n{}", lines.join("\n")))?;
    }

    /// The other way round too, limits excepted: one grammar of times.
    #[test]
    fn a_time_is_a_time_to_both(text in "[0-9]{0,3}[ \t\u{a0}.]{0,2}[0-9]{0,2}(ms|s|m|h|sec| )?[ ]?[0-9]{0,2}(ms|s|h)?") {
        let (valid, error) = both(&SCENARIO, &scenario_with("settle", &format!("'{text}'")));
        let limit = ["at most 24h", "more decimals"];
        let is_limit = |error: &str| limit.iter().any(|limit| error.contains(limit));
        match error {
            None => prop_assert!(valid, "{text:?} is taken and not valid"),
            Some(error) => prop_assert!(!valid || is_limit(&error), "{text:?} is valid: {error}"),
        }
    }
}
