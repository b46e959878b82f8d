//! Points that need no trial: who we are, what the kernel mounts, what there is room for.

use std::path::Path;

use super::super::components::DEFAULT_KUBERNETES;
use super::super::{cgroup, state};
use crate::cluster::machine::{Answer, Check, Machine};

/// Memory that a cluster takes, less what is shared: 700 MiB for the control plane, 300 a node.
const MEMORY_MIB: (u64, u64) = (700, 300);
/// What the logs and keys of a run may take where the clusters' folder is.
const DISK_MIB: u64 = 64;
/// inotify instances of a cluster that is up, seen with v1.34: 5 for the control plane, 9 a node.
const INOTIFY: (u64, u64) = (5, 9);
/// Capabilities by their number: those that a local cluster can't begin without, and those that
/// containers have by default, which root of a host has too.
const NEEDED_CAPABILITIES: [(&str, u32); 2] = [("CAP_NET_ADMIN", 12), ("CAP_SYS_ADMIN", 21)];
const USUAL_CAPABILITIES: [(&str, u32); 12] = [
    ("CAP_CHOWN", 0),
    ("CAP_DAC_OVERRIDE", 1),
    ("CAP_FOWNER", 3),
    ("CAP_KILL", 5),
    ("CAP_SETGID", 6),
    ("CAP_SETUID", 7),
    ("CAP_SETPCAP", 8),
    ("CAP_NET_BIND_SERVICE", 10),
    ("CAP_NET_RAW", 13),
    ("CAP_SYS_CHROOT", 18),
    ("CAP_MKNOD", 27),
    ("CAP_SETFCAP", 31),
];
/// Controllers that kubelet can't do without: those that it checks for itself on version 1, and on
/// version 2 (where it takes what there is) those that pods need.
const CONTROLLERS_V1: [&str; 4] = ["cpu", "cpuacct", "cpuset", "memory"];
const CONTROLLERS_V2: [&str; 3] = ["cpu", "memory", "pids"];
/// The Go that each minor version of Kubernetes asks for in its go.mod.
const GO: [(u32, &str); 5] = [(33, "1.24"), (34, "1.24"), (35, "1.25"), (36, "1.26"), (37, "1.26")];

pub(super) fn system(machine: &dyn Machine) -> Check {
    match machine.platform() {
        ("linux", processor @ ("x86_64" | "aarch64")) => {
            Check::ok("system", format!("Linux on {processor}"))
        }
        (system, processor) => Check::lacks(
            "system",
            format!(
                "local clusters need Linux on x86_64 or aarch64; this is {system} on {processor}"
            ),
            "use a Linux machine, or a virtual one",
        ),
    }
}

pub(super) fn privileges(machine: &dyn Machine) -> Check {
    if !machine.is_root() {
        return Check::lacks(
            "root",
            "local clusters need root, for namespaces, cgroups and mounts",
            "run drainwatch as root, for example with sudo",
        );
    }
    let status = machine.read("/proc/self/status").unwrap_or_default();
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let Some(set) = set.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()) else {
        return Check::warn("root", "root; its capabilities can't be told", "mount /proc");
    };
    let missing = |names: &[(&str, u32)]| -> Vec<String> {
        let without = names.iter().filter(|(_, number)| set & (1 << number) == 0);
        without.map(|(name, _)| (*name).to_owned()).collect()
    };
    let remedy = "run it on the host itself, or in a container with --privileged";
    match (missing(&NEEDED_CAPABILITIES), missing(&USUAL_CAPABILITIES)) {
        (needed, _) if !needed.is_empty() => Check::lacks(
            "root",
            format!("local clusters need {}, which root does not have here", needed.join(", ")),
            remedy,
        ),
        (_, usual) if !usual.is_empty() => {
            Check::warn("root", format!("root, without {}", usual.join(", ")), remedy)
        }
        _ => Check::ok("root", "root, with the capabilities that clusters need"),
    }
}

pub(super) fn kernel(machine: &dyn Machine) -> Check {
    match machine.read("/proc/sys/kernel/osrelease") {
        Some(release) => Check::ok("kernel", release.trim()),
        None => Check::warn("kernel", "its version can't be told", "mount /proc"),
    }
}

pub(super) fn cgroups(machine: &dyn Machine) -> Check {
    let mountinfo = machine.read("/proc/self/mountinfo").unwrap_or_default();
    let Some(version) = cgroup::version_by(&mountinfo) else {
        return Check::lacks(
            "cgroups",
            "cgroups: no cgroups are mounted",
            "mount cgroup version 2 at /sys/fs/cgroup",
        );
    };
    let v2 = version == "v2";
    let kind = if v2 { "cgroup2" } else { "cgroup" };
    let mounts: Vec<Vec<&str>> = mountinfo
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>())
        .filter(|fields| {
            let dash = fields.iter().position(|field| *field == "-");
            dash.is_some_and(|dash| fields.get(dash + 1) == Some(&kind))
        })
        .collect();
    let read_only = |fields: &&Vec<&str>| {
        fields.get(5).is_some_and(|options| options.split(',').any(|option| option == "ro"))
    };
    if let Some(place) = mounts.iter().find(read_only).and_then(|fields| fields.get(4)) {
        return Check::lacks(
            "cgroups",
            format!("cgroups: {place} is mounted read-only"),
            "run it on the host itself, or in a container with --privileged",
        );
    }
    // Version 2 lists what its root can hand on; of version 1 each hierarchy has its own.
    let controllers = if v2 {
        let root = mounts.first().and_then(|fields| fields.get(4)).copied().unwrap_or_default();
        machine.read(&format!("{root}/cgroup.controllers")).unwrap_or_default()
    } else {
        let own = machine.read("/proc/self/cgroup").unwrap_or_default();
        own.lines().filter_map(|line| line.split(':').nth(1)).collect::<Vec<_>>().join(",")
    };
    let has = |name: &str| controllers.split([' ', ',', '\n']).any(|there| there == name);
    let needed = if v2 { &CONTROLLERS_V2[..] } else { &CONTROLLERS_V1[..] };
    let missing: Vec<&str> = needed.iter().copied().filter(|name| !has(name)).collect();
    if missing.is_empty() {
        Check::ok("cgroups", format!("{version}, with {}", needed.join(", ")))
    } else {
        Check::lacks(
            "cgroups",
            format!("cgroups: {version} without the controllers {}", missing.join(", ")),
            "boot with cgroup_enable=memory (and the like), or in a container hand them on to it",
        )
    }
}

pub(super) fn boot_id(machine: &dyn Machine) -> Check {
    match machine.read("/proc/sys/kernel/random/boot_id") {
        Some(_) => Check::ok("boot id", "can be read: one clock for this machine and its pods"),
        None => Check::warn(
            "boot id",
            "can't be read: pods' clocks are then related by round trips, with a bound",
            "mount /proc",
        ),
    }
}

pub(super) fn memory(machine: &dyn Machine, nodes: u32) -> Check {
    let needed = MEMORY_MIB.0 + MEMORY_MIB.1 * u64::from(nodes);
    let text = machine.read("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    match kib.map(|kib| kib / 1024) {
        None => Check::warn("memory", "can't be told", "mount /proc"),
        Some(available) if available < needed => Check::lacks(
            "memory",
            format!(
                "a cluster of {nodes} nodes needs {needed} MiB of memory, {available} are available"
            ),
            "end something, or set cluster.nodes lower",
        ),
        Some(available) => Check::ok(
            "memory",
            format!("{available} MiB available; a cluster of {nodes} nodes takes {needed}"),
        ),
    }
}

pub(super) fn inotify(machine: &dyn Machine, nodes: u32) -> Check {
    let needed = INOTIFY.0 + INOTIFY.1 * u64::from(nodes);
    let limit = machine.read("/proc/sys/fs/inotify/max_user_instances");
    match limit.and_then(|text| text.trim().parse::<u64>().ok()) {
        None => Check::warn("inotify", "its limit can't be told", "mount /proc"),
        Some(limit) if limit < needed => Check::lacks(
            "inotify",
            format!(
                "a cluster of {nodes} nodes needs {needed} inotify instances, root may have {limit}"
            ),
            "raise it: sysctl -w fs.inotify.max_user_instances=1024",
        ),
        Some(limit) => Check::ok(
            "inotify",
            format!("{limit} instances a user; a cluster of {nodes} nodes takes {needed}"),
        ),
    }
}

pub(super) fn state_disk(machine: &dyn Machine) -> Check {
    let place = Path::new(state::ROOT).parent().unwrap_or("/run".as_ref());
    let shown = place.display();
    match machine.free(place).map(|bytes| bytes >> 20) {
        None => Check::warn("room for keys and logs", "can't be told", format!("look at {shown}")),
        Some(free) if free < DISK_MIB => Check::lacks(
            "room for keys and logs",
            format!("{shown} has {free} MiB left, a cluster needs {DISK_MIB}"),
            "make room there",
        ),
        Some(free) => Check::ok("room for keys and logs", format!("{free} MiB in {shown}")),
    }
}

pub(super) fn components(machine: &dyn Machine) -> Check {
    const NAME: &str = "components";
    let setup = "drainwatch setup";
    let ready = match machine.kubernetes() {
        Ok(ready) => ready,
        Err(why) => return Check::lacks(NAME, why, "set XDG_CACHE_HOME to a folder for them"),
    };
    let place = ready.place.display();
    let faults = ready.faults.join("; ");
    let with_faults = |text: String| match faults.is_empty() {
        true => text,
        false => format!("{text}; {faults}"),
    };
    let has_default = ready.versions.iter().any(|version| version == DEFAULT_KUBERNETES);
    if ready.versions.is_empty() {
        let text = with_faults(format!("no Kubernetes version is complete in {place}"));
        return Check::lacks(NAME, text, setup);
    }
    let text = with_faults(format!("Kubernetes {} in {place}", ready.versions.join(", ")));
    if has_default && faults.is_empty() {
        Check::ok(NAME, text)
    } else if has_default {
        Check::warn(NAME, text, format!("{setup} --kubernetes VERSION makes one complete"))
    } else {
        let text = format!("{text}; not {DEFAULT_KUBERNETES}, which is used where none is named");
        Check::warn(NAME, text, setup)
    }
}

pub(super) fn go(machine: &dyn Machine) -> Check {
    const NAME: &str = "go";
    let only = "needed only where setup can't download release binaries";
    let get = "https://go.dev/dl";
    let version = match machine.ask("go", &["env", "GOVERSION"]) {
        Answer::Absent => return Check::warn(NAME, format!("not here; {only}"), get),
        Answer::Failed(why) => {
            return Check::warn(NAME, format!("does not run: {why}; {only}"), get);
        }
        Answer::Said(version) => version,
    };
    let numbers = |text: &str| -> Option<(u32, u32)> {
        let mut parts = text.trim_start_matches("go").split(|c: char| !c.is_ascii_digit());
        Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    };
    let enough = |needed: &str| numbers(&version) >= numbers(needed);
    let minors: Vec<String> = GO
        .iter()
        .filter(|(_, needed)| enough(needed))
        .map(|(minor, _)| format!("1.{minor}"))
        .collect();
    match &minors[..] {
        [] => Check::warn(NAME, format!("{version}, too old to build Kubernetes; {only}"), get),
        [first, .., last] => {
            Check::ok(NAME, format!("{version}, builds Kubernetes {first} to {last}"))
        }
        [one] => Check::ok(NAME, format!("{version}, builds Kubernetes {one}")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::Fixture;
    use super::*;
    use crate::cluster::local::components::Ready;
    use crate::cluster::machine::State;

    fn told(check: &Check) -> (State, &str) {
        (check.state, &check.found)
    }

    /// A machine with version 1 of these hierarchies, and what else is mounted.
    fn v1(controllers: &str, more: &str) -> Fixture {
        let mounts: String = controllers
            .split(' ')
            .map(|name| {
                format!(
                    "31 30 0:25 / /sys/fs/cgroup/{name} rw,relatime - cgroup cgroup rw,{name}\n"
                )
            })
            .collect();
        let own: String = controllers.split(' ').map(|name| format!("4:{name}:/\n")).collect();
        Fixture::full()
            .with("/proc/self/mountinfo", &(mounts + more))
            .with("/proc/self/cgroup", &(own + "1:name=systemd:/\n0::/\n"))
    }

    #[test]
    fn each_version_of_cgroups_is_told_with_its_controllers() {
        let ok = |version: &str| format!("{version}, with cpu, cpuacct, cpuset, memory");
        let check = cgroups(&Fixture::full());
        assert_eq!(told(&check), (State::Ok, "v2, with cpu, memory, pids"));
        let check = cgroups(&v1("cpu,cpuacct cpuset memory pids", ""));
        assert_eq!(told(&check), (State::Ok, ok("v1").as_str()));
        let unified = "33 30 0:27 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";
        let check = cgroups(&v1("cpu,cpuacct cpuset memory pids", unified));
        assert_eq!(told(&check), (State::Ok, ok("v1 (hybrid)").as_str()));
    }

    #[test]
    fn cgroups_that_do_not_suffice_are_lacking() {
        let none =
            Fixture::full().with("/proc/self/mountinfo", "30 23 0:26 / / rw - ext4 /dev/a rw\n");
        assert_eq!(told(&cgroups(&none)), (State::Lacks, "cgroups: no cgroups are mounted"));
        let check = cgroups(&Fixture::full().unified("cpuset cpu io pids\n"));
        let without = "cgroups: v2 without the controllers memory";
        assert_eq!(told(&check), (State::Lacks, without));
        let check = cgroups(&v1("cpu,cpuacct pids", ""));
        let without = "cgroups: v1 without the controllers cpuset, memory";
        assert_eq!(told(&check), (State::Lacks, without));
        let read_only = "30 23 0:26 / /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw\n";
        let check = cgroups(&Fixture::full().with("/proc/self/mountinfo", read_only));
        assert_eq!(told(&check), (State::Lacks, "cgroups: /sys/fs/cgroup is mounted read-only"));
    }

    #[test]
    fn root_of_a_container_is_not_root_of_a_host() {
        let with = |set: &str| {
            let status = format!("Name:\tx\nCapInh:\t0000000000000000\nCapEff:\t{set}\n");
            privileges(&Fixture::full().with("/proc/self/status", &status))
        };
        let check = with("00000000a80425fb"); // docker run
        let lacking =
            "local clusters need CAP_NET_ADMIN, CAP_SYS_ADMIN, which root does not have here";
        assert_eq!(told(&check), (State::Lacks, lacking));
        assert_eq!(with("000001fffeffffff").state, State::Ok); // all but CAP_SYS_RESOURCE
        let check = with("000001fff7ffffff");
        assert_eq!(told(&check), (State::Warn, "root, without CAP_MKNOD"));
        let check = privileges(&Fixture { root: false, ..Fixture::full() });
        assert_eq!(check.state, State::Lacks);
    }

    #[test]
    fn room_is_measured_by_the_number_of_nodes() {
        let machine = Fixture::full().with("/proc/meminfo", "MemAvailable:    1500000 kB\n");
        assert_eq!(memory(&machine, 2).state, State::Ok);
        let check = memory(&machine, 3);
        let found = "a cluster of 3 nodes needs 1600 MiB of memory, 1464 are available";
        assert_eq!(told(&check), (State::Lacks, found));
        assert_eq!(inotify(&Fixture::full(), 13).state, State::Ok);
        assert_eq!(inotify(&Fixture::full(), 14).state, State::Lacks);
        let full_disk = Fixture { free: 63 << 20, ..Fixture::full() };
        assert_eq!(state_disk(&full_disk).state, State::Lacks);
    }

    #[test]
    fn one_complete_version_is_enough_and_the_usual_one_is_better() {
        let with = |versions: &[&str], faults: &[&str]| {
            let text = |all: &[&str]| all.iter().map(|t| (*t).to_owned()).collect();
            let (versions, faults) = (text(versions), text(faults));
            let place = "/c".into();
            components(&Fixture {
                kubernetes: Ok(Ready { place, versions, faults }),
                ..Fixture::full()
            })
        };
        assert_eq!(with(&["1.34.0"], &[]).state, State::Ok);
        let check = with(&["1.34.0"], &["1.37.2 lacks etcd v3.6.4"]);
        let found = "Kubernetes 1.34.0 in /c; 1.37.2 lacks etcd v3.6.4";
        assert_eq!(told(&check), (State::Warn, found));
        assert_eq!(with(&["1.37.2"], &[]).state, State::Warn);
        let check = with(&[], &["1.34.0 lacks etcd v3.6.4"]);
        let found = "no Kubernetes version is complete in /c; 1.34.0 lacks etcd v3.6.4";
        assert_eq!(told(&check), (State::Lacks, found));
    }

    #[test]
    fn a_go_is_told_with_what_it_builds() {
        let with = |version: &str| {
            go(&Fixture::full().answering("go env GOVERSION", Answer::Said(version.into())))
        };
        assert_eq!(with("go1.24.1").found, "go1.24.1, builds Kubernetes 1.33 to 1.34");
        assert_eq!(with("go1.26rc1").found, "go1.26rc1, builds Kubernetes 1.33 to 1.37");
        assert_eq!(with("go1.9.7").state, State::Warn);
        assert_eq!(with("devel").state, State::Warn);
    }
}
