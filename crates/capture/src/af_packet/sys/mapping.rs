//! The block ring that the kernel and this process share.
//!
//! # Who owns a block
//! The status word of a block identifies its owner. Without `TP_STATUS_USER` the kernel owns the
//! block and may write to it at any time. With the flag set, the kernel does not touch the block
//! until the word is 0 again. Kernel side: `net/packet/af_packet.c`, `prb_close_block` (writes the
//! block, barrier, sets the status) and `prb_open_block`.
//!
//! Ordering edges: **K1** the kernel's status store after its writes, paired with the Acquire load
//! in [`Mapping::block`]. **K2** the Release store in [`Mapping::release`], after our reads, paired
//! with the kernel's status load.
#![expect(unsafe_code, reason = "memory shared with the kernel")]

use std::{
    io,
    mem::offset_of,
    os::fd::AsFd,
    slice,
    sync::atomic::{AtomicU32, Ordering},
};

use libc::{tpacket_block_desc, tpacket_hdr_v1};
use memmap2::MmapRaw;

use crate::sys::map_shared;

const STATUS_OFFSET: usize = HEADER_OFFSET + offset_of!(tpacket_hdr_v1, block_status);
const PACKETS_OFFSET: usize = HEADER_OFFSET + offset_of!(tpacket_hdr_v1, num_pkts);
const HEADER_OFFSET: usize = offset_of!(tpacket_block_desc, hdr);

/// A mapped ring of equal blocks.
#[derive(Debug)]
pub(crate) struct Mapping {
    memory: MmapRaw,
    block_bytes: usize,
    blocks: usize,
}

impl Mapping {
    /// Maps the receive ring of a packet socket, which has exactly `blocks` blocks of
    /// `block_bytes`. The kernel refuses any other length.
    pub(crate) fn of_socket(
        socket: impl AsFd,
        block_bytes: usize,
        blocks: usize,
    ) -> io::Result<Self> {
        let bytes = block_bytes.checked_mul(blocks);
        let bytes = bytes.expect("a ring that the kernel made has a size");
        let memory = map_shared(socket, bytes, 0)?;
        Ok(Self::new(memory, block_bytes, blocks))
    }

    fn new(memory: MmapRaw, block_bytes: usize, blocks: usize) -> Self {
        assert!(block_bytes.is_multiple_of(4096) && block_bytes > 0 && blocks > 0);
        assert_eq!(Some(memory.len()), block_bytes.checked_mul(blocks));
        Self {
            memory,
            block_bytes,
            blocks,
        }
    }

    /// Bytes of all blocks.
    pub(crate) fn bytes(&self) -> usize {
        self.blocks * self.block_bytes
    }

    pub(crate) fn blocks(&self) -> usize {
        self.blocks
    }

    /// The block at `index`, if the kernel has handed it over. Panics unless `index < blocks`.
    pub(crate) fn block(&self, index: usize) -> Option<&[u8]> {
        // K1: Acquire, pairs with the kernel's barrier before its status store.
        if self.word(index, STATUS_OFFSET).load(Ordering::Acquire) & libc::TP_STATUS_USER == 0 {
            return None;
        }
        let start = self.block_start(index);
        // SAFETY: `block_bytes` mapped bytes start at this address. The kernel does not write to
        // them before `release`, which takes `&mut self` and so waits for the end of this borrow.
        Some(unsafe { slice::from_raw_parts(start, self.block_bytes) })
    }

    /// Whether the packet count of the kernel's block at `index` is 0.
    pub(crate) fn is_empty(&self, index: usize) -> bool {
        // Relaxed: no access to the memory of the block depends on the value.
        self.word(index, PACKETS_OFFSET).load(Ordering::Relaxed) == 0
    }

    /// Returns a block to the kernel. Does nothing if the kernel owns the block.
    pub(crate) fn release(&mut self, index: usize) {
        if self.block(index).is_none() {
            return;
        }
        // The kernel resets the count when it opens the block; until then the old count would look
        // like waiting packets.
        self.word(index, PACKETS_OFFSET).store(0, Ordering::Relaxed);
        // K2: Release, after our reads of the block; pairs with the kernel's load of the status.
        self.word(index, STATUS_OFFSET)
            .store(libc::TP_STATUS_KERNEL, Ordering::Release);
    }

    /// A word of a block's header. Panics unless `index < blocks`.
    fn word(&self, index: usize, offset: usize) -> &AtomicU32 {
        debug_assert!(offset == STATUS_OFFSET || offset == PACKETS_OFFSET);
        let word = self.block_start(index).wrapping_add(offset).cast();
        // SAFETY: the word is inside the mapping (a block has at least a page), is aligned to 4
        // bytes because blocks are aligned to pages, and is only accessed atomically while the
        // kernel may write to it.
        unsafe { AtomicU32::from_ptr(word) }
    }

    fn block_start(&self, index: usize) -> *mut u8 {
        assert!(index < self.blocks);
        // Inside the mapping, because `index < blocks`.
        (self.memory.as_mut_ptr()).wrapping_add(index * self.block_bytes)
    }
}

#[cfg(test)]
mod tests;
