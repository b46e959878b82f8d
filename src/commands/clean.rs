//! `drainwatch clean`: lists what earlier runs left on this machine, asks, and removes it.

use std::io::{BufRead, IsTerminal, Write};

use super::{Exit, say};
use crate::cli::CleanArgs;
use crate::cluster::local::leftovers::{self, Failure, Leftover, Survey};
use crate::display::count;

/// Runs the command: what is there on standard output, the question and errors on standard error.
pub fn run(args: &CleanArgs) -> Exit {
    let survey = leftovers::survey(args.cache);
    let printed = say::print(&page(&survey));
    if printed != Exit::Success || args.dry_run {
        return printed;
    }
    let root = nix::unistd::geteuid().is_root();
    let (can, cannot): (Vec<Leftover>, Vec<Leftover>) =
        survey.left.iter().cloned().partition(|leftover| root || !leftover.needs_root());
    let removed = match can.len() {
        0 => Exit::Success,
        n => match agreed(n, args.yes) {
            Ok(true) => remove(&can),
            Ok(false) => return say::print("Nothing was removed.\n"),
            Err(exit) => return exit,
        },
    };
    removed.min(left_behind(&survey, cannot.len(), args.cache))
}

/// What stays although it was to go, told on standard error.
fn left_behind(survey: &Survey, need_root: usize, cache: bool) -> Exit {
    let mut exit = Exit::Success;
    if need_root > 0 {
        let what = count(need_root, "thing");
        exit = say::error(
            Exit::Cluster,
            &format_args!("only root can remove {what}; run it as root, for example with sudo"),
        );
    }
    for unseen in &survey.unseen {
        let error = format_args!("{} could not be looked at: {}", unseen.what, unseen.why);
        exit = exit.min(say::error(Exit::Cluster, &error));
    }
    // Else it is only what a running setup is making: no leftover.
    for kept in survey.in_use.iter().filter(|_| cache) {
        let error = format_args!("{} stays: {}", kept.what, kept.why);
        exit = exit.min(say::error(Exit::Files, &error));
    }
    exit
}

fn remove(wanted: &[Leftover]) -> Exit {
    let failures = leftovers::remove(wanted);
    let mut exit = Exit::Success;
    for Failure { what, why, files } in &failures {
        let code = if *files { Exit::Files } else { Exit::Cluster };
        exit = exit.min(say::error(code, &format_args!("{what} could not be removed: {why}")));
    }
    let gone = wanted.len().saturating_sub(failures.len());
    exit.min(say::print(&format!("Removed {}.\n", count(gone, "thing"))))
}

/// Whether the user wants it: by `--yes`, or asked.
fn agreed(n: usize, yes: bool) -> Result<bool, Exit> {
    if yes {
        return Ok(true);
    }
    let these = if n == 1 { "this thing".to_owned() } else { format!("these {n} things") };
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        return Err(say::error(
            Exit::Usage,
            &format_args!("standard input is no terminal to ask on; with --yes {these} would go"),
        ));
    }
    let mut stderr = std::io::stderr();
    let _ = write!(stderr, "Remove {these}? [y/N] ");
    let _ = stderr.flush();
    let mut answer = String::new();
    // No answer is no.
    let _ = stdin.lock().read_line(&mut answer);
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}

/// All that was found, for people.
fn page(survey: &Survey) -> String {
    let mut text = String::new();
    let mut list = |title: &str, lines: Vec<String>| {
        if !lines.is_empty() {
            text += &format!("{title}:\n");
            lines.iter().for_each(|line| text += &format!("  {line}\n"));
        }
    };
    let kept = |all: &[leftovers::Kept]| -> Vec<String> {
        all.iter().map(|kept| format!("{}: {}", kept.what, kept.why)).collect()
    };
    let running = survey.running.iter().map(|(name, owner)| match owner {
        Some(pid) => format!("cluster {name}, kept by process {pid}"),
        None => format!("cluster {name}"),
    });
    list("Running, and left alone", running.collect());
    list("In use, and left alone", kept(&survey.in_use));
    list("Not drainwatch's, and left alone", kept(&survey.foreign));
    list("Could not be looked at", kept(&survey.unseen));
    list("Left over", survey.left.iter().map(ToString::to_string).collect());
    if survey.built_with_go && survey.left.iter().any(|l| matches!(l, Leftover::Cached { .. })) {
        text += "Go's own caches of modules and packages, which all of this user's Go programs \
                 share, stay: `go clean -cache -modcache` empties them.\n";
    }
    if survey.left.is_empty() {
        text += match survey.unseen.is_empty() {
            true => "Nothing to remove.\n",
            false => "Nothing to remove, as far as it could be looked at.\n",
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::local::leftovers::Kept;

    fn kept(what: &str, why: &str) -> Vec<Kept> {
        vec![Kept { what: what.into(), why: why.into() }]
    }

    #[test]
    fn the_page_of_a_machine_that_has_everything() {
        let folder = "/home/u/.cache/drainwatch/components/etcd/v3.6.4/linux-amd64";
        let survey = Survey {
            running: [("dw-000001".to_owned(), Some(812)), ("dw-000002".to_owned(), None)].into(),
            left: vec![
                Leftover::Link("dw3f9a1c".into()),
                Leftover::Cached {
                    what: "etcd v3.6.4".into(),
                    path: folder.into(),
                    bytes: 31 << 20,
                },
            ],
            in_use: kept("Kubernetes v1.34.0 in /x", "in use by dw-000001"),
            foreign: kept("/run/drainwatch/mine", "no cluster has such a name"),
            unseen: kept("mounts", "Permission denied"),
            built_with_go: true,
        };
        insta::assert_snapshot!(page(&survey));
    }

    #[test]
    fn nothing_is_said_to_be_nothing_only_where_all_was_seen() {
        assert_eq!(page(&Survey::default()), "Nothing to remove.\n");
        let unseen = kept("/run/drainwatch", "Permission denied");
        let text = page(&Survey { unseen, ..Survey::default() });
        assert!(text.ends_with("Nothing to remove, as far as it could be looked at.\n"), "{text}");
    }
}
