//! Storing packets one behind the other, without a queue.

use std::hint::black_box;

use super::stream::{self, UNIT_BYTES, Unit};
use crate::contest::Frames;

/// Bytes of the descriptor before each payload: stamp (8), captured length (4), wire length (4), little endian.
pub const DESCRIPTOR_BYTES: usize = 16;
/// Bytes that are packed in the first-level cache before they are flushed. FACTS: 1 to 4 KiB are alike.
const STAGE_BYTES: usize = 4 << 10;

/// Behind them, so that a record that begins in them fits: one of the longest frames.
const STAGE_SLACK_BYTES: usize = 16 << 10;

/// Where packets are packed.
#[repr(align(64))]
struct Stage([u8; STAGE_BYTES + STAGE_SLACK_BYTES]);

/// How a packet gets into memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Insert {
    /// Descriptor and payload with ordinary stores (`memcpy`), packed without gaps.
    Memcpy,
    /// Descriptor and payload with non-temporal stores straight to their place; a payload ends on a multiple of 16.
    Straight,
    /// Packed without gaps in 4 KiB of the first-level cache, which are flushed with non-temporal stores.
    Staged,
}

impl Insert {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Memcpy, Self::Straight, Self::Staged];

    /// As in row names.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Memcpy => "memcpy-insert",
            Self::Straight => "raw-insert-straight",
            Self::Staged => "raw-insert-staged",
        }
    }

    /// Bytes of memory that a packet takes.
    #[must_use]
    pub fn record_bytes(self, packet_bytes: usize) -> usize {
        match self {
            Self::Memcpy | Self::Staged => DESCRIPTOR_BYTES + packet_bytes,
            Self::Straight => DESCRIPTOR_BYTES + packet_bytes.next_multiple_of(UNIT_BYTES),
        }
    }

    /// Stores as many packets as fit into `region`, from its start, and returns how many.
    pub fn lap(self, region: &mut [u8], frames: &Frames, packet_bytes: usize) -> u64 {
        let packets = region.len() / self.record_bytes(packet_bytes);
        match self {
            Self::Memcpy => {
                let records = region.chunks_exact_mut(DESCRIPTOR_BYTES + packet_bytes);
                for (number, record) in (0_u64..).zip(records) {
                    let (descriptor, payload) = record.split_at_mut(DESCRIPTOR_BYTES);
                    // The length is not known to the compiler, as it would not be of a real packet.
                    let frame = &frames.get(number)[..black_box(packet_bytes)];
                    descriptor.copy_from_slice(&describe(number, frame.len()));
                    payload.copy_from_slice(frame);
                }
            }
            Self::Straight => {
                let units = stream::units(region);
                let records = units.chunks_exact_mut(self.record_bytes(packet_bytes) / UNIT_BYTES);
                for (number, record) in (0_u64..).zip(records) {
                    let (descriptor, payload) = record.split_at_mut(DESCRIPTOR_BYTES / UNIT_BYTES);
                    stream::copy(descriptor, &describe(number, packet_bytes));
                    stream::copy(payload, frames.padded(number));
                }
                stream::fence();
            }
            Self::Staged => staged(stream::units(region), frames, packet_bytes, packets as u64),
        }
        packets as u64
    }
}

fn describe(number: u64, packet_bytes: usize) -> [u8; DESCRIPTOR_BYTES] {
    let length = packet_bytes as u128;
    (u128::from(number) | length << 64 | length << 96).to_le_bytes()
}

fn staged(region: &mut [Unit], frames: &Frames, packet_bytes: usize, packets: u64) {
    let record_bytes = DESCRIPTOR_BYTES + packet_bytes;
    let mut stage = Stage([0; STAGE_BYTES + STAGE_SLACK_BYTES]);
    let stage = &mut stage.0;
    let (mut staged, mut flushed) = (0, 0);
    for number in 0..packets {
        let record = &mut stage[staged..staged + record_bytes];
        let (descriptor, payload) = record.split_at_mut(DESCRIPTOR_BYTES);
        descriptor.copy_from_slice(&describe(number, packet_bytes));
        payload.copy_from_slice(&frames.get(number)[..packet_bytes]);
        staged += record_bytes;
        if staged >= STAGE_BYTES {
            let whole = staged / 64 * 64;
            let units = whole / UNIT_BYTES;
            stream::copy(&mut region[flushed..flushed + units], &stage[..whole]);
            flushed += units;
            stage.copy_within(whole..staged, 0);
            staged -= whole;
        }
    }
    // What is left ends somewhere inside a unit: its rest is not part of any packet.
    let rest = staged
        .next_multiple_of(UNIT_BYTES)
        .min((region.len() - flushed) * UNIT_BYTES);
    stream::copy(&mut region[flushed..], &stage[..rest]);
    stream::fence();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Memory;

    /// Reads back every record of a lap.
    #[test]
    fn what_is_inserted_can_be_read() {
        let mut memory = Memory::new(2 << 20).unwrap();
        for packet_bytes in [64, 128, 500, 512, 1024, 1514, 9000] {
            let frames = Frames::new(packet_bytes);
            for way in Insert::ALL {
                memory.bytes_mut().fill(0);
                let packets = way.lap(memory.bytes_mut(), &frames, packet_bytes);
                let record_bytes = way.record_bytes(packet_bytes);
                assert_eq!(packets, (memory.len() / record_bytes) as u64);
                let records = memory.bytes_mut().chunks_exact(record_bytes);
                for (number, record) in (0..packets).zip(records) {
                    let (descriptor, payload) = record.split_at(DESCRIPTOR_BYTES);
                    assert_eq!(
                        descriptor,
                        describe(number, packet_bytes),
                        "{way:?} {packet_bytes}"
                    );
                    assert_eq!(
                        &payload[..packet_bytes],
                        frames.get(number),
                        "{way:?} {number}"
                    );
                }
            }
        }
    }
}
