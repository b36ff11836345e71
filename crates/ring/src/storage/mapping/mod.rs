//! The region's memory: one mapping, in pages of 2 MiB where possible.
//!
//! | backing | explicit huge pages | otherwise `MADV_HUGEPAGE`, if allowed by |
//! |---|---|---|
//! | anonymous | `MAP_HUGETLB` | `transparent_hugepage/enabled` |
//! | memfd | `MFD_HUGETLB` | `transparent_hugepage/shmem_enabled` |
//! | file | a path on hugetlbfs | a tmpfs mounted with `huge=advise` or more |
//!
//! Anonymous memory and memfds get explicit huge pages only with `prefault`. The NUMA node is set
//! before the mapping is filled.
#![expect(unsafe_code, reason = "maps memory and hands out its address")]

mod buffer;
mod file;
mod numa;
mod pages;
mod populate;

use std::{
    ffi::c_void,
    io,
    mem::ManuallyDrop,
    ops::Range,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::PathBuf,
    ptr::NonNull,
};

use rustix::{
    fs::{MemfdFlags, ftruncate, memfd_create},
    io::Errno,
    mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap},
};

pub use self::buffer::LargeBuffer;
use self::{
    file::{Medium, RegionFile},
    populate::PopulateProgress,
};
use super::{MemoryObtained, layout::MAGIC};
use crate::{Backing, Numa, Pages, RingConfig, RingError};

/// Alignment of the region and of its first bucket, in bytes.
pub(crate) const ALIGNMENT: usize = 2 << 20;
/// The smallest page size, in bytes.
const PAGE_BYTES: usize = 4096;

const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// An owned mapping, aligned to [`ALIGNMENT`].
#[derive(Debug)]
pub(crate) struct RegionMemory {
    base: NonNull<u8>,
    bytes: usize,
    /// The mapped file; `None` for anonymous memory.
    file: Option<RegionFile>,
}

// SAFETY: this value owns the mapping, which is not tied to a thread. `Storage` decides who may
// access which bytes; its accessors are unsafe or exclusive.
unsafe impl Send for RegionMemory {}
// SAFETY: `&RegionMemory` gives only an address. `Storage` decides who may access which bytes.
unsafe impl Sync for RegionMemory {}

/// Asks for transparent huge pages for the whole pages between these addresses. Without huge pages
/// in the system, nothing changes.
pub fn ask_for_huge_pages(addresses: Range<*const u8>) {
    let start = addresses.start.addr().next_multiple_of(PAGE_BYTES);
    let end = addresses.end.addr() / PAGE_BYTES * PAGE_BYTES;
    if let Some(bytes) = end.checked_sub(start) {
        let start = addresses.start.with_addr(start).cast_mut();
        // SAFETY: the advice changes no contents, whatever is mapped there, and the kernel refuses
        // unmapped addresses.
        let _ = unsafe { madvise(start.cast::<c_void>(), bytes, Advice::LinuxHugepage) };
    }
}

impl RegionMemory {
    /// Maps `bytes`, a multiple of [`ALIGNMENT`], and fills the memory if `config.prefault`. While
    /// it fills the memory, calls `progress` with (bytes filled, total bytes).
    pub(crate) fn new(
        bytes: usize,
        config: &RingConfig,
        progress: Option<&mut dyn FnMut(u64, u64)>,
    ) -> Result<(Self, MemoryObtained), RingError> {
        assert!(bytes.is_multiple_of(ALIGNMENT) && bytes > 0);
        let mut progress = PopulateProgress::new(bytes, progress);
        // A cgroup (`hugetlb.2MB.max`) may refuse a huge page at its first touch: a store then
        // raises SIGBUS. So an anonymous or memfd ring uses explicit huge pages only if all of them
        // can be filled now.
        if config.prefault
            && let Some(memory) = Self::explicit(bytes, &config.backing)
        {
            let numa = memory.settle(config.numa_node);
            if memory.populate(&mut progress).is_ok() {
                let pages = Pages::Explicit;
                return Ok((memory, MemoryObtained { pages, numa }));
            }
        }
        let memory = Self::ordinary(bytes, &config.backing)?;
        let numa = memory.settle(config.numa_node);
        let _ = memory.advise(0, bytes, Advice::LinuxHugepage);
        let marked = memory.mark();
        let filled = marked.and_then(|()| memory.fill(config.prefault, &mut progress));
        filled.inspect_err(|_| memory.file.iter().for_each(RegionFile::remove))?;
        let pages = memory.pages(if config.prefault { bytes } else { ALIGNMENT });
        Ok((memory, MemoryObtained { pages, numa }))
    }

    /// The first byte of the mapping.
    #[inline(always)]
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// The path where another process finds the region: its file, or the memfd among this process's
    /// descriptors.
    pub(crate) fn path(&self) -> Option<PathBuf> {
        let file = self.file.as_ref()?;
        Some(file.path.clone().unwrap_or_else(|| file.proc_path()))
    }

    /// Memory in explicit huge pages. `None`: the kernel refused, or the backing is a named file.
    fn explicit(bytes: usize, backing: &Backing) -> Option<Self> {
        match backing {
            Backing::Anonymous => {
                let flags = MapFlags::HUGETLB | MapFlags::HUGE_2MB;
                let base = map(bytes, READ_WRITE, flags).ok()?;
                Some(Self {
                    base,
                    bytes,
                    file: None,
                })
            }
            Backing::Memfd => Self::shared(bytes, RegionFile::memfd(bytes, true).ok()?).ok(),
            Backing::File(_) => None, // the file system decides the page size
        }
    }

    fn ordinary(bytes: usize, backing: &Backing) -> Result<Self, RingError> {
        match backing {
            Backing::Anonymous => Self::aligned(bytes, READ_WRITE),
            Backing::Memfd => {
                let file = RegionFile::memfd(bytes, false);
                let file = file.map_err(|error| system("memfd_create", bytes, error))?;
                Self::shared(bytes, file)
            }
            Backing::File(path) => Self::shared(bytes, RegionFile::create(path, bytes)?),
        }
    }

    /// Anonymous memory without explicit huge pages, at an aligned address.
    fn aligned(bytes: usize, protection: ProtFlags) -> Result<Self, RingError> {
        let error = |error| system("mmap", bytes, error);
        let total = bytes
            .checked_add(ALIGNMENT)
            .ok_or_else(|| error(Errno::NOMEM))?;
        let start = map(total, protection, MapFlags::empty()).map_err(error)?;
        let before = start.as_ptr().align_offset(ALIGNMENT);
        let after = ALIGNMENT - before;
        unmap(start, before);
        // SAFETY: `before <= ALIGNMENT`, so this stays inside the `bytes + ALIGNMENT` just mapped.
        let base = unsafe { start.add(before) };
        // SAFETY: `before + bytes + after` is the length of the mapping, so this is at most its
        // end.
        let end = unsafe { base.add(bytes) };
        unmap(end, after);
        Ok(Self {
            base,
            bytes,
            file: None,
        })
    }

    /// A file of `bytes`, mapped at an aligned address.
    fn shared(bytes: usize, file: RegionFile) -> Result<Self, RingError> {
        // hugetlbfs aligns by itself. Other files are mapped over reserved addresses.
        let (reserved, flags) = if file.medium == Medium::HugePages {
            (None, MapFlags::empty())
        } else {
            let reserved = Self::aligned(bytes, ProtFlags::empty());
            let reserved = reserved.inspect_err(|_| file.remove())?;
            (Some(reserved), MapFlags::FIXED)
        };
        // A failed MAP_FIXED may have unmapped the reservation, and another thread may have got the
        // addresses. From here on the addresses belong to the new mapping, or to nobody.
        let reserved = reserved.map(ManuallyDrop::new);
        let wanted = reserved.as_ref().map_or(std::ptr::null_mut(), |memory| {
            memory.base.as_ptr().cast::<c_void>()
        });
        let (fd, flags) = (file.fd.as_fd(), MapFlags::SHARED | flags);
        // SAFETY: at an address of the kernel's choice this touches no existing memory. Otherwise
        // it replaces exactly the pages of `reserved`, which this function owns and nobody has
        // touched, and which only the new mapping unmaps later.
        let mapped = unsafe { mmap(wanted, bytes, READ_WRITE, flags, fd, 0) };
        let base =
            mapped.and_then(|address| NonNull::new(address.cast::<u8>()).ok_or(Errno::NOMEM));
        match base {
            Ok(base) => {
                assert!(base.as_ptr().addr().is_multiple_of(ALIGNMENT));
                let file = Some(file);
                Ok(Self { base, bytes, file })
            }
            Err(error) => {
                file.remove();
                Err(file.error("mmap", bytes, error))
            }
        }
    }

    fn settle(&self, numa_node: Option<u32>) -> Numa {
        // `MADV_DONTDUMP`: keeps captured traffic, and gigabytes, out of core dumps.
        let _ = self.advise(0, self.bytes, Advice::LinuxDontDump);
        numa_node.map_or(Numa::Unset, |node| {
            numa::prefer(self.base, self.bytes, node)
        })
    }

    /// Writes the magic to a named file on hugetlbfs, which has no write(2).
    fn mark(&self) -> Result<(), RingError> {
        let named = |file: &&RegionFile| file.medium == Medium::HugePages && file.path.is_some();
        let Some(file) = self.file.as_ref().filter(named) else {
            return Ok(());
        };
        let reserved = file.reserve(ALIGNMENT);
        reserved.map_err(|error| self.error("fallocate", error))?;
        // SAFETY: the mapping is aligned, begins with the page just reserved, and nobody else knows
        // it yet.
        unsafe { self.base.cast::<u64>().write_volatile(MAGIC) };
        Ok(())
    }

    /// Reserves a file's space and, with `prefault`, fills all pages.
    fn fill(&self, prefault: bool, progress: &mut PopulateProgress<'_>) -> Result<(), RingError> {
        if let Some(file) = &self.file {
            // Filling takes all pages of a file in memory, and reports a refusal. Without filling,
            // and on a disk, a later store might find no space, which raises SIGBUS.
            let by_filling = match file.medium {
                Medium::HugePages => prefault,
                Medium::Memory => prefault && self.populates(),
                Medium::Disk => false,
            };
            if !by_filling {
                let reserved = file.reserve(self.bytes);
                reserved.map_err(|error| self.error("fallocate", error))?;
            }
        }
        if prefault {
            return self.populate(progress);
        }
        // Touches a page of the last 2 MiB, to find out the kernel's page size. The first page of a
        // named file exists already.
        let last = self.bytes - ALIGNMENT..self.bytes - ALIGNMENT + PAGE_BYTES;
        let zero = Zero::new().map_err(|error| self.error("memfd_create", error))?;
        let touched = self.touch(&zero, last);
        touched.map_err(|error| self.error("pread", error))
    }

    /// Whether the kernel has `MADV_POPULATE_WRITE` (Linux 5.14). To find out, fills the first 2
    /// MiB.
    fn populates(&self) -> bool {
        self.advise(0, ALIGNMENT, Advice::LinuxPopulateWrite) != Err(Errno::INVAL)
    }

    /// Backs all of the mapping with pages.
    fn populate(&self, progress: &mut PopulateProgress<'_>) -> Result<(), RingError> {
        let (zero, call) = if self.populates() {
            (None, "madvise(MADV_POPULATE_WRITE)")
        } else {
            let zero = Zero::new().map_err(|error| self.error("memfd_create", error))?;
            (Some(zero), "pread")
        };
        let fill = |range: Range<usize>| match &zero {
            None => self.advise(range.start, range.len(), Advice::LinuxPopulateWrite),
            Some(zero) => self.touch(zero, range),
        };
        let helpers = populate::helpers(self.bytes);
        let filled = populate::in_parallel(self.bytes, helpers, progress, fill);
        filled.map_err(|error| {
            // EFAULT: the kernel has no page. For a file, this is reported as a lack of space.
            let is_full = error == Errno::FAULT && self.file.is_some();
            let error = if is_full { Errno::NOSPC } else { error };
            self.error(call, error)
        })
    }

    fn error(&self, call: &'static str, error: Errno) -> RingError {
        match &self.file {
            Some(file) => file.error(call, self.bytes, error),
            None => system(call, self.bytes, error),
        }
    }

    fn advise(&self, offset: usize, bytes: usize, advice: Advice) -> Result<(), Errno> {
        assert!(offset + bytes <= self.bytes);
        // SAFETY: `offset` is inside the mapping, as asserted.
        let start = unsafe { self.base.add(offset) };
        // SAFETY: this value owns the range, as asserted, and no advice given here changes
        // contents.
        unsafe { madvise(start.as_ptr().cast::<c_void>(), bytes, advice) }
    }

    /// Has the kernel store a zero into each page of the range.
    ///
    /// # Errors
    /// `EFAULT`: the kernel has no page. A store of this process would raise SIGBUS.
    fn touch(&self, zero: &Zero, range: Range<usize>) -> Result<(), Errno> {
        assert!(range.end <= self.bytes);
        for page in range.step_by(PAGE_BYTES) {
            // SAFETY: `page` is inside the mapping, as asserted.
            let byte = unsafe { self.base.add(page) };
            // SAFETY: one byte of the mapping, before anybody else knows the mapping. All bytes are
            // zero except the first bytes of a new file, which are written again with the header.
            unsafe { zero.write_to(byte) }?;
        }
        Ok(())
    }

    /// The kind of pages that back the mapping, of which `filled` bytes were touched.
    fn pages(&self, filled: usize) -> Pages {
        let is_hugetlbfs = |file: &RegionFile| file.medium == Medium::HugePages;
        if self.file.as_ref().is_some_and(is_hugetlbfs) {
            return Pages::Explicit;
        }
        let start = self.base.addr().get() as u64;
        let huge = pages::transparent_bytes(start..start + self.bytes as u64);
        if huge.is_some_and(|huge| huge >= filled as u64 / 2) {
            Pages::Transparent
        } else {
            Pages::Small
        }
    }
}

impl Drop for RegionMemory {
    fn drop(&mut self) {
        unmap(self.base, self.bytes);
    }
}

/// A one-byte file from which the kernel copies a zero.
#[derive(Debug)]
struct Zero(OwnedFd);

impl Zero {
    fn new() -> Result<Self, Errno> {
        let fd = memfd_create("retroscope-zero", MemfdFlags::CLOEXEC)?;
        ftruncate(&fd, 1)?;
        Ok(Self(fd))
    }

    /// # Safety
    /// Nobody else accesses the byte meanwhile.
    unsafe fn write_to(&self, byte: NonNull<u8>) -> Result<(), Errno> {
        // SAFETY: the kernel checks the address, and writes at most the caller's byte.
        match unsafe { libc::pread(self.0.as_raw_fd(), byte.as_ptr().cast(), 1, 0) } {
            1 => Ok(()),
            _ => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)),
        }
    }
}

fn map(bytes: usize, protection: ProtFlags, flags: MapFlags) -> Result<NonNull<u8>, Errno> {
    // SAFETY: a new private mapping at an address of the kernel's choice touches no existing
    // memory.
    let address = unsafe {
        mmap_anonymous(
            std::ptr::null_mut(),
            bytes,
            protection,
            MapFlags::PRIVATE | flags,
        )?
    };
    NonNull::new(address.cast::<u8>()).ok_or(Errno::NOMEM)
}

/// Unmaps pages that nobody uses any more.
fn unmap(start: NonNull<u8>, bytes: usize) {
    if bytes > 0 {
        // SAFETY: the callers own the range. An error would mean a wrong range; the memory then
        // stays mapped, which is safe.
        let _ = unsafe { munmap(start.as_ptr().cast::<c_void>(), bytes) };
    }
}

fn system(call: &'static str, bytes: usize, error: Errno) -> RingError {
    RingError::System {
        call,
        bytes: bytes as u64,
        error: io::Error::from(error),
    }
}

#[cfg(test)]
mod tests;
