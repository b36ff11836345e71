//! What the trusted Lua part reads of a packet: a fixed C structure, filled in before a call.
//!
//! The headers are parsed here, for every packet of a batch and before any Lua runs, so that scripts and filters agree
//! about them: the facts are those of [`retroscope_packet::parse`]. For the most common packets, TCP and UDP behind plain
//! IP and Ethernet headers, a few comparisons tell the same in a fraction of the time; fewer still where a script asks no
//! more than protocol, ports and flags.

use std::net::IpAddr;

use retroscope_packet::{
    LinkType, Parsed, parse,
    proto::{AH, ICMPV6, SCTP, TCP, UDP},
};

use crate::packet::Packet;

/// A set of facts about packets, by the numbers that `prelude.lua` has for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Facts(pub(crate) u32);

impl Facts {
    /// Where the captured bytes are, and how many.
    pub(crate) const BYTES: Self = Self(1);
    /// What the capture tells beside them: time, length on the wire, interface, link type, direction.
    pub(crate) const RECORD: Self = Self(2);
    /// Version, protocol, ports and TCP flags, and whether it is a later fragment.
    pub(crate) const TRANSPORT: Self = Self(4);
    /// All that headers tell, those of [`Self::TRANSPORT`] included.
    pub(crate) const HEADERS: Self = Self(8);
    pub(crate) const ALL: Self = Self(15);

    #[inline]
    pub(crate) fn has(self, facts: Self) -> bool {
        self.0 & facts.0 == facts.0
    }
}

/// What Lua is told about a packet. The declaration in `prelude.lua` has the same fields in the same places; a test
/// compares the two.
///
/// A field of the headers is -1 where they do not have it.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Slot {
    /// Address of the captured bytes.
    pub(crate) data: u64,
    pub(crate) time_ns: i64,
    /// Captured bytes.
    pub(crate) len: u32,
    pub(crate) wire_len: u32,
    pub(crate) interface: u16,
    pub(crate) link_type: u16,
    pub(crate) direction: u8,
    /// 4, 6 or 0: no IP.
    pub(crate) ip: u8,
    /// Whether it is a fragment other than the first.
    pub(crate) later_fragment: u8,
    pub(crate) proto: i16,
    pub(crate) tcp_flags: i16,
    /// Identifier of the outermost tag.
    pub(crate) vlan: i16,
    pub(crate) ether_type: i32,
    pub(crate) src_port: i32,
    pub(crate) dst_port: i32,
    /// Where the payload starts, and how much of it was captured.
    pub(crate) payload: i32,
    pub(crate) payload_len: i32,
    /// Addresses as big-endian words. Of IPv4 only the first means anything; where `ip` is 0, none.
    pub(crate) src: [u32; 4],
    pub(crate) dst: [u32; 4],
}

impl Slot {
    /// No packet.
    pub(crate) const EMPTY: Self = Self {
        data: 0,
        time_ns: 0,
        len: 0,
        wire_len: 0,
        interface: 0,
        link_type: 0,
        direction: 0,
        ip: 0,
        later_fragment: 0,
        proto: -1,
        tcp_flags: -1,
        vlan: -1,
        ether_type: -1,
        src_port: -1,
        dst_port: -1,
        payload: -1,
        payload_len: -1,
        src: [0; 4],
        dst: [0; 4],
    };

    /// Describes a packet as far as it is asked for. The slot is good for as long as the packet's bytes are borrowed.
    #[inline(always)]
    pub(crate) fn fill(&mut self, packet: &Packet<'_>, facts: Facts) {
        // No packet is that long; what is beyond 2 GiB is not seen.
        let data = packet.data.get(..i32::MAX as usize).unwrap_or(packet.data);
        if facts.has(Facts::BYTES) {
            self.data = data.as_ptr().expose_provenance() as u64;
            self.len = u32::try_from(data.len()).unwrap_or(u32::MAX);
        }
        if facts.has(Facts::RECORD) {
            self.time_ns = packet.time_ns;
            self.wire_len = packet.wire_len;
            self.interface = packet.interface;
            self.link_type = packet.link_type.0;
            self.direction = packet.direction;
        }
        let is_told = if facts.has(Facts::HEADERS) {
            packet.link_type == LinkType::ETHERNET && self.common(data).is_some()
        } else if facts.has(Facts::TRANSPORT) {
            packet.link_type == LinkType::ETHERNET
                && (self.plain_transport(data) || self.transport(data).is_some())
        } else {
            true
        };
        if !is_told {
            self.look_closer(packet.link_type, data);
        }
    }

    #[cold]
    fn look_closer(&mut self, link_type: LinkType, data: &[u8]) {
        self.headers(&parse(link_type, data), data);
    }

    /// Notes what the headers say.
    fn headers(&mut self, parsed: &Parsed, data: &[u8]) {
        (self.ip, self.proto, self.later_fragment) = (0, -1, 0);
        if let Some(ip) = parsed.network {
            (self.ip, self.src) = words(ip.src);
            (_, self.dst) = words(ip.dst);
            self.proto = ip.proto.map_or(-1, i16::from);
            self.later_fragment = u8::from(parsed.is_later_fragment());
        }
        let ports = parsed.transport;
        self.src_port = ports.map_or(-1, |ports| i32::from(ports.src));
        self.dst_port = ports.map_or(-1, |ports| i32::from(ports.dst));
        self.tcp_flags = parsed.tcp_flags.map_or(-1, i16::from);
        let tag = parsed.vlan.outer();
        self.vlan = tag.map_or(-1, |tag| i16::try_from(tag.id()).unwrap_or(-1));
        self.ether_type = parsed.ether_type.map_or(-1, i32::from);
        (self.payload, self.payload_len) = match parsed.payload(data) {
            // An empty slice may be anywhere.
            Some([]) => (int(data.len()), 0),
            Some(payload) => {
                let at = payload.as_ptr().addr() - data.as_ptr().addr();
                (int(at), int(payload.len()))
            }
            None => (-1, -1),
        };
    }

    /// Notes what [`Facts::TRANSPORT`] names of most frames: Ethernet, IPv4 without options, no later fragment. Takes no branch
    /// but the one that tells whether it is one, since which protocol comes next is a toss.
    #[inline(always)]
    fn plain_transport(&mut self, data: &[u8]) -> bool {
        // As far as TCP's flags.
        let Some(head) = data.first_chunk::<48>() else {
            return false;
        };
        let half = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
        let proto = head[23];
        let is_one = (half(12) == 0x0800)
            & (head[14] == 0x45)
            & (half(16) >= 34)
            & (half(20) & 0x1fff == 0)
            & (proto != AH);
        if !is_one {
            return false;
        }
        let has_ports = (proto == TCP) | (proto == UDP) | (proto == SCTP);
        (self.ip, self.later_fragment, self.proto) = (4, 0, i16::from(proto));
        self.src_port = if has_ports { i32::from(half(34)) } else { -1 };
        self.dst_port = if has_ports { i32::from(half(36)) } else { -1 };
        let flags = i16::from(head[47]);
        self.tcp_flags = if proto == TCP { flags } else { -1 };
        true
    }

    /// Notes what [`Facts::TRANSPORT`] names of an Ethernet frame with ARP, IPv4, or IPv6 without extension headers. `None`: it
    /// is another one, or asks for a closer look.
    fn transport(&mut self, data: &[u8]) -> Option<()> {
        let head: &[u8; 34] = data.first_chunk()?;
        let half = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
        let (ip, proto, is_later, at, end) = match half(12) {
            0x0800 if head[14] >> 4 == 4 && head[14] & 15 >= 5 && head[23] != AH => {
                let end = match half(16) {
                    0 => usize::MAX,
                    len => 14 + usize::from(len),
                };
                let at = 14 + usize::from(head[14] & 15) * 4;
                (4, i16::from(head[23]), half(20) & 0x1fff != 0, at, end)
            }
            0x86dd if head[14] >> 4 == 6 && half(18) != 0 && data.len() >= 54 => {
                if !matches!(head[20], TCP | UDP | SCTP | ICMPV6) {
                    return None;
                }
                (
                    6,
                    i16::from(head[20]),
                    false,
                    54,
                    54 + usize::from(half(18)),
                )
            }
            0x0806 => (0, -1, false, 0, 0),
            _ => return None,
        };
        // Padding behind the packet is no header.
        let transport = data.get(at..end.min(data.len())).unwrap_or_default();
        let (ports, flags) = match transport.first_chunk::<14>() {
            Some(header) => (
                Some([header[0], header[1], header[2], header[3]]),
                i16::from(header[13]),
            ),
            None => (transport.first_chunk().copied(), -1),
        };
        let is = |number: u8| proto == i16::from(number);
        let has_ports = (is(TCP) | is(UDP) | is(SCTP)) & !is_later & ports.is_some();
        let [a, b, c, d] = ports.unwrap_or_default();
        let port = |high, low| {
            let port = i32::from(u16::from_be_bytes([high, low]));
            if has_ports { port } else { -1 }
        };
        (self.ip, self.later_fragment, self.proto) = (ip, u8::from(is_later), proto);
        (self.src_port, self.dst_port) = (port(a, b), port(c, d));
        self.tcp_flags = if is(TCP) & !is_later { flags } else { -1 };
        Some(())
    }

    /// Notes what the headers say of an Ethernet frame with whole TCP or UDP headers behind a plain IP header. `None`: it
    /// is another one, or asks for a closer look.
    #[inline]
    fn common(&mut self, data: &[u8]) -> Option<()> {
        let head: &[u8; 42] = data.first_chunk()?;
        let (ip, proto, at, end) = match [head[12], head[13]] {
            // Version 4, no options; no fragment.
            [8, 0]
                if head[14] == 0x45 && u16::from_be_bytes([head[20], head[21]]) & 0x3fff == 0 =>
            {
                self.src[0] = u32::from_be_bytes([head[26], head[27], head[28], head[29]]);
                self.dst[0] = u32::from_be_bytes([head[30], head[31], head[32], head[33]]);
                let len = usize::from(u16::from_be_bytes([head[16], head[17]]));
                (4, head[23], 34, 14 + len)
            }
            [0x86, 0xdd] if head[14] >> 4 == 6 => {
                let head: &[u8; 62] = data.first_chunk()?;
                self.src = quad(head[22..].first_chunk()?);
                self.dst = quad(head[38..].first_chunk()?);
                let len = usize::from(u16::from_be_bytes([head[18], head[19]]));
                (6, head[20], 54, 54 + len)
            }
            _ => return None,
        };
        let transport = data.get(at..end.min(data.len()))?;
        let ports: &[u8; 8] = transport.first_chunk()?;
        let (header, end) = match proto {
            UDP => {
                let len = usize::from(u16::from_be_bytes([ports[4], ports[5]]));
                self.tcp_flags = -1;
                (8, if len >= 8 { len } else { usize::MAX })
            }
            TCP => {
                let fixed: &[u8; 20] = transport.first_chunk()?;
                self.tcp_flags = i16::from(fixed[13]);
                let header = usize::from(fixed[12] >> 4) * 4;
                if header < fixed.len() {
                    return None;
                }
                (header, usize::MAX)
            }
            _ => return None,
        };
        let payload_len = transport.len().min(end).checked_sub(header)?;
        (self.ip, self.later_fragment, self.vlan) = (ip, 0, -1);
        self.proto = i16::from(proto);
        self.ether_type = i32::from(u16::from_be_bytes([head[12], head[13]]));
        self.src_port = i32::from(u16::from_be_bytes([ports[0], ports[1]]));
        self.dst_port = i32::from(u16::from_be_bytes([ports[2], ports[3]]));
        // As of an empty slice above.
        self.payload = int(if payload_len == 0 {
            data.len()
        } else {
            at + header
        });
        self.payload_len = int(payload_len);
        Some(())
    }
}

/// A place in a packet of at most 2 GiB.
fn int(place: usize) -> i32 {
    i32::try_from(place).unwrap_or(-1)
}

/// The version and the address.
fn words(addr: IpAddr) -> (u8, [u32; 4]) {
    match addr {
        IpAddr::V4(addr) => (4, [addr.to_bits(), 0, 0, 0]),
        IpAddr::V6(addr) => (6, quad(&addr.octets())),
    }
}

fn quad(octets: &[u8; 16]) -> [u32; 4] {
    let word = |at: usize| {
        u32::from_be_bytes([octets[at], octets[at + 1], octets[at + 2], octets[at + 3]])
    };
    [word(0), word(4), word(8), word(12)]
}
