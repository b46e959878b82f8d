//! The words for events, in both styles.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::observation::Protocol;
use crate::record::Trial;
use crate::verdict::{Fate, Outcome};

/// `1 min 05 s`, `7 s`: for people who wait.
pub fn span(duration: Duration) -> String {
    let seconds = duration.as_secs_f64().round() as u64;
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, s) => format!("{s} s"),
        (0, m, s) => format!("{m} min {s:02} s"),
        (h, m, _) => format!("{h} h {m:02} min"),
    }
}

/// `1 trial`, `25 trials`.
pub fn count(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// `25 trials`, `25 trials (8 already recorded)`.
pub fn trials(n: usize, recorded: usize) -> String {
    let all = count(n, "trial");
    if recorded == 0 { all } else { format!("{all} ({recorded} already recorded)") }
}

/// One trial in a line: `measured: tcp 10 reset (last 29 ms), udp 10 rehomed (last 2.4 s)`.
pub fn trial(trial: &Trial) -> String {
    match trial.outcome {
        Outcome::Measured => {
            let mut parts = Vec::new();
            for (protocol, name) in [(Protocol::Tcp, "tcp"), (Protocol::Udp, "udp")] {
                parts.extend(fates(trial, protocol).map(|fates| format!("{name} {fates}")));
            }
            let warnings = trial.all_warnings().count();
            if warnings > 0 {
                parts.push(count(warnings, "warning"));
            }
            parts.join(", ")
        }
        Outcome::Aborted => format!("aborted: {}", reason(trial)),
        Outcome::TriggerRefused => format!("trigger refused: {}", reason(trial)),
    }
}

fn reason(trial: &Trial) -> &str {
    trial.reason.as_deref().unwrap_or("no reason was recorded")
}

/// `10 reset (last 29 ms)`.
fn fates(trial: &Trial, protocol: Protocol) -> Option<String> {
    let flows = || trial.flows.iter().filter(|flow| flow.protocol == protocol);
    let mut counts: BTreeMap<Fate, usize> = BTreeMap::new();
    for flow in flows() {
        *counts.entry(flow.fate).or_default() += 1;
    }
    if counts.is_empty() {
        return None;
    }
    let counts: Vec<_> = counts.iter().map(|(fate, n)| format!("{n} {}", fate.name())).collect();
    let last = flows().filter_map(|flow| flow.ended_ms).reduce(f64::max);
    let last = last.map(|ms| format!(" (last {})", instant(ms))).unwrap_or_default();
    Some(format!("{}{last}", counts.join(" + ")))
}

/// `29 ms`, `25.04 s`.
fn instant(ms: f64) -> String {
    if ms.abs() < 1000.0 { format!("{ms:.0} ms") } else { format!("{:.2} s", ms / 1000.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_recorded_already_is_told_where_there_is_some() {
        assert_eq!(trials(1, 0), "1 trial");
        assert_eq!(trials(25, 8), "25 trials (8 already recorded)");
    }

    #[test]
    fn spans_are_rounded_to_what_a_waiting_person_wants() {
        let words = |s| span(Duration::from_secs_f64(s));
        assert_eq!(words(6.6), "7 s");
        assert_eq!(words(65.0), "1 min 05 s");
        assert_eq!(words(3725.0), "1 h 02 min");
    }
}
