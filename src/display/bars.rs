//! Bars on a terminal: one for the run, one for the phase; a line stays for each trial.

use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use super::{View, words};
use crate::run::RunEvent;

/// Bars that vanish at the end of the run.
pub struct Bars {
    all: MultiProgress,
    run: ProgressBar,
    phase: ProgressBar,
    began: Instant,
    expected: Duration,
    arms: usize,
    arm: String,
    trial: String,
    trial_expected: Duration,
    /// What the trials that are over were expected to take.
    done: Duration,
}

impl Bars {
    /// Draws nothing yet.
    pub fn new() -> Self {
        let all = MultiProgress::new();
        let run = all.add(ProgressBar::new(0));
        let phase = all.add(ProgressBar::new_spinner());
        // The templates are constants that indicatif can read.
        let style = |template| {
            ProgressStyle::with_template(template)
                .unwrap_or_else(|_| ProgressStyle::default_bar())
                .progress_chars("━╸─")
        };
        run.set_style(style("{bar:24.cyan/dim} {pos} of {len} trials  {msg}"));
        phase.set_style(style("{spinner} {msg}"));
        phase.enable_steady_tick(Duration::from_millis(120));
        Self {
            all,
            run,
            phase,
            began: Instant::now(),
            expected: Duration::ZERO,
            arms: 0,
            arm: String::new(),
            trial: String::new(),
            trial_expected: Duration::ZERO,
            done: Duration::ZERO,
        }
    }

    /// A line that stays.
    fn say(&self, text: &str) {
        // A terminal that is gone shows nothing.
        let _ = self.all.println(text);
    }

    /// What is left, by the plan's pace until there is one of this machine.
    fn left(&self) -> String {
        let left = self.expected.saturating_sub(self.done);
        let pace = if self.done.is_zero() {
            1.0
        } else {
            (self.began.elapsed().as_secs_f64() / self.done.as_secs_f64()).clamp(0.5, 3.0)
        };
        format!("about {} left", words::span(left.mul_f64(pace)))
    }
}

impl View for Bars {
    fn event(&mut self, event: &RunEvent) {
        match event {
            RunEvent::RunStarted { arms, trials, recorded, expected, output, matrix } => {
                (self.arms, self.expected) = (*arms, *expected);
                self.run.set_length(*trials as u64);
                self.run.set_position(*recorded as u64);
                self.run.set_message(self.left());
                let (arms, trials) =
                    (words::count(*arms, "arm"), words::trials(*trials, *recorded));
                self.say(&format!(
                    "{matrix}: {arms}, {trials}, into {}",
                    crate::config::shown(output)
                ));
            }
            RunEvent::ArmStarted { arm, number, .. } => {
                self.arm = format!("arm {number} of {}: {arm}", self.arms);
                self.phase.set_message(format!("{}: cluster coming up", self.arm));
            }
            RunEvent::ClusterUp { .. } => {
                self.phase.set_message(format!("{}: images", self.arm));
            }
            RunEvent::TrialStarted { id, expected } => {
                self.trial.clone_from(id);
                self.trial_expected = *expected;
            }
            RunEvent::Phase { phase, expected } => {
                let about = expected.map(|e| format!(", {}", words::span(e))).unwrap_or_default();
                self.phase.set_message(format!("{}: {}{about}", self.trial, phase.name()));
            }
            RunEvent::TrialEnded(trial) => {
                self.done += self.trial_expected;
                self.run.inc(1);
                self.run.set_message(self.left());
                self.say(&format!("{}: {}", trial.id, words::trial(trial)));
            }
            RunEvent::ArmEnded { arm, reason } => {
                if let Some(reason) = reason {
                    self.say(&format!("arm {arm} ended early: {reason}"));
                }
            }
            RunEvent::ClusterGone { .. } => {}
            RunEvent::Warning(text) => self.say(&format!("warning: {text}")),
            RunEvent::RunEnded => {
                self.phase.finish_and_clear();
                self.run.finish_and_clear();
            }
        }
    }
}
