//! What earlier runs left on this machine: found without changing anything, and removed.
//!
//! A cluster's supervisor removes it; this is for what a killed supervisor, a killed setup or an
//! earlier boot left. Nothing of a cluster that runs is listed, and nothing that can't be told to
//! be drainwatch's. A further kind of leftover is a variant of [`Leftover`], a method of `Finder`
//! that finds it, and an arm of `Leftover::remove`. Writes nothing for people.

mod find;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use find::{Finder, ip};

use super::components::{Cache, host};
use super::orphans::{self, Process};
use super::{cgroup, state};

/// How long another drainwatch may hold the lock of all clusters: it does for a moment.
const LOCK_PATIENCE: Duration = Duration::from_secs(10);
/// How long processes may take to end, and cgroups to be empty then.
const END_PATIENCE: Duration = Duration::from_secs(5);

/// What is on this machine of clusters and, where asked for, of their components.
#[derive(Debug, Default)]
pub struct Survey {
    /// Clusters that run, each with its supervisor's process where that can be told.
    pub running: BTreeMap<String, Option<i32>>,
    /// What can go.
    pub left: Vec<Leftover>,
    /// What would go, but is in use.
    pub in_use: Vec<Kept>,
    /// What lies where only drainwatch's things should, and is not drainwatch's.
    pub foreign: Vec<Kept>,
    /// What could not be looked at.
    pub unseen: Vec<Kept>,
    /// Whether components in the cache were built with Go, whose own caches then hold more.
    pub built_with_go: bool,
}

/// Something that stays, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// What and where.
    pub what: String,
    /// Why.
    pub why: String,
}

/// One thing that was left; in the order in which they can be removed.
#[derive(Clone, Debug)]
pub enum Leftover {
    /// A process whose supervisor is gone.
    Process(Orphan),
    /// The host's end of a cluster's network.
    Link(String),
    /// Something mounted below a cluster's folder.
    Mount(PathBuf),
    /// A cluster's cgroups, one folder a hierarchy; or empty folders of all clusters.
    Cgroups {
        /// The cluster's name.
        cluster: Option<String>,
        /// Where they are.
        folders: Vec<PathBuf>,
    },
    /// The folder of a cluster, with its keys and logs; or the empty one of all clusters.
    Folder {
        /// The cluster's name.
        cluster: Option<String>,
        /// Where it is.
        path: PathBuf,
    },
    /// What a setup that did not end was making.
    Unfinished {
        /// Where it is.
        path: PathBuf,
        /// How much.
        bytes: u64,
    },
    /// Something in the cache.
    Cached {
        /// What it is: `Kubernetes v1.34.0`.
        what: String,
        /// Where it is.
        path: PathBuf,
        /// How much.
        bytes: u64,
    },
}

/// A process of drainwatch's that has lost its supervisor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Orphan(Process);

/// Something that could not be removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What and where.
    pub what: String,
    /// Why.
    pub why: String,
    /// Whether it is the user's own files (else it is of clusters).
    pub files: bool,
}

impl Leftover {
    /// Whether only root can remove it.
    pub fn needs_root(&self) -> bool {
        !matches!(self, Self::Unfinished { .. } | Self::Cached { .. })
    }

    /// What makes it the same thing at another time.
    fn key(&self) -> (u8, String) {
        let path = |path: &Path| path.display().to_string();
        match self {
            Self::Process(Orphan(process)) => (0, format!("{process:?}")),
            Self::Link(name) => (1, name.clone()),
            Self::Mount(point) => (2, path(point)),
            Self::Cgroups { cluster, .. } => (3, cluster.clone().unwrap_or_default()),
            Self::Folder { path: folder, .. } => (4, path(folder)),
            Self::Unfinished { path: folder, .. } => (5, path(folder)),
            Self::Cached { path: folder, .. } => (6, path(folder)),
        }
    }

    /// Removes it; under the lock of all clusters or of the cache.
    fn remove(&self, cache: Option<&Cache>) -> Result<(), String> {
        let text = |error: io::Error| error.to_string();
        match self {
            Self::Process(Orphan(process)) => orphans::end(process, END_PATIENCE).map_err(text),
            Self::Link(name) => ip(&["link", "delete", name]).map(drop),
            Self::Mount(point) => state::unmount(point).map_err(text),
            Self::Cgroups { cluster: Some(cluster), folders } => remove_cgroups(cluster, folders),
            Self::Cgroups { cluster: None, folders } => {
                folders.iter().try_for_each(fs::remove_dir).map_err(text)
            }
            Self::Folder { cluster: Some(cluster), .. } => {
                state::remove_folder(cluster).map_err(text)
            }
            // These two go with the locks.
            Self::Folder { cluster: None, .. } | Self::Unfinished { .. } => Ok(()),
            Self::Cached { path, .. } => match cache {
                Some(cache) => cache.remove(path).map_err(text),
                None => Err("its cache is not locked".into()),
            },
        }
    }
}

impl fmt::Display for Leftover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process(Orphan(process)) => {
                write!(
                    f,
                    "process {} ({}), whose supervisor is gone",
                    process.pid,
                    process.command()
                )
            }
            Self::Link(name) => write!(f, "link {name}"),
            Self::Mount(point) => write!(f, "mount {}", shown(point)),
            Self::Cgroups { folders, .. } => {
                let folders: Vec<String> = folders.iter().map(|folder| shown(folder)).collect();
                match &folders[..] {
                    [one] => write!(f, "cgroup {one}"),
                    all => write!(f, "cgroups {}", all.join("\n    ")),
                }
            }
            Self::Folder { cluster: Some(_), path } => write!(f, "folder {}", shown(path)),
            Self::Folder { cluster: None, path } => write!(f, "folder {} (empty)", shown(path)),
            Self::Unfinished { path, bytes } => {
                write!(f, "folder {} ({}, of a setup that did not end)", shown(path), size(*bytes))
            }
            Self::Cached { what, path, bytes } => {
                write!(f, "{what} in {} ({})", shown(path), size(*bytes))
            }
        }
    }
}

/// Looks for all of it; with `cached`, for the cache of components too. Changes nothing.
pub fn survey(cached: bool) -> Survey {
    let root = state::lock_root_if_there(LOCK_PATIENCE);
    let mut finder = Finder::new();
    match &root {
        Ok(root) => finder.clusters(root.as_ref()),
        Err(error) => {
            finder.unseen(state::ROOT.into(), error);
            finder.clusters(None);
        }
    }
    drop(root);
    match Cache::of_user() {
        Ok(cache) => {
            let setup = cache.at_work().map(|pid| match pid {
                Some(pid) => format!("drainwatch setup is at work (process {pid})"),
                None => "drainwatch setup is at work".into(),
            });
            finder.cache(&cache, cached, setup.as_deref());
        }
        Err(error) => finder.unseen("the cache".into(), &error),
    }
    finder.survey.left.sort_by_key(|leftover| leftover.key().0);
    finder.survey
}

/// Removes what was found earlier, as far as it is still there and still nobody's. Gives what
/// could not be removed.
pub fn remove(wanted: &[Leftover]) -> Vec<Failure> {
    let (of_clusters, of_cache): (Vec<&Leftover>, Vec<&Leftover>) =
        wanted.iter().partition(|leftover| leftover.needs_root());
    let mut failures = Vec::new();
    for (what, remove) in [
        (of_clusters, remove_of_clusters as fn(&[&Leftover]) -> Result<Vec<Failure>, String>),
        (of_cache, remove_of_cache),
    ] {
        if what.is_empty() {
            continue;
        }
        match remove(&what) {
            Ok(some) => failures.extend(some),
            Err(why) => failures.extend(what.iter().map(|leftover| failure(leftover, &why))),
        }
    }
    failures
}

fn remove_of_clusters(wanted: &[&Leftover]) -> Result<Vec<Failure>, String> {
    if !host::is_root() {
        return Err("only root can remove it".into());
    }
    let root = state::lock_root_within(LOCK_PATIENCE)
        .map_err(|error| format!("{}: {error}", state::ROOT))?;
    let mut finder = Finder::new();
    finder.clusters(Some(&root));
    let failures = remove_all(wanted, finder, None);
    state::leave_root(root);
    Ok(failures)
}

fn remove_of_cache(wanted: &[&Leftover]) -> Result<Vec<Failure>, String> {
    let cache = Cache::of_user().map_err(|error| error.to_string())?;
    // Takes what is unfinished away, too.
    let lock = cache.lock_at_once().map_err(|error| error.to_string())?;
    // No cluster may start on components that go.
    let root = match host::is_root() {
        true => Some(state::lock_root_within(LOCK_PATIENCE).map_err(|error| error.to_string())?),
        false => None,
    };
    let mut finder = Finder::new();
    finder.cache(&cache, true, None);
    let failures = remove_all(wanted, finder, Some(&cache));
    cache.remove_if_empty(lock);
    if let Some(root) = root {
        state::leave_root(root);
    }
    Ok(failures)
}

/// Time has gone by since these were found: what is no longer left over is let be.
fn remove_all(wanted: &[&Leftover], now: Finder, cache: Option<&Cache>) -> Vec<Failure> {
    let wanted: BTreeSet<(u8, String)> = wanted.iter().map(|leftover| leftover.key()).collect();
    let mut still = now.survey.left;
    still.retain(|leftover| wanted.contains(&leftover.key()));
    still.sort_by_key(|leftover| leftover.key().0);
    let tried = still.iter().map(|leftover| (leftover, leftover.remove(cache)));
    tried.filter_map(|(leftover, done)| Some(failure(leftover, &done.err()?))).collect()
}

fn failure(leftover: &Leftover, why: &str) -> Failure {
    let (what, why) = (leftover.to_string(), why.to_owned());
    Failure { what, why, files: !leftover.needs_root() }
}

fn remove_cgroups(cluster: &str, folders: &[PathBuf]) -> Result<(), String> {
    let deadline = Instant::now() + END_PATIENCE;
    // The last processes of a node take a moment to go. Folders that hold some are another's
    // (a container's that shares these cgroups), or of processes that can't be ended.
    while let Some((folder, pid)) = folders.iter().find_map(|folder| process_in(folder)) {
        if Instant::now() > deadline {
            let comm = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            return Err(format!("process {pid} ({}) is in {}", comm.trim(), shown(&folder)));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let left = cgroup::remove(cluster, END_PATIENCE);
    if left.is_empty() { Ok(()) } else { Err(format!("still there: {}", left.join(", "))) }
}

/// A process in a cgroup or one below it.
fn process_in(folder: &Path) -> Option<(PathBuf, i32)> {
    let procs = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
    if let Some(pid) = procs.lines().next() {
        return Some((folder.to_owned(), pid.parse().unwrap_or(0)));
    }
    let below = fs::read_dir(folder).into_iter().flatten().flatten();
    below.filter(|e| e.file_type().is_ok_and(|t| t.is_dir())).find_map(|e| process_in(&e.path()))
}

/// A path in one line, whatever is in it.
fn shown(path: &Path) -> String {
    let text = path.display().to_string();
    if text.chars().any(char::is_control) { format!("{text:?}") } else { text }
}

/// `412 MB`, in the units of [`components`]' plans.
fn size(bytes: u64) -> String {
    match bytes >> 20 {
        0 => "less than 1 MB".into(),
        megabytes => format!("{megabytes} MB"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_says_what_it_is_and_where() {
        let path = |text: &str| PathBuf::from(text);
        let cgroup = |n: &str| path(&format!("/sys/fs/cgroup/{n}/drainwatch/dw-000001"));
        let all = [
            Leftover::Link("dw000001".into()),
            Leftover::Mount(path("/run/drainwatch/dw-000001/a\nb")),
            Leftover::Cgroups { cluster: Some("dw-000001".into()), folders: vec![cgroup("cpu")] },
            Leftover::Cgroups {
                cluster: Some("dw-000001".into()),
                folders: vec![cgroup("cpu"), cgroup("memory")],
            },
            Leftover::Folder {
                cluster: Some("dw-000001".into()),
                path: path("/run/drainwatch/dw-000001"),
            },
            Leftover::Folder { cluster: None, path: path("/run/drainwatch") },
            Leftover::Unfinished { path: path("/home/u/.cache/drainwatch/tmp"), bytes: 900 },
            Leftover::Cached {
                what: "etcd v3.6.4".into(),
                path: path("/home/u/.cache/drainwatch/components/etcd/v3.6.4/linux-amd64"),
                bytes: 30 << 20,
            },
        ];
        let lines: Vec<String> = all.iter().map(ToString::to_string).collect();
        insta::assert_snapshot!(lines.join("\n"));
    }
}
