//! `drainwatch explain`: the story of a recorded trial, or of one of its flows, on one time axis.
//!
//! Reads one record, never a cluster; judges it anew and rewrites nothing.

mod find;

use std::io::IsTerminal;

use super::{Exit, say};
use crate::cli::{ExplainArgs, Format};
use crate::record::Trial;
use crate::report::story::{self, Story};

/// Runs the command.
pub fn run(args: &ExplainArgs) -> Exit {
    match tell(args) {
        Ok(text) => say::print(&text),
        Err(message) => say::error(Exit::Usage, &message),
    }
}

fn tell(args: &ExplainArgs) -> Result<String, String> {
    let mut trial = find::trial(&args.trial).map_err(|error| error.to_string())?;
    trial.judge_anew();
    let story = match &args.flow {
        Some(flow) => of_flow(&trial, flow)?,
        None => story::trial(&trial),
    };
    Ok(match args.format {
        Format::Text => story::text(&story, colours()) + &hint(args, &trial),
        Format::Json => json(&story)?,
    })
}

fn of_flow(trial: &Trial, flow: &str) -> Result<Story, String> {
    story::flow(trial, flow).or_else(|| story::flow(trial, &flow.to_lowercase())).ok_or_else(|| {
        let id = &trial.id;
        if trial.flows.is_empty() {
            return format!("{id} has no flows");
        }
        let flows = trial.flows.iter().map(|flow| flow.id.as_str());
        format!("{id} has no flow {flow}\n  its flows: {}", story::ids_in_words(flows))
    })
}

fn json(story: &Story) -> Result<String, String> {
    let text = serde_json::to_string_pretty(story).map_err(|error| error.to_string())?;
    Ok(text + "\n")
}

/// How to go on from a trial to one of its flows.
fn hint(args: &ExplainArgs, trial: &Trial) -> String {
    let flow = trial.flows.iter().rev().find(|flow| flow.ended_ms.is_some());
    match (&args.flow, flow) {
        (None, Some(flow)) => {
            format!(
                "\none flow's story: drainwatch explain {} {}\n",
                say::quoted(&args.trial),
                flow.id
            )
        }
        _ => String::new(),
    }
}

/// On a terminal that has not been told otherwise (<https://no-color.org>).
fn colours() -> bool {
    let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    std::io::stdout().is_terminal() && !set("NO_COLOR") && !dumb
}
