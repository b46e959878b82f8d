//! What a run begins with: from a file, or from the folder of a run that is resumed.
//!
//! Refuses here what can be known before anything is made or started.

use std::fmt::Display;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::cli::ApplyArgs;
use crate::cluster::Provider;
use crate::cluster::local::LocalProvider;
use crate::commands::{Exit, say};
use crate::config::ProviderKind;
use crate::plan::{self, Plan};
use crate::record::{Claim, ClaimError, Tool, make_folder};
use crate::run::{self, Earlier};

/// What a run begins with.
pub struct Start {
    /// What is to be done, and what of it is done.
    pub earlier: Earlier,
    /// Who makes its clusters.
    pub provider: Box<dyn Provider>,
    /// The build that measures.
    pub tool: Tool,
    /// Where it is written.
    pub folder: Folder,
}

/// A run's folder.
pub enum Folder {
    /// To be made, if it is not there.
    New(PathBuf),
    /// Of a run that is resumed.
    Claimed(Claim),
}

/// Reads the command line's files and folders. Errors are told, and what is given is their code.
pub fn start(args: &ApplyArgs) -> Result<Start, Exit> {
    let file = args.file.as_deref().map(|file| load(file, args)).transpose()?;
    match (&args.resume, file) {
        (Some(folder), file) => resumed(folder, file),
        (None, Some((plan, provider))) => {
            let folder = output_folder(args.output.as_deref(), &plan.matrix)
                .map_err(|text| say::error(Exit::Files, &text))?;
            let tool = tool()?;
            let earlier = Earlier::nothing(tool.clone(), plan);
            Ok(Start { earlier, provider, tool, folder: Folder::New(folder) })
        }
        // The command line's own rules exclude it.
        (None, None) => Err(say::error(Exit::Usage, &"no FILE and no --resume DIR")),
    }
}

/// The plan of a file and of what the command line says of it, with its provider.
fn load(file: &Path, args: &ApplyArgs) -> Result<(Plan, Box<dyn Provider>), Exit> {
    let mut plan = plan::load(file, &args.choice.set, &args.choice.only)
        .map_err(|errors| say::errors(&errors))?;
    // A resumed run's plan names its provider already.
    let provider = provider(&mut plan, args.quiet || args.resume.is_some())?;
    Ok((plan, provider))
}

fn resumed(folder: &Path, file: Option<(Plan, Box<dyn Provider>)>) -> Result<Start, Exit> {
    let shown = folder.display();
    let claim = Claim::take(folder).map_err(|error| match &error {
        ClaimError::Taken { .. } => say::error(Exit::Files, &error),
        ClaimError::Io { .. } => {
            say::error(Exit::Usage, &format_args!("{error}\n  name the folder of a run"))
        }
    })?;
    let earlier = Earlier::read(&claim).map_err(|error| say::error(Exit::Usage, &error))?;
    let tool = tool()?;
    let (earlier, provider) = match (earlier, file) {
        (None, Some((plan, provider))) => (Earlier::nothing(tool.clone(), plan), provider),
        (None, None) => {
            let text = format!(
                "{shown}: nothing was recorded before its run ended, not even the plan\n  \
                 name the file too: drainwatch apply FILE --resume {}",
                say::quoted(folder)
            );
            return Err(say::error(Exit::Usage, &text));
        }
        (Some(mut earlier), file) => {
            may_go_on(&shown, &earlier, file.map(|(plan, _)| plan), &tool)?;
            let provider = provider(&mut earlier.record.plan, true)?;
            (earlier, provider)
        }
    };
    Ok(Start { earlier, provider, tool, folder: Folder::Claimed(claim) })
}

/// Refuses, and tells every difference, where the next trials would be of another plan, build or
/// configuration than the earlier ones: then nothing is started.
fn may_go_on(
    folder: &dyn Display,
    earlier: &Earlier,
    file: Option<Plan>,
    tool: &Tool,
) -> Result<(), Exit> {
    let of_file = file.map(|plan| run::plan_differences(&earlier.record.plan, &plan));
    let of_file = of_file.unwrap_or_default();
    // What is not run can't be of another kind.
    let of_trials = if earlier.left() > 0 { earlier.differences(tool) } else { Vec::new() };
    let mut remedies = Vec::new();
    if !of_file.is_empty() {
        remedies.push("leave FILE out to go on by the plan in run.json");
    }
    if !of_trials.is_empty() {
        remedies.push("go on with the build and the configuration of its trials");
    }
    if remedies.is_empty() {
        return Ok(());
    }
    let lines: String =
        of_file.iter().chain(&of_trials).map(|line| format!("  {line}\n")).collect();
    let text = format!(
        "{folder}: refused, not mixed: what is to run now differs from what was run\n{lines}  {}, \
         or measure anew with --output",
        remedies.join("; ")
    );
    Err(say::error(Exit::NotMeasured, &text))
}

fn tool() -> Result<Tool, Exit> {
    run::current_tool().map_err(|error| {
        say::error(Exit::Files, &format_args!("this binary can't be read: {error}"))
    })
}

impl Folder {
    /// The folder, made where it is new, and nobody else's to write to.
    pub fn claim(self) -> Result<Claim, Exit> {
        let claim = match self {
            Self::Claimed(claim) => claim,
            Self::New(path) => {
                let failed = |error: &dyn Display| {
                    let shown = path.display();
                    say::error(Exit::Files, &format_args!("{shown}: can't be made: {error}"))
                };
                make_folder(&path).map_err(|error| failed(&error))?;
                let claim = Claim::take(&path).map_err(|error| say::error(Exit::Files, &error))?;
                // Another's run may have come and gone since it was looked at.
                still_empty(&path).map_err(|text| say::error(Exit::Files, &text))?;
                claim
            }
        };
        if !claim.is_alone() {
            say::note(&format_args!(
                "{}: its file system can't lock folders: start no second run in it",
                claim.path().display()
            ));
        }
        Ok(claim)
    }
}

/// The provider of the plan's arms: one for all of them. The plan then names it, not `auto`.
fn provider(plan: &mut Plan, quiet: bool) -> Result<Box<dyn Provider>, Exit> {
    let mut auto = false;
    for arm in &mut plan.arms {
        let kind = match arm.cluster.provider {
            ProviderKind::Local => continue,
            ProviderKind::Auto => {
                auto = true;
                arm.cluster.provider = ProviderKind::Local;
                continue;
            }
            ProviderKind::Kind => "kind",
            ProviderKind::Context => "context",
        };
        let text = format!(
            "arm {}: cluster.provider = \"{kind}\" is not supported yet\n  \
             use \"local\" or \"auto\", or pass --set cluster.provider=local",
            arm.name
        );
        return Err(say::error(Exit::Usage, &text));
    }
    if auto && !quiet {
        say::note(&"provider auto: local (kind is not supported yet)");
    }
    Ok(Box::new(LocalProvider::default()))
}

/// The run's folder: it must be empty or not there yet. Nothing is made.
fn output_folder(given: Option<&Path>, matrix: &str) -> Result<PathBuf, String> {
    let folder = match given {
        Some(folder) => folder.to_owned(),
        None => {
            let now = jiff::Timestamp::now().strftime("%Y%m%dT%H%M%SZ");
            Path::new("results").join(format!("{matrix}-{now}"))
        }
    };
    still_empty(&folder).map(|()| folder)
}

fn still_empty(folder: &Path) -> Result<(), String> {
    let shown = folder.display();
    let another = "choose another folder with --output";
    match std::fs::read_dir(folder).map(|mut entries| entries.next().is_none()) {
        Ok(true) => Ok(()),
        Ok(false) if folder.join(crate::record::RUN_FILE).exists() => {
            let resume = say::quoted(folder);
            Err(format!("{shown}: holds a run\n  {another}, or go on with it: --resume {resume}"))
        }
        Ok(false) => Err(format!("{shown}: is not empty\n  {another}, or remove what is in it")),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotADirectory => {
            Err(format!("{shown}: is not a folder\n  {another}"))
        }
        Err(error) => Err(format!("{shown}: can't be read: {error}\n  {another}")),
    }
}
