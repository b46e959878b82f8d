//! How local clusters end: whichever way that is, nothing of them is left. (Each test is held to
//! leaving the host as it was, by main.rs.)

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use drainwatch::cluster::local::components;
use drainwatch::cluster::{ClusterError, Provider};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::host::Host;
use crate::tools::{Holder, block_on, spec, up};
use crate::{DRAINWATCH, local};

/// All of them, with their names.
pub fn tests() -> Vec<(&'static str, fn())> {
    vec![
        ("a_dropped_cluster_goes", a_dropped_cluster_goes),
        ("a_runner_ended_by_sigint_leaves_nothing", runner_ended_by_sigint),
        ("a_killed_runner_leaves_nothing", killed_runner),
        ("a_runner_killed_on_the_way_up_leaves_nothing", runner_killed_on_the_way_up),
        ("a_killed_supervisor_is_swept_up_after", killed_supervisor),
        ("a_component_that_ends_at_once_is_named", component_ends_at_once),
        ("a_component_that_ends_later_is_a_warning", component_ends_later),
        ("a_sysctl_that_does_not_exist_is_named", wrong_sysctl),
    ]
}

fn a_dropped_cluster_goes() {
    let before = Host::read();
    block_on(async {
        drop(up(&spec()).await);
    });
    before.assert_unchanged();
    // Also one that is not up yet.
    block_on(async {
        let spec = spec();
        let (provider, logs) = (local(), tempfile::tempdir().unwrap());
        let up = provider.up(&spec, logs.path());
        let _ = tokio::time::timeout(Duration::from_millis(700), up).await;
    });
}

fn runner_ended_by_sigint() {
    let mut holder = Holder::plain();
    holder.up();
    assert_eq!(holder.signal(Signal::SIGINT).code(), Some(130));
}

fn killed_runner() {
    let before = Host::read();
    let mut holder = Holder::plain();
    holder.up();
    assert_ne!(before.new_since("link"), [""; 0]);
    assert_ne!(before.new_since("cgroup"), [""; 0]);
    assert_ne!(before.new_since("process"), [""; 0]);
    let begun = Instant::now();
    holder.signal(Signal::SIGKILL);
    before.assert_unchanged();
    assert!(begun.elapsed() < Duration::from_secs(5), "it took {:?}", begun.elapsed());
}

/// At instants that lie within each of the steps on the way up.
fn runner_killed_on_the_way_up() {
    for after_ms in [20, 60, 120, 250, 500, 1_500, 3_000] {
        let before = Host::read();
        let mut holder = Holder::plain();
        std::thread::sleep(Duration::from_millis(after_ms));
        holder.signal(Signal::SIGKILL);
        if let Err(difference) = before.wait_unchanged() {
            panic!("killed after {after_ms} ms: {difference}");
        }
    }
}

fn killed_supervisor() {
    let before = Host::read();
    let mut holder = Holder::plain();
    holder.up();
    let processes = before.new_since("process");
    let supervisor = processes.iter().find(|p| p.contains("internal supervise")).unwrap();
    let pid = supervisor.split(' ').next().unwrap().parse().unwrap();
    kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
    holder.signal(Signal::SIGKILL);
    // The nodes go with it; folders stay, and the next cluster finds them.
    let deadline = Instant::now() + Duration::from_secs(10);
    while !before.new_since("process").is_empty() {
        assert!(Instant::now() < deadline, "{:?}", before.new_since("process"));
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_ne!(before.new_since("cgroup"), [""; 0]);
    let mut next = Holder::plain();
    next.up();
    assert!(next.end().success());
}

/// A flat folder of the components in which one is another program.
fn components_with(name: &str, program: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let good = components::locate("1.34.0").unwrap();
    for from in [&good.kubernetes, &good.etcd, &good.containerd, &good.cni] {
        for entry in fs::read_dir(from).unwrap().flatten() {
            let to = folder.path().join(entry.file_name());
            if entry.file_name() != name && !to.exists() {
                // A link would lead out of what a node sees.
                if fs::hard_link(entry.path(), &to).is_err() {
                    fs::copy(entry.path(), &to).unwrap();
                }
            }
        }
    }
    // Asked for its version, it says what the real one would.
    let real =
        [&good.kubernetes, &good.etcd].map(|f| f.join(name)).into_iter().find(|f| f.exists());
    let script = format!(
        "#!/bin/sh\ncase $1 in --version|-version|-v) exec {} \"$@\";; esac\n{program}\n",
        real.unwrap().display()
    );
    let path = folder.path().join(name);
    fs::write(&path, script).unwrap();
    fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
    folder
}

fn component_ends_at_once() {
    let folder = components_with(
        "kube-scheduler",
        "case $1 in --version) echo Kubernetes v1.34.0; exit;; esac\n\
         echo 'Error: it rains' >&2; echo bye >&2; exit 3",
    );
    let logs = tempfile::tempdir().unwrap();
    let output = Command::new(DRAINWATCH)
        .args(["internal", "hold", "--logs"])
        .arg(logs.path())
        .env(components::FOLDER_VARIABLE, folder.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(4));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("kube-scheduler on node-1: ended with exit code 3"), "{stderr}");
    assert!(stderr.contains("Error: it rains"), "{stderr}");
    let log = fs::read_to_string(logs.path().join("node-1/kube-scheduler.log")).unwrap();
    assert_eq!(log, "Error: it rains\nbye\n");
    assert!(logs.path().join("node-2/containerd.log").exists());
}

fn component_ends_later() {
    block_on(async {
        let cluster = up(&spec()).await;
        let init = cluster.nodes()[1].pid.unwrap();
        let children = fs::read_to_string(format!("/proc/{init}/task/{init}/children")).unwrap();
        let kubelet = children.split_whitespace().find(|pid| {
            let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.contains("/kubelet\0")
        });
        let kubelet = kubelet.unwrap().parse().unwrap();
        kill(Pid::from_raw(kubelet), Signal::SIGKILL).unwrap();
        let deadline = Instant::now() + Duration::from_secs(5);
        loop {
            let warnings = cluster.facts().await.unwrap().warnings;
            if warnings.iter().any(|w| w.contains("kubelet on node-2 ended by SIGKILL")) {
                break;
            }
            assert!(Instant::now() < deadline, "{warnings:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        cluster.down().await.unwrap();
    });
}

fn wrong_sysctl() {
    block_on(async {
        let mut spec = spec();
        spec.sysctls.insert("net.ipv4.no_such_thing".into(), "1".into());
        let logs = tempfile::tempdir().unwrap();
        match local().up(&spec, logs.path()).await.map(|cluster| cluster.name().to_owned()) {
            Err(error @ ClusterError::Component { .. }) => {
                assert!(error.to_string().contains("net.ipv4.no_such_thing = 1"), "{error}");
            }
            other => panic!("{other:?}"),
        }
        spec.sysctls = BTreeMap::from([("vm.swappiness".into(), "1".into())]);
        let error = local().check(&spec).unwrap_err().to_string();
        assert!(error.contains("vm.swappiness"), "{error}");
    });
}
