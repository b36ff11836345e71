//! Why a region cannot be read, or a bucket cannot be copied.

use std::{io, path::PathBuf};

use crate::{BucketRef, storage::layout::VERSION};

/// Why a file is not a readable ring.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// Environment: a system call failed.
    #[error("cannot read the ring {}: {call}: {error}", path.display())]
    System {
        /// The file.
        path: PathBuf,
        /// The system call.
        call: &'static str,
        /// The error of the system call.
        #[source]
        error: io::Error,
    },
    /// Input: not a regular file.
    #[error("{} is not a regular file, so it holds no ring", .0.display())]
    NotAFile(PathBuf),
    /// Input: the file does not start with the magic of a ring.
    #[error("{} is not a ring of retroscope", .0.display())]
    NotARing(PathBuf),
    /// Input: written by a machine of the other byte order.
    #[error("the ring {} was written with the other byte order: read it on such a machine", .0.display())]
    ByteOrder(PathBuf),
    /// Input: another version of the layout.
    #[error(
        "the ring {} has layout {found}, this program reads layout {VERSION}: use the program that wrote it",
        path.display()
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// The layout version in the file.
        found: u64,
    },
    /// Environment: the recorder has not finished making the ring.
    #[error("the ring {} was not ready yet: its recorder is starting, or was stopped while it did", .0.display())]
    NotReady(PathBuf),
    /// Input: the file is shorter than its header says, or than a header.
    #[error("the ring {} is cut short: it has {bytes} bytes and needs {needed}", path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Bytes of the file.
        bytes: u64,
        /// Bytes that the file must have.
        needed: u64,
    },
    /// Input: a field of the header is out of range, or contradicts other fields.
    #[error("the header of the ring {} is damaged: its {field} cannot be {value}", path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// The field with the fault.
        field: &'static str,
        /// The value in the file.
        value: u64,
    },
}

/// Why reading a ring failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CopyError {
    /// The bucket is not, or no longer, readable in this generation, or (in a ring of this process)
    /// has the maximum number of holds.
    #[error("bucket {} was overwritten", .0.index)]
    Overwritten(BucketRef),
    /// Input: the bucket's contents are invalid, it has too many records for a copy, or the ring
    /// has no such bucket.
    #[error("bucket {} is damaged: {what}", bucket.index)]
    Damaged {
        /// The bucket.
        bucket: BucketRef,
        /// Description of the fault.
        what: &'static str,
    },
    /// Environment: the file became shorter after it was opened.
    #[error("the ring's file became shorter while it was read")]
    Shrunk,
    /// Environment: no memory for the copy.
    #[error("no memory for a copy of {bytes} bytes")]
    Memory {
        /// Bytes needed.
        bytes: usize,
    },
}
