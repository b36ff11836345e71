//! A ring's file, mapped read-only, or a ring of this process.
//!
//! Other processes or threads may write the memory while it is read. This file therefore loads each
//! word or byte separately and atomically, and returns copies.
//!
//! **Danger to this process.** A load after the end of a file that shrank raises SIGBUS. A memfd of
//! this program is sealed against shrinking. The length of a named file is checked before loads
//! ([`Mapped::still_whole`]), but the owner of the file or root can shrink it between the check and
//! the loads.
#![expect(
    unsafe_code,
    reason = "maps a file of another process, and loads from it"
)]

use std::{
    ffi::c_void,
    fs::File,
    io,
    path::Path,
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicU64, Ordering},
    },
};

use rustix::{
    fs::{FileType, FlockOperation, Mode, OFlags, SealFlags, fcntl_get_seals, flock, fstat, open},
    io::Errno,
    mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap},
};

use super::{AttachError, CopyError};
use crate::{
    BucketRef,
    storage::{Hold, Storage},
};

/// A region for reading.
#[derive(Debug)]
pub(super) struct Mapped {
    base: NonNull<AtomicU64>,
    /// Bytes of the mapping.
    length: usize,
    backing: RegionOrigin,
}

#[derive(Debug)]
enum RegionOrigin {
    /// A file that this value has mapped.
    File {
        file: File,
        /// Sealed against shrinking.
        sealed: bool,
    },
    /// A ring of this process.
    Own(Arc<Storage>),
}

// SAFETY: this value owns the mapping, or keeps its owner alive. The mapping is not tied to a
// thread, and this value only loads, atomically.
unsafe impl Send for Mapped {}
// SAFETY: through this value, threads only load, atomically. Threads of this process may store
// without atomics, but not into bytes that are loaded: a bucket is held before it is copied
// (`hold`), and only committed records are copied.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// Maps all of a regular file of at least `bytes_min` bytes.
    pub(super) fn open(path: &Path, bytes_min: usize) -> Result<Self, AttachError> {
        let system = |call, error: Errno| AttachError::System {
            path: path.to_owned(),
            call,
            error: io::Error::from(error),
        };
        // Non-blocking, because the path may name a pipe. Follows links: `/proc/PID/fd/N` is a
        // link.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let fd = open(path, flags, Mode::empty()).map_err(|error| system("open", error))?;
        let stat = fstat(&fd).map_err(|error| system("fstat", error))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(AttachError::NotAFile(path.to_owned()));
        }
        let bytes = u64::try_from(stat.st_size).unwrap_or(0);
        let length = usize::try_from(bytes)
            .ok()
            .filter(|&length| length >= bytes_min);
        let length = length.ok_or_else(|| AttachError::Truncated {
            path: path.to_owned(),
            bytes,
            needed: bytes_min as u64,
        })?;
        let sealed = fcntl_get_seals(&fd).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let address = unsafe {
            mmap(
                std::ptr::null_mut(),
                length,
                ProtFlags::READ,
                MapFlags::SHARED,
                &fd,
                0,
            )
        };
        let address = address.map_err(|error| system("mmap", error))?;
        let base = NonNull::new(address.cast::<AtomicU64>());
        let mapped = Self {
            base: base.ok_or_else(|| system("mmap", Errno::NOMEM))?,
            length,
            backing: RegionOrigin::File {
                file: File::from(fd),
                sealed,
            },
        };
        mapped.leave_out_of_core_dumps();
        Ok(mapped)
    }

    /// The region of a ring of this process.
    pub(super) fn own(storage: &Arc<Storage>) -> Self {
        let (base, length) = storage.region();
        Self {
            base: base.cast(),
            length,
            backing: RegionOrigin::Own(Arc::clone(storage)),
        }
    }

    /// Holds a bucket of a ring of this process, whose threads store without atomics. `Err`: the
    /// bucket is not, or no longer, readable in this generation, or has the maximum number of
    /// holds. `Ok(None)`: a mapped file gets no hold.
    pub(super) fn hold(&self, bucket: BucketRef) -> Result<Option<Hold>, CopyError> {
        match &self.backing {
            RegionOrigin::File { .. } => Ok(None),
            RegionOrigin::Own(storage) => match Hold::new(storage, bucket) {
                Some(hold) => Ok(Some(hold)),
                None => Err(CopyError::Overwritten(bucket)),
            },
        }
    }

    /// Bytes of the mapping, rounded down to words.
    pub(super) fn bytes(&self) -> usize {
        self.length / 8 * 8
    }

    /// Whether the file still has at least [`Self::bytes`]. Must be called before loads.
    pub(super) fn still_whole(&self) -> bool {
        let RegionOrigin::File { file, sealed } = &self.backing else {
            return true;
        };
        *sealed
            || fstat(file)
                .is_ok_and(|stat| u64::try_from(stat.st_size).unwrap_or(0) >= self.bytes() as u64)
    }

    /// Whether another open file description has an exclusive lock on the file, as a running
    /// recorder has. Always `true` for a ring of this process.
    pub(super) fn is_locked(&self) -> bool {
        let RegionOrigin::File { file, .. } = &self.backing else {
            return true;
        };
        match flock(file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => {
                // Released at once; closing the file would release the lock too.
                let _ = flock(file, FlockOperation::Unlock);
                false
            }
            Err(error) => error == Errno::WOULDBLOCK,
        }
    }

    /// The word at a byte offset.
    ///
    /// # Panics
    /// Unless the word is inside the mapping and aligned to 8.
    pub(super) fn load(&self, offset: usize, order: Ordering) -> u64 {
        assert!(offset.is_multiple_of(8) && offset < self.bytes());
        // SAFETY: inside the mapping, as asserted.
        let word = unsafe { self.base.add(offset / 8) };
        // SAFETY: mapped as long as `self`, aligned, and only ever loaded. This is a reference to
        // one atomic word, which anybody may store to at any time.
        unsafe { word.as_ref() }.load(order)
    }

    /// The words from a byte offset on, loaded in their order, each with Acquire.
    ///
    /// # Panics
    /// Unless all words are inside the mapping and aligned to 8.
    pub(super) fn words<const N: usize>(&self, offset: usize) -> [u64; N] {
        std::array::from_fn(|word| self.load(offset + word * 8, Ordering::Acquire))
    }

    /// The byte at an offset.
    ///
    /// # Panics
    /// If `offset` is outside of the mapping.
    fn load_byte(&self, offset: usize) -> u8 {
        assert!(offset < self.bytes());
        // SAFETY: inside the mapping, as asserted.
        let byte = unsafe { self.base.cast::<AtomicU8>().add(offset) };
        // SAFETY: as in `load`, of one byte.
        unsafe { byte.as_ref() }.load(Ordering::Relaxed) // ordered by the caller's fence
    }

    /// Copies bytes from an offset on. Loads nothing at or after the end of the range: a writer of
    /// this process may store there without atomics.
    ///
    /// # Panics
    /// If the range is not inside the mapping.
    pub(super) fn copy(&self, offset: usize, out: &mut [u8]) {
        let word = |at| self.load(at, Ordering::Relaxed); // ordered by the caller's fence
        copy_by(offset, out, word, |at| self.load_byte(at));
    }

    fn leave_out_of_core_dumps(&self) {
        let start = self.base.as_ptr().cast::<c_void>();
        // SAFETY: the range was mapped by `open`, and the advice changes no contents.
        let _ = unsafe { madvise(start, self.length, Advice::LinuxDontDump) };
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        if let RegionOrigin::File { .. } = self.backing {
            // SAFETY: this is the range that `open` mapped, and it is not used after this.
            let _ = unsafe { munmap(self.base.as_ptr().cast::<c_void>(), self.length) };
        }
    }
}

/// Fills `out` with the bytes from `offset` on. `word` loads the words that end in the range, at
/// multiples of 8; the first word may begin before `offset`. `byte` loads the bytes after the last
/// of these words.
fn copy_by(offset: usize, out: &mut [u8], word: impl Fn(usize) -> u64, byte: impl Fn(usize) -> u8) {
    let end = offset + out.len();
    let words_end = end / 8 * 8;
    let (whole, tail) = out.split_at_mut(words_end.saturating_sub(offset));
    let (mut whole, mut at) = (whole, offset);
    while !whole.is_empty() {
        let skip = at % 8;
        let (now, later) = whole.split_at_mut(8 - skip);
        now.copy_from_slice(&word(at - skip).to_ne_bytes()[skip..]);
        whole = later;
        at += 8 - skip;
    }
    for (place, at) in tail.iter_mut().zip(offset.max(words_end)..) {
        *place = byte(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_loads_nothing_behind_its_end() {
        let source: Vec<u8> = (0..40).collect();
        for offset in 0..24 {
            for length in 0..16 {
                let end = offset + length;
                let word = |at: usize| {
                    assert!(at.is_multiple_of(8) && at + 8 > offset);
                    assert!(at + 8 <= end, "a word at {at} of {offset}..{end}");
                    u64::from_ne_bytes(source[at..at + 8].try_into().unwrap())
                };
                let byte = |at: usize| {
                    assert!(at < end, "a byte at {at} of {offset}..{end}");
                    source[at]
                };
                let mut out = vec![0; length];
                copy_by(offset, &mut out, word, byte);
                assert_eq!(out, source[offset..end]);
            }
        }
    }
}
