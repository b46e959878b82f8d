//! The timeline: what was seen, on whichever clock, in one order on one clock.
//!
//! Takes observations as they were emitted, the trigger's instant and how the clocks relate; gives
//! observations in milliseconds from the trigger, sorted. Knows clocks, not what the events mean.

use crate::clock::Stamp;
use crate::observation::{Observation, Seen};
use crate::record::ClockRelation;

/// Observations on the trial's time, and what could not be placed on it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Placed {
    /// In the order of time; of equal times, an order that does not depend on arrival.
    pub observations: Vec<Observation>,
    /// Which observations were left out, and why.
    pub warnings: Vec<String>,
}

/// Places each observation on the trial's time: zero is the trigger.
pub fn place(seen: Vec<Seen>, trigger: &Stamp, clocks: &[ClockRelation]) -> Placed {
    let _ = (seen, trigger, clocks);
    todo!()
}
