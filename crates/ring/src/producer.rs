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

/// Captured bytes after which storing publishes by itself. A publication costs a fence and a few stores, and the fence waits for
/// what is on its way to memory: with 32 KiB, 512-byte records came at 41 instead of 46 Mpps on a Zen 4; more than 128 KiB gained
/// nothing.
const PUBLISH_BYTES: u64 = 128 << 10;
/// Records after which it does as well, because some capture no bytes: as many as have 64 KiB of descriptors.
const PUBLISH_RECORDS: usize = 4096;

/// Called before a bucket is overwritten.
type Hook = Box<dyn FnMut() + Send>;

/// The right to store under one number. Belongs to one thread at a time; dropping it closes the open bucket and sets the
/// watermark to `i64::MAX`.
pub struct Producer {
    ring: Arc<RingInner>,
    id: usize,
    open: Option<OpenBucket>,
    /// Buckets opened so far.
    sequence: u64,
    cut_records: u64,
    /// Something was published since sleeping readers were last woken.
    is_unannounced: bool,
    hook: Option<Hook>,
    /// How many buckets may end before sleeping readers are woken.
    buckets_per_wake: usize,
    /// Buckets that ended since they were last woken.
    buckets_since_wake: usize,
    /// Counted among those who wait for a bucket.
    is_waiter: bool,
    /// The epoch that was read before the last search, if that found nothing and the mode does not let the writer wait.
    full_at: Option<u32>,
    /// The monotonic clock as the caller gave it last, ns.
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

    /// Its number, `0..Ring::producers()`.
    #[must_use]
    pub fn id(&self) -> usize {
        self.id
    }

    /// Records stored so far, published or not: the number of the next one.
    #[must_use]
    pub fn stored(&self) -> u64 {
        self.open.as_ref().map_or(0, OpenBucket::end)
    }

    /// The monotonic clock (`CLOCK_MONOTONIC`) shows `mono_ns`: publications and ends of buckets from here on are of this time. The
    /// ring reads no clock; a burst may.
    pub fn set_now(&mut self, mono_ns: i64) {
        self.mono_ns = mono_ns;
    }

    /// The stamps of `clock` ([`InterfaceEntry::clock`](crate::InterfaceEntry::clock)) are `offset_ns` ahead of ring time from the next
    /// record on. Takes the mutex of the outer queue: not for every burst.
    ///
    /// `false`: the clock was stepped more often than the table of steps follows (16 times, and once for each bucket that this producer
    /// filled; 1024 in the ring at a time); nothing changed.
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
            // Relaxed: ordered before the records after it by their publication.
            self.ring.steps.fetch_add(1, Ordering::Relaxed);
        }
        followed
    }

    /// Records cut to 256 KiB so far.
    #[must_use]
    pub fn cut_records(&self) -> u64 {
        self.cut_records
    }

    /// Stores a record behind those before. Readers see it after [`Self::publish`], or when 128 KiB or 4096 records are
    /// unpublished, or when the bucket is full, whichever is first. Those that sleep are woken by [`Self::publish`], and when the
    /// writer has to wait for them: publish when the source runs dry.
    ///
    /// Takes no lock, no system call and no clock except once per bucket; in [`Mode::Wait`](crate::Mode::Wait), and in
    /// [`Mode::Record`](crate::Mode::Record) where there is a gating group, it may then wait for a bucket.
    ///
    /// # Errors
    /// [`StoreError::Full`] or [`StoreError::Closed`]: nothing was stored; the caller counts the packet as lost. A later
    /// call may succeed.
    pub fn store(&mut self, record: &Record<'_>) -> Result<(), StoreError> {
        let captured = record.parts.iter().map(|part| part.len()).sum::<usize>();
        if captured > CAPTURED_BYTES_MAX {
            self.store_fitting(&cut(record))?;
            self.cut_records += 1;
            return Ok(());
        }
        self.store_fitting(record)
    }

    /// Stores records one after the other, as [`Self::store`] does, with less work for each: the way for frames that came
    /// together. It publishes when 128 KiB or 4096 records are unpublished, at the next multiple of 32 records, or when 256 KiB
    /// are; the caller publishes ([`Self::publish`] or [`Self::set_watermark`]) when its source runs dry, so that a small burst on a busy
    /// link costs no fence of its own.
    ///
    /// Returns how many were stored: all of them.
    ///
    /// # Errors
    /// [`BurstError`] tells how many were stored. The next one was not, and those after it were not taken from the iterator.
    /// Whoever gave `records.by_ref()` counts that one as lost and may go on with the rest.
    ///
    /// # Panics
    /// Where the iterator does. Records that it gave since the last multiple of 32, fewer than 32, are then not stored, and
    /// nothing counts them; the producer can go on.
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

    /// [`Self::store_burst`]; `WIDE`: called by `Avx512Vbmi::run` (`storage/wide.rs`).
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

    /// Lets readers see what was stored, and wakes those that sleep.
    pub fn publish(&mut self) {
        self.commit();
        self.buckets_since_wake = 0;
        if std::mem::take(&mut self.is_unannounced) {
            self.ring.wait_sets[self.id].0.notify();
        }
    }

    /// Lets readers see what was stored, if they look. One that sleeps is not woken before the source runs dry or the bucket (or
    /// several, [`Self::leave_sleepers`]) is full: else it would find a part of what is coming and go back to sleep, for each part.
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
            .store(self.mono_ns, Ordering::Relaxed); // as above
        // P2: Release, pairs with RingInner::published().
        header.published.store(open.end(), Ordering::Release);
        self.is_unannounced = true;
    }

    /// Publishes, and then promises that no record of less ring time than `ns` will follow. The promise is the
    /// caller's, the ring does not check it. Whoever reads the watermark and then looks for records sees all before it.
    pub fn set_watermark(&mut self, ns: i64) {
        self.publish();
        // T: Release, pairs with Ring::watermark().
        self.ring
            .storage
            .producer(self.id)
            .watermark_ns
            .store(ns, Ordering::Release);
    }

    /// Sets a hook that is called, with everything stored published, just before a bucket is overwritten: when none is
    /// free. It may wait for readers of this ring, which makes what is overwritten a function of packets and ring size.
    /// Called once for each search for a bucket; in protect mode on a full ring that may be more often than one is found.
    pub fn on_new_bucket(&mut self, hook: Hook) {
        self.hook = Some(hook);
    }

    /// Leaves readers that sleep alone at the end of a bucket, until this producer has filled its part of an eighth of the
    /// ring: for a caller that publishes once in a while though its source never runs dry. Where buckets fill much faster than
    /// that, each waking would cost a reader tens of microseconds, to find a part of what is coming.
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

    /// Replaces the open bucket, which stays open, readable and safe while this one looks for another.
    ///
    /// Wakes sleeping readers, once a bucket: where the source never runs dry nobody else does ([`Self::leave_sleepers`] says that
    /// somebody does), and a bucket may become free only when they go on.
    //
    // Never inlined: the first write buffer is 20 KiB on the stack, whose pages the caller would touch one by one for each record.
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
                Err(Obstacle::Unfinished) => {}
                Err(Obstacle::NoneFree) => {
                    self.publish(); // wakes, if that was not done
                    if let Some(hook) = &mut self.hook {
                        hook();
                    }
                    overwrite = true;
                }
                Err(Obstacle::Blocked { .. }) if !self.is_waiter => {
                    self.publish(); // as above
                    self.ring.storage.freed.add_waiter();
                    self.is_waiter = true; // and look once more
                }
                Err(Obstacle::Blocked { wait: false }) => {
                    self.full_at = Some(epoch);
                    return Err(StoreError::Full);
                }
                Err(Obstacle::Blocked { wait: true }) if self.ring.is_closed() => {
                    return Err(StoreError::Closed);
                }
                Err(Obstacle::Blocked { wait: true }) => {
                    self.publish(); // a search before this one may have added the waiter
                    self.ring.storage.freed.wait(epoch);
                }
            }
        }
        self.sequence += 1;
        self.buckets_since_wake += 1;
        self.stop_waiting();
        self.ring.storage.freed.notify(); // the bucket before is closed: others may take it
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

/// The record with its first 256 KiB of capture only.
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

    /// Lengths about those of frames and of lines, bases near the ends of time, times that go back, and records that have a form of
    /// their own in between.
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
                // On a processor that is not wide both are the same.
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
