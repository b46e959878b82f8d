//! Evidence: what the kernel tells, beside what sockets and the API do.
//!
//! Takes processes whose namespaces it reads; gives observations. Knows nothing of flows, of
//! fates or of how a provider finds those processes.

mod conntrack;
pub mod counters;
mod listen;
mod listener;
mod netlink;
pub(crate) mod packets;
mod processes;
mod repeats;
mod rules;
pub(crate) mod tap;

pub use listen::{Evidence, EvidenceError, Place, Subject, SubjectPort, start};
pub use processes::Process;
