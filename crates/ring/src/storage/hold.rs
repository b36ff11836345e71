//! The right to read: a hold on one generation of one bucket.
#![expect(unsafe_code, reason = "reads from the region")]

use std::sync::{Arc, atomic::AtomicUsize};

use super::{BucketMemory, Link, Storage, header::BucketHeader};
use crate::{BucketRef, Packet, sync::Ordering};

/// Keeps a bucket from being overwritten until the hold is dropped, and lends the committed
/// records.
#[derive(Debug)]
pub(crate) struct Hold {
    storage: Arc<Storage>,
    bucket: BucketRef,
    /// Ring time, ns, to which descriptors are relative.
    base_ns: i64,
    /// The committed mark when a thread last loaded it by this hold. Release and Acquire, so that
    /// other threads see the records too.
    seen: AtomicUsize,
}

impl Hold {
    /// Holds a bucket. `None`: the bucket is not readable in this generation, or has 16,383 holds.
    /// Panics unless this storage has a bucket with this index.
    pub(crate) fn new(storage: &Arc<Storage>, bucket: BucketRef) -> Option<Self> {
        let header = storage.bucket(bucket.index as usize);
        header.control.hold(bucket.generation).then(|| Self {
            storage: Arc::clone(storage),
            bucket,
            base_ns: header.base_ns.load(Ordering::Relaxed), // ordered by the hold
            seen: AtomicUsize::new(0),
        })
    }

    pub(crate) fn bucket(&self) -> BucketRef {
        self.bucket
    }

    /// The header of the bucket. Fields that do not change in this generation may be loaded
    /// Relaxed: edge H ordered them before.
    pub(crate) fn header(&self) -> &BucketHeader {
        self.storage.bucket(self.bucket.index as usize)
    }

    /// Number of records that may be read now.
    pub(crate) fn committed(&self) -> usize {
        let committed = self.header().committed.load(Ordering::Acquire); // pairs with P1
        let committed = usize::try_from(committed).expect("records of one bucket");
        self.seen.store(committed, Ordering::Release);
        committed
    }

    pub(crate) fn first(&self) -> u64 {
        self.header().first.load(Ordering::Relaxed) // ordered by the hold
    }

    /// At most the smallest ring time, ns, of the records that [`Self::committed`] last counted.
    pub(crate) fn oldest_ns(&self) -> i64 {
        self.header().min_ns.load(Ordering::Relaxed) // stored before P1
    }

    /// The producer's next bucket. The bucket must have been seen closed. `None`: the last bucket
    /// of a dropped producer.
    pub(crate) fn next(&self) -> Option<BucketRef> {
        Link(self.header().next.load(Ordering::Relaxed)).target() // ordered by is_closed()
    }

    /// The first `count` records.
    ///
    /// # Panics
    /// If fewer were committed.
    #[inline(always)]
    pub(crate) fn records(&self, count: usize) -> Records<'_> {
        if let Some(last) = count.checked_sub(1) {
            assert!(
                last < self.seen.load(Ordering::Acquire) || last < self.committed(),
                "record {last} was not committed"
            );
        }
        Records {
            memory: self.storage.bucket_memory(self.bucket.index as usize),
            base_ns: self.base_ns,
            count,
        }
    }

    /// The record at `index`.
    ///
    /// # Panics
    /// Unless the record was committed.
    #[inline(always)]
    pub(crate) fn packet(&self, index: usize) -> Packet<'_> {
        self.records(index + 1).packet(index)
    }
}

/// The first records of a held bucket.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Records<'r> {
    memory: BucketMemory<'r>,
    base_ns: i64,
    /// Number of records, at most the number committed. The reader has synchronized with the
    /// commitment (P1) of this generation. The borrowed hold keeps the bucket in this generation:
    /// no claim succeeds.
    count: usize,
}

impl<'r> Records<'r> {
    /// The record at `index`.
    ///
    /// # Panics
    /// Unless `index` is below the number of records.
    #[inline(always)]
    pub(crate) fn packet(self, index: usize) -> Packet<'r> {
        self.check(index);
        // SAFETY: guaranteed by `count`; `base_ns` is the bucket's.
        unsafe { self.memory.packet(self.base_ns, index) }
    }

    /// Prefetches the first bytes of a record.
    ///
    /// # Panics
    /// Unless `index` is below the number of records.
    #[inline(always)]
    pub(crate) fn prefetch(self, index: usize) {
        self.check(index);
        // SAFETY: guaranteed by `count`.
        unsafe { self.memory.prefetch(index) };
    }

    /// Prefetches the descriptor at `index`, which need not exist.
    #[inline(always)]
    pub(crate) fn prefetch_descriptor(self, index: usize) {
        self.memory.prefetch_descriptor(index);
    }

    /// Ring time, ns, and captured bytes of the record at `index`.
    ///
    /// # Panics
    /// Unless `index` is below the number of records.
    #[inline(always)]
    pub(crate) fn time_and_length(self, index: usize) -> (i64, usize) {
        self.check(index);
        // SAFETY: guaranteed by `count`.
        let descriptor = unsafe { self.memory.descriptor(index) };
        let time_ns = if descriptor.extended() {
            self.packet(index).time_ns
        } else {
            descriptor.time_ns(self.base_ns)
        };
        (time_ns, descriptor.captured())
    }

    #[inline(always)]
    fn check(self, index: usize) {
        assert!(index < self.count, "record {index} was not committed");
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.header().control.release();
        self.storage.freed.notify();
    }
}
