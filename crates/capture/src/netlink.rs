//! rtnetlink(7): requests to the kernel about links, addresses and routes, and the kernel's
//! answers.
//!
//! One request uses generic netlink: whether the driver gives XDP programs the NIC's stamps.
//!
//! A socket answers for the network namespace in which it was made. A truncated message, a
//! truncated attribute, or a list that changes during each of 64 readings is an error.

use std::{borrow::Cow, collections::BTreeMap, io, os::fd::OwnedFd};

use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send,
    socket_with,
};

use crate::sys::set_option;

/// Message types of every netlink protocol.
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// `NLM_F_REQUEST`, `NLM_F_ACK`, `NLM_F_DUMP`. An answer with `NLM_F_DUMP_INTR` belongs to a list
/// that changed during the answer.
const REQUEST: u16 = 1;
const ACKNOWLEDGE: u16 = 4;
const DUMP: u16 = 0x300;
const INTERRUPTED: u16 = 0x10;

/// `SOL_NETLINK`, and `NETLINK_GET_STRICT_CHK` of `linux/netlink.h`.
const SOL_NETLINK: i32 = 270;
const STRICT: i32 = 12;

/// Bytes of `struct nlmsghdr`, and of an attribute's header.
const HEADER: usize = 16;
const ATTRIBUTE: usize = 4;

/// Bytes of the buffer for a part of an answer. The kernel usually makes parts of 32 KiB at most
/// (`netlink_dump` of `net/netlink/af_netlink.c`).
const PART_BYTES: usize = 64 << 10;

/// Number of attempts to read a list that changes during the reading. Where pods start and stop all
/// the time, a list of links may change every few milliseconds. Most readings take less time.
const TRIES: usize = 64;

/// A netlink socket. Making a socket needs no privilege.
#[derive(Debug)]
pub(crate) struct Netlink {
    socket: OwnedFd,
    sequence: u32,
    part: Vec<u8>,
}

#[derive(Debug, Clone)]
pub(crate) struct NetlinkRequest(Vec<u8>);

/// An answer, or one entry of a list.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NetlinkMessage<'a> {
    pub(crate) kind: u16,
    flags: u16,
    sequence: u32,
    body: &'a [u8],
}

impl NetlinkRequest {
    /// A message of this type, with the fixed structure that precedes its attributes.
    pub(crate) fn new(kind: u16, fixed: &[u8]) -> Self {
        let mut bytes = vec![0; HEADER];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes.extend(fixed);
        Self(bytes).padded()
    }

    /// Adds an attribute with a value of at most 64 bytes.
    pub(crate) fn with(mut self, kind: u16, value: &[u8]) -> Self {
        assert!(value.len() <= 64, "questions are short");
        #[expect(clippy::cast_possible_truncation, reason = "asserted above")]
        let length = (ATTRIBUTE + value.len()) as u16;
        self.0.extend(length.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.padded()
    }

    fn padded(mut self) -> Self {
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        let length = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        self.0[0..4].copy_from_slice(&length.to_ne_bytes());
        self
    }

    fn numbered(&self, sequence: u32, flags: u16) -> Vec<u8> {
        let mut bytes = self.0.clone();
        bytes[6..8].copy_from_slice(&(REQUEST | flags).to_ne_bytes());
        bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
        bytes
    }
}

impl Netlink {
    /// Makes a socket in the network namespace of the calling thread.
    pub(crate) fn new() -> io::Result<Self> {
        Self::of(None)
    }

    /// Makes a socket for a protocol; `None`: rtnetlink(7).
    fn of(protocol: Option<Protocol>) -> io::Result<Self> {
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            protocol,
        )?;
        Ok(Self {
            socket,
            sequence: 0,
            part: vec![0; PART_BYTES],
        })
    }

    /// Sends a request with a single answer. `read` returns `None` if the answer is damaged or of
    /// another type.
    pub(crate) fn query<T>(
        &mut self,
        request: &NetlinkRequest,
        mut read: impl FnMut(NetlinkMessage<'_>) -> Option<T>,
    ) -> io::Result<T> {
        let answers =
            self.exchange(request, ACKNOWLEDGE, &mut |message| read(message).map(Some))?;
        Ok(answers.kept.into_iter().next().ok_or(DAMAGED)?)
    }

    /// Requests a list. `read` gets each message of the list and returns an entry, or `Some(None)`
    /// to skip the message, or `None` if the message is damaged.
    ///
    /// # Errors
    /// The kernel's error. [`io::ErrorKind::InvalidData`]: an answer is damaged or truncated.
    /// [`io::ErrorKind::Interrupted`]: the list changed during each of the [`TRIES`] readings.
    pub(crate) fn list<T>(
        &mut self,
        request: &NetlinkRequest,
        mut read: impl FnMut(NetlinkMessage<'_>) -> Option<Option<T>>,
    ) -> io::Result<Vec<T>> {
        for _ in 0..TRIES {
            let list = self.exchange(request, DUMP, &mut read)?;
            if !list.was_interrupted {
                return Ok(list.kept);
            }
        }
        let message = "the list changed while it was read: try again";
        Err(io::Error::new(io::ErrorKind::Interrupted, message))
    }

    /// Sends a request, and reads answers up to the message that ends the answer.
    fn exchange<T>(
        &mut self,
        request: &NetlinkRequest,
        flags: u16,
        read: &mut impl FnMut(NetlinkMessage<'_>) -> Option<Option<T>>,
    ) -> io::Result<List<T>> {
        self.sequence = self.sequence.wrapping_add(1);
        let bytes = request.numbered(self.sequence, flags);
        send(&self.socket, &bytes, SendFlags::empty())?;
        let mut list = List::EMPTY;
        while !list.is_done {
            // The kernel answers before send returns, and makes the next part of a list when one
            // part is received.
            let (length, whole) = recv(&self.socket, &mut self.part[..], RecvFlags::TRUNC)?;
            if length != whole {
                return Err(DAMAGED.into());
            }
            list.take(&self.part[..length], self.sequence, read)?;
        }
        Ok(list)
    }
}

/// The error for a damaged, truncated or missing answer.
const DAMAGED: io::ErrorKind = io::ErrorKind::InvalidData;

/// A list of answers that is being read.
#[derive(Debug)]
pub(crate) struct List<T> {
    pub(crate) kept: Vec<T>,
    pub(crate) is_done: bool,
    was_interrupted: bool,
}

impl<T> List<T> {
    pub(crate) const EMPTY: Self = Self {
        kept: Vec::new(),
        is_done: false,
        was_interrupted: false,
    };

    /// Reads one part: messages back to back. Skips messages that answer an earlier request.
    pub(crate) fn take(
        &mut self,
        mut part: &[u8],
        sequence: u32,
        read: &mut impl FnMut(NetlinkMessage<'_>) -> Option<Option<T>>,
    ) -> io::Result<()> {
        while !part.is_empty() && !self.is_done {
            let (message, rest) = NetlinkMessage::first(part).ok_or(DAMAGED)?;
            part = rest;
            if message.sequence != sequence {
                continue;
            }
            self.was_interrupted |= message.flags & INTERRUPTED != 0;
            let code = match message.kind {
                // An acknowledgement is an error message with the code 0.
                ERROR => word(message.body, 0).ok_or(DAMAGED)?,
                // A negative code in the end message means that the list is not complete.
                DONE => word(message.body, 0).unwrap_or(0),
                _ => {
                    self.kept.extend(read(message).ok_or(DAMAGED)?);
                    continue;
                }
            };
            self.is_done = true;
            if code.cast_signed() < 0 {
                return Err(io::Error::from_raw_os_error(
                    code.wrapping_neg().cast_signed(),
                ));
            }
        }
        Ok(())
    }
}

impl<'a> NetlinkMessage<'a> {
    /// The first message of `bytes`, and the rest of the bytes. `None`: the message is truncated.
    fn first(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let length = usize::try_from(word(bytes, 0)?).ok()?;
        let message = Self {
            kind: half(bytes, 4)?,
            flags: half(bytes, 6)?,
            sequence: word(bytes, 8)?,
            body: bytes.get(HEADER..length)?,
        };
        let rest = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((message, rest))
    }

    /// Splits a message of type `kind` into the fixed structure of `fixed` bytes and the attributes
    /// by type. `None`: the message is damaged or has another type.
    pub(crate) fn parts(self, kind: u16, fixed: usize) -> Option<(&'a [u8], Attributes<'a>)> {
        let rest = self.body.get(fixed.next_multiple_of(4)..)?;
        let is_it = self.kind == kind;
        is_it.then_some((&self.body[..fixed], attributes(rest)?))
    }
}

/// Values of attributes by attribute type.
pub(crate) type Attributes<'a> = BTreeMap<u16, &'a [u8]>;

/// Parses attributes that follow each other, as in a message or inside another attribute. `None`:
/// the attributes are damaged.
pub(crate) fn attributes(mut bytes: &[u8]) -> Option<Attributes<'_>> {
    let mut found = Attributes::new();
    while !bytes.is_empty() {
        let length = usize::from(half(bytes, 0)?);
        // The flag bits for nested attributes and byte order are not part of the type
        // (`NLA_TYPE_MASK`).
        let kind = half(bytes, 2)? & 0x3fff;
        found.entry(kind).or_insert(bytes.get(ATTRIBUTE..length)?);
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Some(found)
}

/// The text of a C string, up to the first NUL or the end.
pub(crate) fn until_nul(bytes: &[u8]) -> Cow<'_, str> {
    let text = bytes.split(|byte| *byte == 0).next();
    String::from_utf8_lossy(text.unwrap_or_default())
}

/// The 16-bit word at an offset.
pub(crate) fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The 32-bit word at an offset.
pub(crate) fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// `RTM_NEWLINK`, `RTM_GETLINK`, and bytes of `struct ifinfomsg`.
pub(crate) const NEW_LINK: u16 = 16;
const GET_LINK: u16 = 18;
pub(crate) const LINK_BYTES: usize = 16;
/// `IFLA_IFNAME`.
pub(crate) const LINK_NAME: u16 = 3;
/// `IFLA_QDISC`: the attribute with the name of the queueing discipline.
const QUEUEING: u16 = 6;
/// `IFLA_EXT_MASK` and `RTEXT_FILTER_SKIP_STATS`: request an answer without counters.
const MASK: u16 = 29;
const SKIP_STATISTICS: u32 = 1 << 3;

/// `RTM_NEWSTATS`, `RTM_GETSTATS`, and bytes of `struct if_stats_msg`.
const NEW_STATS: u16 = 92;
const GET_STATS: u16 = 94;
const STATS_BYTES: usize = 12;
/// `IFLA_STATS_LINK_64`: the attribute with `struct rtnl_link_stats64`, and the bit that requests
/// the attribute.
const LINK_64: u16 = 1;
const LINK_64_BIT: u32 = 1;
/// Positions of `rx_dropped`, `rx_fifo_errors` and `rx_missed_errors` in
/// `struct rtnl_link_stats64`, in words of 64 bits.
const DROPPED: usize = 6;
const FIFO: usize = 14;
const MISSED: usize = 15;

/// Generic netlink: `GENL_ID_CTRL`, `CTRL_CMD_GETFAMILY` with `struct genlmsghdr`,
/// `CTRL_ATTR_FAMILY_ID` and `CTRL_ATTR_FAMILY_NAME`.
const CONTROL: u16 = 16;
const GET_FAMILY: [u8; 4] = [3, 1, 0, 0];
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;

/// The family `netdev` of `linux/netdev.h`: `NETDEV_CMD_DEV_GET`, `NETDEV_A_DEV_IFINDEX`,
/// `NETDEV_A_DEV_XDP_RX_METADATA_FEATURES`, and its bit for stamps.
const GET_DEVICE: [u8; 4] = [1, 1, 0, 0];
const DEVICE_INDEX: u16 = 1;
const DEVICE_METADATA: u16 = 5;
const METADATA_STAMP: u8 = 1;

/// Counters of an interface, usually since its creation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LinkCounters {
    /// Packets for which the NIC had no room. Drivers use one of two counters or both, and one may
    /// include the other, so this is the greater counter.
    pub(crate) missed: u64,
    /// Packets that the kernel or the driver dropped, for example because an input queue was full.
    pub(crate) dropped: u64,
}

/// A request for the link with this index, or for the list of all links (index 0), answered without
/// counters.
pub(crate) fn link_request(index: i32) -> NetlinkRequest {
    let mut fixed = [0; LINK_BYTES];
    fixed[4..8].copy_from_slice(&index.to_ne_bytes());
    NetlinkRequest::new(GET_LINK, &fixed).with(MASK, &SKIP_STATISTICS.to_ne_bytes())
}

impl Netlink {
    /// Reads the counters of an interface. Since Linux 4.7.
    pub(crate) fn counters(&mut self, index: i32) -> io::Result<LinkCounters> {
        let mut fixed = [0; STATS_BYTES];
        fixed[4..8].copy_from_slice(&index.to_ne_bytes());
        fixed[8..12].copy_from_slice(&LINK_64_BIT.to_ne_bytes());
        self.query(&NetlinkRequest::new(GET_STATS, &fixed), counters)
    }

    /// The name of the interface's queueing discipline, such as `noqueue` or `pfifo_fast`.
    pub(crate) fn queueing(&mut self, index: i32) -> io::Result<String> {
        self.query(&link_request(index), |answer| {
            let (_, found) = answer.parts(NEW_LINK, LINK_BYTES)?;
            Some(until_nul(found.get(&QUEUEING)?).into_owned())
        })
    }

    /// Whether the driver of an interface gives XDP programs the NIC's stamps, in the network
    /// namespace of the calling thread. The kernel says so since Linux 6.7.
    pub(crate) fn gives_xdp_stamps(index: i32) -> io::Result<bool> {
        let mut netlink = Self::of(Some(netlink::GENERIC))?;
        let request = NetlinkRequest::new(CONTROL, &GET_FAMILY);
        let request = request.with(FAMILY_NAME, b"netdev\0");
        let family = netlink.query(&request, |answer| {
            let (_, found) = answer.parts(CONTROL, GET_FAMILY.len())?;
            half(found.get(&FAMILY_ID)?, 0)
        })?;
        let request = NetlinkRequest::new(family, &GET_DEVICE);
        let request = request.with(DEVICE_INDEX, &index.to_ne_bytes());
        netlink.query(&request, |answer| {
            let (_, found) = answer.parts(family, GET_DEVICE.len())?;
            let Some(features) = found.get(&DEVICE_METADATA) else {
                return Some(false);
            };
            let features = u64::from_ne_bytes(*features.first_chunk()?);
            Some(features & u64::from(METADATA_STAMP) != 0)
        })
    }

    /// As [`Self::new`], with strict checking: the kernel refuses requests that it does not
    /// understand, and lists only requested entries. Since Linux 4.20; fails with `ENOPROTOOPT`
    /// before.
    pub(crate) fn strict() -> io::Result<Self> {
        let netlink = Self::new()?;
        set_option(&netlink.socket, SOL_NETLINK, STRICT, &1)?;
        Ok(netlink)
    }
}

fn counters(answer: NetlinkMessage<'_>) -> Option<LinkCounters> {
    let (_, found) = answer.parts(NEW_STATS, STATS_BYTES)?;
    let value = found.get(&LINK_64)?;
    let long = |index: usize| Some(u64::from_ne_bytes(*value.get(8 * index..)?.first_chunk()?));
    Some(LinkCounters {
        missed: long(FIFO)?.max(long(MISSED)?),
        dropped: long(DROPPED)?,
    })
}

#[cfg(test)]
pub(crate) mod tests;
