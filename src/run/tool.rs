//! The build that measures, as records name it.

use std::io::Read;

use sha2::{Digest, Sha256};

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
        runner_sha256: sha256_of_file("/proc/self/exe")?,
        probe_sha256: image::probe_sha256(),
    })
}

fn sha256_of_file(path: &str) -> std::io::Result<String> {
    let mut file = std::fs::File::open(path)?;
    let mut hash = Sha256::new();
    let mut chunk = vec![0; 1 << 16];
    loop {
        match file.read(&mut chunk)? {
            0 => break,
            n => hash.update(&chunk[..n]),
        }
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}
