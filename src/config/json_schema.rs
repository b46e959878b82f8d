//! The keys as JSON Schemas (draft 2020-12), by which editors complete and explain TOML files.
//!
//! Takes the table of keys; gives a schema each for scenarios and matrices. What such a schema
//! turns down the parser turns down too; the parser knows more: the limits of times, and what
//! contradicts what beyond a pair of keys. Keeps to what older drafts have, for editors' sake.

use serde_json::{Map, Value, json};

use super::arms::MAX_ARMS;
use super::schema::{
    self, KEYS, Key, Kind, LONGEST_SYSCTL, MAX_SYSCTLS, POD_SYSCTLS, SYSCTL, SYSCTLS, TABLES,
};

/// A number and its unit, once or more.
const TIME: &str = r"^\s*([0-9]+(\.[0-9]+)?\s*(ms|s|m|h)\s*)+$";
const VERSION: &str = r"^(0|[1-9][0-9]{0,2})(\.(0|[1-9][0-9]{0,2})){2}$";
/// A name that Kubernetes allows for a node.
const NODE: &str = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*$";
/// Hundredths, no more than 100.
const SHARE: &str = r"^0*(100|[0-9]{1,2})%$";
/// One line that is not blank.
const SYSCTL_VALUE: &str =
    r"^[^\x00-\x08\x0a-\x1f\x7f-\x9f]*[^\s\x00-\x1f\x7f-\x9f][^\x00-\x08\x0a-\x1f\x7f-\x9f]*$";
/// A scenario's name, or its file's path.
const SCENARIO: &str = r"^([A-Za-z0-9_][A-Za-z0-9_.-]*|(.*/)?[A-Za-z0-9_][A-Za-z0-9_.-]*\.toml)$";

const SYSCTL_PARTS: &str = "#/$defs/sysctls";
const SYSCTL_AXIS_PARTS: &str = "#/$defs/sysctl_axes";

/// The schema of a scenario that stands by itself.
pub fn scenario() -> Value {
    let mut schema = object(&table("", &|key| described(key, value(key.kind))));
    schema.insert("required".into(), json!(["sigterm"]));
    schema.insert(
        "allOf".into(),
        json!([not_with("drain_window", &["exit", "ignore"]), not_with("readiness", &["exit"]),]),
    );
    schema.insert(
        "$defs".into(),
        json!({ "sysctls": sysctl_parts(value(Kind::Sysctl), SYSCTL_PARTS) }),
    );
    titled(
        schema,
        "scenario",
        "What the app does on SIGTERM, what terminates its pod, and the flows held to it. Only \
         sigterm has no default.",
    )
}

/// The schema of a matrix.
pub fn matrix() -> Value {
    let plain = |key: &Key| described(key, value(key.kind));
    let mut cluster = object(&table("cluster", &plain));
    cluster.insert("description".into(), about_table("cluster").into());
    let mut axes = axes("");
    axes.insert("minProperties".into(), 1.into());
    axes.insert(
        "description".into(),
        "Keys and the values that they take in turn: each scenario is run with each combination."
            .into(),
    );
    let mut properties = Map::new();
    properties.insert(
        "description".into(),
        json!({ "type": "string", "description": "What it shows, in your words." }),
    );
    properties.insert(
        "scenarios".into(),
        json!({
            "type": "array",
            "items": { "type": "string", "pattern": SCENARIO },
            "minItems": 1,
            "maxItems": MAX_ARMS,
            "uniqueItems": true,
            "description": "The scenarios, each by its name (the file NAME.toml in the folder \
                scenarios/ beside the matrix's folder) or, with .toml at its end, by its path from \
                this file.",
            "examples": [["drain-delete"]],
        }),
    );
    properties.insert("axes".into(), axes.into());
    properties.insert("cluster".into(), cluster.into());
    let mut schema = object(&properties);
    schema.insert("required".into(), json!(["scenarios"]));
    schema.insert(
        "$defs".into(),
        json!({
            "sysctls": sysctl_parts(value(Kind::Sysctl), SYSCTL_PARTS),
            "sysctl_axes": sysctl_parts(axis(value(Kind::Sysctl)), SYSCTL_AXIS_PARTS),
        }),
    );
    titled(
        schema,
        "matrix",
        "The scenarios to run, on which cluster, and what to vary: an arm is a scenario with one \
         value of each axis.",
    )
}

fn titled(mut schema: Map<String, Value>, name: &str, about: &str) -> Value {
    schema.insert("$schema".into(), "https://json-schema.org/draft/2020-12/schema".into());
    schema.insert("$id".into(), format!("urn:drainwatch:schema:{name}").into());
    schema.insert("title".into(), format!("drainwatch {name}").into());
    schema.insert("description".into(), about.into());
    schema.into()
}

/// An object of these properties and no others.
fn object(properties: &Map<String, Value>) -> Map<String, Value> {
    let mut schema = Map::new();
    schema.insert("type".into(), "object".into());
    schema.insert("properties".into(), properties.clone().into());
    schema.insert("additionalProperties".into(), false.into());
    schema
}

/// What stands in a table (`""` is the scenario itself), with the tables below it.
fn table(name: &str, of: &dyn Fn(&Key) -> Value) -> Map<String, Value> {
    let inside = |full: &'static str| below(name, full).filter(|rest| !rest.contains('.'));
    let mut properties = Map::new();
    for key in KEYS {
        if let Some(rest) = inside(key.name) {
            properties.insert(rest.into(), of(key));
        }
    }
    for (full, about) in TABLES {
        let Some(rest) = inside(full) else { continue };
        let mut schema = match *full {
            SYSCTLS | POD_SYSCTLS => sysctls(value(Kind::Sysctl), SYSCTL_PARTS),
            full => object(&table(full, of)),
        };
        if rest == "flows" {
            let none = json!({ "tcp": { "const": 0 }, "udp": { "const": 0 } });
            schema.insert("not".into(), json!({ "properties": none, "required": ["tcp", "udp"] }));
        }
        schema.insert("description".into(), (*about).into());
        properties.insert(rest.into(), schema.into());
    }
    properties
}

/// The axes whose names begin with that of a table; quoted, an axis may be named in full.
fn axes(prefix: &str) -> Map<String, Value> {
    let mut properties = Map::new();
    for key in KEYS.iter().filter(|key| key.name != "description") {
        if let Some(rest) = below(prefix, key.name) {
            properties.insert(rest.into(), described(key, axis(value(key.kind))));
        }
    }
    for (full, about) in TABLES {
        let Some(rest) = below(prefix, full) else { continue };
        let mut schema = match *full {
            SYSCTLS | POD_SYSCTLS => sysctls(axis(value(Kind::Sysctl)), SYSCTL_AXIS_PARTS),
            full => axes(full),
        };
        schema.insert("description".into(), (*about).into());
        properties.insert(rest.into(), schema.into());
    }
    let mut schema = object(&properties);
    let mut patterns = Map::new();
    for rest in [SYSCTLS, POD_SYSCTLS].into_iter().filter_map(|table| below(prefix, table)) {
        let quoted = format!(r"^{}\.net(\.[A-Za-z0-9_-]+)+$", rest.replace('.', r"\."));
        patterns.insert(quoted, described(&SYSCTL, axis(value(Kind::Sysctl))));
    }
    if !patterns.is_empty() {
        schema.insert("patternProperties".into(), patterns.into());
    }
    schema
}

/// `tcp` of `flows.tcp` in `flows`, `flows.tcp` at the top.
fn below(table: &str, full: &'static str) -> Option<&'static str> {
    if table.is_empty() { Some(full) } else { full.strip_prefix(table)?.strip_prefix('.') }
}

fn about_table(name: &str) -> &'static str {
    TABLES.iter().find(|(table, _)| *table == name).map_or("", |(_, about)| about)
}

/// `[cluster.sysctls]`: names in quotes, or without them, which is a table in a table to TOML.
fn sysctls(of_one: Value, parts: &str) -> Map<String, Value> {
    let deeper = json!({ "$ref": parts });
    let schema = json!({
        "type": "object",
        "patternProperties": {
            "^net$": deeper,
            r"^net(\.[A-Za-z0-9_-]+)+$": { "anyOf": [of_one, deeper] },
        },
        "additionalProperties": false,
        "maxProperties": MAX_SYSCTLS,
        "examples": [{ "net.ipv4.tcp_retries2": 5 }],
    });
    match schema {
        Value::Object(schema) => schema,
        _ => Map::new(),
    }
}

/// What is below `net` without quotes, or with quotes further down.
fn sysctl_parts(of_one: Value, parts: &str) -> Value {
    json!({
        "type": "object",
        "patternProperties": {
            r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$": { "anyOf": [of_one, { "$ref": parts }] },
        },
        "additionalProperties": false,
    })
}

fn axis(value: Value) -> Value {
    json!({
        "type": "array", "items": value, "minItems": 1, "maxItems": MAX_ARMS, "uniqueItems": true,
    })
}

/// `key` may not stand beside one of these words of `sigterm`. (`if` is what editors that go by
/// older drafts pass over.)
fn not_with(key: &str, words: &[&str]) -> Value {
    json!({
        "not": {
            "properties": { "sigterm": { "enum": words } },
            "required": ["sigterm", key],
        },
    })
}

/// What a key takes.
fn value(kind: Kind) -> Value {
    match kind {
        Kind::Text => json!({ "type": "string" }),
        Kind::Word(words) => json!({ "type": "string", "enum": words }),
        Kind::Count { min, max } => json!({ "type": "integer", "minimum": min, "maximum": max }),
        Kind::Time { .. } => json!({ "type": "string", "pattern": TIME }),
        Kind::EnterBy => json!({
            "type": "string",
            "anyOf": [{ "enum": ["other-node", "pod-node"] }, { "pattern": NODE, "maxLength": 253 }],
        }),
        Kind::Version => json!({ "type": "string", "pattern": VERSION }),
        Kind::Truth => json!({ "type": "boolean" }),
        Kind::Share => json!({ "anyOf": [
            { "type": "integer", "minimum": 0, "maximum": 100 },
            { "type": "string", "pattern": SHARE },
        ] }),
        Kind::Command => json!({ "anyOf": [
            { "type": "string", "pattern": r"\S" },
            { "type": "array", "items": { "type": "string" }, "minItems": 1 },
        ] }),
        Kind::Sysctl => json!({
            "type": ["string", "integer"], "maxLength": LONGEST_SYSCTL, "pattern": SYSCTL_VALUE,
        }),
    }
}

/// A key's schema with all that helps to write it.
fn described(key: &Key, schema: Value) -> Value {
    let Value::Object(mut schema) = schema else { return schema };
    let is_axis = schema.contains_key("items");
    let of_value = if is_axis { schema.get_mut("items") } else { None };
    let words = match of_value {
        Some(items) => items.get_mut("enum"),
        None => schema.get_mut("enum"),
    };
    if let Some(Value::Array(words)) = words {
        words.retain(|word| !schema::is_not_yet(key.name, word.as_str().unwrap_or_default()));
    }
    schema.insert("description".into(), format!("{}{}", key.about, written(key)).into());
    let example = from_toml(key.example);
    if is_axis {
        schema.insert("examples".into(), json!([[example]]));
    } else {
        schema.insert("examples".into(), json!([example]));
        if let Some(default) = key.default {
            schema.insert("default".into(), from_toml(default));
        }
    }
    schema.into()
}

/// How a key's value is written, where its type does not say it.
fn written(key: &Key) -> String {
    match key.kind {
        Kind::Time { min, most, .. } => {
            let most = schema::words(most);
            let limits = match min {
                min if min.is_zero() => format!("at most {most}"),
                min => format!("{} to {most}", humantime::format_duration(min)),
            };
            format!(" A time with its unit (ms, s, m, h), {limits}.")
        }
        Kind::Version => format!(
            " The minors 1.{} to 1.{} are supported.",
            schema::LOCAL_MINORS.start(),
            schema::LOCAL_MINORS.end()
        ),
        _ => String::new(),
    }
}

/// A value of the table, which is written as in TOML: a string or a whole number, and so JSON too.
fn from_toml(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| text.into())
}
