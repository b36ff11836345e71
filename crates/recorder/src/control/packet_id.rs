//! Names of recordings and of their packets.

use std::{fmt, str::FromStr};

use retroscope_ring::RegionInfo;
use serde::{Serialize, Serializer};
use sha2::{Digest, Sha256};

/// Bits of the record in the ID of a packet.
const RECORD_BITS: u32 = 48;

/// Names a packet of a recording: `epb_packetid` in dumps and in the answers of queries. The upper
/// 16 bits are the producer, combined with bits of the recording's UUID: a query notices most IDs
/// of other recordings. The lower 48 bits are the number of the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PacketId(pub u64);

/// The UUID of a recording. The ID of a packet is valid together with this UUID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Recording(u128);

impl Recording {
    /// A UUID of version 8 (RFC 9562), computed from the ring's creation times and the ID of the
    /// process that made the ring.
    pub(crate) fn of(ring: &RegionInfo) -> Self {
        let mut digest = Sha256::new();
        let times = [ring.created_ns, ring.created_mono_ns];
        let times = times.map(|ns| ns.unwrap_or(0).cast_unsigned());
        for word in times.into_iter().chain([ring.process]) {
            digest.update(word.to_le_bytes());
        }
        let digest = digest.finalize();
        let bits = digest.iter().take(16);
        let bits = bits.fold(0, |bits, byte| bits << 8 | u128::from(*byte));
        Self(bits & !(0xf << 76) & !(3 << 62) | 8 << 76 | 2 << 62)
    }

    /// The bits of this recording in the ID of a packet.
    fn mask(self) -> u64 {
        u64::try_from(self.0 & 0xffff).unwrap_or(0) << RECORD_BITS
    }

    pub(crate) fn id(self, producer: usize, record: u64) -> PacketId {
        let producer = (producer as u64) << RECORD_BITS;
        let record = record & ((1 << RECORD_BITS) - 1);
        PacketId(self.mask() ^ producer | record)
    }

    /// Producer and record. An ID of another recording usually gives a producer that this recording
    /// does not have.
    pub(crate) fn read(self, id: PacketId) -> (usize, u64) {
        let producer = (id.0 ^ self.mask()) >> RECORD_BITS;
        let record = id.0 & ((1 << RECORD_BITS) - 1);
        (usize::try_from(producer).unwrap_or(usize::MAX), record)
    }
}

impl fmt::Display for Recording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = |shift: u32, bits: u32| self.0 >> shift & ((1 << bits) - 1);
        write!(
            f,
            "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
            part(96, 32),
            part(80, 16),
            part(64, 16),
            part(48, 16),
            part(0, 48)
        )
    }
}

impl Serialize for Recording {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl fmt::Display for PacketId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for PacketId {
    type Err = String;

    /// Decimal, as tshark shows it, or hexadecimal after `0x`.
    fn from_str(text: &str) -> Result<Self, String> {
        let number = match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => text.parse(),
        };
        let wrong = |_| format!("{text:?} is no number of a packet (frame.packet_id in tshark)");
        number.map(Self).map_err(wrong)
    }
}

impl Serialize for PacketId {
    /// As text, because many readers of JSON keep only 53 bits of a number.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Recording {
        pub(crate) fn of_test() -> Self {
            Self(0x8000_8000_0000_0000_a7a8)
        }
    }

    #[test]
    fn numbers_are_read_as_written_and_only_by_their_recording() {
        let (own, other) = (Recording(0xa7_1234), Recording(0xa8_1235));
        for (producer, record) in [(0, 0), (0xffff, (1 << 48) - 1), (7, 1 << 47)] {
            let id = own.id(producer, record);
            assert_eq!(own.read(id), (producer, record));
            assert_eq!(other.read(id), (producer ^ 1, record));
            assert_eq!(id.to_string().parse(), Ok(id));
            assert_eq!(format!("{:#x}", id.0).parse(), Ok(id));
        }
        for wrong in ["", "x", "-1", "0x", "18446744073709551616", "1 2"] {
            assert!(wrong.parse::<PacketId>().is_err(), "{wrong}");
        }
    }
}
