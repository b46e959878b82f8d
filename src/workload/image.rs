//! The probe's image: the binary that the build embedded, as an archive that containerd and Docker load.
//!
//! Takes the binary from the build and writes an archive; knows nothing of clusters.

use std::io::{self, Write};

/// The probe: a static binary for the runner's own architecture.
pub const PROBE: &[u8] = include_bytes!(env!("DRAINWATCH_PROBE"));

/// SHA-256 of [`PROBE`], in hexadecimal.
pub fn probe_sha256() -> String {
    todo!()
}

/// The image's name. Its tag comes from the binary, so that it can't name another build.
pub fn image_name() -> String {
    format!("drainwatch.local/probe:{}", &probe_sha256()[..12])
}

/// Writes the image under each of `names` (`host/repository:tag`) as an archive.
///
/// # Errors
/// `out` could not be written.
pub fn write_archive(out: impl Write, names: &[&str]) -> io::Result<()> {
    let _ = (out, names);
    todo!()
}
