//! `drainwatch cluster list`: the local clusters of this host.

use std::time::Duration;

use jiff::Timestamp;

use super::super::{Exit, say};
use crate::cluster::local::{self, Found};

/// Runs the command.
pub fn run() -> Exit {
    match local::list() {
        Ok(found) if found.is_empty() => {
            say::line(&"no local cluster is running");
            Exit::Success
        }
        Ok(found) => say::print(&table(&found, Timestamp::now())),
        Err(error) => say::error(Exit::Cluster, &error),
    }
}

/// One line a cluster. What is not known yet is `-`.
fn table(found: &[Found], now: Timestamp) -> String {
    let mut rows =
        vec![["NAME", "KUBERNETES", "NODES", "AGE", "OWNER", "KUBECONFIG"].map(Into::into)];
    rows.extend(found.iter().map(|cluster| match &cluster.running {
        Some(running) => [
            cluster.name.clone(),
            running.kubernetes.clone(),
            running.nodes().len().to_string(),
            age(running.since, now),
            running.owner.to_string(),
            running.kubeconfig.display().to_string(),
        ],
        None => [&cluster.name, "-", "-", "-", "-", "- (coming up or going down)"].map(Into::into),
    }));
    let widths: Vec<usize> = (0..5)
        .map(|i| rows.iter().map(|row: &[String; 6]| row[i].len()).max().unwrap_or(0))
        .collect();
    let mut text = String::new();
    for row in &rows {
        for (cell, width) in row.iter().zip(&widths) {
            text += &format!("{cell:width$}  ");
        }
        text += &format!("{}\n", row[5]);
    }
    text
}

/// `2h 5m`: no finer than people ask.
fn age(since: Timestamp, now: Timestamp) -> String {
    let seconds = now.as_second().saturating_sub(since.as_second()).max(0).unsigned_abs();
    let shown = match seconds {
        0..600 => seconds,
        600..86_400 => seconds / 60 * 60,
        _ => seconds / 3_600 * 3_600,
    };
    humantime::format_duration(Duration::from_secs(shown)).to_string()
}
