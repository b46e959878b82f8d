//! Asks binaries for their versions: that they run here at all, and are what they are said to be.
//!
//! Takes a folder and what should be in it; gives versions or the reason. Changes nothing.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::host;
use super::process::ask;
use super::versions::{Item, Part};

const PATIENCE: Duration = Duration::from_secs(20);

/// Whether all binaries of an item are in a folder, run, and say the item's version. The reason
/// otherwise.
pub fn check(item: &Item, folder: &Path) -> Result<(), String> {
    if let Some(lacking) = lacking(item.part, folder) {
        return Err(format!("{} has no executable {lacking}", folder.display()));
    }
    for binary in item.part.binaries() {
        let path = folder.join(binary);
        let version = version(&path)?;
        // CNI plugins that were built without a stamp say "version unknown".
        if let Some(version) = version
            && version != item.version
        {
            return Err(format!("{} is {version}, not {}", path.display(), item.version));
        }
    }
    Ok(())
}

/// The first binary of a part that a folder lacks.
pub fn lacking(part: Part, folder: &Path) -> Option<&'static str> {
    part.binaries().iter().copied().find(|binary| !host::is_executable(&folder.join(binary)))
}

/// The version that a component says it has, as `v1.34.0`; `None` where it runs but can't tell.
/// The reason where it does not run.
pub fn version(path: &Path) -> Result<Option<String>, String> {
    let mut command = Command::new(path);
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if name == "containerd-shim-runc-v2" {
        command.arg("-v");
    } else if name == "kubectl" {
        command.args(["version", "--client"]);
    } else if !Part::Cni.binaries().contains(&name) {
        command.arg("--version");
    }
    // A CNI plugin tells its version when it is not told to do anything.
    command.env_remove("CNI_COMMAND");
    let text = ask(&mut command, PATIENCE)
        .map_err(|failure| format!("{} does not run here: {failure}", path.display()))?;
    Ok(find_version(&text))
}

/// The first line that a tool of the host writes about its version; `unknown` where it fails.
pub fn tool_version(path: &Path, argument: &str) -> String {
    ask(Command::new(path).arg(argument), PATIENCE)
        .ok()
        .and_then(|text| text.lines().next().map(|line| line.trim().to_owned()))
        .unwrap_or_else(|| "unknown".into())
}

fn find_version(text: &str) -> Option<String> {
    text.lines().filter(|line| !line.starts_with("CNI protocol")).find_map(|line| {
        line.split_whitespace().find_map(|word| {
            let number = word.strip_prefix("CoreDNS-").unwrap_or(word);
            let number = number.strip_prefix('v').unwrap_or(number);
            let numeric = number.split('.').take(2).all(|part| part.parse::<u32>().is_ok());
            (numeric && number.contains('.')).then(|| format!("v{number}"))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_what_each_component_writes() {
        for (text, version) in [
            ("Kubernetes v1.34.0\n", Some("v1.34.0")),
            ("etcd Version: 3.6.4\nGit SHA: Not provided\nGo Version: go1.26.8\n", Some("v3.6.4")),
            ("containerd github.com/containerd/containerd/v2 v2.1.5 \n", Some("v2.1.5")),
            ("ctr github.com/containerd/containerd/v2 v2.1.5\n", Some("v2.1.5")),
            (
                "containerd-shim-runc-v2:\n  Version:  v2.1.5\n  Go version: go1.26.8\n",
                Some("v2.1.5"),
            ),
            (
                "CNI ptp plugin v1.8.0\nCNI protocol versions supported: 0.1.0, 1.1.0\n",
                Some("v1.8.0"),
            ),
            ("CoreDNS-1.12.1\nlinux/amd64, go1.26.8, \n", Some("v1.12.1")),
            ("Client Version: v1.34.0\nKustomize Version: v5.7.1\n", Some("v1.34.0")),
            (
                "CNI ptp plugin version unknown\nCNI protocol versions supported: 0.1.0, 1.1.0\n",
                None,
            ),
        ] {
            assert_eq!(find_version(text).as_deref(), version, "{text}");
        }
    }
}
