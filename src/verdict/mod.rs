//! The verdict: what became of each flow, the trial's figures, and where repeats disagree.
//!
//! Takes observations on the trial's time, the scenario and the target; gives fates, findings and
//! warnings. Pure and total: no clock, no file, no order of arrival, and no observation that makes
//! it fail.

mod cause;
mod chain;
mod dials;
mod disagreements;
mod fate;
mod figures;
mod findings;
mod flow;
mod kernel;
mod links;
mod refusals;
mod warnings;
mod world;

use std::collections::{BTreeMap, HashMap};

use crate::config::Scenario;
use crate::observation::{Observation, Target};
use crate::timeline;

pub use dials::{DialFindings, DialRecord};
pub use disagreements::{Repeat, disagreements};
pub use figures::{FindingBound, Findings};
pub use flow::{Basis, Cause, Fate, FlowRecord, FlowSpan, Link, LinkKind, Outcome};

use fate::{Frame, Story};
use findings::Judged;
use kernel::Kernel;
use world::World;

/// What one trial's observations say.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verdict {
    /// One for each flow that was observed, `tcp-2` before `tcp-10`.
    pub flows: Vec<FlowRecord>,
    /// What new connections met, in the order of their starts, TCP before UDP.
    pub dials: Vec<DialRecord>,
    /// The trial's figures.
    pub findings: Findings,
    /// How exact each figure that was measured is, by its name.
    pub finding_bounds: BTreeMap<String, FindingBound>,
    /// What a reader should know before using the figures.
    pub warnings: Vec<String>,
}

/// Judges one trial. The target is the pod that was terminated; without it nothing is found of
/// endpoints or the app.
pub fn judge(
    observations: &[Observation],
    config: &Scenario,
    target: Option<&Target>,
    outcome: Outcome,
) -> Verdict {
    let mut sorted: Vec<&Observation> = observations.iter().collect();
    sorted.sort_by(|a, b| timeline::compare(a, b));
    let world = World::read(&sorted, target);
    let frame = Frame {
        silent_after: config.flows.silent_after,
        outcome,
        ended: world.ended.map(|(end, _)| end.at),
        drops: &world.drops,
    };
    let flows: Vec<Judged> = stories(&sorted)
        .into_iter()
        .map(|story| {
            let ending = story.ending(frame);
            (story, ending)
        })
        .collect();
    let kernel = Kernel::read(&sorted, target, config.flows.via);
    let (mut findings, mut finding_bounds) = findings::findings(&world, &kernel, &flows, config);
    dials::find(&sorted, target, &mut findings, &mut finding_bounds);
    let mut warnings = warnings::warnings(&world, &flows, config, target, outcome);
    let flows = flows
        .iter()
        .map(|(story, ending)| {
            let mut record = story.record(ending);
            record.cause = cause::cause(story, ending, &world, &kernel, config);
            record
        })
        .collect();
    let dials = dials::records(&sorted);
    warnings.extend(dials::warnings(&dials));
    Verdict { flows, dials, findings, finding_bounds, warnings }
}

/// Each flow's events, by flow.
fn stories<'a>(sorted: &[&'a Observation]) -> Vec<Story<'a>> {
    let mut by_flow = HashMap::<&str, Vec<&Observation>>::new();
    for &observation in sorted {
        if let Some(flow) = observation.event.flow() {
            by_flow.entry(flow).or_default().push(observation);
        }
    }
    let mut stories: Vec<_> =
        by_flow.into_iter().map(|(id, events)| Story::new(id, events)).collect();
    stories.sort_by(|a, b| fate::natural(a.id, b.id));
    stories
}

#[cfg(test)]
mod chain_tests;
#[cfg(test)]
mod laws;
#[cfg(test)]
mod tests;
