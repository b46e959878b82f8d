//! `drainwatch doctor`: what this machine can do and what it lacks, point by point.

mod kind;
mod load;
mod online;

use super::{Exit, say};
use crate::cli::{DoctorArgs, Format};
use crate::cluster::local;
use crate::cluster::machine::{Check, Here, Machine, State};
use crate::display::count;

/// Points that belong together.
struct Section {
    title: &'static str,
    checks: Vec<Check>,
}

/// Runs the command: all points on standard output.
pub fn run(args: &DoctorArgs) -> Exit {
    let machine = Here::of_environment();
    let mut sections = sections(&machine);
    if args.online {
        sections.push(Section { title: ONLINE, checks: online::all() });
    }
    let text = match args.format {
        Format::Text => page(&sections),
        Format::Json => json(&sections),
    };
    say::print(&text).min(exit(&sections))
}

const LOCAL: &str = "local clusters";
const ONLINE: &str = "where components come from";

fn sections(machine: &dyn Machine) -> Vec<Section> {
    vec![
        Section { title: LOCAL, checks: local::checks(machine) },
        Section { title: "kind clusters (later)", checks: kind::all(machine) },
        Section { title: "load", checks: load::all(machine) },
    ]
}

/// What local clusters lack.
fn lacking(sections: &[Section]) -> usize {
    let local = sections.iter().filter(|section| section.title == LOCAL);
    local.flat_map(|section| &section.checks).filter(|c| c.state == State::Lacks).count()
}

fn exit(sections: &[Section]) -> Exit {
    if lacking(sections) == 0 { Exit::Success } else { Exit::Cluster }
}

fn page(sections: &[Section]) -> String {
    let names = sections.iter().flat_map(|section| &section.checks).map(|check| check.name.len());
    let width = names.max().unwrap_or(0);
    let mut text = String::new();
    for Section { title, checks } in sections {
        text += &format!("{title}\n");
        for check in checks {
            let lines: Vec<&str> = check.found.lines().collect();
            let (state, name) = (check.state.name(), check.name);
            text += &format!("  {state:<5}  {name:<width$}  {}\n", lines.first().unwrap_or(&""));
            let more = lines.iter().skip(1).map(|line| line.trim().to_owned());
            let remedy = check.remedy.iter().map(|remedy| format!("→ {remedy}"));
            for line in more.chain(remedy) {
                text += &format!("  {:<5}  {:<width$}  {line}\n", "", "");
            }
        }
        text.push('\n');
    }
    text += &match lacking(sections) {
        0 => "Local clusters can be made here.\n".to_owned(),
        n => format!("Local clusters can't be made here: {} lacking.\n", are(n)),
    };
    text
}

/// `1 point is`, `2 points are`
fn are(n: usize) -> String {
    format!("{} {}", count(n, "point"), if n == 1 { "is" } else { "are" })
}

/// A list of all points, each with its section.
fn json(sections: &[Section]) -> String {
    let points = sections.iter().flat_map(|section| {
        section.checks.iter().map(|check| {
            serde_json::json!({
                "section": section.title,
                "name": check.name,
                "state": check.state,
                "found": check.found,
                "remedy": check.remedy,
            })
        })
    });
    format!("{:#}\n", serde_json::Value::from_iter(points))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::local::fixture::Fixture;

    fn shown(machine: &Fixture) -> String {
        let sections = sections(machine);
        format!(
            "{}(exit code {})\n",
            page(&sections),
            u8::from(exit(&sections) != Exit::Success) * 4
        )
    }

    #[test]
    fn a_machine_that_has_all() {
        insta::assert_snapshot!(shown(&Fixture::full()));
    }

    #[test]
    fn a_bare_machine() {
        insta::assert_snapshot!(shown(&Fixture { root: true, ..Fixture::bare() }));
    }

    #[test]
    fn a_machine_that_has_all_but_for_a_plain_user() {
        insta::assert_snapshot!(shown(&Fixture { root: false, ..Fixture::full() }));
    }

    #[test]
    fn a_machine_without_linux() {
        let files = Default::default();
        let machine = Fixture { platform: ("macos", "aarch64"), files, ..Fixture::bare() };
        insta::assert_snapshot!(shown(&machine));
    }

    #[test]
    fn programs_get_each_point_with_its_section() {
        let points: serde_json::Value =
            serde_json::from_str(&json(&sections(&Fixture::bare()))).unwrap();
        let points = points.as_array().unwrap();
        let root = points.iter().find(|point| point["name"] == "root").unwrap();
        assert_eq!(root["section"], "local clusters");
        assert_eq!(root["state"], "lacks");
        assert_eq!(root["remedy"], "run drainwatch as root, for example with sudo");
        assert!(points.iter().any(|point| point["remedy"].is_null()));
    }
}
