//! The errors of the ring.

use std::{io, path::PathBuf};

use crate::{
    config::{BUCKET_BYTES_MAX, BUCKET_BYTES_MIN, BUCKET_BYTES_MULTIPLE, BUCKETS_MAX},
    storage::INTERFACES_MAX,
};

/// Why a ring could not be made, or refused a role or an interface.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RingError {
    /// Environment or user: fewer than 4 buckets for each producer and reader.
    #[error(
        "a ring of {} MiB is too small for its producers ({producers}) and readers ({readers}): \
         it must have at least {} MiB",
        bytes >> 20, bytes_min.div_ceil(1 << 20)
    )]
    TooSmall {
        /// Bytes in the configuration.
        bytes: u64,
        /// Producers in the configuration.
        producers: usize,
        /// Readers in the configuration.
        readers: usize,
        /// The minimum size of the ring.
        bytes_min: u64,
    },
    /// Misuse: an invalid bucket size.
    #[error(
        "buckets of {bucket_bytes} bytes cannot be used: \
         choose a multiple of {BUCKET_BYTES_MULTIPLE} from {BUCKET_BYTES_MIN} to {BUCKET_BYTES_MAX} bytes"
    )]
    BucketBytes {
        /// Bucket size in the configuration.
        bucket_bytes: usize,
    },
    /// User or misuse: more than 65,535 buckets.
    #[error("{buckets} buckets are too many: at most {BUCKETS_MAX}, so choose larger buckets")]
    TooManyBuckets {
        /// Buckets that would result.
        buckets: u64,
    },
    /// Misuse: no producer, or more producers than the ring allows.
    #[error("this ring serves {max} producers and no more")]
    Producers {
        /// `RingConfig::producers`.
        max: usize,
    },
    /// Misuse: a group without members, or more open readers than the ring allows.
    #[error("this ring serves {max} readers at a time: {asked} more were asked for")]
    Readers {
        /// `RingConfig::readers` plus `RingConfig::releasing_readers`.
        max: usize,
        /// Requested members.
        asked: usize,
    },
    /// Input: the table of interfaces is full.
    #[error("more than {INTERFACES_MAX} interfaces")]
    Interfaces,
    /// Environment: the file for the ring cannot be used.
    #[error("cannot keep the ring in {}: {call}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system call, with its option, or a text that says that room is missing.
        call: &'static str,
        /// The error of the system call.
        #[source]
        error: io::Error,
    },
    /// User: the file is locked, or was just replaced.
    #[error(
        "{} is locked by a running recorder or by a stopped reader of its ring: end this process, or choose another file",
        .0.display()
    )]
    FileHeld(PathBuf),
    /// User: the file exists and is not a ring that may be replaced.
    #[error(
        "{} exists and is not a ring file of this user, so it is not replaced: remove it, or choose another file",
        .0.display()
    )]
    FileForeign(PathBuf),
    /// Environment: a hugetlbfs with another page size.
    #[error("{} is on a hugetlbfs with pages of {page_bytes} bytes: the ring needs one of 2 MiB", path.display())]
    FilePages {
        /// The file.
        path: PathBuf,
        /// Bytes of one page of the file.
        page_bytes: u64,
    },
    /// Environment: a system call failed.
    #[error("cannot take {bytes} bytes for the ring: {call}: {error}")]
    System {
        /// The system call, with its option.
        call: &'static str,
        /// Bytes of the whole region.
        bytes: u64,
        /// The error of the system call.
        #[source]
        error: io::Error,
    },
}

/// Why no part of a record was stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// No bucket is free or may be overwritten now.
    #[error("no bucket is free")]
    Full,
    /// The ring was closed, and the writer would have to wait for a bucket.
    #[error("the ring was closed")]
    Closed,
}

/// A burst of which not all records were stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{error} after {stored} records of a burst")]
pub struct BurstError {
    /// Records stored before the refused record.
    pub stored: usize,
    /// Why the record was refused.
    #[source]
    pub error: StoreError,
}
