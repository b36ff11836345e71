//! The right to write: a claimed bucket, and then an open one.
#![expect(unsafe_code, reason = "writes into the region")]

use std::sync::Arc;

use super::{Link, Storage, descriptor};
use crate::{BucketRef, Record, sync::Ordering};
use descriptor::{CAPTURED_BYTES_MAX, DESCRIPTOR_BYTES, EXTENSION_BYTES, Extension};

/// Payloads are packed byte by byte; under loom no two records share a granule of the shadow.
const PAYLOAD_ALIGNMENT: usize = if cfg!(loom) { 16 } else { 1 };

/// A bucket between claim and opening. What it held before is still readable.
#[derive(Debug)]
pub(crate) struct Claimed<'s> {
    storage: &'s Arc<Storage>,
    bucket: BucketRef,
}

/// What the header of a bucket says from its opening on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Opening {
    pub(crate) producer: usize,
    pub(crate) sequence: u64,
    pub(crate) first: u64,
    pub(crate) first_bytes: u64,
    pub(crate) base_ns: i64,
}

impl<'s> Claimed<'s> {
    /// Claims a bucket, unless it is open or held. Panics unless `index` is a bucket.
    pub(crate) fn claim(storage: &'s Arc<Storage>, index: usize) -> Option<Self> {
        let generation = storage.bucket(index).control.claim()?;
        let index = u32::try_from(index).expect("a geometry has at most 65,535 buckets");
        Some(Self {
            storage,
            bucket: BucketRef { index, generation },
        })
    }

    pub(crate) fn bucket(&self) -> BucketRef {
        self.bucket
    }

    /// Time stamp of a record that the bucket held before the claim. Panics unless it had been committed.
    pub(crate) fn old_time_ns(&self, index: usize) -> i64 {
        let bucket = self.bucket.index as usize;
        let header = self.storage.bucket(bucket);
        assert!((index as u64) < header.committed.load(Ordering::Relaxed)); // ours since the claim
        // SAFETY: the record was committed; the claim (edge C) comes after the end of the generation in which it was,
        // which the outer mutex ordered before it, and nothing is written before `open`, which takes `self`.
        unsafe { self.storage.packet(bucket, index) }.time_ns
    }

    /// Writes the header and lets readers in.
    pub(crate) fn open(self, opening: Opening) -> OpenBucket {
        let header = self.storage.bucket(self.bucket.index as usize);
        // Relaxed: ordered before the opening (edge O).
        header.committed.store(0, Ordering::Relaxed);
        header.bytes.store(0, Ordering::Relaxed);
        header.min_ns.store(i64::MAX, Ordering::Relaxed);
        header.max_ns.store(i64::MIN, Ordering::Relaxed);
        header.next.store(0, Ordering::Relaxed);
        header.base_ns.store(opening.base_ns, Ordering::Relaxed);
        header
            .producer
            .store(opening.producer as u64, Ordering::Relaxed);
        header.sequence.store(opening.sequence, Ordering::Relaxed);
        header.first.store(opening.first, Ordering::Relaxed);
        header
            .first_bytes
            .store(opening.first_bytes, Ordering::Relaxed);
        header.control.open(self.bucket.generation);
        OpenBucket {
            storage: Arc::clone(self.storage),
            bucket: self.bucket,
            opening,
            count: 0,
            committed: 0,
            payload_end: 0,
            bytes: 0,
            min_ns: i64::MAX,
            max_ns: i64::MIN,
        }
    }
}

/// The one writer of an open bucket.
#[derive(Debug)]
pub(crate) struct OpenBucket {
    storage: Arc<Storage>,
    bucket: BucketRef,
    opening: Opening,
    /// Records stored, `committed <= count`.
    count: usize,
    /// Records published.
    committed: usize,
    /// Bytes from the start that payloads have used.
    payload_end: usize,
    /// Captured bytes stored.
    bytes: u64,
    min_ns: i64,
    max_ns: i64,
}

impl OpenBucket {
    pub(crate) fn bucket(&self) -> BucketRef {
        self.bucket
    }

    pub(crate) fn opening(&self) -> &Opening {
        &self.opening
    }

    /// Number of the record that would come next, counted over the producer's life.
    pub(crate) fn end(&self) -> u64 {
        self.opening.first + self.count as u64
    }

    /// Captured bytes before that record, counted over the producer's life.
    pub(crate) fn end_bytes(&self) -> u64 {
        self.opening.first_bytes + self.bytes
    }

    /// Smallest and largest time of the records stored; `(i64::MAX, i64::MIN)` while there are none.
    pub(crate) fn span_ns(&self) -> (i64, i64) {
        (self.min_ns, self.max_ns)
    }

    /// Stores a record of at most [`CAPTURED_BYTES_MAX`] bytes, unless it does not fit any more. An empty bucket takes
    /// any record.
    pub(crate) fn append(&mut self, record: &Record<'_>) -> bool {
        let captured = record.parts.iter().map(|part| part.len()).sum::<usize>();
        assert!(captured <= CAPTURED_BYTES_MAX);
        let start = self.payload_end.next_multiple_of(PAYLOAD_ALIGNMENT);
        let descriptors = DESCRIPTOR_BYTES * (self.count + 1);
        // An extension is counted whether it is needed or not: the test is made for every packet, the loss is 16 bytes.
        let room = self.storage.geometry().bucket_bytes;
        if start + EXTENSION_BYTES + captured + descriptors > room {
            return false;
        }
        #[expect(
            clippy::cast_possible_truncation,
            reason = "buckets have at most 2 GiB"
        )]
        let (descriptor, extension) =
            descriptor::encode(record, self.opening.base_ns, start as u32, captured);
        let mut end = start;
        if let Some(Extension(extension)) = extension {
            self.copy_in(end, &extension);
            end += extension.len();
        }
        for part in record.parts {
            self.copy_in(end, part);
            end += part.len();
        }
        self.copy_in(
            self.storage.descriptor_offset(self.count),
            &descriptor.to_bytes(),
        );
        self.payload_end = end;
        self.count += 1;
        self.bytes += captured as u64;
        self.min_ns = self.min_ns.min(record.time_ns);
        self.max_ns = self.max_ns.max(record.time_ns);
        true
    }

    /// Publishes what was stored; `false` if that was nothing.
    pub(crate) fn commit(&mut self) -> bool {
        if self.committed == self.count {
            return false;
        }
        self.committed = self.count;
        let header = self.header();
        // Relaxed: ordered before the mark.
        header.min_ns.store(self.min_ns, Ordering::Relaxed);
        header.max_ns.store(self.max_ns, Ordering::Relaxed);
        header.bytes.store(self.bytes, Ordering::Relaxed);
        // P1: Release, pairs with Hold::committed().
        header.committed.store(self.count as u64, Ordering::Release);
        true
    }

    /// Ends the bucket; everything stored must have been committed. `next` is where the producer goes on.
    pub(crate) fn close(self, next: Option<BucketRef>) {
        assert_eq!(self.committed, self.count, "committed before it is closed");
        let header = self.header();
        if let Some(next) = next {
            header.next.store(Link::to(next).0, Ordering::Relaxed); // ordered before the closing (edge L)
        }
        header.control.close();
    }

    fn header(&self) -> &super::header::BucketHeader {
        self.storage.bucket(self.bucket.index as usize)
    }

    fn copy_in(&self, offset: usize, bytes: &[u8]) {
        // SAFETY: this value is the only writer of the bucket; it is made by a claim and given up by `close`. `append`,
        // the only caller, writes between `payload_end` and the last descriptor, where nothing was committed.
        unsafe {
            self.storage
                .copy_in(self.bucket.index as usize, offset, bytes)
        };
    }
}
