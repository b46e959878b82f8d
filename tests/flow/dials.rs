//! New connections against the probe, against nobody and against servers that misbehave, on loopback.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::num::NonZero;
use std::time::Duration;

use drainwatch::clock::Stamp;
use drainwatch::flow::dials::{self, DialSpec, Dials};
use drainwatch::observation::{DialKind, DialOutcome, DialTimes, Event, Protocol, Seen};
use drainwatch_probe::log::LogEvent;
use nix::sys::signal::Signal;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::{Probe, get, until};

fn spec(protocol: Protocol, remote: SocketAddr) -> DialSpec {
    let per_second = NonZero::new(200).unwrap();
    DialSpec { protocol, remote, per_second, timeout: Duration::from_millis(300) }
}

fn start(specs: Vec<DialSpec>) -> (Dials, UnboundedReceiver<Seen>) {
    let (sink, seen) = unbounded_channel();
    (dials::start(specs, sink).unwrap(), seen)
}

/// A stretch of dials, as it was told.
#[derive(Debug)]
struct Told {
    kind: DialKind,
    from: Stamp,
    to: Stamp,
    count: u64,
    connect: Option<DialTimes>,
    took: Option<DialTimes>,
}

fn told(seen: &mut UnboundedReceiver<Seen>) -> Vec<Told> {
    std::iter::from_fn(|| seen.try_recv().ok())
        .map(|seen| match seen.event {
            Event::Dials { kind, from, to, count, connect, took } => {
                assert!(from <= to && to <= seen.at);
                Told { kind, from, to, count, connect, took }
            }
            other => panic!("{other:?}"),
        })
        .collect()
}

/// Makes dials of one protocol until some are known; gives all that was told.
async fn some(protocol: Protocol, remote: SocketAddr) -> Vec<Told> {
    let (dials, mut seen) = start(vec![spec(protocol, remote)]);
    until("dials are known", || {
        let state = &dials.states()[0];
        state.accepted + state.failed + state.failed_here >= 5
    })
    .await;
    let made = dials.states()[0].made;
    dials.finish(true).await;
    let told = told(&mut seen);
    assert!(told.iter().map(|told| told.count).sum::<u64>() >= made);
    told
}

/// The same of dials that all met the same.
async fn same(protocol: Protocol, remote: SocketAddr) -> Told {
    let mut told = some(protocol, remote).await;
    assert_eq!(told.len(), 1, "{told:?}");
    told.remove(0)
}

fn local(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// A TCP port at which nobody listens: taken, so that nobody else takes it.
fn closed_port() -> (socket2::Socket, SocketAddr) {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&local(0).into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    (socket, address)
}

/// Sockets of this machine in TIME_WAIT, with this port at the other end.
fn waiting_for_time(remote: SocketAddr) -> usize {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let port = format!(":{:04X}", remote.port());
    let of = |line: &&str| {
        let mut words = line.split_whitespace().skip(2);
        words.next().is_some_and(|remote| remote.ends_with(&port)) && words.next() == Some("06")
    };
    table.lines().filter(of).count()
}

#[tokio::test]
async fn dials_are_accepted_by_the_probe_and_leave_nothing_behind() {
    let probe = Probe::start("accepts", &["--sigterm=drain", "--drain-window-ms=600000"]);
    let specs = vec![spec(Protocol::Tcp, probe.tcp), spec(Protocol::Udp, probe.udp)];
    let (dials, mut seen) = start(specs);
    until("50 of each", || dials.states().iter().all(|state| state.accepted >= 50)).await;
    let states = dials.states();
    dials.finish(true).await;
    for (state, protocol) in states.iter().zip([Protocol::Tcp, Protocol::Udp]) {
        assert_eq!((state.protocol, state.failed, state.failed_here), (protocol, 0, 0));
        assert_eq!(state.by.len(), 1);
        assert_eq!(state.by[0].uid, "uid-of-accepts");
    }
    let told = told(&mut seen);
    assert_eq!(told.len(), 2, "a boring stretch is one observation: {told:?}");
    for told in &told {
        assert_eq!(told.kind.outcome, DialOutcome::Accepted);
        assert_eq!(told.kind.by.as_ref().unwrap().uid, "uid-of-accepts");
        assert!(told.count >= 50);
        assert_eq!(told.connect.is_some(), told.kind.protocol == Protocol::Tcp);
        let (took, connect) = (told.took.unwrap(), told.connect);
        assert!(connect.is_none_or(|connect| connect.least_ms <= took.least_ms));
        assert!(took.least_ms <= took.median_ms && took.median_ms <= took.greatest_ms);
        let lasted_ms = told.from.until(&told.to).as_secs_f64() * 1e3;
        // 200 a second, evenly spaced; fewer where this machine is busy.
        assert!(lasted_ms >= 5.0 * (told.count - 1) as f64 - 5.0, "{told:?}");
    }
    assert_eq!(waiting_for_time(probe.tcp), 0);
    // The app holds none of them, once it has read of the last one's end: a drain finds nobody to wait for.
    tokio::time::sleep(Duration::from_millis(500)).await;
    probe.signal(Signal::SIGTERM);
    let readyz = probe.readyz;
    until("it drains", || get(readyz, "/readyz") == 503).await;
    probe.signal(Signal::SIGKILL);
    let (_, log) = probe.end();
    assert!(log.contains(&LogEvent::DrainStarted { flows: 0 }), "{log:?}");
}

#[tokio::test]
async fn dials_to_a_port_of_nobody_are_refused() {
    let (_held, address) = closed_port();
    let tcp = same(Protocol::Tcp, address).await.kind;
    assert_eq!(tcp.outcome, DialOutcome::Refused);
    assert_eq!((tcp.sender, tcp.icmp_type), (None, None), "by a RST");

    let free = UdpSocket::bind(local(0)).unwrap().local_addr().unwrap();
    let udp = same(Protocol::Udp, free).await.kind;
    assert_eq!(udp.outcome, DialOutcome::Refused);
    assert_eq!(udp.sender, Some(IpAddr::from(Ipv4Addr::LOCALHOST)));
    assert_eq!((udp.icmp_type, udp.icmp_code), (Some(3), Some(3)));
}

#[tokio::test]
async fn dials_that_nobody_answers_time_out() {
    // The kernel lets them in; nobody takes them.
    let listener = TcpListener::bind(local(0)).unwrap();
    let tcp = same(Protocol::Tcp, listener.local_addr().unwrap()).await;
    assert_eq!(tcp.kind.outcome, DialOutcome::Unanswered);
    assert!(tcp.connect.is_some());
    assert!(tcp.took.unwrap().least_ms >= 300.0, "{tcp:?}");

    let socket = UdpSocket::bind(local(0)).unwrap();
    let udp = same(Protocol::Udp, socket.local_addr().unwrap()).await;
    assert_eq!(udp.kind.outcome, DialOutcome::Unanswered);
}

#[tokio::test]
async fn dials_that_do_not_connect_time_out() {
    // A queue of one that is full: the kernel drops every further SYN.
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&local(0).into()).unwrap();
    socket.listen(0).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    let _full = std::net::TcpStream::connect(address).unwrap();
    let tcp = same(Protocol::Tcp, address).await;
    assert_eq!(tcp.kind.outcome, DialOutcome::NotConnected);
    assert_eq!(tcp.connect, None);
}

/// A server that treats each connection, or rather its first question, like this.
fn server(treat: fn(std::net::TcpStream)) -> SocketAddr {
    let listener = TcpListener::bind(local(0)).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            treat(stream);
        }
    });
    address
}

#[tokio::test]
async fn a_close_is_told_from_a_reset() {
    let closes = server(|mut stream| {
        let _ = stream.read(&mut [0; 1024]);
    });
    let resets = server(|mut stream| {
        let _ = stream.read(&mut [0; 1024]);
        let _ = socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO));
    });
    let closed = same(Protocol::Tcp, closes).await;
    assert_eq!(closed.kind.outcome, DialOutcome::Closed);
    let reset = same(Protocol::Tcp, resets).await;
    assert_eq!(reset.kind.outcome, DialOutcome::Reset);
    assert!(reset.connect.is_some());
}

#[tokio::test]
async fn an_answer_that_is_not_the_probes_is_no_failure_of_the_cluster() {
    let web = server(|mut stream| {
        let _ = stream.read(&mut [0; 1024]);
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    });
    let told = same(Protocol::Tcp, web).await;
    assert_eq!(told.kind.outcome, DialOutcome::FailedHere);
    assert!(told.kind.error.unwrap().contains("not a frame"));
}

#[tokio::test]
async fn an_app_that_exits_is_refused_and_its_replacement_accepts() {
    let first = Probe::start("first", &["--sigterm=exit"]);
    let udp = first.udp;
    let (dials, mut seen) = start(vec![spec(Protocol::Udp, udp)]);
    until("it is accepted", || dials.states()[0].accepted >= 5).await;
    first.signal(Signal::SIGTERM);
    first.end();
    until("it is refused", || dials.states()[0].failed >= 5).await;
    assert!(dials.states()[0].last_failed.is_some());
    let first_failure = dials.states()[0].first_failure.clone().unwrap();
    let _second = Probe::start_at("second", udp.port(), &["--sigterm=exit"]);
    until("the other accepts", || dials.states()[0].by.len() == 2).await;
    dials.finish(true).await;
    let told = told(&mut seen);
    let accepted = |uid: &str| {
        let by = |told: &&Told| told.kind.by.as_ref().is_some_and(|by| by.uid == uid);
        told.iter().find(by).unwrap_or_else(|| panic!("{told:?}"))
    };
    let refused = told.iter().find(|told| told.kind.outcome == DialOutcome::Refused).unwrap();
    assert!(refused.count >= 1, "{first_failure}");
    let (first, second) = (accepted("uid-of-first"), accepted("uid-of-second"));
    assert!(first.to < refused.to && refused.from < second.from);
}

#[tokio::test]
async fn no_stretch_reaches_across_a_boundary() {
    let probe = Probe::start("accepts", &["--sigterm=exit"]);
    let (dials, mut seen) = start(vec![spec(Protocol::Tcp, probe.tcp)]);
    until("some", || dials.states()[0].accepted >= 10).await;
    dials.hold();
    let boundary = Stamp::now();
    until("some more", || dials.states()[0].accepted >= 30).await;
    dials.release(Some(&boundary));
    until("and more", || dials.states()[0].accepted >= 50).await;
    dials.finish(true).await;
    let told = told(&mut seen);
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told[0].to < boundary && boundary <= told[1].from);
}

#[tokio::test]
async fn dials_that_are_broken_off_are_told_as_such() {
    let silent = UdpSocket::bind(local(0)).unwrap();
    let remote = silent.local_addr().unwrap();
    let patient = DialSpec { timeout: Duration::from_secs(600), ..spec(Protocol::Udp, remote) };
    let (dials, mut seen) = start(vec![patient.clone()]);
    until("some are made", || dials.states()[0].made >= 5).await;
    let state = dials.states().remove(0);
    assert_eq!((state.accepted, state.failed), (0, 0));
    assert!(state.oldest_under_way.is_some());
    dials.finish(false).await;
    let told = told(&mut seen);
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].kind.outcome, DialOutcome::Unfinished);
    assert!(told[0].count >= 5);
    // Whoever drops them need not wait either.
    drop(start(vec![patient]));
}
