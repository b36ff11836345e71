//! The files of a program that keeps its packets: a ring of files on tmpfs, and the number of
//! packets in the files.
//!
//! tcpdump keeps the past with `-C` and `-W`, in memory if the files are on tmpfs. Among widely
//! available programs this is closest to a ring in RAM.

use std::{fs, path::PathBuf};

use rustix::fs::statfs;
use tempfile::TempDir;

use crate::measure::Failure;

/// A tmpfs on nearly every Linux system.
const PLACE: &str = "/dev/shm";
/// TMPFS_MAGIC of linux/magic.h.
const TMPFS: u64 = 0x0102_1994;
/// Bytes of all files together: `-W` files of tcpdump's `-C` million bytes.
const BYTES: u64 = 8 * 100 * 1_000_000;
/// Bytes before the first record of a pcap file.
const FILE_HEAD_BYTES: u64 = 24;
/// Bytes before each packet of a pcap file.
const RECORD_HEAD_BYTES: u64 = 16;

/// A folder on tmpfs that is removed when this value is dropped.
#[derive(Debug)]
pub(super) struct Files(pub(super) TempDir);

impl Files {
    /// An empty folder.
    pub(super) fn new() -> Result<Self, Failure> {
        let failed = |error| Failure::system(PLACE, error);
        let system = statfs(PLACE).map_err(failed)?;
        if u64::try_from(system.f_type) != Ok(TMPFS) {
            return Err(Failure::CannotRun(format!("{PLACE} is not on tmpfs")));
        }
        if system.f_bavail * u64::try_from(system.f_bsize).unwrap_or(1) < BYTES {
            return Err(Failure::CannotRun(format!("{PLACE} has no {BYTES} bytes")));
        }
        let folder = tempfile::Builder::new()
            .prefix("rs-bench-")
            .tempdir_in(PLACE);
        Ok(Self(folder.map_err(|error| Failure::system(PLACE, error))?))
    }

    /// Removes the files of the previous run.
    pub(super) fn clear(&self) -> Result<(), Failure> {
        for file in self.list()? {
            fs::remove_file(&file).map_err(|error| Failure::system("unlink", error))?;
        }
        Ok(())
    }

    /// Number of packets of `size` bytes in all files together.
    ///
    /// # Errors
    /// [`Failure::Unsound`]: the length of a file is not a header and whole packets of this size.
    /// [`Failure::Wrong`]: the folder or a file cannot be examined.
    pub(super) fn packets(&self, size: u32) -> Result<u64, Failure> {
        let record_bytes = RECORD_HEAD_BYTES + u64::from(size);
        let mut packets = 0;
        for file in self.list()? {
            let metadata = fs::metadata(&file).map_err(|error| Failure::system("stat", error))?;
            let bytes = metadata.len().checked_sub(FILE_HEAD_BYTES);
            let whole = bytes.filter(|bytes| bytes.is_multiple_of(record_bytes));
            packets += whole.ok_or_else(|| {
                let (file, bytes) = (file.display(), metadata.len());
                Failure::Unsound(format!("{file} has {bytes} bytes, not packets of {size}"))
            })? / record_bytes;
        }
        Ok(packets)
    }

    fn list(&self) -> Result<Vec<PathBuf>, Failure> {
        let failed = |error| Failure::system("readdir", error);
        let entries = fs::read_dir(self.0.path()).map_err(failed)?;
        entries
            .map(|entry| Ok(entry.map_err(failed)?.path()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_counted_over_all_files_and_nothing_else_is() {
        let Ok(files) = Files::new() else {
            println!("SKIP: no tmpfs with room in {PLACE}");
            return;
        };
        let write = |name: &str, bytes: usize| {
            fs::write(files.0.path().join(name), vec![0; bytes]).unwrap();
        };
        write("ring0", 24 + 3 * 80);
        write("ring1", 24);
        write("ring2", 24 + 80);
        assert_eq!(files.packets(64), Ok(4));
        write("ring1", 25);
        assert!(matches!(files.packets(64), Err(Failure::Unsound(_))));
        files.clear().unwrap();
        assert_eq!(files.packets(64), Ok(0));
    }
}
