//! TOML in, resolved scenarios and matrices out.
//!
//! Takes the user's files and overrides; gives [`Scenario`]s, [`ClusterSpec`]s and matrices in
//! which nothing is missing or contradictory, or errors with their places. Knows nothing of
//! clusters, plans or trials.
//!
//! The way through: a `source` is parsed and walked into `settings` (each value checked by
//! `value` against the `schema`); a `matrix` with its `axes` and the `overrides` lay settings over
//! each other, an arm at a time (`arms`); `resolve` fills in defaults and looks for contradictions.
//! All add to one list of problems (`errors`), so that a person sees everything at once.

mod arms;
mod axes;
mod errors;
mod json_schema;
mod matrix;
mod names;
mod options;
mod overrides;
mod reference;
mod resolve;
mod scenario;
mod schema;
mod settings;
mod source;
mod trigger;
mod value;
mod workload;

#[cfg(test)]
mod schema_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod trigger_tests;

use std::path::Path;

pub use arms::{Arm, FileKind, Matrix};
pub use errors::Errors;
pub(crate) use errors::likely;
pub use json_schema::{matrix as matrix_schema, scenario as scenario_schema};
pub use options::cluster;
pub use reference::page as keys_page;
pub use scenario::*;
pub use schema::{DEFAULT_KUBERNETES, LOCAL_MINORS, MAX_FLOWS};
pub(crate) use source::{shown, shown_text};
pub use trigger::{Ends, Rollout, Share, Trigger};
pub use workload::*;

/// Reads a matrix, or a scenario as a matrix of one.
///
/// `set` and `only` are the values of `--set` (KEY=VALUE, for all arms) and `--only` (an arm's
/// name); contradictions in arms that are not picked are not looked for.
///
/// # Errors
///
/// Everything that is wrong in the file, in the scenarios that it names and in the flags.
pub fn load(file: &Path, set: &[String], only: &[String]) -> Result<Matrix, Errors> {
    let mut problems = errors::Problems::default();
    let matrix = match source::Source::read(file, 0) {
        Ok(source) => arms::load(file, &source, set, only, &mut problems),
        Err(problem) => {
            let missing = matches!(file.try_exists(), Ok(false));
            let help = missing.then(|| names::meant(file)).flatten();
            problems.push(problem.maybe_help(help));
            None
        }
    };
    problems.finish(matrix)
}
