//! A large buffer with one owner, in huge pages if available.

use std::{
    io,
    ops::{Deref, DerefMut},
    slice,
};

use super::{ALIGNMENT, Advice, READ_WRITE, RegionMemory};
use crate::RingError;

/// A buffer in transparent huge pages if the system gives them, usually excluded from core dumps.
/// Meant for large writes to a disk past the page cache: a disk write has up to one segment for
/// each page.
#[derive(Debug)]
pub struct LargeBuffer(RegionMemory);

impl LargeBuffer {
    /// Makes a zeroed buffer of at least `bytes` bytes. Start and length are multiples of 2 MiB.
    ///
    /// # Errors
    /// The system cannot map the memory.
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
            // Advice only: without it the contents are the same.
            let _ = memory.advise(0, bytes, advice);
        }
        Ok(Self(memory))
    }
}

impl Deref for LargeBuffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping has this many bytes, was zeroed by the kernel, lives as long as
        // `self`, and nobody else knows its address.
        unsafe { slice::from_raw_parts(self.0.base.as_ptr(), self.0.bytes) }
    }
}

impl DerefMut for LargeBuffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the mapping has this many bytes, was zeroed by the kernel, and lives as long as
        // `self`. The borrow of `self` is exclusive, and nobody else knows the address.
        unsafe { slice::from_raw_parts_mut(self.0.base.as_ptr(), self.0.bytes) }
    }
}
