//! Counters read from folders that stand for `/proc/PID`.

use std::os::unix::fs::symlink;

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::*;

/// A process in a net namespace of its own.
struct Process(tempfile::TempDir);

impl Process {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("ns")).unwrap();
        symlink("net:[1]", folder.path().join("ns/net")).unwrap();
        fs::create_dir_all(folder.path().join("net/stat")).unwrap();
        let process = Self(folder);
        process.drops(0);
        process
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn write(&self, file: &str, text: &str) {
        fs::write(self.0.path().join("net").join(file), text).unwrap();
    }

    fn drops(&self, n: u64) {
        self.write(
            "snmp",
            &format!(
                "Icmp: InMsgs\nIcmp: 7\nUdp: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors \
                 SndbufErrors InCsumErrors IgnoredMulti MemErrors\nUdp: 141 9 {n} 142 {n} 0 0 0 0\n\
                 UdpLite: InDatagrams RcvbufErrors\nUdpLite: 3 4\n"
            ),
        );
        self.write(
            "netstat",
            "TcpExt: SyncookiesSent ListenOverflows ListenDrops TCPBacklogDrop\n\
             TcpExt: 1 2 3 4\nIpExt: InNoRoutes\nIpExt: 5\n",
        );
    }

    /// Another process is there now, by the same number.
    fn is_replaced(&self) {
        fs::remove_file(self.path().join("ns/net")).unwrap();
        symlink("net:[2]", self.path().join("ns/net")).unwrap();
    }
}

fn pod() -> Place {
    Place::Pod("u".into())
}

/// Counters of one pod that were told once.
fn watched(process: &Process) -> (Counters, UnboundedReceiver<crate::observation::Seen>) {
    let (sink, mut seen) = unbounded_channel();
    let mut counters = Counters { sink, places: BTreeMap::new() };
    counters.watch(pod(), process.path()).unwrap();
    counters.mark();
    assert_eq!(told(&mut seen), [0, 0]);
    (counters, seen)
}

/// The `Udp.RcvbufErrors` of each reading that was told.
fn told(seen: &mut UnboundedReceiver<crate::observation::Seen>) -> Vec<u64> {
    std::iter::from_fn(|| seen.try_recv().ok())
        .map(|seen| match seen.event {
            Event::Counters { of, values } => {
                assert_eq!(of, "pod:u");
                values["Udp.RcvbufErrors"]
            }
            other => panic!("{other:?}"),
        })
        .collect()
}

/// As if the last reading that was told lay two seconds back.
fn later(counters: &mut Counters) {
    let track = counters.places.get_mut(&pod()).unwrap();
    if let Some((at, _)) = &mut track.told {
        at.ns -= 2_000_000_000;
    }
}

/// As if no time had gone by since the last reading that was told, however long the test takes.
fn just_told(counters: &mut Counters) {
    let track = counters.places.get_mut(&pod()).unwrap();
    if let Some((at, _)) = &mut track.told {
        *at = Stamp::now();
    }
}

#[test]
fn a_pods_counters_are_those_of_its_groups_by_their_names() {
    let process = Process::new();
    process.drops(5);
    let values = read(&pod(), process.path()).unwrap();
    let expected = [
        ("TcpExt.ListenDrops", 3),
        ("TcpExt.ListenOverflows", 2),
        ("TcpExt.TCPBacklogDrop", 4),
        ("Udp.InErrors", 5),
        ("Udp.MemErrors", 0),
        ("Udp.RcvbufErrors", 5),
        ("Udp.SndbufErrors", 0),
    ];
    assert!(values.iter().map(|(name, n)| (name.as_str(), *n)).eq(expected), "{values:?}");
}

#[test]
fn a_nodes_connection_tracking_is_summed_over_processors_and_its_entries_are_not() {
    let process = Process::new();
    process.write(
        "stat/nf_conntrack",
        "entries  clashres found new insert insert_failed drop early_drop icmp_error\n\
         0000000a 00000000 00000001 00000000 00000000 00000002 00000010 00000000 00000000\n\
         0000000a 00000000 00000001 00000000 00000000 00000003 00000001 00000000 00000000\n",
    );
    let values = read(&Place::Node("n".into()), process.path()).unwrap();
    assert_eq!(values[CONNTRACK_ENTRIES], 10);
    assert_eq!(values["conntrack.insert_failed"], 5);
    assert_eq!(values["conntrack.drop"], 17);
}

#[test]
fn what_a_namespace_refused_and_withheld_is_counted_where_the_kernel_does() {
    let process = Process::new();
    let snmp = |sent: u64, host: u64, global: u64| {
        format!(
            "Icmp: InMsgs OutMsgs OutRateLimitGlobal OutRateLimitHost OutDestUnreachs\n\
             Icmp: 9 8 {global} {host} {sent}\nUdp: RcvbufErrors\nUdp: 0\n"
        )
    };
    process.write("snmp", &snmp(1, 0, 0));
    let before = read(&pod(), process.path()).unwrap();
    process.write("snmp", &snmp(7, 3, 1));
    let after = read(&pod(), process.path()).unwrap();
    assert_eq!(refusals(&before, &after), Some((6, 4)));
    // A kernel that does not count what it withholds.
    process.write("snmp", "Icmp: OutDestUnreachs\nIcmp: 7\nUdp: RcvbufErrors\nUdp: 0\n");
    assert_eq!(refusals(&before, &read(&pod(), process.path()).unwrap()), None);
}

#[test]
fn a_machines_backlog_is_the_second_column() {
    let process = Process::new();
    process.write("softnet_stat", "00006652 0000000b 00000002\n00000014 00000001 00000000\n");
    assert_eq!(read(&Place::Machine, process.path()).unwrap()["softnet.dropped"], 12);
}

#[test]
fn counters_that_are_not_there_are_an_error_and_not_zero() {
    let process = Process::new();
    process.write("snmp", "Udp: InDatagrams\nUdp: 1\n");
    process.write("netstat", "");
    let (sink, _seen) = unbounded_channel();
    let mut counters = Counters { sink, places: BTreeMap::new() };
    assert!(counters.watch(pod(), process.path()).is_err());
    assert!(counters.watch(pod(), Path::new("/proc/0")).is_err());
    assert_eq!(counters.dropped_in_pod("u"), None);
}

#[test]
fn drops_are_told_between_the_last_reading_without_them_and_the_first_with_them() {
    let process = Process::new();
    let (mut counters, mut seen) = watched(&process);
    later(&mut counters);
    counters.look();
    assert_eq!(told(&mut seen), [0; 0], "nothing has moved");
    process.drops(5);
    counters.look();
    assert_eq!(told(&mut seen), [0, 5]);
    assert_eq!(counters.dropped_in_pod("u"), Some(5));
}

#[test]
fn a_pod_that_is_found_late_has_a_reading_to_differ_from() {
    let process = Process::new();
    process.drops(7);
    let (sink, mut seen) = unbounded_channel();
    let mut counters = Counters { sink, places: BTreeMap::new() };
    counters.watch(pod(), process.path()).unwrap();
    process.drops(9);
    counters.finish();
    assert_eq!(told(&mut seen), [7, 9]);
    assert_eq!(counters.dropped_in_pod("u"), Some(2));
}

#[test]
fn drops_that_go_on_are_told_once_a_second_and_at_the_end() {
    let process = Process::new();
    let (mut counters, mut seen) = watched(&process);
    later(&mut counters);
    for n in 1..100 {
        process.drops(n);
        counters.look();
        just_told(&mut counters);
    }
    assert_eq!(told(&mut seen), [0, 1]);
    counters.finish();
    assert_eq!(told(&mut seen), [99]);
}

#[test]
fn of_a_pod_that_has_gone_its_last_reading_is_told_and_no_other_processs() {
    let process = Process::new();
    let (mut counters, mut seen) = watched(&process);
    process.drops(3);
    counters.look();
    process.is_replaced();
    process.drops(70);
    counters.look();
    counters.finish();
    assert_eq!(told(&mut seen), [3]);
    assert_eq!(counters.dropped_in_pod("u"), Some(3));
}

#[test]
fn what_this_machine_tells_can_be_read() {
    let (sink, _seen) = unbounded_channel();
    let counters = Counters::new(sink);
    assert!(counters.watches(&Place::Machine) && counters.watches(&Place::Runner));
    assert!(counters.value(&Place::Runner, "Udp.RcvbufErrors").is_some());
}
