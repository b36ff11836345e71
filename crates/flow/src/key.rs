//! The key of a flow as plain data, and its hash.
//!
//! It is [`retroscope_packet::FlowKey`] in 48 bytes, with what tells more flows apart: VLAN identifiers where they are wanted, and of
//! ICMP what a Community ID tells apart, request and reply of one kind or one kind of error.

use std::array;
use std::fmt;
use std::hash::{BuildHasher as _, Hash, Hasher, RandomState};
use std::mem::offset_of;
use std::net::{IpAddr, Ipv6Addr};

use retroscope_packet::{FlowEndpoint, FlowKey, Parsed, Ports, flow_of, icmp_ports};

/// VLAN identifiers in a key: as many as Suricata tells.
const VLANS: usize = 3;
/// Tells identifier 0 from no tag.
const TAGGED: u16 = 0x8000;

/// What the addresses of a key are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(u8)]
pub enum Family {
    /// IPv4.
    #[default]
    V4 = 4,
    /// IPv6.
    V6 = 6,
    /// Hardware addresses: not IP.
    Mac = 1,
    /// None, neither IP nor a link with hardware addresses.
    Link = 0,
    /// Bytes that mean something to their maker only: see [`Key::opaque`].
    Opaque = 2,
}

/// The key of a bidirectional flow, equal for the packets of both directions: the smaller end comes first, or the sender of ICMP messages
/// that nothing answers.
#[derive(Debug, Clone, Copy, Eq, PartialOrd, Ord, Default)]
#[repr(C)]
pub struct Key {
    /// Addresses of both ends in network order, followed by zeros.
    addresses: [[u8; 16]; 2],
    /// Ports or what stands in for them. Not IP: EtherType or the link type, and 0.
    ports: [u16; 2],
    /// Outer to inner, [`TAGGED`], followed by zeros.
    vlans: [u16; VLANS],
    proto: u8,
    family: Family,
    /// Not IP: the link header's number of what it carries.
    protocol: u32,
}

const _: () = assert!(size_of::<Key>() == 48);

/// What the key of a packet's flow says about its direction and its ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ends {
    /// The key of the flow.
    pub key: Key,
    /// Whether the packet went from the key's second end to the first.
    pub is_reverse: bool,
}

impl Ends {
    /// The flow of a packet; `None` where [`flow_of`] cannot tell it. `has_vlans`: flows with different VLAN identifiers are different
    /// flows, the outer three of them count.
    #[must_use]
    pub fn of(parsed: &Parsed, has_vlans: bool) -> Option<Self> {
        let flow = flow_of(parsed)?;
        let (mut key, is_reverse) = match (flow, parsed.network) {
            (FlowKey::Ports { proto, low, high }, Some(ip)) => {
                let key = Key::ip(proto, [low, high]);
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
                (Key::ip(proto, ends), is_reverse)
            }
            _ => (Key::from(flow), parsed.src_mac > parsed.dst_mac),
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

impl Ends {
    /// The same of a protocol with ports: both `addresses`, of 4 bytes or 16 each, and both `ports`, as they stand in the packet.
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
        let key = Key {
            addresses: [low.0, high.0],
            ports: [low.1, high.1],
            proto,
            family: if addresses.len() == 8 {
                Family::V4
            } else {
                Family::V6
            },
            ..Key::default()
        };
        Self { key, is_reverse }
    }
}

/// An address of either family, or what stands in for it where there is no IP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Host {
    family: Family,
    address: [u8; 16],
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g, ..] = self.address;
        match self.family {
            Family::V4 => write!(f, "{a}.{b}.{c}.{d}"),
            Family::V6 => Ipv6Addr::from(self.address).fmt(f),
            Family::Mac => write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}"),
            Family::Link | Family::Opaque => f.write_str("no address"),
        }
    }
}

/// As numbers: what is derived compares field by field, bytes in a loop.
impl PartialEq for Key {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        let words = self.words().into_iter().zip(other.words());
        words.fold(0, |other, (a, b)| other | (a ^ b)) == 0
    }
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.words().hash(state);
    }
}

/// Of ICMP and with VLANs it tells less than [`Ends::of`] does of the packet.
impl From<FlowKey> for Key {
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
                // An EtherType of 0 is not the same as none.
                protocol: u32::from(ether_type.is_some()),
                family: Family::Mac,
                ..Self::default()
            },
            FlowKey::Link {
                link_type,
                protocol,
            } => Self {
                ports: [link_type.0, 0],
                protocol,
                family: Family::Link,
                ..Self::default()
            },
        }
    }
}

impl Key {
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
                    key.family = Family::V6;
                }
            }
        }
        key
    }

    /// Where its fields are, bytes, for who reads it as plain data: both addresses, both ports, three VLAN identifiers, protocol, family, and
    /// the link's protocol or the kind of [`Self::opaque`].
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

    /// Bytes of [`Self::opaque`] at most.
    pub const OPAQUE: usize = 36;

    /// A key of one's own making, of one of several kinds. Bytes beyond [`Self::OPAQUE`] are left out.
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
            family: Family::Opaque,
            ..Self::default()
        }
    }

    /// What the ends are.
    #[must_use]
    pub fn family(&self) -> Family {
        self.family
    }

    /// The IP protocol number; 0 where it is not IP.
    #[must_use]
    pub fn proto(&self) -> u8 {
        self.proto
    }

    /// Both ends of a flow over IP. Protocols without ports have port 0, ICMP what [`icmp_ports`] says.
    #[must_use]
    pub fn endpoints(&self) -> Option<[FlowEndpoint; 2]> {
        let addr = |octets: [u8; 16]| match self.family {
            Family::V4 => octets.first_chunk::<4>().map(|octets| (*octets).into()),
            Family::V6 => Some(octets.into()),
            Family::Mac | Family::Link | Family::Opaque => None,
        };
        let [low, high] = self.addresses.map(addr);
        let end = |addr, port| FlowEndpoint { addr, port };
        Some([end(low?, self.ports[0]), end(high?, self.ports[1])])
    }

    /// Whose addresses both ends are.
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

    /// All of it as numbers.
    #[inline]
    fn words(&self) -> [u64; 6] {
        let [low, high] = self.addresses.map(u128::from_le_bytes);
        // Written so that each half is one load.
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

/// What the hashes of a table's keys depend on.
///
/// The hash is a sum of products with random factors (Dietzfelbinger 1996, "Universal hashing and k-wise independent random variables via
/// integer arithmetic without primes"), as the parts of packets have it in the recorder: whatever two keys somebody takes who does not know
/// the factors, all pairs of hashes are equally likely. `std`'s SipHash promises more, that one who sees hashes learns nothing of the
/// secret, for several times the time. But nobody sees a hash, and a table whose keys collide all the same is slow within bounds.
#[derive(Debug, Clone)]
pub struct Secret {
    factors: [u128; 6],
    addend: u128,
}

impl Secret {
    /// One that nobody knows, from the randomness of `std`'s hash maps.
    #[must_use]
    pub fn random() -> Self {
        let random = RandomState::new();
        Self::from_words(|n| random.hash_one(n))
    }

    /// One that is known, for tests.
    #[must_use]
    pub fn from_words(word: impl Fn(usize) -> u64) -> Self {
        let double = |n: usize| u128::from(word(2 * n)) << 64 | u128::from(word(2 * n + 1));
        Self {
            factors: array::from_fn(double),
            addend: double(6),
        }
    }

    /// The hash of a key: all 64 bits are good.
    #[inline]
    #[must_use]
    pub fn hash(&self, key: &Key) -> u64 {
        let [a, b, c, d, e, f] = key.words();
        let product = |factor: usize, word| self.factors[factor].wrapping_mul(u128::from(word));
        let mut sum = self.addend;
        sum = sum.wrapping_add(product(0, e)).wrapping_add(product(1, f));
        // The family is in one of the words above, so each may count what it has in its own way.
        sum = if key.family == Family::V4 {
            sum.wrapping_add(product(2, low_halves(a, c)))
        } else {
            self.with_wide(sum, [a, b, c, d])
        };
        // Keys that differ in their lowest bits only would have hashes at even distances.
        let word = (sum >> 64) as u64;
        let mixed = (word ^ word >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^ mixed >> 32
    }

    /// The sum with addresses of 16 bytes: apart, so that the rest is small enough to stand where it is asked for.
    #[inline(never)]
    fn with_wide(&self, sum: u128, words: [u64; 4]) -> u128 {
        let factors = &self.factors[2..];
        let products = factors.iter().zip(words);
        products.fold(sum, |sum, (factor, word)| {
            sum.wrapping_add(factor.wrapping_mul(u128::from(word)))
        })
    }
}

/// Both IPv4 addresses, which are in the bytes in front.
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
