//! The block ring, read in order. The reader holds at most one block, and lends its frames part by
//! part.
//!
//! A part is small, so that its frames' headers are likely still in the processor's cache when the
//! caller reads the frames.

use super::{
    block::{BlockSummary, BlockWalk, NicStampRange, PartSummary},
    sys::Mapping,
};
use crate::{Burst, FrameMeta};

/// Largest number of frames in a part.
const PART_FRAMES: usize = 256;

/// A reader of a mapped ring.
#[derive(Debug)]
pub(super) struct BlockRing {
    mapping: Mapping,
    /// The block to read next, or the held block: `< mapping.blocks()`.
    position: usize,
    /// The block at `position` belongs to this process.
    held: bool,
    /// The rest of the held block.
    walk: BlockWalk,
    /// The part that is lent.
    frames: Vec<FrameMeta>,
    /// Largest expected frame on the wire, bytes.
    pub(super) frame_bytes_max: u32,
    /// Range of the NIC's stamps in the held block.
    pub(super) nic_range: NicStampRange,
}

impl BlockRing {
    /// Bytes of all blocks.
    pub(super) fn bytes(&self) -> usize {
        self.mapping.bytes()
    }

    /// Starts at the first block, where the kernel starts too.
    pub(super) fn new(mapping: Mapping) -> Self {
        Self {
            mapping,
            position: 0,
            held: false,
            walk: BlockWalk::default(),
            // Sized so that the walk never allocates.
            frames: Vec::with_capacity(PART_FRAMES),
            frame_bytes_max: u32::MAX,
            nic_range: NicStampRange::default(),
        }
    }

    pub(super) fn blocks(&self) -> usize {
        self.mapping.blocks()
    }

    /// Holds the next block, if the kernel has handed it over. The previous block must have been
    /// released.
    pub(super) fn acquire(&mut self) -> Option<BlockSummary> {
        assert!(!self.held, "a block is held already");
        let (walk, summary) = BlockWalk::new(self.mapping.block(self.position)?, self.walk);
        (self.held, self.walk) = (true, walk);
        Some(summary)
    }

    /// Lends the next part of the held block instead of the previous part. A part without frames
    /// marks the end of the block.
    pub(super) fn lend(&mut self) -> PartSummary {
        self.frames.clear();
        if !self.held {
            return PartSummary::default();
        }
        let block = self.mapping.block(self.position).unwrap_or_default();
        self.walk.read(
            block,
            self.frame_bytes_max,
            self.nic_range,
            PART_FRAMES,
            &mut self.frames,
        )
    }

    /// Returns the held block to the kernel. Does nothing without a held block.
    pub(super) fn release(&mut self) {
        if !std::mem::take(&mut self.held) {
            return;
        }
        self.frames.clear();
        self.mapping.release(self.position);
        self.position = (self.position + 1) % self.mapping.blocks();
    }

    pub(super) fn burst(&self) -> Burst<'_> {
        let block = self.mapping.block(self.position).filter(|_| self.held);
        block.map_or(Burst::EMPTY, |memory| Burst {
            memory,
            frames: &self.frames,
        })
    }

    /// Whether the kernel has handed over at least `blocks` blocks in addition to the held block.
    /// `blocks` must be at least 1.
    pub(super) fn are_blocks_finished(&self, blocks: usize) -> bool {
        let others = self.mapping.blocks() - usize::from(self.held);
        let last = self.position + usize::from(self.held) + blocks - 1;
        // The kernel hands over blocks in order.
        blocks <= others && self.mapping.block(last % self.mapping.blocks()).is_some()
    }

    /// Whether no packet waits in the block that the kernel is filling. Valid only right after
    /// `acquire` has found no block.
    pub(super) fn is_kernel_block_empty(&self) -> bool {
        self.mapping.is_empty(self.position)
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::block::tests::{Packet, block_of},
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
        let mut ring = BlockRing::new(Mapping::in_memory(BLOCK_BYTES, 3).unwrap());
        assert!(ring.acquire().is_none());
        assert!(ring.burst().frames.is_empty());
        for round in 0..10_u8 {
            for index in 0..=round % 3 {
                let place = (ring.position + usize::from(index)) % 3;
                ring.mapping
                    .hand_over(place, &block(10 * round + index, 1 + index));
            }
            for index in 0..=round % 3 {
                let summary = ring.acquire().unwrap();
                assert_eq!(summary.packets, u32::from(1 + index));
                let first = 10 * round + index;
                assert!(ring.burst().frames.is_empty(), "nothing is lent yet");
                assert_eq!(ring.lend().frames, summary.packets);
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
    fn blocks_behind_the_held_block_are_seen() {
        for blocks in 1..=3 {
            let mut ring = BlockRing::new(Mapping::in_memory(BLOCK_BYTES, blocks).unwrap());
            for round in 0..2 * blocks {
                assert!(!ring.are_blocks_finished(1));
                ring.mapping.hand_over(ring.position, &block(1, 2));
                assert!(ring.are_blocks_finished(1), "no block is held");
                assert!(!ring.are_blocks_finished(2));
                ring.acquire().unwrap();
                assert!(!ring.are_blocks_finished(1), "only the held block");
                if blocks > 1 && round % 2 == 1 {
                    let next = (ring.position + 1) % blocks;
                    ring.mapping.hand_over(next, &block(1, 2));
                    assert!(ring.are_blocks_finished(1));
                    assert!(!ring.are_blocks_finished(2));
                    ring.release();
                    assert!(ring.are_blocks_finished(1));
                    ring.acquire().unwrap();
                }
                ring.release();
            }
        }
    }

    #[test]
    fn several_blocks_behind_the_held_block_are_seen() {
        let mut ring = BlockRing::new(Mapping::in_memory(BLOCK_BYTES, 4).unwrap());
        for round in 0..4 {
            let hand_over = |ring: &mut BlockRing, at: usize| {
                ring.mapping.hand_over((round + at) % 4, &block(1, 2))
            };
            (0..2).for_each(|at| hand_over(&mut ring, at));
            assert!(ring.are_blocks_finished(2) && !ring.are_blocks_finished(3));
            ring.acquire().unwrap();
            assert!(!ring.are_blocks_finished(2));
            (2..4).for_each(|at| hand_over(&mut ring, at));
            assert!(ring.are_blocks_finished(3) && !ring.are_blocks_finished(4));
            ring.release();
            for _ in 0..3 {
                ring.acquire().unwrap();
                ring.release();
            }
            hand_over(&mut ring, 0);
            ring.acquire().unwrap();
            ring.release();
        }
    }

    #[test]
    fn a_block_is_lent_in_parts_without_allocation() {
        const BLOCK_BYTES: usize = 1 << 16;
        let mut ring = BlockRing::new(Mapping::in_memory(BLOCK_BYTES, 1).unwrap());
        let capacity = ring.frames.capacity();
        let packets: Vec<_> = (0..200)
            .map(|byte| Packet {
                data: vec![byte; 20],
                ..Packet::default()
            })
            .collect();
        ring.mapping
            .hand_over(0, &block_of(BLOCK_BYTES, &packets).0);
        assert_eq!(ring.acquire().unwrap().packets, 200);
        let mut seen = Vec::new();
        while ring.lend().frames > 0 {
            assert!(ring.burst().frames.len() <= PART_FRAMES);
            seen.extend(first_bytes(&ring));
        }
        assert_eq!(seen, (0..200).collect::<Vec<u8>>());
        assert_eq!(ring.frames.capacity(), capacity);
        assert!(ring.burst().frames.is_empty());
        ring.release();
        assert_eq!(ring.lend(), PartSummary::default());
    }
}
