//! What a setup has to do, found out without doing it.
//!
//! Takes versions; gives a [`Plan`] that can be shown, refused, or handed to
//! [`setup()`](super::setup()). Reads the cache and the disks; asks no network.

use std::path::{Path, PathBuf};

use super::apt::{self, Installer};
use super::cache::{Cache, State};
use super::download::{self, Downloads};
use super::gobuild::Go;
use super::host::{self, Search};
use super::versions::{Item, Part, Release};
use super::{folder_versions, user_folder};
use crate::cluster::ClusterError;

const MB: u64 = 1 << 20;

/// What a setup will do.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The versions that it is for, as the user ordered them.
    pub releases: Vec<Release>,
    /// What is wanted beyond what every cluster needs.
    pub extras: Vec<Part>,
    /// Items to get, each once; quick ones first.
    pub items: Vec<Item>,
    /// What is in the cache under these items' names and can't be relied on.
    pub damaged: Vec<String>,
    /// Tools of the host to install, with their packages.
    pub tools: Vec<(&'static str, &'static str)>,
    /// A folder to take the items from; else from their projects.
    pub from: Option<PathBuf>,
    pub(super) cache: Cache,
    pub(super) search: Search,
}

/// Finds out what has to be done so that [`locate`](super::locate) finds these versions, and of
/// each also what is in `extras` (of [`Part::EXTRA`]). With `from`, items are to be taken from that folder.
///
/// # Errors
/// [`ClusterError::Missing`] for a version or platform that is not supported, and where
/// `DRAINWATCH_COMPONENTS` names a folder that does not hold these versions.
pub fn plan(
    kubernetes: &[String],
    extras: &[Part],
    from: Option<&Path>,
) -> Result<Plan, ClusterError> {
    let releases: Vec<Release> =
        kubernetes.iter().map(|text| Release::parse(text)).collect::<Result<_, _>>()?;
    host::architecture()?;
    let search = Search::of_environment();
    let cache = Cache::of_user()?;
    let mut damaged = Vec::new();
    let mut items = Vec::new();
    if let Some(folder) = user_folder() {
        // The folder is used as it is; there is nothing to make.
        for release in &releases {
            folder_versions(&folder, *release, extras)?;
        }
    } else {
        for part in Part::in_order().filter(|p| Part::ALL.contains(p) || extras.contains(p)) {
            let mut versions: Vec<Item> = releases.iter().map(|r| r.item(part)).collect();
            versions.sort();
            versions.dedup();
            items.extend(versions);
        }
        let mut lacking = Vec::new();
        for item in items {
            match cache.state(&item)? {
                State::Ready(_) => continue,
                State::Absent => {}
                State::Damaged(why) => damaged.push(format!("{item}: {why}")),
            }
            lacking.push(item);
        }
        items = lacking;
    }
    let tools = search.missing_tools();
    let from = from.map(|folder| std::path::absolute(folder).unwrap_or_else(|_| folder.into()));
    Ok(Plan { releases, extras: extras.to_vec(), items, damaged, tools, from, cache, search })
}

/// What getting an item costs, as measured (v1.34.0, two cores, nothing in Go's caches).
struct Cost {
    cached: u64,
    downloaded: u64,
    build: &'static str,
    go_caches: u64,
}

fn cost(part: Part) -> Cost {
    match part {
        Part::Kubernetes => Cost {
            cached: 430 * MB,
            downloaded: 340 * MB,
            build: "5 to 7 minutes on 2 cores",
            go_caches: 4_000 * MB,
        },
        Part::Etcd => {
            Cost { cached: 30 * MB, downloaded: 25 * MB, build: "about 20 s", go_caches: 400 * MB }
        }
        Part::Containerd => {
            Cost { cached: 80 * MB, downloaded: 40 * MB, build: "about 45 s", go_caches: 600 * MB }
        }
        // Worked out from the processor's time on a busy machine.
        Part::CoreDns => Cost {
            cached: 70 * MB,
            downloaded: 25 * MB,
            build: "2 to 4 minutes on 2 cores",
            go_caches: 1_500 * MB,
        },
        Part::Kubectl => Cost {
            cached: 60 * MB,
            downloaded: 60 * MB,
            build: "about 20 s after Kubernetes",
            go_caches: 300 * MB,
        },
        Part::Cni => {
            Cost { cached: 15 * MB, downloaded: 55 * MB, build: "about 15 s", go_caches: 200 * MB }
        }
    }
}

impl Plan {
    /// Whether all is here already.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty() && self.tools.is_empty()
    }

    /// The cache's folder.
    pub fn cache(&self) -> &Path {
        self.cache.root()
    }

    /// Who will do it: `root`.
    pub fn user(&self) -> String {
        host::user()
    }

    /// What will be done, one line a step, for people.
    pub fn steps(&self) -> Vec<String> {
        let downloads = Downloads::of_environment();
        let mut steps = Vec::new();
        if !self.tools.is_empty() {
            let packages = apt::packages(&self.tools).join(" ");
            steps.push(match Installer::of(&self.search) {
                Installer::Apt(_) => format!("install {packages} with apt-get"),
                Installer::Nobody(why) => {
                    format!("NOT POSSIBLE: install {packages}: {why}")
                }
            });
        }
        for item in &self.items {
            let cost = cost(item.part);
            steps.push(match &self.from {
                Some(folder) => {
                    format!("copy {item} from {} ({} MB)", folder.display(), cost.cached / MB)
                }
                None => format!(
                    "download {item} from {} ({} MB); where that can't be reached, build it from \
                     Go modules ({})",
                    downloads.source(download::host(item.part)),
                    cost.downloaded / MB,
                    cost.build
                ),
            });
        }
        steps
    }

    /// Bytes that the cache grows by, and bytes that Go's caches grow by where all is built.
    pub fn space(&self) -> (u64, u64) {
        let sum = |of: fn(&Cost) -> u64| self.items.iter().map(|i| of(&cost(i.part))).sum();
        let go = if self.from.is_none() { sum(|cost| cost.go_caches) } else { 0 };
        (sum(|cost| cost.cached), go)
    }

    /// Checks that the cache's disk has room for what is to come.
    pub(super) fn check_cache_space(&self) -> Result<(), ClusterError> {
        // Archives and unpacked files stand there together for a moment.
        check_space(&[(self.cache.root().to_owned(), self.space().0 + 100 * MB)])
    }
}

/// Checks that there is room for building an item. A module that was downloaded before has most
/// likely been built before, so that little is added.
pub(super) fn check_build_space(cache: &Path, go: &Go, item: &Item) -> Result<(), ClusterError> {
    let cost = cost(item.part);
    let caches = if go.has_module(item) { cost.go_caches / 5 } else { cost.go_caches };
    let Some([modules, packages]) = go.caches() else { return Ok(()) };
    check_space(&[
        // The linker's temporary files are as large as what it makes.
        (cache.to_owned(), 2 * cost.cached),
        (modules, caches / 3),
        (packages, caches / 3 * 2),
    ])
}

/// Sums up what is needed by file system. A file system that does not tell is trusted.
fn check_space(needs: &[(PathBuf, u64)]) -> Result<(), ClusterError> {
    let mut disks: Vec<(u64, u64, u64, &Path)> = Vec::new();
    for (path, bytes) in needs {
        let Some((device, free)) = host::free_space(path) else { continue };
        match disks.iter_mut().find(|disk| disk.0 == device) {
            Some(disk) => disk.2 += bytes,
            None => disks.push((device, free, *bytes, path)),
        }
    }
    match disks.iter().find(|(_, free, needed, _)| free < needed) {
        None => Ok(()),
        Some((_, free, needed, path)) => Err(ClusterError::Missing {
            what: format!(
                "{} has {} MB free, and about {} MB are needed",
                path.display(),
                free / MB,
                needed / MB
            ),
            remedy: "Make room, or set XDG_CACHE_HOME (for drainwatch and Go alike) to a folder \
                     on another disk."
                .into(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn needs_on_one_disk_are_summed_up() {
        let here = std::env::temp_dir();
        let (_, free) = host::free_space(&here).unwrap();
        let part = free / 3;
        check_space(&[(here.clone(), part)]).unwrap();
        let error = check_space(&[(here.clone(), part * 2), (here.join("not-yet"), part * 2)]);
        let error = error.unwrap_err().to_string();
        assert!(error.starts_with(&format!("{} has ", here.display())), "{error}");
    }
}
