//! `drainwatch cluster`, the whole command, on real clusters. (Each test is held to leaving the
//! host as it was, by main.rs. Others' clusters may run beside, so each is named.)

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use drainwatch::config::ClusterSpec;
use drainwatch::workload::image;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, ListParams};
use nix::sys::signal::{SigHandler, Signal, kill, signal};
use nix::unistd::Pid;

use crate::DRAINWATCH;
use crate::cluster::in_net_of;
use crate::host::Host;
use crate::tools::{archive, block_on, client_of, pod_process, run_pod, spec, up};

/// All of them, with their names.
pub fn tests() -> Vec<(&'static str, fn())> {
    vec![
        ("cluster_up_gives_the_exit_code_of_its_command", exit_code_of_the_command),
        ("cluster_up_stays_until_a_signal", stays_until_a_signal),
        ("cluster_up_ends_on_its_way_up", ends_on_its_way_up),
        ("cluster_up_passes_sigterm_on", passes_sigterm_on),
        ("cluster_up_killed_leaves_neither_copy_nor_command", killed_leaves_nothing),
        ("cluster_up_tells_of_a_component_that_ends", component_ends),
        ("cluster_load_makes_images_known", load_makes_images_known),
        ("pods_resolve_services_in_both_directions", pods_resolve_services),
    ]
}

fn cluster_up(arguments: &[&str]) -> Command {
    let mut command = Command::new(DRAINWATCH);
    command.args(["cluster", "up"]).args(arguments).stdin(Stdio::null());
    heeds_signals(&mut command);
    command
}

/// Whatever these tests were started with: what ignores a signal hands that on.
fn heeds_signals(command: &mut Command) {
    // SAFETY: system calls only, and the default action runs no code of ours.
    unsafe {
        command.pre_exec(|| {
            for number in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
                signal(number, SigHandler::SigDfl)?;
            }
            Ok(())
        });
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn exit_code_of_the_command() {
    let script = "test -r \"$KUBECONFIG\" || exit 1\n\
                  \"$1\" cluster list | grep \"^$DRAINWATCH_CLUSTER .*$KUBECONFIG\\$\" || exit 2\n\
                  exit 7";
    let output = cluster_up(&["--nodes", "1", "--", "sh", "-c", script, "sh", DRAINWATCH]).output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
    // Standard output is the command's alone.
    let stdout = String::from_utf8(output.stdout.clone()).unwrap();
    assert_eq!(stdout.lines().count(), 1, "{stdout}");
    assert!(!Path::new(stdout.split_whitespace().last().unwrap()).exists(), "{stdout}");
    assert!(stderr(&output).contains("Kubernetes v1.34.0"), "{}", stderr(&output));

    let output = cluster_up(&["-q", "--nodes", "1", "--", "sh", "-c", "kill -9 $$"]).output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(137));
    assert_eq!((stderr(&output), output.stdout), (String::new(), vec![]));
}

/// A `cluster up` that is told to go in some way.
struct Held {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Held {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Self { child, stdout }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// The kubeconfig that it names.
    fn kubeconfig(&mut self) -> PathBuf {
        let line = self.line();
        line.strip_prefix("export KUBECONFIG=").unwrap_or_else(|| panic!("{line}")).into()
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).unwrap();
    }

    /// Its exit code, and what else it wrote to standard output.
    fn ended(mut self) -> (Option<i32>, String) {
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest).unwrap();
        (self.child.wait().unwrap().code(), rest)
    }
}

/// Not even a failed test leaves one behind.
impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn stays_until_a_signal() {
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("my kubeconfig");
    let copy_shown = copy.to_str().unwrap();
    let mut held = Held::start(&mut cluster_up(&["--kubeconfig", copy_shown]));
    let named = held.line();
    assert_eq!(named, format!("export KUBECONFIG='{copy_shown}'"));
    assert_eq!(fs::metadata(&copy).unwrap().permissions().mode() & 0o777, 0o600);
    block_on(async {
        let nodes: Api<Node> = Api::all(client_of(&copy).await);
        assert_eq!(nodes.list(&ListParams::default()).await.unwrap().items.len(), 2);
    });
    let before = fs::read(&copy).unwrap();
    let second = cluster_up(&["--kubeconfig", copy_shown]).output().unwrap();
    assert_eq!(second.status.code(), Some(5));
    assert!(stderr(&second).contains("it is there already"), "{}", stderr(&second));
    assert_eq!(fs::read(&copy).unwrap(), before);
    held.signal(Signal::SIGTERM);
    assert_eq!(held.ended(), (Some(143), String::new()));
    assert!(!copy.exists());

    // One that somebody has changed is theirs.
    let mut held = Held::start(&mut cluster_up(&["--nodes", "1", "--kubeconfig", copy_shown]));
    held.line();
    fs::write(&copy, "mine").unwrap();
    held.signal(Signal::SIGHUP);
    assert_eq!(held.ended().0, Some(129));
    assert_eq!(fs::read_to_string(&copy).unwrap(), "mine");
}

fn ends_on_its_way_up() {
    for after_ms in [0, 400, 1_500] {
        let before = Host::read();
        let mut held = Held::start(cluster_up(&["--", "true"]).stderr(Stdio::piped()));
        let mut told = BufReader::new(held.child.stderr.take().unwrap());
        let mut line = String::new();
        told.read_line(&mut line).unwrap();
        assert!(line.starts_with("bringing a cluster up: "), "{line}");
        std::thread::sleep(Duration::from_millis(after_ms));
        held.signal(Signal::SIGINT);
        assert_eq!(held.ended(), (Some(130), String::new()), "after {after_ms} ms");
        if let Err(difference) = before.wait_unchanged() {
            panic!("ended after {after_ms} ms: {difference}");
        }
    }
}

/// A command that says that it runs, and what it is told.
const PATIENT: &str = "trap 'echo told; exit 9' TERM; trap 'echo interrupted; exit 8' INT\n\
                       echo $$; while :; do sleep 0.05; done";

fn passes_sigterm_on() {
    for (signal, code, says) in
        [(Signal::SIGTERM, 9, "told\n"), (Signal::SIGINT, 8, "interrupted\n")]
    {
        // In a session of its own no terminal sends Ctrl-C to the command, too.
        let mut command = Command::new("setsid");
        heeds_signals(&mut command);
        command.args(["--wait", DRAINWATCH, "cluster", "up", "--nodes", "1", "--"]);
        let mut held = Held::start(command.args(["sh", "-c", PATIENT]).stdin(Stdio::null()));
        let pid = held.line();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")).unwrap();
        kill(Pid::from_raw(parent.trim().parse().unwrap()), signal).unwrap();
        assert_eq!(held.ended(), (Some(code), says.to_owned()));
    }
}

fn killed_leaves_nothing() {
    let before = Host::read();
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("kubeconfig");
    let copy_shown = copy.to_str().unwrap();
    let mut held =
        Held::start(&mut cluster_up(&["--kubeconfig", copy_shown, "--", "sh", "-c", PATIENT]));
    held.line();
    assert!(copy.exists());
    held.signal(Signal::SIGKILL);
    // The command is told that its cluster goes.
    assert_eq!(held.ended(), (None, "told\n".to_owned()));
    before.assert_unchanged();
    assert!(!copy.exists());
}

fn component_ends() {
    let mut held = Held::start(cluster_up(&[]).stderr(Stdio::piped()));
    let kubeconfig = held.kubeconfig();
    let told = fs::read(kubeconfig.with_file_name("cluster.json")).unwrap();
    let told: serde_json::Value = serde_json::from_slice(&told).unwrap();
    let init = &told["nodes"][1]["pid"];
    let children = fs::read_to_string(format!("/proc/{init}/task/{init}/children")).unwrap();
    let kubelet = children.split_whitespace().find(|pid| {
        let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.contains("/kubelet\0")
    });
    kill(Pid::from_raw(kubelet.unwrap().parse().unwrap()), Signal::SIGKILL).unwrap();
    let mut text = String::new();
    held.child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(held.ended().0, Some(4), "{text}");
    assert!(text.contains("error: kubelet on node-2 ended by SIGKILL"), "{text}");
    let logs = text.lines().find_map(|line| line.trim().strip_prefix("logs: ")).unwrap();
    assert!(Path::new(logs).join("node-2/kubelet.log").exists(), "{text}");
    fs::remove_dir_all(logs).unwrap();
}

fn load_makes_images_known() {
    let archive = archive();
    let load = |cluster: &str| {
        let mut command = Command::new(DRAINWATCH);
        command.args(["cluster", "load", "--cluster", cluster]).arg(archive.path());
        command.output().unwrap()
    };
    block_on(async {
        let cluster = up(&spec()).await;
        let output = load(cluster.name());
        assert!(output.status.success(), "{}", stderr(&output));
        let names = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(names, format!("{}\ndrainwatch.local/pause:1\n", image::image_name()));
        assert!(stderr(&output).contains("(node-2)"), "{}", stderr(&output));
        run_pod(cluster.client(), "loaded").await;

        let name = cluster.name().to_owned();
        cluster.down().await.unwrap();
        let output = load(&name);
        assert_eq!(output.status.code(), Some(4));
        assert!(stderr(&output).contains(&format!("no cluster is named {name}")));
    });
}

fn pods_resolve_services() {
    let setup = Command::new(DRAINWATCH).args(["setup", "--dns"]).output().unwrap();
    assert!(setup.status.success(), "{}", stderr(&setup));
    block_on(async {
        let cluster = up(&ClusterSpec { dns: true, ..spec() }).await;
        crate::tools::load_probe(&*cluster).await;
        let asker = run_pod(cluster.client(), "asker").await;
        let pid = pod_process(cluster.name(), asker);
        let told = fs::read_to_string(format!("/proc/{pid}/root/etc/resolv.conf")).unwrap();
        assert!(told.contains("nameserver 10.96.0.10\n"), "{told}");
        assert!(told.contains("search default.svc.cluster.local "), "{told}");
        let ask = |name: &'static str, kind| {
            tokio::task::spawn_blocking(move || in_net_of(pid, || ask(name, kind)))
        };
        let address = ask("kubernetes.default.svc.cluster.local", 1).await.unwrap();
        assert!(address.ends_with(&[0, 4, 10, 96, 0, 1]), "{address:?}");
        let name = ask("1.0.96.10.in-addr.arpa", 12).await.unwrap();
        let end = b"\x0akubernetes\x07default\x03svc\x07cluster\x05local\0";
        assert!(name.ends_with(end), "{name:?}");
        let fixed = cluster.facts().await.unwrap().fixed;
        assert_eq!((&*fixed["dns"], &*fixed["version/coredns"]), ("CoreDNS", "v1.12.1"));
        cluster.down().await.unwrap();
    });
}

/// What the cluster's DNS answers to a question for a name and a type.
fn ask(name: &str, kind: u8) -> Vec<u8> {
    let mut question = vec![1, 2, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        question.push(label.len() as u8);
        question.extend(label.bytes());
    }
    question.extend([0, 0, kind, 0, 1]);
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        socket.send_to(&question, "10.96.0.10:53").unwrap();
        let mut answer = [0; 512];
        match socket.recv(&mut answer) {
            Ok(length) => return answer[..length].to_vec(),
            Err(error) => assert!(Instant::now() < deadline, "{name}: {error}"),
        }
    }
}
