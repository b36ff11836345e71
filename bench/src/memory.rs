//! The memory in which the ring's opponents keep packets: usually one region, pre-faulted once,
//! lent to one contestant after another.
#![expect(unsafe_code, reason = "asks for huge pages")]

use rustix::mm::{Advice, madvise};

use crate::measure::Failure;

/// Start and length of the region are multiples of this: a huge page.
pub const ALIGNMENT: usize = 2 << 20;

/// A zeroed, pre-faulted region, in transparent huge pages if available.
#[derive(Debug)]
pub struct Memory {
    bytes: Vec<u8>,
    start: usize,
}

impl Memory {
    /// Allocates and fills `bytes`, rounded up to a multiple of 2 MiB, at least 2 MiB.
    ///
    /// # Errors
    /// [`Failure::Wrong`]: not enough memory.
    pub fn new(bytes: usize) -> Result<Self, Failure> {
        let wanted = bytes.max(1).next_multiple_of(ALIGNMENT);
        let mut bytes = Vec::<u8>::new();
        let reserved = bytes.try_reserve_exact(wanted + ALIGNMENT);
        reserved.map_err(|error| Failure::system("taking memory", error))?;
        let start = bytes.as_ptr().align_offset(ALIGNMENT);
        let region = bytes.as_mut_ptr().wrapping_add(start);
        // Advice only: without huge pages the first touch is slower.
        // SAFETY: the range is inside the reserved memory, and the advice does not change contents.
        let _ = unsafe { madvise(region.cast(), wanted, Advice::LinuxHugepage) };
        bytes.resize(start + wanted, 0);
        Ok(Self { bytes, start })
    }

    /// The whole region.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..]
    }

    /// Size in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "it never is")]
    pub fn len(&self) -> usize {
        self.bytes.len() - self.start
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_aligned_zeroed_and_writable() {
        let mut memory = Memory::new(3 << 20).unwrap();
        assert_eq!(memory.len(), 4 << 20);
        let bytes = memory.bytes_mut();
        assert_eq!(bytes.as_ptr().align_offset(ALIGNMENT), 0);
        assert!(bytes.iter().all(|&byte| byte == 0));
        bytes.fill(7);
        assert!(bytes.iter().all(|&byte| byte == 7));
    }
}
