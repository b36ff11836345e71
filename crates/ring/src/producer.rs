//! The writing side: one producer, one open bucket.

use std::{fmt, sync::Arc};

use crate::{
    BurstError, Record, Step, StoreError,
    outer::Obstacle,
    ring::RingInner,
    storage::{
        BurstStop, OpenBucket, Opening, descriptor::CAPTURED_BYTES_MAX, header::MONO_UNKNOWN,
    },
    sync::{Ordering, lock},
};

/// Unpublished captured bytes after which storing publishes. On a Zen 4, 32 KiB reached 41 instead
/// of 46 Mpps with 512-byte records; more than 128 KiB gained nothing.
const PUBLISH_BYTES: u64 = 128 << 10;
/// Unpublished records after which storing publishes, because some records capture no bytes. The
/// descriptors of 4096 records take 64 KiB.
const PUBLISH_RECORDS: usize = 4096;

/// Called when no bucket is free, before a bucket is overwritten.
type Hook = Box<dyn FnMut() + Send>;

/// The right to store records under one producer number. Dropping a producer closes its open bucket
/// and sets the watermark to `i64::MAX`.
pub struct Producer {
    ring: Arc<RingInner>,
    id: usize,
    open: Option<OpenBucket>,
    /// Buckets opened since the start.
    sequence: u64,
    cut_records: u64,
    /// Records were published since this producer last woke sleeping readers.
    is_unannounced: bool,
    hook: Option<Hook>,
    /// At the end of a bucket, this producer wakes sleeping readers if it has opened at least this
    /// many buckets since [`Self::publish`] last ran.
    buckets_per_wake: usize,
    /// Buckets opened since [`Self::publish`] last ran.
    buckets_since_wake: usize,
    /// Whether the eventcount `Storage::freed` counts this producer as a waiter for a bucket.
    is_waiter: bool,
    /// If the last search found no bucket and failed with [`StoreError::Full`]: the epoch of
    /// `Storage::freed` before that search.
    full_at: Option<u32>,
    /// The caller's last reading of the monotonic clock, ns.
    mono_ns: i64,
}

impl Producer {
    pub(crate) fn new(ring: Arc<RingInner>, id: usize) -> Self {
        Self {
            ring,
            id,
            open: None,
            sequence: 0,
            cut_records: 0,
            is_unannounced: false,
            hook: None,
            buckets_per_wake: 0,
            buckets_since_wake: 0,
            is_waiter: false,
            full_at: None,
            mono_ns: MONO_UNKNOWN,
        }
    }

    /// The number of this producer, `0..Ring::producers()`.
    #[must_use]
    pub fn id(&self) -> usize {
        self.id
    }

    /// Records stored since the start, published or not; also the number of the next record.
    #[must_use]
    pub fn stored(&self) -> u64 {
        self.open.as_ref().map_or(0, OpenBucket::end)
    }

    /// Sets the `CLOCK_MONOTONIC` time, ns, of later publications and ends of buckets. The producer
    /// itself reads no clock.
    pub fn set_now(&mut self, mono_ns: i64) {
        self.mono_ns = mono_ns;
    }

    /// From the next record on, the stamps of `clock`
    /// ([`InterfaceEntry::clock`](crate::InterfaceEntry::clock)) are `offset_ns` ahead of ring
    /// time. Takes the mutex of the outer queue.
    ///
    /// `false`: no effect, because the table of 1024 steps is full, or this producer made 16 steps
    /// and one more for each bucket that it filled. The ring can reuse the place of a step that no
    /// record in the ring needs.
    pub fn step(&mut self, clock: u16, offset_ns: i64) -> bool {
        let step = Step {
            producer: self.id,
            clock,
            first: self.stored(),
            offset_ns,
        };
        let filled = self.sequence.saturating_sub(1);
        let followed = lock(&self.ring.outer).step(&self.ring.storage, step, filled);
        if followed {
            // Relaxed: the publication of later records orders this.
            self.ring.steps.fetch_add(1, Ordering::Relaxed);
        }
        followed
    }

    /// Records truncated to 256 KiB.
    #[must_use]
    pub fn cut_records(&self) -> u64 {
        self.cut_records
    }

    /// Stores a record. Readers see the record after [`Self::publish`], or earlier if 128 KiB or
    /// 4096 records are unpublished, or if the bucket is full. Call `publish` when the source has
    /// no more packets.
    ///
    /// A call that needs a new bucket may take a lock, and may wait in
    /// [`Mode::Wait`](crate::Mode::Wait), and with a gating group in
    /// [`Mode::Record`](crate::Mode::Record).
    ///
    /// # Errors
    /// [`StoreError::Full`] or [`StoreError::Closed`]: nothing was stored. A later call may
    /// succeed.
    pub fn store(&mut self, record: &Record<'_>) -> Result<(), StoreError> {
        let captured = record.parts.iter().map(|part| part.len()).sum::<usize>();
        if captured > CAPTURED_BYTES_MAX {
            self.store_fitting(&cut(record))?;
            self.cut_records += 1;
            return Ok(());
        }
        self.store_fitting(record)
    }

    /// Stores a burst of records, as [`Self::store`] does, with less work per record. Publishes
    /// when about 128 KiB to 256 KiB or 4096 records are unpublished; the end of a burst publishes
    /// nothing. The caller must publish ([`Self::publish`] or [`Self::set_watermark`]) when its
    /// source has no more packets.
    ///
    /// Returns the number of records stored: all records of the iterator.
    ///
    /// # Errors
    /// [`BurstError`] contains the number of records stored. The next record was not stored, and
    /// later records were not taken from the iterator: a caller that passed `records.by_ref()` may
    /// continue with these.
    ///
    /// # Panics
    /// If the iterator panics: fewer than 32 of its last records are then not stored. The producer
    /// stays usable.
    pub fn store_burst<'a>(
        &mut self,
        records: impl IntoIterator<Item = Record<'a>>,
    ) -> Result<usize, BurstError> {
        let records = records.into_iter();
        match self.open.as_ref().and_then(OpenBucket::wide) {
            Some(wide) => wide.run(|| self.store_records::<true>(records)),
            None => self.store_records::<false>(records),
        }
    }

    /// The body of [`Self::store_burst`]. `WIDE`: `Avx512Vbmi::run` (`storage/wide.rs`) is the
    /// caller.
    #[inline(always)]
    fn store_records<'a, const WIDE: bool>(
        &mut self,
        mut records: impl Iterator<Item = Record<'a>>,
    ) -> Result<usize, BurstError> {
        let mut stored = 0;
        loop {
            let stop = if let Some(open) = &mut self.open {
                let (added, stop) =
                    open.append_burst::<WIDE>(&mut records, PUBLISH_BYTES, PUBLISH_RECORDS);
                stored += added;
                stop
            } else {
                records.next().map_or(BurstStop::End, BurstStop::Refused)
            };
            match stop {
                BurstStop::End => return Ok(stored),
                BurstStop::Publish => self.commit(),
                BurstStop::Refused(record) => {
                    self.store(&record)
                        .map_err(|error| BurstError { stored, error })?;
                    stored += 1;
                }
            }
        }
    }

    /// Makes stored records visible to readers, and wakes readers that sleep until a publication
    /// ([`Reader::wait`](crate::Reader::wait)).
    pub fn publish(&mut self) {
        self.commit();
        self.buckets_since_wake = 0;
        if std::mem::take(&mut self.is_unannounced) {
            self.ring.wait_sets[self.id].0.notify();
        }
    }

    /// Makes stored records visible to readers without waking sleepers, which would otherwise wake
    /// for each part of a burst.
    fn commit(&mut self) {
        let Some(open) = &mut self.open else { return };
        if !open.commit() {
            return;
        }
        let header = self.ring.storage.producer(self.id);
        header
            .published_bytes
            .store(open.end_bytes(), Ordering::Relaxed); // ordered before P2
        header
            .published_mono_ns
            .store(self.mono_ns, Ordering::Relaxed); // ordered before P2
        // P2: Release, pairs with RingInner::published().
        header.published.store(open.end(), Ordering::Release);
        self.is_unannounced = true;
    }

    /// Publishes, and promises that no later record has a ring time below `ns`. The ring does not
    /// check the promise.
    pub fn set_watermark(&mut self, ns: i64) {
        self.publish();
        // T: Release, pairs with Ring::watermark().
        self.ring
            .storage
            .producer(self.id)
            .watermark_ns
            .store(ns, Ordering::Release);
    }

    /// Sets a hook that runs when no bucket is free, before the producer overwrites a bucket. All
    /// stored records are then published, and the hook may wait for readers of this ring. The hook
    /// can also run if no bucket can then be overwritten.
    pub fn on_new_bucket(&mut self, hook: Hook) {
        self.hook = Some(hook);
    }

    /// Keeps sleeping readers asleep at the end of a bucket, usually until this producer has filled
    /// its share of an eighth of the ring. Meant for a caller that publishes now and then although
    /// its source never runs dry.
    pub fn leave_sleepers(&mut self) {
        let geometry = self.ring.storage.geometry();
        self.buckets_per_wake = geometry.buckets / (8 * geometry.producers);
    }

    fn store_fitting(&mut self, record: &Record<'_>) -> Result<(), StoreError> {
        let fitted = self.open.as_mut().is_some_and(|open| open.append(record));
        if !fitted {
            self.next_bucket(record.time_ns)?;
            let fitted = self.open.as_mut().is_some_and(|open| open.append(record));
            assert!(fitted, "an empty bucket takes any record");
        }
        if self
            .open
            .as_ref()
            .is_some_and(|open| open.is_due(PUBLISH_BYTES, PUBLISH_RECORDS))
        {
            self.commit();
        }
        Ok(())
    }

    /// Replaces the open bucket, which stays open and readable during the search for a new bucket.
    ///
    /// Wakes sleeping readers, or less often after [`Self::leave_sleepers`], because a caller whose
    /// source never runs dry may never call [`Self::publish`].
    // Never inlined: the first write buffer takes 20 KiB of stack, and the caller would touch these
    // pages one by one for each record.
    #[cold]
    #[inline(never)]
    fn next_bucket(&mut self, base_ns: i64) -> Result<(), StoreError> {
        if self.buckets_since_wake < self.buckets_per_wake {
            self.commit();
        } else {
            self.publish();
        }
        if self
            .full_at
            .is_some_and(|epoch| epoch == self.ring.storage.freed.epoch())
        {
            return Err(StoreError::Full);
        }
        self.full_at = None;
        let mut overwrite = self.hook.is_none();
        loop {
            let epoch = self.ring.storage.freed.epoch();
            match self.try_next_bucket(base_ns, overwrite) {
                Ok(()) => break,
                Err(Obstacle::NoneFree) => {
                    self.publish(); // wakes readers, unless already done
                    if let Some(hook) = &mut self.hook {
                        hook();
                    }
                    overwrite = true;
                }
                Err(Obstacle::Blocked { .. }) if !self.is_waiter => {
                    self.publish(); // wakes readers, unless already done
                    self.ring.storage.freed.add_waiter();
                    self.is_waiter = true;
                }
                Err(Obstacle::Blocked { wait: false }) => {
                    self.full_at = Some(epoch);
                    return Err(StoreError::Full);
                }
                Err(Obstacle::Blocked { wait: true }) if self.ring.is_closed() => {
                    return Err(StoreError::Closed);
                }
                Err(Obstacle::Blocked { wait: true }) => {
                    self.publish(); // wakes readers also if an earlier call added the waiter
                    self.ring.storage.freed.wait(epoch);
                }
            }
        }
        self.sequence += 1;
        self.buckets_since_wake += 1;
        self.stop_waiting();
        self.ring.storage.freed.notify(); // the previous bucket is closed: other producers may claim it
        Ok(())
    }

    fn try_next_bucket(&mut self, base_ns: i64, overwrite: bool) -> Result<(), Obstacle> {
        let mut outer = lock(&self.ring.outer);
        let claimed = outer.take(&self.ring.storage, self.ring.mode(), overwrite)?;
        let (first, first_bytes) = self
            .open
            .as_ref()
            .map_or((0, 0), |open| (open.end(), open.end_bytes()));
        let opening = Opening {
            producer: self.id,
            sequence: self.sequence,
            first,
            first_bytes,
            base_ns,
        };
        let opened = claimed.open(opening);
        outer.opened(&opened);
        match &mut self.open {
            Some(open) => {
                let closing = outer.close_bucket(open, self.mono_ns);
                open.change(opened, closing, self.mono_ns);
            }
            none => *none = Some(OpenBucket::new(opened, self.ring.barrier)),
        }
        Ok(())
    }

    fn stop_waiting(&mut self) {
        if std::mem::take(&mut self.is_waiter) {
            self.ring.storage.freed.remove_waiter();
        }
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        self.set_watermark(i64::MAX);
        if let Some(open) = self.open.take() {
            let mut outer = lock(&self.ring.outer);
            let closing = outer.close_bucket(&open, self.mono_ns);
            open.close(closing, self.mono_ns);
        }
        self.stop_waiting();
        self.ring.storage.freed.notify();
    }
}

impl fmt::Debug for Producer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Producer")
            .field("id", &self.id)
            .field("open", &self.open)
            .field("sequence", &self.sequence)
            .field("cut_records", &self.cut_records)
            .finish_non_exhaustive()
    }
}

/// The record truncated to 256 KiB of capture.
fn cut<'a>(record: &Record<'a>) -> Record<'a> {
    let mut left = CAPTURED_BYTES_MAX;
    let parts = record.parts.map(|part| {
        let kept = &part[..part.len().min(left)];
        left -= kept.len();
        kept
    });
    Record { parts, ..*record }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use crate::{GroupKind, Mode, Record, Ring, RingConfig};

    fn length(random: &mut fastrand::Rng) -> usize {
        match random.u16(..400) {
            0 => random.usize(..3000),
            1 => 1024,
            2..=9 => 0,
            10..=49 => 64 * random.usize(1..=8),
            50..=99 => random.usize(..=512),
            100..=249 => 60,
            _ => 64,
        }
    }

    #[test]
    fn both_ways_store_the_same_records_and_the_same_spans() {
        let mut random = fastrand::Rng::with_seed(1);
        let bytes: Vec<u8> = std::iter::repeat_with(|| random.u8(..))
            .take(8192)
            .collect();
        for seed in 0..60 {
            let mut random = fastrand::Rng::with_seed(seed);
            let config = RingConfig {
                bucket_bytes: Some(272 << 10),
                mode: Mode::Wait,
                ..RingConfig::new(64 * (272 << 10), 1, 1)
            };
            let ring = Ring::new(&config, None).unwrap();
            let mut reader = ring.group(GroupKind::Gating).unwrap();
            let mut producer = ring.producer().unwrap();
            let bases = [0, -5_000, i64::MAX - 2_000, i64::MAX - (1 << 47), i64::MIN];
            let base = *random.choice(&bases).unwrap();
            let made: Vec<Record<'_>> = (0..6000)
                .map(|number| {
                    let step = match random.u16(..300) {
                        0 => -number,
                        1 if seed % 3 == 0 => 1 << 47,
                        _ => number,
                    };
                    let (start, length) = (random.usize(..4096), length(&mut random));
                    let data = &bytes[start..start + length];
                    let cut = if random.u8(..) == 0 {
                        length / 2
                    } else {
                        length
                    };
                    Record {
                        interface: if random.u8(..) == 0 { 300 } else { 3 },
                        shard: random.u8(..32),
                        parts: [&data[..cut], &data[cut..], &[]],
                        ..Record::whole(base.wrapping_add(step), 0, data)
                    }
                })
                .collect();
            let mut stored = 0;
            while stored < made.len() {
                let end = made.len().min(stored + random.usize(1..400));
                let burst = made[stored..end].iter().copied();
                // Without AVX-512 both calls run the same code.
                let result = if random.bool() {
                    producer.store_burst(burst)
                } else {
                    producer.store_records::<false>(burst)
                };
                assert_eq!(result, Ok(end - stored), "seed {seed}");
                stored = end;
                if random.u8(..10) == 0 {
                    producer.publish();
                }
            }
            producer.publish();
            let mut read = 0;
            while let Some(batch) = reader.next() {
                for packet in batch {
                    let record = &made[read];
                    let about = (packet.time_ns, packet.wire_len, packet.interface);
                    let expected = (record.time_ns, record.wire_len, record.interface);
                    assert_eq!(about, expected, "seed {seed}, record {read}");
                    assert_eq!(packet.shard, record.shard, "seed {seed}, record {read}");
                    assert!(
                        packet.data == record.parts.concat(),
                        "seed {seed}, record {read}"
                    );
                    read += 1;
                }
            }
            assert_eq!(read, made.len(), "seed {seed}");
            let mut buckets = Vec::new();
            ring.reserve(i64::MIN, i64::MAX).buckets(&mut buckets);
            assert_eq!(buckets.iter().map(|info| info.committed).sum::<u32>(), 6000);
            for info in buckets {
                let first = usize::try_from(info.first).unwrap();
                let records = &made[first..first + info.committed as usize];
                let times_ns = records.iter().map(|record| record.time_ns);
                let span_ns = (times_ns.clone().min().unwrap(), times_ns.max().unwrap());
                assert_eq!((info.min_ns, info.max_ns), span_ns, "seed {seed}");
            }
        }
    }
}
