//! The committed JSON Schemas: they are what the binary prints, the shipped TOML files name them
//! and keep to them, and so does every record that was ever kept.

use std::fs;
use std::path::{Path, PathBuf};

use assert_cmd::Command;
use jsonschema::Validator;
use serde_json::Value;

const NAMES: [&str; 4] = ["scenario", "matrix", "record", "run"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn drainwatch(args: &[&str]) -> (i32, String, String) {
    let mut command = Command::cargo_bin("drainwatch").unwrap();
    let output = command.args(args).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

fn json(path: &Path) -> Value {
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn committed(name: &str) -> Validator {
    let schema = json(&root().join(format!("schema/{name}.json")));
    jsonschema::draft202012::meta::validate(&schema).unwrap_or_else(|e| panic!("{name}: {e}"));
    jsonschema::draft202012::new(&schema).unwrap()
}

/// Each thing that the schema has against the file.
#[track_caller]
fn assert_valid(schema: &Validator, value: &Value, path: &Path) {
    let errors: Vec<String> = schema
        .iter_errors(value)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    assert!(errors.is_empty(), "{}:\n{}", path.display(), errors.join("\n"));
}

/// All files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}

#[test]
fn the_committed_schemas_are_what_the_binary_prints() {
    for name in NAMES {
        let (code, printed, err) = drainwatch(&["schema", name]);
        assert_eq!((code, err.as_str()), (0, ""));
        let file = root().join(format!("schema/{name}.json"));
        assert!(
            fs::read_to_string(&file).is_ok_and(|committed| committed == printed),
            "schema/{name}.json is not what this build makes: cargo run -- schema --output schema"
        );
    }
    let files = files(&root().join("schema"));
    assert_eq!(files.len(), NAMES.len(), "{files:?}");
}

#[test]
fn without_a_name_all_are_printed() {
    let (code, out, err) = drainwatch(&["schema"]);
    assert_eq!((code, err.as_str()), (0, ""));
    let all: serde_json::Map<String, Value> = serde_json::from_str(&out).unwrap();
    assert_eq!(all.len(), NAMES.len());
    for name in NAMES {
        assert!(all[name] == json(&root().join(format!("schema/{name}.json"))), "{name}");
    }
}

#[test]
fn schemas_are_written_into_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let into = folder.path().join("new/schema");
    let args = ["schema", "--output", into.to_str().unwrap()];
    assert_eq!(drainwatch(&args), (0, String::new(), String::new()));
    let written: Vec<String> = files(&into)
        .iter()
        .map(|file| file.file_name().unwrap().to_string_lossy().into())
        .collect();
    assert_eq!(written, ["matrix.json", "record.json", "run.json", "scenario.json"]);
    fs::write(folder.path().join("file"), "").unwrap();
    let into = folder.path().join("file/schema");
    let (code, out, err) = drainwatch(&["schema", "run", "--output", into.to_str().unwrap()]);
    assert_eq!((code, out.as_str()), (5, ""));
    assert!(err.contains("run.json: can't be written"), "{err}");
}

#[test]
fn an_unknown_name_is_told_with_those_that_there_are() {
    let (code, out, err) = drainwatch(&["schema", "trial"]);
    assert_eq!((code, out.as_str()), (2, ""));
    assert!(err.contains("[possible values: scenario, matrix, record, run, keys]"), "{err}");
}

/// After a change of a key: `cargo run -- schema keys --output docs`.
#[test]
fn the_page_of_keys_is_what_the_binary_prints() {
    let (code, out, _) = drainwatch(&["schema", "keys"]);
    assert_eq!(code, 0);
    assert_eq!(out, fs::read_to_string(root().join("docs/keys.md")).unwrap());
}

/// So that an editor finds it: taplo and what is built on it read this line.
#[test]
fn each_shipped_toml_file_names_its_schema_and_keeps_to_it() {
    let mut seen = 0;
    let folders = ["scenarios", "matrices", "matrices/cases"].map(|folder| root().join(folder));
    for path in folders.iter().flat_map(|folder| files(folder)).filter(|path| path.is_file()) {
        let text = fs::read_to_string(&path).unwrap();
        let first = text.lines().next().unwrap_or_default();
        let named = path.parent().unwrap().join(first.trim_start_matches("#:schema "));
        assert!(named.is_file(), "{}: there is no {}", path.display(), named.display());
        let table: toml::Table = toml::from_str(&text).unwrap();
        let kind = if table.contains_key("scenarios") { "matrix" } else { "scenario" };
        assert!(first.ends_with(&format!("schema/{kind}.json")), "{}: {first}", path.display());
        assert_valid(&committed(kind), &serde_json::to_value(table).unwrap(), &path);
        seen += 1;
    }
    assert!(seen > 0);
}

/// Older builds wrote some of them: a reader takes all.
#[test]
fn each_kept_record_keeps_to_its_schema() {
    let (record, run) = (committed("record"), committed("run"));
    let (mut records, mut runs) = (0, 0);
    for path in files(&root().join("results")) {
        let file = path.file_name().unwrap().to_string_lossy();
        if !file.ends_with(".json") || path.components().any(|part| part.as_os_str() == "logs") {
            continue;
        }
        let value = json(&path);
        match value["format"].as_str() {
            Some(format) if format.starts_with("drainwatch.trial/") => {
                assert_valid(&record, &value, &path);
                records += 1;
            }
            Some(format) if format.starts_with("drainwatch.run/") => {
                assert_valid(&run, &value, &path);
                runs += 1;
            }
            // Others have no schema.
            _ => {}
        }
    }
    assert!(records > 0 && runs > 0, "{records} records, {runs} runs");
}

/// What the types of this build can't read, the schema turns down.
#[test]
fn what_is_no_record_is_turned_down() {
    let schema = committed("record");
    let path = files(&root().join("results"))
        .into_iter()
        .find(|path| path.file_name().is_some_and(|name| name == "trial-001.json"))
        .unwrap();
    let good = json(&path);
    assert_valid(&schema, &good, &path);
    let changes: [(&str, Value); 9] = [
        ("/format", "drainwatch.trial/2".into()),
        ("/format", "drainwatch.run/1".into()),
        ("/outcome", "fine".into()),
        ("/repeat", (-1).into()),
        ("/findings/sigterm_ms", "12".into()),
        ("/observations/0/what", "seen".into()),
        ("/observations/0/t_ms", Value::Null),
        ("/config/grace_period_ms", Value::Null),
        ("/flows/0/fate", "lost".into()),
    ];
    for (pointer, value) in changes {
        let mut bad = good.clone();
        *bad.pointer_mut(pointer).unwrap_or_else(|| panic!("{pointer}")) = value;
        assert!(!schema.is_valid(&bad), "{pointer}");
    }
    for key in ["format", "config", "observations", "findings", "flows"] {
        let mut bad = good.clone();
        bad.as_object_mut().unwrap().remove(key);
        assert!(!schema.is_valid(&bad), "without {key}");
    }
    // What a newer build of the same version may add, and what an older one did not know.
    let mut other = good.clone();
    other["format"] = "drainwatch.trial/1.1".into();
    other["new"] = 1.into();
    other.as_object_mut().unwrap().remove("finding_bounds");
    assert_valid(&schema, &other, &path);
}
