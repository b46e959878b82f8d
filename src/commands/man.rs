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
            let name = args.command.as_ref().map_or(cli::NAME.to_owned(), |command| of(command));
            let page = pages().into_iter().find(|(known, _)| *known == name);
            match page {
                Some((_, page)) => say::print(&page),
                None => say::error(Exit::Usage, &no_page(args.command.as_deref())),
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

/// `drainwatch-apply`: the name of a command's page.
fn of(command: &str) -> String {
    format!("{}-{command}", cli::NAME)
}

/// Each page by its name: the program's own, then one for each command.
fn pages() -> Vec<(String, String)> {
    let root = cli::shown();
    let commands: Vec<Command> = root.get_subcommands().cloned().collect();
    let mut pages = vec![page(cli::NAME.to_owned(), root)];
    for command in commands {
        let name = of(command.get_name());
        // As it is typed, in the synopsis.
        let typed = format!("{} {}", cli::NAME, command.get_name());
        pages.push(page(name, command.bin_name(typed)));
    }
    pages
}

fn page(name: String, command: Command) -> (String, String) {
    let command = command.display_name(&name).disable_help_subcommand(true);
    let mut page = Vec::new();
    // Writing to memory can't fail.
    let _ = Man::new(command)
        .source(format!("{} {}", cli::NAME, env!("CARGO_PKG_VERSION")))
        .manual("User Commands")
        .render(&mut page);
    // What stands below the options of help has a heading of its own there.
    let page = String::from_utf8_lossy(&page).replace(".SH EXTRA\nExamples:\n", ".SH EXAMPLES\n");
    (name, page)
}

fn no_page(command: Option<&str>) -> String {
    let names: Vec<String> =
        cli::shown().get_subcommands().map(|command| command.get_name().to_owned()).collect();
    format!("there is no command {:?}\n  choose one of {}", command.unwrap_or(""), names.join(", "))
}
