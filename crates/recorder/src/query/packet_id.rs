//! A number for each packet of a recording.

use std::{fmt, str::FromStr};

use retroscope_ring::RegionInfo;
use serde::{Serialize, Serializer};

/// Bits of the parts, from the highest: the recording, the producer; the rest is the record.
const PRODUCER_BITS: u32 = 8;
const RECORD_BITS: u32 = 48;

/// Names a packet of a recording: `epb_packetid` of what queries write. From the highest bit on: 8 that differ from recorder to recorder, 8
/// for the producer (a live source's queue), 48 for the number of the record. Ordered within a producer as packets were stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PacketId(pub u64);

/// The numbers of one ring's packets.
#[derive(Debug, Clone, Copy)]
pub(super) struct Numbering {
    /// The upper bits; `None`: there are more producers than there is room for.
    recording: Option<u64>,
}

impl Numbering {
    pub(super) fn of(ring: &RegionInfo) -> Self {
        let made_ns = ring.created_ns.unwrap_or(0).cast_unsigned();
        // Multiplied by 2^64 over the golden ratio the upper bits depend on all.
        let hash = (made_ns ^ ring.process.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let recording = hash >> (PRODUCER_BITS + RECORD_BITS) << (PRODUCER_BITS + RECORD_BITS);
        Self {
            recording: (ring.producers <= 1 << PRODUCER_BITS).then_some(recording),
        }
    }

    pub(super) fn id(self, producer: usize, record: u64) -> Option<PacketId> {
        let producer = (producer as u64) << RECORD_BITS;
        let record = record & ((1 << RECORD_BITS) - 1);
        Some(PacketId(self.recording? | producer | record))
    }

    /// Producer and record; `None`: of another recording.
    pub(super) fn read(self, id: PacketId) -> Option<(usize, u64)> {
        let recording = id.0 >> (PRODUCER_BITS + RECORD_BITS) << (PRODUCER_BITS + RECORD_BITS);
        let producer = id.0 >> RECORD_BITS & ((1 << PRODUCER_BITS) - 1);
        let record = id.0 & ((1 << RECORD_BITS) - 1);
        (self.recording? == recording).then_some((usize::try_from(producer).ok()?, record))
    }
}

impl fmt::Display for PacketId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for PacketId {
    type Err = String;

    /// Decimal, as tshark shows it, or hexadecimal behind `0x`.
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
    /// As text: many readers of JSON hold numbers of 53 bits only.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_written_and_only_by_their_recording() {
        let numbering = |hash: u64| Numbering {
            recording: Some(hash << 56),
        };
        for (producer, record) in [(0, 0), (255, (1 << 48) - 1), (7, 1 << 47)] {
            let id = numbering(0xa7).id(producer, record).unwrap();
            assert_eq!(numbering(0xa7).read(id), Some((producer, record)));
            assert_eq!(numbering(0xa8).read(id), None);
            assert_eq!(id.to_string().parse(), Ok(id));
            assert_eq!(format!("{:#x}", id.0).parse(), Ok(id));
        }
        for wrong in ["", "x", "-1", "0x", "18446744073709551616", "1 2"] {
            assert!(wrong.parse::<PacketId>().is_err(), "{wrong}");
        }
    }
}
