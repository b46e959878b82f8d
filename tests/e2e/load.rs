//! A trial with thousands of flows: all held, all judged, and nothing lost to our own buffers.

use drainwatch::observation::{Event, Protocol};
use drainwatch::record::Trial;
use drainwatch::verdict::{Fate, Outcome};

use crate::trials::{Lab, trials, words};

/// The tests of this file.
pub fn tests() -> Vec<(&'static str, fn())> {
    vec![("two_thousand_flows_are_held_and_judged_and_none_is_lost_here", thousands)]
}

const FLOWS: usize = 1000;

fn thousands() {
    let lab = Lab::new(&[("crowd", "sigterm = \"exit\"")], "[cluster]\nprovider = \"local\"\n");
    let mut command = lab.apply();
    for set in [
        &format!("flows.tcp={FLOWS}"),
        &format!("flows.udp={FLOWS}"),
        "flows.tcp_interval=500ms",
        "flows.udp_interval=500ms",
        "settle=3s",
    ] {
        command.args(["--set", set]);
    }
    let output = command.output().expect("drainwatch runs");
    assert!(output.status.success(), "{}", words(&output));
    let trials = trials(&lab.output());
    let [trial] = &trials[..] else { panic!("{} trials", trials.len()) };
    assert_eq!(trial.outcome, Outcome::Measured, "{:?}", trial.reason);

    let fates = |protocol| {
        let of = trial.flows.iter().filter(move |flow| flow.protocol == protocol);
        of.map(|flow| flow.fate).collect::<Vec<_>>()
    };
    assert_eq!(fates(Protocol::Tcp), [Fate::Reset; FLOWS]);
    assert_eq!(fates(Protocol::Udp), [Fate::Rehomed; FLOWS]);
    let target = trial.target.as_ref().expect("a target");
    assert!(trial.flows.iter().all(|flow| flow.spans[0].by.uid == target.uid));

    counted(trial, &format!("pod:{}", target.uid));
    for place in ["machine", "runner", "node:node-1", "node:node-2"] {
        assert!(readings(trial, place).len() >= 3, "{place}");
    }
    let dropped = |event: &Event| matches!(event, Event::DroppedHere { .. });
    assert!(!trial.observations.iter().any(|o| dropped(&o.event)));
    assert!(!trial.all_warnings().any(|w| w.contains("dropped")), "{:?}", trial.warnings);
    for check in ["limits", "conntrack-room", "flows-answered", "kept-up", "own-drops"] {
        assert!(trial.checks.iter().any(|held| held.check == check), "{check}");
    }
}

/// A pod's counters were read at the settle's beginning and just before the trigger, and its sockets
/// dropped nothing. An app that exits at once can be gone before they are read again.
fn counted(trial: &Trial, place: &str) {
    let readings = readings(trial, place);
    assert!(readings.len() >= 3, "{readings:?}");
    assert!(readings.iter().filter(|(at, _)| *at < 0.0).count() >= 2, "{readings:?}");
    assert!(readings.iter().any(|(at, _)| *at > -500.0), "{readings:?}");
    assert!(readings.iter().all(|(_, dropped)| *dropped == Some(0)), "{readings:?}");
}

/// When a place was read, and its count of datagrams that had no room.
fn readings(trial: &Trial, place: &str) -> Vec<(f64, Option<u64>)> {
    let of = trial.observations.iter().filter_map(|o| match &o.event {
        Event::Counters { of, values } if of == place => {
            Some((o.at.ms(), values.get("Udp.RcvbufErrors").copied()))
        }
        _ => None,
    });
    of.collect()
}
