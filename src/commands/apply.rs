//! `drainwatch apply`: plan, checks, run, tables.

mod finish;
mod start;

use tokio::sync::mpsc;

use super::{Exit, say, setup};
use crate::cli::ApplyArgs;
use crate::cluster::local::components;
use crate::display::{self, Style};
use crate::run::limits::{self, Machine};
use crate::run::{Runner, Stop};

/// Runs the command.
pub fn run(args: &ApplyArgs) -> Exit {
    match apply(args) {
        Ok(exit) | Err(exit) => exit,
    }
}

fn apply(args: &ApplyArgs) -> Result<Exit, Exit> {
    let begun = start::start(args)?;
    let plan = begun.earlier.record.plan.clone();
    let todo: Vec<_> =
        plan.arms.iter().filter(|arm| !begun.earlier.missing(arm).is_empty()).collect();
    limits::allow_descriptors(&plan);
    limits::check_arms(&Machine::read(), todo.iter().copied())
        .map_err(|error| say::error(Exit::NotMeasured, &error))?;
    if args.setup && !todo.is_empty() {
        let mut versions: Vec<_> = todo.iter().map(|arm| arm.cluster.kubernetes.clone()).collect();
        versions.sort();
        versions.dedup();
        // One arm's need is what all versions are made ready for: extras are small.
        let extras = todo.iter().map(|arm| components::extras(&arm.cluster));
        let extras = extras.max_by_key(|extras| extras.len()).unwrap_or_default();
        setup::make_ready(versions, extras)?;
    }
    todo.iter()
        .try_for_each(|arm| begun.provider.check(&arm.cluster))
        .map_err(|error| say::error(Exit::Cluster, &error))?;
    let folder = begun.folder.claim()?;
    if todo.is_empty() {
        let all = display::count(plan.trials() as usize, "trial");
        let kept = if args.keep_cluster { "; no cluster is started" } else { "" };
        say::tell(&format_args!("nothing is left to do: {all} recorded{kept}"));
    }
    // Two threads: what the API says is taken in beside the trial's own steps. Flows have theirs.
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime =
        runtime.map_err(|error| say::error(Exit::Files, &format_args!("no threads: {error}")))?;
    runtime.block_on(async {
        let (events, receiver) = mpsc::unbounded_channel();
        let shown = display::show(receiver, Style::choose(args.quiet, args.verbose));
        let mut stop = Stop::listen()
            .map_err(|error| say::error(Exit::Files, &format_args!("no signals: {error}")))?;
        let runner = Runner {
            plan: &plan,
            provider: &*begun.provider,
            tool: begun.tool,
            folder: &folder,
            keep_cluster: args.keep_cluster,
            events,
        };
        let (record, mut ended) = runner.run(begun.earlier, &mut stop).await;
        drop(runner);
        let _ = shown.await; // the display ends with its sender
        let kept = ended.kept.take();
        let exit = finish::finish(&folder, &record, ended);
        match kept {
            Some(cluster) => finish::look(cluster, &mut stop).await,
            None if args.keep_cluster && !todo.is_empty() => {
                say::tell(
                    &"no cluster is kept: the last one could not be had, or the run was ended",
                );
            }
            None => {}
        }
        Ok(exit)
    })
}
