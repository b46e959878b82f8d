//! What measuring costs in the runner: reading answers, holding flows, judging a record.
//!
//! `cargo bench` prints a table. Times are of this machine as it is: compare builds on a quiet one.

use std::hint::black_box;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use drainwatch::clock::Ms;
use drainwatch::config::Scenario;
use drainwatch::flow;
use drainwatch::observation::{Event, Identity, Observation, Protocol, Source, Target};
use drainwatch::plan;
use drainwatch::verdict::{self, Outcome};
use drainwatch::workload::image::PROBE;
use drainwatch_probe::log::{LogEvent, LogLine};
use drainwatch_probe::wire::{Answer, Heartbeat, Speaker, parse};
use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage, setrlimit};
use nix::sys::time::TimeValLike;

/// Flows of each protocol: what the smallest supported machine is to hold.
const FLOWS: usize = 8_000;
const INTERVAL: Duration = Duration::from_millis(500);

fn main() {
    println!("| what | each |\n|---|---:|");
    println!("| reading an answer | {:.0} ns |", parsing());
    let (flows, judging) = judging();
    println!("| judging a record of {flows} flows | {judging:.0} ms |");
    // As `apply` does: where this is not allowed, flows fail, and that is told.
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let held = runtime.block_on(holding());
    println!("| holding {0} + {0} flows: memory a flow | {1:.1} KiB |", FLOWS, held.kib_a_flow);
    println!("| sending a heartbeat and reading its answer | {:.1} µs of processor |", held.us);
    println!("| an answer unread, at the longest | {:.2} ms |", held.max_unread_ms);
    println!("| heartbeats left out | {} |", held.skipped);
    println!("| answers without the kernel's time | {} |", held.unstamped);
}

/// Nanoseconds to read one answer.
fn parsing() -> f64 {
    let uid = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0";
    let speaker = Speaker { pod: "echo-7d4b9c5f6-x2x5n", uid, instance: uid, boot_id: uid };
    let speaker = speaker.encode().unwrap();
    let heartbeat = Heartbeat { flow: 1, sequence: 1, sent_ns: 1 };
    let mut bytes = Vec::new();
    Answer { heartbeat, mono_ns: 1, wall_ns: 1, speaker: &speaker }.encode(&mut bytes);
    const TIMES: u32 = 2_000_000;
    let begun = Instant::now();
    for _ in 0..TIMES {
        let _ = black_box(parse(black_box(&bytes)));
    }
    begun.elapsed().as_nanos() as f64 / f64::from(TIMES)
}

/// How many flows a record has, and the milliseconds that it takes to judge it.
fn judging() -> (usize, f64) {
    let config = scenario();
    let observations = record();
    let flows = verdict::judge(&observations, &config, Some(&target()), Outcome::Measured).flows;
    const TIMES: u32 = 5;
    let begun = Instant::now();
    for _ in 0..TIMES {
        let target = target();
        black_box(verdict::judge(&observations, &config, Some(&target), Outcome::Measured));
    }
    (flows.len(), begun.elapsed().as_secs_f64() * 1e3 / f64::from(TIMES))
}

fn scenario() -> Scenario {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios/drain-load.toml");
    let plan = plan::load(file.as_ref(), &[], &[]).unwrap();
    plan.arms[0].config.clone()
}

fn who(name: &str) -> Identity {
    let text = |part: &str| format!("{part}-{name}");
    Identity { pod: text("pod"), uid: text("uid"), instance: text("instance") }
}

fn target() -> Target {
    let Identity { pod, uid, instance } = who("old");
    Target { pod, uid, instance, node: "node-2".into(), entry_node: "node-1".into() }
}

/// A trial in which all TCP flows are drained and all UDP flows re-homed.
fn record() -> Vec<Observation> {
    let mut all = Vec::new();
    let mut add = |ms: f64, source, event| {
        all.push(Observation::exact(Ms::from_ms(ms), source, event));
    };
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 30_001));
    let span = |flow: &str, by: &str, from: f64, to: f64| Event::Span {
        flow: flow.to_owned(),
        by: who(by),
        from: Ms::from_ms(from),
        to: Ms::from_ms(to),
        answers: 20,
    };
    for n in 0..FLOWS {
        let late = n as f64 / 100.0;
        for flow in [format!("tcp-{n}"), format!("udp-{n}")] {
            let opened = Event::FlowOpened { flow, local: address, remote: address };
            add(-12_000.0 + late, Source::Flow, opened);
        }
        let flow = format!("tcp-{n}");
        add(5_000.0 + late, Source::Flow, span(&flow, "old", -11_000.0, 5_000.0 + late));
        add(5_000.1 + late, Source::Flow, Event::Bye { flow: flow.clone() });
        add(5_000.2 + late, Source::Flow, Event::Fin { flow });
        let flow = format!("udp-{n}");
        add(2_000.0 + late, Source::Flow, span(&flow, "old", -11_000.0, 2_000.0 + late));
        add(9_000.0 + late, Source::Flow, span(&flow, "new", 2_500.0 + late, 9_000.0 + late));
        add(9_500.0, Source::Flow, Event::FlowStopped { flow });
    }
    add(0.0, Source::Runner, Event::TriggerSent { trigger: "delete".into() });
    add(9_500.0, Source::Runner, Event::ObservationEnded { complete: true });
    all
}

struct Held {
    kib_a_flow: f64,
    /// Of processor time, a heartbeat.
    us: f64,
    max_unread_ms: f64,
    skipped: u64,
    unstamped: u64,
}

struct Probe(Child);

impl Drop for Probe {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Holds flows to a probe on loopback for some seconds.
async fn holding() -> Held {
    let folder = tempfile::tempdir().unwrap();
    let (_probe, tcp, udp) = probe(folder.path());
    let of = |protocol, remote| flow::specs(protocol, FLOWS, remote, INTERVAL, INTERVAL * 4);
    let mut specs = of(Protocol::Tcp, tcp);
    specs.extend(of(Protocol::Udp, udp));
    let before_kib = resident_kib();
    let (sink, mut seen) = tokio::sync::mpsc::unbounded_channel();
    let flows = flow::start(specs, sink).unwrap();
    if let Err(missing) = flows.all_answered(Duration::from_secs(30)).await {
        panic!("{} flows were not answered: {:?}", missing.len(), missing.first());
    }
    let (counters, used) = (flows.counters(), processor_us());
    tokio::time::sleep(Duration::from_secs(5)).await;
    let (after, used) = (flows.counters(), processor_us() - used);
    let kib_a_flow = resident_kib().saturating_sub(before_kib) as f64 / (2 * FLOWS) as f64;
    flows.finish().await;
    while seen.try_recv().is_ok() {}
    Held {
        kib_a_flow,
        us: used / (after.sent - counters.sent).max(1) as f64,
        max_unread_ms: after.max_unread_ns as f64 / 1e6,
        skipped: after.skipped,
        unstamped: after.unstamped - counters.unstamped,
    }
}

/// The probe that the build embedded, and its ports.
fn probe(folder: &std::path::Path) -> (Probe, SocketAddr, SocketAddr) {
    let binary = folder.join("drainwatch-probe");
    std::fs::write(&binary, PROBE).unwrap();
    std::fs::set_permissions(&binary, std::fs::Permissions::from_mode(0o555)).unwrap();
    let child = Command::new(binary)
        .args(["serve", "--sigterm=exit", "--tcp-port=0", "--udp-port=0", "--readyz-port=0"])
        .env_clear()
        .env("POD_NAME", "bench")
        .env("POD_UID", "uid-of-bench")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut probe = Probe(child);
    let log = BufReader::new(probe.0.stdout.take().unwrap()).lines();
    let ports = log.map_while(Result::ok).find_map(|line| match LogLine::parse(&line) {
        Ok(LogLine { event: LogEvent::Listening { tcp_port, udp_port, .. }, .. }) => {
            Some((tcp_port, udp_port))
        }
        _ => None,
    });
    let (tcp, udp) = ports.expect("the probe listens");
    let at = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    (probe, at(tcp), at(udp))
}

/// This process's memory.
fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}

/// This process's processor time, microseconds.
fn processor_us() -> f64 {
    let usage = getrusage(UsageWho::RUSAGE_SELF).unwrap();
    (usage.user_time() + usage.system_time()).num_microseconds() as f64
}
