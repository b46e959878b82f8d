//! What is run in the cluster.

pub mod image;
