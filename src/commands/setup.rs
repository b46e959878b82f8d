//! `drainwatch setup`: says what it is going to do, does it with a line a step on standard error,
//! and says what is ready on standard output.

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::{Exit, say};
use crate::cli::SetupArgs;
use crate::cluster::ClusterError;
use crate::cluster::local::components::{
    self, DEFAULT_KUBERNETES, Part, Plan, Release, SetupEvent, Stop,
};
use crate::display::json::{self, Event};

/// Runs the command.
pub fn run(args: &SetupArgs) -> Exit {
    told(args).err().unwrap_or(Exit::Success)
}

/// Makes these Kubernetes versions ready, as the command does, for `--setup` of other commands.
pub(super) fn make_ready(kubernetes: Vec<String>, extras: &[Part]) -> Result<(), Exit> {
    let (dns, kubectl) = (extras.contains(&Part::CoreDns), extras.contains(&Part::Kubectl));
    told(&SetupArgs {
        kubernetes,
        dns,
        kubectl,
        from: None,
        dry_run: false,
        told: Default::default(),
    })
}

/// Runs it and tells on standard error what went wrong.
fn told(args: &SetupArgs) -> Result<(), Exit> {
    try_run(args).map_err(|(exit, message)| match message {
        Some(message) => say::error(exit, &message),
        None => exit,
    })
}

fn try_run(args: &SetupArgs) -> Result<(), (Exit, Option<String>)> {
    let usage = |message: String| (Exit::Usage, Some(message));
    let failed = |error: ClusterError| (exit_of(&error), Some(error.to_string()));
    let default = [DEFAULT_KUBERNETES.to_owned()];
    let versions = if args.kubernetes.is_empty() { &default[..] } else { &args.kubernetes };
    for version in versions {
        Release::parse(version).map_err(|error| usage(error.to_string()))?;
    }
    if let Some(folder) = args.from.as_deref().filter(|folder| !folder.is_dir()) {
        return Err(usage(format!("--from {}: this is not a folder", folder.display())));
    }

    let extras = [(args.dns, Part::CoreDns), (args.kubectl, Part::Kubectl)];
    let extras: Vec<Part> =
        extras.into_iter().filter_map(|(wanted, part)| wanted.then_some(part)).collect();
    let plan = components::plan(versions, &extras, args.from.as_deref()).map_err(failed)?;
    tell_plan(&plan);
    if plan.is_empty() {
        if json::is_open() {
            say::note(&format_args!("nothing to do: {}", ready(&plan)));
            return Ok(());
        }
        tell(&mut std::io::stdout(), format_args!("Nothing to do: {}", ready(&plan)));
        return Ok(());
    }
    match (json::is_open(), args.dry_run) {
        (true, true) => return Ok(()),
        (true, false) => {}
        (false, true) => {
            announce(&plan, &mut std::io::stdout());
            return Ok(());
        }
        (false, false) => announce(&plan, &mut std::io::stderr()),
    }

    let stop = Stop::default();
    let signal = end_on_signals(&stop);
    let mut display = Display::default();
    let result = components::setup(&plan, &stop, &mut |event| display.show(&event));
    display.clear();
    match (result, signal.load(Ordering::Relaxed)) {
        // A signal that came too late to matter leaves a finished setup finished.
        (Ok(()), _) => {}
        (Err(_), number) if number > 0 => return Err((Exit::Signal(number), None)),
        (Err(error), _) => return Err(failed(error)),
    }
    // What was made must also be found; the answer says what is there.
    for release in &plan.releases {
        let found = components::locate_with(&release.to_string(), &extras).map_err(failed)?;
        let mut text = format!("Ready for Kubernetes {release}:");
        for part in Part::in_order().filter(|p| Part::ALL.contains(p) || extras.contains(p)) {
            let known = |key: &str| found.versions.get(key).map_or("unknown", String::as_str);
            let (name, title) = (part.name(), part.title());
            let source = known(&format!("{name} source"));
            text += &format!("\n  {title:<12} {:<9} {source}", known(name));
            let told = |key: &str| found.versions.get(key).map(String::as_str);
            json::emit(&Event::Component {
                kubernetes: release.to_string(),
                name,
                version: told(name),
                source: told(&format!("{name} source")),
            });
        }
        if !json::is_open() {
            tell(&mut std::io::stdout(), format_args!("{text}"));
        }
    }
    Ok(())
}

fn exit_of(error: &ClusterError) -> Exit {
    match error {
        ClusterError::Io { .. } => Exit::Files,
        _ => Exit::Cluster,
    }
}

/// `Kubernetes 1.34.0 and 1.37.2 are ready (in /root/.cache/drainwatch)`
fn ready(plan: &Plan) -> String {
    let names: Vec<String> = plan.releases.iter().map(Release::to_string).collect();
    let verb = if names.len() == 1 { "is" } else { "are" };
    let place = match std::env::var_os(components::FOLDER_VARIABLE).filter(|name| !name.is_empty())
    {
        Some(folder) => Path::new(&folder).display().to_string(),
        None => plan.cache().display().to_string(),
    };
    format!("Kubernetes {} {verb} ready (in {place})", names.join(" and "))
}

/// What a program is told of what will be done.
fn tell_plan(plan: &Plan) {
    let (cache_bytes, go_caches_bytes) = plan.space();
    json::emit(&Event::SetupPlanned {
        kubernetes: plan.releases.iter().map(Release::to_string).collect(),
        user: plan.user(),
        cache: plan.cache().display().to_string(),
        steps: plan.steps(),
        damaged: &plan.damaged,
        cache_bytes,
        go_caches_bytes,
    });
}

/// What will be done, as whom, where, and what it takes.
fn announce(plan: &Plan, to: &mut dyn Write) {
    let names: Vec<String> = plan.releases.iter().map(Release::to_string).collect();
    let mut text = format!(
        "Making Kubernetes {} ready for local clusters, as {}, in {}:",
        names.join(" and "),
        plan.user(),
        plan.cache().display()
    );
    for step in plan.steps() {
        text += &format!("\n  - {step}");
    }
    for damaged in &plan.damaged {
        text += &format!("\n  (what is there can't be relied on: {damaged})");
    }
    let (cache, go) = plan.space();
    if cache > 0 {
        text += &format!("\nDisk: about {} MB there", cache >> 20);
        if go > 0 {
            text += &format!(
                "; what is built also makes Go's own caches of modules and packages grow, by up \
                 to {:.1} GB in all",
                go as f64 / f64::from(1 << 30)
            );
        }
        text += ".";
    }
    tell(to, format_args!("{text}"));
}

/// Writes a line. A reader that has gone away is no reason to stop what goes on.
fn tell(to: &mut dyn Write, text: std::fmt::Arguments<'_>) {
    let _ = writeln!(to, "{text}");
}

/// Ends the setup on SIGINT, SIGTERM and SIGHUP, and the process on the second of them (what it
/// runs ends with it). Gives the signal's number once there was one.
fn end_on_signals(stop: &Stop) -> Arc<AtomicU8> {
    let number = Arc::new(AtomicU8::new(0));
    let (stop, seen) = (stop.clone(), number.clone());
    std::thread::spawn(move || {
        // Without a runtime signals do what they do by default: end the process.
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
            return;
        };
        runtime.block_on(async {
            use tokio::signal::unix::{SignalKind, signal};
            let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
            let [Ok(mut int), Ok(mut term), Ok(mut hup)] = kinds.map(signal) else { return };
            loop {
                let which: u8 = tokio::select! {
                    _ = int.recv() => 2,
                    _ = term.recv() => 15,
                    _ = hup.recv() => 1,
                };
                if seen.swap(which, Ordering::Relaxed) != 0 {
                    std::process::exit(128 + i32::from(which));
                }
                stop.stop();
            }
        });
    });
    number
}

/// Events on standard error: on a terminal the step that runs is one line that moves, elsewhere
/// each step's begin and end are lines.
#[derive(Default)]
struct Display {
    bar: Option<ProgressBar>,
    step: String,
}

impl Display {
    fn show(&mut self, event: &SetupEvent) {
        if json::is_open() {
            return self.tell(event);
        }
        let terminal = std::io::stderr().is_terminal();
        match event {
            SetupEvent::Started(step) if terminal => {
                self.clear();
                let bar = ProgressBar::new_spinner();
                if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} [{elapsed}]") {
                    bar.set_style(style);
                }
                bar.set_message(step.clone());
                bar.enable_steady_tick(Duration::from_millis(200));
                self.step.clone_from(step);
                self.bar = Some(bar);
            }
            SetupEvent::Progress(how_far) => {
                if let Some(bar) = &self.bar {
                    bar.set_message(format!("{} ({how_far})", self.step));
                }
            }
            other => {
                self.clear();
                say::line(&other);
            }
        }
    }

    /// The same for programs.
    fn tell(&mut self, event: &SetupEvent) {
        if let SetupEvent::Started(step) = event {
            self.step.clone_from(step);
        }
        json::emit(&match event {
            SetupEvent::Waiting => Event::SetupWaiting,
            SetupEvent::Started(step) => Event::StepStarted { step },
            SetupEvent::Progress(progress) => {
                Event::StepProgress { step: self.step.clone(), progress }
            }
            SetupEvent::Finished { step, took } => {
                Event::StepEnded { step, took_ms: json::ms(*took) }
            }
            SetupEvent::Note(text) => Event::Note { message: text.clone() },
        });
    }

    fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}
