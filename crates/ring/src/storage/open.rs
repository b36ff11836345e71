//! The right to write a bucket: claimed, and later open.
#![expect(unsafe_code, reason = "writes into the region")]

use std::sync::Arc;

use super::{
    Link, Storage, descriptor,
    header::MONO_UNKNOWN,
    wide::Avx512Vbmi,
    write_buffer::{
        BucketTarget, BurstLimits, BurstStop, DESCRIPTORS, SHORT_BYTES, StoredRecords, WriteBuffer,
        needed,
    },
};
use crate::{BucketRef, Record, barrier::Barrier, sync::Ordering};
use descriptor::{CAPTURED_BYTES_MAX, DESCRIPTOR_BYTES, Extension};

/// Payloads are packed byte by byte. Under loom, no two records may share a 16-byte cell of the
/// shadow (`tests/shadow.rs`).
const PAYLOAD_ALIGNMENT: usize = if cfg!(loom) { 16 } else { 1 };

/// A bucket between claim and opening, still with any previous records.
#[derive(Debug)]
pub(crate) struct Claimed<'s> {
    storage: &'s Arc<Storage>,
    bucket: BucketRef,
}

/// The fields of a bucket header that are fixed at opening.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Opening {
    pub(crate) producer: usize,
    pub(crate) sequence: u64,
    pub(crate) first: u64,
    pub(crate) first_bytes: u64,
    pub(crate) base_ns: i64,
}

impl<'s> Claimed<'s> {
    /// Claims a free or closed bucket. `None`: a reader holds the bucket, or the bucket is open or
    /// claimed. Panics unless `index` is a bucket.
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

    /// Ring time of a record that the bucket contained before the claim. Panics unless the record
    /// was committed.
    pub(crate) fn old_time_ns(&self, index: usize) -> i64 {
        let bucket = self.bucket.index as usize;
        let header = self.storage.bucket(bucket);
        assert!((index as u64) < header.committed.load(Ordering::Relaxed)); // we own it
        let base_ns = header.base_ns.load(Ordering::Relaxed); // this thread owns the header
        // SAFETY: the record was committed. The claim (edge R–C in `lib.rs`) comes after the end of
        // the generation that contains the record, which the outer mutex ordered before the claim.
        // Nothing is written before `open`, which takes `self`.
        unsafe { self.storage.bucket_memory(bucket).packet(base_ns, index) }.time_ns
    }

    /// Writes the header of the new generation, and lets readers hold the bucket.
    pub(crate) fn open(self, opening: Opening) -> OpenedBucket<'s> {
        let header = self.storage.bucket(self.bucket.index as usize);
        // Relaxed: ordered before the opening (edge O in `lib.rs`).
        header.committed.store(0, Ordering::Relaxed);
        header.bytes.store(0, Ordering::Relaxed);
        header.min_ns.store(i64::MAX, Ordering::Relaxed);
        header.max_ns.store(i64::MIN, Ordering::Relaxed);
        header.next.store(0, Ordering::Relaxed);
        header.closed_mono_ns.store(MONO_UNKNOWN, Ordering::Relaxed);
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
        OpenedBucket {
            storage: self.storage,
            bucket: self.bucket,
            opening,
        }
    }
}

/// An opened bucket without a writer.
#[derive(Debug)]
pub(crate) struct OpenedBucket<'s> {
    storage: &'s Arc<Storage>,
    bucket: BucketRef,
    opening: Opening,
}

impl OpenedBucket<'_> {
    pub(crate) fn bucket(&self) -> BucketRef {
        self.bucket
    }

    pub(crate) fn opening(&self) -> &Opening {
        &self.opening
    }
}

/// The only writer of an open bucket. One value serves all buckets of a producer in turn: its
/// buffer is too large to build for each bucket.
#[derive(Debug)]
pub(crate) struct OpenBucket {
    buffer: WriteBuffer,
    storage: Arc<Storage>,
    bucket: BucketRef,
    opening: Opening,
    stored: StoredRecords,
    /// Published records, `committed <= stored.count`.
    committed: usize,
    /// Captured bytes of the published records.
    committed_bytes: u64,
}

impl OpenBucket {
    pub(crate) fn new(opened: OpenedBucket<'_>, barrier: Barrier) -> Self {
        Self {
            storage: Arc::clone(opened.storage),
            bucket: opened.bucket,
            opening: opened.opening,
            stored: StoredRecords::EMPTY,
            committed: 0,
            committed_bytes: 0,
            buffer: WriteBuffer::new(barrier),
        }
    }

    pub(crate) fn bucket(&self) -> BucketRef {
        self.bucket
    }

    pub(crate) fn wide(&self) -> Option<Avx512Vbmi> {
        self.buffer.wide
    }

    pub(crate) fn end(&self) -> u64 {
        self.opening.first + self.stored.count as u64
    }

    /// Captured bytes before the next record, over the producer's life.
    pub(crate) fn end_bytes(&self) -> u64 {
        self.opening.first_bytes + self.stored.bytes
    }

    /// Smallest and largest time of the stored records; `(i64::MAX, i64::MIN)` without records.
    pub(crate) fn span_ns(&self) -> (i64, i64) {
        (self.stored.min_ns, self.stored.max_ns)
    }

    /// Whether at least `bytes` captured bytes, or `records` records, are stored and unpublished.
    pub(crate) fn is_due(&self, bytes: u64, records: usize) -> bool {
        self.stored.bytes - self.committed_bytes >= bytes
            || self.stored.count - self.committed >= records
    }

    /// Stores a record of at most [`CAPTURED_BYTES_MAX`] bytes. `false`: the bucket has no room.
    pub(crate) fn append(&mut self, record: &Record<'_>) -> bool {
        let captured = record.parts.iter().map(|part| part.len()).sum::<usize>();
        assert!(captured <= CAPTURED_BYTES_MAX);
        self.buffer.enter();
        let stored = self.stored;
        let start = stored.end.next_multiple_of(PAYLOAD_ALIGNMENT);
        if !self.has_room(start, captured, stored.count) {
            return false;
        }
        #[expect(
            clippy::cast_possible_truncation,
            reason = "buckets have at most 256 MiB"
        )]
        let (descriptor, extension) =
            descriptor::encode(record, self.opening.base_ns, start as u32, captured);
        // SAFETY: this value is the only writer of the bucket. It is made of the `OpenedBucket`
        // that a claim became, and releases the bucket in `close` or `change`.
        let target = unsafe { BucketTarget::new(&self.storage, self.bucket.index as usize) };
        self.buffer.skip(stored.end, start);
        let mut end = start;
        if let Some(Extension(extension)) = extension {
            end = self.buffer.put(target, end, &extension);
        }
        for part in record.parts {
            end = self.buffer.put(target, end, part);
        }
        self.buffer.put_descriptor(target, stored.count, descriptor);
        self.stored = stored.with(record.time_ns, captured, end);
        true
    }

    /// Stores records until a reason to stop. Returns the number stored, and the reason. With
    /// `publish_bytes` or `publish_records` unpublished it continues to the end of a group of 32
    /// records. With twice `publish_bytes` unpublished it does not wait for the end of a group.
    #[inline(always)]
    pub(crate) fn append_burst<'a, const WIDE: bool>(
        &mut self,
        records: &mut impl Iterator<Item = Record<'a>>,
        publish_bytes: u64,
        publish_records: usize,
    ) -> (usize, BurstStop<'a>) {
        self.buffer.enter();
        let before = self.stored.count;
        let publish_at = self.committed_bytes + publish_bytes;
        let stop = loop {
            // Prefer the end of a group. A half-published line of descriptors would have to be read
            // again to be completed, and the next fence would wait for that.
            let beyond = self.stored.bytes.checked_sub(publish_at);
            let whole = self.stored.count.is_multiple_of(DESCRIPTORS);
            let many = self.stored.count - self.committed >= publish_records;
            if (whole && many) || beyond.is_some_and(|beyond| whole || beyond >= publish_bytes) {
                break BurstStop::Publish;
            }
            let until = (self.committed + publish_records).next_multiple_of(DESCRIPTORS);
            let records_max = until.saturating_sub(self.stored.count).max(1);
            let limits = self.burst_limits(publish_at, publish_bytes);
            match self.append_shorts::<WIDE>(records, records_max, limits) {
                None => {}
                Some(BurstStop::Refused(record)) => {
                    let record = match self.append_longs(record, records, limits) {
                        None => continue,
                        Some(BurstStop::Refused(record)) => record,
                        Some(stop) => break stop,
                    };
                    let captured = record.parts.iter().map(|part| part.len()).sum::<usize>();
                    if captured > CAPTURED_BYTES_MAX || !self.append(&record) {
                        break BurstStop::Refused(record);
                    }
                }
                Some(stop) => break stop,
            }
        };
        (self.stored.count - before, stop)
    }

    #[inline(always)]
    fn burst_limits(&self, publish_at: u64, publish_bytes: u64) -> BurstLimits {
        let bucket_bytes = self.storage.geometry().bucket_bytes;
        let end_at = |bytes: u64| {
            let unstored = bytes.saturating_sub(self.stored.bytes);
            self.stored.end + usize::try_from(unstored).unwrap_or(bucket_bytes)
        };
        BurstLimits {
            bucket_bytes,
            soft_end: end_at(publish_at),
            hard_end: end_at(publish_at + publish_bytes),
        }
    }

    /// Stores at most `records_max` short records. Returns the reason for a stop, or `None` at a
    /// limit.
    #[inline(always)]
    fn append_shorts<'a, const WIDE: bool>(
        &mut self,
        records: &mut impl Iterator<Item = Record<'a>>,
        records_max: usize,
        limits: BurstLimits,
    ) -> Option<BurstStop<'a>> {
        let stored = self.stored;
        let left = limits
            .bucket_bytes
            .saturating_sub(needed(stored.end, 0, stored.count));
        let records_max = records_max.min(left / (SHORT_BYTES + DESCRIPTOR_BYTES));
        // Under loom [`Self::append`] stores each record: two records must not share a cell of the
        // shadow (`tests/shadow.rs`).
        if records_max == 0 || cfg!(loom) {
            return Some(records.next().map_or(BurstStop::End, BurstStop::Refused));
        }
        // SAFETY: this value is the only writer of the bucket, as in `append`.
        let target = unsafe { BucketTarget::new(&self.storage, self.bucket.index as usize) };
        let base_ns = self.opening.base_ns;
        #[cfg(all(target_arch = "x86_64", not(loom)))]
        if WIDE && self.buffer.can_pack(&stored, base_ns) {
            let (buffer, stored) = (&mut self.buffer, &mut self.stored);
            // SAFETY: `can_pack` is true, and `records_max` short records fit.
            return unsafe {
                buffer.put_packed(target, stored, base_ns, records_max, limits, records)
            };
        }
        let (stored, stop) = self
            .buffer
            .put_group(target, stored, base_ns, records_max, records);
        self.stored = stored;
        stop
    }

    /// Stores records longer than [`SHORT_BYTES`], from `record` on, over any number of groups.
    #[inline(always)]
    fn append_longs<'a>(
        &mut self,
        record: Record<'a>,
        records: &mut impl Iterator<Item = Record<'a>>,
        limits: BurstLimits,
    ) -> Option<BurstStop<'a>> {
        // Under loom two records must not share a cell of the shadow (`tests/shadow.rs`).
        if cfg!(loom) {
            return Some(BurstStop::Refused(record));
        }
        // SAFETY: this value is the only writer of the bucket, as in `append`.
        let target = unsafe { BucketTarget::new(&self.storage, self.bucket.index as usize) };
        let (stored, base_ns) = (&mut self.stored, self.opening.base_ns);
        self.buffer
            .put_longs(target, stored, base_ns, limits, record, records)
    }

    /// Publishes the stored records. `false`: no record was unpublished.
    pub(crate) fn commit(&mut self) -> bool {
        let stored = self.stored;
        if self.committed == stored.count {
            return false;
        }
        // SAFETY: this value is the only writer of the bucket, as in `append`.
        let target = unsafe { BucketTarget::new(&self.storage, self.bucket.index as usize) };
        self.buffer.enter();
        self.buffer.drain(target, stored.end, stored.count);
        self.committed = stored.count;
        self.committed_bytes = stored.bytes;
        let header = self.header();
        // Relaxed: ordered before the mark.
        header.min_ns.store(stored.min_ns, Ordering::Relaxed);
        header.max_ns.store(stored.max_ns, Ordering::Relaxed);
        header.bytes.store(stored.bytes, Ordering::Relaxed);
        // P1: Release, pairs with Hold::committed(). `drain` fenced the stores that went past the
        // cache.
        header
            .committed
            .store(stored.count as u64, Ordering::Release);
        true
    }

    /// Ends the bucket, whose stored records must all be committed, and continues in `next`.
    /// `closing` is the number of buckets that closed before, `mono_ns` the monotonic clock.
    pub(crate) fn change(&mut self, next: OpenedBucket<'_>, closing: u64, mono_ns: i64) {
        assert!(Arc::ptr_eq(&self.storage, next.storage));
        let link = Link::to(next.bucket).0;
        self.header().next.store(link, Ordering::Relaxed); // ordered before the closing (edge L)
        self.finish(closing, mono_ns);
        self.bucket = next.bucket;
        self.opening = next.opening;
        self.stored = StoredRecords::EMPTY;
        self.committed = 0;
        self.committed_bytes = 0;
        self.buffer.restart();
    }

    /// Ends the producer's last bucket, as [`Self::change`] does.
    pub(crate) fn close(mut self, closing: u64, mono_ns: i64) {
        self.finish(closing, mono_ns);
    }

    fn finish(&mut self, closing: u64, mono_ns: i64) {
        assert_eq!(
            self.committed, self.stored.count,
            "committed before it is closed"
        );
        self.buffer.enter();
        self.buffer.fence();
        let header = self.header();
        // Relaxed: ordered before the closing (edge L in `lib.rs`).
        header.closing.store(closing, Ordering::Relaxed);
        header.closed_mono_ns.store(mono_ns, Ordering::Relaxed);
        header.control.close();
    }

    fn header(&self) -> &super::header::BucketHeader {
        self.storage.bucket(self.bucket.index as usize)
    }

    fn has_room(&self, start: usize, captured: usize, count: usize) -> bool {
        needed(start, captured, count) <= self.storage.geometry().bucket_bytes
    }
}
