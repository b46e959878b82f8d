//! `drainwatch doctor`, the whole command: on made-up tools, and on this machine.

mod machine;

use std::process::{Command, Output};

use machine::{Machine, Mirror};

/// `drainwatch doctor` with a machine's tools and cache.
fn doctor(machine: &Machine, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_drainwatch"));
    command
        .arg("doctor")
        .args(arguments)
        .env("HOME", machine.path("home"))
        .env("XDG_CACHE_HOME", machine.path("cache"))
        .env("DRAINWATCH_HOST_PATH", machine.path("tools"))
        // Nobody listens there.
        .env("DRAINWATCH_MIRROR", "http://127.0.0.1:1")
        .env("GOPROXY", "http://me:secret@127.0.0.1:1");
    command.output().unwrap()
}

fn points(output: &Output) -> Vec<serde_json::Value> {
    serde_json::from_slice(&output.stdout).unwrap()
}

fn point<'a>(points: &'a [serde_json::Value], name: &str) -> &'a serde_json::Value {
    points.iter().find(|point| point["name"] == name).unwrap_or_else(|| panic!("no {name}"))
}

#[test]
fn the_exit_code_says_whether_local_clusters_can_be_made() {
    let machine = Machine::new();
    let output = doctor(&machine, &["--format", "json"]);
    let all = points(&output);
    assert_eq!(output.status.code(), Some(4));
    let components = point(&all, "components");
    assert_eq!(components["section"], "local clusters");
    assert_eq!(components["state"], "lacks");
    assert_eq!(components["remedy"], "drainwatch setup");
    // Neither the cache nor anything else was made.
    assert!(!machine.path("cache").exists());
    assert!(!machine.path("home").exists());

    let mut setup = machine.setup(&Mirror::full().url);
    assert!(setup.status().unwrap().success());
    let output = doctor(&machine, &["--format", "json"]);
    let all = points(&output);
    assert_eq!(point(&all, "components")["state"], "ok");
    let lacking = all.iter().any(|p| p["section"] == "local clusters" && p["state"] == "lacks");
    assert_eq!(output.status.code(), Some(if lacking { 4 } else { 0 }));
}

#[test]
fn tools_are_told_with_their_versions_or_how_to_get_them() {
    let machine = Machine::new();
    std::fs::remove_file(machine.path("tools/nft")).unwrap();
    machine.go("go1.25.3", "");
    let all = points(&doctor(&machine, &["--format", "json"]));
    assert_eq!(point(&all, "runc")["found"], "runc 1.0");
    assert_eq!(point(&all, "nft")["state"], "lacks");
    assert!(point(&all, "nft")["remedy"].as_str().unwrap().contains("nftables"));
    assert_eq!(point(&all, "go")["found"], "go1.25.3, builds Kubernetes 1.33 to 1.35");
    assert_eq!(machine.go_calls(), "env GOVERSION\n");
}

#[test]
fn the_network_is_asked_only_where_the_user_wants_it() {
    let machine = Machine::new();
    let names = |arguments: &[&str]| -> Vec<String> {
        let all = points(&doctor(&machine, arguments));
        all.iter()
            .filter(|point| point["section"] == "where components come from")
            .map(|point| format!("{} {}", point["name"].as_str().unwrap(), point["state"]))
            .collect()
    };
    assert_eq!(names(&["--format", "json"]), [""; 0]);
    let online = names(&["--format", "json", "--online"]);
    assert_eq!(online, ["dl.k8s.io \"warn\"", "github.com \"warn\"", "Go module proxy \"warn\""]);
    let text = String::from_utf8(doctor(&machine, &["--online"]).stdout).unwrap();
    assert!(text.contains("(http://127.0.0.1:1/k8s.io/kubernetes/@v/list)"), "{text}");
    assert!(!text.contains("secret"), "{text}");
}

#[test]
fn looking_leaves_no_namespace_link_or_module_behind() {
    let machine = Machine::new();
    // The real tools, so that things are really tried where this is root.
    let look = || {
        let modules = std::fs::read_to_string("/proc/modules").unwrap_or_default();
        let names: Vec<String> =
            modules.lines().filter_map(|l| l.split(' ').next().map(Into::into)).collect();
        let mut links: Vec<String> = std::fs::read_dir("/sys/class/net")
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            // Other tests' clusters come and go.
            .filter(|name| !name.starts_with("dw") || name.len() != 8)
            .collect();
        links.sort();
        (names, links, std::path::Path::new("/run/xtables.lock").exists())
    };
    let before = look();
    let output = Command::new(env!("CARGO_BIN_EXE_drainwatch"))
        .arg("doctor")
        .env("XDG_CACHE_HOME", machine.path("cache"))
        .output()
        .unwrap();
    assert!(matches!(output.status.code(), Some(0 | 4)), "{output:?}");
    assert_eq!(look(), before);
    assert!(!machine.path("cache").exists());
}
