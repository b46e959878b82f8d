//! `drainwatch clean`, the whole command, with caches of their own. (Clusters' leftovers are in
//! the end-to-end tests: they need root.)

mod machine;

use std::fs;
use std::process::{Command, Stdio};

use assert_cmd::assert::OutputAssertExt;
use machine::{Machine, Mirror};
use predicates::prelude::PredicateBooleanExt;
use predicates::str::contains;

/// A machine with components of v1.34.0 in its cache.
fn filled() -> Machine {
    let (machine, mirror) = (Machine::new(), Mirror::full());
    machine.setup(&mirror.url).assert().success();
    machine
}

/// `drainwatch clean` with the machine's cache.
fn clean(machine: &Machine, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_drainwatch"));
    command
        .arg("clean")
        .args(arguments)
        .env("HOME", machine.path("home"))
        .env("XDG_CACHE_HOME", machine.path("cache"))
        .stdin(Stdio::null());
    command
}

fn cache(machine: &Machine) -> std::path::PathBuf {
    machine.path("cache/drainwatch")
}

#[test]
fn the_cache_is_listed_by_version_and_goes_when_asked_for() {
    let machine = filled();
    let named = |text: &str| contains(format!("{text} in {}", machine.components().display()));
    clean(&machine, &["--cache", "--dry-run"]).assert().success().stdout(
        named("Kubernetes v1.34.0")
            .and(named("etcd v3.6.4"))
            .and(named("containerd v2.1.5"))
            .and(named("CNI plugins v1.8.0"))
            .and(contains("go clean").not()),
    );
    assert!(machine.components().join("etcd/v3.6.4").exists());
    // Without --cache it is nothing that was left over.
    clean(&machine, &["--dry-run"]).assert().success().stdout(contains("etcd").not());
}

#[test]
fn without_a_terminal_nothing_goes_without_yes() {
    let machine = filled();
    clean(&machine, &["--cache"]).assert().code(2).stderr(contains("with --yes"));
    assert!(machine.components().join("etcd/v3.6.4").exists());
    clean(&machine, &["--dry-run", "--yes"]).assert().code(2);
}

#[test]
fn what_was_built_with_go_comes_with_a_word_on_gos_own_caches() {
    let (machine, mirror) = (Machine::new(), Mirror::empty());
    machine.go("go1.26.8", "");
    machine.setup(&mirror.url).assert().success();
    let says = contains("`go clean -cache -modcache` empties them");
    clean(&machine, &["--cache", "--dry-run"]).assert().success().stdout(says);
}

#[test]
fn a_setup_that_did_not_end_has_left_something_and_one_that_runs_has_not() {
    let machine = filled();
    let unfinished = cache(&machine).join("tmp/etcd");
    fs::create_dir_all(&unfinished).unwrap();
    fs::write(unfinished.join("half"), "").unwrap();
    let line = format!("folder {}/tmp", cache(&machine).display());
    clean(&machine, &["--dry-run"])
        .assert()
        .success()
        .stdout(contains(format!("{line} (less than 1 MB, of a setup that did not end)")));

    let lock = fs::File::open(cache(&machine).join("lock")).unwrap();
    lock.lock().unwrap();
    let at_work = format!("drainwatch setup is at work (process {})", std::process::id());
    clean(&machine, &["--dry-run"])
        .assert()
        .success()
        .stdout(contains(format!("{line}: {at_work}")).and(contains("did not end").not()));
    clean(&machine, &["--cache", "--dry-run"])
        .assert()
        .success()
        .stdout(contains(at_work).and(contains("etcd v3.6.4 in")));
    assert!(unfinished.exists());
}

#[test]
fn links_in_the_cache_are_not_followed_and_what_is_not_ours_stays() {
    let machine = filled();
    let precious = machine.path("precious");
    fs::create_dir_all(precious.join("v1/linux-amd64")).unwrap();
    let link = machine.components().join("precious");
    std::os::unix::fs::symlink(&precious, &link).unwrap();
    fs::write(cache(&machine).join("notes\nof mine"), "").unwrap();
    let nothing = "nothing that setup puts into its cache";
    clean(&machine, &["--cache", "--dry-run"]).assert().success().stdout(
        contains(format!("{}: {nothing}", link.display()))
            // In one line, whatever is in a name.
            .and(contains(format!("notes\\nof mine\": {nothing}"))),
    );
}
