//! Blocks of memory for the bytes of a file.

use std::{
    io::{self, Write},
    ops::{Deref, DerefMut, Range},
    sync::Mutex,
};

use retroscope_ring::LargeBuffer;

use super::direct::UNIT;
use crate::control::lock;

/// A block with at least this many bytes is handed over for writing. The block and a last packet of
/// up to 64 KiB usually fit into one huge page, which the disk gets as one piece. One direct write
/// at a time then reaches 3.0 to 3.5 GB/s on a virtio disk instead of 2.0 to 2.4.
pub(super) const BLOCK_BYTES: usize = LARGE_BYTES - 2 * UNIT - 64 * 1024;
/// Bytes of a huge page.
const LARGE_BYTES: usize = 2 << 20;
/// Memory of more than this many bytes is in transparent huge pages, if the system has some.
const SMALL_BYTES_MAX: usize = 256 * 1024;
/// Maximum number of spare blocks.
const SPARE_MAX: usize = 16;

/// Bytes of a file, aligned in memory as they are in the file, for direct writes.
#[derive(Debug, Default)]
pub(super) struct Block {
    memory: BlockMemory,
    /// The bytes' position in `memory`. The address of the first byte is a multiple of [`UNIT`]
    /// plus `phase`.
    place: Range<usize>,
    phase: usize,
}

#[derive(Debug)]
enum BlockMemory {
    Small(Vec<u8>),
    Large(LargeBuffer),
}

/// Memory of used blocks, for the next blocks. A fresh huge page costs a page fault, in which the
/// kernel clears 2 MiB.
#[derive(Debug, Default)]
pub(super) struct SpareBlocks(Mutex<SpareBlocksState>);

#[derive(Debug, Default)]
struct SpareBlocksState {
    blocks: Vec<Block>,
    /// The smallest number of spare blocks since the last [`SpareBlocks::trim`].
    least: usize,
}

impl Default for BlockMemory {
    fn default() -> Self {
        Self::Small(Vec::new())
    }
}

impl BlockMemory {
    /// Memory for `bytes` bytes at any offset within a [`UNIT`].
    fn new(bytes: usize) -> io::Result<Self> {
        let bytes = bytes.saturating_add(2 * UNIT);
        Ok(match bytes {
            ..=SMALL_BYTES_MAX => Self::Small(vec![0; bytes.next_power_of_two()]),
            _ => Self::Large(LargeBuffer::new(bytes)?),
        })
    }
}

impl Deref for BlockMemory {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Self::Small(bytes) => bytes,
            Self::Large(bytes) => bytes,
        }
    }
}

impl DerefMut for BlockMemory {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Small(bytes) => bytes,
            Self::Large(bytes) => bytes,
        }
    }
}

impl Block {
    /// A block with [`LARGE_BYTES`] of memory.
    fn large() -> io::Result<Self> {
        Ok(Self {
            memory: BlockMemory::new(LARGE_BYTES - 2 * UNIT)?,
            ..Self::default()
        })
    }

    fn is_large(&self) -> bool {
        self.memory.len() == LARGE_BYTES
    }

    /// Empties the block for bytes that belong at this offset of the file.
    pub(super) fn start(&mut self, offset: u64) {
        #[expect(clippy::cast_possible_truncation, reason = "below a unit")]
        let phase = (offset % UNIT as u64) as usize;
        self.phase = phase;
        self.place = 0..0;
        if !self.memory.is_empty() {
            self.align();
        }
    }

    /// Sets the position in memory for the first byte of an empty block.
    fn align(&mut self) {
        let from = self.memory.as_ptr().align_offset(UNIT) + self.phase;
        self.place = from..from;
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.memory[self.place.clone()]
    }

    pub(super) fn len(&self) -> usize {
        self.place.len()
    }

    fn room(&self) -> usize {
        self.memory.len() - self.place.end
    }

    /// Replaces the memory by memory for `bytes` bytes, and for at least twice the present bytes.
    #[cold]
    fn grow(&mut self, bytes: usize) -> io::Result<()> {
        let mut larger = Self {
            memory: BlockMemory::new(bytes.max(2 * self.len()))?,
            phase: self.phase,
            ..Self::default()
        };
        larger.align();
        larger.write_all(self.bytes())?;
        *self = larger;
        Ok(())
    }
}

impl Write for Block {
    #[inline]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.room() < bytes.len() {
            self.grow(self.len() + bytes.len())?;
        }
        let end = self.place.end + bytes.len();
        self.memory[self.place.end..end].copy_from_slice(bytes);
        self.place.end = end;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl SpareBlocks {
    /// A block with [`LARGE_BYTES`] of memory, or an empty block if the system refuses memory. The
    /// caller must [`start`](Block::start) the block: a reused block still has its old bytes.
    pub(super) fn take(&self) -> Block {
        let mut state = lock(&self.0);
        let block = state.blocks.pop();
        state.least = state.least.min(state.blocks.len());
        drop(state);
        block.unwrap_or_else(|| Block::large().unwrap_or_default())
    }

    pub(super) fn put(&self, block: Block) {
        let mut state = lock(&self.0);
        if state.blocks.len() < SPARE_MAX && block.is_large() {
            state.blocks.push(block);
        }
    }

    /// Frees as many blocks as were always spare since the last call.
    pub(super) fn trim(&self) {
        let mut state = lock(&self.0);
        let kept = state.blocks.len() - state.least;
        let freed = state.blocks.split_off(kept);
        state.least = kept;
        drop(state);
        drop(freed);
    }
}
