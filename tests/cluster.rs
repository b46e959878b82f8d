//! `drainwatch cluster`: what is refused before any cluster is made.

use std::os::unix::fs::PermissionsExt;

use assert_cmd::Command;
use predicates::str::contains;
use rstest::rstest;

fn cluster(arguments: &[&str]) -> Command {
    let mut command = Command::cargo_bin("drainwatch").expect("the binary");
    command.arg("cluster").args(arguments);
    command
}

#[test]
fn wrong_options_are_told_all_at_once_as_in_toml() {
    cluster(&["up", "--nodes", "0", "--proxy-mode", "nft", "--", "true"])
        .assert()
        .code(2)
        .stdout("")
        .stderr(contains("`--nodes` must be at least 1"))
        .stderr(contains("`--proxy-mode` cannot be `nft`"))
        .stderr(contains("2 errors"));
}

#[rstest]
#[case(&["up", "kubectl"], "unexpected argument 'kubectl'")]
#[case(&["up", "--node", "2"], "similar argument exists: '--nodes'")]
#[case(&["load"], "required arguments were not provided")]
#[case(&["down"], "unrecognized subcommand 'down'")]
fn what_is_no_command_line_is_a_usage_error(
    #[case] arguments: &[&str],
    #[case] says: &'static str,
) {
    cluster(arguments).assert().code(2).stdout("").stderr(contains(says));
}

#[test]
fn a_command_that_cannot_run_is_told_before_a_cluster_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("no-program");
    std::fs::write(&file, "").unwrap();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).unwrap();
    let file = file.to_str().unwrap();
    cluster(&["up", "--", "no-such-command-here"])
        .assert()
        .code(127)
        .stdout("")
        .stderr("error: no-such-command-here: no such command\n");
    cluster(&["up", "--", file])
        .assert()
        .code(126)
        .stdout("")
        .stderr(format!("error: {file}: it is no executable file\n"));
    // A machine without kubectl, in its PATH and in its cache.
    cluster(&["up", "--", "kubectl", "get", "nodes"])
        .env("PATH", folder.path())
        .env("XDG_CACHE_HOME", folder.path())
        .env_remove("DRAINWATCH_COMPONENTS")
        .assert()
        .code(127)
        .stderr(contains("`drainwatch setup --kubectl` gets it"));
}

#[test]
fn a_kubeconfig_is_not_written_over_what_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config");
    std::fs::write(&file, "mine").unwrap();
    let dangling = folder.path().join("dangling");
    std::os::unix::fs::symlink("/nowhere", &dangling).unwrap();
    for (path, says) in [
        (&*file, "it is there already"),
        (&dangling, "it is there already"),
        (folder.path(), "this is a folder"),
        (&folder.path().join("no/config"), "there is no folder "),
    ] {
        let path = path.to_str().unwrap();
        cluster(&["up", "--kubeconfig", path]).assert().code(5).stdout("").stderr(contains(says));
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");
}

#[test]
fn what_is_no_image_archive_is_told_whatever_runs() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "hello".repeat(1000)).unwrap();
    let path = file.path().to_str().unwrap();
    cluster(&["load", path]).assert().code(2).stderr(contains("is no image archive"));
    cluster(&["load", "/not/there.tar"])
        .assert()
        .code(2)
        .stderr("error: /not/there.tar: can't be read: No such file or directory (os error 2)\n");
}
