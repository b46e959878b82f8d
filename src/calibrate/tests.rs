//! The whole way on loopback: flows that measure, a capture that listens, and what is between them.

use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::thread;
use std::time::Duration;

use drainwatch_probe::wire::{Answer, Bye, Frame, MAX_FRAME, SHORT_FRAME, Speaker, parse};
use tokio::sync::mpsc::unbounded_channel;

use super::capture::Capture;
use super::{Errors, Heard, Method};
use crate::clock::Stamp;
use crate::config::Scenario;
use crate::flow;
use crate::observation::{Event, Observation, Protocol, Source};
use crate::record::{Load, Trial};
use crate::{stories, timeline};

const PATIENCE: Duration = Duration::from_secs(20);

/// Where answers of calibrated flows come from.
fn node_port<T>(bind: impl Fn(u16) -> std::io::Result<T>) -> T {
    (30_000..32_768).find_map(|port| bind(port).ok()).expect("a port is free")
}

fn answer(bytes: &[u8]) -> Vec<u8> {
    let Ok(Some((Frame::Heartbeat(heartbeat), _))) = parse(bytes) else { return Vec::new() };
    let speaker = Speaker { pod: "p", uid: "u", instance: "old-1", boot_id: "b" };
    let speaker = speaker.encode().unwrap();
    let mut answer = Vec::with_capacity(MAX_FRAME);
    Answer { heartbeat, mono_ns: 0, wall_ns: 0, speaker: &speaker }.encode(&mut answer);
    answer
}

/// Answers some heartbeats of one connection, says bye and closes.
fn serve_tcp(listener: &TcpListener) {
    use std::io::{Read, Write};
    let (mut stream, _) = listener.accept().unwrap();
    let mut frame = [0; SHORT_FRAME];
    for _ in 0..10 {
        stream.read_exact(&mut frame).unwrap();
        stream.write_all(&answer(&frame)).unwrap();
    }
    stream.write_all(&Bye { flow: 0, answered: 10, mono_ns: 0 }.encode()).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let _ = stream.read_to_end(&mut Vec::new());
}

/// Answers some datagrams, then is there no more.
fn serve_udp(socket: &UdpSocket) {
    for _ in 0..10 {
        let mut frame = [0; 64];
        let (length, from) = socket.recv_from(&mut frame).unwrap();
        socket.send_to(&answer(&frame[..length]), from).unwrap();
    }
}

fn of(load: &Load, instant: &str) -> (usize, usize) {
    let found = load.instants.iter().find(|of| of.instant == instant);
    found.map_or((0, 0), |of| (of.n, of.unmatched))
}

#[tokio::test]
async fn each_reported_instant_has_its_packet() {
    let Ok(capture) = Capture::start(&[std::process::id().cast_signed()], Method::of(1)) else {
        return; // not everybody may
    };
    let listener = node_port(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)));
    let socket = node_port(|port| UdpSocket::bind((Ipv4Addr::LOCALHOST, port)));
    let (tcp, udp) = (listener.local_addr().unwrap(), socket.local_addr().unwrap());
    let served =
        [thread::spawn(move || serve_tcp(&listener)), thread::spawn(move || serve_udp(&socket))];
    let interval = Duration::from_millis(20);
    let mut specs = flow::specs(Protocol::Tcp, 1, tcp, interval, PATIENCE);
    specs.extend(flow::specs(Protocol::Udp, 1, udp, interval, PATIENCE));
    let zero = Stamp::now();
    let (sink, mut seen) = unbounded_channel();
    let flows = flow::start(specs, sink).unwrap();
    let begun = std::time::Instant::now();
    while !(flows.states()[0].ended && flows.states()[1].refusals >= 3) {
        assert!(begun.elapsed() < PATIENCE, "{:?}", flows.states());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let end = Observation::exact(
        Stamp::now(),
        Source::Runner,
        Event::ObservationEnded { complete: true },
    );
    flows.finish().await;
    served.into_iter().for_each(|thread| thread.join().unwrap());
    let captured = capture.finish();
    assert_eq!(captured.dropped, 0);

    let mut all = vec![end];
    while let Ok(one) = seen.try_recv() {
        all.push(one);
    }
    let observations = timeline::place(all, &zero, &[]).observations;
    let trial = Trial { observations, zero_ns: Some(zero.ns), ..stories::exit(1) };
    let heard = Heard {
        cluster: String::new(),
        method: Method::of(1),
        wire: captured.wire,
        missed: 0,
        plus_minus_ns: captured.plus_minus_ns,
    };
    let mut errors = Errors::default();
    errors.add(&trial, &heard);
    let config: &Scenario = &trial.config;
    let load = errors.load(config);
    for instant in ["tcp-first-answer", "tcp-last-answer", "tcp-bye", "tcp-fin"] {
        assert_eq!(of(&load, instant), (1, 0), "{instant}: {load:?}");
    }
    for instant in ["udp-first-answer", "udp-last-answer", "udp-first-refusal"] {
        assert_eq!(of(&load, instant), (1, 0), "{instant}: {load:?}");
    }
    // Nothing is reported before its packet, but for what relating two clocks may be off.
    assert!(load.instants.iter().all(|of| of.early_ms < 0.1), "{load:?}");
}
