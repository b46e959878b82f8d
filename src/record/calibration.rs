//! How far reported instants were off on this machine, as `drainwatch calibrate` measured it: the
//! figures, where they are kept between commands, and which of them cover a trial.
//!
//! Takes and gives values and one file; knows nothing of how they are measured.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::io::{self, WriteError};
use super::{ReadError, Tool};
use crate::config::Scenario;

/// The format of a calibration.
pub const CALIBRATION_FORMAT: &str = "drainwatch.calibration/1";

/// Below the folder that programs of this user keep their state in.
const FILE: &str = "drainwatch/calibration.json";

/// What one `drainwatch calibrate` came to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// [`CALIBRATION_FORMAT`].
    pub format: String,
    /// Wall-clock time of its end, UTC, RFC 3339.
    pub at: String,
    /// The build that measured.
    pub tool: Tool,
    /// Where it was measured.
    pub machine: Machine,
    /// One for each number of flows, in order.
    pub loads: Vec<Load>,
}

/// A machine, as far as it decides how late this program is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Machine {
    /// Its kernel's release.
    pub kernel: String,
    /// Its processors' model; null where the kernel does not tell.
    pub processor: Option<String>,
    /// How many of them this process may use; null where unknown.
    pub processors: Option<usize>,
}

/// The errors under one number of flows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Load {
    /// Flows of each protocol.
    pub flows: u32,
    /// One flow in so many was compared, by its own port: 1 where all were.
    #[serde(default = "all")]
    pub one_in: u32,
    /// The node that the flows entered by, as a scenario's `flows.enter_by` names it.
    #[serde(default = "other_node")]
    pub enter_by: String,
    /// Heartbeats in a second, of all of them.
    pub heartbeats_a_second: f64,
    /// Trials that were measured.
    pub trials: u32,
    /// By kind of instant.
    pub instants: Vec<InstantError>,
}

fn all() -> u32 {
    1
}

fn other_node() -> String {
    "other-node".to_owned()
}

/// How far instants of one kind were off: the reported one less the packet's, by the kernel's stamp
/// of the packet as it left the node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct InstantError {
    /// Of what: `udp-replacement`.
    pub instant: String,
    /// How many were compared.
    pub n: usize,
    /// Reported, but not found among the packets: not compared.
    pub unmatched: usize,
    /// Of the errors without their sign, milliseconds.
    pub median_ms: f64,
    /// The error that 99 of 100 do not exceed.
    pub p99_ms: f64,
    /// The largest.
    pub max_ms: f64,
    /// The most that one was reported before its packet: 0 or more.
    pub early_ms: f64,
}

/// How far a trial's instants may be off, by a calibration of the machine that it ran on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Exactness {
    /// When that was measured, UTC, RFC 3339.
    pub calibrated_at: String,
    /// By which build.
    pub commit: String,
    /// SHA-256 of that binary.
    pub runner_sha256: String,
    /// On which machine: the trial's own, by the same description.
    pub machine: Machine,
    /// Under which load: the least that was not below the trial's.
    pub load: Load,
}

impl Machine {
    /// This one.
    pub fn here() -> Self {
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let model = fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| {
            let line = text.lines().find(|line| line.starts_with("model name"))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        });
        Self {
            kernel: kernel.trim().to_owned(),
            processor: model,
            processors: std::thread::available_parallelism().ok().map(Into::into),
        }
    }
}

impl Calibration {
    /// What it says of a trial of this scenario on this machine: nothing of a machine that is
    /// another one, or of more flows or heartbeats than were tried.
    pub fn covers(&self, machine: &Machine, config: &Scenario) -> Option<Exactness> {
        let flows = config.flows.tcp.max(config.flows.udp);
        let rate = config.heartbeats_a_second();
        let enough = |load: &&Load| load.flows >= flows && load.heartbeats_a_second >= rate;
        let load = self.loads.iter().filter(enough).min_by_key(|load| load.flows)?;
        (self.machine == *machine).then(|| Exactness {
            calibrated_at: self.at.clone(),
            commit: self.tool.commit.clone(),
            runner_sha256: self.tool.runner_sha256.clone(),
            machine: machine.clone(),
            load: load.clone(),
        })
    }

    /// Keeps it for the trials of this user on this machine; gives where.
    ///
    /// # Errors
    /// It can't be written, or there is no place for it.
    pub fn keep(&self) -> Result<PathBuf, WriteError> {
        let no_home = || WriteError {
            path: PathBuf::from(FILE),
            source: std::io::Error::other("neither HOME nor XDG_STATE_HOME names a folder"),
        };
        let path = kept_in().ok_or_else(no_home)?;
        io::make_folder(io::parent(&path))
            .map_err(|source| WriteError { path: path.clone(), source })?;
        io::write_json(&path, self)?;
        Ok(path)
    }

    /// Reads one.
    ///
    /// # Errors
    /// It is not there, not one, or newer than this build.
    pub fn read(path: &Path) -> Result<Self, ReadError> {
        io::read_json(path, CALIBRATION_FORMAT)
    }
}

/// How far a trial's instants may be off on this machine, by the calibration that is kept; `None`
/// where there is none that covers it.
pub fn exactness(config: &Scenario) -> Option<Exactness> {
    Calibration::read(&kept_in()?).ok()?.covers(&Machine::here(), config)
}

/// By the base directory specification: relative values are ignored.
fn kept_in() -> Option<PathBuf> {
    let folder = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = folder("XDG_STATE_HOME");
    let state = state.or_else(|| Some(folder("HOME")?.join(".local/state")))?;
    Some(state.join(FILE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Sigterm, Trigger};
    use crate::stories;

    fn machine(processors: usize) -> Machine {
        Machine { kernel: "6.18".into(), processor: None, processors: Some(processors) }
    }

    fn load(flows: u32, heartbeats_a_second: f64) -> Load {
        Load {
            flows,
            one_in: 1,
            enter_by: other_node(),
            heartbeats_a_second,
            trials: 1,
            instants: Vec::new(),
        }
    }

    fn calibration() -> Calibration {
        let tool = stories::exit(1).tool;
        let loads = vec![load(10, 600.0), load(1_000, 4_000.0), load(8_000, 32_000.0)];
        let at = "2026-11-30T12:00:00Z".into();
        Calibration { format: CALIBRATION_FORMAT.into(), at, tool, machine: machine(2), loads }
    }

    fn covered(tcp: u32, udp: u32, interval_ms: u64) -> Option<u32> {
        let mut config = stories::scenario(Sigterm::Exit, Trigger::Delete);
        let interval = std::time::Duration::from_millis(interval_ms);
        (config.flows.tcp, config.flows.udp) = (tcp, udp);
        (config.flows.tcp_interval, config.flows.udp_interval) = (interval, interval);
        Some(calibration().covers(&machine(2), &config)?.load.flows)
    }

    #[test]
    fn the_least_load_that_is_not_below_the_trials_covers_it() {
        assert_eq!(covered(10, 10, 100), Some(10));
        assert_eq!(covered(10, 11, 100), Some(1_000));
        assert_eq!(covered(10, 10, 10), Some(1_000), "2,000 heartbeats a second");
        assert_eq!(covered(8_000, 8_000, 500), Some(8_000));
        assert_eq!(covered(8_001, 0, 500), None);
        assert_eq!(covered(8_000, 8_000, 400), None);
    }

    #[test]
    fn another_machines_calibration_covers_nothing() {
        let config = stories::scenario(Sigterm::Exit, Trigger::Delete);
        assert!(calibration().covers(&machine(2), &config).is_some());
        assert_eq!(calibration().covers(&machine(4), &config), None);
    }

    #[test]
    fn a_calibration_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("c.json");
        io::write_json(&path, &calibration()).unwrap();
        assert_eq!(Calibration::read(&path).unwrap(), calibration());
    }
}
