//! Detects whether a file has changed since it was read.

use std::{fs, os::unix::fs::MetadataExt, path::Path};

/// A file's device, inode, size, and change time (ctime). `None`: the file cannot be inspected.
pub(crate) type FileStamp = Option<(u64, u64, u64, i64, i64)>;

/// The stamp of the file that a path leads to, through any links. Blocks on the file system.
pub(crate) fn stamp(path: &Path) -> FileStamp {
    let file = fs::metadata(path).ok()?;
    Some((
        file.dev(),
        file.ino(),
        file.size(),
        file.ctime(),
        file.ctime_nsec(),
    ))
}
