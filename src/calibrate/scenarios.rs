//! The trials of a calibration: an app that exits and one that drains, under each number of flows.
//!
//! Written as a user would write them, and read by the normal path.

use std::fmt::Write as _;
use std::path::Path;

use super::Method;
use crate::config::Errors;
use crate::plan::{self, Plan};

/// Up to this many flows of each protocol they have the default intervals, and several trials:
/// more flows than that are enough for a percentile in one.
const FEW: u32 = 100;
const TRIALS_OF_FEW: u32 = 5;
/// The interval of more flows.
const INTERVAL: &str = "500ms";

/// Why the trials could not be planned.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The files could not be written.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// They were not accepted.
    #[error("{0}")]
    Config(Errors),
}

/// The trials under these numbers of flows of each protocol; `folder` is where they are written.
/// An arm's name is `exit-N` or `drain-N`.
///
/// # Errors
/// The files can't be written; a number of flows is none that a scenario may have.
pub fn plan(flows: &[u32], kubernetes: Option<&str>, folder: &Path) -> Result<Plan, PlanError> {
    let mut matrix = String::from("scenarios = [");
    for n in flows {
        for (name, what) in [
            ("exit", "sigterm = \"exit\"\n"),
            ("drain", "sigterm = \"drain\"\ndrain_window = \"4s\"\ngrace_period = \"10s\"\n"),
        ] {
            std::fs::write(folder.join(format!("{name}-{n}.toml")), what.to_owned() + &common(*n))?;
            // Writing to a string can't fail.
            let _ = write!(matrix, "\"{name}-{n}.toml\", ");
        }
    }
    let file = folder.join("calibrate.toml");
    std::fs::write(&file, matrix + "]\n")?;
    let set: Vec<String> =
        kubernetes.map(|version| format!("cluster.kubernetes={version}")).into_iter().collect();
    plan::load(&file, &set, &[]).map_err(PlanError::Config)
}

fn common(flows: u32) -> String {
    let (repeats, intervals) = match flows {
        ..=FEW => (TRIALS_OF_FEW, String::new()),
        _ => (1, format!("tcp_interval = \"{INTERVAL}\"\nudp_interval = \"{INTERVAL}\"\n")),
    };
    let enter_by = Method::of(flows).enter_by();
    format!(
        "settle = \"3s\"\nrepeats = {repeats}\n[flows]\ntcp = {flows}\nudp = {flows}\n\
         enter_by = \"{enter_by}\"\n{intervals}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::EnterBy;
    use std::time::Duration;

    #[test]
    fn a_number_of_flows_has_two_arms_and_few_flows_several_trials() {
        let folder = tempfile::tempdir().unwrap();
        let plan = plan(&[10, 8_000], Some("1.34.0"), folder.path()).unwrap();
        let arms: Vec<_> = plan
            .arms
            .iter()
            .map(|arm| (arm.name.as_str(), arm.config.flows.udp, arm.config.repeats))
            .collect();
        assert_eq!(
            arms,
            [
                ("exit-10", 10, 5),
                ("drain-10", 10, 5),
                ("exit-8000", 8_000, 1),
                ("drain-8000", 8_000, 1)
            ]
        );
        assert_eq!(plan.arms[0].config.flows.udp_interval, Duration::from_millis(20));
        assert_eq!(plan.arms[2].config.flows.tcp_interval, Duration::from_millis(500));
        let enter_by = |arm: usize| plan.arms[arm].config.flows.enter_by.clone();
        assert_eq!((enter_by(0), enter_by(2)), (EnterBy::OtherNode, EnterBy::PodNode));
    }
}
