//! `drainwatch man`: the manual pages, made from what the command line says of itself.

use std::path::Path;

use clap::Command;
use clap_mangen::Man;

use super::{Exit, say};
use crate::cli::{self, ManArgs};
use crate::record::write_atomic;

/// Runs the command: every page into a folder, or one to standard output.
pub fn run(args: &ManArgs) -> Exit {
    match &args.output {
        Some(folder) => match write(folder) {
            Ok(text) => say::print(&text),
            Err(error) => say::error(Exit::Files, &error),
        },
        None => {
            let words = [cli::NAME].into_iter().chain(args.command.iter().map(String::as_str));
            let name = words.collect::<Vec<_>>().join("-");
            let page = pages().into_iter().find(|(known, _)| *known == name);
            match page {
                Some((_, page)) => say::print(&page),
                None => say::error(Exit::Usage, &no_page(&args.command.join(" "))),
            }
        }
    }
}

/// Writes each page; gives their paths, one a line.
fn write(folder: &Path) -> Result<String, crate::record::WriteError> {
    let mut told = String::new();
    for (name, page) in pages() {
        let path = folder.join(format!("{name}.1"));
        write_atomic(&path, page.as_bytes())?;
        told += &format!("{}\n", path.display());
    }
    Ok(told)
}

/// Each page by its name: the program's own, then one for each command and each of a command's own.
fn pages() -> Vec<(String, String)> {
    let mut pages = Vec::new();
    add(cli::NAME.to_owned(), cli::shown(), &mut pages);
    pages
}

/// `typed` is the command as people type it: `drainwatch apply`.
fn add(typed: String, command: Command, pages: &mut Vec<(String, String)>) {
    let name = typed.replace(' ', "-");
    let below: Vec<Command> =
        command.get_subcommands().filter(|command| !command.is_hide_set()).cloned().collect();
    let shown = command.display_name(&name).bin_name(&typed).disable_help_subcommand(true);
    let mut page = Vec::new();
    // Writing to memory can't fail.
    let _ = Man::new(shown)
        .source(format!("{} {}", cli::NAME, env!("CARGO_PKG_VERSION")))
        .manual("User Commands")
        .render(&mut page);
    // What stands below the options of help has a heading of its own there.
    let page = String::from_utf8_lossy(&page).replace(".SH EXTRA\nExamples:\n", ".SH EXAMPLES\n");
    pages.push((name, page));
    for command in below {
        add(format!("{typed} {}", command.get_name()), command, pages);
    }
}

fn no_page(command: &str) -> String {
    let names: Vec<String> =
        cli::shown().get_subcommands().map(|command| command.get_name().to_owned()).collect();
    format!("there is no command {command:?}\n  choose one of {}", names.join(", "))
}
