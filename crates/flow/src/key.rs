//! The key of a flow as plain data, and its hash.
//!
//! The key has the content of a [`retroscope_packet::FlowKey`] in 48 bytes. It can also separate
//! flows by VLAN identifiers, and separates ICMP messages as a Community ID does.

use std::array;
use std::fmt;
use std::hash::{BuildHasher as _, Hash, Hasher, RandomState};
use std::mem::offset_of;
use std::net::{IpAddr, Ipv6Addr};

use retroscope_packet::{FlowEndpoint, FlowKey, Parsed, Ports, flow_of, icmp_ports};

/// Maximum number of VLAN identifiers in a key, as many as Suricata reports.
const VLANS: usize = 3;
/// Set in each VLAN identifier that a packet has: separates identifier 0 from no tag.
const TAGGED: u16 = 0x8000;

/// The kind of addresses in a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(u8)]
pub enum AddressKind {
    /// IPv4.
    #[default]
    V4 = 4,
    /// IPv6.
    V6 = 6,
    /// Hardware addresses of a packet that is not IP.
    Mac = 1,
    /// No addresses: the packet is not IP, and its link has no pair of hardware addresses.
    Link = 0,
    /// No addresses: see [`BiflowKey::opaque`].
    Opaque = 2,
}

/// The key of a bidirectional flow (biflow).
///
/// The smaller end is the first end. There are two exceptions: opaque keys, and ICMP messages that
/// have no reply, where the sender is the first end.
#[derive(Debug, Clone, Copy, Eq, PartialOrd, Ord, Default)]
#[repr(C)]
pub struct BiflowKey {
    /// Addresses of both ends in network order, padded with zeros. [`AddressKind::Opaque`]: bytes.
    addresses: [[u8; 16]; 2],
    /// Ports, or the numbers of [`icmp_ports`]. [`AddressKind::Mac`]: the EtherType and 0.
    /// [`AddressKind::Link`]: the link type and 0. [`AddressKind::Opaque`]: bytes.
    ports: [u16; 2],
    /// VLAN identifiers, outer to inner, each with [`TAGGED`], padded with zeros.
    vlans: [u16; VLANS],
    proto: u8,
    family: AddressKind,
    /// [`AddressKind::Mac`]: 1 if the packet has an EtherType. [`AddressKind::Link`]: the link
    /// header's number of the payload protocol. [`AddressKind::Opaque`]: the kind of the key.
    protocol: u32,
}

const _: () = assert!(size_of::<BiflowKey>() == 48);

/// The key of a packet's flow and the direction of the packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirectedKey {
    /// The key of the flow.
    pub key: BiflowKey,
    /// The packet went from the key's second end to the first.
    pub is_reverse: bool,
}

impl DirectedKey {
    /// The flow of a packet. `None` if [`flow_of`] cannot determine the flow.
    ///
    /// `has_vlans`: VLAN identifiers are part of the key, up to the outer three.
    #[must_use]
    pub fn of(parsed: &Parsed, has_vlans: bool) -> Option<Self> {
        let flow = flow_of(parsed)?;
        let (mut key, is_reverse) = match (flow, parsed.network) {
            (FlowKey::Ports { proto, low, high }, Some(ip)) => {
                let key = BiflowKey::ip(proto, [low, high]);
                let src = parsed.transport.map(|ports| ports.src);
                (key, (ip.src, src) != (low.addr, Some(low.port)))
            }
            (FlowKey::Ip { proto, .. }, Some(ip)) => {
                let (ports, is_one_way) = match parsed.icmp {
                    Some(icmp) => icmp_ports(icmp, ip.src.is_ipv6()),
                    None => (Ports { src: 0, dst: 0 }, false),
                };
                let end = |addr, port| FlowEndpoint { addr, port };
                let (src, dst) = (end(ip.src, ports.src), end(ip.dst, ports.dst));
                let is_reverse = !is_one_way && dst < src;
                let ends = if is_reverse { [dst, src] } else { [src, dst] };
                (BiflowKey::ip(proto, ends), is_reverse)
            }
            _ => (BiflowKey::from(flow), parsed.src_mac > parsed.dst_mac),
        };
        if has_vlans {
            let tags = parsed.vlan.tags().iter();
            for (place, tag) in key.vlans.iter_mut().zip(tags) {
                *place = TAGGED | tag.id();
            }
        }
        Some(Self { key, is_reverse })
    }
}

impl DirectedKey {
    /// As [`Self::of`] without VLAN identifiers, for a protocol with ports. `addresses` and `ports`
    /// are as in the packet: source, then destination.
    #[inline]
    pub(crate) fn of_ports(proto: u8, addresses: &[u8], ports: &[u8; 4]) -> Self {
        let (src, dst) = addresses.split_at(addresses.len() / 2);
        let wide = |addr: &[u8]| {
            let mut place = [0; 16];
            place[..addr.len()].copy_from_slice(addr);
            place
        };
        let port = |at: usize| u16::from_be_bytes([ports[at], ports[at + 1]]);
        let (src, dst) = ((wide(src), port(0)), (wide(dst), port(2)));
        let order = |(addr, port)| (u128::from_be_bytes(addr), port);
        let is_reverse = order(dst) < order(src);
        let (low, high) = if is_reverse { (dst, src) } else { (src, dst) };
        let key = BiflowKey {
            addresses: [low.0, high.0],
            ports: [low.1, high.1],
            proto,
            family: if addresses.len() == 8 {
                AddressKind::V4
            } else {
                AddressKind::V6
            },
            ..BiflowKey::default()
        };
        Self { key, is_reverse }
    }
}

/// An IP address, or the hardware address of a packet that is not IP. No address for
/// [`AddressKind::Link`] and [`AddressKind::Opaque`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Host {
    family: AddressKind,
    address: [u8; 16],
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g, ..] = self.address;
        match self.family {
            AddressKind::V4 => write!(f, "{a}.{b}.{c}.{d}"),
            AddressKind::V6 => Ipv6Addr::from(self.address).fmt(f),
            AddressKind::Mac => write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}"),
            AddressKind::Link | AddressKind::Opaque => f.write_str("no address"),
        }
    }
}

/// Compares as integers. The derived implementation compares field by field.
impl PartialEq for BiflowKey {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        let words = self.words().into_iter().zip(other.words());
        words.fold(0, |other, (a, b)| other | (a ^ b)) == 0
    }
}

impl Hash for BiflowKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.words().hash(state);
    }
}

/// The result has no VLAN identifiers and no ICMP types.
impl From<FlowKey> for BiflowKey {
    fn from(flow: FlowKey) -> Self {
        let mac = |mac: [u8; 6]| array::from_fn(|at| mac.get(at).copied().unwrap_or(0));
        match flow {
            FlowKey::Ports { proto, low, high } => Self::ip(proto, [low, high]),
            FlowKey::Ip { proto, low, high } => Self::ip(
                proto,
                [low, high].map(|addr| FlowEndpoint { addr, port: 0 }),
            ),
            FlowKey::Mac {
                ether_type,
                low,
                high,
            } => Self {
                addresses: [mac(low), mac(high)],
                ports: [ether_type.unwrap_or(0), 0],
                // An EtherType of 0 differs from no EtherType.
                protocol: u32::from(ether_type.is_some()),
                family: AddressKind::Mac,
                ..Self::default()
            },
            FlowKey::Link {
                link_type,
                protocol,
            } => Self {
                ports: [link_type.0, 0],
                protocol,
                family: AddressKind::Link,
                ..Self::default()
            },
        }
    }
}

impl BiflowKey {
    fn ip(proto: u8, ends: [FlowEndpoint; 2]) -> Self {
        let mut key = Self {
            ports: ends.map(|end| end.port),
            proto,
            ..Self::default()
        };
        for (place, end) in key.addresses.iter_mut().zip(ends) {
            match end.addr {
                IpAddr::V4(addr) => place[..4].copy_from_slice(&addr.octets()),
                IpAddr::V6(addr) => {
                    *place = addr.octets();
                    key.family = AddressKind::V6;
                }
            }
        }
        key
    }

    /// Byte offsets of the fields, for code that reads a key as plain data.
    #[must_use]
    pub const fn places() -> [(&'static str, usize); 6] {
        [
            ("addresses", offset_of!(Self, addresses)),
            ("ports", offset_of!(Self, ports)),
            ("vlans", offset_of!(Self, vlans)),
            ("proto", offset_of!(Self, proto)),
            ("family", offset_of!(Self, family)),
            ("protocol", offset_of!(Self, protocol)),
        ]
    }

    /// Maximum number of bytes in [`Self::opaque`].
    pub const OPAQUE: usize = 36;

    /// A key that the caller makes from its own bytes. `kind` separates several kinds of such keys.
    /// Bytes beyond [`Self::OPAQUE`] are ignored.
    #[must_use]
    pub fn opaque(kind: u8, bytes: &[u8]) -> Self {
        let mut all = [0; Self::OPAQUE];
        let len = bytes.len().min(all.len());
        all[..len].copy_from_slice(&bytes[..len]);
        let part = |at: usize| array::from_fn(|byte| all[at + byte]);
        let port = |at: usize| u16::from_ne_bytes([all[at], all[at + 1]]);
        Self {
            addresses: [part(0), part(16)],
            ports: [port(32), port(34)],
            protocol: kind.into(),
            family: AddressKind::Opaque,
            ..Self::default()
        }
    }

    /// The kind of the addresses.
    #[must_use]
    pub fn family(&self) -> AddressKind {
        self.family
    }

    /// The IP protocol number. 0 if the flow is not IP.
    #[must_use]
    pub fn proto(&self) -> u8 {
        self.proto
    }

    /// Both ends of a flow over IP. `None` if the flow is not IP. Port 0 if the protocol has no
    /// ports. ICMP: the numbers of [`icmp_ports`], or 0 without an ICMP type.
    #[must_use]
    pub fn endpoints(&self) -> Option<[FlowEndpoint; 2]> {
        let addr = |octets: [u8; 16]| match self.family {
            AddressKind::V4 => octets.first_chunk::<4>().map(|octets| (*octets).into()),
            AddressKind::V6 => Some(octets.into()),
            AddressKind::Mac | AddressKind::Link | AddressKind::Opaque => None,
        };
        let [low, high] = self.addresses.map(addr);
        let end = |addr, port| FlowEndpoint { addr, port };
        Some([end(low?, self.ports[0]), end(high?, self.ports[1])])
    }

    /// The addresses of both ends.
    #[must_use]
    pub fn hosts(&self) -> [Host; 2] {
        let family = self.family;
        self.addresses.map(|address| Host { family, address })
    }

    /// VLAN identifiers, outer to inner.
    pub fn vlans(&self) -> impl Iterator<Item = u16> {
        let tags = self.vlans.into_iter();
        tags.take_while(|tag| *tag != 0).map(|tag| tag & !TAGGED)
    }

    #[inline]
    fn words(&self) -> [u64; 6] {
        let [low, high] = self.addresses.map(u128::from_le_bytes);
        // Written so that the compiler makes one load of each half.
        let pair = |low: u16, high: u16| u64::from(u32::from(low) | u32::from(high) << 16);
        let ([a, b], [c, d, e]) = (self.ports, self.vlans);
        let kinds = u16::from(self.proto) | u16::from(self.family as u8) << 8;
        #[expect(clippy::cast_possible_truncation, reason = "one half of each")]
        [
            low as u64,
            (low >> 64) as u64,
            high as u64,
            (high >> 64) as u64,
            pair(a, b) | pair(c, d) << 32,
            pair(e, kinds) | u64::from(self.protocol) << 32,
        ]
    }
}

/// The secret of the hashes of a table's keys.
///
/// The hash is a sum of products with random factors (Dietzfelbinger 1996, "Universal hashing and
/// k-wise independent random variables via integer arithmetic without primes"). If somebody chooses
/// two keys without knowing the factors, all pairs of hashes have equal probability.
///
/// `std`'s SipHash also hides the secret from readers of hashes, but takes several times as long.
/// The tables here show their hashes to nobody.
#[derive(Debug, Clone)]
pub struct Secret {
    factors: [u128; 6],
    addend: u128,
}

impl Secret {
    /// A random secret, from the randomness of `std`'s hash maps.
    #[must_use]
    pub fn random() -> Self {
        let random = RandomState::new();
        Self::from_words(|n| random.hash_one(n))
    }

    /// A secret from the words that `word` returns for 0 to 13.
    #[must_use]
    pub fn from_words(word: impl Fn(usize) -> u64) -> Self {
        let double = |n: usize| u128::from(word(2 * n)) << 64 | u128::from(word(2 * n + 1));
        Self {
            factors: array::from_fn(double),
            addend: double(6),
        }
    }

    /// The hash of a key. Any of its 64 bits may serve as a tag or as an index.
    #[inline]
    #[must_use]
    pub fn hash(&self, key: &BiflowKey) -> u64 {
        let [a, b, c, d, e, f] = key.words();
        let product = |factor: usize, word| self.factors[factor].wrapping_mul(u128::from(word));
        let mut sum = self.addend;
        sum = sum.wrapping_add(product(0, e)).wrapping_add(product(1, f));
        // The family is part of a word above, so each family may hash its addresses differently.
        sum = if key.family == AddressKind::V4 {
            sum.wrapping_add(product(2, low_halves(a, c)))
        } else {
            self.with_wide(sum, [a, b, c, d])
        };
        // Without this step, keys that differ in only their lowest bits have hashes at equal
        // distances.
        let word = (sum >> 64) as u64;
        let mixed = (word ^ word >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^ mixed >> 32
    }

    /// A separate function keeps [`Self::hash`] small enough to be inlined.
    #[inline(never)]
    fn with_wide(&self, sum: u128, words: [u64; 4]) -> u128 {
        let factors = &self.factors[2..];
        let products = factors.iter().zip(words);
        products.fold(sum, |sum, (factor, word)| {
            sum.wrapping_add(factor.wrapping_mul(u128::from(word)))
        })
    }
}

/// Both IPv4 addresses: the first four bytes of each word.
#[inline]
fn low_halves(a: u64, b: u64) -> u64 {
    let [a, b] = [a, b].map(|word| {
        let bytes = word.to_le_bytes();
        u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    });
    u64::from(a) | u64::from(b) << 32
}

#[cfg(test)]
mod tests;
