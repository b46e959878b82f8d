//! New connections through a real pod's end: who accepts them, and that those that nobody accepts lie in
//! between.

use drainwatch::observation::{DialOutcome, Event, Observation, Protocol};
use drainwatch::record::Trial;
use drainwatch::verdict::{DialRecord, Outcome};

use crate::trials::Lab;

/// The tests of this file.
pub fn tests() -> Vec<(&'static str, fn())> {
    vec![("new_connections_fail_between_the_pod_and_its_replacement", between)]
}

const A_SECOND: f64 = 50.0;

fn between() {
    let text = "sigterm = \"exit\"\nsettle = \"3s\"\nevidence = true\n\
                dials.tcp = 50\ndials.udp = 50";
    let lab = Lab::with_own_settle(&[("dials", text)], "[cluster]\nprovider = \"local\"\n");
    let trials = lab.run();
    let [trial] = &trials[..] else { panic!("{} trials", trials.len()) };
    assert_eq!(trial.outcome, Outcome::Measured, "{:?}", trial.reason);
    let check = trial.checks.iter().find(|check| check.check == "dials-accepted");
    assert!(check.is_some_and(|check| check.found.contains("TCP connections accepted")));
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        of(trial, protocol);
    }
    // One has no more observations for having more dials, nor for what kernels tell of them.
    let count = |which: fn(&Event) -> bool| {
        trial.observations.iter().filter(|Observation { event, .. }| which(event)).count()
    };
    assert!(count(|event| matches!(event, Event::Dials { .. })) <= 60);
    assert!(count(|event| matches!(event, Event::Conntrack { .. } | Event::Packet { .. })) <= 400);
    let page = std::fs::read_to_string(lab.output().join("summary.md")).expect("a page");
    assert!(page.contains("## New connections"), "{page}");
}

fn of(trial: &Trial, protocol: Protocol) {
    let all = || trial.dials.iter().filter(|dial| dial.kind.protocol == protocol);
    let say = || format!("{protocol:?}: {:#?}", all().collect::<Vec<_>>());
    let target = trial.target.as_ref().expect("a target");
    let by_target =
        |dial: &&DialRecord| dial.kind.by.as_ref().is_some_and(|by| by.uid == target.uid);
    let by_other =
        |dial: &&DialRecord| dial.kind.by.as_ref().is_some_and(|by| by.uid != target.uid);

    let first = all().next().unwrap_or_else(|| panic!("{}", say()));
    assert!(by_target(&first) && first.from_ms < -2900.0, "{}", say());
    assert!(all().all(|dial| dial.kind.outcome.is_of_the_cluster()), "{}", say());
    assert!(
        all().filter(|dial| dial.from_ms < 0.0).all(|dial| by_target(&dial) && dial.to_ms < 0.0)
    );

    let name = protocol.name().to_lowercase();
    let finding = |name: String| {
        let figures = trial.findings.figures();
        let figure =
            figures.iter().find(|(figure, _)| *figure == name).and_then(|(_, value)| *value);
        figure.unwrap_or_else(|| panic!("no {name}: {}", say()))
    };
    let failed = finding(format!("failed_{name}_dials"));
    let (first, last) = (
        finding(format!("first_failed_{name}_dial_ms")),
        finding(format!("last_failed_{name}_dial_ms")),
    );
    let replaced = finding(format!("first_{name}_dial_by_replacement_ms"));
    let last_by_target = all().filter(by_target).map(|dial| dial.to_ms).fold(0.0, f64::max);
    // A pod takes more than a second to come up; until then nobody accepts.
    assert!(failed >= A_SECOND / 2.0 && last - first > 500.0, "{}", say());
    assert!(last_by_target < replaced && first < replaced, "{}", say());
    assert!(all().any(|dial| by_other(&dial) && dial.to_ms > last), "{}", say());
    assert!(trial.findings.endpoint_removed_ms.is_some());
    finding(format!("failed_{name}_dials_to_endpoint_removed_ms"));

    // Evenly spaced, and none is missing.
    let made: u64 = all().map(|dial| dial.count).sum();
    let from = all().map(|dial| dial.from_ms).fold(f64::MAX, f64::min);
    let to = all().map(|dial| dial.to_ms).fold(f64::MIN, f64::max);
    let due = (to - from) / 1e3 * A_SECOND + 1.0;
    assert!((made as f64) <= due + 1.0 && made as f64 >= due * 0.9, "{made} of {due}: {}", say());
    let accepted = all().filter(|dial| dial.kind.outcome == DialOutcome::Accepted);
    for dial in accepted {
        let took = dial.took.expect("answers took some time");
        assert!(took.median_ms <= took.greatest_ms && took.greatest_ms < 1100.0, "{}", say());
        assert_eq!(dial.connect.is_some(), protocol == Protocol::Tcp);
    }
}
