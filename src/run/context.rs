//! What the trials of an arm share.

use super::events::{Events, RunEvent};
use crate::cluster::Cluster;
use crate::plan::{Arm, Plan};
use crate::record::{EnvironmentRef, Tool};

/// What the trials of an arm share.
pub struct ArmContext<'a> {
    /// The plan that the arm belongs to.
    pub plan: &'a Plan,
    /// The arm.
    pub arm: &'a Arm,
    /// Its cluster, up.
    pub cluster: &'a dyn Cluster,
    /// The build that measures.
    pub tool: &'a Tool,
    /// Where it measures.
    pub environment: EnvironmentRef,
    /// Where progress is told.
    pub events: &'a Events,
}

impl ArmContext<'_> {
    /// Tells an event. A display that is gone wants none.
    pub fn tell(&self, event: RunEvent) {
        let _ = self.events.send(event);
    }
}
