//! The files that can contain a region: a memfd, or a named file.
//!
//! A ring file is created exclusively (`O_EXCL`, 0600), and locked with flock(2) while the ring
//! lives. An existing file is removed only if it is a ring file of the same user that nobody has
//! locked.

use std::{
    fs::File,
    io,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::fs::FileExt,
    },
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rustix::{
    fs::{
        FallocateFlags, FileType, FlockOperation, MemfdFlags, Mode, OFlags, SealFlags, Stat,
        StatFs, fallocate, fchmod, fcntl_add_seals, flock, fstat, fstatfs, ftruncate, lstat,
        memfd_create, open, unlink,
    },
    io::{Errno, pwrite},
    process::geteuid,
    thread::{Timespec, nanosleep},
};

use crate::{RingError, storage::layout::MAGIC};

/// The error text if the file system has too little free space.
const ROOM: &str = "room for all of it";
/// The unit of `st_blocks`; see stat(3type).
const STAT_BLOCK_BYTES: u64 = 512;
/// `f_type` of statfs(2), from the kernel's include/uapi/linux/magic.h.
const HUGETLBFS: u64 = 0x958_458f6;
const TMPFS: u64 = 0x0102_1994;
/// The required page size of a hugetlbfs, in bytes.
const HUGE_PAGE_BYTES: u64 = 2 << 20;

/// How long each attempt to lock a ring file waits for readers that have the file locked.
const READERS_MAX: Duration = Duration::from_secs(1);
/// The pause between two attempts to lock the file: 1 ms.
const PAUSE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 1_000_000,
};

/// An open file that contains a region, locked until it is dropped.
#[derive(Debug)]
pub(super) struct RegionFile {
    pub(super) fd: OwnedFd,
    /// Path of the file; `None` for a memfd.
    pub(super) path: Option<PathBuf>,
    pub(super) medium: Medium,
}

/// The kind of file system of a region file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Medium {
    /// hugetlbfs: the kernel reserves pages at mmap(2).
    HugePages,
    /// tmpfs, or a memfd without explicit huge pages.
    Memory,
    /// Anything else: blocks must be reserved before use.
    Disk,
}

impl RegionFile {
    /// An unnamed file of `bytes`, sealed.
    pub(super) fn memfd(bytes: usize, huge_pages: bool) -> Result<Self, Errno> {
        let mut flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        if huge_pages {
            flags |= MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
        }
        let make = |flags| memfd_create("retroscope-ring", flags);
        // Linux before 6.3 has no flag against execution.
        let fd = match make(flags | MemfdFlags::NOEXEC_SEAL) {
            Err(Errno::INVAL) => make(flags)?,
            made => made?,
        };
        fchmod(&fd, Mode::RUSR | Mode::WUSR)?;
        flock(&fd, FlockOperation::LockExclusive)?;
        ftruncate(&fd, bytes as u64)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let medium = if huge_pages {
            Medium::HugePages
        } else {
            Medium::Memory
        };
        Ok(Self {
            fd,
            path: None,
            medium,
        })
    }

    /// A new named file of `bytes`.
    pub(super) fn create(path: &Path, bytes: usize) -> Result<Self, RingError> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let make = || open(path, flags, Mode::RUSR | Mode::WUSR);
        let made = match make() {
            Err(Errno::EXIST) => {
                make_room(path, bytes)?;
                make()
            }
            made => made,
        };
        let fd = made.map_err(|error| failed(path, "open", error))?;
        let mut created = Self {
            fd,
            path: Some(path.to_owned()),
            medium: Medium::Disk,
        };
        let prepared = created.prepare(path, bytes);
        prepared.inspect_err(|_| created.remove())?;
        Ok(created)
    }

    /// Locks, sizes and marks a file that was just created.
    fn prepare(&mut self, path: &Path, bytes: usize) -> Result<(), RingError> {
        let fail = |call, error| failed(path, call, error);
        if !lock_beside_readers(&self.fd).map_err(|error| fail("flock", error))? {
            return Err(RingError::FileHeld(path.to_owned()));
        }
        let system = fstatfs(&self.fd).map_err(|error| fail("fstatfs", error))?;
        self.medium = medium(&system, path)?;
        // Without this check, the ring could fill memory up to the last page before it fails.
        if !has_room(&system, bytes, 0) {
            return Err(fail(ROOM, Errno::NOSPC));
        }
        ftruncate(&self.fd, bytes as u64).map_err(|error| fail("ftruncate", error))?;
        // The mark usually lets the next ring replace the file if this process is killed while it
        // fills the ring. hugetlbfs has no write(2): see `RegionMemory::mark`.
        if self.medium != Medium::HugePages {
            pwrite(&self.fd, &MAGIC.to_ne_bytes(), 0).map_err(|error| fail("write", error))?;
        }
        Ok(())
    }

    /// Reserves blocks or pages, so that later stores into the mapping find space.
    pub(super) fn reserve(&self, bytes: usize) -> Result<(), Errno> {
        fallocate(&self.fd, FallocateFlags::empty(), 0, bytes as u64)
    }

    pub(super) fn proc_path(&self) -> PathBuf {
        let (process, descriptor) = (std::process::id(), self.fd.as_raw_fd());
        PathBuf::from(format!("/proc/{process}/fd/{descriptor}"))
    }

    pub(super) fn error(&self, call: &'static str, bytes: usize, error: Errno) -> RingError {
        match &self.path {
            Some(path) => failed(path, call, error),
            None => super::system(call, bytes, error),
        }
    }

    /// Removes the name of a file that did not become a ring.
    pub(super) fn remove(&self) {
        if let Some(path) = &self.path
            && let (Ok(ours), Ok(named)) = (fstat(&self.fd), lstat(path))
            && same(&ours, &named)
        {
            // A name that cannot be removed stays.
            let _ = unlink(path);
        }
    }
}

fn failed(path: &Path, call: &'static str, error: Errno) -> RingError {
    RingError::File {
        path: path.to_owned(),
        call,
        error: io::Error::from(error),
    }
}

fn medium(system: &StatFs, path: &Path) -> Result<Medium, RingError> {
    #[expect(
        clippy::cast_sign_loss,
        reason = "a magic number, of another type on each architecture"
    )]
    let kind = system.f_type as u64 & 0xffff_ffff;
    let page_bytes = block_bytes(system);
    match kind {
        HUGETLBFS if page_bytes == HUGE_PAGE_BYTES => Ok(Medium::HugePages),
        HUGETLBFS => Err(RingError::FilePages {
            path: path.to_owned(),
            page_bytes,
        }),
        TMPFS => Ok(Medium::Memory),
        _ => Ok(Medium::Disk),
    }
}

#[expect(
    clippy::cast_sign_loss,
    reason = "a size, of another type on each architecture"
)]
fn block_bytes(system: &StatFs) -> u64 {
    (system.f_bsize as u64).max(1)
}

/// Whether a file system has space for `bytes` after `freed_bytes` are released. 0 blocks means no
/// limit.
fn has_room(system: &StatFs, bytes: usize, freed_bytes: u64) -> bool {
    let free = system.f_bfree.saturating_mul(block_bytes(system));
    system.f_blocks == 0 || bytes as u64 <= free.saturating_add(freed_bytes)
}

/// Removes a ring file of this user that nobody has locked, if a ring of `bytes` then fits. Any
/// other file stays and is an error.
fn make_room(path: &Path, bytes: usize) -> Result<(), RingError> {
    let foreign = || RingError::FileForeign(path.to_owned());
    let held = || RingError::FileHeld(path.to_owned());
    let fail = |call, error| failed(path, call, error);
    // Non-blocking: the path may name a pipe.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let fd = match open(path, flags, Mode::empty()) {
        Ok(fd) => fd,
        Err(Errno::NOENT) => return Ok(()), // another process removed the file
        Err(Errno::LOOP | Errno::ACCESS | Errno::NXIO) => return Err(foreign()),
        Err(error) => return Err(fail("open", error)),
    };
    let opened = fstat(&fd).map_err(|error| fail("fstat", error))?;
    let regular = FileType::from_raw_mode(opened.st_mode) == FileType::RegularFile;
    if !regular || opened.st_uid != geteuid().as_raw() {
        return Err(foreign());
    }
    let file = File::from(fd);
    let mut magic = [0; 8];
    if file.read_exact_at(&mut magic, 0).is_err() || u64::from_ne_bytes(magic) != MAGIC {
        return Err(foreign());
    }
    if !lock_abandoned(&file).map_err(|error| fail("flock", error))? {
        return Err(held());
    }
    // Another recorder may have replaced the file between open and lock.
    let named = lstat(path).map_err(|error| fail("lstat", error))?;
    if !same(&opened, &named) {
        return Err(held());
    }
    // Keep the old file if the new file cannot fit: its packets may still be needed.
    let system = fstatfs(&file).map_err(|error| fail("fstatfs", error))?;
    let freed_bytes = u64::try_from(opened.st_blocks).unwrap_or(0) * STAT_BLOCK_BYTES;
    if !has_room(&system, bytes, freed_bytes) {
        return Err(fail(ROOM, Errno::NOSPC));
    }
    unlink(path).map_err(|error| fail("unlink", error))
}

/// Locks the file of a ring that has ended. `false`: a recorder has the file's lock, or a reader
/// keeps its lock for longer than [`READERS_MAX`].
fn lock_abandoned(file: &File) -> Result<bool, Errno> {
    match flock(file, FlockOperation::NonBlockingLockShared) {
        Err(Errno::WOULDBLOCK) => Ok(false),
        // The attempt for the exclusive lock releases the shared lock first: two recorders do not
        // wait for each other (flock(2)).
        outcome => outcome.and_then(|()| lock_beside_readers(file)),
    }
}

/// Takes the exclusive lock, which a recorder has as long as it runs. `false`: other processes have
/// a lock for longer than [`READERS_MAX`].
///
/// A reader that asks whether the recorder runs has a shared lock for an instant
/// ([`Attached::writer`](crate::Attached::writer)). A stopped reader may have the lock without end,
/// so flock(2) must not block here.
fn lock_beside_readers(file: impl AsFd) -> Result<bool, Errno> {
    let deadline = Instant::now() + READERS_MAX;
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) if Instant::now() < deadline => _ = nanosleep(&PAUSE),
            Err(Errno::WOULDBLOCK) => return Ok(false),
            outcome => return outcome.map(|()| true),
        }
    }
}

fn same(a: &Stat, b: &Stat) -> bool {
    (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino)
}
