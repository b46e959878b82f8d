//! Netlink sockets of the netfilter family: events of multicast groups, and dumps.
//!
//! Knows messages, not what they mean. A socket belongs to the network namespace of the thread
//! that opened it, for as long as it lives.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use netlink_packet_core::{
    NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkBuffer, NetlinkHeader, NetlinkMessage,
    NetlinkPayload,
};
use netlink_packet_netfilter::{
    NetfilterHeader, NetfilterMessage, NetfilterMessageInner, NetfilterProtoFamily,
};
use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, send,
    setsockopt, socket, sockopt,
};

/// Entries of the connection tracking table that are new.
pub(super) const CONNTRACK_NEW: u32 = 1;
/// Entries of it that are gone.
pub(super) const CONNTRACK_DESTROY: u32 = 3;
/// Changes of nftables' rules, and the commits that they belong to.
pub(super) const NFTABLES: u32 = 7;

/// What may wait for this program before the kernel drops events; it says so then. An event takes
/// about 1 KiB of it: this is room for the entries of all flows that a trial can have, ended at once.
const RECEIVE_BUFFER: usize = 64 << 20;
/// Larger than any message of the groups above; a dump's parts fit, too.
const LARGEST: usize = 64 << 10;

/// A netfilter netlink socket.
#[derive(Debug)]
pub(super) struct Socket {
    fd: OwnedFd,
    buffer: Vec<u8>,
    sequence: u32,
}

/// One message: its header's fields that matter, and the bytes that it lies in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Raw<'a> {
    /// Subsystem and type, as the kernel numbers them.
    pub kind: u16,
    /// The `NLM_F_…` flags.
    pub flags: u16,
    /// The netlink port of the process that caused it; 0 is the kernel itself.
    pub port: u32,
    bytes: &'a [u8],
}

impl Raw<'_> {
    /// The message, understood.
    pub fn parse(&self) -> Option<NetfilterMessage> {
        match NetlinkMessage::<NetfilterMessage>::deserialize(self.bytes).ok()?.payload {
            NetlinkPayload::InnerMessage(message) => Some(message),
            _ => None,
        }
    }
}

impl Socket {
    /// Opens a socket in this thread's network namespace and joins these groups.
    pub fn open(groups: &[u32]) -> io::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let protocol = SockProtocol::NetlinkNetFilter;
        let fd = socket(AddressFamily::Netlink, SockType::Raw, flags, protocol)?;
        enlarge(&fd);
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
        for group in groups {
            join(&fd, *group)?;
        }
        Ok(Self { fd, buffer: vec![0; LARGEST], sequence: 0 })
    }

    /// Reads one datagram and gives each of its messages to `each`. `Ok(false)`: there is none now.
    ///
    /// # Errors
    /// `ENOBUFS` means that events were lost.
    pub fn read(&mut self, mut each: impl FnMut(Raw)) -> Result<bool, Errno> {
        let length = loop {
            match recv(self.fd.as_raw_fd(), &mut self.buffer, MsgFlags::empty()) {
                Ok(length) => break length,
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return Ok(false),
                Err(error) => return Err(error),
            }
        };
        messages(&self.buffer[..length]).for_each(&mut each);
        Ok(true)
    }

    /// Asks for a dump and gives each of its messages. The kernel makes it as it is read, so this
    /// does not wait.
    ///
    /// # Errors
    /// The kernel refused, or (`EINTR`) what was dumped changed meanwhile.
    pub fn dump(
        &mut self,
        family: NetfilterProtoFamily,
        request: impl Into<NetfilterMessageInner>,
        mut each: impl FnMut(NetfilterMessage),
    ) -> Result<(), Errno> {
        self.ask(NLM_F_DUMP, family, request)?;
        let (mut done, mut changed, mut refused) = (false, false, None);
        while !done {
            let more = self.read(|raw| {
                changed |= raw.flags & NLM_F_DUMP_INTR != 0;
                match i32::from(raw.kind) {
                    libc::NLMSG_DONE => done = true,
                    libc::NLMSG_ERROR => refused = Some(raw.error()),
                    _ => {
                        if let Some(message) = raw.parse() {
                            each(message);
                        }
                    }
                }
            })?;
            match refused {
                Some(error) => return Err(error),
                None if !more && !done => return Err(Errno::EAGAIN),
                None => {}
            }
        }
        if changed { Err(Errno::EINTR) } else { Ok(()) }
    }

    /// Asks for one thing and gives the answer, which the kernel has ready when the call returns.
    ///
    /// # Errors
    /// The kernel refused, or answered with something that can't be read.
    pub fn get(
        &mut self,
        family: NetfilterProtoFamily,
        request: impl Into<NetfilterMessageInner>,
    ) -> Result<NetfilterMessage, Errno> {
        self.ask(0, family, request)?;
        let mut answer = Err(Errno::EAGAIN);
        self.read(|raw| {
            answer = match i32::from(raw.kind) {
                libc::NLMSG_ERROR => Err(raw.error()),
                _ => raw.parse().ok_or(Errno::EBADMSG),
            };
        })?;
        answer
    }

    fn ask(
        &mut self,
        flags: u16,
        family: NetfilterProtoFamily,
        request: impl Into<NetfilterMessageInner>,
    ) -> Result<(), Errno> {
        while self.read(|_| {})? {} // of an earlier request that was given up
        self.sequence += 1;
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = self.sequence;
        let inner = NetfilterMessage::new(NetfilterHeader::new(family, 0, 0), request);
        let mut message = NetlinkMessage::new(header, NetlinkPayload::from(inner));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        send(self.fd.as_raw_fd(), &bytes, MsgFlags::empty()).map(drop)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Raw<'_> {
    /// The error code of an error message.
    fn error(&self) -> Errno {
        let payload = self.bytes.get(16..20).and_then(|bytes| bytes.try_into().ok());
        Errno::from_raw(payload.map_or(libc::EBADMSG, |bytes| -i32::from_ne_bytes(bytes)))
    }
}

/// The messages of a datagram.
fn messages(datagram: &[u8]) -> impl Iterator<Item = Raw<'_>> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        let buffer = NetlinkBuffer::new_checked(rest).ok()?;
        let length = buffer.length() as usize;
        let raw = Raw {
            kind: buffer.message_type(),
            flags: buffer.flags(),
            port: buffer.port_number(),
            bytes: &rest[..length],
        };
        // Messages begin at multiples of four bytes.
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(raw)
    })
}

/// Gives a socket as large a receive buffer as it may have: beyond the usual limit only with
/// CAP_NET_ADMIN. Memory is taken only for what waits in it.
pub(super) fn enlarge(fd: &impl AsFd) {
    if setsockopt(fd, sockopt::RcvBufForce, &RECEIVE_BUFFER).is_err() {
        let _ = setsockopt(fd, sockopt::RcvBuf, &RECEIVE_BUFFER);
    }
}

fn join(fd: &OwnedFd, group: u32) -> io::Result<()> {
    let length = size_of::<u32>() as libc::socklen_t;
    // SAFETY: the option's value is a `u32` of this length, which outlives the call.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_NETLINK,
            libc::NETLINK_ADD_MEMBERSHIP,
            std::ptr::from_ref(&group).cast(),
            length,
        )
    };
    Errno::result(result).map(drop).map_err(io::Error::from)
}
