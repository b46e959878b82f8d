//! `drainwatch calibrate`: trials that are listened to, and how far off what they reported was.

use std::path::Path;

use tokio::sync::mpsc;

use super::{Exit, say};
use crate::calibrate::{self, Errors, Heard, Listening, Method};
use crate::cli::CalibrateArgs;
use crate::cluster::Provider;
use crate::cluster::local::LocalProvider;
use crate::config::MAX_FLOWS;
use crate::display::{self, Style};
use crate::plan::Plan;
use crate::record::{
    CALIBRATION_FORMAT, Calibration, Claim, Load, Machine, Tool, Trial, load_run_dir, write_json,
};
use crate::run::limits::{self, Machine as Limits};
use crate::run::{self, Earlier, Runner, Stop};
use crate::verdict::Outcome;

/// Runs the command.
pub fn run(args: &CalibrateArgs) -> Exit {
    match calibrate(args) {
        Ok(exit) | Err(exit) => exit,
    }
}

fn calibrate(args: &CalibrateArgs) -> Result<Exit, Exit> {
    let files = |error: std::io::Error| say::error(Exit::Files, &error);
    let folder = tempfile::tempdir().map_err(files)?;
    let local = LocalProvider::default();
    let mut flows = args.flows.clone();
    flows.sort_unstable();
    flows.dedup();
    // All of it is looked at before any of it begins.
    let plan = |flows: &[u32]| plan(flows, args.kubernetes.as_deref(), folder.path());
    let all = plan(&flows)?;
    limits::allow_descriptors(&all);
    limits::check_arms(&Limits::read(), &all.arms)
        .map_err(|error| say::error(Exit::NotMeasured, &error))?;
    all.arms
        .iter()
        .try_for_each(|arm| local.check(&arm.cluster))
        .map_err(|error| say::error(Exit::Cluster, &error))?;
    let tool = run::current_tool().map_err(files)?;

    let (mut loads, mut doubts) = (Vec::new(), Vec::new());
    for flows in flows {
        let records = folder.path().join(format!("records-{flows}"));
        std::fs::create_dir(&records).map_err(files)?;
        let claim = Claim::take(&records).map_err(|error| say::error(Exit::Files, &error))?;
        let provider = Listening::to(&local, Method::of(flows));
        let plan = plan(&[flows])?;
        trials(&plan, &provider, &tool, &claim, args.quiet)?;
        let trials = load_run_dir(&records).map_err(|error| say::error(Exit::Files, &error))?;
        let heard = provider.heard();
        loads.extend(load(&plan, &trials.trials, &heard));
        doubts.extend(find_doubts(&plan, &trials.trials, &heard));
    }
    let calibration = Calibration {
        format: CALIBRATION_FORMAT.to_owned(),
        at: jiff::Timestamp::now().to_string(),
        tool,
        machine: Machine::here(),
        loads,
    };
    let mut exit = say::print(&calibrate::markdown(&calibration));
    if let Some(file) = &args.output {
        write_json(file, &calibration).map_err(|error| say::error(Exit::Files, &error))?;
    }
    for doubt in &doubts {
        exit = exit.min(say::error(Exit::NotMeasured, doubt));
    }
    if doubts.is_empty() {
        let kept = calibration.keep().map_err(|error| say::error(Exit::Files, &error))?;
        say::tell(&format_args!(
            "kept in {}: trials on this machine say from now on how far they may be off",
            kept.display()
        ));
    }
    Ok(exit)
}

fn plan(flows: &[u32], kubernetes: Option<&str>, folder: &Path) -> Result<Plan, Exit> {
    calibrate::plan(flows, kubernetes, folder).map_err(|error| match error {
        calibrate::PlanError::Io(error) => say::error(Exit::Files, &error),
        calibrate::PlanError::Config(errors) => say::errors(&errors),
    })
}

/// So often a load is tried: a machine that others use, too, may not keep up with thousands of flows at one
/// time, and a minute later may.
const ATTEMPTS: u32 = 3;

/// Runs all trials; those that were aborted again.
fn trials(
    plan: &Plan,
    provider: &dyn Provider,
    tool: &Tool,
    folder: &Claim,
    quiet: bool,
) -> Result<(), Exit> {
    // As `apply` has it: what is measured is what it does.
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime =
        runtime.map_err(|error| say::error(Exit::Files, &format_args!("no threads: {error}")))?;
    runtime.block_on(async {
        let mut stop = Stop::listen()
            .map_err(|error| say::error(Exit::Files, &format_args!("no signals: {error}")))?;
        let mut earlier = Earlier::nothing(tool.clone(), plan.clone());
        for _ in 0..ATTEMPTS {
            let (events, receiver) = mpsc::unbounded_channel();
            let shown = display::show(receiver, Style::choose(quiet, false));
            let (tool, keep_cluster) = (tool.clone(), false);
            let runner = Runner { plan, provider, tool, folder, keep_cluster, events };
            let (record, ended) = runner.run(earlier, &mut stop).await;
            drop(runner);
            let _ = shown.await; // the display ends with its sender
            if let Some(signal) = ended.signal {
                return Err(say::error(Exit::Signal(signal as u8), &format!("ended by {signal}")));
            }
            if let Some(error) = ended.failed {
                return Err(say::error(Exit::Files, &error));
            }
            if let Some((arm, reason)) = ended.clusters_not_had.first() {
                return Err(say::error(Exit::Cluster, &format_args!("{arm}: {reason}")));
            }
            earlier = Earlier { record, trials: ended.trials, is_resumed: true };
            if earlier.left() == 0 {
                break;
            }
        }
        Ok(())
    })
}

/// The errors under a plan's load; none where no trial was measured.
fn load(plan: &Plan, trials: &[Trial], heard: &[Heard]) -> Option<Load> {
    let mut errors = Errors::default();
    let measured = || trials.iter().filter(|trial| trial.outcome == Outcome::Measured);
    for trial in measured() {
        let heard = heard.iter().find(|heard| heard.cluster == trial.environment.cluster);
        if let Some(heard) = heard {
            errors.add(trial, heard);
        }
    }
    measured().next()?;
    Some(errors.load(&plan.arms.first()?.config))
}

/// Why the figures are not to be relied on.
fn find_doubts(plan: &Plan, trials: &[Trial], heard: &[Heard]) -> Vec<String> {
    let mut doubts = Vec::new();
    for trial in trials.iter().filter(|trial| trial.outcome != Outcome::Measured) {
        let reason = trial.reason.as_deref().unwrap_or("no reason was told");
        doubts.push(format!("{} was not measured: {reason}", trial.id));
    }
    let missing = (plan.trials() as usize).saturating_sub(trials.len());
    if missing > 0 {
        doubts.push(format!("{} not run", display::count(missing, "trial")));
    }
    for heard in heard.iter().filter(|heard| heard.missed > 0) {
        doubts.push(format!(
            "{} of cluster {} were missed: the first and last of a flow may be among them",
            display::count(usize::try_from(heard.missed).unwrap_or(usize::MAX), "packet"),
            heard.cluster
        ));
    }
    doubts
}

/// Numbers of flows as they stand on the command line: `10,1000,8000`.
pub fn numbers(text: &str) -> Result<u32, String> {
    match text.trim().parse() {
        Ok(0) | Err(_) => Err(format!("{text:?} is no number of flows")),
        Ok(n) if n > MAX_FLOWS => Err(format!("{n} are more than {MAX_FLOWS} flows")),
        Ok(n) => Ok(n),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_flow_is_no_number_of_flows() {
        assert_eq!(numbers(" 1000"), Ok(1_000));
        assert!(numbers("0").is_err() && numbers("ten").is_err());
        assert_eq!(numbers("100000"), Ok(MAX_FLOWS));
        assert!(numbers("100001").is_err());
    }
}
