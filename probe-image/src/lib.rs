//! What the probe and the runner say to each other: flow frames ([`wire`]) and log lines ([`log`]).
//!
//! Knows nothing of sockets, of Kubernetes or of the runner's types.

pub mod log;
pub mod wire;

/// The port on which the probe accepts TCP flows, unless told otherwise.
pub const TCP_PORT: u16 = 7001;
/// The port on which the probe answers UDP flows, unless told otherwise.
pub const UDP_PORT: u16 = 7002;
/// The port on which the probe answers `GET /readyz`, unless told otherwise.
pub const READYZ_PORT: u16 = 7003;
