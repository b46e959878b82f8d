//! What this machine can hold and measure: processors, memory, disks, descriptors, ports.

use crate::cluster::machine::{Check, Limit, Machine};
use crate::run::OTHER_DESCRIPTORS;

const MIB: u64 = 1 << 20;
/// What components of one Kubernetes version take in the cache.
const CACHE_MIB: u64 = 600;
/// What is little for results: a trial's record has some hundred kilobytes.
const RESULTS_MIB: u64 = 500;
/// The flows of the shipped matrices, with much to spare.
const FEW_FLOWS: u64 = 200;
/// Clocks that take so long to read, or tell so little, that they would show in measurements.
const POOR_CLOCKS: [&str; 4] = ["hpet", "acpi_pm", "jiffies", "refined-jiffies"];

/// All points.
pub fn all(machine: &dyn Machine) -> Vec<Check> {
    let linux = machine.platform().0 == "linux";
    let mut checks = vec![processors(machine)];
    checks.extend(linux.then(|| memory(machine)));
    if let Ok(ready) = machine.kubernetes() {
        checks.push(disk(machine, "disk of the components", &ready.place, CACHE_MIB));
    }
    checks.push(disk(machine, "disk of the results", &machine.results(), RESULTS_MIB));
    checks.push(descriptors(machine));
    if linux {
        checks.extend([ports(machine), processes(machine), clock(machine)]);
    }
    checks
}

fn processors(machine: &dyn Machine) -> Check {
    const NAME: &str = "processors";
    match machine.processors() {
        Some(1) => Check::warn(
            NAME,
            "1: the cluster and the flows take turns on it, and trials may warn of late heartbeats",
            "use a machine with 2 or more",
        ),
        Some(n) => Check::ok(NAME, n.to_string()),
        None => Check::warn(NAME, "can't be told", "look at nproc"),
    }
}

fn memory(machine: &dyn Machine) -> Check {
    let text = machine.read("/proc/meminfo").unwrap_or_default();
    let mib = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.trim().trim_end_matches(" kB").parse::<u64>().ok()? / 1024)
    };
    match (mib("MemTotal:"), mib("MemAvailable:")) {
        (Some(total), Some(available)) => {
            Check::ok("memory", format!("{total} MiB, of which {available} are available"))
        }
        _ => Check::warn("memory", "can't be told", "mount /proc"),
    }
}

fn disk(
    machine: &dyn Machine,
    name: &'static str,
    place: &std::path::Path,
    enough_mib: u64,
) -> Check {
    let free = machine.free(place);
    let place = place.display();
    match free {
        None => Check::warn(name, format!("{place}: what is free can't be told"), "look at df"),
        Some(free) if free / MIB < enough_mib => Check::warn(
            name,
            format!("{place}: {} MiB free, and {enough_mib} may be needed", free / MIB),
            "make room there",
        ),
        Some(free) => Check::ok(name, format!("{place}: {} MiB free", free / MIB)),
    }
}

fn descriptors(machine: &dyn Machine) -> Check {
    const NAME: &str = "descriptors";
    let Some((soft, hard)) = machine.limit(Limit::Descriptors) else {
        return Check::warn(NAME, "their limit can't be told", "look at ulimit -n");
    };
    let flows = hard.saturating_sub(OTHER_DESCRIPTORS);
    let found = format!("{soft} soft, {hard} hard: enough for {flows} flows");
    if flows < FEW_FLOWS {
        let remedy = "raise the hard limit: LimitNOFILE= of a service, or `nofile` in \
                      /etc/security/limits.conf";
        return Check::warn(NAME, found, remedy);
    }
    let raised = if soft < hard { "; drainwatch raises the soft one where it has to" } else { "" };
    Check::ok(NAME, format!("{found}{raised}"))
}

fn ports(machine: &dyn Machine) -> Check {
    const NAME: &str = "source ports";
    let text = machine.read("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let ends: Vec<u64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    match ends[..] {
        [low, high] => {
            let free = (high + 1).saturating_sub(low);
            let found = format!("{low} to {high}: enough for {free} flows of each protocol");
            match free < FEW_FLOWS {
                true => {
                    let remedy = "sudo sysctl -w net.ipv4.ip_local_port_range=\"32768 60999\"";
                    Check::warn(NAME, found, remedy)
                }
                false => Check::ok(NAME, found),
            }
        }
        _ => Check::warn(NAME, "can't be told", "look at net.ipv4.ip_local_port_range"),
    }
}

fn processes(machine: &dyn Machine) -> Check {
    let name = "processes";
    let kernel = machine.read("/proc/sys/kernel/threads-max");
    let kernel = kernel.and_then(|text| text.trim().parse::<u64>().ok());
    let user = machine.limit(Limit::Processes).map(|(soft, _)| soft);
    // Root may exceed its own.
    let least = [kernel, user.filter(|_| !machine.is_root())].into_iter().flatten().min();
    match least {
        None => Check::warn(name, "their limit can't be told", "look at ulimit -u"),
        // Two nodes have about 200 threads.
        Some(least) if least < 1000 => Check::warn(
            name,
            format!("at most {least} threads; a cluster of two nodes has hundreds"),
            "raise `ulimit -u` or kernel.threads-max",
        ),
        Some(least) => Check::ok(name, format!("at most {least} threads")),
    }
}

fn clock(machine: &dyn Machine) -> Check {
    let file = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    match machine.read(file).as_deref().map(str::trim) {
        Some(clock) if POOR_CLOCKS.contains(&clock) => Check::warn(
            "clock",
            format!("{clock}, which is slow to read or coarse"),
            "boot with tsc=reliable where the processor's counter can be trusted",
        ),
        Some(clock) => Check::ok("clock", clock),
        None => Check::warn("clock", "its source can't be told", "mount /sys"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::local::fixture::Fixture;
    use crate::cluster::machine::State;

    #[test]
    fn limits_are_told_as_flows() {
        let descriptors = |soft, hard| {
            descriptors(&Fixture { descriptors: Some((soft, hard)), ..Fixture::full() })
        };
        let check = descriptors(1024, 20_000);
        assert_eq!(check.state, State::Ok);
        assert!(check.found.contains("enough for 19872 flows"), "{check:?}");
        assert_eq!(descriptors(256, 256).state, State::Warn);
        assert!(descriptors(64, 64).found.contains("enough for 0 flows"));

        let range =
            |text| ports(&Fixture::full().with("/proc/sys/net/ipv4/ip_local_port_range", text));
        assert!(range("32768\t60999\n").found.contains("28232 flows"));
        assert_eq!(range("60000\t60009\n").state, State::Warn);
        assert_eq!(range("9 8\n").state, State::Warn);
        assert_eq!(range("").state, State::Warn);
    }

    #[test]
    fn poor_clocks_and_little_room_are_warnings() {
        let file = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
        assert_eq!(clock(&Fixture::full().with(file, "hpet\n")).state, State::Warn);
        let machine = Fixture { free: 100 * MIB, ..Fixture::full() };
        let warnings = all(&machine).into_iter().filter(|check| check.state == State::Warn);
        let names: Vec<_> = warnings.map(|check| check.name).collect();
        assert_eq!(names, ["disk of the components", "disk of the results"]);
    }
}
