//! The end of a run: tables, what went wrong, how to go on; and a last look at its cluster.

use std::path::Path;

use crate::cluster::Cluster;
use crate::commands::{Exit, say};
use crate::record::{Claim, Run, folder_name};
use crate::report::{self, Part};
use crate::run::{Earlier, Ended, Stop};
use crate::verdict::Outcome;
use crate::workload::NAMESPACE;

/// Writes the tables, prints the summary, and gives the exit code.
pub fn finish(folder: &Claim, record: &Run, ended: Ended) -> Exit {
    let path = folder.path();
    // A run that could not write a record has tables when it is resumed: they are of one state.
    let name = folder_name(path);
    let parts = [Part { name: &name, trials: &ended.trials, run: Some(record) }];
    let written = match ended.failed {
        Some(error) => Err(error.into()),
        None => {
            folder.still_there().map_err(Into::into).and_then(|()| report::write_all(path, &parts))
        }
    };
    let table = match ended.trials.as_slice() {
        [] => String::new(),
        _ => report::terminal(&parts) + "\n",
    };
    let text = format!("{table}{}\n", path.display());
    let mut exit = say::results(&parts, written.is_ok().then_some(path), &text);
    for (arm, reason) in &ended.clusters_not_had {
        say::error(Exit::Cluster, &format_args!("{arm}: {reason}"));
    }
    for refused in &ended.refused {
        let lines: String =
            refused.differences.iter().map(|difference| format!("\n  {difference}")).collect();
        let text = format!("{}: {}{lines}", refused.arm, refused.reason);
        exit = exit.min(say::error(Exit::NotMeasured, &text));
    }
    if ended.trials.iter().any(|trial| trial.outcome != Outcome::Measured) {
        exit = exit.min(Exit::NotMeasured);
    }
    if !ended.clusters_not_had.is_empty() {
        exit = exit.min(Exit::Cluster);
    }
    if let Err(error) = &written {
        exit = exit.min(say::error(Exit::Files, error));
    }
    if let Some(signal) = ended.signal {
        exit = exit.min(say::error(Exit::Signal(signal as u8), &format!("ended by {signal}")));
    }
    let left = Earlier { record: record.clone(), trials: ended.trials, is_resumed: true }.left();
    if left > 0 || written.is_err() {
        say::tell(&how_to_go_on(path, left, record.plan.trials() as usize));
    }
    exit
}

/// The command that runs what is missing.
fn how_to_go_on(folder: &Path, left: usize, all: usize) -> String {
    let command = format!("drainwatch apply --resume {}", say::quoted(folder));
    match left {
        0 => format!("to write what could not be written: {command}"),
        left => format!("{left} of {all} trials are missing or aborted; to run them: {command}"),
    }
}

/// Leaves a cluster as it is until a signal comes, then removes it.
pub async fn look(cluster: Box<dyn Cluster>, stop: &mut Stop) {
    let name = cluster.name().to_owned();
    let kubeconfig = say::quoted(cluster.kubeconfig());
    say::tell(&format_args!(
        "cluster {name} is kept for a look; the last trial's objects are in its namespace \
         {NAMESPACE}\n  export KUBECONFIG={kubeconfig}\nCtrl-C removes it"
    ));
    stop.wait().await;
    match cluster.down().await {
        Ok(()) => say::tell(&format_args!("cluster {name} is gone")),
        Err(error) => say::tell(&format_args!("warning: cluster {name}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_can_be_pasted_into_a_shell() {
        let line = |folder: &str| how_to_go_on(Path::new(folder), 17, 25);
        insta::assert_snapshot!(line("results/paper-20261130T140006Z"), @"17 of 25 trials are missing or aborted; to run them: drainwatch apply --resume results/paper-20261130T140006Z");
        insta::assert_snapshot!(line("my $runs/it's"), @r"17 of 25 trials are missing or aborted; to run them: drainwatch apply --resume 'my $runs/it'\''s'");
    }
}
