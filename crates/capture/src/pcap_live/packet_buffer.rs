//! The buffer for packets between libpcap's callback and the caller.

use crate::{Burst, FrameMeta};

/// Bytes of a burst after which [`PacketBuffer::push`] asks for no more packets. The burst fits the
/// second-level cache of a current processor.
const BYTES_ENOUGH: usize = 128 << 10;

/// Packets of a burst after which [`PacketBuffer::push`] asks for no more packets.
const FRAMES_ENOUGH: usize = 1024;

/// Packets that libpcap delivered, lent until the next fetch.
#[derive(Debug)]
pub(super) struct PacketBuffer {
    memory: Vec<u8>,
    frames: Vec<FrameMeta>,
}

impl PacketBuffer {
    /// Allocates memory for bursts of packets of up to `snaplen` bytes.
    pub(super) fn new(snaplen: usize) -> Self {
        Self {
            memory: Vec::with_capacity(BYTES_ENOUGH + snaplen),
            frames: Vec::with_capacity(FRAMES_ENOUGH),
        }
    }

    /// Copies a packet into the buffer. Returns whether more packets fit.
    pub(super) fn push(&mut self, time_ns: i64, wire_len: u32, data: &[u8]) -> bool {
        // libpcap counts in 32 bits, so this length is impossible.
        let Ok(captured_len) = u32::try_from(data.len()) else {
            return true;
        };
        self.frames.push(FrameMeta {
            time_ns,
            offset: self.memory.len(),
            captured_len,
            wire_len,
            ..FrameMeta::default()
        });
        self.memory.extend_from_slice(data);
        self.frames.len() < FRAMES_ENOUGH && self.memory.len() < BYTES_ENOUGH
    }

    pub(super) fn clear(&mut self) {
        self.memory.clear();
        self.frames.clear();
    }

    pub(super) fn len(&self) -> usize {
        self.frames.len()
    }

    /// Newest stamp of the burst; `None`: the burst has no packets.
    pub(super) fn newest_ns(&self) -> Option<i64> {
        self.frames.iter().map(|frame| frame.time_ns).max()
    }

    pub(super) fn burst(&self) -> Burst<'_> {
        Burst {
            memory: &self.memory,
            frames: &self.frames,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_full_by_bytes_or_by_packets_and_does_not_grow() {
        for (length, count) in [(60, FRAMES_ENOUGH), (65_536, 2), (262_144, 1)] {
            let mut packets = PacketBuffer::new(262_144);
            let capacities = (packets.memory.capacity(), packets.frames.capacity());
            let data = vec![7; length];
            let mut taken = 1;
            while packets.push(taken, 9000, &data) {
                taken += 1;
            }
            assert_eq!(packets.len(), count);
            assert_eq!(packets.newest_ns(), Some(taken));
            assert_eq!(
                (packets.memory.capacity(), packets.frames.capacity()),
                capacities
            );
            for frame in packets.burst().iter() {
                assert_eq!((frame.data, frame.meta.wire_len), (&data[..], 9000));
            }
            packets.clear();
            assert_eq!((packets.len(), packets.newest_ns()), (0, None));
        }
    }
}
