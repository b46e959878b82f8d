//! drainwatch measures what really happens to connections when a Kubernetes pod is terminated.
//!
//! Data goes one way: TOML ([`config`]) → [`plan`] → [`run`] (clusters, workload, flows, watches)
//! → [`observation`]s → [`timeline`] → [`verdict`] → [`record`] → [`report`]. A stage imports
//! earlier stages' types, never a later stage's; only `run` sees several of them.

pub mod calibrate;
pub mod cli;
pub mod clock;
pub mod cluster;
pub mod commands;
pub mod config;
pub mod digest;
pub mod display;
pub mod evidence;
pub mod flow;
pub mod netns;
pub mod observation;
pub mod plan;
pub mod record;
pub mod report;
pub mod run;
pub mod timeline;
pub mod trigger;
pub mod verdict;
pub mod watch;
pub mod workload;

// The stories that tests tell of trials serve the tests beside the code and those of whole
// commands: they name this crate as its users do.
#[cfg(test)]
extern crate self as drainwatch;
#[cfg(test)]
#[path = "../tests/stories/mod.rs"]
mod stories;
