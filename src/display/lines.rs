//! Plain lines: for logs, pipes and CI.

use std::io::Write;
use std::time::Instant;

use super::{View, words};
use crate::run::RunEvent;

/// Where lines go. A reader that has gone away is no reason to end a run.
pub type Out = Box<dyn Write + Send>;

/// Nothing but warnings.
pub struct Warnings(pub Out);

impl View for Warnings {
    fn event(&mut self, event: &RunEvent) {
        if let RunEvent::Warning(text) = event {
            let _ = writeln!(self.0, "warning: {text}");
        }
    }
}

/// A line an event, with the time since the run's beginning.
pub struct Lines {
    out: Out,
    every: bool,
    began: Instant,
    arms: usize,
    id: String,
}

impl Lines {
    /// `every`: phases and clusters too.
    pub fn new(out: Out, every: bool) -> Self {
        Self { out, every, began: Instant::now(), arms: 0, id: String::new() }
    }

    fn line(&mut self, text: &str) {
        let seconds = self.began.elapsed().as_secs();
        let _ = writeln!(self.out, "[{:2}:{:02}] {text}", seconds / 60, seconds % 60);
    }
}

impl View for Lines {
    fn event(&mut self, event: &RunEvent) {
        match event {
            RunEvent::RunStarted { matrix, arms, trials, recorded, expected, output } => {
                self.arms = *arms;
                let expected = words::span(*expected);
                let output = crate::config::shown(output);
                let (arms, trials) =
                    (words::count(*arms, "arm"), words::trials(*trials, *recorded));
                self.line(&format!("{matrix}: {arms}, {trials}, about {expected}, into {output}"));
            }
            RunEvent::ArmStarted { arm, number, trials, recorded } => {
                let trials = words::trials(*trials as usize, *recorded as usize);
                let of = self.arms;
                self.line(&format!("arm {number} of {of}: {arm}, {trials}; cluster coming up"));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Phase;
    use crate::stories;
    use std::sync::{Arc, Mutex, PoisonError};
    use std::time::Duration;

    #[derive(Clone, Default)]
    struct Page(Arc<Mutex<Vec<u8>>>);

    impl Write for Page {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// What is shown of a run of two trials, one of them aborted.
    fn shown(view: impl FnOnce(Out) -> Box<dyn View>) -> String {
        let page = Page::default();
        let mut view = view(Box::new(page.clone()));
        let (second, id) = (Duration::from_secs(1), "exit-delete/001".to_owned());
        for event in [
            RunEvent::RunStarted {
                matrix: "paper".into(),
                arms: 1,
                trials: 2,
                recorded: 0,
                expected: second * 77,
                output: "results/paper".into(),
            },
            RunEvent::ArmStarted { arm: "exit-delete".into(), number: 1, trials: 2, recorded: 0 },
            RunEvent::ClusterUp { cluster: "dw-1".into(), took: second * 4 },
            RunEvent::TrialStarted { id, expected: second * 20 },
            RunEvent::Phase { phase: Phase::Settle, expected: Some(second * 10) },
            RunEvent::TrialEnded(Arc::new(stories::exit(1))),
            RunEvent::TrialEnded(Arc::new(stories::aborted("exit-delete", 2))),
            RunEvent::Warning("environment: cni could not be read".into()),
            RunEvent::ClusterGone { cluster: "dw-1".into(), took: second },
            RunEvent::ArmEnded { arm: "exit-delete".into(), reason: Some("a reason".into()) },
            RunEvent::RunEnded,
        ] {
            view.event(&event);
        }
        let bytes = page.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let text = String::from_utf8(bytes).unwrap();
        // The time depends on how busy this machine is.
        text.lines().map(|line| line.replacen("[ 0:0", "[ 0:?", 1) + "\n").collect()
    }

    #[test]
    fn a_line_for_each_trial() {
        insta::assert_snapshot!(shown(|out| Box::new(Lines::new(out, false))));
    }

    #[test]
    fn a_line_for_each_event() {
        insta::assert_snapshot!(shown(|out| Box::new(Lines::new(out, true))));
    }

    #[test]
    fn nothing_but_warnings() {
        insta::assert_snapshot!(shown(|out| Box::new(Warnings(out))));
    }
}
