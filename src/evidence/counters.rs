//! The kernel's counters of what it dropped and withheld: at the pod's sockets, on the nodes, on this
//! machine.
//!
//! Takes places and a process in each; gives [`Event::Counters`]. Files below `/proc/PID/net` tell
//! of that process's net namespace, without entering it. A file is open only while it is read: an
//! open one would keep the namespace from ending, which is part of what is measured.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::clock::Stamp;
use crate::observation::{Event, Observation, Sink, Source};

/// Counters by name, as `net/snmp` and `net/netstat` name them: `Udp.RcvbufErrors`.
pub type Values = BTreeMap<String, u64>;

/// A place that moves all the time is told of once in this time; the difference is whole then, too.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// How many entries a connection tracking table holds: a level, not a count of what happened.
pub const CONNTRACK_ENTRIES: &str = "conntrack.entries";

/// Of a pod's own namespace, what its sockets dropped of what had arrived or was to be sent.
/// (IPv4's counters are those of IPv4 datagrams on a socket of both families.)
const POD: Names = &[
    ("snmp", "Udp", &["InErrors", "RcvbufErrors", "SndbufErrors", "MemErrors"]),
    REFUSALS,
    ("netstat", "TcpExt", &["ListenOverflows", "ListenDrops", "TCPBacklogDrop", "TCPRcvQDrop"]),
];

/// What a namespace refused, and what its limiter of ICMP messages withheld: for one receiver, and in
/// all. (OutDestUnreachs counts what was sent.)
const REFUSALS: (&str, &str, &[&str]) =
    ("snmp", "Icmp", &["OutDestUnreachs", "OutRateLimitHost", "OutRateLimitGlobal"]);

/// Of the runner's namespace, which it shares with whatever else runs there.
const RUNNER: Names = &[("snmp", "Udp", &["RcvbufErrors", "SndbufErrors", "MemErrors"])];

/// File, group and names.
type Names = &'static [(&'static str, &'static str, &'static [&'static str])];

/// Where counters are read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// This machine: all namespaces together.
    Machine,
    /// The runner's net namespace.
    Runner,
    /// A node's, by its name.
    Node(String),
    /// A pod's, by its UID.
    Pod(String),
}

impl Place {
    /// As observations name it: `pod:UID`.
    pub fn name(&self) -> String {
        match self {
            Self::Machine => "machine".to_owned(),
            Self::Runner => "runner".to_owned(),
            Self::Node(name) => format!("node:{name}"),
            Self::Pod(uid) => format!("pod:{uid}"),
        }
    }
}

/// All places whose counters are read.
#[derive(Debug)]
pub struct Counters {
    sink: Sink,
    places: BTreeMap<Place, Track>,
}

/// One place.
#[derive(Debug)]
struct Track {
    /// `/proc/PID`
    process: PathBuf,
    /// Its net namespace: a process id that is taken again is another's.
    namespace: PathBuf,
    first: Values,
    last: (Stamp, Values),
    /// What was told last.
    told: Option<(Stamp, Values)>,
    /// Its process has gone, and nothing more can be read.
    gone: bool,
}

impl Counters {
    /// Of this machine and the runner, to begin with.
    pub fn new(sink: Sink) -> Self {
        let mut counters = Self { sink, places: BTreeMap::new() };
        for place in [Place::Machine, Place::Runner] {
            // Where there is no /proc there is nothing to tell, and `watches` says so.
            let _ = counters.watch(place, Path::new("/proc/self"));
        }
        counters
    }

    /// Reads a place's counters from now on, by one of its processes (`/proc/PID`), and tells them.
    ///
    /// # Errors
    /// They can't be read.
    pub fn watch(&mut self, place: Place, process: &Path) -> io::Result<()> {
        if self.places.contains_key(&place) {
            return Ok(());
        }
        let namespace = namespace(process)?;
        let first = read(&place, process)?;
        let last = (Stamp::now(), first.clone());
        let process = process.to_owned();
        let mut track = Track { process, namespace, first, last, told: None, gone: false };
        // What is told later is a difference to this.
        track.tell(&place, &self.sink);
        self.places.insert(place, track);
        Ok(())
    }

    /// Whether this place's counters are read, or were.
    pub fn watches(&self, place: &Place) -> bool {
        self.places.contains_key(place)
    }

    /// Reads all, and tells all.
    pub fn mark(&mut self) {
        for (place, track) in &mut self.places {
            track.read(place);
            track.tell(place, &self.sink);
        }
    }

    /// Reads the nodes' and the pods' counters, and tells those that moved.
    pub fn look(&mut self) {
        for (place, track) in &mut self.places {
            if !matches!(place, Place::Node(_) | Place::Pod(_)) {
                continue;
            }
            let before = track.last.clone();
            track.read(place);
            let Some((told_at, told)) = &track.told else { continue };
            if !moved(told, &track.last.1) || told_at.until(&track.last.0) < TELL_EVERY {
                continue;
            }
            // The last reading at which it had not moved yet bounds when it did.
            if !moved(told, &before.1) && before.0 != *told_at {
                tell(place, &before, &self.sink);
            }
            track.tell(place, &self.sink);
        }
    }

    /// Reads and tells all for the last time: of a place that has gone, what was read last.
    pub fn finish(&mut self) {
        self.mark();
    }

    /// What a pod's sockets have dropped since it is watched; `None` where that is not known.
    pub fn dropped_in_pod(&self, uid: &str) -> Option<u64> {
        let track = self.places.get(&Place::Pod(uid.to_owned()))?;
        Some(own_drops(&track.first, &track.last.1))
    }

    /// The latest value of a counter.
    pub fn value(&self, place: &Place, name: &str) -> Option<u64> {
        self.places.get(place)?.last.1.get(name).copied()
    }
}

impl Track {
    fn read(&mut self, place: &Place) {
        if self.gone {
            return;
        }
        let values = read(place, &self.process);
        // In this order: what was read is then of a process that was still there.
        match (values, namespace(&self.process)) {
            (Ok(values), Ok(namespace)) if namespace == self.namespace => {
                self.last = (Stamp::now(), values);
            }
            _ => self.gone = true,
        }
    }

    fn tell(&mut self, place: &Place, sink: &Sink) {
        if self.told.as_ref() != Some(&self.last) {
            tell(place, &self.last, sink);
            self.told = Some(self.last.clone());
        }
    }
}

fn tell(place: &Place, (at, values): &(Stamp, Values), sink: &Sink) {
    let event = Event::Counters { of: place.name(), values: values.clone() };
    // That nobody listens any more is no matter of the counters.
    let _ = sink.send(Observation::exact(at.clone(), Source::Counters, event));
}

/// What the sockets of one namespace dropped between two readings, of datagrams that had reached
/// them or that they were to send.
pub fn own_drops(earlier: &Values, later: &Values) -> u64 {
    ["Udp.RcvbufErrors", "Udp.SndbufErrors", "Udp.MemErrors"]
        .iter()
        .map(|name| {
            let of = |values: &Values| values.get(*name).copied().unwrap_or(0);
            of(later).saturating_sub(of(earlier))
        })
        .fold(0, u64::saturating_add)
}

/// Whether something was counted between two readings. (A table's entries come and go all the time.)
fn moved(earlier: &Values, later: &Values) -> bool {
    later.iter().any(|(name, value)| name != CONNTRACK_ENTRIES && earlier.get(name) != Some(value))
}

/// What a namespace sent of refusals between two readings, and what its limiter withheld; `None`
/// where a kernel does not count that.
pub fn refusals(earlier: &Values, later: &Values) -> Option<(u64, u64)> {
    let of = |name: &str| {
        let name = format!("Icmp.{name}");
        Some(later.get(&name)?.saturating_sub(*earlier.get(&name)?))
    };
    let withheld = of("OutRateLimitHost")?.saturating_add(of("OutRateLimitGlobal")?);
    Some((of("OutDestUnreachs")?, withheld))
}

/// Which net namespace a process is in.
fn namespace(process: &Path) -> io::Result<PathBuf> {
    fs::read_link(process.join("ns/net"))
}

fn read(place: &Place, process: &Path) -> io::Result<Values> {
    let net = process.join("net");
    match place {
        Place::Machine => softnet(&fs::read_to_string(net.join("softnet_stat"))?),
        Place::Runner => named(&net, RUNNER),
        Place::Node(_) => {
            let mut values = conntrack(&fs::read_to_string(net.join("stat/nf_conntrack"))?)?;
            // One that does not count them has told of its table all the same.
            values.extend(named(&net, &[REFUSALS]).unwrap_or_default());
            Ok(values)
        }
        Place::Pod(_) => named(&net, POD),
    }
}

/// Named counters. One that this kernel has not is left out: it is not known, and not 0.
fn named(net: &Path, wanted: Names) -> io::Result<Values> {
    let mut values = Values::new();
    for (file, group, names) in wanted {
        let text = fs::read_to_string(net.join(file))?;
        values.extend(group_of(&text, group, names));
    }
    if values.is_empty() { Err(wrong("none of the counters is there")) } else { Ok(values) }
}

/// Of the pairs of lines `Group: NAME …` and `Group: VALUE …`, what is wanted.
fn group_of(text: &str, group: &str, names: &[&str]) -> Values {
    let mut lines = text.lines().filter_map(|line| {
        let (of, rest) = line.split_once(": ")?;
        (of == group).then_some(rest)
    });
    let (Some(heads), Some(numbers)) = (lines.next(), lines.next()) else { return Values::new() };
    let pairs = heads.split_ascii_whitespace().zip(numbers.split_ascii_whitespace());
    pairs
        .filter(|(name, _)| names.contains(name))
        .filter_map(|(name, value)| Some((format!("{group}.{name}"), value.parse().ok()?)))
        .collect()
}

/// `softnet_stat`: a line a processor, in hexadecimal; the second column is what its backlog had
/// no room for.
fn softnet(text: &str) -> io::Result<Values> {
    let dropped = text.lines().map(|line| hexadecimal(line.split_ascii_whitespace().nth(1)));
    let dropped = dropped.sum::<Option<u64>>().ok_or_else(|| wrong("softnet_stat"))?;
    Ok(Values::from([("softnet.dropped".to_owned(), dropped)]))
}

/// `stat/nf_conntrack`: names, then a line a processor, in hexadecimal. The number of entries
/// stands in each line.
fn conntrack(text: &str) -> io::Result<Values> {
    let mut lines = text.lines();
    let heads: Vec<_> = lines.next().unwrap_or_default().split_ascii_whitespace().collect();
    let mut values = Values::new();
    for line in lines {
        for (name, value) in heads.iter().zip(line.split_ascii_whitespace()) {
            let value = hexadecimal(Some(value)).ok_or_else(|| wrong("nf_conntrack"))?;
            match *name {
                "entries" => drop(values.insert(CONNTRACK_ENTRIES.to_owned(), value)),
                "insert_failed" | "drop" | "early_drop" => {
                    *values.entry(format!("conntrack.{name}")).or_default() += value;
                }
                _ => {}
            }
        }
    }
    if values.is_empty() { Err(wrong("nf_conntrack")) } else { Ok(values) }
}

fn hexadecimal(text: Option<&str>) -> Option<u64> {
    u64::from_str_radix(text?, 16).ok()
}

fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
#[path = "counters_tests.rs"]
mod tests;
