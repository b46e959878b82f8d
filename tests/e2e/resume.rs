//! Runs that are stopped and gone on with: killed at any instant, interrupted, out of disk, in
//! another environment. What results is what an undisturbed run gives.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use drainwatch::observation::Protocol;
use drainwatch::record::{ArmStage, Run, Trial};
use drainwatch::verdict::{Fate, Outcome};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::host::Host;
use crate::tools::block_on;
use crate::trials::{Lab, assert_whole, fates, trials, words};

/// The tests of this file.
pub fn tests() -> Vec<(&'static str, fn())> {
    vec![
        ("a_run_killed_at_any_instant_and_resumed_is_as_one_undisturbed", killed_at_any_instant),
        ("an_interrupted_run_is_gone_on_with_and_looked_at", interrupted_and_gone_on_with),
        ("a_full_disk_ends_a_run_and_once_there_is_room_it_goes_on", full_disk),
        ("a_folder_that_vanishes_ends_its_run", vanished_folder),
    ]
}

/// How often the run is killed: by default few times, for the whole bar 20 times.
const KILLS: &str = "DRAINWATCH_KILLS";
/// Chooses the instants.
const SEED: &str = "DRAINWATCH_SEED";
/// How long any of these runs may take.
const LIMIT: Duration = Duration::from_secs(300);

/// Two arms of two trials.
fn lab() -> Lab {
    let exit = "sigterm = \"exit\"";
    let evict = format!("{exit}\ntrigger = \"evict\"");
    Lab::new(&[("exit", exit), ("evict", &evict)], "[cluster]\nprovider = \"local\"\n")
}

/// Few heartbeats: a trial is to be measured on a busy machine too.
const WINDOWS: [&str; 8] = [
    "--set",
    "settle=3s",
    "--set",
    "repeats=2",
    "--set",
    "flows.tcp_interval=400ms",
    "--set",
    "flows.udp_interval=400ms",
];

/// The command that begins its run, or goes on with it: by the file where the run was ended
/// before its plan was written.
fn next(lab: &Lab) -> Command {
    let output = lab.output();
    if output.join("run.json").exists() {
        resume(lab)
    } else if output.exists() {
        let mut command = resume(lab);
        command.arg(lab.matrix()).args(WINDOWS);
        command
    } else {
        let mut command = lab.apply();
        command.args(WINDOWS);
        command
    }
}

fn resume(lab: &Lab) -> Command {
    let mut command = Command::new(super::DRAINWATCH);
    command.args(["apply", "--resume"]).arg(lab.output());
    command
}

/// Goes on until every trial is measured: a busy machine may abort one.
fn to_the_end(lab: &Lab) {
    for _ in 0..5 {
        let output = next(lab).output().expect("drainwatch runs");
        match output.status.code() {
            Some(0) => return,
            Some(3) => eprintln!("once more: {}", words(&output)),
            _ => panic!("{}", words(&output)),
        }
    }
    panic!("trials were aborted five times over");
}

/// What the tables say that does not differ from run to run: each arm's n and fates, and each
/// trial's.
fn tables(folder: &Path) -> BTreeMap<String, Vec<String>> {
    let mut rows = BTreeMap::new();
    for (file, fixed) in [("summary.csv", &["arm", "n"][..]), ("trials.csv", &["id", "outcome"])] {
        let mut reader = csv::Reader::from_path(folder.join(file)).expect("a table");
        let header = reader.headers().expect("a header").clone();
        let is_fate = |name: &str| {
            let fate = name.strip_prefix("tcp_").or(name.strip_prefix("udp_"));
            fate.is_some_and(|fate| Fate::ALL.iter().any(|f| f.name().replace('-', "_") == fate))
        };
        for row in reader.records() {
            let row = row.expect("a row");
            let cells = header.iter().zip(&row);
            let cells = cells.filter(|(name, _)| fixed.contains(name) || is_fate(name));
            let cells = cells.map(|(name, cell)| format!("{name}={cell}")).collect();
            let known = rows.insert(format!("{file} {}", &row[0]), cells);
            assert_eq!(known, None, "{file} lists {} twice", &row[0]);
        }
    }
    rows
}

/// The records of a run that stand, by their place.
fn standing(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for arm in ["exit", "evict"] {
        for repeat in 1..=2 {
            let path = folder.join(format!("{arm}/trial-{repeat:03}.json"));
            if let Ok(bytes) = std::fs::read(&path) {
                found.insert(path, bytes);
            }
        }
    }
    found
}

/// Instants from a seed: spread over a span, each part of it hit once, in no order.
struct Instants {
    state: u64,
    left: Vec<f64>,
}

impl Instants {
    fn new(seed: u64, count: u32) -> Self {
        let mut instants = Self { state: seed, left: Vec::new() };
        let parts = (0..count).map(|part| (f64::from(part) + instants.chance()) / f64::from(count));
        instants.left = parts.collect();
        instants
    }

    /// From 0 to 1 (splitmix64).
    fn chance(&mut self) -> f64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn next(&mut self) -> Option<f64> {
        let count = self.left.len();
        (count > 0).then(|| {
            let at = (self.chance() * count as f64) as usize;
            self.left.swap_remove(at.min(count - 1))
        })
    }
}

/// Waits for its end until then.
fn ended_by(child: &mut Child, instant: Instant) -> Option<ExitStatus> {
    loop {
        if let Some(status) = child.try_wait().expect("it is ours") {
            return Some(status);
        }
        if Instant::now() >= instant {
            return None;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn killed_at_any_instant() {
    let number = |name: &str| std::env::var(name).ok().map(|n| n.parse().expect("a number"));
    let (kills, seed) = (number(KILLS).unwrap_or(4), number(SEED).unwrap_or(1));
    let undisturbed = lab();
    let begun = Instant::now();
    to_the_end(&undisturbed);
    let whole = begun.elapsed();
    let expected = tables(&undisturbed.output());
    assert_eq!(expected.len(), 2 + 4, "{expected:#?}");

    let mut instants = Instants::new(seed, u32::try_from(kills).expect("some kills"));
    let mut lab = lab();
    while let Some(part) = instants.next() {
        // A run that is killed again and again still comes on by a trial or two.
        let after = whole.mul_f64(part * 0.7);
        let before = Host::read();
        let earlier = standing(&lab.output());
        let mut command = next(&lab);
        let mut child =
            command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
        let status = ended_by(&mut child, Instant::now() + after);
        if status.is_none() {
            child.kill().expect("it is ours");
            child.wait().expect("it ends");
        }
        if let Err(difference) = before.wait_unchanged() {
            panic!("killed after {after:?}: {difference}");
        }
        let now = standing(&lab.output());
        let kept = earlier.iter().all(|(path, bytes)| now.get(path) == Some(bytes));
        assert!(kept, "killed after {after:?}: a trial was run twice");
        for path in now.keys() {
            Trial::read(path).unwrap_or_else(|error| panic!("killed after {after:?}: {error}"));
        }
        let of = format!("killed after {after:.1?} with {} trials before", earlier.len());
        eprintln!("{of}, {} now: {status:?}", now.len());
        if now.len() == 4 {
            assert_as_undisturbed(&lab, &expected);
            lab = self::lab();
        }
    }
    if lab.output().exists() {
        assert_as_undisturbed(&lab, &expected);
    }
}

/// Goes on with it to its end: what results is what an undisturbed run gives.
fn assert_as_undisturbed(lab: &Lab, expected: &BTreeMap<String, Vec<String>>) {
    to_the_end(lab);
    assert_eq!(tables(&lab.output()), *expected);
    assert_whole(&lab.output());
    for trial in trials(&lab.output()) {
        assert_eq!(trial.outcome, Outcome::Measured);
        assert_eq!(fates(&trial, Protocol::Tcp), [Fate::Reset; 4], "{}", trial.id);
    }
}

/// A command under way, whose lines on standard error are waited for.
struct Told {
    child: Child,
    lines: mpsc::Receiver<String>,
    said: Vec<String>,
}

impl Told {
    fn start(mut command: Command) -> Self {
        let mut child =
            command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().expect("it starts");
        let stderr = BufReader::new(child.stderr.take().expect("its stderr"));
        let (send, lines) = mpsc::channel();
        std::thread::spawn(move || {
            stderr.lines().map_while(Result::ok).try_for_each(|line| send.send(line))
        });
        Self { child, lines, said: Vec::new() }
    }

    /// The first line from here on that holds this.
    fn line(&mut self, text: &str) -> String {
        let end = Instant::now() + LIMIT;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left);
            let line = line.unwrap_or_else(|_| panic!("no {text:?}: {:#?}", self.said));
            self.said.push(line.clone());
            if line.contains(text) {
                return line;
            }
        }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).expect("it is ours");
    }

    /// Its exit code, and all that it said.
    fn end(mut self) -> (Option<i32>, String) {
        let status = ended_by(&mut self.child, Instant::now() + LIMIT).expect("it ends");
        self.said.extend(self.lines.iter());
        (status.code(), self.said.join("\n"))
    }
}

/// Not even a failed test leaves one behind.
impl Drop for Told {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn verbose(mut command: Command) -> Command {
    command.arg("-v");
    command
}

/// Changes what a file says.
fn edit(path: &Path, from: &str, to: &str) {
    let text = std::fs::read_to_string(path).expect("a file");
    assert!(text.contains(from), "{}: {text}", path.display());
    std::fs::write(path, text.replace(from, to)).expect("it can be written");
}

fn interrupted_and_gone_on_with() {
    let (lab, before) = (lab(), Host::read());
    let output = lab.output();
    let mut told = Told::start(verbose(next(&lab)));
    told.line("evict/001: observe");
    told.signal(Signal::SIGINT);
    let (code, said) = told.end();
    assert_eq!(code, Some(130), "{said}");
    let hint = format!(
        "of 4 trials are missing or aborted; to run them: drainwatch apply --resume {}",
        output.display()
    );
    assert!(said.contains(&hint), "{said}");
    assert!(output.join("evict/trial-001.aborted.json").is_file());
    assert!(output.join("evict/logs").is_dir());

    // As if the first arm had been measured by another kernel.
    let record = Trial::read(&output.join("exit/trial-001.json")).expect("a record");
    let (digest, other) = (record.environment.digest.clone(), "0".repeat(64));
    let _ = std::fs::remove_file(output.join("exit/trial-002.json"));
    let environment = output.join("environment/exit.json");
    let kernel = "\"node/node-1/kernel\": \"";
    for path in [&environment, &output.join("exit/trial-001.json")] {
        edit(path, &digest, &other);
    }
    edit(&environment, kernel, &format!("{kernel}0-"));
    let (code, said) = Told::start(next(&lab)).end();
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("exit: refused, not mixed: its earlier trial was measured"), "{said}");
    assert!(said.contains("exit: environment: node/node-1/kernel: 0-"), "{said}");
    let run = Run::read(&output).expect("run.json");
    assert_eq!(run.arms[0].state, ArmStage::Refused);
    assert_eq!((run.arms[1].state, run.arms[1].trials_measured), (ArmStage::Done, 2));
    assert_eq!((run.arms[1].trials_aborted, run.arms[1].trials_superseded), (0, 1));
    for evidence in ["trial-001.aborted.1.json", "logs.1"] {
        assert!(output.join("evict/superseded").join(evidence).exists(), "{evidence}");
    }

    // In its own environment it goes on, in another cluster, which is left for a look.
    for path in [&environment, &output.join("exit/trial-001.json")] {
        edit(path, &other, &digest);
    }
    edit(&environment, &format!("{kernel}0-"), kernel);
    let mut command = resume(&lab);
    command.args(["-q", "--keep-cluster"]);
    let mut told = Told::start(command);
    let line = told.line("export KUBECONFIG=");
    let kubeconfig = line.trim().strip_prefix("export KUBECONFIG=").expect("a path").to_owned();
    told.line("Ctrl-C removes it");
    assert!(output.join("summary.md").is_file(), "tables come before the look");
    let pods = block_on(pods(Path::new(&kubeconfig)));
    assert!(pods.iter().any(|name| name.starts_with("probe-002-")), "{pods:?}");
    told.signal(Signal::SIGTERM);
    let (code, said) = told.end();
    assert_eq!(code, Some(0), "{said}");
    before.assert_unchanged();
    let text = std::fs::read_to_string(&environment).expect("an environment");
    let record: serde_json::Value = serde_json::from_str(&text).expect("a record");
    let all = trials(&output);
    assert_eq!(all.len(), 4);
    assert_eq!(record["cluster"], all[0].environment.cluster);
    let later = record["later_clusters"].as_array().expect("another cluster");
    let last = later.last().expect("one");
    assert_eq!(last["cluster"], all[1].environment.cluster);
    assert!(last["varying"]["node network"].is_string(), "{last}");
    assert_eq!(record["digest"], all[1].environment.digest);
    assert_eq!(tables(&output).len(), 2 + 4);
    assert_whole(&output);
}

/// The names of the trials' pods in a cluster.
async fn pods(kubeconfig: &Path) -> Vec<String> {
    use kube::config::{Config, KubeConfigOptions, Kubeconfig};
    let file = Kubeconfig::read_from(kubeconfig).expect("a kubeconfig");
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await;
    let mut config = config.expect("a kubeconfig");
    config.proxy_url = None;
    let client = kube::Client::try_from(config).expect("a client");
    let api: Api<Pod> = Api::namespaced(client, drainwatch::workload::NAMESPACE);
    let list = api.list(&ListParams::default()).await.expect("the API answers");
    list.items.into_iter().filter_map(|pod| pod.metadata.name).collect()
}

/// One arm, one trial.
fn one() -> Lab {
    Lab::new(&[("exit", "sigterm = \"exit\"")], "[cluster]\nprovider = \"local\"\n")
}

/// A small file system at a folder.
struct Disk(PathBuf);

impl Disk {
    fn new(folder: PathBuf) -> Self {
        std::fs::create_dir(&folder).expect("a folder");
        let size = Some("size=512k");
        mount(Some("tmpfs"), &folder, Some("tmpfs"), MsFlags::empty(), size).expect("root mounts");
        Self(folder)
    }

    /// Leaves no room.
    fn fill(&self) -> PathBuf {
        use std::io::Write;
        let path = self.0.join("filler");
        let mut file = std::fs::File::create(&path).expect("room for a name");
        while file.write_all(&[0; 512]).is_ok() {}
        path
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

fn full_disk() {
    let before = Host::read();
    let lab = one();
    let disk = Disk::new(lab.output());
    let mut told = Told::start(verbose(lab.apply()));
    told.line("exit/001: settle");
    let filler = disk.fill();
    let (code, said) = told.end();
    assert_eq!(code, Some(5), "{said}");
    assert!(said.contains("trial-001.json: can't be written: No space left"), "{said}");
    assert!(said.contains("1 of 1 trials are missing or aborted"), "{said}");
    assert_whole(&lab.output());
    std::fs::remove_file(filler).expect("the filler");
    to_the_end(&lab);
    assert_eq!(trials(&lab.output()).len(), 1);
    drop(disk);
    before.assert_unchanged();
}

fn vanished_folder() {
    let lab = one();
    let mut told = Told::start(verbose(lab.apply()));
    told.line("exit/001: settle");
    std::fs::remove_dir_all(lab.output()).expect("a folder");
    let (code, said) = told.end();
    assert_eq!(code, Some(5), "{said}");
    assert!(!lab.output().exists(), "it is not made anew: {said}");
}
