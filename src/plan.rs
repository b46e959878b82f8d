//! A matrix becomes arms, arms become trials.
//!
//! Takes what [`crate::config`] resolved; gives the [`Plan`] that the runner follows and that
//! `drainwatch plan` prints.

use serde::{Deserialize, Serialize};

use crate::config::{ClusterSpec, Scenario};

/// All that one `apply` will do, in order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The matrix's name: its file's stem.
    pub matrix: String,
    /// The arms, in the order in which they run.
    pub arms: Vec<Arm>,
    /// The `--set` overrides, as given.
    pub overrides: Vec<String>,
    /// The `--only` selections, as given.
    pub only: Vec<String>,
}

/// A scenario with one value of each axis, on one cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Arm {
    /// Unique in the plan, and a safe file name: `drain-delete+readiness=pass`.
    pub name: String,
    /// The scenario's name: its file's stem.
    pub scenario: String,
    /// The axes' values: key as written in TOML, value as text.
    pub axes: Vec<(String, String)>,
    /// The scenario with the axes' values and overrides applied.
    pub config: Scenario,
    /// The cluster that the arm's trials share.
    pub cluster: ClusterSpec,
}
