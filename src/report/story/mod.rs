//! The story of a trial, or of one of its flows, line by line on one time axis.
//!
//! Takes a trial's record, judged; gives lines that a terminal ([`text()`]), a page or a program can
//! show. Judges nothing: each line is an observation of the record in words, or a link of the chain
//! that the verdict found.

mod cast;
mod facts;
mod flow;
mod groups;
mod kernels;
mod sentences;
mod text;
mod trial;

use serde::Serialize;

use crate::observation::{Bound, Event, Observation, Source};
use crate::verdict::FlowRecord;

pub use flow::flow;
pub use groups::{Group, ids_in_words};
pub use text::text;
pub use trial::trial;

/// The format of a story as JSON.
pub const FORMAT: &str = "drainwatch.story/1";

/// What happened, in words.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Story {
    /// [`FORMAT`].
    pub format: &'static str,
    /// The trial: `drain-delete/001`.
    pub trial: String,
    /// The flow that it is about, as it is judged; null for the trial's own story.
    pub flow: Option<FlowRecord>,
    /// What it comes to, in a line.
    pub title: String,
    /// What to know before reading on, each with its name.
    pub facts: Vec<Fact>,
    /// What the times are counted from.
    pub zero: &'static str,
    /// What happened, in the order of time.
    pub lines: Vec<Line>,
    /// The trial's flows by what became of them; none in a flow's story.
    pub groups: Vec<Group>,
    /// What a reader should know before using the figures.
    pub warnings: Vec<String>,
}

/// One thing to know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fact {
    /// What it is about.
    pub name: &'static str,
    /// In words.
    pub text: String,
}

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Line {
    /// When, in milliseconds from the story's zero.
    pub t_ms: f64,
    /// How that relates to the instant of the thing itself.
    pub bound: Bound,
    /// What relating two clocks adds, in milliseconds; null where no bound is known.
    pub plus_minus_ms: Option<f64>,
    /// Who saw it; null where another tool's report does not say so in our terms.
    pub source: Option<Source>,
    /// In words.
    pub text: String,
    /// Which links of the flow's chain it is, counted from 1.
    pub links: Vec<usize>,
    /// What kind of line it is.
    pub mark: Mark,
}

/// What kind of line it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mark {
    /// The trigger.
    Trigger,
    /// Something happened.
    Event,
    /// From here on something may be missing.
    Gap,
    /// The flow's fate befell it.
    End,
}

/// A line, and what it tells of.
#[derive(Debug)]
struct Told<'a> {
    line: Line,
    event: Option<&'a Event>,
}

impl<'a> Told<'a> {
    fn of(observation: &'a Observation, text: String) -> Self {
        Self::at(observation, observation.at.ms(), text)
    }

    /// At another of the event's times.
    fn at(observation: &'a Observation, t_ms: f64, text: String) -> Self {
        let Observation { bound, plus_minus_ms, source, ref event, .. } = *observation;
        let mark = match event {
            Event::TriggerSent { .. } => Mark::Trigger,
            Event::WatchGap { .. } | Event::EvidenceGap { .. } | Event::LogLost { .. } => Mark::Gap,
            _ => Mark::Event,
        };
        let line = Line {
            t_ms,
            bound,
            plus_minus_ms,
            source: Some(source),
            text,
            links: Vec::new(),
            mark,
        };
        Self { line, event: Some(event) }
    }

    /// What is known of from no observation.
    fn bare(t_ms: f64, bound: Bound, plus_minus_ms: Option<f64>, text: String) -> Self {
        let (source, links, mark) = (None, Vec::new(), Mark::Event);
        let line = Line { t_ms, bound, plus_minus_ms, source, text, links, mark };
        Self { line, event: None }
    }
}

/// The lines in the order of time; of one time, in the order given.
fn in_order(mut told: Vec<Told>) -> Vec<Line> {
    told.sort_by(|a, b| a.line.t_ms.total_cmp(&b.line.t_ms));
    told.into_iter().map(|told| told.line).collect()
}

#[cfg(test)]
mod tests;
