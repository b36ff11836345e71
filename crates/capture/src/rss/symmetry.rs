//! Whether a NIC's settings split conversations.
//!
//! The Toeplitz hash is linear: each input bit that is set adds (xor) its window of the key. Both directions of a
//! conversation hash alike, for all addresses and ports, if and only if every bit of the source adds what the same bit of the
//! destination adds. That is checked bit by bit, on the part of the hash that chooses an entry of the indirection table.

use super::toeplitz::window;

/// How a NIC chooses the queue of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RssSettings {
    /// The function.
    pub function: HashFunction,
    /// Its key.
    pub key: Vec<u8>,
    /// The input is made symmetric before it is hashed (`ethtool -X … xfrm`, Linux 6.8).
    pub symmetric_input: bool,
    /// The indirection table: a queue for each value of the hash, modulo its length. Empty: unknown.
    pub table: Vec<u32>,
    /// What is hashed of each kind of packet; a kind that the driver does not tell of is not listed.
    pub fields: Vec<(FlowKind, HashFields)>,
}

/// `ETH_RSS_HASH_` of `linux/ethtool.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HashFunction {
    /// The one that this module knows.
    Toeplitz,
    /// Another, by the kernel's number.
    Other(u8),
}

/// A kind of packets that a NIC hashes in its own way, in `ethtool -N` words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowKind {
    /// TCP over IPv4.
    Tcp4,
    /// UDP over IPv4.
    Udp4,
    /// TCP over IPv6.
    Tcp6,
    /// UDP over IPv6.
    Udp6,
}

impl FlowKind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Tcp4, Self::Udp4, Self::Tcp6, Self::Udp6];

    /// As ethtool(8) calls it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tcp4 => "tcp4",
            Self::Udp4 => "udp4",
            Self::Tcp6 => "tcp6",
            Self::Udp6 => "udp6",
        }
    }

    /// Bits of an address.
    fn address_bits(self) -> usize {
        match self {
            Self::Tcp4 | Self::Udp4 => 32,
            Self::Tcp6 | Self::Udp6 => 128,
        }
    }
}

/// What is hashed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HashFields {
    /// Source address.
    pub source: bool,
    /// Destination address.
    pub destination: bool,
    /// Source port.
    pub source_port: bool,
    /// Destination port.
    pub destination_port: bool,
    /// Something else beside them, such as the VLAN tag, in an order that is the driver's own.
    pub others: bool,
}

/// Why conversations of a kind are split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split {
    /// The key is not symmetric.
    Key,
    /// One of a pair of fields is hashed without the other.
    Fields,
}

impl RssSettings {
    /// Whether, and why, the two directions of conversations of this kind may reach different queues. `None`: they never
    /// do. `Some(None)`: it cannot be told.
    #[must_use]
    pub fn splits(&self, kind: FlowKind) -> Option<Option<Split>> {
        let is_one_queue =
            !self.table.is_empty() && self.table.iter().all(|queue| *queue == self.table[0]);
        if is_one_queue {
            return None;
        }
        let Some((_, fields)) = self.fields.iter().find(|(one, _)| *one == kind) else {
            return Some(None);
        };
        let is_paired =
            fields.source == fields.destination && fields.source_port == fields.destination_port;
        if !is_paired {
            return Some(Some(Split::Fields));
        }
        if self.symmetric_input || !(fields.source || fields.source_port) {
            return None;
        }
        if self.function != HashFunction::Toeplitz || self.key.is_empty() || fields.others {
            return Some(None);
        }
        (!self.is_key_symmetric(kind.address_bits(), *fields)).then_some(Some(Split::Key))
    }

    /// The input is source and destination address, then source and destination port, as far as they are hashed.
    fn is_key_symmetric(&self, address_bits: usize, fields: HashFields) -> bool {
        let mask = self.index_mask();
        let is_pair_alike = |start: usize, bits: usize| {
            (start..start + bits).all(|bit| {
                let difference = window(&self.key, bit) ^ window(&self.key, bit + bits);
                difference & mask == 0
            })
        };
        let ports = if fields.source { 2 * address_bits } else { 0 };
        (!fields.source || is_pair_alike(0, address_bits))
            && (!fields.source_port || is_pair_alike(ports, 16))
    }

    /// The bits of the hash that choose an entry of the table: all, unless its length is a power of two.
    fn index_mask(&self) -> u32 {
        match u32::try_from(self.table.len()) {
            Ok(length) if length.is_power_of_two() => length - 1,
            _ => u32::MAX,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, SocketAddr};

    use super::*;
    use crate::rss::{KEY_BYTES, MICROSOFT_KEY, SYMMETRIC_KEY, toeplitz::tests::hash_addresses};

    const ALL_FIELDS: HashFields = HashFields {
        source: true,
        destination: true,
        source_port: true,
        destination_port: true,
        others: false,
    };
    const ADDRESSES: HashFields = HashFields {
        source_port: false,
        destination_port: false,
        ..ALL_FIELDS
    };

    fn settings(key: &[u8], entries: u32, queues: u32, fields: HashFields) -> RssSettings {
        RssSettings {
            function: HashFunction::Toeplitz,
            key: key.to_vec(),
            symmetric_input: false,
            table: (0..entries).map(|entry| entry % queues).collect(),
            fields: FlowKind::ALL.map(|kind| (kind, fields)).to_vec(),
        }
    }

    /// Repeatable numbers (SplitMix64).
    struct Random(u64);

    impl Random {
        fn next(&mut self) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ mixed >> 31
        }

        fn address(&mut self, kind: FlowKind) -> SocketAddr {
            let [a, b, c, d, port @ ..] = self.next().to_be_bytes();
            let ip = if kind.address_bits() == 32 {
                IpAddr::from([a, b, c, d])
            } else {
                IpAddr::from(
                    (u128::from(self.next()) << 64 | u128::from(self.next())).to_be_bytes(),
                )
            };
            SocketAddr::new(ip, u16::from_be_bytes([port[0], port[1]]))
        }
    }

    /// Conversations out of 400 whose directions reach two queues, by hashing them.
    fn simulate(settings: &RssSettings, kind: FlowKind) -> usize {
        let mut random = Random(7);
        let with_ports = settings.fields[0].1.source_port;
        let queue = |a, b| {
            let hash = hash_addresses(&settings.key, a, b, with_ports).unwrap() as usize;
            settings.table[hash % settings.table.len()]
        };
        (0..400)
            .filter(|_| {
                let (a, b) = (random.address(kind), random.address(kind));
                queue(a, b) != queue(b, a)
            })
            .count()
    }

    #[test]
    fn the_decision_is_what_a_simulation_finds() {
        // Symmetric for IPv4 addresses only: windows repeat after 32 bits up to bit 64.
        let mut v4_only = [0; KEY_BYTES];
        for (index, byte) in v4_only.iter_mut().enumerate() {
            *byte = [0xb1, 0x7e, 0x25, 0xc9][index % 4];
        }
        v4_only[12..].copy_from_slice(&MICROSOFT_KEY[12..]);
        // Symmetric in the seven lowest bits only, which is what a table of 128 entries uses: the others differ by bit 31.
        let mut random = Random(11);
        let mut keys = vec![MICROSOFT_KEY, SYMMETRIC_KEY, v4_only, [0; KEY_BYTES]];
        for _ in 0..20 {
            let mut key = [0; KEY_BYTES];
            for byte in &mut key {
                *byte = random.next().to_be_bytes()[0];
            }
            keys.push(key);
        }
        let (mut split, mut whole) = (0, 0);
        for key in keys {
            for fields in [ALL_FIELDS, ADDRESSES] {
                for (entries, queues) in [(128, 4), (100, 3), (128, 1)] {
                    let settings = settings(&key, entries, queues, fields);
                    for kind in FlowKind::ALL {
                        let found = simulate(&settings, kind);
                        let expected = (found > 0).then_some(Some(Split::Key));
                        assert_eq!(
                            settings.splits(kind),
                            expected,
                            "{key:x?} {fields:?} {kind:?}"
                        );
                        *if found > 0 { &mut split } else { &mut whole } += 1;
                    }
                }
            }
        }
        assert!(split > 100 && whole > 50, "{split} {whole}");
    }

    #[test]
    fn what_no_table_entry_depends_on_does_not_matter() {
        let settings = settings(&SYMMETRIC_KEY, 128, 4, ALL_FIELDS);
        // Its input's window is touched by the highest bit of the hash only.
        let mut key = SYMMETRIC_KEY;
        key[0] ^= 0x80;
        let settings = RssSettings {
            key: key.to_vec(),
            ..settings
        };
        assert_eq!(settings.splits(FlowKind::Tcp4), None);
        let whole_hash = RssSettings {
            table: Vec::new(),
            ..settings
        };
        assert_eq!(whole_hash.splits(FlowKind::Tcp4), Some(Some(Split::Key)));
    }

    #[test]
    fn settings_that_decide_alone() {
        let one_sided = HashFields {
            destination: false,
            ..ALL_FIELDS
        };
        let settings_of = |fields| settings(&SYMMETRIC_KEY, 128, 4, fields);
        assert_eq!(
            settings_of(one_sided).splits(FlowKind::Udp4),
            Some(Some(Split::Fields))
        );
        assert_eq!(
            settings_of(HashFields::default()).splits(FlowKind::Udp4),
            None
        );
        let mut other = settings(&MICROSOFT_KEY, 128, 4, ALL_FIELDS);
        other.symmetric_input = true;
        assert_eq!(other.splits(FlowKind::Tcp6), None);
        other.symmetric_input = false;
        other.function = HashFunction::Other(2);
        assert_eq!(other.splits(FlowKind::Tcp6), Some(None), "cannot be told");
        other.fields.clear();
        assert_eq!(other.splits(FlowKind::Tcp6), Some(None));
        other.table = vec![3; 128];
        assert_eq!(other.splits(FlowKind::Tcp6), None, "one queue");
    }
}
