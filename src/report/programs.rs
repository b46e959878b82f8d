//! An arm's summary for programs: what the tables for people show, as numbers.

use std::collections::BTreeMap;

use serde::Serialize;

use super::arms::{Arm, arms};
use super::part::Part;
use super::stats::Stats;
use crate::observation::Protocol;
use crate::verdict::{Fate, Findings, Outcome};

/// One arm of one folder.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ArmSummary {
    /// The folder's name.
    pub run: String,
    /// The tool that measured it, where it was not this one.
    pub imported_from: Option<String>,
    /// The arm's name.
    pub arm: String,
    /// How many trials count.
    pub measured: usize,
    /// How many were aborted.
    pub aborted: usize,
    /// How many met a trigger that was refused.
    pub trigger_refused: usize,
    /// How many flows of the measured trials met each fate, by protocol (`tcp`, `udp`); fates
    /// that none met are left out.
    pub flows: BTreeMap<String, BTreeMap<&'static str, usize>>,
    /// Each figure over the measured trials that have it; null where none has.
    pub findings: BTreeMap<&'static str, Option<Stats>>,
}

/// The arms, as the tables list them.
pub fn summaries(parts: &[Part]) -> Vec<ArmSummary> {
    arms(parts).iter().map(summary).collect()
}

fn summary(arm: &Arm) -> ArmSummary {
    let others = |outcome| arm.others.iter().filter(|trial| trial.outcome == outcome).count();
    let fates = |protocol| {
        let met = Fate::ALL.map(|fate| (fate.name(), arm.count(protocol, fate)));
        met.into_iter().filter(|(_, n)| *n > 0).collect()
    };
    let name = |protocol: Protocol| protocol.name().to_lowercase();
    let names = Findings::default().figures().into_iter().map(|(name, _)| name);
    ArmSummary {
        run: arm.part.name.to_owned(),
        imported_from: arm.part.imported_from(),
        arm: arm.name.to_owned(),
        measured: arm.measured.len(),
        aborted: others(Outcome::Aborted),
        trigger_refused: others(Outcome::TriggerRefused),
        flows: [Protocol::Tcp, Protocol::Udp].map(|p| (name(p), fates(p))).into(),
        findings: names.map(|name| (name, arm.finding(name))).collect(),
    }
}
