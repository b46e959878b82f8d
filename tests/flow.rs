//! Flows against the probe that the build embedded, on loopback. What is seen is asserted, never
//! when: the only times here are bounds against hangs.

#[path = "flow/dials.rs"]
mod dials;
mod stories;

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use drainwatch::clock::Stamp;
use drainwatch::config::{Sigterm, Trigger};
use drainwatch::evidence::counters::{Counters, Place};
use drainwatch::flow::{self, FlowSpec, FlowState, Flows};
use drainwatch::observation::{Event, Observation, Protocol, Seen, Source};
use drainwatch::verdict::{Fate, Outcome};
use drainwatch::workload::image::PROBE;
use drainwatch::{timeline, verdict};
use drainwatch_probe::log::{LogEvent, LogLine, Readiness};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use socket2::{Domain, Socket, Type};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// No test takes this long.
const PATIENCE: Duration = Duration::from_secs(20);

/// The embedded probe as a file.
fn binary() -> &'static Path {
    static FILE: LazyLock<(tempfile::TempDir, PathBuf)> = LazyLock::new(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("drainwatch-probe");
        std::fs::write(&path, PROBE).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o555)).unwrap();
        (folder, path)
    });
    &FILE.1
}

/// Else a test that fails would leave its processes behind, and they hold its output open.
struct KilledOnDrop(Child);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A probe process.
struct Probe {
    child: KilledOnDrop,
    log: std::io::Lines<BufReader<std::process::ChildStdout>>,
    tcp: SocketAddr,
    udp: SocketAddr,
    readyz: SocketAddr,
}

impl Probe {
    fn start(pod: &str, args: &[&str]) -> Self {
        Self::start_at(pod, 0, args)
    }

    fn start_at(pod: &str, udp_port: u16, args: &[&str]) -> Self {
        let child = Command::new(binary())
            .arg("serve")
            .args(["--tcp-port=0", "--readyz-port=0", &format!("--udp-port={udp_port}")])
            .args(args)
            .env_clear()
            .env("POD_NAME", pod)
            .env("POD_UID", format!("uid-of-{pod}"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut child = KilledOnDrop(child);
        let mut log = BufReader::new(child.0.stdout.take().unwrap()).lines();
        let started = LogLine::parse(&log.next().unwrap().unwrap()).unwrap();
        assert!(matches!(started.event, LogEvent::Started { .. }));
        assert_eq!((started.pod.as_str(), started.uid), (pod, format!("uid-of-{pod}")));
        let listening = LogLine::parse(&log.next().unwrap().unwrap()).unwrap();
        let LogEvent::Listening { tcp_port, udp_port, readyz_port } = listening.event else {
            panic!("not listening: {listening:?}");
        };
        let at = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        Self { child, log, tcp: at(tcp_port), udp: at(udp_port), readyz: at(readyz_port) }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.0.id() as i32), signal).unwrap();
    }

    /// Waits for its end; gives its exit status and the rest of its log.
    fn end(mut self) -> (ExitStatus, Vec<LogEvent>) {
        let log = self.log.by_ref().map(|line| LogLine::parse(&line.unwrap()).unwrap().event);
        let log = log.collect();
        (self.child.0.wait().unwrap(), log)
    }
}

fn specs(protocol: Protocol, count: usize, remote: SocketAddr) -> Vec<FlowSpec> {
    flow::specs(protocol, count, remote, Duration::from_millis(20), Duration::from_millis(400))
}

fn start(specs: Vec<FlowSpec>) -> (Flows, UnboundedReceiver<Seen>) {
    let (sink, seen) = unbounded_channel();
    (flow::start(specs, sink).unwrap(), seen)
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "it never came to this: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Stops the flows; gives all that was seen, by flow.
async fn finish(flows: Flows, mut seen: UnboundedReceiver<Seen>, count: usize) -> Vec<Vec<Seen>> {
    let ids: Vec<_> = flows.states().into_iter().map(|state| state.id).collect();
    assert_eq!(ids.len(), count);
    flows.finish().await;
    let mut all = Vec::new();
    while let Ok(one) = seen.try_recv() {
        all.push(one);
    }
    let of = |id: &str| all.iter().filter(|seen| seen.event.flow() == Some(id)).cloned().collect();
    ids.iter().map(|id| of(id)).collect()
}

/// The names of what was seen.
fn names(seen: &[Seen]) -> Vec<&'static str> {
    seen.iter()
        .map(|seen| match seen.event {
            Event::FlowOpened { .. } => "opened",
            Event::Span { .. } => "span",
            Event::Silence { .. } => "silence",
            Event::Refused { .. } => "refused",
            Event::Unreachable { .. } => "unreachable",
            Event::Bye { .. } => "bye",
            Event::Fin { .. } => "fin",
            Event::Reset { .. } => "reset",
            Event::TimedOut { .. } => "timed-out",
            Event::FlowFailed { .. } => "failed",
            Event::FlowStopped { .. } => "stopped",
            _ => "other",
        })
        .collect()
}

fn get(address: SocketAddr, path: &str) -> u16 {
    let agent: ureq::Agent =
        ureq::Agent::config_builder().http_status_as_error(false).build().into();
    agent.get(format!("http://{address}{path}")).call().unwrap().status().as_u16()
}

#[tokio::test]
async fn exit_resets_tcp_and_udp_is_refused_by_the_host() {
    let probe = Probe::start("exits", &["--sigterm=exit"]);
    let mut all = specs(Protocol::Tcp, 3, probe.tcp);
    all.extend(specs(Protocol::Udp, 3, probe.udp));
    let (flows, seen) = start(all);
    flows.all_answered(PATIENCE).await.unwrap();
    probe.signal(Signal::SIGTERM);
    until("TCP has ended and UDP is refused", || {
        flows.states().iter().all(|state| state.ended || state.refusals > 2)
    })
    .await;
    let (status, log) = probe.end();
    assert_eq!(status.code(), Some(0));
    assert_eq!(
        log,
        [LogEvent::Sigterm, LogEvent::ResetForced { flows: 3 }, LogEvent::Exiting { code: 0 }]
    );
    let samples = flows.clock_samples();
    assert_eq!(samples.len(), 1);
    assert_eq!(samples[0].uid, "uid-of-exits");
    assert_eq!(samples[0].boot_id, drainwatch::clock::boot_id());
    for trip in [samples[0].first, samples[0].latest] {
        assert!(trip.offset_ns.abs() <= trip.plus_minus_ns, "one clock: {trip:?}");
    }

    let stories = finish(flows, seen, 6).await;
    for story in &stories[..3] {
        assert_eq!(names(story), ["opened", "span", "reset"]);
    }
    for story in &stories[3..] {
        let silent = names(story).contains(&"silence");
        let expected: &[_] = if silent {
            &["opened", "refused", "span", "silence", "stopped"]
        } else {
            &["opened", "refused", "span", "stopped"]
        };
        assert_eq!(names(story), expected);
        let Event::Refused { sender, icmp_type, icmp_code, count, .. } = &story[1].event else {
            unreachable!()
        };
        assert_eq!(*sender, Some(Ipv4Addr::LOCALHOST.into()));
        assert_eq!((*icmp_type, *icmp_code), (Some(3), Some(3)));
        assert!(*count > 2);
        let Event::Span { by, answers, .. } = &story[2].event else { unreachable!() };
        assert_eq!((by.pod.as_str(), by.uid.as_str()), ("exits", "uid-of-exits"));
        assert!(*answers >= 1);
    }
}

/// With many flows, SIGTERM is noticed in the midst of others' heartbeats.
#[tokio::test]
async fn an_exit_under_load_resets_all_of_many_flows() {
    let probe = Probe::start("exits", &["--sigterm=exit"]);
    let (flows, seen) = start(specs(Protocol::Tcp, 200, probe.tcp));
    flows.all_answered(PATIENCE).await.unwrap();
    probe.signal(Signal::SIGTERM);
    until("TCP has ended", || flows.states().iter().all(|state| state.ended)).await;
    let (status, log) = probe.end();
    assert_eq!(status.code(), Some(0));
    assert_eq!(log[1], LogEvent::ResetForced { flows: 200 });
    for story in finish(flows, seen, 200).await {
        assert_eq!(names(&story), ["opened", "span", "reset"]);
    }
}

#[test]
fn readiness_fails_once_it_is_told_to_and_the_app_goes_on() {
    let probe = Probe::start("told to fail", &["--sigterm=ignore", "--readiness=pass"]);
    assert_eq!(get(probe.readyz, "/readyz/fail"), 404, "only a POST tells it");
    assert_eq!(get(probe.readyz, "/readyz"), 200);
    for _ in 0..2 {
        let url = format!("http://{}/readyz/fail", probe.readyz);
        assert_eq!(ureq::post(url).send_empty().unwrap().status().as_u16(), 200);
        assert_eq!(get(probe.readyz, "/readyz"), 503);
    }
    probe.signal(Signal::SIGKILL);
    let (status, log) = probe.end();
    assert_eq!(status.signal(), Some(9));
    let status = Readiness::Fail;
    assert_eq!(log, [LogEvent::Readyz { status }], "said once");
}

#[tokio::test]
async fn drain_serves_what_it_holds_then_says_bye_and_closes() {
    let probe = Probe::start("drains", &["--sigterm=drain", "--drain-window-ms=2000"]);
    let mut all = specs(Protocol::Tcp, 3, probe.tcp);
    all.extend(specs(Protocol::Udp, 1, probe.udp));
    let (flows, seen) = start(all);
    flows.all_answered(PATIENCE).await.unwrap();
    assert_eq!(get(probe.readyz, "/readyz"), 200);
    assert_eq!(get(probe.readyz, "/elsewhere"), 404);

    let answered_before = flows.counters().answered;
    probe.signal(Signal::SIGTERM);
    let (tcp, readyz) = (probe.tcp, probe.readyz);
    until("readyz fails", || get(readyz, "/readyz") == 503).await;
    until("no new connection is accepted", || std::net::TcpStream::connect(tcp).is_err()).await;
    until("answers go on", || flows.counters().answered > answered_before + 8).await;
    until("TCP has ended", || flows.states()[..3].iter().all(|state| state.ended)).await;
    let (status, log) = probe.end();
    assert_eq!(status.code(), Some(0));
    assert_eq!(log.len(), 5);
    assert_eq!(log[0], LogEvent::Sigterm);
    assert_eq!(log[1], LogEvent::Readyz { status: Readiness::Fail });
    assert_eq!(log[2], LogEvent::DrainStarted { flows: 3 });
    assert_eq!(log[3], LogEvent::DrainEnded { all_gone: false, flows: 3 });
    assert_eq!(log[4], LogEvent::Exiting { code: 0 });

    let stories = finish(flows, seen, 4).await;
    for story in &stories[..3] {
        assert_eq!(names(story), ["opened", "bye", "span", "fin"]);
    }
    assert_eq!(names(&stories[3])[..1], ["opened"]);
    assert_eq!(names(&stories[3]).last(), Some(&"stopped"));
}

#[tokio::test]
async fn a_drain_ends_when_its_last_connection_is_gone() {
    let probe = Probe::start("drains", &["--sigterm=drain", "--drain-window-ms=600000"]);
    let (flows, seen) = start(specs(Protocol::Tcp, 2, probe.tcp));
    flows.all_answered(PATIENCE).await.unwrap();
    probe.signal(Signal::SIGTERM);
    let tcp = probe.tcp;
    until("it drains", || std::net::TcpStream::connect(tcp).is_err()).await;
    for story in finish(flows, seen, 2).await {
        assert_eq!(names(&story), ["opened", "span", "stopped"]);
    }
    let (status, log) = probe.end();
    assert_eq!(status.code(), Some(0));
    assert!(log.contains(&LogEvent::DrainEnded { all_gone: true, flows: 0 }), "{log:?}");
}

#[tokio::test]
async fn ignore_serves_on_until_it_is_killed() {
    let probe = Probe::start("ignores", &["--sigterm=ignore", "--readiness=pass"]);
    let (flows, seen) = start(specs(Protocol::Tcp, 2, probe.tcp));
    flows.all_answered(PATIENCE).await.unwrap();
    let answered = flows.counters().answered;
    probe.signal(Signal::SIGTERM);
    probe.signal(Signal::SIGTERM);
    until("answers go on", || flows.counters().answered > answered + 20).await;
    assert_eq!(get(probe.readyz, "/readyz"), 200);
    probe.signal(Signal::SIGKILL);
    until("TCP has ended", || flows.states().iter().all(|state| state.ended)).await;
    let (status, log) = probe.end();
    assert_eq!(status.code(), None);
    assert_eq!(log, [LogEvent::Sigterm]);
    for story in finish(flows, seen, 2).await {
        let names = names(&story);
        // By chance of what lay unread.
        assert!(["fin", "reset"].contains(&names[2]), "{names:?}");
        assert_eq!(names[..2], ["opened", "span"]);
    }
}

#[tokio::test]
async fn a_udp_flow_whose_server_is_replaced_has_two_spans() {
    let first = Probe::start("same-pod", &["--sigterm=ignore"]);
    let udp = first.udp;
    let (flows, seen) = start(specs(Protocol::Udp, 2, udp));
    flows.all_answered(PATIENCE).await.unwrap();
    drop(first);
    let _second = Probe::start_at("same-pod", udp.port(), &["--sigterm=ignore"]);
    until("another instance answers", || {
        flows.states().iter().all(|state| state.current != state.first)
    })
    .await;
    for story in finish(flows, seen, 2).await {
        let by: Vec<_> = story
            .iter()
            .filter_map(|seen| match &seen.event {
                Event::Span { by, .. } => Some(by),
                _ => None,
            })
            .collect();
        assert_eq!(by.len(), 2, "{story:?}");
        assert_eq!(by[0].uid, by[1].uid);
        assert_ne!(by[0].instance, by[1].instance);
    }
}

#[tokio::test]
async fn a_server_that_says_nothing_is_silent() {
    let silent = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let (flows, seen) = start(specs(Protocol::Udp, 1, silent.local_addr().unwrap()));
    let missing = flows.all_answered(Duration::from_millis(600)).await.unwrap_err();
    assert_eq!(missing[0].flow, "udp-1");
    assert!(missing[0].why.starts_with("no answer to "), "{missing:?}");
    let stories = finish(flows, seen, 1).await;
    assert_eq!(names(&stories[0]), ["opened", "silence", "stopped"]);
    let Event::Silence { unanswered, .. } = stories[0][1].event else { unreachable!() };
    assert!(unanswered > 1);
}

/// Of a UDP flow whose own buffer has no room for what arrives, that is told.
#[tokio::test]
async fn what_a_flows_own_socket_drops_is_told() {
    let server = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let (flows, seen) = start(specs(Protocol::Udp, 1, server.local_addr().unwrap()));
    let (_, client) = server.recv_from(&mut [0; 64]).unwrap();
    flows.look_for_drops();
    assert_eq!(flows.counters().dropped, 0);
    // A few of these fill a stock buffer.
    let large = [0; 60_000];
    until("the flow's socket drops some", || {
        for _ in 0..50 {
            server.send_to(&large, client).unwrap();
        }
        flows.look_for_drops();
        flows.counters().dropped > 0
    })
    .await;
    let dropped = flows.counters().dropped;
    let stories = finish(flows, seen, 1).await;
    let told = stories[0].iter().filter_map(|seen| match seen.event {
        Event::DroppedHere { ref since, count, .. } => {
            assert!(*since <= seen.at);
            Some(count)
        }
        _ => None,
    });
    // What is looked at once more at the end may be more.
    assert!(told.sum::<u64>() >= dropped);
}

/// A probe whose buffers are tiny and whose readers stand still drops what arrives: its flows have
/// no answer, and that is not called silence.
#[tokio::test]
async fn what_the_probes_buffers_drop_is_not_called_silence() {
    let probe = Probe::start("tiny", &["--sigterm=exit", "--udp-receive-buffer=1"]);
    let (sink, mut seen) = unbounded_channel();
    let mut counters = Counters::new(sink.clone());
    let proc = PathBuf::from(format!("/proc/{}", probe.child.0.id()));
    // The net namespace is this test's own, too: others may only add to what is counted.
    counters.watch(Place::Pod("uid-of-tiny".into()), &proc).unwrap();
    let flows = flow::start(specs(Protocol::Udp, 3, probe.udp), sink).unwrap();
    flows.all_answered(PATIENCE).await.unwrap();
    counters.mark();
    let trigger = Stamp::now();
    probe.signal(Signal::SIGSTOP);
    let silent = Duration::from_millis(600);
    until("datagrams are dropped in a silence", || {
        counters.look();
        let now = Stamp::now();
        let last = |flow: &FlowState| flow.last_answer.as_ref().unwrap().until(&now);
        flows.states().iter().all(|flow| last(flow) > silent)
    })
    .await;
    assert!(counters.dropped_in_pod("uid-of-tiny").unwrap() > 0, "the buffers hold a few only");
    counters.finish();
    flows.finish().await;
    drop(counters);
    let mut all = Vec::new();
    while let Some(one) = seen.recv().await {
        all.push(one);
    }
    let end = Event::ObservationEnded { complete: true };
    all.push(Observation::exact(Stamp::now(), Source::Runner, end));

    let placed = timeline::place(all, &trigger, &[]).observations;
    let mut config = stories::scenario(Sigterm::Exit, Trigger::Delete);
    config.flows.silent_after = Duration::from_millis(400);
    let judge = |observations: &[Observation]| {
        verdict::judge(observations, &config, None, Outcome::Measured).flows
    };
    let flows = judge(&placed);
    assert_eq!(flows.len(), 3);
    for flow in &flows {
        assert_eq!(flow.fate, Fate::NotMeasured, "{flow:?}");
        let cause = &flow.cause.as_ref().unwrap().text;
        assert!(cause.contains("the sockets of pod uid-of-tiny dropped "), "{cause}");
    }
    // Without the counters it would have been.
    let uncounted: Vec<_> =
        placed.into_iter().filter(|o| !matches!(o.event, Event::Counters { .. })).collect();
    assert!(judge(&uncounted).iter().all(|flow| flow.fate == Fate::Silent));
}

#[tokio::test]
async fn where_nothing_listens_both_protocols_are_refused() {
    // Ports that are taken, so that no other test gets them, and where nothing listens: a TCP
    // socket that is bound only, and a UDP socket that is another peer's.
    let tcp = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    tcp.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
    let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    udp.connect((Ipv4Addr::LOCALHOST, 1)).unwrap();
    let mut all = specs(Protocol::Tcp, 1, tcp.local_addr().unwrap().as_socket().unwrap());
    all.extend(specs(Protocol::Udp, 1, udp.local_addr().unwrap()));
    let (flows, seen) = start(all);
    until("both are refused", || flows.states()[1].refusals > 1 && flows.states()[0].ended).await;
    let missing = flows.all_answered(Duration::ZERO).await.unwrap_err();
    assert!(missing.iter().all(|flow| flow.why.contains("refused")), "{missing:?}");
    let stories = finish(flows, seen, 2).await;
    assert_eq!(names(&stories[0]), ["refused"]);
    assert_eq!(names(&stories[1])[..2], ["opened", "refused"]);
}

#[tokio::test]
async fn ipv6_is_answered_and_refused_as_well() {
    if UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).is_err() {
        return; // this machine has no IPv6
    }
    let probe = Probe::start("six", &["--sigterm=exit"]);
    let at = |address: SocketAddr| SocketAddr::from((Ipv6Addr::LOCALHOST, address.port()));
    let mut all = specs(Protocol::Tcp, 1, at(probe.tcp));
    all.extend(specs(Protocol::Udp, 1, at(probe.udp)));
    let (flows, seen) = start(all);
    flows.all_answered(PATIENCE).await.unwrap();
    drop(probe);
    until("UDP is refused", || flows.states()[1].refusals > 0).await;
    let stories = finish(flows, seen, 2).await;
    let Event::Refused { sender, icmp_type, icmp_code, .. } = stories[1][1].event else {
        panic!("not refused: {stories:?}");
    };
    assert_eq!(sender, Some(Ipv6Addr::LOCALHOST.into()));
    assert_eq!((icmp_type, icmp_code), (Some(1), Some(4)), "ICMPv6 port unreachable");
}

#[tokio::test]
async fn pause_ends_on_sigterm() {
    let child = Command::new(binary()).arg("pause").spawn().unwrap();
    let mut child = KilledOnDrop(child);
    // Before it waits for the signal, SIGTERM would kill it. Waiting is all that it sleeps for.
    let proc = PathBuf::from(format!("/proc/{}", child.0.id()));
    until("it waits", || {
        let status = std::fs::read_to_string(proc.join("status")).unwrap();
        std::fs::read_link(proc.join("exe")).is_ok_and(|exe| exe == binary())
            && status.lines().any(|line| line.starts_with("State:\tS"))
    })
    .await;
    kill(Pid::from_raw(child.0.id() as i32), Signal::SIGTERM).unwrap();
    assert_eq!(child.0.wait().unwrap().code(), Some(0));
}

/// A port that nothing uses just now, for both protocols.
fn free_port() -> u16 {
    loop {
        let tcp = std::net::TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        let port = tcp.local_addr().unwrap().port();
        if UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok() {
            return port;
        }
    }
}

#[tokio::test]
async fn flows_come_from_the_source_ports_that_they_are_given() {
    let probe = Probe::start("ports", &["--sigterm=exit"]);
    let port = free_port();
    let mut all = specs(Protocol::Tcp, 1, probe.tcp);
    all.extend(specs(Protocol::Udp, 1, probe.udp));
    for spec in &mut all {
        spec.source_port = Some(port);
    }
    let (flows, seen) = start(all);
    flows.all_answered(PATIENCE).await.unwrap();
    for story in finish(flows, seen, 2).await {
        let Event::FlowOpened { local, .. } = &story[0].event else { panic!("{story:?}") };
        assert_eq!(local.port(), port);
    }
}

#[tokio::test]
async fn a_source_port_that_is_taken_is_named() {
    let taken = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    let port = taken.local_addr().unwrap().port();
    let mut all = specs(Protocol::Udp, 1, (Ipv4Addr::LOCALHOST, 9).into());
    all[0].source_port = Some(port);
    let (flows, _seen) = start(all);
    let missing = flows.all_answered(PATIENCE).await.unwrap_err();
    assert!(missing[0].why.contains(&format!("source port {port}")), "{}", missing[0].why);
}
