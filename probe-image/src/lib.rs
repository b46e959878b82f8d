//! What the probe and the runner say to each other: flow frames ([`wire`]) and log lines ([`log`]);
//! and how both read thousands of them ([`pace`]).
//!
//! Knows nothing of sockets, of Kubernetes or of the runner's types.
//!
//! ```
//! use drainwatch_probe::wire::{self, Frame, Heartbeat};
//!
//! let bytes = Heartbeat { flow: 7, sequence: 1, sent_ns: 42 }.encode();
//! let (frame, length) = wire::parse(&bytes)?.expect("a whole frame");
//! assert_eq!(length, wire::SHORT_FRAME);
//! assert!(matches!(frame, Frame::Heartbeat(Heartbeat { flow: 7, .. })));
//! # Ok::<(), wire::BadFrame>(())
//! ```

pub mod log;
pub mod pace;
pub mod wire;

/// The port on which the probe accepts TCP flows, unless told otherwise.
pub const TCP_PORT: u16 = 7001;
/// The port on which the probe answers UDP flows, unless told otherwise.
pub const UDP_PORT: u16 = 7002;
/// The port on which the probe answers `GET /readyz`, unless told otherwise.
pub const READYZ_PORT: u16 = 7003;
/// POST to this path of the readiness port makes `/readyz` fail from then on.
pub const FAIL_PATH: &str = "/readyz/fail";
