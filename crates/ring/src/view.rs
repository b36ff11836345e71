//! Single buckets, as dumps see them.

use crate::{
    Packet,
    storage::{Hold, Records},
    sync::Ordering,
};

/// Names a bucket in one of its generations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BucketRef {
    /// Position in the ring, `0..Ring::buckets()`.
    pub index: u32,
    /// How often the bucket had been used before, plus 1.
    pub generation: u64,
}

/// What is known about a bucket at some moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct BucketInfo {
    /// Which bucket.
    pub bucket: BucketRef,
    /// Whose records.
    pub producer: usize,
    /// The producer's number of the first record.
    pub first: u64,
    /// Records that can be read.
    pub committed: u32,
    /// Smallest time, ns. In an open bucket records published meanwhile may be included.
    pub min_ns: i64,
    /// Largest time, ns. As above.
    pub max_ns: i64,
    /// Nothing more will come.
    pub closed: bool,
}

/// A hold on a bucket: what was committed can be read and is not overwritten while it lives. Keep it short: a bucket
/// that is held is skipped when the ring looks for the oldest.
///
/// Owned, so that it can move to another thread; one thread at a time uses it.
#[derive(Debug)]
pub struct BucketView(Hold);

impl BucketView {
    pub(crate) fn new(hold: Hold) -> Self {
        Self(hold)
    }

    /// What is known about the bucket now. Of an empty open bucket the times mean nothing (`min_ns > max_ns`).
    #[must_use]
    pub fn info(&self) -> BucketInfo {
        let header = self.0.header();
        let closed = header.control.is_closed(); // before `committed`: then that is final
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

    /// Records that can be read now; grows while the bucket is open.
    #[must_use]
    pub fn committed(&self) -> u32 {
        u32::try_from(self.0.committed()).expect("a bucket has at most 2^27 descriptors")
    }

    /// The record at `index`, counted from the start of the bucket.
    ///
    /// # Panics
    /// Unless it was committed.
    #[must_use]
    pub fn packet(&self, index: u32) -> Packet<'_> {
        self.0.packet(index as usize)
    }

    /// The records from `index` on that are committed now.
    pub fn iter_from(&self, index: u32) -> Packets<'_> {
        Packets::new(&self.0, index as usize, self.0.committed()).ahead()
    }
}

/// How many records ahead payload is asked for. A core has some 16 to 24 reads of memory under way at a time; records of 64 bytes,
/// which are read in less time each, gained another tenth by 32, and longer ones lost nothing.
const PREFETCH_RECORDS: usize = 32;

/// How many records before that their descriptors are asked for: a kilobyte.
const PREFETCH_DESCRIPTORS: usize = 64;

/// Records of one bucket, in the order in which they were stored. The first bytes of each are asked for some records
/// ahead, so that reading headers does not wait for memory.
#[derive(Debug, Clone)]
pub struct Packets<'r> {
    /// The records of the bucket before `end`.
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

    /// The same, with the first payloads asked for; the others are on the way.
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

    /// Reads nothing of the records that it passes, and asks memory for nothing.
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
