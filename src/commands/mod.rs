//! One command a file: calls the stages in their order and turns errors into exit codes.

pub mod apply;
pub mod calibrate;
pub mod check;
pub mod clean;
pub mod cluster;
pub mod completions;
pub mod doctor;
pub mod explain;
pub mod man;
pub mod plan;
mod say;
pub mod schema;
pub mod setup;
pub mod summarize;

pub use say::end;

/// What the process's exit code says; of several the first in this order counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Exit {
    /// Ended by a signal: 128 and its number.
    Signal(u8),
    /// The command line or a TOML file is wrong.
    Usage,
    /// Files could not be written.
    Files,
    /// The cluster could not be had.
    Cluster,
    /// A precondition failed, a trial was aborted or a trigger refused.
    NotMeasured,
    /// An expectation failed.
    Expectation,
    /// All went well.
    Success,
}

impl Exit {
    /// The number.
    pub fn code(self) -> u8 {
        match self {
            Exit::Signal(number) => 128 + number,
            Exit::Usage => 2,
            Exit::Files => 5,
            Exit::Cluster => 4,
            Exit::NotMeasured => 3,
            Exit::Expectation => 1,
            Exit::Success => 0,
        }
    }

    /// The word for programs.
    pub fn outcome(self) -> &'static str {
        match self {
            Exit::Signal(_) => "signal",
            Exit::Usage => "usage",
            Exit::Files => "files",
            Exit::Cluster => "cluster",
            Exit::NotMeasured => "not-measured",
            Exit::Expectation => "expectation",
            Exit::Success => "success",
        }
    }
}

impl From<Exit> for std::process::ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}
