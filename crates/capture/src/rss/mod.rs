//! Receive side scaling in software: whether a NIC's hash splits a conversation.
//!
//! A NIC with several receive queues usually selects the queue by a Toeplitz hash of addresses and
//! ports. With the keys of most drivers the two directions of a conversation often reach different
//! queues. Woo and Park ("Scalable TCP session monitoring with symmetric receive-side scaling",
//! KAIST 2012) showed that with a key of repeated 16 bits both directions hash alike.
//!
//! # The decision
//! The Toeplitz hash is linear: each set bit of the input adds (xor) a value, which is the 32 bits
//! of the key from the position of this bit on. Both directions of every conversation hash alike if
//! and only if every bit of the source adds the same value as the corresponding bit of the
//! destination. The module checks this bit by bit, for the part of the hash that selects an entry
//! of the indirection table.

/// Bytes of an ordinary NIC's key: enough for two IPv6 addresses and ports.
const KEY_BYTES: usize = 40;

/// `ETH_RSS_HASH_TOP` of `linux/ethtool.h`: the hash function that this module knows.
pub const TOEPLITZ: u8 = 1;

/// `RXH_IP_SRC` of `linux/ethtool.h`: the source address is hashed.
pub const SOURCE: u64 = 1 << 4;
/// `RXH_IP_DST` of `linux/ethtool.h`: the destination address is hashed.
pub const DESTINATION: u64 = 1 << 5;
/// `RXH_L4_B_0_1` of `linux/ethtool.h`: the source port is hashed.
pub const SOURCE_PORT: u64 = 1 << 6;
/// `RXH_L4_B_2_3` of `linux/ethtool.h`: the destination port is hashed.
pub const DESTINATION_PORT: u64 = 1 << 7;
/// All address and port bits.
pub const ADDRESSES_AND_PORTS: u64 = SOURCE | DESTINATION | SOURCE_PORT | DESTINATION_PORT;

/// Woo and Park's key of repeated 0x6d5a, `bytes` long; 0: as long as an ordinary NIC's key.
#[must_use]
pub fn symmetric_key(bytes: usize) -> Vec<u8> {
    let bytes = if bytes == 0 { KEY_BYTES } else { bytes };
    [0x6d, 0x5a].into_iter().cycle().take(bytes).collect()
}

/// How a NIC selects the queue of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RssSettings {
    /// The kernel's number of the hash function: [`TOEPLITZ`] or another.
    pub function: u8,
    /// The hash key.
    pub key: Vec<u8>,
    /// The NIC makes the input symmetric before hashing (`ethtool -X … xfrm`, Linux 6.8).
    pub symmetric_input: bool,
    /// The indirection table: a queue for each hash value, modulo the table's length. Empty:
    /// unknown.
    pub table: Vec<u32>,
    /// The hashed fields of each kind of packet: bits such as [`SOURCE`]. Kinds that the driver
    /// does not report are missing.
    pub fields: Vec<(FlowKind, u64)>,
}

/// A kind of packets with its own choice of hashed fields. The values are from `linux/ethtool.h`
/// (`TCP_V4_FLOW` and similar).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowKind {
    /// TCP over IPv4.
    Tcp4 = 1,
    /// UDP over IPv4.
    Udp4 = 2,
    /// TCP over IPv6.
    Tcp6 = 5,
    /// UDP over IPv6.
    Udp6 = 6,
}

impl FlowKind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Tcp4, Self::Udp4, Self::Tcp6, Self::Udp6];

    /// The name in ethtool(8).
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

/// Why conversations of a kind are split, or may be split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split {
    /// The key is not symmetric.
    Key,
    /// One of a pair of fields is hashed without the other field.
    Fields,
    /// Whether conversations are split is unknown.
    Unknown,
}

impl RssSettings {
    /// Why the two directions of a conversation of this kind may reach different queues. `None`: by
    /// these settings they do not.
    #[must_use]
    pub fn splits(&self, kind: FlowKind) -> Option<Split> {
        let is_one_queue =
            !self.table.is_empty() && self.table.iter().all(|queue| *queue == self.table[0]);
        if is_one_queue {
            return None;
        }
        let Some((_, fields)) = self.fields.iter().find(|(one, _)| *one == kind) else {
            return Some(Split::Unknown);
        };
        let hashes = |field: u64| fields & field != 0;
        let (addresses, ports) = (hashes(SOURCE), hashes(SOURCE_PORT));
        if addresses != hashes(DESTINATION) || ports != hashes(DESTINATION_PORT) {
            return Some(Split::Fields);
        }
        if self.symmetric_input || !(addresses || ports) {
            return None;
        }
        if self.function != TOEPLITZ || self.key.is_empty() || hashes(!ADDRESSES_AND_PORTS) {
            return Some(Split::Unknown);
        }
        // The input is source and destination address, then source and destination port, as far as
        // they are hashed.
        let address_bits = kind.address_bits();
        let port_at = if addresses { 2 * address_bits } else { 0 };
        let is_symmetric = (!addresses || self.is_pair_alike(0, address_bits))
            && (!ports || self.is_pair_alike(port_at, 16));
        (!is_symmetric).then_some(Split::Key)
    }

    /// Whether each of `bits` input bits from `start` on adds the same value to the table index as
    /// the bit `bits` positions later.
    fn is_pair_alike(&self, start: usize, bits: usize) -> bool {
        let mask = self.index_mask();
        (start..start + bits).all(|bit| {
            let difference = window(&self.key, bit) ^ window(&self.key, bit + bits);
            difference & mask == 0
        })
    }

    /// The bits of the hash that select an entry of the table: all bits, unless the table's length
    /// is a power of two.
    fn index_mask(&self) -> u32 {
        match u32::try_from(self.table.len()) {
            Ok(length) if length.is_power_of_two() => length - 1,
            _ => u32::MAX,
        }
    }
}

/// The value that input bit `bit` adds to the hash (0: the first byte's highest bit): the 32 bits
/// of the key from bit `bit` on.
fn window(key: &[u8], bit: usize) -> u32 {
    let (first, shift) = (bit / 8, bit % 8);
    let byte = |index: usize| u64::from(key.get(first + index).copied().unwrap_or(0));
    let five = (0..5).fold(0, |bits, index| bits << 8 | byte(index));
    let [.., a, b, c, d] = (five >> (8 - shift)).to_be_bytes();
    u32::from_be_bytes([a, b, c, d])
}

#[cfg(test)]
mod tests;
