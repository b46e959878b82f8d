//! Evidence: what the kernel tells, beside what sockets and the API do.
//!
//! Takes processes whose namespaces it reads; gives observations. Knows nothing of flows, of
//! fates or of how a provider finds those processes.

pub mod counters;
