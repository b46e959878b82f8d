//! Trials on real local clusters: each SIGTERM behaviour's and each trigger's fates, with windows
//! short enough for CI.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use drainwatch::observation::{Event, Observation, Protocol};
use drainwatch::record::{Trial, load_run_dir};
use drainwatch::verdict::{Fate, Outcome};

/// The tests of this file.
pub fn tests() -> Vec<(&'static str, fn())> {
    vec![
        ("each_sigterm_behaviour_has_its_fates_with_iptables", || behaviours("iptables")),
        ("each_sigterm_behaviour_has_its_fates_with_nftables", || behaviours("nftables")),
        ("each_trigger_has_its_fates", triggers),
        ("readiness_that_passes_keeps_udp_on_the_draining_pod", readiness_that_passes),
        ("an_interrupted_run_keeps_whole_files", interrupted),
        ("a_killed_run_keeps_whole_files", killed),
        ("a_trial_that_cannot_begin_is_kept_with_its_reason", cannot_begin),
    ]
}

/// A scenario's short windows.
const SHORT: &str = "settle = \"1s\"\nobserve_after = \"1s\"\nrepeats = 1\n\
                     [flows]\ntcp = 4\nudp = 4\n";

/// A matrix in a folder of its own.
pub struct Lab {
    folder: tempfile::TempDir,
}

impl Lab {
    /// Scenarios by name, and what stands in the matrix beside their list.
    pub fn new(scenarios: &[(&str, &str)], matrix: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        for sub in ["scenarios", "matrices"] {
            std::fs::create_dir(folder.path().join(sub)).expect("a folder");
        }
        let names: Vec<_> = scenarios.iter().map(|(name, _)| format!("{name:?}")).collect();
        for (name, text) in scenarios {
            let path = folder.path().join(format!("scenarios/{name}.toml"));
            std::fs::write(path, format!("{text}\n{SHORT}")).expect("a scenario");
        }
        let text = format!("scenarios = [{}]\n{matrix}", names.join(", "));
        std::fs::write(folder.path().join("matrices/lab.toml"), text).expect("a matrix");
        Self { folder }
    }

    /// The same, of scenarios that give their own settle.
    pub fn with_own_settle(scenarios: &[(&str, &str)], matrix: &str) -> Self {
        let lab = Self::new(scenarios, matrix);
        for (name, text) in scenarios {
            let path = lab.folder.path().join(format!("scenarios/{name}.toml"));
            let short = SHORT.replace("settle = \"1s\"\n", "");
            std::fs::write(path, format!("{text}\n{short}")).expect("a scenario");
        }
        lab
    }

    /// The same, settled for 3 s; each scenario with more keys of `[flows]`.
    pub fn with_own_flows(scenarios: &[(&str, &str, &str)], matrix: &str) -> Self {
        let plain: Vec<_> = scenarios.iter().map(|(name, text, _)| (*name, *text)).collect();
        let lab = Self::new(&plain, matrix);
        for (name, text, flows) in scenarios {
            let path = lab.folder.path().join(format!("scenarios/{name}.toml"));
            let short = SHORT.replace("settle = \"1s\"", "settle = \"3s\"");
            std::fs::write(path, format!("{text}\n{short}{flows}\n")).expect("a scenario");
        }
        lab
    }

    /// The command that applies it.
    pub fn apply(&self) -> Command {
        let mut command = Command::new(super::DRAINWATCH);
        command.arg("apply").arg(self.matrix());
        command.arg("--output").arg(self.output());
        command
    }

    /// The matrix's file.
    pub fn matrix(&self) -> PathBuf {
        self.folder.path().join("matrices/lab.toml")
    }

    /// Where the run's folder is.
    pub fn output(&self) -> PathBuf {
        self.folder.path().join("run")
    }

    /// Applies it, and gives its trials.
    pub fn run(&self) -> Vec<Trial> {
        let output = self.apply().output().expect("drainwatch runs");
        assert!(output.status.success(), "{}", words(&output));
        trials(&self.output())
    }
}

/// What a command said, for a failed test.
pub fn words(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}\n{}\n{}", output.status, text(&output.stdout), text(&output.stderr))
}

/// The trials of a run's folder.
pub fn trials(folder: &Path) -> Vec<Trial> {
    load_run_dir(folder).expect("a run's folder").trials
}

pub fn fates(trial: &Trial, protocol: Protocol) -> Vec<Fate> {
    trial.flows.iter().filter(|flow| flow.protocol == protocol).map(|flow| flow.fate).collect()
}

pub fn saw(trial: &Trial, what: impl Fn(&Event) -> bool) -> bool {
    trial.observations.iter().any(|Observation { event, .. }| what(event))
}

/// What holds for every trial that was measured.
fn measured(trial: &Trial) {
    assert_eq!(trial.outcome, Outcome::Measured, "{}: {:?}", trial.id, trial.reason);
    assert_eq!(trial.flows.len(), 8, "{}", trial.id);
    assert!(saw(trial, |event| matches!(event, Event::Sigterm { .. })), "{}", trial.id);
    assert!(
        saw(trial, |event| matches!(event, Event::ObservationEnded { complete: true })),
        "{}",
        trial.id
    );
    assert!(trial.clocks.iter().all(|clock| clock.same_clock), "{}: {:?}", trial.id, trial.clocks);
    let target = trial.target.as_ref().expect("a target");
    assert_ne!(target.node, target.entry_node, "flows enter by the other node");
    for flow in &trial.flows {
        assert_eq!(flow.spans[0].by.uid, target.uid, "{} {}", trial.id, flow.id);
        assert!(flow.spans[0].from_ms < 0.0, "{} {}", trial.id, flow.id);
    }
}

/// Three behaviours on deletion: TCP's fate follows what the app does on SIGTERM.
fn behaviours(proxy_mode: &str) {
    let lab = Lab::new(
        &[
            ("exit", "sigterm = \"exit\""),
            ("drain", "sigterm = \"drain\"\ngrace_period = \"8s\"\ndrain_window = \"5s\""),
            ("ignore", "sigterm = \"ignore\"\ngrace_period = \"3s\""),
        ],
        &format!("[cluster]\nprovider = \"local\"\nproxy_mode = \"{proxy_mode}\"\n"),
    );
    let trials = lab.run();
    let [exit, drain, ignore] = &trials[..] else { panic!("{} trials", trials.len()) };
    trials.iter().for_each(measured);

    assert_eq!(fates(exit, Protocol::Tcp), [Fate::Reset; 4]);
    assert!(saw(exit, |event| matches!(event, Event::ResetForced { .. })));
    assert_eq!(exit.findings.container_exit_code, Some(0));
    assert_eq!(fates(exit, Protocol::Udp), [Fate::Rehomed; 4]);

    assert_eq!(fates(drain, Protocol::Tcp), [Fate::Drained; 4]);
    assert_eq!(drain.findings.container_exit_code, Some(0));
    assert_eq!(fates(drain, Protocol::Udp), [Fate::Rehomed; 4]);
    let last_tcp = drain.findings.last_tcp_end_ms.expect("an end");
    assert!((5000.0..8000.0).contains(&last_tcp), "drained at the window's end: {last_tcp}");
    let (ready, serving) =
        (drain.findings.endpoint_not_ready_ms, drain.findings.endpoint_not_serving_ms);
    assert!(ready.expect("seen") < serving.expect("seen"), "{ready:?} {serving:?}");

    let cut = |fate: &Fate| matches!(fate, Fate::Closed | Fate::Reset);
    assert!(fates(ignore, Protocol::Tcp).iter().all(cut), "{:?}", ignore.flows);
    assert_eq!(ignore.findings.container_exit_code, Some(137));
    assert_eq!(fates(ignore, Protocol::Udp), [Fate::Rehomed; 4]);

    for file in ["run.json", "flows.csv", "trials.csv", "summary.csv", "summary.md"] {
        assert!(lab.output().join(file).is_file(), "{file}");
    }
    let modes = std::fs::read_to_string(lab.output().join("environment/exit.json"));
    assert!(modes.expect("an environment").contains(&format!("\"{proxy_mode}\"")));
}

/// Eviction drains like deletion; scaled to zero, nothing takes UDP over.
fn triggers() {
    let drain = "sigterm = \"drain\"\ngrace_period = \"8s\"\ndrain_window = \"5s\"";
    let lab = Lab::new(
        &[
            ("evict", &format!("{drain}\ntrigger = \"evict\"")),
            ("scale", &format!("{drain}\ntrigger = \"scale-to-zero\"")),
        ],
        "[cluster]\nprovider = \"local\"\n",
    );
    let trials = lab.run();
    let [evict, scale] = &trials[..] else { panic!("{} trials", trials.len()) };
    trials.iter().for_each(measured);
    assert_eq!(fates(evict, Protocol::Tcp), [Fate::Drained; 4]);
    assert_eq!(fates(evict, Protocol::Udp), [Fate::Rehomed; 4]);
    assert_eq!(fates(scale, Protocol::Tcp), [Fate::Drained; 4]);
    let nobody = |fate: &Fate| matches!(fate, Fate::Refused | Fate::Silent);
    assert!(fates(scale, Protocol::Udp).iter().all(nobody), "{:?}", scale.flows);
    assert_eq!(scale.findings.first_rehomed_ms, None);
    assert_eq!(scale.findings.replacement_ready_ms, None);
}

/// A flow's life that the app keeps ready through its drain: UDP stays until the app is gone.
fn readiness_that_passes() {
    let text = "sigterm = \"drain\"\ngrace_period = \"9s\"\ndrain_window = \"6s\"\n\
                readiness = \"pass\"";
    let trials = Lab::new(&[("pass", text)], "[cluster]\nprovider = \"local\"\n").run();
    let [pass] = &trials[..] else { panic!("{} trials", trials.len()) };
    measured(pass);
    assert_eq!(fates(pass, Protocol::Udp), [Fate::Rehomed; 4]);
    let moved = pass.findings.first_rehomed_ms.expect("moved");
    assert!(moved >= 6000.0, "it moved at {moved} ms, within the drain window");
}

/// A long drain, to be interrupted while it is observed.
fn long() -> Lab {
    let text = "sigterm = \"drain\"\ngrace_period = \"60s\"";
    Lab::new(&[("long", text)], "[cluster]\nprovider = \"local\"\n")
}

/// Starts an apply and waits until its first trial is being observed.
fn observed(lab: &Lab) -> Child {
    use std::io::{BufRead, BufReader};
    let mut command = lab.apply();
    let mut child =
        command.arg("-v").stderr(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    let lines = BufReader::new(child.stderr.take().expect("its stderr"));
    let (send, receive) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for line in lines.lines().map_while(Result::ok) {
            if send.send(line).is_err() {
                return;
            }
        }
    });
    let end = Instant::now() + Duration::from_secs(120);
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let line = receive.recv_timeout(left).expect("it comes to its first observation");
        if line.ends_with("long/001: observe") {
            // The rest of what it says is read and thrown away, so that it never blocks.
            std::thread::spawn(move || receive.iter().for_each(drop));
            break;
        }
    }
    child
}

/// Every file below a folder that is JSON is whole, and none is a leftover.
pub fn assert_whole(folder: &Path) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            assert_whole(&path);
        } else if name.ends_with(".json") {
            let bytes = std::fs::read(&path).expect("a file");
            let whole = serde_json::from_slice::<serde_json::Value>(&bytes);
            assert!(whole.is_ok(), "{}: {whole:?}", path.display());
        } else {
            assert!(!name.ends_with(".tmp"), "{}", path.display());
        }
    }
}

/// Ctrl-C in the middle of a trial: the trial is kept as aborted, the tables are written, exit 130.
fn interrupted() {
    use nix::sys::signal::{Signal, kill};
    let lab = long();
    let mut child = observed(&lab);
    let pid = nix::unistd::Pid::from_raw(child.id() as i32);
    kill(pid, Signal::SIGINT).expect("it is there");
    let status = child.wait().expect("it ends");
    assert_eq!(status.code(), Some(130));
    assert_whole(&lab.output());
    let trials = trials(&lab.output());
    let [trial] = &trials[..] else { panic!("{} trials", trials.len()) };
    assert_eq!(trial.outcome, Outcome::Aborted);
    assert!(trial.reason.as_ref().is_some_and(|reason| reason.contains("SIGINT")));
    assert_eq!(trial.flows.len(), 8, "what was seen is kept");
    assert!(lab.output().join("summary.md").is_file());
    let run = std::fs::read_to_string(lab.output().join("run.json")).expect("run.json");
    assert!(run.contains("\"interrupted\": \"SIGINT\""), "{run}");
}

/// `kill -9` in the middle of a trial: what is on disk is whole.
fn killed() {
    let lab = long();
    let mut child = observed(&lab);
    child.kill().expect("it is there");
    child.wait().expect("it ends");
    assert_whole(&lab.output());
    assert!(lab.output().join("environment/long.json").is_file());
}

/// Flows that are to enter by a node that forwards nothing: trials are aborted in preflight, with the
/// check's name, and kept.
fn cannot_begin() {
    let text = "sigterm = \"exit\"";
    let cluster = "[cluster]\nsysctls = { \"net.ipv4.ip_forward\" = 0 }\n";
    let folder = Lab::new(&[("dead-end", text)], cluster);
    let mut command = folder.apply();
    command.args(["--set", "repeats=4"]);
    let output = command.output().expect("drainwatch runs");
    assert_eq!(output.status.code(), Some(3), "{}", words(&output));
    let trials = trials(&folder.output());
    assert_eq!(trials.len(), 3, "three in a row end the arm");
    for trial in &trials {
        assert_eq!(trial.outcome, Outcome::Aborted);
        let reason = trial.reason.as_deref().unwrap_or_default();
        assert!(reason.starts_with("rules-programmed: "), "{reason}");
    }
    assert!(
        folder.output().join("dead-end/logs/node-1").is_dir(),
        "an aborted trial's logs are kept"
    );
    assert!(folder.output().join("dead-end/trial-001.aborted.json").is_file());
}
