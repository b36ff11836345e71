//! The block ring, read in order: at most one block is held, and its frames are lent from it.

use super::{
    block::{BlockSummary, PACKET_BYTES_MIN, read_block},
    sys::Mapping,
};
use crate::{Burst, FrameMeta};

/// A reader of a mapped ring.
#[derive(Debug)]
pub(super) struct BlockRing {
    mapping: Mapping,
    /// The block to read next, or the one being held: `< mapping.blocks()`.
    position: usize,
    /// The block at `position` belongs to this process, and `frames` describe it.
    held: bool,
    frames: Vec<FrameMeta>,
    /// No frame on the wire is larger.
    frame_bytes_max: u32,
}

impl BlockRing {
    /// Starts at the first block, where the kernel starts too.
    pub(super) fn new(mapping: Mapping, block_bytes: usize) -> Self {
        // All that a block can hold: the walk never allocates.
        let frames = Vec::with_capacity(block_bytes / PACKET_BYTES_MIN);
        Self {
            mapping,
            position: 0,
            held: false,
            frames,
            frame_bytes_max: u32::MAX,
        }
    }

    /// Larger frames are counted as merged from now on.
    pub(super) fn set_frame_bytes_max(&mut self, bytes: u32) {
        self.frame_bytes_max = bytes;
    }

    /// Number of blocks.
    pub(super) fn blocks(&self) -> usize {
        self.mapping.blocks()
    }

    /// Takes the next block, if the kernel has handed it over; the one held before must have been released.
    pub(super) fn acquire(&mut self) -> Option<BlockSummary> {
        assert!(!self.held, "a block is held already");
        let block = self.mapping.block(self.position)?;
        self.held = true;
        Some(read_block(block, self.frame_bytes_max, &mut self.frames))
    }

    /// Gives the held block back, if there is one.
    pub(super) fn release(&mut self) {
        if !std::mem::take(&mut self.held) {
            return;
        }
        self.frames.clear();
        self.mapping.release(self.position);
        self.position = (self.position + 1) % self.mapping.blocks();
    }

    /// Frames of the held block.
    pub(super) fn burst(&self) -> Burst<'_> {
        if !self.held {
            return Burst::EMPTY;
        }
        match self.mapping.block(self.position) {
            Some(memory) => Burst {
                memory,
                frames: &self.frames,
            },
            None => Burst::EMPTY,
        }
    }

    /// Whether no packet waits in the block that the kernel is filling. Means something only when `acquire` has just
    /// found nothing.
    pub(super) fn is_kernel_block_empty(&self) -> bool {
        self.mapping.is_empty(self.position)
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::block::testing::{Packet, block_of},
        *,
    };

    const BLOCK_BYTES: usize = 4096;

    fn block(first: u8, count: u8) -> Vec<u8> {
        let packets: Vec<_> = (first..first + count)
            .map(|byte| Packet {
                data: vec![byte; 20],
                ..Packet::default()
            })
            .collect();
        block_of(BLOCK_BYTES, &packets).0
    }

    fn first_bytes(ring: &BlockRing) -> Vec<u8> {
        ring.burst().iter().map(|frame| frame.data[0]).collect()
    }

    #[test]
    fn blocks_come_in_order_and_go_back() {
        let mut ring = BlockRing::new(Mapping::in_memory(BLOCK_BYTES, 3).unwrap(), BLOCK_BYTES);
        assert!(ring.acquire().is_none());
        assert!(ring.burst().frames.is_empty());
        for round in 0..10_u8 {
            // Rounds of one, two and three blocks meet every wrap-around.
            for index in 0..=round % 3 {
                let place = (ring.position + usize::from(index)) % 3;
                ring.mapping
                    .hand_over(place, &block(10 * round + index, 1 + index));
            }
            for index in 0..=round % 3 {
                let summary = ring.acquire().unwrap();
                assert_eq!(summary.packets, u32::from(1 + index));
                let first = 10 * round + index;
                assert_eq!(
                    first_bytes(&ring),
                    (first..=first + index).collect::<Vec<_>>()
                );
                ring.release();
                ring.release();
                assert!(ring.burst().frames.is_empty());
            }
            assert!(ring.acquire().is_none(), "round {round}");
            assert!(
                ring.is_kernel_block_empty(),
                "a released block counts no packets"
            );
        }
    }

    #[test]
    fn frames_do_not_allocate() {
        let mut ring = BlockRing::new(Mapping::in_memory(BLOCK_BYTES, 1).unwrap(), BLOCK_BYTES);
        let capacity = ring.frames.capacity();
        let packets = vec![Packet::default(); 40];
        ring.mapping
            .hand_over(0, &block_of(BLOCK_BYTES, &packets).0);
        assert_eq!(ring.acquire().unwrap().packets, 40);
        assert_eq!(ring.frames.capacity(), capacity);
    }
}
