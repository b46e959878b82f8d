//! `drainwatch calibrate`: trials that are listened to, and how far off what they reported was.

use std::collections::BTreeMap;

use tokio::sync::mpsc;

use super::{Exit, say};
use crate::calibrate::{self, Errors, Heard, Listening};
use crate::cli::CalibrateArgs;
use crate::cluster::Provider;
use crate::cluster::local::LocalProvider;
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
    let plan = calibrate::plan(&args.flows, args.kubernetes.as_deref(), folder.path());
    let plan = plan.map_err(|error| match error {
        calibrate::PlanError::Io(error) => files(error),
        calibrate::PlanError::Config(errors) => say::errors(&errors),
    })?;
    limits::allow_descriptors(&plan);
    limits::check_arms(&Limits::read(), &plan.arms)
        .map_err(|error| say::error(Exit::NotMeasured, &error))?;
    let local = LocalProvider::default();
    let provider = Listening::to(&local);
    plan.arms
        .iter()
        .try_for_each(|arm| provider.check(&arm.cluster))
        .map_err(|error| say::error(Exit::Cluster, &error))?;
    let tool = run::current_tool().map_err(files)?;
    let records = folder.path().join("records");
    std::fs::create_dir(&records).map_err(files)?;
    let claim = Claim::take(&records).map_err(|error| say::error(Exit::Files, &error))?;
    trials(&plan, &provider, &tool, &claim, args.quiet)?;

    let trials = load_run_dir(&records).map_err(|error| say::error(Exit::Files, &error))?.trials;
    let heard = provider.heard();
    let calibration = Calibration {
        format: CALIBRATION_FORMAT.to_owned(),
        at: jiff::Timestamp::now().to_string(),
        tool,
        machine: Machine::here(),
        loads: loads(&plan, &trials, &heard),
    };
    let mut exit = say::print(&calibrate::markdown(&calibration));
    if let Some(file) = &args.output {
        write_json(file, &calibration).map_err(|error| say::error(Exit::Files, &error))?;
    }
    let doubts = doubts(&plan, &trials, &heard);
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

/// Runs all trials.
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
        let (events, receiver) = mpsc::unbounded_channel();
        let shown = display::show(receiver, Style::choose(quiet, false));
        let mut stop = Stop::listen()
            .map_err(|error| say::error(Exit::Files, &format_args!("no signals: {error}")))?;
        let (tool, keep_cluster) = (tool.clone(), false);
        let earlier = Earlier::nothing(tool.clone(), plan.clone());
        let runner = Runner { plan, provider, tool, folder, keep_cluster, events };
        let (_, ended) = runner.run(earlier, &mut stop).await;
        drop(runner);
        let _ = shown.await; // the display ends with its sender
        if let Some(signal) = ended.signal {
            return Err(say::error(Exit::Signal(signal as u8), &format!("ended by {signal}")));
        }
        if let Some(error) = ended.failed {
            return Err(say::error(Exit::Files, &error));
        }
        match ended.clusters_not_had.first() {
            Some((arm, reason)) => Err(say::error(Exit::Cluster, &format_args!("{arm}: {reason}"))),
            None => Ok(()),
        }
    })
}

/// The errors under each number of flows.
fn loads(plan: &Plan, trials: &[Trial], heard: &[Heard]) -> Vec<Load> {
    let mut errors = BTreeMap::<u32, Errors>::new();
    for trial in trials.iter().filter(|trial| trial.outcome == Outcome::Measured) {
        let heard = heard.iter().find(|heard| heard.cluster == trial.environment.cluster);
        if let Some(heard) = heard {
            errors.entry(trial.config.flows.tcp).or_default().add(trial, heard);
        }
    }
    let load = |(flows, errors): (u32, Errors)| {
        let arm = plan.arms.iter().find(|arm| arm.config.flows.tcp == flows)?;
        Some(errors.load(&arm.config))
    };
    errors.into_iter().filter_map(load).collect()
}

/// Why the figures are not to be relied on.
fn doubts(plan: &Plan, trials: &[Trial], heard: &[Heard]) -> Vec<String> {
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
    }
}
