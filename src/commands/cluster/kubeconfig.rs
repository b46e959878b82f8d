//! `--kubeconfig FILE`: a copy of a cluster's kubeconfig where the user wants it.
//!
//! The cluster's supervisor removes it, so that it goes however the cluster does.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::cluster::ClusterError;
use crate::cluster::local::Running;

/// A copy to be made, at a path where nothing is yet.
pub struct Copy {
    /// Absolute.
    pub path: PathBuf,
}

impl Copy {
    /// Looks whether a copy can be made there; what is there is never overwritten. The error is
    /// for people.
    pub fn to(path: &Path) -> Result<Self, String> {
        let shown = path.display();
        let wrong = |why: &str| {
            Err(format!("--kubeconfig {shown}: {why}\n  name a file that is not there yet"))
        };
        let Ok(absolute) = std::path::absolute(path) else { return wrong("this is no path") };
        match std::fs::symlink_metadata(&absolute) {
            Ok(meta) if meta.is_dir() => return wrong("this is a folder"),
            Ok(_) => return wrong("it is there already, and would be overwritten"),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return wrong(&format!("it can't be looked at: {error}")),
        }
        match absolute.parent() {
            Some(folder) if folder.is_dir() && absolute.file_name().is_some() => {
                Ok(Self { path: absolute })
            }
            Some(folder) => wrong(&format!("there is no folder {}", folder.display())),
            None => wrong("this is no file"),
        }
    }

    /// Writes it, for its owner's eyes only.
    pub fn write(&self, running: &Running) -> Result<(), ClusterError> {
        running.copy_kubeconfig(&self.path).map_err(|source| ClusterError::Io {
            what: format!("--kubeconfig {}", self.path.display()),
            source,
        })
    }
}
