//! What the probe and the runner say to each other: flow frames and log lines.
//!
//! Knows nothing of sockets, of Kubernetes or of the runner's types.
