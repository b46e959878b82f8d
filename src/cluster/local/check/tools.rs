//! The tools of the distribution, with their versions and how to get them here.

use super::super::components::TOOLS;
use crate::cluster::machine::{Answer, Check, Machine};

/// The points: a name, how its version is asked for, and the tools that belong to it.
const POINTS: [(&str, Option<&str>, &[&str]); 6] = [
    ("runc", Some("--version"), &["runc"]),
    ("iptables", Some("--version"), &["iptables", "ip6tables", "iptables-restore"]),
    ("nft", Some("--version"), &["nft"]),
    ("conntrack", Some("--version"), &["conntrack"]),
    ("ip", Some("-V"), &["ip"]),
    ("util-linux", None, &["nsenter", "unshare", "mount"]),
];

pub(super) fn all(machine: &dyn Machine) -> Vec<Check> {
    POINTS.iter().map(|(name, ask, tools)| point(machine, name, *ask, tools)).collect()
}

fn point(machine: &dyn Machine, name: &'static str, ask: Option<&str>, tools: &[&str]) -> Check {
    let missing: Vec<&str> = tools.iter().copied().filter(|tool| !machine.has(tool)).collect();
    if !missing.is_empty() {
        let packages = TOOLS.iter().filter(|(tool, _)| missing.contains(tool)).map(|(_, p)| *p);
        let found = format!("not here: {}", missing.join(", "));
        return Check::lacks(name, found, install(machine, &packages.collect::<Vec<_>>()));
    }
    let Some(argument) = ask else {
        return Check::ok(name, tools.join(", "));
    };
    let version = match machine.ask(name, &[argument]) {
        Answer::Said(text) => text.lines().next().unwrap_or_default().trim().to_owned(),
        Answer::Failed(why) => {
            let remedy = install(machine, &[package(name)]);
            return Check::lacks(name, format!("does not run: {why}"), remedy);
        }
        Answer::Absent => String::new(), // it went away meanwhile
    };
    if name == "iptables" && version.contains("legacy") {
        let remedy = match distribution(machine) {
            Distribution::Debian => {
                "sudo update-alternatives --set iptables /usr/sbin/iptables-nft"
            }
            _ => "use the iptables that is built on nf_tables (iptables-nft)",
        };
        let found = format!("{version}: its rules can't be watched as nf_tables' can");
        return Check::warn(name, found, remedy);
    }
    Check::ok(name, version)
}

fn package(tool: &str) -> &'static str {
    TOOLS.iter().find(|(name, _)| *name == tool).map_or("util-linux", |(_, package)| package)
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Distribution {
    Debian,
    Fedora,
    Suse,
    Arch,
    Alpine,
    Unknown,
}

pub(super) fn distribution(machine: &dyn Machine) -> Distribution {
    let text = machine.read("/etc/os-release").unwrap_or_default();
    let names = text
        .lines()
        .filter_map(|line| line.strip_prefix("ID=").or_else(|| line.strip_prefix("ID_LIKE=")));
    let names: Vec<&str> = names.flat_map(|value| value.trim_matches('"').split(' ')).collect();
    let is = |any: &[&str]| any.iter().any(|name| names.contains(name));
    match () {
        () if is(&["debian", "ubuntu"]) => Distribution::Debian,
        () if is(&["fedora", "rhel", "centos"]) => Distribution::Fedora,
        () if is(&["suse", "opensuse", "sles"]) => Distribution::Suse,
        () if is(&["arch"]) => Distribution::Arch,
        () if is(&["alpine"]) => Distribution::Alpine,
        () => Distribution::Unknown,
    }
}

/// A command that installs packages, which are named as Debian does.
fn install(machine: &dyn Machine, packages: &[&str]) -> String {
    let distribution = distribution(machine);
    let mut names: Vec<&str> = packages
        .iter()
        .map(|package| match (distribution, *package) {
            (Distribution::Debian | Distribution::Unknown, package) => package,
            (_, "conntrack") => "conntrack-tools",
            (Distribution::Fedora, "iproute2") => "iproute",
            (Distribution::Fedora, "iptables") => "iptables-nft",
            (_, "mount") => "util-linux",
            (_, package) => package,
        })
        .collect();
    names.sort_unstable();
    names.dedup();
    let names = names.join(" ");
    match distribution {
        Distribution::Debian => {
            format!("sudo apt-get install -y --no-install-recommends {names}")
        }
        Distribution::Fedora => format!("sudo dnf install -y {names}"),
        Distribution::Suse => format!("sudo zypper install -y {names}"),
        Distribution::Arch => format!("sudo pacman -S --needed {names}"),
        Distribution::Alpine => format!("apk add {names}"),
        Distribution::Unknown => {
            format!("install the packages {names}, or what they are called here")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::Fixture;
    use super::*;
    use crate::cluster::machine::State;

    #[test]
    fn what_is_missing_comes_with_the_command_of_this_distribution() {
        for (release, command) in [
            (
                "ID=ubuntu\nID_LIKE=debian\n",
                "sudo apt-get install -y --no-install-recommends conntrack",
            ),
            ("ID=debian\n", "sudo apt-get install -y --no-install-recommends conntrack"),
            (
                "ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n",
                "sudo dnf install -y conntrack-tools",
            ),
            (
                "ID=\"opensuse-leap\"\nID_LIKE=\"suse opensuse\"\n",
                "sudo zypper install -y conntrack-tools",
            ),
            ("ID=arch\n", "sudo pacman -S --needed conntrack-tools"),
            ("ID=alpine\n", "apk add conntrack-tools"),
            ("ID=plan9\n", "install the packages conntrack, or what they are called here"),
            ("", "install the packages conntrack, or what they are called here"),
        ] {
            let machine =
                Fixture::full().with("/etc/os-release", release).without_tool("conntrack");
            let lacking: Vec<Check> =
                all(&machine).into_iter().filter(|check| check.state != State::Ok).collect();
            let [check] = &lacking[..] else { panic!("{lacking:?}") };
            assert_eq!((check.name, check.state), ("conntrack", State::Lacks));
            assert_eq!(check.remedy.as_deref(), Some(command), "{release}");
        }
    }

    #[test]
    fn tools_that_belong_together_are_one_point() {
        let machine = Fixture::full().without_tool("ip6tables").without_tool("mount");
        let lacking: Vec<String> = all(&machine)
            .iter()
            .filter(|check| check.state == State::Lacks)
            .map(|check| format!("{}: {}", check.name, check.found))
            .collect();
        assert_eq!(lacking, ["iptables: not here: ip6tables", "util-linux: not here: mount"]);
    }

    #[test]
    fn the_older_iptables_and_a_tool_that_does_not_run_are_told() {
        let machine = Fixture::full()
            .answering("iptables --version", Answer::Said("iptables v1.8.9 (legacy)".into()))
            .answering("runc --version", Answer::Failed("exit status: 127".into()));
        let states: Vec<(&str, State)> = all(&machine)
            .iter()
            .filter(|check| check.state != State::Ok)
            .map(|check| (check.name, check.state))
            .collect();
        assert_eq!(states, [("runc", State::Lacks), ("iptables", State::Warn)]);
    }
}
