//! Memory with an inaccessible guard after its end, so that a read beyond the end crashes.
#![expect(
    unsafe_code,
    reason = "a page without permissions behind the bytes: no other judge sees what machine code reads"
)]

use std::{ffi::c_void, ptr, ptr::NonNull, slice};

/// A mapping whose last part is inaccessible.
#[derive(Debug)]
pub(super) struct GuardedMemory {
    start: NonNull<c_void>,
}

/// Usable bytes before the guard, a multiple of every page size up to 64 KiB.
const USABLE: usize = 64 << 10;
const GUARD: usize = 64 << 10;

impl GuardedMemory {
    pub(super) fn new() -> Self {
        // SAFETY: a private anonymous mapping at an address that the kernel chooses. No existing
        // memory is affected.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                USABLE + GUARD,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert!(
            start != libc::MAP_FAILED,
            "{}",
            std::io::Error::last_os_error()
        );
        let start = NonNull::new(start).expect("not at address 0");
        let guarded = Self { start };
        // SAFETY: inside the mapping, which is `USABLE + GUARD` bytes long.
        let guard = unsafe { start.as_ptr().byte_add(USABLE) };
        // SAFETY: the second part of our own mapping, on a page boundary. There is no reference
        // into it.
        let status = unsafe { libc::mprotect(guard, GUARD, libc::PROT_NONE) };
        assert_eq!(status, 0, "{}", std::io::Error::last_os_error());
        guarded
    }

    /// Copies `values` to the end of the usable part.
    pub(super) fn place<T: Copy>(&mut self, values: &[T]) -> &[T] {
        let bytes = size_of_val(values);
        assert!(bytes <= USABLE);
        // SAFETY: inside the usable part of the mapping.
        let place = unsafe { self.start.as_ptr().byte_add(USABLE - bytes) }.cast::<T>();
        // The guard begins on a page boundary, and a type's size is a multiple of its alignment.
        assert!(place.is_aligned());
        // SAFETY: `bytes` bytes from `place` on are ours to write, and `&mut self` excludes
        // references to these bytes. The source does not overlap.
        unsafe { ptr::copy_nonoverlapping(values.as_ptr(), place, values.len()) };
        // SAFETY: `values.len()` values were just written at `place`, aligned. They stay as long as
        // `self` is borrowed.
        unsafe { slice::from_raw_parts(place, values.len()) }
    }
}

impl Drop for GuardedMemory {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length, unmapped once. References into the mapping
        // borrow `self`.
        unsafe { libc::munmap(self.start.as_ptr(), USABLE + GUARD) };
    }
}
