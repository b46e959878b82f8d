//! Components from their Go modules: for machines that reach a Go proxy (or have a full module
//! cache) but not the release hosts.
//!
//! Takes an item and an empty folder; gives the folder with the item's binaries, built as their
//! projects build them as far as it shows: static, with the version stamped in. Go checks what it
//! downloads by its checksum database. Knows nothing of the cache and of other sources.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::cache::create;
use super::host::Search;
use super::modfile::ModFile;
use super::process::{self, Ending, Failure, Stop};
use super::versions::{Item, Part};
use super::{io_error, stopped};
use crate::cluster::ClusterError;

const GET_GO: &str = "Install it with `apt-get install golang` (where that is new enough) or from \
                      https://go.dev/dl, or give a folder with the binaries: \
                      `drainwatch setup --from DIR`.";

/// The Go that is installed here.
#[derive(Clone, Debug)]
pub struct Go {
    program: PathBuf,
    path: std::ffi::OsString,
    /// `go1.26.8`
    pub version: String,
}

/// What `go mod download -json` tells.
#[derive(serde::Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Downloaded {
    go_mod: Option<PathBuf>,
    sum: Option<String>,
    error: Option<String>,
}

impl Go {
    /// Finds it.
    ///
    /// # Errors
    /// [`ClusterError::Missing`] where there is none or it does not run.
    pub fn find(search: &Search) -> Result<Self, ClusterError> {
        let missing = |what: String| ClusterError::Missing { what, remedy: GET_GO.into() };
        let program = search
            .find("go")
            .ok_or_else(|| missing("Go is not installed on this machine".into()))?;
        let go = Self { program, path: search.as_path(), version: String::new() };
        let [version] = go.env(["GOVERSION"]).ok_or_else(|| {
            missing(format!("{} does not tell its version", go.program.display()))
        })?;
        Ok(Self { version, ..go })
    }

    /// Where it keeps modules and compiled packages.
    pub fn caches(&self) -> Option<[PathBuf; 2]> {
        Some(self.env(["GOMODCACHE", "GOCACHE"])?.map(PathBuf::from))
    }

    fn env<const N: usize>(&self, names: [&str; N]) -> Option<[String; N]> {
        let mut command = self.command("env", Path::new("/"));
        command.args(names);
        let text = process::ask(&mut command, Duration::from_secs(20)).ok()?;
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.try_into().ok().filter(|lines: &[String; N]| lines.iter().all(|l| !l.is_empty()))
    }

    /// A command with nothing of the user's that would change what is built. Where Go gets modules
    /// from and how it checks them stays as the user has set it.
    fn command(&self, what: &str, folder: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command.arg(what).current_dir(folder).env("PATH", &self.path);
        for name in ["GOOS", "GOARCH", "GOEXPERIMENT", "GODEBUG"] {
            command.env_remove(name);
        }
        command
            .env("CGO_ENABLED", "0")
            .env("GOTOOLCHAIN", "local")
            .env("GO111MODULE", "on")
            .env("GOWORK", "off")
            .env("GOFLAGS", "-mod=mod -buildvcs=false");
        command
    }

    /// Whether this version is at least `required` (`1.24.0`).
    fn is_at_least(&self, required: &str) -> bool {
        let numbers = |text: &str| {
            // go1.25rc1 counts as 1.25.
            let text = text.split(|c: char| !c.is_ascii_digit() && c != '.').next().unwrap_or("");
            let mut numbers = text.split('.').map(|n| n.parse::<u32>().unwrap_or(0));
            [(); 3].map(|()| numbers.next().unwrap_or(0))
        };
        numbers(self.version.trim_start_matches("go")) >= numbers(required)
    }

    /// Whether an item's module has been downloaded by this user before.
    pub fn has_module(&self, item: &Item) -> bool {
        self.caches().is_some_and(|[modules, _]| {
            let folder = modules.join("cache/download").join(module(item.part)).join("@v");
            folder.join(format!("{}.zip", item.version)).exists()
        })
    }

    /// Builds an item's binaries into `into`; gives the module and its checksum. Works in
    /// `scratch`, which the caller removes. `progress` gets the number of packages compiled.
    ///
    /// # Errors
    /// [`ClusterError::Missing`] where this Go is too old, [`ClusterError::Component`] with the
    /// log's last lines where the build fails, [`ClusterError::Io`], and the one of [`stopped`].
    pub fn build(
        &self,
        item: &Item,
        scratch: &Path,
        into: &Path,
        log: &Path,
        stop: &Stop,
        progress: &mut dyn FnMut(usize),
    ) -> Result<String, ClusterError> {
        let module = module(item.part);
        let work = scratch.join("go");
        // Go's own temporary files too, so that they go with ours however this ends.
        let temporary = scratch.join("go-tmp");
        for folder in [&work, &temporary, &into.to_owned()] {
            create(folder)?;
        }
        let failed = |failure| match failure {
            Failure::Stopped => stopped(),
            failure => ClusterError::Component {
                component: item.to_string(),
                reason: format!("go: {failure}"),
                logs: Some(log.to_owned()),
            },
        };

        let answer = scratch.join("module.json");
        let mut download = self.command("mod", &work);
        download.args(["download", "-json", &format!("{module}@{}", item.version)]);
        let result =
            process::run(&mut download, Some(&answer), log, Ending::Prompt, stop, &mut || ());
        let text = fs::read_to_string(&answer).unwrap_or_default();
        let told: Option<Downloaded> = serde_json::from_str(&text).ok();
        // Go writes this error into its answer and not into the log.
        if let Some(reason) = told.as_ref().and_then(|told| told.error.clone()) {
            return Err(ClusterError::Component {
                component: item.to_string(),
                reason: format!("its Go module could not be had: {reason}"),
                logs: None,
            });
        }
        result.map_err(failed)?;
        let (Some(go_mod), sum) = told.map_or((None, None), |told| (told.go_mod, told.sum)) else {
            return Err(ClusterError::Component {
                component: item.to_string(),
                reason: "`go mod download -json` did not tell where the module is".into(),
                logs: Some(log.to_owned()),
            });
        };

        let text = fs::read_to_string(&go_mod)
            .map_err(|error| io_error("could not read", &go_mod, error))?;
        let mod_file = ModFile::parse(&text);
        if !self.is_at_least(&mod_file.go) {
            return Err(ClusterError::Missing {
                what: format!(
                    "{item} needs Go {} or newer to be built; {} is {}",
                    mod_file.go,
                    self.program.display(),
                    self.version
                ),
                remedy: GET_GO.into(),
            });
        }
        let ours = work.join("go.mod");
        fs::write(&ours, mod_file.requiring(item, module))
            .map_err(|error| io_error("could not write", &ours, error))?;

        let mut build = self.command("build", &work);
        build.env("GOTMPDIR", &temporary).args(["-v", "-trimpath", "-ldflags", &stamp(item)]);
        let mut folder = into.as_os_str().to_owned();
        folder.push("/");
        build.args([OsStr::new("-o"), &folder]).args(packages(item.part));
        let mut lines = Lines::of(log);
        process::run(&mut build, None, log, Ending::Prompt, stop, &mut || {
            if let Some(count) = lines.new_count() {
                progress(count);
            }
        })
        .map_err(failed)?;

        if item.part == Part::Etcd {
            // Go names it after the folder of its package.
            let (from, to) = (into.join("server"), into.join("etcd"));
            fs::rename(&from, &to).map_err(|error| io_error("could not rename", &from, error))?;
        }
        Ok(format!("{module}@{} {}", item.version, sum.unwrap_or_default()).trim().to_owned())
    }
}

fn module(part: Part) -> &'static str {
    match part {
        Part::Kubernetes | Part::Kubectl => "k8s.io/kubernetes",
        Part::Etcd => "go.etcd.io/etcd/server/v3",
        Part::Containerd => "github.com/containerd/containerd/v2",
        Part::Cni => "github.com/containernetworking/plugins",
        Part::CoreDns => "github.com/coredns/coredns",
    }
}

fn packages(part: Part) -> Vec<String> {
    let module = module(part);
    let below = |folder: &str, names: &[&str]| {
        names.iter().map(|name| format!("{module}/{folder}/{name}")).collect()
    };
    match part {
        Part::Kubernetes | Part::Kubectl | Part::Containerd => below("cmd", part.binaries()),
        Part::Etcd | Part::CoreDns => vec![module.into()],
        Part::Cni => {
            below("plugins", &["main/ptp", "main/loopback", "ipam/host-local", "meta/portmap"])
        }
    }
}

/// Linker flags that write the version into the binaries; without them the API server calls itself
/// v0.0.0, and so would every record.
fn stamp(item: &Item) -> String {
    let mut flags = vec!["-s -w".to_owned()];
    let mut set = |variable: &str, value: &str| flags.push(format!("-X {variable}={value}"));
    let version = &item.version;
    match item.part {
        Part::Kubernetes | Part::Kubectl => {
            let mut numbers = version.trim_start_matches('v').split('.');
            let (major, minor) = (numbers.next().unwrap_or(""), numbers.next().unwrap_or(""));
            for package in ["k8s.io/component-base/version", "k8s.io/client-go/pkg/version"] {
                set(&format!("{package}.gitVersion"), version);
                set(&format!("{package}.gitMajor"), major);
                set(&format!("{package}.gitMinor"), minor);
                set(&format!("{package}.gitTreeState"), "clean");
            }
        }
        // They have their versions in their sources.
        Part::Etcd | Part::CoreDns => {}
        Part::Containerd => {
            set("github.com/containerd/containerd/v2/version.Version", version);
        }
        Part::Cni => {
            let package = "github.com/containernetworking/plugins/pkg/utils/buildversion";
            set(&format!("{package}.BuildVersion"), version);
        }
    }
    flags.join(" ")
}

/// Counts lines that are appended to a file: with `-v`, one a package.
struct Lines {
    file: Option<fs::File>,
    count: usize,
    told: Option<usize>,
}

impl Lines {
    fn of(log: &Path) -> Self {
        use std::io::{Seek, SeekFrom};
        let file = fs::File::open(log).and_then(|mut file| {
            file.seek(SeekFrom::End(0))?;
            Ok(file)
        });
        Self { file: file.ok(), count: 0, told: None }
    }

    fn new_count(&mut self) -> Option<usize> {
        use std::io::Read;
        let mut more = Vec::new();
        self.file.as_mut()?.read_to_end(&mut more).ok()?;
        let lines = String::from_utf8_lossy(&more);
        // Downloads are told in the same place.
        self.count += lines.lines().filter(|line| !line.starts_with("go: ")).count();
        (self.told != Some(self.count)).then(|| {
            self.told = Some(self.count);
            self.count
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::local::components::versions::Release;

    #[test]
    fn both_packages_that_hold_the_version_are_stamped() {
        let stamp = stamp(&Release::parse("1.37.2").unwrap().item(Part::Kubernetes));
        for package in ["k8s.io/component-base/version", "k8s.io/client-go/pkg/version"] {
            for set in ["gitVersion=v1.37.2", "gitMajor=1", "gitMinor=37", "gitTreeState=clean"] {
                assert!(stamp.contains(&format!("-X {package}.{set}")), "{stamp}");
            }
        }
    }

    #[test]
    fn go_versions_are_compared_as_numbers() {
        let go =
            |version: &str| Go { program: "/go".into(), path: "".into(), version: version.into() };
        assert!(go("go1.26.8").is_at_least("1.24.0"));
        assert!(go("go1.24").is_at_least("1.24.0"));
        assert!(go("go1.25rc1").is_at_least("1.24.9"));
        assert!(go("go1.24.0-X:foo").is_at_least("1.24.0"));
        assert!(!go("go1.9.7").is_at_least("1.24.0"));
        assert!(!go("go1.23.11").is_at_least("1.24.0"));
    }
}
