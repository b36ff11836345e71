//! The memory that contestants keep packets in: one region, filled with pages once, lent to one after the other.
#![expect(unsafe_code, reason = "maps memory in huge pages")]

use std::{ffi::c_void, ptr::NonNull, slice};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::measure::Failure;

/// The region starts on, and is a multiple of, a huge page.
pub const ALIGNMENT: usize = 2 << 20;

/// An owned, zeroed, pre-faulted region, in transparent huge pages where the system gives them.
#[derive(Debug)]
pub struct Memory {
    mapping: NonNull<c_void>,
    mapping_bytes: usize,
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to this value alone and is not tied to a thread.
unsafe impl Send for Memory {}

impl Memory {
    /// Maps and fills `bytes`, rounded up to a multiple of 2 MiB, at least 2 MiB.
    ///
    /// # Errors
    /// [`Failure::Wrong`]: the memory is not there.
    pub fn new(bytes: usize) -> Result<Self, Failure> {
        let bytes = bytes.max(1).next_multiple_of(ALIGNMENT);
        let mapping_bytes = bytes + ALIGNMENT;
        let failure = |error| Failure::system(&format!("mapping {bytes} bytes"), error);
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let mapping = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                mapping_bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        };
        let mapping = NonNull::new(mapping.map_err(failure)?)
            .ok_or_else(|| Failure::system("mapping memory", "the address is 0"))?;
        let start = mapping.cast::<u8>();
        let offset = start.align_offset(ALIGNMENT);
        // SAFETY: `offset < ALIGNMENT`, and the mapping is `ALIGNMENT` longer than the region.
        let base = unsafe { start.add(offset) };
        let mut memory = Self {
            mapping,
            mapping_bytes,
            base,
            bytes,
        };
        // Advice only; without huge pages everything works the same, slower at first touch.
        // SAFETY: the range is inside our mapping, and the advice does not change contents.
        let _ = unsafe { madvise(base.as_ptr().cast(), bytes, Advice::LinuxHugepage) };
        memory.bytes_mut().fill(0);
        Ok(memory)
    }

    /// All of it.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: `bytes` bytes from `base` lie inside our private, zeroed, writable mapping, and `&mut self` is the only way
        // to them.
        unsafe { slice::from_raw_parts_mut(self.base.as_ptr(), self.bytes) }
    }

    /// Its size in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "it never is")]
    pub fn len(&self) -> usize {
        self.bytes
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new` with this length; no borrow of it outlives `self`.
        let _ = unsafe { munmap(self.mapping.as_ptr(), self.mapping_bytes) };
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
