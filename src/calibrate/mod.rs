//! Calibration: how far reported instants are off from the packets that they stand for.
//!
//! Takes a provider and numbers of flows; has trials run by the normal path while it listens on the
//! nodes' interfaces, and compares. The packets' times are the kernel's, of each as it left the node
//! that the flows enter by. Knows nothing of how flows measure.

mod capture;
mod compare;
mod method;
mod provider;
mod scenarios;
mod table;
mod wire;

pub use compare::Errors;
pub use method::Method;
pub use provider::{Heard, Listening};
pub use scenarios::{PlanError, plan};
pub use table::markdown;

#[cfg(test)]
mod tests;
