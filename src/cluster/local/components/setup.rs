//! Does what a [`Plan`] says: fills the cache, installs tools.
//!
//! Takes a plan; reports each step as a [`SetupEvent`]. What it makes is verified before it is
//! kept, and kept whole or not at all; one setup at a time works in a cache.

use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use super::apt::{self, Installer};
use super::cache::{Origin, State};
use super::download::{Downloads, Refusal};
use super::gobuild::Go;
use super::plan::{Plan, check_build_space, plan};
use super::process::Stop;
use super::versions::{Item, Part};
use super::{download, host, io_error, stopped, verify};
use crate::cluster::ClusterError;

/// What happens during a setup. As text, each is one line without an end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SetupEvent {
    /// Another setup works in the same cache; this one goes on when it is done.
    Waiting,
    /// A step begins: `build Kubernetes v1.34.0 from Go modules`.
    Started(String),
    /// How far the step is: `kubelet, 34 MB`. Several times a second.
    Progress(String),
    /// The step is done.
    Finished {
        /// The step, as it began.
        step: String,
        /// How long it took.
        took: Duration,
    },
    /// A way was closed and another is taken: `github.com can't be reached (…): building from Go
    /// modules instead`.
    Note(String),
}

impl fmt::Display for SetupEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Waiting => write!(f, "waiting for another drainwatch setup to end"),
            Self::Started(step) => write!(f, "{step} …"),
            Self::Progress(how_far) => write!(f, "  {how_far}"),
            Self::Finished { step, took } => write!(f, "{step}: {:.1} s", took.as_secs_f64()),
            Self::Note(text) => write!(f, "note: {text}"),
        }
    }
}

/// Makes ready what [`locate`](super::locate) needs for these versions, and does nothing where
/// all is there. Programs that it runs end with this process.
///
/// # Errors
/// As [`plan()`] and [`setup()`].
pub fn ensure(
    kubernetes: &[String],
    extras: &[Part],
    report: &mut dyn FnMut(SetupEvent),
) -> Result<(), ClusterError> {
    let plan = plan(kubernetes, extras, None)?;
    if plan.is_empty() { Ok(()) } else { setup(&plan, &Stop::default(), report) }
}

/// Does what a plan says, from a thread that lives until it returns.
///
/// # Errors
/// [`ClusterError::Missing`] where the machine lacks what would be needed (Go, room, rights);
/// [`ClusterError::Component`] where something could not be had from any source, or `stop` was
/// used; [`ClusterError::Io`] where the cache could not be written.
pub fn setup(
    plan: &Plan,
    stop: &Stop,
    report: &mut dyn FnMut(SetupEvent),
) -> Result<(), ClusterError> {
    // What can't work is said before anything is done.
    let installer = Installer::of(&plan.search);
    if let (false, Installer::Nobody(why)) = (plan.tools.is_empty(), &installer) {
        return Err(apt::refused(&plan.tools, why));
    }
    plan.check_cache_space()?;
    let _lock = plan.cache.lock(stop, &mut || report(SetupEvent::Waiting))?;
    let mut work = Work { plan, stop, report, downloads: Downloads::of_environment(), go: None };
    if let (false, Installer::Apt(apt)) = (plan.tools.is_empty(), installer) {
        work.install_tools(&apt)?;
    }
    let result = plan.items.iter().try_for_each(|item| work.make(item));
    let cleared = plan.cache.clear_temporary();
    result.and(cleared)
}

struct Work<'a> {
    plan: &'a Plan,
    stop: &'a Stop,
    report: &'a mut dyn FnMut(SetupEvent),
    downloads: Downloads,
    go: Option<Go>,
}

impl Work<'_> {
    /// Runs a step between its events.
    fn step<T, E>(
        &mut self,
        step: String,
        run: impl FnOnce(&mut Self) -> Result<T, E>,
    ) -> Result<T, E> {
        let began = Instant::now();
        (self.report)(SetupEvent::Started(step.clone()));
        let result = run(self)?;
        (self.report)(SetupEvent::Finished { step, took: began.elapsed() });
        Ok(result)
    }

    fn install_tools(&mut self, apt: &Path) -> Result<(), ClusterError> {
        let search = &self.plan.search;
        let packages = apt::packages(&self.plan.tools);
        let log = self.plan.cache.root().join("logs");
        super::cache::create(&log)?;
        let log = log.join("apt-get.log");
        self.step(format!("install {} with apt-get", packages.join(" ")), |work| {
            apt::install(apt, search, &packages, &log, work.stop, &mut || ())
        })?;
        let missing = search.missing_tools();
        if missing.is_empty() {
            return Ok(());
        }
        Err(apt::refused(&missing, "the packages that were installed do not have them"))
    }

    /// Gets one item into the cache.
    fn make(&mut self, item: &Item) -> Result<(), ClusterError> {
        // Another setup may have made it while this one waited.
        if let State::Ready(_) = self.plan.cache.state(item)? {
            return Ok(());
        }
        let scratch = self.plan.cache.temporary(item)?;
        let staged = scratch.join("staged");
        super::cache::create(&staged)?;
        let origin = match &self.plan.from {
            Some(folder) => self.step(format!("copy {item} from {}", folder.display()), |_| {
                copy(item, folder, &staged)
            })?,
            None => {
                let known = self.downloads.closed(item.part).is_some();
                match self.download(item, &staged)? {
                    Ok(origin) => origin,
                    Err(reason) => {
                        // Of a closed host it is enough to hear once.
                        if !known {
                            let text = format!("{reason}; building from Go modules instead");
                            (self.report)(SetupEvent::Note(text));
                        }
                        self.build(item, &scratch, &reason)?
                    }
                }
            }
        };
        let staged = scratch.join(if origin.go.is_some() { "built" } else { "staged" });
        verify::check(item, &staged).map_err(|reason| ClusterError::Component {
            component: item.to_string(),
            reason,
            logs: None,
        })?;
        self.plan.cache.keep(item, &staged, origin)
    }

    /// Downloads an item; the inner error is a reason to get it in another way.
    fn download(
        &mut self,
        item: &Item,
        staged: &Path,
    ) -> Result<Result<Origin, String>, ClusterError> {
        if let Some(reason) = self.downloads.closed(item.part) {
            return Ok(Err(reason.to_owned()));
        }
        let architecture = host::architecture()?;
        let source = self.downloads.source(download::host(item.part));
        let result = self.step(
            format!("download {item} from {source}"),
            |Work { stop, report, downloads, .. }| {
                let mut rate = Rate::default();
                downloads.fetch(item, architecture, staged, stop, &mut |file, bytes| {
                    if rate.is_due() {
                        report(SetupEvent::Progress(format!("{file}, {} MB", bytes >> 20)));
                    }
                })
            },
        );
        match result {
            Ok(from) => {
                let source = "official release binaries".into();
                // What is not what it was published as is refused here, with a way out; after
                // this an error is final.
                match verify::check(item, staged) {
                    Ok(()) => Ok(Ok(Origin { source, from, go: None })),
                    Err(reason) => Ok(Err(reason)),
                }
            }
            Err(Refusal::Host(reason) | Refusal::File(reason)) => Ok(Err(reason)),
            Err(Refusal::Stopped) => Err(stopped()),
            Err(Refusal::Io(path, error)) => Err(io_error("could not write", &path, error)),
        }
    }

    /// Builds an item from its Go module; `reason` is why it was not downloaded.
    fn build(&mut self, item: &Item, scratch: &Path, reason: &str) -> Result<Origin, ClusterError> {
        let go = match &self.go {
            Some(go) => go.clone(),
            None => Go::find(&self.plan.search).map_err(|error| match error {
                ClusterError::Missing { what, remedy } => ClusterError::Missing {
                    what: format!(
                        "{item} could not be downloaded ({reason}), and to build it: {what}"
                    ),
                    remedy,
                },
                other => other,
            })?,
        };
        self.go = Some(go.clone());
        check_build_space(self.plan.cache(), &go, item)?;
        let log = self.plan.cache.log(item)?;
        let built = scratch.join("built");
        let from = self.step(
            format!("build {item} from Go modules with {}", go.version),
            |Work { stop, report, .. }| {
                let mut rate = Rate::default();
                go.build(item, scratch, &built, &log, stop, &mut |packages| {
                    if rate.is_due() {
                        report(SetupEvent::Progress(format!("{packages} packages compiled")));
                    }
                })
            },
        )?;
        Ok(Origin {
            source: format!("built from Go modules with {}", go.version),
            from,
            go: Some(go.version),
        })
    }
}

/// Copies an item's binaries, after asking them what they are.
fn copy(item: &Item, folder: &Path, staged: &Path) -> Result<Origin, ClusterError> {
    verify::check(item, folder).map_err(|what| ClusterError::Missing {
        what,
        remedy: format!(
            "Give a folder with the binaries of {item}. (One with other versions of etcd, \
             containerd and CNI plugins can be used as it is: {}={}.)",
            super::FOLDER_VARIABLE,
            folder.display()
        ),
    })?;
    for binary in item.part.binaries() {
        let from = folder.join(binary);
        std::fs::copy(&from, staged.join(binary))
            .map_err(|error| io_error("could not copy", &from, error))?;
    }
    let from = folder.display().to_string();
    Ok(Origin { source: format!("folder {from}"), from, go: None })
}

/// Lets a few events a second through.
#[derive(Default)]
struct Rate(Option<Instant>);

impl Rate {
    fn is_due(&mut self) -> bool {
        let due = self.0.is_none_or(|last| last.elapsed() >= Duration::from_millis(250));
        if due {
            self.0 = Some(Instant::now());
        }
        due
    }
}
