//! A ring in which a test plays the kernel.

use super::*;
use crate::sys::map_zeros;

impl Mapping {
    /// A ring of zeros, without a kernel.
    pub(crate) fn in_memory(block_bytes: usize, blocks: usize) -> io::Result<Self> {
        let memory = map_zeros(block_bytes * blocks)?;
        Ok(Self::new(memory, block_bytes, blocks))
    }

    /// Plays the kernel: fills a block and hands it over.
    pub(crate) fn hand_over(&mut self, index: usize, bytes: &[u8]) {
        assert_eq!(bytes.len(), self.block_bytes);
        assert!(self.block(index).is_none(), "the block is not the kernel's");
        let start = self.block_start(index);
        // SAFETY: the block is `block_bytes` long, and `&mut self` excludes other references to it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), start, bytes.len()) };
        self.word(index, STATUS_OFFSET)
            .store(libc::TP_STATUS_USER, Ordering::Release);
    }
}
