//! A capture on nodes' interfaces: what leaves them for the flows, with the kernel's times.
//!
//! Takes a process in each node; gives a [`Wire`]. It listens only, and reads in bursts, so that it
//! takes little of what it measures.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::libc;
use nix::sched::{CloneFlags, setns};
use socket2::SockFilter;

use super::Method;
use super::wire::Wire;
use crate::evidence::tap::{Direction, Tap, instruction};

/// How much of a packet is kept: headers and the longest answer.
const KEPT: usize = 512;
/// How often they are read.
const READ_EVERY: Duration = Duration::from_millis(10);
/// Where Kubernetes has its NodePorts by default: what flows are answered from.
const NODE_PORTS: (u32, u32) = (30_000, 32_767);

/// A capture that goes on.
#[derive(Debug)]
pub struct Capture {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Captured>,
}

/// What a capture came to.
#[derive(Debug, Default)]
pub struct Captured {
    pub wire: Wire,
    /// Packets that it missed.
    pub dropped: u64,
    /// Packets whose time is only that of their reading.
    pub unstamped: u64,
    /// How exactly the packets' times are known on the monotonic clock, nanoseconds.
    pub plus_minus_ns: i64,
}

impl Capture {
    /// Begins to listen, in the network namespaces of these processes, for what is compared.
    ///
    /// # Errors
    /// One can't be entered, or a packet socket not be opened in it.
    pub fn start(pids: &[i32], method: Method) -> io::Result<Self> {
        let open = |pid| open(pid, method);
        let taps = pids.iter().copied().map(open).collect::<io::Result<Vec<_>>>()?;
        let stop = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("capture".to_owned())
            .spawn(move || listen(taps, &asked))?;
        Ok(Self { stop, thread })
    }

    /// Takes in what was not read yet, and ends.
    pub fn finish(self) -> Captured {
        self.stop.store(true, Ordering::Relaxed);
        // A panic in it has been told on stderr; without what it heard nothing is compared.
        self.thread.join().unwrap_or_default()
    }
}

/// Opens a packet socket from a thread that enters the namespace and ends.
fn open(pid: i32, method: Method) -> io::Result<Tap> {
    let namespace = File::open(format!("/proc/{pid}/ns/net"))?;
    std::thread::scope(|scope| {
        let inside = scope.spawn(move || {
            setns(namespace, CloneFlags::CLONE_NEWNET)?;
            Tap::open(&filter(method), Direction::Both)
        });
        inside.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))
    })
}

fn listen(mut taps: Vec<Tap>, stop: &AtomicBool) -> Captured {
    let mut captured = Captured::default();
    loop {
        // Looked at first: what is there when it is asked to stop is read.
        let last = stop.load(Ordering::Relaxed);
        for tap in &mut taps {
            captured.read(tap);
        }
        if last {
            return captured;
        }
        std::thread::sleep(READ_EVERY);
    }
}

impl Captured {
    fn read(&mut self, tap: &mut Tap) {
        let mut bytes = [0; KEPT];
        while let Ok(Some(heard)) = tap.next(&mut bytes) {
            if !heard.stamped {
                self.unstamped += 1;
                continue;
            }
            self.wire.take(&bytes[..heard.length], heard.at_ns);
        }
        self.dropped += u64::from(tap.dropped());
        self.plus_minus_ns = self.plus_minus_ns.max(tap.plus_minus_ns());
    }
}

/// What leaves by an interface: TCP and UDP from a NodePort to the flows that are compared, and ICMP
/// "destination unreachable" to any.
fn filter(method: Method) -> Vec<SockFilter> {
    use nix::libc::{
        BPF_ABS, BPF_B, BPF_H, BPF_IND, BPF_JEQ, BPF_JGE, BPF_JGT, BPF_JMP, BPF_JSET, BPF_K,
        BPF_LD, BPF_LDX, BPF_MSH, BPF_RET, BPF_W,
    };
    const ETH_P_IP: u32 = 0x0800;
    const PROTOCOL: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_PROTOCOL).cast_unsigned();
    const TYPE: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_PKTTYPE).cast_unsigned();
    const OUTGOING: u32 = libc::PACKET_OUTGOING as u32;
    let load = |what: u32, k: u32| instruction(BPF_LD | what, k, 0, 0);
    let jump = |how: u32, k: u32, yes: u8, no: u8| instruction(BPF_JMP | how | BPF_K, k, yes, no);
    vec![
        /* 0 */ load(BPF_W | BPF_ABS, TYPE),
        /* 1 */ jump(BPF_JEQ, OUTGOING, 0, 16),
        /* 2 */ load(BPF_W | BPF_ABS, PROTOCOL),
        /* 3 */ jump(BPF_JEQ, ETH_P_IP, 0, 14),
        /* 4 */ load(BPF_H | BPF_ABS, 6),
        /* 5 */ jump(BPF_JSET, 0x1fff, 12, 0),
        /* 6 */ instruction(BPF_LDX | BPF_B | BPF_MSH, 0, 0, 0),
        /* 7 */ load(BPF_B | BPF_ABS, 9),
        /* 8 */ jump(BPF_JEQ, 1, 7, 0),
        /* 9 */ jump(BPF_JEQ, 6, 1, 0),
        /* 10 */ jump(BPF_JEQ, 17, 0, 7),
        /* 11 */ load(BPF_H | BPF_IND, 0),
        /* 12 */ jump(BPF_JGE, NODE_PORTS.0, 0, 5),
        /* 13 */ jump(BPF_JGT, NODE_PORTS.1, 4, 0),
        /* 14 */ load(BPF_H | BPF_IND, 2),
        /* 15 */ jump(BPF_JSET, method.clear_bits().into(), 2, 3),
        /* 16 */ load(BPF_B | BPF_IND, 0),
        /* 17 */ jump(BPF_JEQ, 3, 1, 0),
        /* 18 */ instruction(BPF_RET | BPF_K, 0, 0, 0),
        /* 19 */ instruction(BPF_RET | BPF_K, KEPT as u32, 0, 0),
    ]
}
