//! Looks for leftovers, one kind after another, and tells them from what is in use and from what is
//! not drainwatch's. Changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::super::components::{self, Cache, host};
use super::super::orphans::{self, Process};
use super::super::state::{self, Entry, RootLock};
use super::super::{cgroup, layout, paths};
use super::{Kept, Leftover, Orphan, Survey, shown};

/// Looks, one kind after another.
pub(super) struct Finder {
    pub survey: Survey,
    processes: Vec<Process>,
}

impl Finder {
    pub(super) fn new() -> Self {
        Self { survey: Survey::default(), processes: orphans::all() }
    }

    pub(super) fn unseen(&mut self, what: String, why: &dyn fmt::Display) {
        self.survey.unseen.push(Kept { what, why: why.to_string() });
    }

    /// All of clusters. Without the lock there is no folder of clusters, or it can't be looked into.
    pub(super) fn clusters(&mut self, root: Option<&RootLock>) {
        // A cluster that is about to begin, or in a container that shares this host's cgroups.
        let supervisors = orphans::supervisors(&self.processes);
        self.survey.running =
            supervisors.into_iter().map(|(name, pid)| (name, Some(pid))).collect();
        if let Some(root) = root {
            self.folders(root);
        }
        for process in orphans::orphans(&self.processes) {
            let of_running = |name| self.survey.running.contains_key(name);
            if !process.cluster().is_some_and(of_running) {
                self.survey.left.push(Leftover::Process(Orphan(process)));
            }
        }
        self.links();
        self.cgroups();
    }

    fn folders(&mut self, root: &RootLock) {
        let entries = state::look(root);
        if entries.is_empty() && self.survey.running.is_empty() {
            let path = state::ROOT.into();
            self.survey.left.push(Leftover::Folder { cluster: None, path });
        }
        for entry in entries {
            match entry {
                Entry::Running { name, owner } => {
                    let known = self.survey.running.entry(name).or_default();
                    *known = owner.or(*known);
                }
                // Its folder was removed and made anew by hand, say.
                Entry::Abandoned { name } if self.survey.running.contains_key(&name) => {}
                Entry::Abandoned { name } => {
                    let path = Path::new(state::ROOT).join(&name);
                    match state::mounts_below(&path) {
                        Ok(mounts) => {
                            self.survey.left.extend(mounts.into_iter().map(Leftover::Mount));
                        }
                        Err(error) => self.unseen("mounts".into(), &error),
                    }
                    self.survey.left.push(Leftover::Folder { cluster: Some(name), path });
                }
                Entry::Foreign { path, why } => {
                    self.survey.foreign.push(Kept { what: shown(&path), why: why.into() });
                }
            }
        }
    }

    fn links(&mut self) {
        let running: BTreeSet<String> =
            self.survey.running.keys().map(|name| layout::host_link(name)).collect();
        for entry in fs::read_dir("/sys/class/net").into_iter().flatten().flatten() {
            let Ok(name) = entry.file_name().into_string() else { continue };
            let cluster = name.strip_prefix("dw").map(|id| format!("dw-{id}"));
            let named = cluster.is_some_and(|cluster| state::is_cluster_name(&cluster));
            if !named || running.contains(&name) {
                continue;
            }
            match ip(&["-d", "-j", "link", "show", "dev", &name]) {
                Ok(text) if is_veth(&text) => self.survey.left.push(Leftover::Link(name)),
                Ok(_) => self.survey.foreign.push(Kept {
                    what: format!("link {name}"),
                    why: "a cluster's is a veth".into(),
                }),
                Err(_) if !entry.path().exists() => {} // it has just gone
                Err(why) => self.unseen(format!("link {name}"), &why),
            }
        }
    }

    fn cgroups(&mut self) {
        let tops = match cgroup::tops() {
            Ok(tops) => tops,
            Err(error) => return self.unseen("cgroups".into(), &error),
        };
        let mut clusters: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
        let mut empty = Vec::new();
        for top in tops {
            let Ok(entries) = fs::read_dir(&top) else { continue };
            let folders: Vec<PathBuf> =
                entries.flatten().map(|e| e.path()).filter(|path| path.is_dir()).collect();
            if folders.is_empty() {
                empty.push(top);
            }
            for folder in folders {
                match folder.file_name().and_then(|name| name.to_str()) {
                    Some(name) if self.survey.running.contains_key(name) => {}
                    Some(name) if state::is_cluster_name(name) => {
                        clusters.entry(name.into()).or_default().push(folder);
                    }
                    _ => self.survey.foreign.push(Kept {
                        what: shown(&folder),
                        why: "no cluster has such a name".into(),
                    }),
                }
            }
        }
        if self.survey.running.is_empty() && !empty.is_empty() {
            self.survey.left.push(Leftover::Cgroups { cluster: None, folders: empty });
        }
        let found = clusters.into_iter();
        self.survey.left.extend(
            found.map(|(name, folders)| Leftover::Cgroups { cluster: Some(name), folders }),
        );
    }

    /// The cache of components: what is unfinished in it, and with `all` the rest. `setup` tells
    /// of another process that is at work there.
    pub(super) fn cache(&mut self, cache: &Cache, all: bool, setup: Option<&str>) {
        let contents = match cache.contents() {
            Ok(contents) => contents,
            Err(error) => return self.unseen(shown(cache.root()), &error),
        };
        self.survey.built_with_go = contents.pieces.iter().any(|piece| piece.built_with_go);
        if let Some((path, bytes)) = contents.unfinished {
            match setup {
                Some(why) => {
                    let what = format!("folder {}", shown(&path));
                    self.survey.in_use.push(Kept { what, why: why.into() });
                }
                None => self.survey.left.push(Leftover::Unfinished { path, bytes }),
            }
        }
        if !all {
            return;
        }
        self.survey.foreign.extend(contents.foreign.iter().map(|path| Kept {
            what: shown(path),
            why: "nothing that setup puts into its cache".into(),
        }));
        let used = Used::read(&self.processes);
        for components::Piece { what, path, bytes, .. } in contents.pieces {
            match setup.map(str::to_owned).or_else(|| used.by(&path)) {
                Some(why) => {
                    let what = format!("{what} in {}", shown(&path));
                    self.survey.in_use.push(Kept { what, why });
                }
                None => self.survey.left.push(Leftover::Cached { what, path, bytes }),
            }
        }
    }
}

/// Which folders running clusters have their components from, by device and inode.
struct Used {
    folders: BTreeMap<(u64, u64), BTreeSet<String>>,
    /// A node whose view can't be seen (yet): it may use anything.
    unknown: Option<String>,
}

impl Used {
    fn read(processes: &[Process]) -> Self {
        let mut used = Self { folders: BTreeMap::new(), unknown: None };
        for process in processes.iter().filter(|process| process.is_node()) {
            let cluster = process.cluster().unwrap_or_default();
            let root = PathBuf::from(format!("/proc/{}/root", process.pid));
            let inside = |path: &str| root.join(path.trim_start_matches('/'));
            let entries = fs::metadata(inside(paths::KUBERNETES))
                .and_then(|_| fs::read_dir(inside(paths::TOP)));
            match entries {
                Err(error) => {
                    used.unknown.get_or_insert(format!(
                        "cluster {cluster} is running, and what it uses can't be told: {error}"
                    ));
                }
                // A bind mount is the very folder that it shows.
                Ok(entries) => {
                    for meta in entries.flatten().filter_map(|e| e.path().symlink_metadata().ok()) {
                        let folder = used.folders.entry((meta.dev(), meta.ino())).or_default();
                        folder.insert(cluster.to_owned());
                    }
                }
            }
        }
        used
    }

    fn by(&self, path: &Path) -> Option<String> {
        let meta = fs::metadata(path).ok()?;
        let clusters = self.folders.get(&(meta.dev(), meta.ino()));
        let names = clusters.map(|names| names.iter().cloned().collect::<Vec<_>>().join(", "));
        names.map(|names| format!("in use by {names}")).or_else(|| self.unknown.clone())
    }
}

/// Calls `ip`; what it wrote, or what it complained of.
pub(super) fn ip(arguments: &[&str]) -> Result<String, String> {
    let Some(program) = host::Search::of_environment().find("ip") else {
        return Err("there is no `ip` here (package iproute2)".into());
    };
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("ip: {error}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() {
        Ok(text(&output.stdout))
    } else {
        Err(format!("ip: {}", text(&output.stderr)))
    }
}

fn is_veth(links: &str) -> bool {
    let links: serde_json::Value = serde_json::from_str(links).unwrap_or_default();
    links[0]["linkinfo"]["info_kind"] == "veth"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_veth_is_a_clusters_link() {
        assert!(is_veth(r#"[{"ifname":"dw000001","linkinfo":{"info_kind":"veth"}}]"#));
        assert!(!is_veth(r#"[{"ifname":"dw000001","linkinfo":{"info_kind":"dummy"}}]"#));
        assert!(!is_veth(""));
    }
}
