//! Look-up keys of entries, and the table keys of each look-up key.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use retroscope_packet::{FlowKey, Mac};

use super::{
    atom::Atom,
    key::{frame_flags, kind, proto_flag},
    table::{Seeds, TableSlot},
};

/// The part of a rule by which packets find the rule.
#[derive(Debug, Clone, Copy)]
pub(super) enum LookUpKey {
    Flow4(FiveTuple<u32>),
    Flow6(FiveTuple<u128>),
    /// A primitive, without its `ends` (source or destination).
    One(Atom),
    /// IP fragments between two addresses, for `$flow` and `$communityId`.
    Fragments([IpAddr; 2]),
    /// All IP packets between two addresses, for `$flow`.
    Pair([IpAddr; 2]),
    /// A flow that is not IP, for `$flow`.
    Link(FlowKey),
}

/// TCP, UDP or SCTP between two hosts and two ports. Hosts and ports are each in ascending order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FiveTuple<A> {
    pub(super) proto: u8,
    pub(super) hosts: [A; 2],
    pub(super) ports: [u16; 2],
}

impl<A: Ord + Copy> FiveTuple<A> {
    pub(super) fn new(proto: u8, hosts: [A; 2], ports: [u16; 2]) -> Self {
        let [a, b] = hosts;
        let [a_port, b_port] = ports;
        Self {
            proto,
            hosts: [a.min(b), a.max(b)],
            ports: [a_port.min(b_port), a_port.max(b_port)],
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TableKey {
    Flow(Flow4Key),
    Small(u64),
}

/// All four orientations of a flow: addresses and ports, each in order or exchanged.
pub(super) const ALL_ORIENTATIONS: u8 = 0b1111;

/// Kinds of keys. A [`SmallSlot`]'s key has its tag in the upper 8 bits.
pub(super) mod tag {
    /// IPv4 flows, which have a separate table.
    pub(in crate::ruleset) const FLOW4: u8 = 0;
    pub(in crate::ruleset) const V4: u8 = 1;
    pub(in crate::ruleset) const PORT: u8 = 2;
    pub(in crate::ruleset) const MAC: u8 = 3;
    pub(in crate::ruleset) const VLAN: u8 = 4;
    pub(in crate::ruleset) const PROTO: u8 = 5;
    pub(in crate::ruleset) const KIND: u8 = 6;
    pub(in crate::ruleset) const V6: u8 = 7;
    pub(in crate::ruleset) const FLOW6: u8 = 8;
    pub(in crate::ruleset) const PAIR: u8 = 9;
    pub(in crate::ruleset) const FRAGMENTS: u8 = 10;
    pub(in crate::ruleset) const LINK: u8 = 11;
    pub(in crate::ruleset) const INTERFACE: u8 = 12;
    pub(in crate::ruleset) const COUNT: usize = 13;
}

/// A key from the tag and the lower 56 bits of `value`.
#[inline]
pub(super) fn small(tag: u8, value: u64) -> u64 {
    u64::from(tag) << 56 | value & (u64::MAX >> 8)
}

pub(super) fn tag_of(key: u64) -> u8 {
    key.to_be_bytes()[0]
}

/// Key of the first `bits` bits of an IPv4 address (1 to 32), or of a port (1 to 16) in the upper
/// half of `value`.
#[inline]
pub(super) fn prefix_key(tag: u8, value: u32, bits: u8) -> u64 {
    let masked = value & (u32::MAX << (32 - u32::from(bits)));
    small(tag, u64::from(bits) << 32 | u64::from(masked))
}

#[inline]
pub(super) fn proto_key(kind: u8, number: u8) -> u64 {
    small(tag::PROTO, u64::from(kind) << 8 | u64::from(number))
}

/// Key of an IPv6 prefix. The key has 48 bits of a hash, because the address is too long.
pub(super) fn v6_key(seeds: Seeds, addr: u128, bits: u8) -> u64 {
    let masked = addr & (u128::MAX << (128 - u32::from(bits)));
    small(tag::V6, u64::from(bits) << 48 | wide(seeds, masked) >> 16)
}

pub(super) fn flow6_key(seeds: Seeds, flow: &FiveTuple<u128>) -> u64 {
    let [low, high] = flow.hosts;
    let [low_port, high_port] = flow.ports.map(u64::from);
    let rest = low_port << 24 | high_port << 8 | u64::from(flow.proto);
    let hash = seeds.hash(wide(seeds, low) ^ rest, wide(seeds, high));
    small(tag::FLOW6, hash)
}

/// Key of two addresses in any order.
pub(super) fn pair_key(seeds: Seeds, tag: u8, pair: [IpAddr; 2]) -> u64 {
    let bits = |addr: IpAddr| match addr {
        IpAddr::V4(addr) => u128::from(addr.to_bits()) | 1 << 127,
        IpAddr::V6(addr) => addr.to_bits(),
    };
    let [a, b] = pair.map(bits);
    small(
        tag,
        seeds.hash(wide(seeds, a.min(b)), wide(seeds, a.max(b))),
    )
}

/// Key of a flow that is not IP. `None` for an IP flow.
pub(super) fn link_key(seeds: Seeds, flow: &FlowKey) -> Option<u64> {
    let mac = |mac: [u8; 6]| {
        let [a, b, c, d, e, f] = mac;
        u64::from_be_bytes([0, 0, a, b, c, d, e, f])
    };
    let hash = match *flow {
        FlowKey::Mac {
            ether_type,
            low,
            high,
        } => {
            let ether_type = ether_type.map_or(0, |ether_type| u64::from(ether_type) | 1 << 16);
            seeds.hash(mac(low) | ether_type << 48, mac(high) ^ ether_type >> 16)
        }
        FlowKey::Link {
            link_type,
            protocol,
        } => seeds.hash(u64::from(link_type.0), u64::from(protocol)),
        FlowKey::Ports { .. } | FlowKey::Ip { .. } => return None,
    };
    Some(small(tag::LINK, hash))
}

#[expect(clippy::cast_possible_truncation, reason = "the two halves are folded")]
fn wide(seeds: Seeds, value: u128) -> u64 {
    seeds.hash(value as u64, (value >> 64) as u64)
}

impl LookUpKey {
    pub(super) fn keys(&self, seeds: Seeds) -> Vec<TableKey> {
        let one = |key| vec![TableKey::Small(key)];
        let atom = match *self {
            Self::Flow4(FiveTuple {
                proto,
                hosts: [low, high],
                ports: [low_port, high_port],
            }) => {
                let ports = (low_port, high_port);
                let (key, _) = Flow4Key::new(proto_flag(proto), low, high, ports);
                return vec![TableKey::Flow(key)];
            }
            Self::Flow6(flow) => return one(flow6_key(seeds, &flow)),
            Self::Fragments(pair) => return one(pair_key(seeds, tag::FRAGMENTS, pair)),
            Self::Pair(pair) => return one(pair_key(seeds, tag::PAIR, pair)),
            Self::Link(flow) => {
                let key = link_key(seeds, &flow).map(TableKey::Small);
                return key.into_iter().collect();
            }
            Self::One(atom) => atom,
        };
        match atom {
            Atom::V4 { addr, bits, .. } => one(prefix_key(tag::V4, addr, bits)),
            Atom::V6 { addr, bits, .. } => one(v6_key(seeds, addr, bits)),
            Atom::Ports { low, high, .. } => {
                let port_key = |(port, bits)| prefix_key(tag::PORT, u32::from(port) << 16, bits);
                let keys = prefixes(low, high).into_iter().map(port_key);
                keys.map(TableKey::Small).collect()
            }
            Atom::Mac { addr, .. } => one(small(tag::MAC, addr)),
            Atom::Vlan(Some(id)) => one(small(tag::VLAN, u64::from(id))),
            Atom::Proto { number, kinds } => each(kinds)
                .map(|kind| TableKey::Small(proto_key(kind, number)))
                .collect(),
            Atom::Kinds(kinds) => each(kinds)
                .map(|kind| TableKey::Small(small(tag::KIND, u64::from(kind))))
                .collect(),
            Atom::Interface(interface) => one(small(tag::INTERFACE, u64::from(interface))),
            Atom::Vlan(None) | Atom::Flow(_) | Atom::Opaque => Vec::new(),
        }
    }
}

fn each(kinds: u8) -> impl Iterator<Item = u8> {
    [kind::V4, kind::V6, kind::ARP, kind::RARP]
        .into_iter()
        .filter(move |kind| kinds & kind != 0)
}

/// A port range as the smallest number of prefixes, each a port and a length.
fn prefixes(low: u16, high: u16) -> Vec<(u16, u8)> {
    let mut prefixes = Vec::new();
    let (mut at, end) = (u32::from(low), u32::from(high) + 1);
    while at < end {
        // The largest block that starts here and ends in the range, at most half of all ports.
        let aligned = at.trailing_zeros().min(15);
        let fits = (end - at).ilog2();
        let size = aligned.min(fits);
        let bits = 16 - u8::try_from(size).unwrap_or(0);
        prefixes.push((u16::try_from(at).unwrap_or(u16::MAX), bits));
        at += 1 << size;
    }
    prefixes
}

/// Table key of an IPv4 flow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Flow4Key {
    addresses: u64,
    /// From the lowest bit: protocol (2 bits: 1 TCP, 2 UDP, 3 SCTP), unused (30), ports (32).
    ports: u64,
}

impl Flow4Key {
    /// A key from two ends in any order. Also returns the orientation as one bit: 0 if nothing was
    /// exchanged, 1 if the addresses, 2 if the ports, 3 if both were exchanged.
    #[inline]
    pub(super) fn new(frame_flags: u16, src: u32, dst: u32, ports: (u16, u16)) -> (Self, u8) {
        let swapped = u8::from(src > dst);
        let ports_swapped = u8::from(ports.0 > ports.1);
        let (low, high) = (src.min(dst), src.max(dst));
        let (low_port, high_port) = (ports.0.min(ports.1), ports.0.max(ports.1));
        const {
            assert!(
                frame_flags::TCP == 1 << 7
                    && frame_flags::UDP == 2 << 7
                    && frame_flags::SCTP == 4 << 7
            )
        };
        let bit = frame_flags >> 7 & 7;
        let proto = bit - (bit >> 2);
        let ports = u64::from(low_port) << 16 | u64::from(high_port);
        let key = Self {
            addresses: u64::from(low) << 32 | u64::from(high),
            ports: ports << 32 | u64::from(proto),
        };
        (key, 1 << (swapped | ports_swapped << 1))
    }
}

/// Slot for an IPv4 flow: the whole key, and the views and orientations that a single rule accepts.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(super) struct Flow4Slot {
    addresses: u64,
    /// From the lowest bit: protocol (2), views (2: plain, tagged), orientations (4), whether the
    /// value is a group (1), value (23), ports (32).
    rest: u64,
}

impl Flow4Slot {
    /// The bits of `rest` that belong to the key.
    const KEY: u64 = 0xffff_ffff_0000_0003;
    /// The largest number of a rule or group.
    pub(super) const VALUE_MAX: u32 = (1 << 23) - 1;

    pub(super) fn one(key: Flow4Key, rule: u32, need: u16, orientations: u8) -> Self {
        let views = u32::from(need & (frame_flags::PLAIN | frame_flags::TAGGED))
            / u32::from(frame_flags::PLAIN);
        Self::with(key, views << 2 | u32::from(orientations) << 4, rule)
    }

    /// Panics if `group` is above [`Self::VALUE_MAX`], which needs 8 million keys: the slot would
    /// refer to another group.
    pub(super) fn group(key: Flow4Key, group: u32) -> Self {
        Self::with(key, 0x100, group)
    }

    #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
    fn word(&self) -> u32 {
        self.rest as u32
    }

    fn with(key: Flow4Key, low: u32, value: u32) -> Self {
        assert!(value <= Self::VALUE_MAX, "a slot has 23 bits for a number");
        Self {
            addresses: key.addresses,
            rest: key.ports | u64::from(value << 9 | low),
        }
    }
}

impl TableSlot for Flow4Slot {
    type Key = Flow4Key;

    fn key(&self) -> Flow4Key {
        Flow4Key {
            addresses: self.addresses,
            ports: self.rest & Self::KEY,
        }
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.rest & 3 == 0
    }

    #[inline]
    fn has_key(&self, key: Flow4Key) -> bool {
        (self.addresses ^ key.addresses) | ((self.rest ^ key.ports) & Self::KEY) == 0
    }

    #[inline]
    fn hash(key: Flow4Key, seeds: Seeds) -> u64 {
        seeds.hash(key.addresses, key.ports)
    }

    #[inline]
    fn parts(&self) -> (u32, bool) {
        (self.word() >> 9, self.word() & 0x100 != 0)
    }

    /// Compares `orientation`, and of `frame_flags` only the bits `PLAIN` and `TAGGED`.
    #[inline]
    fn accepts(&self, frame_flags: u16, orientation: u8) -> bool {
        let views = u32::from(frame_flags & (frame_flags::PLAIN | frame_flags::TAGGED))
            / u32::from(frame_flags::PLAIN);
        let asked = views << 2 | u32::from(orientation) << 4;
        self.word() & asked == asked
    }

    fn need(&self) -> (u16, u8) {
        let [low, ..] = self.word().to_le_bytes();
        let views = u16::from(low >> 2 & 3) * frame_flags::PLAIN;
        let need = frame_flags::ALL & !(frame_flags::PLAIN | frame_flags::TAGGED) | views;
        (need, low >> 4)
    }
}

/// Slot for a key of 56 bits and a tag.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(super) struct SmallSlot {
    key: u64,
    value: u32,
    /// A frame matches a single rule only if its flags are a subset of these bits. 0 for a group.
    need: u16,
    is_group: u16,
}

impl SmallSlot {
    pub(super) fn one(key: u64, rule: u32, need: u16) -> Self {
        Self {
            key,
            value: rule,
            need,
            is_group: 0,
        }
    }

    pub(super) fn group(key: u64, group: u32) -> Self {
        Self {
            key,
            value: group,
            need: 0,
            is_group: 1,
        }
    }
}

impl TableSlot for SmallSlot {
    type Key = u64;

    fn key(&self) -> u64 {
        self.key
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.key == 0
    }

    #[inline]
    fn has_key(&self, key: u64) -> bool {
        self.key == key
    }

    #[inline]
    fn hash(key: u64, seeds: Seeds) -> u64 {
        seeds.hash(key, 0)
    }

    #[inline]
    fn parts(&self) -> (u32, bool) {
        (self.value, self.is_group != 0)
    }

    /// The orientation does not count.
    #[inline]
    fn accepts(&self, frame_flags: u16, _orientation: u8) -> bool {
        frame_flags & !self.need == 0
    }

    fn need(&self) -> (u16, u8) {
        (self.need, ALL_ORIENTATIONS)
    }
}

impl fmt::Display for LookUpKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let atom = match *self {
            Self::Flow4(flow) => return write_flow(f, &flow, Ipv4Addr::from),
            Self::Flow6(flow) => return write_flow(f, &flow, Ipv6Addr::from),
            Self::Fragments([a, b]) => return write!(f, "fragments between {a} and {b}"),
            Self::Pair([a, b]) => return write!(f, "packets between {a} and {b}"),
            Self::Link(flow) => return write!(f, "{flow}"),
            Self::One(atom) => atom,
        };
        match atom {
            Atom::V4 { addr, bits: 32, .. } => write!(f, "host {}", Ipv4Addr::from(addr)),
            Atom::V4 { addr, bits, .. } => write!(f, "net {}/{bits}", Ipv4Addr::from(addr)),
            Atom::V6 {
                addr, bits: 128, ..
            } => write!(f, "host {}", Ipv6Addr::from(addr)),
            Atom::V6 { addr, bits, .. } => write!(f, "net {}/{bits}", Ipv6Addr::from(addr)),
            Atom::Ports { low, high, .. } if low == high => write!(f, "port {low}"),
            Atom::Ports { low, high, .. } => write!(f, "ports {low}-{high}"),
            Atom::Mac { addr, .. } => {
                let [_, _, mac @ ..] = addr.to_be_bytes();
                write!(f, "ether host {}", Mac(mac))
            }
            Atom::Vlan(Some(id)) => write!(f, "vlan {id}"),
            Atom::Proto { number, .. } => write!(f, "protocol {number}"),
            Atom::Kinds(kinds) => {
                let names: Vec<&str> = each(kinds).map(name_of_kind).collect();
                f.write_str(&names.join(" or "))
            }
            Atom::Interface(interface) => write!(f, "interface {interface}"),
            Atom::Vlan(None) | Atom::Flow(_) | Atom::Opaque => Ok(()),
        }
    }
}

fn name_of_kind(kind: u8) -> &'static str {
    match kind {
        kind::V4 => "ip",
        kind::V6 => "ip6",
        kind::ARP => "arp",
        _ => "rarp",
    }
}

fn write_flow<A: Copy, D: fmt::Display>(
    f: &mut fmt::Formatter<'_>,
    flow: &FiveTuple<A>,
    host: impl Fn(A) -> D,
) -> fmt::Result {
    let name = match flow.proto {
        super::key::TCP => "tcp",
        super::key::UDP => "udp",
        _ => "sctp",
    };
    let ([low, high], [low_port, high_port]) = (flow.hosts.map(host), flow.ports);
    write!(f, "flow {name} {low} {high} ports {low_port} {high_port}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Flow4Key = Flow4Key {
        addresses: 1,
        ports: 2,
    };

    #[test]
    fn a_slot_gives_back_its_number() {
        for number in [0, 1, Flow4Slot::VALUE_MAX] {
            assert_eq!(Flow4Slot::group(KEY, number).parts(), (number, true));
            let one = Flow4Slot::one(KEY, number, frame_flags::ALL, ALL_ORIENTATIONS);
            assert_eq!(one.parts(), (number, false));
        }
    }

    #[test]
    #[should_panic(expected = "23 bits")]
    fn a_group_number_without_room_is_not_cut() {
        let slot = Flow4Slot::group(KEY, Flow4Slot::VALUE_MAX + 1);
        assert_eq!(slot.parts().0, Flow4Slot::VALUE_MAX + 1);
    }
}
