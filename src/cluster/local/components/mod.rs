//! The binaries that a local cluster is made of, by Kubernetes version: where they are, and how to
//! get them.
//!
//! Sources, in this order: a folder that the user names (`DRAINWATCH_COMPONENTS`), the cache, the
//! official release binaries, the Go modules. [`locate`] reads the first two and changes nothing;
//! [`plan()`], [`setup()`] and [`ensure`] use the others to fill the cache. Tells what it does as
//! [`SetupEvent`]s and writes nothing for people. Knows nothing of nodes and clusters.

mod apt;
mod cache;
mod download;
mod gobuild;
pub(in crate::cluster) mod host;
mod inventory;
mod modfile;
mod plan;
pub(in crate::cluster) mod process;
mod setup;
mod verify;
mod versions;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use cache::State;
use host::Search;

use super::super::ClusterError;

pub(super) use cache::Cache;
pub use download::MIRROR_VARIABLE;
pub use host::{SEARCH_VARIABLE, TOOLS};
pub use inventory::{Piece, Ready, ready};
pub use plan::{Plan, plan};
pub use process::Stop;
pub use setup::{SetupEvent, ensure, setup};
pub use versions::{DEFAULT_KUBERNETES, Item, Part, Release};

/// Names a flat folder that holds all components: used as it is, instead of the cache.
pub const FOLDER_VARIABLE: &str = "DRAINWATCH_COMPONENTS";

/// The components of one Kubernetes version, all present but for what is only had when asked for.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Components {
    /// Folder with kube-apiserver, kube-controller-manager, kube-scheduler, kube-proxy, kubelet.
    pub kubernetes: PathBuf,
    /// Folder with etcd.
    pub etcd: PathBuf,
    /// Folder with containerd, containerd-shim-runc-v2, ctr.
    pub containerd: PathBuf,
    /// Folder with the CNI plugins ptp, loopback, host-local, portmap.
    pub cni: PathBuf,
    /// Folder with CoreDNS, where it was asked for.
    pub coredns: Option<PathBuf>,
    /// The host's runc.
    pub runc: PathBuf,
    /// What each is: `kubernetes` → `v1.34.0`, `containerd` → `v2.1.5`, and where from
    /// (`kubernetes source` → `built from Go modules with go1.26.8`); the host's tools in their
    /// own words (`iptables` → `iptables v1.8.9 (nf_tables)`).
    pub versions: BTreeMap<String, String>,
}

/// Finds all components of a Kubernetes version, without changing anything.
///
/// # Errors
/// [`ClusterError::Missing`] with all that is lacking at once and the command that gets it; for a
/// version that is not supported; and for a folder of the user's that does not hold this version.
pub fn locate(kubernetes: &str) -> Result<Components, ClusterError> {
    locate_with(kubernetes, &[])
}

/// The same, and what is in `extras` (of [`Part::EXTRA`]) too.
///
/// # Errors
/// Those of [`locate`].
pub fn locate_with(kubernetes: &str, extras: &[Part]) -> Result<Components, ClusterError> {
    let release = Release::parse(kubernetes)?;
    let cache = Cache::of_user()?;
    locate_in(release, extras, user_folder().as_deref(), &cache, &Search::of_environment())
}

/// What a cluster like this needs of [`Part::EXTRA`].
pub fn extras(spec: &crate::config::ClusterSpec) -> &'static [Part] {
    if spec.dns { &[Part::CoreDns] } else { &[] }
}

/// The folder with the kubectl of a Kubernetes version, where there is one.
pub fn kubectl(kubernetes: &str) -> Option<PathBuf> {
    if let Some(folder) = user_folder() {
        return verify::lacking(Part::Kubectl, &folder).is_none().then_some(folder);
    }
    let (item, cache) =
        (Release::parse(kubernetes).ok()?.item(Part::Kubectl), Cache::of_user().ok()?);
    match cache.state(&item) {
        Ok(State::Ready(_)) => cache.folder(&item).ok(),
        _ => None,
    }
}

fn locate_in(
    release: Release,
    extras: &[Part],
    user_folder: Option<&Path>,
    cache: &Cache,
    search: &Search,
) -> Result<Components, ClusterError> {
    let mut lacking = Vec::new();
    let mut versions = BTreeMap::new();

    let mut folders: BTreeMap<Part, PathBuf> = BTreeMap::new();
    if let Some(folder) = user_folder {
        versions = folder_versions(folder, release, extras)?;
        folders.extend(Part::in_order().map(|part| (part, folder.to_owned())));
    } else {
        for item in release.items().into_iter().chain(extras.iter().map(|p| release.item(*p))) {
            match cache.state(&item)? {
                State::Ready(manifest) => {
                    let name = item.part.name();
                    versions.insert(name.into(), item.version.clone());
                    versions.insert(format!("{name} source"), manifest.origin.source);
                }
                State::Absent => lacking.push(item.to_string()),
                State::Damaged(why) => lacking.push(format!("{item} (damaged: {why})")),
            }
            folders.insert(item.part, cache.folder(&item)?);
        }
    }
    let tools: Vec<&str> = search.missing_tools().into_iter().map(|(tool, _)| tool).collect();
    if !tools.is_empty() {
        lacking.push(format!("the host's {}", tools.join(", ")));
    }
    let runc = search.find("runc");
    let (true, Some(runc)) = (lacking.is_empty(), runc) else {
        return Err(ClusterError::Missing {
            what: format!(
                "a local cluster of Kubernetes v{release} needs what is not here: {}",
                lacking.join("; ")
            ),
            remedy: format!(
                "`drainwatch setup --kubernetes {release}{}` gets it (as does --setup of \
                 `drainwatch apply` and `drainwatch cluster up`).",
                options(extras)
            ),
        });
    };
    for (tool, argument) in [
        ("runc", "--version"),
        ("iptables", "--version"),
        ("nft", "--version"),
        ("conntrack", "--version"),
        ("ip", "-V"),
    ] {
        if let Some(path) = search.find(tool) {
            versions.insert(tool.into(), verify::tool_version(&path, argument));
        }
    }
    let folder = |part| folders.get(&part).cloned().unwrap_or_default();
    Ok(Components {
        kubernetes: folder(Part::Kubernetes),
        etcd: folder(Part::Etcd),
        containerd: folder(Part::Containerd),
        cni: folder(Part::Cni),
        coredns: extras.contains(&Part::CoreDns).then(|| folder(Part::CoreDns)),
        runc,
        versions,
    })
}

/// The options of `drainwatch setup` that get these, each after a blank.
fn options(extras: &[Part]) -> String {
    let option = |part: &Part| match part {
        Part::CoreDns => " --dns",
        Part::Kubectl => " --kubectl",
        _ => "",
    };
    extras.iter().map(option).collect()
}

/// The folder that [`FOLDER_VARIABLE`] names.
fn user_folder() -> Option<PathBuf> {
    let folder = PathBuf::from(std::env::var_os(FOLDER_VARIABLE).filter(|name| !name.is_empty())?);
    // Nodes run with other working folders.
    Some(std::path::absolute(&folder).unwrap_or(folder))
}

/// What the components in a folder of the user's are. Only Kubernetes must be of one version: the
/// rest is the user's choice, and recorded.
fn folder_versions(
    folder: &Path,
    release: Release,
    extras: &[Part],
) -> Result<BTreeMap<String, String>, ClusterError> {
    let wrong = |what: String| ClusterError::Missing {
        what: format!("{FOLDER_VARIABLE}={}: {what}", folder.display()),
        remedy: format!(
            "Put all components of Kubernetes v{release} there, or unset {FOLDER_VARIABLE} and \
             run `drainwatch setup --kubernetes {release}`."
        ),
    };
    for part in Part::ALL.iter().chain(extras).copied() {
        if let Some(binary) = verify::lacking(part, folder) {
            return Err(wrong(format!("it has no executable {binary}")));
        }
    }
    let mut versions = BTreeMap::new();
    for part in Part::ALL.iter().chain(extras).copied() {
        // The first of each part's speaks for all.
        let Some(binary) = part.binaries().first() else { continue };
        let version = verify::version(&folder.join(binary)).map_err(&wrong)?;
        let version = version.unwrap_or_else(|| "unknown".into());
        if part == Part::Kubernetes && version != format!("v{release}") {
            return Err(wrong(format!("its kube-apiserver is {version}, not v{release}")));
        }
        versions.insert(part.name().into(), version);
        versions.insert(format!("{} source", part.name()), format!("folder {}", folder.display()));
    }
    Ok(versions)
}

fn io_error(what: &str, path: &Path, source: io::Error) -> ClusterError {
    ClusterError::Io { what: format!("{what} {}", path.display()), source }
}

/// The error of a setup that was told to end.
fn stopped() -> ClusterError {
    ClusterError::Component {
        component: "setup".into(),
        reason: "ended by the user".into(),
        logs: None,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn script(path: &Path, says: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("#!/bin/sh\necho {says}\n")).unwrap();
        fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
    }

    #[test]
    fn all_that_is_lacking_is_told_at_once_with_the_command_that_gets_it() {
        let folder = tempfile::tempdir().unwrap();
        let tools = folder.path().join("tools");
        for (tool, _) in TOOLS.iter().filter(|(tool, _)| !["nft", "runc"].contains(tool)) {
            script(&tools.join(tool), "1.0");
        }
        let release = Release::parse("1.36.3").unwrap();
        let cache = Cache::at(folder.path().join("cache"));
        let item = release.item(Part::Cni);
        fs::create_dir_all(cache.folder(&item).unwrap()).unwrap();
        let search = Search::of(tools.as_os_str());
        let error = locate_in(release, &[], None, &cache, &search).unwrap_err();
        insta::assert_snapshot!(error.to_string(), @r"
        a local cluster of Kubernetes v1.36.3 needs what is not here: etcd v3.6.4; containerd v2.1.5; CNI plugins v1.8.0 (damaged: manifest.json: No such file or directory (os error 2)); Kubernetes v1.36.3; the host's runc, nft
          `drainwatch setup --kubernetes 1.36.3` gets it (as does --setup of `drainwatch apply` and `drainwatch cluster up`).
        ");
    }

    #[test]
    fn a_folder_of_the_users_is_recorded_with_the_versions_that_it_has() {
        let folder = tempfile::tempdir().unwrap();
        let (tools, flat) = (folder.path().join("tools"), folder.path().join("flat"));
        for (tool, _) in TOOLS {
            script(&tools.join(tool), &format!("{tool} 1.0"));
        }
        for binary in Part::ALL.iter().flat_map(|part| part.binaries()) {
            let says = match *binary {
                "kube-apiserver" => "Kubernetes v1.34.2",
                "etcd" => "etcd Version: 3.5.9",
                "containerd" => "containerd github.com/containerd/containerd 1.6.20~ds1",
                _ => "version unknown",
            };
            script(&flat.join(binary), says);
        }
        let release = Release::parse("1.34.2").unwrap();
        let cache = Cache::at(folder.path().join("cache"));
        let search = Search::of(tools.as_os_str());
        let found = locate_in(release, &[], Some(&flat), &cache, &search).unwrap();
        assert_eq!(found.cni, flat);
        assert_eq!(found.runc, tools.join("runc"));
        let versions = ["kubernetes", "etcd", "containerd", "cni", "cni source", "iptables"]
            .map(|key| found.versions[key].clone());
        let source = format!("folder {}", flat.display());
        assert_eq!(
            versions,
            ["v1.34.2", "v3.5.9", "v1.6.20~ds1", "unknown", &source, "iptables 1.0"]
        );

        let other = Release::parse("1.34.0").unwrap();
        let error = locate_in(other, &[], Some(&flat), &cache, &search).unwrap_err().to_string();
        assert!(error.contains("its kube-apiserver is v1.34.2, not v1.34.0"), "{error}");
    }
}
