//! The logs of components: their last words, and copies for whoever looks later.

use std::fs;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

/// How much of a log's end is looked at.
const TAIL: u64 = 16 * 1024;
/// How long last words may be.
const LENGTH: usize = 400;

/// The last line of a log that tells of an error, or else the last line.
pub(super) fn last_words(log: &Path) -> String {
    let read = || -> io::Result<String> {
        let mut file = fs::File::open(log)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL)))?;
        let mut bytes = Vec::new();
        file.take(TAIL).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    match read() {
        Ok(text) => telling(&text).chars().take(LENGTH).collect(),
        Err(error) => format!("its log could not be read: {error}"),
    }
}

fn telling(tail: &str) -> &str {
    let lines = || tail.lines().map(str::trim).filter(|l| !l.is_empty()).rev();
    let error = lines().find(|line| {
        // klog's fatal and error lines, logrus' and zap's levels, cobra's and Go's own
        let klog = line.as_bytes();
        (matches!(klog.first(), Some(b'E' | b'F')) && klog.get(1).is_some_and(u8::is_ascii_digit))
            || [
                "level=error",
                "level=fatal",
                "\"level\":\"error\"",
                "\"level\":\"fatal\"",
                "panic: ",
            ]
            .iter()
            .any(|mark| line.contains(mark))
            || line.starts_with("Error: ")
            || line.starts_with("error: ")
    });
    error.or_else(|| lines().next()).unwrap_or("its log is empty")
}

/// Copies the logs of a cluster's state folder: `INTO/supervisor.log`, `INTO/NODE/DAEMON.log`.
pub(super) fn copy(state: &Path, into: &Path) -> io::Result<()> {
    fs::create_dir_all(into)?;
    let own = state.join("supervisor.log");
    if own.exists() {
        fs::copy(own, into.join("supervisor.log"))?;
    }
    for node in fs::read_dir(state)? {
        let node = node?;
        let logs = node.path().join("logs");
        if !logs.is_dir() {
            continue;
        }
        let to = into.join(node.file_name());
        fs::create_dir_all(&to)?;
        for log in fs::read_dir(logs)? {
            let log = log?;
            fs::copy(log.path(), to.join(log.file_name()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_error_tells_more_than_the_last_line() {
        let log = "I1130 12:00:00 1 start\nE1130 12:00:01 1 run.go:72] \"command failed\" err=\"no\"\nI1130 12:00:02 1 bye\n\n";
        assert_eq!(telling(log), "E1130 12:00:01 1 run.go:72] \"command failed\" err=\"no\"");
        assert_eq!(telling("a\nb\n"), "b");
        assert_eq!(telling(""), "its log is empty");
    }
}
