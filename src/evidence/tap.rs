//! A packet socket: what passes the interfaces of a network namespace, by a filter in the kernel.
//!
//! Takes a filter; gives packets from their IP header on, with the kernel's time of each. Knows
//! nothing of what is in them.

use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{ControlMessageOwned, LinkAddr, MsgFlags, recvmsg, setsockopt, sockopt};
use socket2::{Domain, SockAddr, SockFilter, Type};

use super::netlink;
use crate::clock::WallClock;

/// A packet socket of one network namespace.
#[derive(Debug)]
pub(crate) struct Tap {
    socket: socket2::Socket,
    control: Vec<u8>,
    wall: WallClock,
}

/// A packet that was heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Heard {
    /// How much of it there is.
    pub length: usize,
    /// On the monotonic clock, in nanoseconds since boot.
    pub at_ns: i64,
    /// Whether that is the kernel's time of it; else it is when it was read.
    pub stamped: bool,
    /// The interface's index.
    pub interface: usize,
    /// Whether it left by the interface; else it came in by it.
    pub out: bool,
}

/// Which packets of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// What comes in. What leaves is not even copied for it, which is felt where much does.
    In,
    /// Both.
    Both,
}

impl Tap {
    /// Opens a socket for this thread's network namespace.
    pub fn open(filter: &[SockFilter], direction: Direction) -> io::Result<Self> {
        // Without a protocol it hears nothing yet: the filter comes first.
        let socket = socket2::Socket::new(Domain::PACKET, Type::DGRAM, None)?;
        socket.set_nonblocking(true)?;
        netlink::enlarge(&socket);
        socket.attach_filter(filter)?;
        setsockopt(&socket, sockopt::ReceiveTimestampns, &true)?;
        if direction == Direction::In {
            ignore_outgoing(&socket);
        }
        socket.bind(&all_interfaces())?;
        let control = nix::cmsg_space!(libc::timespec);
        Ok(Self { socket, control, wall: WallClock::default() })
    }

    /// Reads the next packet into `bytes`, as much of it as they hold; `None` if there is none now.
    pub fn next(&mut self, bytes: &mut [u8]) -> Result<Option<Heard>, Errno> {
        let mut parts = [IoSliceMut::new(bytes)];
        let control = Some(self.control.as_mut_slice());
        let fd = self.socket.as_raw_fd();
        let message = match recvmsg::<LinkAddr>(fd, &mut parts, control, MsgFlags::empty()) {
            Ok(message) => message,
            Err(Errno::EAGAIN) => return Ok(None),
            Err(error) => return Err(error),
        };
        let read_ns = self.wall.read();
        let stamp = message.cmsgs()?.find_map(|control| match control {
            ControlMessageOwned::ScmTimestampns(time) => {
                Some(time.tv_sec() * 1_000_000_000 + time.tv_nsec())
            }
            _ => None,
        });
        let at_ns = stamp.and_then(|stamp| self.wall.monotonic(stamp, i64::MIN, read_ns));
        let from = message.address.ok_or(Errno::EBADMSG)?;
        Ok(Some(Heard {
            length: message.bytes,
            at_ns: at_ns.unwrap_or(read_ns),
            stamped: at_ns.is_some(),
            interface: from.ifindex(),
            out: from.pkttype() == libc::PACKET_OUTGOING,
        }))
    }

    /// How exactly the kernel's times are known on the monotonic clock, nanoseconds.
    pub fn plus_minus_ns(&self) -> i64 {
        self.wall.plus_minus_ns()
    }

    /// How many packets the kernel dropped since this was last asked.
    pub fn dropped(&self) -> u32 {
        let mut statistics = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
        let mut length = size_of::<libc::tpacket_stats>() as libc::socklen_t;
        // SAFETY: the kernel writes a `tpacket_stats` of this length, which outlives the call.
        unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                std::ptr::from_mut(&mut statistics).cast(),
                &raw mut length,
            );
        }
        statistics.tp_drops
    }

    /// An interface's name in the socket's namespace; its number where it has none any more.
    pub fn interface(&self, index: usize) -> String {
        // SAFETY: all zeros are a valid `ifreq`.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        request.ifr_ifru.ifru_ifindex = i32::try_from(index).unwrap_or(0);
        // SAFETY: the kernel reads the index from the `ifreq` and writes the name into it.
        let result = unsafe {
            libc::ioctl(self.socket.as_raw_fd(), libc::SIOCGIFNAME as _, &raw mut request)
        };
        if result != 0 {
            return format!("interface {index}");
        }
        let name = request.ifr_name.iter().map(|c| c.cast_unsigned()).take_while(|c| *c != 0);
        String::from_utf8_lossy(&name.collect::<Vec<_>>()).into_owned()
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Has what leaves passed over. A kernel that does not know how (before 4.20) tells of it all the same.
fn ignore_outgoing(socket: &socket2::Socket) {
    let yes: libc::c_int = 1;
    // SAFETY: the option's value is an `int` of this length, which outlives the call.
    unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_IGNORE_OUTGOING,
            std::ptr::from_ref(&yes).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        );
    }
}

/// Every interface, every protocol: only those who ask for all hear what leaves, too.
fn all_interfaces() -> SockAddr {
    // SAFETY: a `sockaddr_ll` fits into the storage and is written whole, and its length is given.
    let ((), address) = unsafe {
        SockAddr::try_init(|storage, length| {
            let mut link: libc::sockaddr_ll = std::mem::zeroed();
            link.sll_family = libc::AF_PACKET as u16;
            link.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
            storage.cast::<libc::sockaddr_ll>().write(link);
            *length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
            Ok(())
        })
    }
    .unwrap_or_else(|_| unreachable!("the closure gives Ok"));
    address
}

/// One instruction of a filter, as `BPF_STMT` and `BPF_JUMP` write them.
pub(crate) fn instruction(code: u32, k: u32, jt: u8, jf: u8) -> SockFilter {
    SockFilter::new(code as u16, jt, jf, k)
}
