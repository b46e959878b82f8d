//! Names of scenarios, their files and what a folder may be called.
//!
//! Takes an entry of `scenarios` or a path; gives the file or the name, or why there can be none.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::errors::{likely, quote};
use super::source::shown;

/// The file of an entry of `scenarios`, or why there can be none.
pub(super) fn scenario_path(matrix: &Path, entry: &str) -> Result<PathBuf, String> {
    let folder = matrix.parent().unwrap_or(Path::new(""));
    if entry.ends_with(".toml") {
        let path = folder.join(entry);
        return match unsafe_name(&stem(&path)) {
            Some(why) => Err(why),
            None => Ok(path),
        };
    }
    if let Some(why) = unsafe_name(entry) {
        return Err(why);
    }
    let file = format!("{entry}.toml");
    // The plain parent where there is one: it reads better than matrices/../scenarios.
    let beside = match folder.components().next_back() {
        Some(std::path::Component::Normal(_)) => {
            folder.parent().map_or_else(|| folder.join(".."), Path::to_path_buf)
        }
        _ => folder.join(".."),
    };
    Ok(beside.join("scenarios").join(file))
}

/// What to write in the place of a path at which there is no file.
pub(super) fn meant(missing: &Path) -> Option<String> {
    let ended = PathBuf::from(format!("{}.toml", missing.display()));
    if ended.is_file() {
        return Some(format!("did you mean {}?", shown(&ended)));
    }
    let mut folders = Folders::default();
    let stems = folders.stems(missing.parent()?).iter().map(String::as_str);
    let path = missing.with_file_name(format!("{}.toml", likely(&stem(missing), stems)?));
    (path != missing).then(|| format!("did you mean {}?", shown(&path)))
}

/// What stands in the folders that missing scenarios were looked for in, each read once.
#[derive(Default)]
pub(super) struct Folders(BTreeMap<PathBuf, Vec<String>>);

impl Folders {
    /// The stems of a folder's TOML files, sorted.
    fn stems(&mut self, folder: &Path) -> &[String] {
        /// More files than these are looked through in no folder.
        const MOST: usize = 1_000;
        self.0.entry(folder.to_path_buf()).or_insert_with(|| {
            // A file's bare name has the parent "".
            let read = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
            let entries = read.read_dir().into_iter().flatten().flatten();
            let mut stems: Vec<String> = entries
                .map(|entry| entry.path())
                .filter(|path| path.extension().is_some_and(|ext| ext == "toml"))
                .map(|path| stem(&path))
                .filter(|stem| unsafe_name(stem).is_none())
                .take(MOST)
                .collect();
            stems.sort();
            stems
        })
    }

    /// What to write in the place of an entry whose file is missing.
    pub fn help(&mut self, matrix: &Path, missing: &Path, entry: &str) -> Option<String> {
        const LISTED: usize = 10;
        if let Some(name) = entry.strip_suffix(".toml")
            && scenario_path(matrix, name).is_ok_and(|path| path.is_file())
        {
            return Some(format!("without .toml it is looked up in scenarios/: \"{name}\""));
        }
        if let Some(help) = self.neighbour(missing, entry) {
            return Some(help);
        }
        let folder = missing.parent()?;
        let shown = match folder.as_os_str().is_empty() {
            true => "the current folder".to_string(),
            false => shown(folder),
        };
        Some(match self.stems(folder) {
            [] if !folder.as_os_str().is_empty() && !folder.is_dir() => {
                format!("there is no folder {shown}")
            }
            [] => format!("there is no TOML file in {shown}"),
            stems => {
                let listed: Vec<&str> = stems.iter().take(LISTED).map(String::as_str).collect();
                let more = match stems.len() - listed.len() {
                    0 => String::new(),
                    more => format!(" and {more} more"),
                };
                format!("in {shown} are {}{more}", listed.join(", "))
            }
        })
    }

    /// The scenario beside a missing one that was likely meant.
    fn neighbour(&mut self, missing: &Path, entry: &str) -> Option<String> {
        let stems = self.stems(missing.parent()?);
        let own = stem(missing);
        let others = stems.iter().map(String::as_str).filter(|other| *other != own);
        let word = likely(&own, others)?;
        // As it would be written: an entry may be a path.
        let folder =
            entry.rsplit_once('/').map_or(String::new(), |(folder, _)| format!("{folder}/"));
        let ending = if entry.ends_with(".toml") { ".toml" } else { "" };
        Some(format!("did you mean \"{folder}{word}{ending}\"?"))
    }
}

pub(super) fn stem(path: &Path) -> String {
    path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default()
}

pub(super) const NAME_HELP: &str =
    "a file's stem names its arms and their folders: letters, digits, `-`, `_` and `.`";

/// Why a file's stem cannot name an arm and so a folder of results.
pub(super) fn unsafe_name(name: &str) -> Option<String> {
    const LONGEST: usize = 100;
    // What a run's folder holds besides its arms.
    let taken = ["environment", "logs"].iter().any(|taken| name.eq_ignore_ascii_case(taken))
        || [".json", ".csv", ".md", ".html", ".xml"]
            .iter()
            .any(|ending| name.to_ascii_lowercase().ends_with(ending));
    let safe = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || !name.chars().all(safe) || name.starts_with(['.', '-']) {
        Some(format!("{} is no safe name", quote(name)))
    } else if name.len() > LONGEST {
        Some(format!("{} is longer than {LONGEST} characters", quote(name)))
    } else if taken {
        Some(format!("{} names something else in a run's folder", quote(name)))
    } else {
        None
    }
}
