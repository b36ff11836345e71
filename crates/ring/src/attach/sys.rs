//! A ring's file, mapped read-only, or a ring of this process, and the only two ways to look into it: one word, and a run of words.
//!
//! The mapping is memory that another process writes. No reference to a range of it is ever made: each word is loaded by
//! itself, atomically, and what is returned is a copy.
//!
//! **What could end this process.** A load behind the end of a file that shrank raises SIGBUS. A memfd of ours is sealed
//! against that. For a file with a name the length is looked up again before each visit ([`Mapped::still_whole`]); only
//! the owner of the file or root can shrink it (0600), and only in the moment between that look and the loads would it
//! hurt. The recorder never shrinks it; removing or replacing the name does no harm.
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
        atomic::{AtomicU64, Ordering},
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
    backing: Backing,
}

/// Where the memory comes from.
#[derive(Debug)]
enum Backing {
    /// A file that was mapped for this value.
    File {
        file: File,
        /// The kernel lets nobody shrink it.
        sealed: bool,
    },
    /// A ring of this process.
    Own(Arc<Storage>),
}

// SAFETY: the mapping belongs to this value, or is kept by it, and is not tied to a thread; all access is by atomic loads.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// Maps all of a regular file of at least `bytes_min`.
    pub(super) fn open(path: &Path, bytes_min: usize) -> Result<Self, AttachError> {
        let system = |call, error: Errno| AttachError::System {
            path: path.to_owned(),
            call,
            error: io::Error::from(error),
        };
        // Not blocking: the path may be a pipe's. Links are followed: `/proc/PID/fd/N` is one.
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
            backing: Backing::File {
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
            backing: Backing::Own(Arc::clone(storage)),
        }
    }

    /// In this process other threads store without atomics: what makes a bucket's records stand still. `Err`: it is not of this
    /// generation any more. The file of another process knows no hold.
    pub(super) fn hold(&self, bucket: BucketRef) -> Result<Option<Hold>, CopyError> {
        match &self.backing {
            Backing::File { .. } => Ok(None),
            Backing::Own(storage) => match Hold::new(storage, bucket) {
                Some(hold) => Ok(Some(hold)),
                None => Err(CopyError::Overwritten(bucket)),
            },
        }
    }

    /// Bytes of the mapping, rounded down to words.
    pub(super) fn bytes(&self) -> usize {
        self.length / 8 * 8
    }

    /// Whether the file still is as long as it was mapped: look before loading.
    pub(super) fn still_whole(&self) -> bool {
        let Backing::File { file, sealed } = &self.backing else {
            return true;
        };
        *sealed
            || fstat(file)
                .is_ok_and(|stat| u64::try_from(stat.st_size).unwrap_or(0) >= self.bytes() as u64)
    }

    /// Whether another open file description has the file locked, as a recorder has while its ring lives.
    pub(super) fn is_locked(&self) -> bool {
        let Backing::File { file, .. } = &self.backing else {
            return true;
        };
        match flock(file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => {
                // Given back at once; the lock also goes with the file.
                let _ = flock(file, FlockOperation::Unlock);
                false
            }
            Err(error) => error == Errno::WOULDBLOCK,
        }
    }

    /// The word at a byte offset.
    ///
    /// # Panics
    /// Unless it lies in the mapping, aligned to 8.
    pub(super) fn load(&self, offset: usize, order: Ordering) -> u64 {
        assert!(offset.is_multiple_of(8) && offset < self.bytes());
        // SAFETY: inside the mapping, as asserted.
        let word = unsafe { self.base.add(offset / 8) };
        // SAFETY: mapped as long as `self`, aligned, and only ever loaded. This is a reference to one atomic word, which
        // anybody may store to at any time.
        unsafe { word.as_ref() }.load(order)
    }

    /// The words from a byte offset on, loaded in their order, each with Acquire.
    ///
    /// # Panics
    /// Unless all lie in the mapping, aligned to 8.
    pub(super) fn words<const N: usize>(&self, offset: usize) -> [u64; N] {
        std::array::from_fn(|word| self.load(offset + word * 8, Ordering::Acquire))
    }

    /// Copies `bytes` from a byte offset on, word by word in rising order.
    ///
    /// # Panics
    /// Unless the range, widened to words, lies in the mapping.
    pub(super) fn copy(&self, offset: usize, out: &mut [u8]) {
        let mut out = out;
        let mut at = offset / 8 * 8;
        let mut skip = offset % 8;
        while !out.is_empty() {
            let word = self.load(at, Ordering::Relaxed).to_ne_bytes(); // ordered by the caller's fence
            let (now, later) = out.split_at_mut((8 - skip).min(out.len()));
            now.copy_from_slice(&word[skip..skip + now.len()]);
            out = later;
            skip = 0;
            at += 8;
        }
    }

    fn leave_out_of_core_dumps(&self) {
        let start = self.base.as_ptr().cast::<c_void>();
        // SAFETY: the range was mapped by `open`, and the advice changes no contents.
        let _ = unsafe { madvise(start, self.length, Advice::LinuxDontDump) };
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        if let Backing::File { .. } = self.backing {
            // SAFETY: this is the range that `open` mapped, and it is not used after this.
            let _ = unsafe { munmap(self.base.as_ptr().cast::<c_void>(), self.length) };
        }
    }
}
