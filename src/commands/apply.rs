//! `drainwatch apply`: plan, checks, run, tables.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use tokio::sync::mpsc;

use super::{Exit, say, setup};
use crate::cli::ApplyArgs;
use crate::cluster::Provider;
use crate::cluster::local::LocalProvider;
use crate::config::ProviderKind;
use crate::display::{self, Style};
use crate::plan::Plan;
use crate::record::folder_name;
use crate::report::Part;
use crate::run::limits::Machine;
use crate::run::{self, Ended, Runner, Stop};
use crate::verdict::Outcome;
use crate::{plan, report};

/// Runs the command.
pub fn run(args: &ApplyArgs) -> Exit {
    let selection = &args.selection;
    let mut plan = match plan::load(&selection.file, &selection.set, &selection.only) {
        Ok(plan) => plan,
        Err(errors) => return say::errors(&errors),
    };
    let provider = match provider(&mut plan, args.quiet) {
        Ok(provider) => provider,
        Err(text) => return say::error(Exit::Usage, &text),
    };
    let folder = match output_folder(args.output.as_deref(), &plan.matrix) {
        Ok(folder) => folder,
        Err(text) => return say::error(Exit::Files, &text),
    };
    run::limits::allow_descriptors(&plan);
    if let Err(error) = run::limits::check_plan(&Machine::read(), &plan) {
        return say::error(Exit::NotMeasured, &error);
    }
    if args.setup {
        let mut versions: Vec<_> =
            plan.arms.iter().map(|arm| arm.cluster.kubernetes.clone()).collect();
        versions.sort();
        versions.dedup();
        if let Err(exit) = setup::make_ready(versions) {
            return exit;
        }
    }
    if let Err(error) = plan.arms.iter().try_for_each(|arm| provider.check(&arm.cluster)) {
        return say::error(Exit::Cluster, &error);
    }
    if let Err(error) = std::fs::create_dir_all(&folder) {
        return say::error(
            Exit::Files,
            &format_args!("{}: can't be made: {error}", folder.display()),
        );
    }
    let tool = match run::current_tool() {
        Ok(tool) => tool,
        Err(error) => {
            return say::error(Exit::Files, &format!("this binary can't be read: {error}"));
        }
    };
    // Two threads: what the API says is taken in beside the trial's own steps. Flows have theirs.
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return say::error(Exit::Files, &format!("no threads: {error}")),
    };
    runtime.block_on(async {
        let (events, receiver) = mpsc::unbounded_channel();
        let shown = display::show(receiver, Style::choose(args.quiet, args.verbose));
        let mut stop = match Stop::listen() {
            Ok(stop) => stop,
            Err(error) => return say::error(Exit::Files, &format!("no signals: {error}")),
        };
        let runner =
            Runner { plan: &plan, provider: &*provider, tool, folder: folder.clone(), events };
        let result = runner.run(&mut stop).await;
        drop(runner);
        let _ = shown.await; // the display ends with its sender
        match result {
            Ok((record, ended)) => finish(&folder, &record, ended),
            Err(error) => say::error(Exit::Files, &error),
        }
    })
}

/// Writes the tables, prints the summary, and gives the exit code.
fn finish(folder: &Path, record: &crate::record::Run, ended: Ended) -> Exit {
    let name = folder_name(folder);
    let parts = [Part { name: &name, trials: &ended.trials, run: Some(record) }];
    let written = report::write_all(folder, &parts);
    let table = match ended.trials.as_slice() {
        [] => String::new(),
        _ => report::terminal(&parts) + "\n",
    };
    let text = format!("{table}{}\n", folder.display());
    let mut exit = say::results(&parts, written.is_ok().then_some(folder), &text);
    for (arm, reason) in &ended.clusters_not_had {
        say::error(Exit::Cluster, &format_args!("{arm}: {reason}"));
    }
    if ended.trials.iter().any(|trial| trial.outcome != Outcome::Measured) {
        exit = exit.min(Exit::NotMeasured);
    }
    if !ended.clusters_not_had.is_empty() {
        exit = exit.min(Exit::Cluster);
    }
    if let Err(error) = written {
        exit = exit.min(say::error(Exit::Files, &error));
    }
    if let Some(signal) = ended.signal {
        exit = exit.min(say::error(Exit::Signal(signal as u8), &format!("ended by {signal}")));
    }
    exit
}

/// The provider of the plan's arms: one for all of them. The plan then names it, not `auto`.
fn provider(plan: &mut Plan, quiet: bool) -> Result<Box<dyn Provider>, String> {
    let mut auto = false;
    for arm in &mut plan.arms {
        let kind = match arm.cluster.provider {
            ProviderKind::Local => continue,
            ProviderKind::Auto => {
                auto = true;
                arm.cluster.provider = ProviderKind::Local;
                continue;
            }
            ProviderKind::Kind => "kind",
            ProviderKind::Context => "context",
        };
        return Err(format!(
            "arm {}: cluster.provider = \"{kind}\" is not supported yet\n  \
             use \"local\" or \"auto\", or pass --set cluster.provider=local",
            arm.name
        ));
    }
    if auto && !quiet {
        say::note(&"provider auto: local (kind is not supported yet)");
    }
    Ok(Box::new(LocalProvider::default()))
}

/// The run's folder: it must be empty or not there yet. Nothing is made.
fn output_folder(given: Option<&Path>, matrix: &str) -> Result<PathBuf, String> {
    let folder = match given {
        Some(folder) => folder.to_owned(),
        None => {
            let now = jiff::Timestamp::now().strftime("%Y%m%dT%H%M%SZ");
            Path::new("results").join(format!("{matrix}-{now}"))
        }
    };
    let shown = folder.display();
    let another = "choose another folder with --output";
    match std::fs::read_dir(&folder).map(|mut entries| entries.next().is_none()) {
        Ok(true) => Ok(folder),
        Ok(false) => Err(format!("{shown}: is not empty\n  {another}, or remove what is in it")),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(folder),
        Err(error) if error.kind() == ErrorKind::NotADirectory => {
            Err(format!("{shown}: is not a folder\n  {another}"))
        }
        Err(error) => Err(format!("{shown}: can't be read: {error}\n  {another}")),
    }
}
