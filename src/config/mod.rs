//! TOML in, resolved scenarios and matrices out.
//!
//! Takes the user's files and overrides; gives [`Scenario`]s, [`ClusterSpec`]s and matrices in
//! which nothing is missing or contradictory, or errors with their places. Knows nothing of
//! clusters, plans or trials.

mod scenario;

pub use scenario::*;
