//! What this machine can hold, known before anything is started: descriptors, source ports,
//! connection tracking and memory against a scenario's flows.
//!
//! Takes figures read from this machine and scenarios; gives what is too much, each with its
//! figures and a remedy. Starts nothing, and changes no more than this process's own limit.

use std::fmt;
use std::fs;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::config::Scenario;
use crate::plan::{Arm, Plan};

/// Descriptors beyond the flows' own: watches, logs, files, the runtime's.
pub const OTHER_DESCRIPTORS: u64 = 128;
/// Connection tracking keeps a flow's old entry beside its new one when the flow is moved.
const ENTRIES_A_FLOW: u64 = 2;
/// What a flow takes, rounded up: 8 KiB of the kernel's for its sockets on both sides and its entries
/// in connection tracking (seen with TCP on 6.18), and 8 KiB of the runner's.
const KIB_A_FLOW: u64 = 20;

/// How long a dial's source port and its entry in connection tracking are taken, seconds: UDP's default
/// there, of what has been answered once; TCP's is less (10 s after a RST).
const SECONDS_A_DIAL: u64 = 30;

/// What this machine has; `None` where it does not tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// Descriptors that this process may open, at the most.
    pub descriptors: Option<u64>,
    /// The first and the last source port of connections.
    pub ports: Option<(u64, u64)>,
    /// Entries that connection tracking may hold, in each net namespace.
    pub conntrack: Option<u64>,
    /// Memory that is available, MiB.
    pub memory_mib: Option<u64>,
}

/// Something that this machine has too little of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Short {
    /// What, with figures.
    pub what: String,
    /// What the user can do about it.
    pub remedy: String,
}

/// The flows of some arms are more than this machine can hold; nothing was started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct LimitsError(Vec<(Short, Vec<String>)>);

impl fmt::Display for LimitsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "this machine can't hold the flows")?;
        for (Short { what, remedy }, arms) in &self.0 {
            let more = match arms.len().saturating_sub(3) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let arms = arms[..arms.len().min(3)].join(", ");
            write!(f, "\n  {what} (arm {arms}{more})\n    {remedy}")?;
        }
        Ok(())
    }
}

/// Checks all arms of a plan.
///
/// # Errors
/// What is too much for this machine, and in which arms.
pub fn check_arms<'a>(
    machine: &Machine,
    arms: impl IntoIterator<Item = &'a Arm>,
) -> Result<(), LimitsError> {
    let mut short: Vec<(Short, Vec<String>)> = Vec::new();
    for arm in arms {
        for what in machine.short_of(&arm.config) {
            match short.iter_mut().find(|(other, _)| *other == what) {
                Some((_, arms)) => arms.push(arm.name.clone()),
                None => short.push((what, vec![arm.name.clone()])),
            }
        }
    }
    if short.is_empty() { Ok(()) } else { Err(LimitsError(short)) }
}

/// Raises this process's limit on descriptors for a plan's flows, as far as it may. Clusters that
/// are started after it inherit it, and the pods in them.
pub fn allow_descriptors(plan: &Plan) {
    let needed = plan.arms.iter().map(|arm| descriptors(&arm.config)).max().unwrap_or(0);
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return };
    if soft >= needed {
        return;
    }
    // Beyond the hard limit only who may is let; the check says what is missing otherwise.
    if needed > hard && setrlimit(Resource::RLIMIT_NOFILE, needed, needed).is_ok() {
        return;
    }
    let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
}

impl Machine {
    /// Reads this machine's figures.
    pub fn read() -> Self {
        Self {
            descriptors: getrlimit(Resource::RLIMIT_NOFILE).ok().map(|(_, hard)| hard),
            ports: numbers("/proc/sys/net/ipv4/ip_local_port_range").and_then(|ends| {
                match ends[..] {
                    [low, high] if low <= high => Some((low, high)),
                    _ => None,
                }
            }),
            conntrack: numbers("/proc/sys/net/netfilter/nf_conntrack_max")
                .and_then(|max| max.first().copied()),
            memory_mib: memory_mib(),
        }
    }

    /// What this machine has too little of for a scenario's flows.
    pub fn short_of(&self, config: &Scenario) -> Vec<Short> {
        let mut short = Vec::new();
        let mut more = |what, remedy| short.push(Short { what, remedy });
        let total = total(config);
        let needed = descriptors(config);
        if let Some(allowed) = self.descriptors.filter(|allowed| needed > *allowed) {
            let hold = allowed.saturating_sub(OTHER_DESCRIPTORS);
            more(
                format!(
                    "{total} flows need {needed} descriptors, this process may have {allowed} \
                     (ulimit -Hn)"
                ),
                format!("raise it with `ulimit -n {needed}`, or hold at most {hold} flows in all"),
            );
        }
        for (name, key, flows) in [
            ("TCP", "flows.tcp", u64::from(config.flows.tcp)),
            ("UDP", "flows.udp", u64::from(config.flows.udp)),
        ] {
            // All of them go to one address and port, so that each has a source port of its own; fixed
            // ones need not be of the kernel's.
            let chosen = config.flows.source_port.is_none();
            if let Some((low, high)) =
                self.ports.filter(|(low, high)| chosen && flows > high - low + 1)
            {
                let ports = high - low + 1;
                more(
                    format!(
                        "{flows} {name} flows need a source port each, {low} to {high} are {ports} \
                         (net.ipv4.ip_local_port_range)"
                    ),
                    match flows <= 64_000 {
                        true => format!(
                            "`sysctl -w net.ipv4.ip_local_port_range=\"1500 65500\"`, or set {key} \
                             to at most {ports}"
                        ),
                        false => format!("set {key} to at most {ports}"),
                    },
                );
            }
        }
        for (name, key, dials) in
            [("TCP", "dials.tcp", config.dials.tcp), ("UDP", "dials.udp", config.dials.udp)]
        {
            let needed = u64::from(dials) * SECONDS_A_DIAL;
            if let Some((low, high)) = self.ports.filter(|(low, high)| needed > high - low + 1) {
                let (ports, most) = (high - low + 1, (high - low + 1) / SECONDS_A_DIAL);
                more(
                    format!(
                        "{dials} new {name} connections a second need {needed} source ports, each for \
                         {SECONDS_A_DIAL} s; {low} to {high} are {ports} \
                         (net.ipv4.ip_local_port_range)"
                    ),
                    format!("set {key} to at most {most}"),
                );
            }
        }
        let entries = entries(config);
        if let Some(max) = self.conntrack.filter(|max| entries > *max) {
            more(
                format!(
                    "{total} flows may need {entries} entries in each node's connection tracking, it \
                     holds {max} (net.netfilter.nf_conntrack_max)"
                ),
                format!("`sysctl -w net.netfilter.nf_conntrack_max={}`", entries * 2),
            );
        }
        let mib = total * KIB_A_FLOW / 1024;
        if let Some(available) = self.memory_mib.filter(|available| mib > *available) {
            more(
                format!("{total} flows take about {mib} MiB of memory, {available} are available"),
                "use fewer flows, or end something".to_owned(),
            );
        }
        short
    }

    /// The figures that a scenario's flows were held against, for the record.
    pub fn figures(&self, config: &Scenario) -> String {
        let of = |figure: Option<u64>| figure.map_or("unknown".to_owned(), |n| n.to_string());
        let flows = &config.flows;
        let dials = match config.dials.any() {
            true => format!(
                "{} TCP and {} UDP new connections a second; ",
                config.dials.tcp, config.dials.udp
            ),
            false => String::new(),
        };
        format!(
            "{dials}{} TCP and {} UDP flows, {:.0} heartbeats a second; {} descriptors of {}, a source port \
             a flow and protocol of {}, at most {} entries of connection tracking of {}, {} MiB of \
             memory available",
            flows.tcp,
            flows.udp,
            config.heartbeats_a_second(),
            descriptors(config),
            of(self.descriptors),
            of(self.ports.map(|(low, high)| high - low + 1)),
            entries(config),
            of(self.conntrack),
            of(self.memory_mib),
        )
    }

    /// Whether a node whose connection tracking holds `entries` has room for the flows.
    pub fn has_room_beside(&self, entries: u64, config: &Scenario) -> bool {
        self.conntrack.is_none_or(|max| entries + self::entries(config) <= max)
    }
}

fn total(config: &Scenario) -> u64 {
    u64::from(config.flows.tcp) + u64::from(config.flows.udp)
}

/// Entries that flows and dials may have in a node's connection tracking at once.
fn entries(config: &Scenario) -> u64 {
    let dials = u64::from(config.dials.tcp) + u64::from(config.dials.udp);
    total(config) * ENTRIES_A_FLOW + dials * SECONDS_A_DIAL
}

fn descriptors(config: &Scenario) -> u64 {
    let dials = f64::from(config.dials.tcp) + f64::from(config.dials.udp);
    let under_way = (dials * config.dials.timeout.as_secs_f64()).ceil() as u64;
    total(config) + under_way + OTHER_DESCRIPTORS
}

fn numbers(file: &str) -> Option<Vec<u64>> {
    let text = fs::read_to_string(file).ok()?;
    text.split_ascii_whitespace().map(|word| word.parse().ok()).collect()
}

fn memory_mib() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().trim_end_matches(" kB").parse::<u64>().ok()? / 1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Dials, Sigterm, Trigger};
    use crate::stories;

    const MACHINE: Machine = Machine {
        descriptors: Some(20_000),
        ports: Some((32_768, 60_999)),
        conntrack: Some(262_144),
        memory_mib: Some(8_000),
    };

    fn flows(tcp: u32, udp: u32) -> Scenario {
        let mut config = stories::scenario(Sigterm::Exit, Trigger::Delete);
        (config.flows.tcp, config.flows.udp) = (tcp, udp);
        config
    }

    #[test]
    fn what_fits_is_not_short_of_anything_and_one_more_is() {
        let short = |tcp, udp| MACHINE.short_of(&flows(tcp, udp)).len();
        assert_eq!(short(5_000, 5_000), 0);
        assert_eq!(short(19_872, 0), 0);
        assert_eq!(short(19_873, 0), 1);
        let wide = Machine { descriptors: Some(100_000), ..MACHINE };
        assert_eq!(wide.short_of(&flows(28_232, 28_232)).len(), 0);
        assert_eq!(wide.short_of(&flows(28_233, 28_232)).len(), 1);
    }

    #[test]
    fn dials_need_ports_descriptors_and_entries() {
        let with = |tcp, udp, timeout| {
            let mut config = flows(10, 10);
            config.dials = Dials { tcp, udp, timeout: std::time::Duration::from_secs(timeout) };
            config
        };
        assert_eq!(MACHINE.short_of(&with(900, 900, 10)), []);
        let few = Machine { ports: Some((40_000, 40_999)), ..MACHINE };
        let short = few.short_of(&with(34, 33, 1));
        assert_eq!(short.len(), 1);
        assert!(short[0].what.contains("34 new TCP connections a second need 1020 source ports"));
        assert_eq!(MACHINE.short_of(&with(900, 900, 60)).len(), 1, "descriptors");
        let small = Machine { conntrack: Some(54_000), ..MACHINE };
        assert_eq!(small.short_of(&with(900, 900, 1)).len(), 1, "entries");
        assert!(MACHINE.figures(&with(50, 0, 1)).starts_with("50 TCP and 0 UDP new connections"));
    }

    #[test]
    fn what_this_machine_does_not_tell_refuses_nothing() {
        assert_eq!(Machine::default().short_of(&flows(u32::MAX, u32::MAX)), []);
        assert!(Machine::default().has_room_beside(u64::MAX / 2, &flows(1, 1)));
        assert!(Machine::default().figures(&flows(1, 1)).contains("of unknown"));
    }

    #[test]
    fn a_nodes_connection_tracking_counts_what_is_in_it() {
        assert!(MACHINE.has_room_beside(242_144, &flows(5_000, 5_000)));
        assert!(!MACHINE.has_room_beside(242_145, &flows(5_000, 5_000)));
    }

    #[test]
    fn each_shortage_is_told_with_figures_and_remedy() {
        let small = Machine { conntrack: Some(65_536), memory_mib: Some(900), ..MACHINE };
        let short = small.short_of(&flows(30_000, 70_000));
        let error = LimitsError(short.into_iter().map(|s| (s, vec!["load".into()])).collect());
        insta::assert_snapshot!(error);
    }

    #[test]
    fn the_figures_say_what_was_held_against_what() {
        insta::assert_snapshot!(MACHINE.figures(&flows(5_000, 5_000)));
    }

    #[test]
    fn this_machine_tells_its_figures() {
        let machine = Machine::read();
        assert!(machine.descriptors.is_some() && machine.ports.is_some());
        assert!(machine.memory_mib.is_some());
    }
}
