//! Receive side scaling in software: what a NIC's hash does to a conversation.
//!
//! A NIC with several receive queues chooses one by a Toeplitz hash of addresses and ports. With the keys that drivers use
//! the two directions of a conversation land in different queues, and so with different threads where each serves a
//! queue. Woo and Park ("Scalable TCP session monitoring with symmetric receive-side scaling", KAIST 2012) showed that a key
//! of repeated 16 bits makes both directions hash alike.
//!
//! # How it is decided
//! The Toeplitz hash is linear: each input bit that is set adds (xor) its window of the key. Both directions of a
//! conversation hash alike, for all addresses and ports, if and only if every bit of the source adds what the same bit of the
//! destination adds. That is checked bit by bit, on the part of the hash that chooses an entry of the indirection table.
//!
//! Where this matters: `--set fanout=qm` and `cpu`, AF_XDP, DPDK. The kernel's own fanout by flow does not use the NIC's hash.

/// Bytes of a key of ordinary NICs: enough for two IPv6 addresses and ports.
const KEY_BYTES: usize = 40;

/// `ETH_RSS_HASH_TOP` of `linux/ethtool.h`: the function that this module knows.
pub const TOEPLITZ: u8 = 1;

/// `RXH_IP_SRC` and its like, of `linux/ethtool.h`: addresses and ports are hashed.
pub const SOURCE: u64 = 1 << 4;
/// See [`SOURCE`].
pub const DESTINATION: u64 = 1 << 5;
/// See [`SOURCE`].
pub const SOURCE_PORT: u64 = 1 << 6;
/// See [`SOURCE`].
pub const DESTINATION_PORT: u64 = 1 << 7;
/// All of them.
pub const ADDRESSES_AND_PORTS: u64 = SOURCE | DESTINATION | SOURCE_PORT | DESTINATION_PORT;

/// Woo and Park's key, 0x6d5a over and over, `bytes` long; 0: as long as an ordinary NIC's. Both directions of a conversation hash alike.
#[must_use]
pub fn symmetric_key(bytes: usize) -> Vec<u8> {
    let bytes = if bytes == 0 { KEY_BYTES } else { bytes };
    [0x6d, 0x5a].into_iter().cycle().take(bytes).collect()
}

/// How a NIC chooses the queue of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RssSettings {
    /// The function, by the kernel's number: [`TOEPLITZ`] or another.
    pub function: u8,
    /// Its key.
    pub key: Vec<u8>,
    /// The input is made symmetric before it is hashed (`ethtool -X … xfrm`, Linux 6.8).
    pub symmetric_input: bool,
    /// The indirection table: a queue for each value of the hash, modulo its length. Empty: unknown.
    pub table: Vec<u32>,
    /// What is hashed of each kind of packet: [`SOURCE`] and its like, and bits of other fields, such as the VLAN tag, in an order that is
    /// the driver's own. A kind that the driver does not tell of is not listed.
    pub fields: Vec<(FlowKind, u64)>,
}

/// A kind of packets that a NIC hashes in its own way, by its number in `linux/ethtool.h` (`TCP_V4_FLOW` and its like).
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

/// Why conversations of a kind are split, or may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split {
    /// The key is not symmetric.
    Key,
    /// One of a pair of fields is hashed without the other.
    Fields,
    /// It cannot be told whether they are.
    Unknown,
}

impl RssSettings {
    /// Whether, and why, the two directions of conversations of this kind may reach different queues. `None`: they never
    /// do.
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
        // The input is source and destination address, then source and destination port, as far as they are hashed.
        let address_bits = kind.address_bits();
        let port_at = if addresses { 2 * address_bits } else { 0 };
        let is_symmetric = (!addresses || self.is_pair_alike(0, address_bits))
            && (!ports || self.is_pair_alike(port_at, 16));
        (!is_symmetric).then_some(Split::Key)
    }

    /// Whether each of `bits` bits of the input from `start` on adds the same to the hash as the bit `bits` further on.
    fn is_pair_alike(&self, start: usize, bits: usize) -> bool {
        let mask = self.index_mask();
        (start..start + bits).all(|bit| {
            let difference = window(&self.key, bit) ^ window(&self.key, bit + bits);
            difference & mask == 0
        })
    }

    /// The bits of the hash that choose an entry of the table: all, unless its length is a power of two.
    fn index_mask(&self) -> u32 {
        match u32::try_from(self.table.len()) {
            Ok(length) if length.is_power_of_two() => length - 1,
            _ => u32::MAX,
        }
    }
}

/// What input bit `bit` (0: the first byte's highest) adds to the hash: the 32 bits of the key that start there.
fn window(key: &[u8], bit: usize) -> u32 {
    let (first, shift) = (bit / 8, bit % 8);
    let byte = |index: usize| u64::from(key.get(first + index).copied().unwrap_or(0));
    let five = (0..5).fold(0, |bits, index| bits << 8 | byte(index));
    let [.., a, b, c, d] = (five >> (8 - shift)).to_be_bytes();
    u32::from_be_bytes([a, b, c, d])
}

#[cfg(test)]
mod tests;
