//! New connections in a trial: which are made, what must hold of them before the trigger, when enough
//! has been seen of them.
//!
//! Takes the scenario and the dials' states; gives specs, checks and words. Judges no dial.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::num::NonZero;
use std::time::{Duration, Instant};

use super::entry::Entry;
use super::preflight::{self, Failure, held};
use crate::clock::Stamp;
use crate::config::Scenario;
use crate::flow::dials::{DialSpec, DialsState};
use crate::observation::{Event, Protocol, Seen};
use crate::record::Check;

/// How long a dial may be without an answer when the trigger is sent.
const LIVELY: Duration = Duration::from_millis(200);
/// No dial may have failed for this long when the observation ends: kube-proxy writes its rules at most
/// once a second.
const HEALED: Duration = Duration::from_secs(2);
/// How long dials that go on failing are watched once every flow's story has ended.
const LONGEST_AFTERMATH: Duration = Duration::from_secs(5);

/// The scenario's dials, by the way that its flows go.
pub fn specs(config: &Scenario, entry: &Entry) -> Vec<DialSpec> {
    let timeout = config.dials.timeout;
    let of = |protocol, per_second, remote| {
        let per_second = NonZero::new(per_second)?;
        Some(DialSpec { protocol, remote, per_second, timeout })
    };
    let tcp = of(Protocol::Tcp, config.dials.tcp, entry.tcp);
    tcp.into_iter().chain(of(Protocol::Udp, config.dials.udp, entry.udp)).collect()
}

/// Before the trigger each dial must be accepted by a pod that is ready, these UIDs.
pub fn accepted(states: &[DialsState], ready: &[&str]) -> Result<(), Failure> {
    for state in states {
        let name = state.protocol.name();
        made_here(state)?;
        if let Some(met) = &state.first_failure {
            return Err(preflight::dials_accepted(format!("a {name} connection {met}")));
        }
        if let Some(other) = state.by.iter().find(|by| !ready.contains(&by.uid.as_str())) {
            let found =
                format!("a {name} connection accepted by {}, which is not ready", other.pod);
            return Err(preflight::dials_accepted(found));
        }
    }
    Ok(())
}

/// Dials that fail on this machine say nothing of the cluster.
pub fn all_made_here(states: &[DialsState]) -> Result<(), Failure> {
    states.iter().try_for_each(made_here)
}

fn made_here(state: &DialsState) -> Result<(), Failure> {
    let Some(error) = &state.first_failed_here else { return Ok(()) };
    let (failed, made, name) = (state.failed_here, state.made, state.protocol.name());
    let found = format!("{failed} of {made} {name} connections failed on this machine: {error}");
    Err(preflight::dials_made(found))
}

/// The protocol of a dial that has gone without an answer for too long to send the trigger now, or of
/// which none has been answered yet.
pub fn late(states: &[DialsState], timeout: Duration, now: &Stamp) -> Option<String> {
    let is_late = |oldest: &Stamp| oldest.until(now) > LIVELY.min(timeout);
    let late = |state: &&DialsState| {
        state.accepted == 0 || state.oldest_under_way.as_ref().is_some_and(is_late)
    };
    states.iter().find(late).map(|state| format!("a new {} connection", state.protocol.name()))
}

/// All dials of settle, as the record says it.
pub fn settled(states: &[DialsState]) -> Result<Check, Failure> {
    let mut found = Vec::new();
    for state in states {
        let (made, accepted, skipped) = (state.made, state.accepted, state.skipped);
        let (name, late_ms) = (state.protocol.name(), state.max_late_ns as f64 / 1e6);
        if skipped * 10 > made + skipped {
            return Err(preflight::kept_up(format!(
                "{skipped} of {} new {name} connections left out, the latest made {late_ms:.1} ms \
                 after its time",
                made + skipped
            )));
        }
        let slowest_ms = state.slowest_ns as f64 / 1e6;
        found.push(format!(
            "{accepted} of {made} {name} connections accepted so far, the slowest answered after \
             {slowest_ms:.1} ms"
        ));
    }
    Ok(held::dials_accepted(found.join("; ")))
}

/// What to say where this machine did not make all that was due.
pub fn kept_up(states: &[DialsState]) -> Vec<String> {
    let short = states.iter().filter(|state| state.skipped > 0);
    let words = |state: &DialsState| {
        format!(
            "this machine did not keep up: {} new {} connections were not made in their interval, {} \
             were; the latest was made {:.1} ms after its time",
            state.skipped,
            state.protocol.name(),
            state.made,
            state.max_late_ns as f64 / 1e6
        )
    };
    short.map(words).collect()
}

/// What dials are still watched for once every flow's story has ended.
#[derive(Debug, Default)]
pub struct Aftermath {
    since: Option<Instant>,
}

impl Aftermath {
    /// Whether enough has been seen: none has failed for a while, or they go on failing for good. One
    /// that waits for its answer may fail yet, however long its timeout. Asked once the flows' stories
    /// have ended.
    pub fn is_over(&mut self, states: &[DialsState], now: &Stamp) -> bool {
        let since = *self.since.get_or_insert_with(Instant::now);
        let healed = |state: &DialsState| {
            let failed = state.last_failed.as_ref().is_some_and(|last| last.until(now) < HEALED);
            let waits =
                state.oldest_under_way.as_ref().is_some_and(|oldest| oldest.until(now) > LIVELY);
            !failed && !waits
        };
        let all_healed = states.iter().all(healed);
        all_healed || since.elapsed() >= LONGEST_AFTERMATH
    }
}

/// Leaves out what the kernels told of dials' own entries and packets: each dial makes a dozen such
/// events, and records must not grow with dials. What they told of flows stays.
pub fn without_kernel_events(seen: Vec<Seen>) -> Vec<Seen> {
    let opened = seen.iter().filter_map(|one| match &one.event {
        Event::FlowOpened { local, .. } => Some(*local),
        _ => None,
    });
    let mut known: HashSet<SocketAddr> = opened.collect();
    // Behind the node that a flow enters by it has another address.
    let behind = seen.iter().filter_map(|one| match &one.event {
        Event::Conntrack { client, answers_to, .. } if known.contains(client) => Some(*answers_to),
        _ => None,
    });
    let behind: Vec<_> = behind.collect();
    known.extend(behind);
    let stays = |one: &Seen| match &one.event {
        Event::Conntrack { client, .. } => known.contains(client),
        Event::Packet { from, to, .. } => known.contains(from) || known.contains(to),
        _ => true,
    };
    seen.into_iter().filter(stays).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::{EntryChange, Identity, Observation, Source};
    use std::sync::Arc;

    const MS: i64 = 1_000_000;

    fn state() -> DialsState {
        let by = Identity { pod: "p".into(), uid: "u".into(), instance: "i".into() };
        let by = vec![Arc::new(by)];
        DialsState { made: 100, accepted: 99, by, ..DialsState::new(Protocol::Tcp) }
    }

    fn failed(met: &str, at_ms: i64) -> DialsState {
        let last_failed = Some(Stamp::runner(at_ms * MS));
        DialsState { failed: 1, first_failure: Some(met.into()), last_failed, ..state() }
    }

    #[test]
    fn each_dial_of_settle_must_be_accepted_by_a_ready_pod() {
        assert_eq!(accepted(&[state()], &["u"]), Ok(()));
        let of = |state, ready: &[&str]| accepted(&[state], ready).unwrap_err();
        let refused = of(failed("refused by 10.0.0.2 after 0.4 ms", 0), &["u"]);
        assert_eq!(refused.check, "dials-accepted");
        assert!(refused.to_string().contains("a TCP connection refused by 10.0.0.2"), "{refused}");
        assert!(of(state(), &["other"]).to_string().contains("by p, which is not ready"));
        let here = DialsState {
            failed_here: 2,
            first_failed_here: Some("Too many open files".into()),
            ..state()
        };
        assert_eq!(of(here.clone(), &["u"]).check, "dials-made");
        assert!(all_made_here(&[state(), here]).is_err());
    }

    #[test]
    fn a_dial_without_an_answer_holds_the_trigger_back() {
        let oldest_under_way = Some(Stamp::runner(0));
        let states = [DialsState { oldest_under_way, ..state() }];
        let second = Duration::from_secs(1);
        let at = |ms: i64, timeout| late(&states, timeout, &Stamp::runner(ms * MS));
        assert_eq!(at(200, second), None);
        assert_eq!(at(201, second).as_deref(), Some("a new TCP connection"));
        assert!(at(51, Duration::from_millis(50)).is_some());
        // With a short settle time and a low rate none may have been made.
        let none = [DialsState { made: 0, accepted: 0, ..state() }];
        assert_eq!(late(&none, second, &Stamp::runner(0)).as_deref(), Some("a new TCP connection"));
    }

    #[test]
    fn a_tenth_left_out_in_settle_is_too_much() {
        let skipped = |skipped| settled(&[DialsState { skipped, ..state() }]);
        assert!(skipped(11).is_ok_and(|check| check.found.starts_with("99 of 100 TCP")));
        assert_eq!(skipped(12).unwrap_err().check, "kept-up");
        assert_eq!(kept_up(&[state()]), [""; 0]);
        assert_eq!(kept_up(&[DialsState { skipped: 1, ..state() }]).len(), 1);
    }

    #[test]
    fn an_observation_goes_on_until_dials_are_accepted_again() {
        let at = |ms: i64| Stamp::runner(ms * MS);
        let failed = [failed("refused", 1000)];
        assert!(!Aftermath::default().is_over(&failed, &at(2999)));
        assert!(Aftermath::default().is_over(&failed, &at(3000)));
        assert!(Aftermath::default().is_over(&[state()], &at(0)));
        // Its timeout may be long.
        let oldest_under_way = Some(Stamp::runner(0));
        let waits = [DialsState { oldest_under_way, ..state() }];
        assert!(Aftermath::default().is_over(&waits, &at(200)));
        assert!(!Aftermath::default().is_over(&waits, &at(201)));
        let since = Instant::now().checked_sub(LONGEST_AFTERMATH);
        assert!(Aftermath { since }.is_over(&failed, &at(2999)), "they go on failing for good");
    }

    #[test]
    fn what_kernels_told_of_flows_stays_and_of_dials_goes() {
        let address = |text: &str| text.parse::<SocketAddr>().unwrap();
        let exact = |event| Observation::exact(Stamp::runner(0), Source::NodeConntrack, event);
        let entry = |client: &str, answers_to: &str| {
            exact(Event::Conntrack {
                node: "node-1".into(),
                change: EntryChange::New,
                protocol: Protocol::Tcp,
                client: address(client),
                to: address("10.0.0.2:30072"),
                answered_by: address("10.244.1.2:7001"),
                answers_to: address(answers_to),
                assured: None,
                by: None,
            })
        };
        let local = address("10.0.0.1:4000");
        let remote = address("10.0.0.2:30072");
        let seen = vec![
            entry("10.0.0.1:4000", "10.0.0.2:5000"),
            entry("10.0.0.1:4001", "10.0.0.2:5001"),
            // The flow's and the dial's at the pod's node.
            entry("10.0.0.2:5000", "10.0.0.2:5000"),
            entry("10.0.0.2:5001", "10.0.0.2:5001"),
            exact(Event::FlowOpened { flow: "tcp-1".into(), local, remote }),
        ];
        let left = without_kernel_events(seen.clone());
        assert_eq!(left, [seen[0].clone(), seen[2].clone(), seen[4].clone()]);
    }
}
