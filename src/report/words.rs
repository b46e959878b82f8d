//! Figures and counts in words, as the tables for people share them.

use serde::Serialize;

use super::arms::Arm;
use super::stats::Stats;
use crate::observation::Protocol;
use crate::verdict::{Fate, LinkKind};

/// What was not measured.
pub(super) const NOT_MEASURED: &str = "-";

/// `25,043 (25,029–25,113)`: median (least–greatest). Where fewer trials have the figure than the
/// arm has (`of`), their number follows: `40.0 [n=3]`.
pub(super) fn stats(stats: Option<Stats>, of: usize) -> String {
    let Some(Stats { n, median, min, max }) = stats else { return NOT_MEASURED.to_owned() };
    // One precision within a cell.
    let decimals = usize::from(min.abs().max(max.abs()) < 100.0);
    let number = |value| grouped(value, decimals);
    let mut text = number(median);
    if n > 1 {
        text += &format!(" ({}–{})", number(min), number(max));
    }
    if n != of {
        text += &format!(" [n={n}]");
    }
    text
}

/// The same of counts: `12 (0–37)`.
pub(super) fn counts(stats: Option<Stats>, of: usize) -> String {
    let Some(Stats { n, median, min, max }) = stats else { return NOT_MEASURED.to_owned() };
    let mut text = grouped(median, usize::from(median.fract() != 0.0));
    if n > 1 {
        text += &format!(" ({}–{})", grouped(min, 0), grouped(max, 0));
    }
    if n != of {
        text += &format!(" [n={n}]");
    }
    text
}

/// A finding over an arm's measured trials, marked where it is approximate: `≈ 40.0`.
pub(super) fn finding(arm: &Arm, name: &str) -> String {
    let mark = if arm.approximate(name) { "≈ " } else { "" };
    format!("{mark}{}", stats(arm.finding(name), arm.measured.len()))
}

/// One figure: `25,043`, or `31.5` below a hundred.
pub(super) fn figure(value: Option<f64>) -> String {
    stats(value.and_then(|value| Stats::of([value])), 1)
}

/// With a comma every three digits.
pub(super) fn grouped(value: f64, decimals: usize) -> String {
    let text = format!("{:.decimals$}", value.abs());
    let (whole, fraction) =
        text.split_once('.').map_or((text.as_str(), None), |(w, f)| (w, Some(f)));
    let mut out = String::new();
    if value < 0.0 && text.bytes().any(|b| (b'1'..=b'9').contains(&b)) {
        out.push('-');
    }
    for (i, digit) in whole.chars().enumerate() {
        if i > 0 && (whole.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    if let Some(fraction) = fraction {
        out.push('.');
        out += fraction;
    }
    out
}

/// `±0.012`, in ms: rounded upwards, since a bound that reads 0 would be none.
pub(super) fn plus_minus(ms: f64) -> String {
    let decimals = if ms < 1.0 { 3 } else { 1 };
    let scale = 10_f64.powi(decimals);
    format!("±{}", grouped((ms * scale).ceil() / scale, decimals.unsigned_abs() as usize))
}

/// `30/30 reset`, or `6/20 refused, 14/20 silent`, over an arm's measured trials.
pub(super) fn fates(arm: &Arm, protocol: Protocol) -> String {
    let counts = Fate::ALL.map(|fate| (fate, arm.count(protocol, fate)));
    let total: usize = counts.iter().map(|(_, n)| n).sum();
    let met = counts.iter().filter(|(_, n)| *n > 0);
    join(met.map(|(fate, n)| format!("{n}/{total} {}", fate.name())))
}

/// When an arm's UDP flows met each fate that has an end: `rehomed 2,417 (2,411–2,433)`, over the
/// first such flow of each trial.
pub(super) fn udp_ends(arm: &Arm) -> String {
    let of = arm.measured.len();
    join(Fate::ALL.into_iter().filter_map(|fate| {
        let end = arm.first_end(Protocol::Udp, fate)?;
        Some(format!("{} {}", fate.name(), stats(Some(end), of)))
    }))
}

/// `285 (270–301), code 0`
pub(super) fn exit(arm: &Arm) -> String {
    let mut codes: Vec<i32> =
        arm.measured.iter().filter_map(|trial| trial.findings.container_exit_code).collect();
    codes.sort_unstable();
    codes.dedup();
    let at = finding(arm, "container_exit_ms");
    if codes.is_empty() {
        return at;
    }
    let codes: Vec<_> = codes.iter().map(i32::to_string).collect();
    format!("{at}, code {}", codes.join(" or "))
}

fn join(parts: impl Iterator<Item = String>) -> String {
    let parts: Vec<_> = parts.collect();
    if parts.is_empty() { NOT_MEASURED.to_owned() } else { parts.join(", ") }
}

/// A value of a configuration as TOML and the record write it.
pub(super) fn of(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(text)) => text,
        Ok(serde_json::Value::Null) | Err(_) => NOT_MEASURED.to_owned(),
        Ok(other) => other.to_string(),
    }
}

/// A link of a chain: `endpoint not serving`. The record's own words, so that who reads one finds it
/// in the other.
pub(super) fn link(kind: LinkKind) -> String {
    of(&kind).replace('-', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_in_words() {
        let of = |values: &[f64], n| stats(Stats::of(values.iter().copied()), n);
        assert_eq!(of(&[25_043.1, 25_029.0, 25_113.4], 3), "25,043 (25,029–25,113)");
        assert_eq!(of(&[-3.75, 12.0], 2), "4.1 (-3.8–12.0)");
        assert_eq!(of(&[40.0], 3), "40.0 [n=1]");
        assert_eq!(of(&[], 3), "-");
        assert_eq!(of(&[0.0], 1), "0.0");
        let count = |values: &[f64], n| counts(Stats::of(values.iter().copied()), n);
        assert_eq!(count(&[12.0, 0.0, 1037.0], 3), "12 (0–1,037)");
        assert_eq!(count(&[0.0, 1.0], 3), "0.5 (0–1) [n=2]");
        assert_eq!(count(&[0.0], 1), "0");
        assert_eq!(figure(Some(-0.01)), "0.0");
        assert_eq!(plus_minus(0.000_035), "±0.001");
        assert_eq!(plus_minus(0.012), "±0.012");
        assert_eq!(plus_minus(12.31), "±12.4");
        assert_eq!(figure(Some(1_234_567.8)), "1,234,568");
        assert_eq!(figure(Some(-1234.0)), "-1,234");
    }
}
