//! RegionMemory of one owner in huge pages.

use std::{
    io,
    ops::{Deref, DerefMut},
    slice,
};

use super::{ALIGNMENT, Advice, READ_WRITE, RegionMemory};
use crate::RingError;

/// Bytes that are zero at first, in transparent huge pages where the system has some to give, and left out of core dumps. For what is given to a disk in large
/// writes that go past the page cache: each page is a place of its own to the disk.
#[derive(Debug)]
pub struct LargeBuffer(RegionMemory);

impl LargeBuffer {
    /// One of at least so many bytes, which are not touched yet. It begins on a boundary of 2 MiB, and is a multiple of that.
    ///
    /// # Errors
    /// The system has no such memory.
    pub fn new(bytes: usize) -> io::Result<Self> {
        let bytes = bytes
            .max(1)
            .checked_next_multiple_of(ALIGNMENT)
            .ok_or(io::ErrorKind::OutOfMemory)?;
        let memory = RegionMemory::aligned(bytes, READ_WRITE).map_err(|error| match error {
            RingError::System { error, .. } => error,
            other => io::Error::other(other),
        })?;
        for advice in [Advice::LinuxDontDump, Advice::LinuxHugepage] {
            // Without it the bytes are the same.
            let _ = memory.advise(0, bytes, advice);
        }
        Ok(Self(memory))
    }
}

impl Deref for LargeBuffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping has so many bytes, was zeroed by the kernel, lives as long as `self`, and nobody else knows its address.
        unsafe { slice::from_raw_parts(self.0.base.as_ptr(), self.0.bytes) }
    }
}

impl DerefMut for LargeBuffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the borrow of `self` is exclusive.
        unsafe { slice::from_raw_parts_mut(self.0.base.as_ptr(), self.0.bytes) }
    }
}
