//! The region's memory: one anonymous mapping in the largest pages that the system gives, filled before first use.
#![expect(unsafe_code, reason = "maps memory and hands out its address")]

use std::{ffi::c_void, fs, io, ptr::NonNull};

use rustix::{
    io::Errno,
    mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap},
};

use crate::{Pages, RingError};

/// Region and buckets start on this boundary.
pub(crate) const ALIGNMENT: usize = 2 << 20;
/// The most that is filled between two reports of progress.
const POPULATE_BYTES: usize = 64 << 20;
/// The smallest page, in bytes: one store into each fills the region where the kernel has no call for it.
const PAGE_BYTES: usize = 4096;

/// An owned mapping, aligned to [`ALIGNMENT`], zeroed, backed by pages, left out of core dumps.
#[derive(Debug)]
pub(crate) struct Memory {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to this value and is not tied to a thread; who may access which of its bytes is the
// business of `Storage`, whose accessors are unsafe or exclusive.
unsafe impl Send for Memory {}
// SAFETY: as above; `&Memory` gives an address only.
unsafe impl Sync for Memory {}

impl Memory {
    /// Maps and, with `prefault`, fills `bytes`, a multiple of [`ALIGNMENT`], and tells which pages were got.
    ///
    /// `progress` is called with (bytes filled, bytes in all) after each 64 MiB.
    pub(crate) fn new(
        bytes: usize,
        prefault: bool,
        progress: Option<&mut dyn FnMut(u64, u64)>,
    ) -> Result<(Self, Pages), RingError> {
        assert!(bytes.is_multiple_of(ALIGNMENT) && bytes > 0);
        let mut progress = progress;
        let mut report = |done, all| {
            if let Some(progress) = &mut progress {
                progress(done, all);
            }
        };
        // What the kernel promises when it maps may still be refused, by a cgroup for example: such pages are taken only
        // if they are filled at once.
        if prefault
            && let Some(memory) = Self::map_explicit(bytes)
            && memory.populate(&mut report).is_ok()
        {
            return Ok((memory, Pages::Explicit));
        }
        let memory = Self::map_aligned(bytes)?;
        // Advice only: without huge pages the ring works the same.
        let _ = memory.advise(0, bytes, Advice::LinuxHugepage);
        if prefault {
            memory.populate(&mut report)?;
            let pages = memory.pages(bytes);
            return Ok((memory, pages));
        }
        memory.leave_out_of_core_dumps();
        // The first page tells which ones the kernel gives.
        memory.touch(0, PAGE_BYTES);
        let pages = memory.pages(ALIGNMENT);
        Ok((memory, pages))
    }

    /// The first byte. Valid for `bytes` as long as the value lives.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Pages set aside by the administrator, if enough of them are free: the kernel counts them when it maps.
    fn map_explicit(bytes: usize) -> Option<Self> {
        let base = map(bytes, MapFlags::HUGETLB | MapFlags::HUGE_2MB).ok()?;
        Some(Self { base, bytes })
    }

    /// Ordinary pages; what the alignment leaves over at both ends is given back.
    fn map_aligned(bytes: usize) -> Result<Self, RingError> {
        let error = |error| system("mmap", bytes, error);
        let total = bytes
            .checked_add(ALIGNMENT)
            .ok_or_else(|| error(Errno::NOMEM))?;
        let start = map(total, MapFlags::empty()).map_err(error)?;
        let before = start.as_ptr().align_offset(ALIGNMENT);
        let after = ALIGNMENT - before;
        unmap(start, before);
        // SAFETY: `before <= ALIGNMENT`, so this stays inside the `bytes + ALIGNMENT` just mapped.
        let base = unsafe { start.add(before) };
        // SAFETY: `before + bytes + after` is the length of the mapping, whose end this may at most reach.
        let end = unsafe { base.add(bytes) };
        unmap(end, after);
        Ok(Self { base, bytes })
    }

    /// Backs all of the mapping with pages.
    fn populate(&self, report: &mut dyn FnMut(u64, u64)) -> Result<(), RingError> {
        self.leave_out_of_core_dumps();
        let mut by_call = true;
        let mut done = 0;
        while done < self.bytes {
            let length = POPULATE_BYTES.min(self.bytes - done);
            if by_call {
                match self.advise(done, length, Advice::LinuxPopulateWrite) {
                    Ok(()) => {}
                    Err(Errno::INVAL) => by_call = false, // before Linux 5.14
                    Err(error) => {
                        return Err(system("madvise(MADV_POPULATE_WRITE)", self.bytes, error));
                    }
                }
            }
            if !by_call {
                self.touch(done, length);
            }
            done += length;
            report(done as u64, self.bytes as u64);
        }
        Ok(())
    }

    /// Else a core dump would be as large as the ring, and hold other people's traffic.
    fn leave_out_of_core_dumps(&self) {
        let _ = self.advise(0, self.bytes, Advice::LinuxDontDump);
    }

    fn advise(&self, offset: usize, bytes: usize, advice: Advice) -> Result<(), Errno> {
        assert!(offset + bytes <= self.bytes);
        // SAFETY: `offset` is inside the mapping, as asserted.
        let start = unsafe { self.base.add(offset) };
        // SAFETY: the range is ours, as asserted, and no advice given here changes contents.
        unsafe { madvise(start.as_ptr().cast::<c_void>(), bytes, advice) }
    }

    fn touch(&self, offset: usize, bytes: usize) {
        assert!(offset + bytes <= self.bytes);
        for page in (offset..offset + bytes).step_by(PAGE_BYTES) {
            // SAFETY: `page` is inside the mapping, as asserted.
            let byte = unsafe { self.base.add(page) };
            // SAFETY: valid for writes, and nobody else knows the mapping yet.
            unsafe { byte.write_volatile(0) };
        }
    }

    /// What backs the first `filled` bytes of the mapping, by the kernel's own account.
    fn pages(&self, filled: usize) -> Pages {
        let Ok(smaps) = fs::read_to_string("/proc/self/smaps") else {
            return Pages::Small;
        };
        let start = self.base.addr().get() as u64;
        let huge = anon_huge_bytes(&smaps, start, start + self.bytes as u64);
        if huge >= filled as u64 / 2 {
            Pages::Transparent
        } else {
            Pages::Small
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        unmap(self.base, self.bytes);
    }
}

fn map(bytes: usize, flags: MapFlags) -> Result<NonNull<u8>, Errno> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new private mapping at an address of the kernel's choice touches no existing memory.
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

/// Gives pages back. Callers in this file pass ranges that they mapped and that nobody uses any more.
fn unmap(start: NonNull<u8>, bytes: usize) {
    if bytes > 0 {
        // SAFETY: see above; an error would mean a wrong range, and then the memory stays mapped, which is safe.
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

/// Sums `AnonHugePages` over the mappings of a `/proc/PID/smaps` that lie in `start..end`. See proc_pid_smaps(5).
fn anon_huge_bytes(smaps: &str, start: u64, end: u64) -> u64 {
    let mut inside = false;
    let mut sum = 0;
    for line in smaps.lines() {
        if let Some((from, to)) = mapping_range(line) {
            inside = from < end && to > start;
        } else if inside && let Some(kib) = line.strip_prefix("AnonHugePages:") {
            let kib = kib.trim().trim_end_matches("kB").trim_end();
            sum += kib.parse::<u64>().unwrap_or(0) * 1024;
        }
    }
    sum
}

/// The addresses in the first line of a mapping: `7f00-7f10 rw-p …`.
fn mapping_range(line: &str) -> Option<(u64, u64)> {
    let (range, _) = line.split_once(' ')?;
    let (from, to) = range.split_once('-')?;
    Some((
        u64::from_str_radix(from, 16).ok()?,
        u64::from_str_radix(to, 16).ok()?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_aligned_zeroed_and_filled() {
        let mut last = (0, 0);
        let mut calls = 0;
        let mut progress = |done, total| {
            assert!(done > last.0);
            last = (done, total);
            calls += 1;
        };
        let (memory, _) =
            Memory::new(POPULATE_BYTES + ALIGNMENT, true, Some(&mut progress)).unwrap();
        assert_eq!(
            last,
            (
                (POPULATE_BYTES + ALIGNMENT) as u64,
                (POPULATE_BYTES + ALIGNMENT) as u64
            )
        );
        assert_eq!(calls, 2);
        assert!(memory.base().as_ptr().addr().is_multiple_of(ALIGNMENT));
        // SAFETY: the last byte of the mapping, which only this test knows.
        let last = unsafe { memory.base().add(memory.bytes - 1) };
        // SAFETY: as above.
        assert_eq!(unsafe { last.read() }, 0);
    }

    #[test]
    fn touching_fills_as_well() {
        let memory = Memory::map_aligned(ALIGNMENT).unwrap();
        memory.touch(0, ALIGNMENT);
        // SAFETY: the first byte of the mapping, which only this test knows.
        assert_eq!(unsafe { memory.base().read() }, 0);
    }

    #[test]
    fn a_size_beyond_memory_is_an_error() {
        let error = Memory::map_aligned(1 << 62).unwrap_err();
        assert!(matches!(error, RingError::System { call: "mmap", .. }));
    }

    #[test]
    fn smaps_are_summed_over_the_mapping_only() {
        let smaps = "\
7f0000000000-7f0000400000 rw-p 00000000 00:00 0 \n\
Size:               4096 kB\nAnonHugePages:      2048 kB\nVmFlags: rd wr\n\
7f0000400000-7f0000800000 rw-p 00000000 00:00 0 [heap]\nAnonHugePages:      4096 kB\n\
7f0000800000-7f0000a00000 rw-p 00000000 00:00 0 \nAnonHugePages:      2048 kB\n";
        assert_eq!(
            anon_huge_bytes(smaps, 0x7f00_0040_0000, 0x7f00_00a0_0000),
            6 << 20
        );
        assert_eq!(
            anon_huge_bytes(smaps, 0x7f00_0000_0000, 0x7f00_0000_0001),
            2 << 20
        );
        assert_eq!(anon_huge_bytes("", 0, 1), 0);
    }
}
