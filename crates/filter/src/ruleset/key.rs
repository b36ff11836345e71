//! Headers of a frame as libpcap's programs read the frame. Look-ups use these headers as keys.
//!
//! The result differs from [`retroscope_packet::parse()`], because pcap-filter(7) reads fixed
//! offsets. Without `protochain`, a program follows no IPv6 extension header, except one fragment
//! header for `proto`. A program skips no VLAN tag unless the expression says `vlan`, and checks no
//! length field. It checks the IP version only on raw IP, and reads IPv4 ports only if the fragment
//! offset is 0. A load beyond the captured bytes rejects the packet, so a field that was not
//! captured is absent here. A frame without a field that its headers promise is *short*.

use retroscope_packet::{
    CommonHeaders, LinkType,
    proto::{AH, ETHER_ARP, ETHER_IPV4, ETHER_IPV6, ETHER_RARP, FRAGMENT, ICMPV6},
};

use crate::{FilterMode, link::LinkLayout, tagged::TPIDS};

/// Protocols with ports. Each has a bit of the same name in [`frame_flags`].
pub(super) use retroscope_packet::proto::{SCTP, TCP, UDP};

/// Bits for network protocols. A value is one protocol or a set.
pub(super) mod kind {
    pub(in crate::ruleset) const V4: u8 = 1;
    pub(in crate::ruleset) const V6: u8 = 2;
    pub(in crate::ruleset) const ARP: u8 = 4;
    pub(in crate::ruleset) const RARP: u8 = 8;
    /// Any other protocol, never in a rule's set.
    pub(in crate::ruleset) const OTHER: u8 = 16;
    /// The field that names the protocol was not captured.
    pub(in crate::ruleset) const UNKNOWN: u8 = 0;
}

/// Facts about a frame, compared at once with the bits that an entry allows.
pub(super) mod frame_flags {
    /// The bits of [`super::kind`] without `OTHER`.
    pub(in crate::ruleset) const KINDS: u16 = 0x000f;
    pub(in crate::ruleset) const PLAIN: u16 = 0x0010;
    pub(in crate::ruleset) const TAGGED: u16 = 0x0020;
    pub(in crate::ruleset) const NO_PORTS: u16 = 0x0040;
    pub(in crate::ruleset) const TCP: u16 = 0x0080;
    pub(in crate::ruleset) const UDP: u16 = 0x0100;
    pub(in crate::ruleset) const SCTP: u16 = 0x0200;
    /// All protocols with ports. A bit is set even if the ports were not captured.
    pub(in crate::ruleset) const ANY_PORTS: u16 = TCP | UDP | SCTP;
    /// The look-up uses the source's address or port.
    pub(in crate::ruleset) const SRC: u16 = 0x0400;
    /// The look-up uses the destination's address or port.
    pub(in crate::ruleset) const DST: u16 = 0x0800;
    pub(in crate::ruleset) const ALL: u16 = 0x0fff;
}

/// Where a rule expects the network header: directly after the link header, or after one VLAN tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TagView {
    Plain,
    Tagged,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LinkHeaderKind {
    Layout(LinkLayout),
    /// Four bytes with an address family, in the byte order of this machine or in network order.
    Family {
        is_native: bool,
        mode: FilterMode,
    },
}

const ETHERNET: LinkHeaderKind = LinkHeaderKind::Layout(LinkLayout::ETHERNET);

impl LinkHeaderKind {
    /// `None` if [`HeaderKey::read`] cannot read this link type.
    pub(super) fn of(link_type: LinkType, mode: FilterMode) -> Option<Self> {
        match link_type {
            LinkType::NULL | LinkType::LOOP => {
                let is_native = link_type == LinkType::NULL;
                Some(Self::Family { is_native, mode })
            }
            // libpcap compiles no filter for this number.
            LinkType::RAW_OPENBSD => None,
            _ => LinkLayout::of(link_type).map(Self::Layout),
        }
    }
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct HeaderKey {
    /// IPv4 source address, or the source protocol address of ARP and RARP.
    pub(super) src: u32,
    pub(super) dst: u32,
    pub(super) src_port: u16,
    pub(super) dst_port: u16,
    /// Bits of [`frame_flags`], without `SRC` and `DST`.
    pub(super) frame_flags: u16,
    /// VLAN identifier of the tag directly after the Ethernet addresses.
    pub(super) vlan: u16,
    /// Offset of the network header.
    pub(super) network: u8,
    /// One bit of [`kind`], or `UNKNOWN`. In a tagged frame, the protocol after the tag.
    pub(super) kind: u8,
    /// IPv4 protocol or IPv6 next header.
    pub(super) proto: u8,
    /// Next header of a fragment header that directly follows the IPv6 header, else
    /// [`HeaderKey::proto`].
    pub(super) inner_proto: u8,
    /// Bits of [`has`].
    pub(super) has: u16,
}

/// Which fields of a frame were captured, and kinds of frames.
pub(super) mod has {
    pub(in crate::ruleset) const SRC: u16 = 1;
    pub(in crate::ruleset) const DST: u16 = 2;
    pub(in crate::ruleset) const SRC_PORT: u16 = 4;
    pub(in crate::ruleset) const DST_PORT: u16 = 8;
    pub(in crate::ruleset) const PROTO: u16 = 0x10;
    pub(in crate::ruleset) const INNER_PROTO: u16 = 0x20;
    pub(in crate::ruleset) const SRC_MAC: u16 = 0x40;
    pub(in crate::ruleset) const DST_MAC: u16 = 0x80;
    pub(in crate::ruleset) const VLAN: u16 = 0x100;
    /// The EtherType of a VLAN tag follows the Ethernet addresses. The rest of the tag may be
    /// missing.
    pub(in crate::ruleset) const TAG: u16 = 0x200;
    /// A primitive that look-ups understand makes a load beyond the captured bytes of this frame.
    pub(in crate::ruleset) const SHORT: u16 = 0x400;
    /// An IPv4 fragment, first or later.
    pub(in crate::ruleset) const FRAGMENT: u16 = 0x800;
    /// `retroscope-packet` may see another flow than these fields show.
    pub(in crate::ruleset) const UNUSUAL: u16 = 0x1000;
    pub(in crate::ruleset) const ADDRESSES: u16 = SRC | DST;
    pub(in crate::ruleset) const PORTS: u16 = SRC_PORT | DST_PORT;
    pub(in crate::ruleset) const FLOW: u16 = ADDRESSES | PORTS;
}

impl HeaderKey {
    pub(super) fn has(&self, bits: u16) -> bool {
        self.has & bits == bits
    }

    pub(super) fn is_tagged(&self) -> bool {
        self.has & has::TAG != 0
    }

    /// The network protocol that a rule of this view sees. `None` if not captured.
    pub(super) fn kind_in(&self, view: TagView) -> Option<u8> {
        match (view, self.is_tagged()) {
            // A program without `vlan` sees the tag's EtherType, which is no network protocol.
            (TagView::Plain, true) => Some(kind::OTHER),
            (TagView::Tagged, false) => Some(kind::OTHER),
            _ => (self.kind != kind::UNKNOWN).then_some(self.kind),
        }
    }

    /// Reads a frame. Writes the fields of common frames in place: a copy of recent narrow stores
    /// by wider loads makes the processor wait for the stores.
    #[inline]
    pub(super) fn read(&mut self, link_header: LinkHeaderKind, data: &[u8]) {
        if link_header == ETHERNET
            && let Some(common) = CommonHeaders::read(data)
            && (common.version, common.transport, common.fragment) == (4, 34, 0)
            && let Some(header) = data.first_chunk()
        {
            self.read_common(&common, header);
        } else {
            *self = Self::any(link_header, data);
        }
    }

    /// Reads Ethernet with IPv4 without options, not fragmented. `header` ends after the ports.
    #[inline]
    fn read_common(&mut self, common: &CommonHeaders, header: &[u8; 38]) {
        let word = |at| word(header, at).unwrap_or_default();
        let half = |at| half(header, at).unwrap_or_default();
        let (ports_flag, ports_has) = ports_of(common.proto);
        self.src = word(common.addresses);
        self.dst = word(common.addresses + 4);
        self.src_port = half(common.transport);
        self.dst_port = half(common.transport + 2);
        self.frame_flags = u16::from(kind::V4) | frame_flags::PLAIN | ports_flag;
        self.vlan = 0;
        self.network = 14;
        self.kind = kind::V4;
        self.proto = common.proto;
        self.inner_proto = common.proto;
        self.has = has::ADDRESSES
            | has::PROTO
            | has::INNER_PROTO
            | has::SRC_MAC
            | has::DST_MAC
            | ports_has;
    }

    #[cold]
    fn any(link_header: LinkHeaderKind, data: &[u8]) -> Self {
        let mut key = Self {
            frame_flags: frame_flags::NO_PORTS,
            ..Self::default()
        };
        key.link(link_header, data);
        key.frame_flags |= if key.is_tagged() {
            frame_flags::TAGGED
        } else {
            frame_flags::PLAIN
        };
        key.frame_flags |= u16::from(key.kind) & frame_flags::KINDS;
        let no_link = matches!(
            link_header,
            LinkHeaderKind::Layout(LinkLayout::Raw | LinkLayout::Ipv4 | LinkLayout::Ipv6)
        );
        let is_usual = (no_link || link_header == ETHERNET)
            && match key.kind {
                kind::V4 => key.proto != AH,
                kind::V6 => matches!(key.proto, TCP | UDP | SCTP | ICMPV6),
                _ => false,
            };
        if !is_usual {
            key.has |= has::UNUSUAL;
        }
        key
    }

    fn link(&mut self, link_header: LinkHeaderKind, data: &[u8]) {
        let (type_at, network) = match link_header {
            LinkHeaderKind::Layout(LinkLayout::EtherType { at, bytes }) => (usize::from(at), bytes),
            LinkHeaderKind::Layout(LinkLayout::Ipv4) => {
                return self.network(Some(kind::V4), 0, data);
            }
            LinkHeaderKind::Layout(LinkLayout::Ipv6) => {
                return self.network(Some(kind::V6), 0, data);
            }
            LinkHeaderKind::Layout(LinkLayout::Raw) => {
                let version = byte(data, 0).map(|byte| match byte >> 4 {
                    4 => kind::V4,
                    6 => kind::V6,
                    _ => kind::OTHER,
                });
                return self.network(version, 0, data);
            }
            LinkHeaderKind::Family { is_native, mode } => {
                let family = word(data, 0).map(|family| {
                    if is_native {
                        u32::from_ne_bytes(family.to_be_bytes())
                    } else {
                        family
                    }
                });
                return self.network(family.map(|family| kind_of_family(family, mode)), 4, data);
            }
        };
        if link_header == ETHERNET {
            for (end, bit) in [(6, has::DST_MAC), (12, has::SRC_MAC)] {
                self.has |= if data.len() >= end { bit } else { 0 };
            }
        }
        let ether_type = half(data, type_at);
        if link_header == ETHERNET && ether_type.is_some_and(|tpid| TPIDS.contains(&tpid)) {
            self.has |= has::TAG;
            match half(data, 14) {
                Some(tci) => {
                    self.vlan = tci & 0x0fff;
                    self.has |= has::VLAN;
                }
                None => self.has |= has::SHORT,
            }
            return self.network(half(data, 16).map(kind_of), 18, data);
        }
        self.network(ether_type.map(kind_of), network, data);
    }

    fn network(&mut self, kind: Option<u8>, at: u8, data: &[u8]) {
        self.network = at;
        let at = usize::from(at);
        self.kind = kind.unwrap_or(kind::UNKNOWN);
        match self.kind {
            kind::V4 => self.v4(at, data),
            kind::V6 => self.v6(at, data),
            kind::ARP | kind::RARP => self.v4_addresses(at + 14, at + 24, data),
            kind::UNKNOWN => self.has |= has::SHORT,
            _ => {}
        }
    }

    fn v4_addresses(&mut self, src: usize, dst: usize, data: &[u8]) {
        self.src = self.take(word(data, src), has::SRC);
        self.dst = self.take(word(data, dst), has::DST);
    }

    fn v4(&mut self, at: usize, data: &[u8]) {
        self.v4_addresses(at + 12, at + 16, data);
        self.proto = self.take(byte(data, at + 9), has::PROTO | has::INNER_PROTO);
        self.inner_proto = self.proto;
        let Some(fragment) = half(data, at + 6) else {
            self.has |= has::SHORT;
            return;
        };
        if fragment & 0x3fff != 0 {
            self.has |= has::FRAGMENT;
        }
        if fragment & 0x1fff == 0
            && self.has(has::PROTO)
            && let Some(first) = byte(data, at)
        {
            self.ports(at + usize::from(first & 0x0f) * 4, data);
        }
    }

    fn v6(&mut self, at: usize, data: &[u8]) {
        // IPv6 addresses stay in the packet: see `HeaderKey::v6_address`.
        for (end, bit) in [(at + 24, has::SRC), (at + 40, has::DST)] {
            self.has |= if data.len() >= end { bit } else { has::SHORT };
        }
        self.proto = self.take(byte(data, at + 6), has::PROTO);
        if !self.has(has::PROTO) {
            return;
        }
        self.inner_proto = if self.proto == FRAGMENT {
            self.take(byte(data, at + 40), has::INNER_PROTO)
        } else {
            self.has |= has::INNER_PROTO;
            self.proto
        };
        self.ports(at + 40, data);
    }

    fn ports(&mut self, at: usize, data: &[u8]) {
        let (ports_flag, ports_has) = ports_of(self.proto);
        if ports_has == 0 {
            return;
        }
        self.frame_flags = self.frame_flags & !frame_flags::NO_PORTS | ports_flag;
        self.src_port = self.take(half(data, at), has::SRC_PORT);
        self.dst_port = self.take(half(data, at + 2), has::DST_PORT);
    }

    fn take<T: Default>(&mut self, value: Option<T>, bits: u16) -> T {
        self.has |= if value.is_some() { bits } else { has::SHORT };
        value.unwrap_or_default()
    }

    /// The source or destination address of an IPv6 frame, if captured.
    pub(super) fn v6_address(&self, data: &[u8], is_dst: bool) -> Option<u128> {
        let at = usize::from(self.network) + if is_dst { 24 } else { 8 };
        let bytes = data.get(at..)?.first_chunk()?;
        Some(u128::from_be_bytes(*bytes))
    }

    /// Whether an address of an IPv6 frame begins with these bits. Compares word by word, like
    /// libpcap, up to the first difference. `None` if a compared byte was not captured.
    pub(super) fn v6_begins_with(
        &self,
        data: &[u8],
        is_dst: bool,
        addr: u128,
        bits: u8,
    ) -> Option<bool> {
        let mut at = usize::from(self.network) + if is_dst { 24 } else { 8 };
        let mask = u128::MAX << (128 - u32::from(bits));
        let words = |value: u128| {
            #[expect(clippy::cast_possible_truncation, reason = "one word of four")]
            [96, 64, 32, 0].map(|shift| (value >> shift) as u32)
        };
        for (its, mask) in words(addr).into_iter().zip(words(mask)) {
            if mask == 0 {
                break;
            }
            if word(data, at)? & mask != its {
                return Some(false);
            }
            at += 4;
        }
        Some(true)
    }

    /// The source or destination hardware address of an Ethernet frame, if captured.
    pub(super) fn mac(&self, data: &[u8], is_dst: bool) -> Option<u64> {
        if !self.has(if is_dst { has::DST_MAC } else { has::SRC_MAC }) {
            return None;
        }
        let [a, b, c, d, e, f] = *data.get(if is_dst { 0 } else { 6 }..)?.first_chunk()?;
        Some(u64::from_be_bytes([0, 0, a, b, c, d, e, f]))
    }
}

/// The bit of [`frame_flags`] for each IP protocol number. A table, because a branch on the
/// protocol is unpredictable.
static PORTS: [u16; 256] = {
    let mut table = [frame_flags::NO_PORTS; 256];
    table[TCP as usize] = frame_flags::TCP;
    table[UDP as usize] = frame_flags::UDP;
    table[SCTP as usize] = frame_flags::SCTP;
    table
};

#[inline]
pub(super) fn proto_flag(proto: u8) -> u16 {
    PORTS[usize::from(proto)]
}

#[inline]
fn ports_of(proto: u8) -> (u16, u16) {
    let its = proto_flag(proto);
    const { assert!(frame_flags::NO_PORTS == 0x40) };
    // All ones for a protocol with ports, else 0.
    let mask = (its >> 6 & 1).wrapping_sub(1);
    (its, mask & has::PORTS)
}

/// The network protocol of an address family, with libpcap's numbers. IPv6 is the system's own
/// number on an interface, and the number of any BSD in a file.
fn kind_of_family(family: u32, mode: FilterMode) -> u8 {
    const V4: u32 = 2;
    const V6_LIVE: u32 = libc::AF_INET6.cast_unsigned();
    match (family, mode) {
        (V4, _) => kind::V4,
        (V6_LIVE, FilterMode::Live) | (24 | 28 | 30, FilterMode::Savefile) => kind::V6,
        _ => kind::OTHER,
    }
}

fn kind_of(ether_type: u16) -> u8 {
    match ether_type {
        ETHER_IPV4 => kind::V4,
        ETHER_IPV6 => kind::V6,
        ETHER_ARP => kind::ARP,
        ETHER_RARP => kind::RARP,
        _ => kind::OTHER,
    }
}

fn byte(data: &[u8], at: usize) -> Option<u8> {
    data.get(at).copied()
}

fn half(data: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*data.get(at..)?.first_chunk()?))
}

fn word(data: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*data.get(at..)?.first_chunk()?))
}
