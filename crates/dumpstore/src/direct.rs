//! A file of the system whose large writes bypass the page cache (`O_DIRECT`, open(2)).
//!
//! Writing through the page cache costs CPU time, and evicts data that other programs read. Here a
//! direct write has an address in memory, an offset in the file and a length that are all multiples
//! of 4 KiB.
//!
//! So a large write is direct if its address and its offset have the same remainder
//! ([`is_in_phase`]). The bytes before the first multiple of 4 KiB and after the last one are
//! written through the cache, and so is every other write. The direct and the cached part of one
//! write usually share no page. If the file system refuses direct writes, all writes are cached.

use std::{
    fs::File,
    io,
    os::unix::fs::{FileExt, MetadataExt},
    sync::atomic::{AtomicBool, Ordering},
};

use rustix::{
    fs::{Advice, OFlags, fadvise, fcntl_setfl},
    io::Errno,
};

use crate::disk::DiskFile;

/// Alignment of memory, file offsets and lengths for direct writes, bytes. Disks usually have
/// blocks of 512 or 4,096 bytes.
pub const UNIT: usize = 4096;
/// A write goes through the page cache if its whole pages have fewer bytes than this.
pub const DIRECT_BYTES_MIN: usize = 64 * 1024;

/// A file whose large writes bypass the page cache, if the file system accepts direct writes.
#[derive(Debug)]
pub struct SystemFile {
    file: File,
    /// The file system has not refused a direct write to this file.
    is_direct: AtomicBool,
}

impl SystemFile {
    /// Wraps an open file.
    pub fn new(file: File) -> Self {
        Self {
            file,
            is_direct: AtomicBool::new(true),
        }
    }

    /// Whether the file system accepts the flag `O_DIRECT`.
    pub fn goes_directly(&self) -> bool {
        let is_taken = fcntl_setfl(&self.file, OFlags::DIRECT).is_ok();
        is_taken && fcntl_setfl(&self.file, OFlags::empty()).is_ok()
    }

    /// Only one thread at a time writes to a file, so the flag applies to this write only.
    fn write_directly(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        fcntl_setfl(&self.file, OFlags::DIRECT)?;
        let written = self.file.write_at(bytes, offset);
        fcntl_setfl(&self.file, OFlags::empty())?;
        written
    }
}

/// Whether the address of the bytes and their offset in the file have the same remainder modulo
/// [`UNIT`].
pub fn is_in_phase(bytes: &[u8], offset: u64) -> bool {
    (bytes.as_ptr().addr() as u64)
        .wrapping_sub(offset)
        .is_multiple_of(UNIT as u64)
}

impl FileExt for SystemFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let unit = UNIT as u64;
        #[expect(clippy::cast_possible_truncation, reason = "below a unit")]
        let before = (offset.next_multiple_of(unit) - offset) as usize;
        let middle = bytes.len().saturating_sub(before) / UNIT * UNIT;
        if middle < DIRECT_BYTES_MIN
            || !is_in_phase(bytes, offset)
            || !self.is_direct.load(Ordering::Relaxed)
        {
            return self.file.write_at(bytes, offset);
        }
        if before > 0 {
            return self.file.write_at(&bytes[..before], offset);
        }
        match self.write_directly(&bytes[..middle], offset) {
            Err(error) if is_refusal(&error) => {
                // Stop direct writes to this file only, because a subdirectory may be in another
                // file system.
                self.is_direct.store(false, Ordering::Relaxed);
                self.file.write_at(bytes, offset)
            }
            written => written,
        }
    }
}

/// Whether the error refuses direct writes, rather than reports a fault of the disk.
fn is_refusal(error: &io::Error) -> bool {
    [Errno::INVAL, Errno::OPNOTSUPP].contains(&Errno::from_io_error(error).unwrap_or(Errno::IO))
}

impl DiskFile for SystemFile {
    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_all()?;
        self.drop_cached_pages();
        Ok(())
    }

    fn drop_cached_pages(&self) {
        // If the system ignores this advice, it frees the pages later, when it needs memory.
        let _ = fadvise(&self.file, 0, None, Advice::DontNeed);
    }

    fn identity(&self) -> io::Result<(u64, u64)> {
        let metadata = self.file.metadata()?;
        Ok((metadata.dev(), metadata.ino()))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Bytes of the file in the page cache, from fincore(1). `None` without the command.
    fn cached(path: &std::path::Path) -> Option<u64> {
        let output = std::process::Command::new("fincore")
            .args(["-b", "-n", "-o", "RES"])
            .arg(path)
            .output()
            .ok()?;
        String::from_utf8_lossy(&output.stdout).trim().parse().ok()
    }

    #[test]
    fn what_is_written_is_there_wherever_it_begins_and_ends() {
        let seed = fastrand::u64(..);
        let mut rng = fastrand::Rng::with_seed(seed);
        // The system's directory for temporary files may be a tmpfs, so the source folder stands
        // for a disk. `/dev/shm` is a tmpfs.
        for folder in [env!("CARGO_MANIFEST_DIR"), "/dev/shm"] {
            let Ok(folder) = tempfile::tempdir_in(folder) else {
                continue;
            };
            let path = folder.path().join("file");
            let file = File::options()
                .read(true)
                .write(true)
                .create_new(true)
                .open(&path);
            let file = SystemFile::new(file.unwrap());
            let mut expected = Vec::new();
            for _ in 0..30 {
                let length = [10, 5000, 70_000, 65_536, 300_000][rng.usize(..5)];
                let bytes: Vec<u8> = (0..length).map(|_| rng.u8(..)).collect();
                let offset = expected.len() as u64;
                let mut block = vec![0; UNIT + length];
                let phase = expected.len().wrapping_sub(block.as_ptr().addr()) % UNIT;
                let block = &mut block[phase..][..length];
                block.copy_from_slice(&bytes);
                assert!(is_in_phase(block, offset));
                file.write_all_at(block, offset).unwrap();
                expected.extend_from_slice(&bytes);
                if rng.u8(..4) == 0 {
                    expected.truncate(expected.len() - rng.usize(..expected.len().min(9000)));
                    file.set_len(expected.len() as u64).unwrap();
                }
            }
            assert!(fs::read(&path).unwrap() == expected, "seed {seed}");
            file.sync().unwrap();
            if folder.path().starts_with("/dev/shm") {
                continue;
            }
            let left = cached(&path);
            assert!(
                left.is_none_or(|bytes| bytes == 0),
                "{left:?} bytes in the cache"
            );
        }
    }
}
