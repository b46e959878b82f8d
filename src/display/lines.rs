//! Plain lines: for logs, pipes and CI.

use std::io::Write;
use std::time::Instant;

use super::{View, words};
use crate::run::RunEvent;

/// Writes a line. A reader that has gone away is no reason to end a run.
fn tell(text: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Nothing but warnings.
pub struct Warnings;

impl View for Warnings {
    fn event(&mut self, event: &RunEvent) {
        if let RunEvent::Warning(text) = event {
            tell(format_args!("warning: {text}"));
        }
    }
}

/// A line an event, with the time since the run's beginning.
pub struct Lines {
    every: bool,
    began: Instant,
    arms: usize,
    id: String,
}

impl Lines {
    /// `every`: phases and clusters too.
    pub fn new(every: bool) -> Self {
        Self { every, began: Instant::now(), arms: 0, id: String::new() }
    }

    fn line(&self, text: &str) {
        let seconds = self.began.elapsed().as_secs();
        tell(format_args!("[{:2}:{:02}] {text}", seconds / 60, seconds % 60));
    }
}

impl View for Lines {
    fn event(&mut self, event: &RunEvent) {
        match event {
            RunEvent::RunStarted { matrix, arms, trials, expected, output } => {
                self.arms = *arms;
                let expected = words::span(*expected);
                let output = output.display();
                let (arms, trials) = (words::count(*arms, "arm"), words::count(*trials, "trial"));
                self.line(&format!("{matrix}: {arms}, {trials}, about {expected}, into {output}"));
            }
            RunEvent::ArmStarted { arm, number, trials } => {
                let of = self.arms;
                self.line(&format!(
                    "arm {number} of {of}: {arm}, {trials} trials; cluster coming up"
                ));
            }
            RunEvent::ClusterUp { cluster, took } => {
                self.line(&format!("cluster {cluster} up in {:.1} s", took.as_secs_f64()));
            }
            RunEvent::TrialStarted { id, expected } => {
                self.id.clone_from(id);
                if self.every {
                    self.line(&format!("{id}: begins, about {}", words::span(*expected)));
                }
            }
            RunEvent::Phase { phase, .. } if self.every => {
                self.line(&format!("{}: {}", self.id, phase.name()));
            }
            RunEvent::TrialEnded(trial) => {
                self.line(&format!("{}: {}", trial.id, words::trial(trial)));
                if self.every {
                    for warning in trial.all_warnings() {
                        self.line(&format!("{}: warning: {warning}", trial.id));
                    }
                }
            }
            RunEvent::ArmEnded { arm, reason: Some(reason) } => {
                self.line(&format!("arm {arm} ended early: {reason}"));
            }
            RunEvent::ClusterGone { cluster, took } if self.every => {
                self.line(&format!("cluster {cluster} gone in {:.1} s", took.as_secs_f64()));
            }
            RunEvent::Warning(text) => self.line(&format!("warning: {text}")),
            RunEvent::Phase { .. }
            | RunEvent::ArmEnded { .. }
            | RunEvent::ClusterGone { .. }
            | RunEvent::RunEnded => {}
        }
    }
}
