//! The facts of a packet that the trusted Lua part reads: a fixed C struct. Rust fills the struct
//! before a call, and during a call if the script requests more facts.
//!
//! Rust, not Lua, parses the headers. So scripts and `$flow` agree about the headers: the facts are
//! those of [`retroscope_packet::parse`]. For most packets [`CommonHeaders`] finds the same facts
//! in a fraction of the time. If a script uses only protocol, ports and flags, parsing takes even
//! less time.

use std::net::IpAddr;

use retroscope_packet::{
    CommonHeaders, Icmp, LinkType, Parsed, parse,
    proto::{SCTP, TCP, UDP},
};

use crate::module_types::ScriptPacket;

/// A set of facts about packets, one bit for each kind of fact. `prelude.lua` uses the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct PacketFacts(pub(crate) u32);

impl PacketFacts {
    /// Address and number of the captured bytes.
    pub(crate) const BYTES: Self = Self(1);
    /// The facts of the record: time, length on the wire, interface, link type, direction.
    pub(crate) const RECORD: Self = Self(2);
    /// IP version, protocol, ports, TCP flags, and whether the packet is a later fragment.
    pub(crate) const TRANSPORT: Self = Self(4);
    /// All facts in headers, those of [`Self::TRANSPORT`] included.
    pub(crate) const HEADERS: Self = Self(8);
    pub(crate) const ALL: Self = Self(15);

    #[inline]
    pub(crate) fn has(self, facts: Self) -> bool {
        self.0 & facts.0 == facts.0
    }
}

/// The facts of a packet for Lua. `prelude.lua` declares the same fields at the same offsets; a
/// test compares the two declarations.
///
/// A header field of type `i16` or `i32` is -1 if the packet does not have it.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct PacketSlot {
    /// Address of the captured bytes.
    pub(crate) data: u64,
    pub(crate) time_ns: i64,
    /// Captured bytes.
    pub(crate) len: u32,
    pub(crate) wire_len: u32,
    pub(crate) interface: u16,
    pub(crate) link_type: u16,
    pub(crate) direction: u8,
    /// IP version: 4 or 6. 0 if the packet is not IP.
    pub(crate) ip: u8,
    /// 1 if the packet is a fragment other than the first.
    pub(crate) later_fragment: u8,
    pub(crate) proto: i16,
    pub(crate) tcp_flags: i16,
    /// Identifier of the outermost VLAN tag.
    pub(crate) vlan: i16,
    pub(crate) ether_type: i32,
    pub(crate) src_port: i32,
    pub(crate) dst_port: i32,
    /// Offset of the payload, or `len` if the captured length of the payload is 0. `payload_len` is
    /// this captured length.
    pub(crate) payload: i32,
    pub(crate) payload_len: i32,
    /// Offset of the IP header.
    pub(crate) network: i32,
    /// Offset of the header of TCP, UDP, SCTP or ICMP.
    pub(crate) transport: i32,
    /// ICMP type and code, with the type in the higher byte.
    pub(crate) icmp: i32,
    /// Source address as words in the processor's byte order, the first bytes of the address in the
    /// first word. IPv4 uses only the first word. If `ip` is 0, no word has a meaning.
    pub(crate) src: [u32; 4],
    pub(crate) dst: [u32; 4],
}

impl PacketSlot {
    /// The slot of no packet.
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
        network: -1,
        transport: -1,
        icmp: -1,
        src: [0; 4],
        dst: [0; 4],
    };

    /// Fills in the requested facts of a packet. The slot is valid as long as the packet's bytes
    /// are borrowed.
    #[inline(always)]
    pub(crate) fn fill(&mut self, packet: &ScriptPacket<'_>, facts: PacketFacts) {
        // Bytes beyond 2 GiB are ignored, because offsets are `i32`. No packet is that long.
        let data = packet.data.get(..i32::MAX as usize).unwrap_or(packet.data);
        if facts.has(PacketFacts::BYTES) {
            self.data = data.as_ptr().expose_provenance() as u64;
            self.len = u32::try_from(data.len()).unwrap_or(u32::MAX);
        }
        if facts.has(PacketFacts::RECORD) {
            self.time_ns = packet.time_ns;
            self.wire_len = packet.wire_len;
            self.interface = packet.interface;
            self.link_type = packet.link_type.0;
            self.direction = packet.direction;
        }
        let is_told = if facts.has(PacketFacts::HEADERS) {
            packet.link_type == LinkType::ETHERNET && self.common::<true>(data).is_some()
        } else if facts.has(PacketFacts::TRANSPORT) {
            packet.link_type == LinkType::ETHERNET && self.common::<false>(data).is_some()
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

    /// Fills in the facts of parsed headers.
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
        let place = |at: Option<u32>| at.map_or(-1, |at| int(at as usize));
        self.network = place(parsed.network_offset);
        self.transport = place(parsed.transport_offset);
        let icmp = |icmp: Icmp| i32::from(icmp.kind) << 8 | i32::from(icmp.code);
        self.icmp = parsed.icmp.map_or(-1, icmp);
        let tag = parsed.vlan.outer();
        self.vlan = tag.map_or(-1, |tag| i16::try_from(tag.id()).unwrap_or(-1));
        self.ether_type = parsed.ether_type.map_or(-1, i32::from);
        (self.payload, self.payload_len) = match parsed.payload(data) {
            // The address of an empty slice has no meaning.
            Some([]) => (int(data.len()), 0),
            Some(payload) => {
                let at = payload.as_ptr().addr() - data.as_ptr().addr();
                (int(at), int(payload.len()))
            }
            None => (-1, -1),
        };
    }

    /// Fills in the requested facts of common headers. `None` if the frame needs the full parser.
    #[inline(always)]
    fn common<const ALL: bool>(&mut self, data: &[u8]) -> Option<()> {
        // Most frames get separate code in which the offsets of their fields are constants.
        let read = |version, transport| {
            CommonHeaders::read(data).filter(|headers| {
                (headers.version, headers.transport) == (version, transport)
                    && headers.fragment & 0x1fff == 0
                    && headers.transport::<14>(data).is_some()
            })
        };
        if let Some(headers) = read(4, 34) {
            self.tell::<ALL>(&headers, data)
        } else if let Some(headers) = read(6, 54) {
            self.tell::<ALL>(&headers, data)
        } else {
            self.tell_other::<ALL>(data)
        }
    }

    /// [`Self::tell`] for less common frames. A separate function keeps the code for most frames
    /// small.
    #[inline(never)]
    fn tell_other<const ALL: bool>(&mut self, data: &[u8]) -> Option<()> {
        self.tell::<ALL>(&CommonHeaders::read(data)?, data)
    }

    /// Fills in the facts of `headers` of `data`: all facts, or those of
    /// [`PacketFacts::TRANSPORT`]. `None` if the frame needs the full parser.
    ///
    /// Without `ALL` the code does not branch on the protocol, because the protocol of the next
    /// packet is unpredictable.
    #[inline(always)]
    fn tell<const ALL: bool>(&mut self, headers: &CommonHeaders, data: &[u8]) -> Option<()> {
        let (proto, transport) = (headers.proto, headers.transport);
        let is_first = headers.fragment & 0x1fff == 0;
        if ALL {
            let (start, end) = headers.payload(data).filter(|_| is_first)?;
            let len = end.min(data.len()).checked_sub(start)?;
            // As for an empty slice in [`Self::headers`].
            self.payload = int(if len == 0 { data.len() } else { start });
            self.payload_len = int(len);
            let addresses = data.get(headers.addresses..)?;
            if headers.version == 4 {
                self.src[0] = u32::from_be_bytes(*addresses.first_chunk()?);
                self.dst[0] = u32::from_be_bytes(*addresses[4..].first_chunk()?);
            } else {
                self.src = quad(addresses.first_chunk()?);
                self.dst = quad(addresses[16..].first_chunk()?);
            }
            self.ether_type = i32::from(u16::from_be_bytes([data[12], data[13]]));
            self.vlan = -1;
            self.network = LINK;
            self.transport = int(transport);
            self.icmp = -1;
        }
        let (ports, flags) = match headers.transport::<14>(data) {
            Some(&[a, b, c, d, .., flags]) => (Some([a, b, c, d]), i16::from(flags)),
            None => (headers.transport(data).copied(), -1),
        };
        let [a, b, c, d] = ports.unwrap_or_default();
        let none = NO_PORTS[usize::from(proto)] | -i32::from(!is_first | ports.is_none());
        self.src_port = i32::from(u16::from_be_bytes([a, b])) | none;
        self.dst_port = i32::from(u16::from_be_bytes([c, d])) | none;
        self.tcp_flags = if (proto == TCP) & is_first { flags } else { -1 };
        (self.ip, self.later_fragment) = (headers.version, u8::from(!is_first));
        // ARP has no protocol number: -1.
        self.proto = i16::from(proto) - i16::from(headers.version == 0);
        Some(())
    }
}

/// Offset of the IP header in an untagged Ethernet frame.
const LINK: i32 = 14;

/// By protocol: -1 (all ones) if the protocol has no ports. A table, because no branch predictor
/// predicts the order of TCP and UDP.
static NO_PORTS: [i32; 256] = {
    let mut table = [-1; 256];
    (table[TCP as usize], table[UDP as usize]) = (0, 0);
    table[SCTP as usize] = 0;
    table
};

/// An offset in a packet of at most 2 GiB.
fn int(place: usize) -> i32 {
    i32::try_from(place).unwrap_or(-1)
}

/// The IP version and the address.
fn words(addr: IpAddr) -> (u8, [u32; 4]) {
    match addr {
        IpAddr::V4(addr) => (4, [addr.to_bits(), 0, 0, 0]),
        IpAddr::V6(addr) => (6, quad(&addr.octets())),
    }
}

fn quad(octets: &[u8; 16]) -> [u32; 4] {
    let words = octets.as_chunks().0;
    [0, 1, 2, 3].map(|at| u32::from_be_bytes(words[at]))
}
