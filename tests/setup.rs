//! `drainwatch setup`, the whole command, on made-up machines.

mod machine;

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use assert_cmd::assert::OutputAssertExt;
use machine::{Machine, Mirror, write_script};
use predicates::prelude::PredicateBooleanExt;
use predicates::str::contains;

/// A port that nobody listens on.
const CLOSED: &str = "http://127.0.0.1:1";

fn stderr(command: &mut Command) -> String {
    String::from_utf8(command.output().unwrap().stderr).unwrap()
}

#[test]
fn release_binaries_are_verified_and_kept_and_then_nothing_is_left_to_do() {
    let (machine, mirror) = (Machine::new(), Mirror::full());
    let ready = "Ready for Kubernetes 1.34.0:\n\
                 \x20 etcd         v3.6.4    official release binaries\n\
                 \x20 containerd   v2.1.5    official release binaries\n\
                 \x20 CNI plugins  v1.8.0    official release binaries\n\
                 \x20 Kubernetes   v1.34.0   official release binaries\n";
    machine
        .setup(&mirror.url)
        .assert()
        .success()
        .stdout(ready)
        .stderr(contains("download Kubernetes v1.34.0 from dl.k8s.io (mirror http://127.0.0.1:"));
    let etcd = machine.components().join("etcd/v3.6.4");
    let etcd = fs::read_dir(etcd).unwrap().next().unwrap().unwrap().path();
    let mut names: Vec<_> =
        fs::read_dir(&etcd).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["etcd", "manifest.json"]);
    let manifest = fs::read_to_string(etcd.join("manifest.json")).unwrap();
    assert!(manifest.contains("/github.com/etcd-io/etcd/releases/download/v3.6.4/"), "{manifest}");
    assert!(!machine.path("cache/drainwatch/tmp").exists());

    let requests = mirror.requests.lock().unwrap().len();
    let began = Instant::now();
    machine
        .setup(&mirror.url)
        .assert()
        .success()
        .stderr("")
        .stdout(contains("Nothing to do: Kubernetes 1.34.0 is ready (in "));
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    assert_eq!(mirror.requests.lock().unwrap().len(), requests);
}

#[test]
fn coredns_and_kubectl_are_had_where_they_are_asked_for() {
    let (machine, mirror) = (Machine::new(), Mirror::full());
    machine.setup(&mirror.url).assert().success();
    assert!(!machine.components().join("coredns").exists());
    assert!(!machine.components().join("kubectl").exists());
    // What was there stays there.
    machine
        .setup(&mirror.url)
        .args(["--dns", "--kubectl"])
        .assert()
        .success()
        .stdout(contains("CoreDNS      v1.12.1   official release binaries\n"))
        .stdout(contains("kubectl      v1.34.0   official release binaries\n"))
        .stderr(contains("download CoreDNS v1.12.1 from github.com (mirror"))
        .stderr(contains("download kubectl v1.34.0 from dl.k8s.io (mirror"))
        .stderr(contains("etcd").not());
    assert_eq!(mirror.count("/kubelet"), 1);

    let machine = Machine::new();
    machine.go("go1.26.8", "");
    machine
        .setup(CLOSED)
        .args(["--dns", "--kubectl"])
        .assert()
        .success()
        .stdout(contains("CoreDNS      v1.12.1   built from Go modules with go1.26.8\n"))
        .stdout(contains("kubectl      v1.34.0   built from Go modules with go1.26.8\n"));
    let calls = machine.go_calls();
    assert!(calls.contains(" github.com/coredns/coredns\n"), "{calls}");
    assert!(calls.contains(" k8s.io/kubernetes/cmd/kubectl\n"), "{calls}");
}

#[test]
fn a_wrong_checksum_is_refused_and_nothing_of_it_is_kept() {
    let (machine, mirror) = (Machine::new(), Mirror::full());
    mirror.change("etcd-v3.6.4", |answer| answer.body[100] ^= 1);
    machine.setup(&mirror.url).assert().code(4).stderr(
        contains("refused: http")
            .and(contains("published is"))
            .and(contains("Go is not installed on this machine"))
            .and(contains("go.dev/dl")),
    );
    assert!(!machine.components().join("etcd").exists());
    assert!(!machine.path("cache/drainwatch/tmp").exists());
}

#[test]
fn a_connection_that_breaks_is_tried_once_more() {
    let (machine, mirror) = (Machine::new(), Mirror::full());
    mirror.change("etcd-v3.6.4", |answer| answer.body.truncate(100));
    machine.setup(&mirror.url).assert().code(4).stderr(contains("broke off after 100 bytes"));
    assert_eq!(mirror.count(".tar.gz"), 2);
    assert!(!machine.components().join("etcd").exists());
}

#[test]
fn what_is_not_published_is_built() {
    let (machine, mirror) = (Machine::new(), Mirror::full());
    machine.go("go1.26.8", "");
    mirror.change("kubelet", |answer| answer.status = 404);
    machine
        .setup(&mirror.url)
        .assert()
        .success()
        .stderr(contains("kubelet.sha256 is not there; building from Go modules instead"))
        .stdout(
            contains("etcd         v3.6.4    official release binaries")
                .and(contains("Kubernetes   v1.34.0   built from Go modules with go1.26.8")),
        );
    let calls = machine.go_calls();
    assert!(calls.contains("mod download -json k8s.io/kubernetes@v1.34.0"), "{calls}");
    assert!(calls.contains("-X k8s.io/client-go/pkg/version.gitVersion=v1.34.0"), "{calls}");
}

#[test]
fn closed_hosts_cost_a_line_each_and_little_time() {
    for (mirror, says) in [(CLOSED.to_owned(), "can't be reached ("), (blocked(), "answers 403")] {
        let machine = Machine::new();
        machine.go("go1.26.8", "");
        let began = Instant::now();
        let text = stderr(&mut machine.setup(&mirror));
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
        let notes: Vec<&str> = text.lines().filter(|line| line.starts_with("note: ")).collect();
        assert_eq!(notes.len(), 2, "{text}");
        assert!(
            notes[0].starts_with(&format!("note: github.com (mirror {mirror}) {says}")),
            "{text}"
        );
        assert!(
            notes[1].starts_with(&format!("note: dl.k8s.io (mirror {mirror}) {says}")),
            "{text}"
        );
        machine.setup(&mirror).assert().success().stdout(contains("Nothing to do"));
    }
}

fn blocked() -> String {
    let mirror = Mirror::full();
    mirror.change("/", |answer| answer.status = 403);
    mirror.url
}

#[test]
fn an_old_go_is_told_which_one_is_needed() {
    let machine = Machine::new();
    machine.go("go1.19.8", "");
    machine.setup(CLOSED).assert().code(4).stderr(
        contains("etcd v3.6.4 needs Go 1.24.0 or newer to be built").and(contains("is go1.19.8")),
    );
}

#[test]
fn a_failed_build_tells_its_last_lines_and_its_log() {
    let machine = Machine::new();
    machine.go("go1.26.8", "echo 'undefined: frobnicate' >&2; exit 1");
    let log = machine.path("cache/drainwatch/logs/etcd-v3.6.4.log");
    machine.setup(CLOSED).assert().code(4).stderr(
        contains("go: exit status: 1; its last lines:\n    undefined: frobnicate")
            .and(contains(format!("logs: {}", log.display()))),
    );
    assert!(log.exists());
    assert!(!machine.path("cache/drainwatch/tmp").exists());
}

#[test]
fn a_folder_is_copied_when_it_is_what_it_should_be() {
    let machine = Machine::new();
    let folder = machine.folder_of_components();
    let from = |version: &str| {
        let mut command = machine.setup(CLOSED);
        command.arg("--from").arg(&folder).args(["--kubernetes", version]);
        command
    };
    from("1.34.1").assert().code(4).stderr(contains("kube-apiserver is v1.34.0, not v1.34.1"));
    let source = format!("Kubernetes   v1.34.0   folder {}\n", folder.display());
    from("v1.34.0").assert().success().stdout(contains(source));
    from("1.34.0").assert().success().stdout(contains("Nothing to do"));

    // A file that lost its last bytes is noticed and replaced.
    let kubelet = glob(&machine, "kubernetes/v1.34.0").join("kubelet");
    fs::write(&kubelet, "short").unwrap();
    from("1.34.0").assert().success().stderr(
        contains("can't be relied on: Kubernetes v1.34.0: kubelet has 5 bytes")
            .and(contains("copy etcd").not()),
    );

    fs::remove_file(folder.join("ctr")).unwrap();
    fs::remove_dir_all(machine.components()).unwrap();
    from("1.34.0").assert().code(4).stderr(contains("has no executable ctr"));
}

fn glob(machine: &Machine, below: &str) -> std::path::PathBuf {
    let folder = machine.components().join(below);
    fs::read_dir(folder).unwrap().next().unwrap().unwrap().path()
}

#[test]
fn a_folder_that_the_user_names_for_good_is_used_as_it_is() {
    let machine = Machine::new();
    let folder = machine.folder_of_components();
    write_script(&folder.join("etcd"), "echo etcd Version: 3.5.9");
    let setup = |version: &str| {
        let mut command = machine.setup(CLOSED);
        command.env("DRAINWATCH_COMPONENTS", &folder).args(["--kubernetes", version]);
        command
    };
    setup("1.34.0").assert().success().stdout(contains(format!("(in {})", folder.display())));
    setup("1.34.2").assert().code(4).stderr(contains("its kube-apiserver is v1.34.0, not v1.34.2"));
    fs::remove_file(folder.join("portmap")).unwrap();
    setup("1.34.0").assert().code(4).stderr(contains("it has no executable portmap"));
    assert!(!machine.path("cache").exists());
}

#[test]
fn a_wrong_command_line_is_code_2() {
    let machine = Machine::new();
    for version in ["1.34", "1.12.0", "main"] {
        let mut command = machine.setup(CLOSED);
        command.args(["--kubernetes", version]);
        command.assert().code(2).stderr(contains(format!("{version:?}")));
    }
    let mut command = machine.setup(CLOSED);
    command.args(["--from", "/does/not/exist"]);
    command.assert().code(2).stderr(contains("--from /does/not/exist: this is not a folder"));
}

#[test]
fn a_dry_run_says_all_and_does_nothing() {
    let (machine, mirror) = (Machine::new(), Mirror::full());
    fs::remove_file(machine.path("tools/nft")).unwrap();
    let mut command = machine.setup(&mirror.url);
    command.args(["--dry-run", "--kubernetes", "1.34.0", "--kubernetes", "1.35.4"]);
    command.assert().success().stdout(
        contains("Making Kubernetes 1.34.0 and 1.35.4 ready for local clusters, as ")
            .and(contains("NOT POSSIBLE: install nftables: "))
            .and(contains("download Kubernetes v1.35.4 from dl.k8s.io"))
            .and(contains("5 to 7 minutes on 2 cores")),
    );
    assert!(!machine.path("cache").exists());
    assert!(mirror.requests.lock().unwrap().is_empty());
}

#[test]
fn tools_come_from_apt_as_root_and_are_named_otherwise() {
    let (machine, mirror) = (Machine::new(), Mirror::full());
    for tool in ["nft", "conntrack"] {
        fs::remove_file(machine.path("tools").join(tool)).unwrap();
    }
    machine
        .setup(&mirror.url)
        .assert()
        .code(4)
        .stderr(contains("the host's nft, conntrack must be installed, and there is no apt-get"));

    // Its lists are too old at first.
    let (tools, log) = (machine.path("tools"), machine.path("apt.log"));
    machine.tool(
        "apt-get",
        &format!(
            "PATH=/usr/bin:/bin; cd {}; echo \"$@\" >> {log}; grep -q update {log} || exit 100\n\
             for t in nft conntrack; do cp runc $t; done",
            tools.display(),
            log = log.display()
        ),
    );
    let result = machine.setup(&mirror.url).assert();
    if nix::unistd::geteuid().is_root() {
        result.success().stderr(contains("install conntrack nftables with apt-get: "));
        let options = "-o DPkg::Lock::Timeout=60";
        let install = format!("{options} install -y --no-install-recommends conntrack nftables\n");
        let calls = fs::read_to_string(&log).unwrap();
        assert_eq!(calls, format!("{install}{options} update\n{install}"));
    } else {
        result.code(4).stderr(contains("only root can").and(contains("sudo apt-get install -y")));
        assert!(!log.exists());
    }
}

#[test]
fn files_that_cannot_be_written_are_code_5() {
    let machine = Machine::new();
    fs::write(machine.path("cache"), "a file").unwrap();
    machine.setup(CLOSED).assert().code(5).stderr(contains("could not make "));
}

#[test]
fn ctrl_c_ends_the_build_with_its_descendants_and_a_second_setup_waits_until_then() {
    let machine = Machine::new();
    let pid = machine.path("pid");
    machine.go("go1.26.8", &format!("sleep 300 & echo $! > {}; wait", pid.display()));
    let mut first = machine.setup(CLOSED).stderr(Stdio::null()).spawn().unwrap();
    wait_for(|| fs::read_to_string(&pid).is_ok_and(|text| text.ends_with('\n')));

    machine.go("go1.26.8", "");
    let mut second =
        machine.setup(CLOSED).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(second.stderr.take().unwrap()).lines();
    let waiting = "waiting for another drainwatch setup to end";
    assert!(lines.by_ref().map(Result::unwrap).any(|line| line == waiting));

    let process = nix::unistd::Pid::from_raw(first.id().cast_signed());
    nix::sys::signal::kill(process, nix::sys::signal::Signal::SIGINT).unwrap();
    assert_eq!(first.wait().unwrap().code(), Some(130));
    let sleeper = fs::read_to_string(&pid).unwrap();
    let stat = format!("/proc/{}/stat", sleeper.trim());
    // It may be a zombie for a moment.
    wait_for(|| fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z ")));

    assert_eq!(lines.filter(|line| line.as_ref().unwrap().starts_with("error")).count(), 0);
    assert!(second.wait().unwrap().success());
}

fn wait_for(mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain");
        std::thread::sleep(Duration::from_millis(20));
    }
}
