//! Views of single buckets, and iterators over their packets.

use crate::{
    Packet,
    storage::{Hold, Records},
    sync::Ordering,
};

/// Identifies a bucket in one of its generations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BucketRef {
    /// Index of the bucket in the ring, `0..Ring::buckets()`.
    pub index: u32,
    /// Number of claims of the bucket, up to this use.
    pub generation: u64,
}

/// A snapshot of a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct BucketInfo {
    /// The bucket and its generation.
    pub bucket: BucketRef,
    /// Number of the bucket's producer.
    pub producer: usize,
    /// Number of the first record, counted per producer.
    pub first: u64,
    /// Records that can be read.
    pub committed: u32,
    /// Smallest ring time, ns. In an open bucket this may include records that were published after
    /// `committed` was read.
    pub min_ns: i64,
    /// Largest ring time, ns. In an open bucket this may include records that were published after
    /// `committed` was read.
    pub max_ns: i64,
    /// Whether the bucket is final: it gets no more records.
    pub closed: bool,
}

/// A hold on a bucket: the committed records stay readable and are not overwritten while the view
/// lives. Keep views short-lived, because the ring cannot overwrite a held bucket.
#[derive(Debug)]
pub struct BucketView(Hold);

impl BucketView {
    pub(crate) fn new(hold: Hold) -> Self {
        Self(hold)
    }

    /// The current state of the bucket. The times of an empty open bucket are meaningless (`min_ns
    /// > max_ns`).
    #[must_use]
    pub fn info(&self) -> BucketInfo {
        let header = self.0.header();
        let closed = header.control.is_closed(); // loaded first: if closed, `committed` is final
        let committed = self.committed();
        // Relaxed: ordered by the hold (producer) or by the committed mark (times, perhaps newer).
        let producer =
            usize::try_from(header.producer.load(Ordering::Relaxed)).expect("a producer's number");
        BucketInfo {
            bucket: self.0.bucket(),
            producer,
            first: self.0.first(),
            committed,
            min_ns: header.min_ns.load(Ordering::Relaxed),
            max_ns: header.max_ns.load(Ordering::Relaxed),
            closed,
        }
    }

    /// Records that can be read now. Grows while the bucket is open.
    #[must_use]
    pub fn committed(&self) -> u32 {
        u32::try_from(self.0.committed()).expect("a bucket has at most 2^27 descriptors")
    }

    /// The record at `index`, counted from the start of the bucket.
    ///
    /// # Panics
    /// Unless the record was committed.
    #[must_use]
    pub fn packet(&self, index: u32) -> Packet<'_> {
        self.0.packet(index as usize)
    }

    /// The committed records from `index` on.
    pub fn iter_from(&self, index: u32) -> Packets<'_> {
        Packets::new(&self.0, index as usize, self.0.committed()).ahead()
    }
}

/// How many records ahead the iterator prefetches payload. A core can have some 16 to 24 memory
/// reads under way at a time. With 32 instead of 16, records of 64 bytes were read a tenth faster.
const PREFETCH_RECORDS: usize = 32;

/// How many records before its payload the iterator usually prefetches a descriptor: 64 descriptors
/// are 1 KiB.
const PREFETCH_DESCRIPTORS: usize = 64;

/// Records of one bucket, in storage order. The iterator usually prefetches the first bytes of
/// later records.
#[derive(Debug, Clone)]
pub struct Packets<'r> {
    records: Records<'r>,
    next: usize,
    end: usize,
}

impl<'r> Packets<'r> {
    pub(crate) fn new(hold: &'r Hold, next: usize, end: usize) -> Self {
        Self {
            records: hold.records(end),
            next: next.min(end),
            end,
        }
    }

    pub(crate) fn times_and_lengths(self) -> impl ExactSizeIterator<Item = (i64, usize)> + use<'r> {
        let records = self.records;
        (self.next..self.end).map(move |index| records.time_and_length(index))
    }

    /// Prefetches the first payloads.
    pub(crate) fn ahead(self) -> Self {
        let Self { records, next, end } = self;
        (next..end.min(next + PREFETCH_RECORDS)).for_each(|index| records.prefetch(index));
        self
    }
}

impl<'r> Iterator for Packets<'r> {
    type Item = Packet<'r>;

    #[inline(always)]
    fn next(&mut self) -> Option<Packet<'r>> {
        if self.next == self.end {
            return None;
        }
        let ahead = self.next + PREFETCH_RECORDS;
        if ahead < self.end {
            self.records.prefetch(ahead);
            self.records
                .prefetch_descriptor(ahead + PREFETCH_DESCRIPTORS);
        }
        let packet = self.records.packet(self.next);
        self.next += 1;
        Some(packet)
    }

    /// Skips `count` records without reading their bytes.
    #[inline]
    fn nth(&mut self, count: usize) -> Option<Packet<'r>> {
        self.next = self.next.saturating_add(count).min(self.end);
        self.next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.end - self.next, Some(self.end - self.next))
    }
}

impl ExactSizeIterator for Packets<'_> {}
