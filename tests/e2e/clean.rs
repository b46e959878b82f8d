//! `drainwatch clean` on a host with clusters that run, that were killed, and with what only looks
//! like a cluster's. (Each test is held to leaving the host as it was, by main.rs.)

use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, ListParams};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::DRAINWATCH;
use crate::host::Host;
use crate::tools::{Holder, block_on};

/// All of them, with their names.
pub fn tests() -> Vec<(&'static str, fn())> {
    vec![
        ("clean_removes_a_killed_cluster_and_no_other", killed_beside_running),
        ("clean_ends_orphans_and_what_they_stand_in", orphans),
        ("clean_follows_no_link_and_touches_nothing_strange", strange),
        ("clean_empties_a_cache", cache),
    ]
}

const ROOT: &str = "/run/drainwatch";

/// Exit code, standard output and standard error.
fn clean(arguments: &[&str]) -> (i32, String, String) {
    answer(Command::new(DRAINWATCH).arg("clean").args(arguments))
}

fn answer(command: &mut Command) -> (i32, String, String) {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// Process and name of the supervisor that is new since `before`.
fn supervisor(before: &Host) -> (i32, String) {
    let processes = before.new_since("process");
    let line = processes.iter().find(|p| p.contains("internal supervise")).unwrap();
    let words: Vec<&str> = line.split_whitespace().collect();
    (words[0].parse().unwrap(), words.last().unwrap().to_string())
}

fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn killed_beside_running() {
    let before = Host::read();
    let mut running = Holder::plain();
    running.up();
    let (kept_by, kept) = supervisor(&before);

    let between = Host::read();
    let mut killed = Holder::plain();
    killed.up();
    let (pid, name) = supervisor(&between);
    kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
    killed.signal(Signal::SIGKILL);
    // The kernel ends the nodes with their supervisor: only folders stay.
    wait_for("the nodes' end", || between.new_since("process").is_empty());

    let folder = format!("{ROOT}/{name}");
    let line = format!("\n  folder {folder}\n");
    let still = format!("cluster {kept}, kept by process {kept_by}\n");
    let (code, found, _) = clean(&["--dry-run"]);
    assert_eq!(code, 0, "{found}");
    assert!(found.contains(&line), "{found}");
    assert!(found.contains(&format!("/drainwatch/{name}\n")), "no cgroup: {found}");
    assert!(found.contains(&still), "{found}");
    assert!(Path::new(&folder).exists());

    let (code, _, error) = clean(&[]);
    assert_eq!(code, 2, "{error}");
    assert!(error.contains("with --yes"), "{error}");
    assert!(Path::new(&folder).exists());

    let (code, found, error) = clean(&["--yes"]);
    assert_eq!(code, 0, "{found}{error}");
    assert!(!Path::new(&folder).exists());
    let (code, found, _) = clean(&["--yes"]);
    assert_eq!(code, 0, "{found}");
    assert!(!found.contains(&name), "{found}");
    assert!(found.contains(&still), "{found}");

    // Its components can't be taken away from it either.
    let (_, found, _) = clean(&["--cache", "--dry-run"]);
    let uses = |line: &str| line.contains("Kubernetes v1.34.0 in ") && line.contains(&kept);
    assert!(found.lines().any(uses), "{found}");
    let nodes = block_on(async {
        let api: Api<Node> = Api::all(running.client().await);
        api.list(&ListParams::default()).await.unwrap().items.len()
    });
    assert_eq!(nodes, 2);
    assert!(running.end().success());
}

/// A cluster's name that is nobody's.
fn made_up(which: u32) -> String {
    let name = format!("dw-{:06x}", (std::process::id() * 16 + which) & 0xff_ffff);
    assert!(!Path::new(ROOT).join(&name).exists());
    name
}

/// Folders of a cluster in each of the host's cgroup hierarchies.
fn cgroups(name: &str) -> Vec<PathBuf> {
    let mountinfo = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mounts = mountinfo.lines().filter(|line| line.contains(" - cgroup"));
    let tops = mounts.map(|line| Path::new(line.split(' ').nth(4).unwrap()).join("drainwatch"));
    tops.map(|top| top.join(name)).collect()
}

/// A process that no supervisor started, and that waits for one's order.
fn orphan(arguments: &[&str], in_namespaces: &[&str]) -> Child {
    let mut command = Command::new("unshare");
    command
        .args(in_namespaces)
        .args(["--fork", "--kill-child", "bash", "-c", "exec -a drainwatch \"$@\"", "bash"])
        .args([DRAINWATCH, "internal"])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.spawn().unwrap()
}

/// The process whose command line ends so.
fn find(end: &str) -> Option<i32> {
    let pids = fs::read_dir("/proc").unwrap().flatten();
    pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).find(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        line == format!("drainwatch internal {end} ")
    })
}

fn orphans() {
    let name = made_up(0);
    let folder = Path::new(ROOT).join(&name);
    fs::create_dir_all(folder.join("node-1/conf")).unwrap();
    fs::write(folder.join("node-1/conf/ca.key"), "secret").unwrap();
    let link = name.replace('-', "");
    let peer = format!("x{link}");
    let added = Command::new("ip")
        .args(["link", "add", &link, "type", "veth", "peer", "name", &peer])
        .status()
        .unwrap();
    assert!(added.success());
    let mut node = orphan(&["node-init", &name, "node-1"], &["--pid"]);
    let words = format!("node-init {name} node-1");
    wait_for("the orphan", || find(&words).is_some());
    let pid = find(&words).unwrap();
    let cgroups = cgroups(&name);
    for cgroup in cgroups.iter().filter(|folder| !folder.to_string_lossy().contains("cpuset")) {
        fs::create_dir_all(cgroup.join("node-1/daemons")).unwrap();
        fs::write(cgroup.join("node-1/daemons/cgroup.procs"), pid.to_string()).unwrap();
    }
    // One that looks the same and is in this host's own namespaces: not as a supervisor makes it.
    let mut bystander = Command::new(DRAINWATCH)
        .arg0("drainwatch")
        .args(["internal", "node-init", &name, "node-2"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();

    let (code, found, _) = clean(&["--dry-run"]);
    assert_eq!(code, 0);
    for line in [
        format!("  process {pid} ({words}), whose supervisor is gone\n"),
        format!("  link {link}\n"),
        format!("/drainwatch/{name}\n"),
        format!("  folder {}\n", folder.display()),
    ] {
        assert!(found.contains(&line), "{line:?} is not in {found}");
    }
    assert!(!found.contains("node-2"), "{found}");
    assert!(find(&words).is_some());

    let (code, found, error) = clean(&["--yes"]);
    assert_eq!(code, 0, "{found}{error}");
    node.wait().unwrap();
    assert_eq!(find(&words), None);
    assert!(!folder.exists());
    assert!(!Path::new("/sys/class/net").join(&link).exists());
    assert!(cgroups.iter().all(|cgroup| !cgroup.exists()));
    assert!(bystander.try_wait().unwrap().is_none());
    bystander.kill().unwrap();
    bystander.wait().unwrap();
    let (_, found, _) = clean(&["--dry-run"]);
    assert!(!found.contains(&name) && !found.contains(&link), "{found}");

    // The holder of a bridge has no name: the namespace tells it.
    let mut command = Command::new(DRAINWATCH);
    command.arg0("drainwatch").args(["internal", "hold-bridge"]).stdin(Stdio::piped());
    // SAFETY: one system call.
    unsafe { command.pre_exec(|| Ok(unshare(CloneFlags::CLONE_NEWNET)?)) };
    let mut holder = command.spawn().unwrap();
    let line = format!("process {} (hold-bridge), whose supervisor is gone", holder.id());
    let (_, found, _) = clean(&["--dry-run"]);
    assert!(found.contains(&line), "{found}");
    let (code, ..) = clean(&["--yes"]);
    assert_eq!(code, 0);
    assert_eq!(holder.wait().unwrap().signal(), Some(9));
}

fn strange() {
    let precious = tempfile::tempdir().unwrap();
    fs::write(precious.path().join("file"), "").unwrap();
    let root = Path::new(ROOT);
    fs::create_dir_all(root).unwrap();
    let (link, busy) = (made_up(1), made_up(2));
    std::os::unix::fs::symlink(precious.path(), root.join(&link)).unwrap();
    let folders = ["..dw-000000", "dw-", "dw-zzzzzz", "dw-0000000", "a\nb"].map(|n| root.join(n));
    for folder in &folders {
        fs::create_dir_all(folder.join("inside")).unwrap();
    }
    // A mount in a killed cluster's folder, with something in it that is not the cluster's.
    let mount = root.join(&busy).join("mount");
    fs::create_dir_all(&mount).unwrap();
    let bound = Command::new("mount").arg("--bind").arg(precious.path()).arg(&mount).status();
    assert!(bound.unwrap().success());

    let (code, found, error) = clean(&["--yes"]);
    assert_eq!(code, 0, "{found}{error}");
    assert!(found.contains(&format!("{ROOT}/{link}: ")), "{found}");
    assert!(found.contains(&format!("{ROOT}/a\\nb\": no cluster has such a name")), "{found}");
    assert!(found.contains(&format!("  mount {}\n", mount.display())), "{found}");
    assert!(folders.iter().all(|folder| folder.join("inside").exists()));
    assert!(root.join(&link).symlink_metadata().is_ok());
    assert!(!root.join(&busy).exists());
    assert!(precious.path().join("file").exists());

    fs::remove_file(root.join(&link)).unwrap();
    for folder in &folders {
        fs::remove_dir_all(folder).unwrap();
    }
    let _ = fs::remove_dir(root); // stays where another cluster is up
}

fn cache() {
    let home = tempfile::tempdir().unwrap();
    let cache = home.path().join("drainwatch");
    for file in ["components/etcd/v3.6.4/linux-amd64/etcd", "logs/a.log", "tmp/etcd/half", "mine"] {
        let path = cache.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }
    let clean = |arguments: &[&str]| {
        let mut command = Command::new(DRAINWATCH);
        answer(command.arg("clean").args(arguments).env("XDG_CACHE_HOME", home.path()))
    };
    let (code, found, error) = clean(&["--yes"]);
    assert_eq!(code, 0, "{found}{error}");
    assert!(!cache.join("tmp").exists());
    assert!(cache.join("components/etcd").exists());

    // While a setup is at work, its cache is its own.
    let lock = fs::File::open(cache.join("lock")).unwrap();
    lock.lock().unwrap();
    let (code, _, error) = clean(&["--cache", "--yes"]);
    assert_eq!(code, 5, "{error}");
    assert!(error.contains("stays: drainwatch setup is at work"), "{error}");
    assert!(cache.join("components/etcd").exists());
    drop(lock);

    let (code, found, error) = clean(&["--cache", "--yes"]);
    assert_eq!(code, 0, "{found}{error}");
    let left: Vec<_> = fs::read_dir(&cache).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| name == "mine" || name == "lock"), "{left:?}");
    fs::remove_file(cache.join("mine")).unwrap();
    fs::create_dir_all(cache.join("logs")).unwrap();
    assert_eq!(clean(&["--cache", "--yes"]).0, 0);
    assert!(!cache.exists());
    let (code, found, _) = clean(&["--cache", "--yes"]);
    assert_eq!(code, 0);
    assert!(!found.contains(home.path().to_str().unwrap()), "{found}");
}
