//! The right to read: a hold on one generation of one bucket.
#![expect(unsafe_code, reason = "reads from the region")]

use std::{cell::Cell, sync::Arc};

use super::{Link, Storage, header::BucketHeader};
use crate::{BucketRef, Packet, Summary, sync::Ordering};

/// Keeps a bucket from being overwritten until it is dropped, and lends what was committed.
#[derive(Debug)]
pub(crate) struct Hold {
    storage: Arc<Storage>,
    bucket: BucketRef,
    /// What times are relative to.
    base_ns: i64,
    /// Of the committed mark, what this reader has loaded (Acquire).
    seen: Cell<usize>,
}

impl Hold {
    /// Holds a bucket unless it was claimed again since `bucket` was read. Panics unless it is a bucket of this storage.
    pub(crate) fn new(storage: &Arc<Storage>, bucket: BucketRef) -> Option<Self> {
        let header = storage.bucket(bucket.index as usize);
        header.control.hold(bucket.generation).then(|| Self {
            storage: Arc::clone(storage),
            bucket,
            base_ns: header.base_ns.load(Ordering::Relaxed), // ordered by the hold
            seen: Cell::new(0),
        })
    }

    pub(crate) fn bucket(&self) -> BucketRef {
        self.bucket
    }

    /// What does not change in this generation may be loaded Relaxed: the hold (edge H) ordered it.
    pub(crate) fn header(&self) -> &BucketHeader {
        self.storage.bucket(self.bucket.index as usize)
    }

    /// Records that may be read now.
    pub(crate) fn committed(&self) -> usize {
        let committed = self.header().committed.load(Ordering::Acquire); // pairs with P1
        let committed = usize::try_from(committed).expect("records of one bucket");
        self.seen.set(committed);
        committed
    }

    /// Number of the first record.
    pub(crate) fn first(&self) -> u64 {
        self.header().first.load(Ordering::Relaxed) // ordered by the hold
    }

    /// The producer's next bucket. `None` while this one is open, and at the end of the last.
    pub(crate) fn next(&self) -> Option<BucketRef> {
        Link(self.header().next.load(Ordering::Relaxed)).target() // ordered by is_closed()
    }

    /// The record at `index`.
    ///
    /// # Panics
    /// Unless it was committed.
    #[inline(always)]
    pub(crate) fn packet(&self, index: usize) -> Packet<'_> {
        self.check(index);
        // SAFETY: `committed` synchronised with the commitment (P1) of this generation, since the hold keeps the bucket in
        // it; no claim succeeds while the hold lives, and the result borrows it.
        unsafe {
            self.storage
                .packet(self.bucket.index as usize, self.base_ns, index)
        }
    }

    /// The first bytes of the record at `index` will be wanted soon.
    ///
    /// # Panics
    /// Unless it was committed.
    #[inline(always)]
    pub(crate) fn prefetch(&self, index: usize) {
        self.check(index);
        // SAFETY: as in `packet`.
        unsafe { self.storage.prefetch(self.bucket.index as usize, index) };
    }

    /// The descriptor at `index` will be wanted soon, if there is one.
    #[inline(always)]
    pub(crate) fn prefetch_descriptor(&self, index: usize) {
        self.storage
            .prefetch_descriptor(self.bucket.index as usize, index);
    }

    /// What the descriptor of the record at `index` says.
    ///
    /// # Panics
    /// Unless it was committed.
    #[inline(always)]
    pub(crate) fn summary(&self, index: usize) -> Summary {
        self.check(index);
        // SAFETY: as in `packet`.
        let descriptor = unsafe { self.storage.descriptor(self.bucket.index as usize, index) };
        if descriptor.extended() {
            let packet = self.packet(index);
            return Summary {
                time_ns: packet.time_ns,
                captured_len: descriptor.captured_len(),
                wire_len: packet.wire_len,
                interface: packet.interface,
            };
        }
        Summary {
            time_ns: descriptor.time_ns(self.base_ns),
            captured_len: descriptor.captured_len(),
            wire_len: descriptor.wire_len(),
            interface: descriptor.interface(),
        }
    }

    #[inline(always)]
    fn check(&self, index: usize) {
        assert!(
            index < self.seen.get() || index < self.committed(),
            "record {index} was not committed"
        );
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.header().control.release();
        self.storage.bell.ring();
    }
}
