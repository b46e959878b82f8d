//! The build that measures, as records name it.

use std::path::Path;

use crate::digest::sha256_of_file;
use crate::record::Tool;
use crate::workload::image;

/// The running build: version, commit, checksums of this binary and of the probe in it.
pub fn current() -> std::io::Result<Tool> {
    Ok(Tool {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        commit: env!("DRAINWATCH_COMMIT").to_owned(),
        dirty: match env!("DRAINWATCH_DIRTY") {
            "true" => Some(true),
            "false" => Some(false),
            _ => None,
        },
        runner_sha256: sha256_of_file(Path::new("/proc/self/exe"))?,
        probe_sha256: image::probe_sha256(),
    })
}
