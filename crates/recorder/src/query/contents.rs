//! The contents of a region (the memory of a ring) according to its headers, and the packets that
//! must be missing.
//!
//! A producer numbers its records. Records whose numbers no bucket has were overwritten, or are
//! lost because of damage.

use std::collections::BTreeMap;

use retroscope_ring::{
    Attached, AttachedBucket, AttachedProducer, AttachedState, CopyError, InterfaceEntry,
    RegionWriter, Step,
};

use super::{
    Empty,
    catalog::{StampRange, uncovered},
};
use crate::Missing;

/// The contents of the region at one moment.
#[derive(Debug)]
pub(super) struct RegionContents {
    pub(super) interfaces: Vec<InterfaceEntry>,
    pub(super) steps: Vec<Step>,
    /// Buckets with records, by their smallest ring time.
    pub(super) buckets: Vec<CandidateBucket>,
    /// Whether the header of a bucket contradicts itself.
    is_damaged: bool,
    producers: Vec<ProducerContents>,
    pub(super) writer: RegionWriter,
}

/// A bucket with records that may match.
#[derive(Debug)]
pub(super) struct CandidateBucket {
    pub(super) bucket: AttachedBucket,
    /// Smallest and largest ring time, ns.
    pub(super) span_ns: (i64, i64),
    /// The times of the bucket, widened up to the producer's buckets before and after it, ns. If
    /// the times in the bucket's header are damaged, its records are most likely in this range.
    pub(super) reach_ns: (i64, i64),
}

/// The records of a producer. Times are ring time.
#[derive(Debug)]
struct ProducerContents {
    id: usize,
    /// The number after the producer's last record.
    end: u64,
    /// Number of records that count as overwritten.
    evicted: u64,
    /// The largest time of overwritten records, or a likely upper bound, ns.
    evicted_to_ns: i64,
    /// Number of records that should be in a bucket, but are not.
    lost: u64,
    /// The ring usually has all records of this time or later, ns.
    whole_from_ns: Option<i64>,
    /// Largest time in the producer's buckets, ns.
    newest_ns: Option<i64>,
    /// The producer promised to store nothing older, ns. `i64::MIN`: no promise; `i64::MAX`: it
    /// ended.
    watermark_ns: i64,
    /// Bounds on the difference of stamp and ring time, ns.
    offsets: (i64, i64),
    /// Difference of stamp and ring time of the first record from which on all records are in the
    /// ring, ns.
    whole_offset_ns: i64,
    /// Difference of stamp and ring time of the latest record, ns.
    latest_offset_ns: i64,
}

/// The window of a query, ns, both ends included.
#[derive(Debug, Clone, Copy)]
pub(super) struct QueryWindow {
    /// Whether the start of the window may move forward: the query gave no start.
    is_movable: bool,
    /// Records before this ring time, ns, are outside of the window, whatever their stamps.
    pub(super) from_ring_ns: i64,
    /// First stamp, ns.
    pub(super) from_ns: i64,
    /// Last stamp, ns.
    pub(super) to_ns: i64,
    /// Start and end of the window in the report, as stamps. `None`: the ring is empty and the
    /// query gave no time.
    pub(super) reported_ns: (Option<i64>, Option<i64>),
}

/// Missing packets. For each cause: the first and the last stamp, ns, and an upper bound on the
/// number of packets (`None`: unknown).
#[derive(Debug, Clone, Default)]
pub(super) struct QueryLosses(BTreeMap<&'static str, (i64, i64, Option<u64>)>);

impl RegionContents {
    pub(super) fn read(attached: &Attached) -> Result<Self, CopyError> {
        // The order of these calls matters. Records that were published when the writer was read
        // are in buckets that are read later, or were overwritten by then.
        let writer = attached.writer()?;
        let before = attached.producers()?;
        let mut buckets = attached.buckets()?;
        let after = attached.producers()?;
        let (interfaces, _) = attached.interfaces()?;
        let steps = attached.steps()?;
        let has = |state| buckets.iter().any(|bucket| bucket.state == state);
        let is_claimed = has(AttachedState::Claimed);
        let is_damaged = has(AttachedState::Damaged);
        buckets.sort_by_key(|bucket| (bucket.producer, bucket.first, bucket.sequence));
        let candidates = buckets.into_iter().filter_map(|bucket| {
            let span_ns = bucket.span_ns?;
            // A bucket that was opened later does not belong to this moment.
            let is_later = bucket.first >= before[bucket.producer].published;
            (!is_later || writer != RegionWriter::Running).then_some(CandidateBucket {
                bucket,
                span_ns,
                reach_ns: span_ns,
            })
        });
        let mut buckets: Vec<CandidateBucket> = candidates.collect();
        for own in buckets.chunk_by_mut(|a, b| a.bucket.producer == b.bucket.producer) {
            let mut latest_ns = i64::MIN;
            for candidate in &mut *own {
                candidate.reach_ns.0 = candidate.span_ns.0.min(latest_ns);
                latest_ns = candidate.span_ns.1;
            }
            let mut earliest_ns = i64::MAX;
            for candidate in own.iter_mut().rev() {
                candidate.reach_ns.1 = candidate.span_ns.1.max(earliest_ns);
                earliest_ns = candidate.span_ns.0;
            }
        }
        let mut producers = Vec::new();
        for (id, (before, after)) in before.iter().zip(&after).enumerate() {
            let first = buckets.partition_point(|candidate| candidate.bucket.producer < id);
            let end = buckets.partition_point(|candidate| candidate.bucket.producer <= id);
            let own = &buckets[first..end];
            let is_used = before.published > 0 || before.watermark_ns.is_some() || !own.is_empty();
            // After a recorder was killed, nobody knows whether it was about to use this producer.
            if is_used || writer == RegionWriter::Killed {
                producers.push(ProducerContents::new(
                    id,
                    (before, after),
                    own,
                    is_claimed,
                    &steps,
                ));
            }
        }
        buckets.sort_by_key(|candidate| candidate.span_ns); // stable
        Ok(Self {
            interfaces,
            steps,
            buckets,
            is_damaged,
            producers,
            writer,
        })
    }

    /// The window of a query, from the fields of [`Query`](super::Query).
    pub(super) fn window(
        &self,
        from_ns: Option<i64>,
        to_ns: Option<i64>,
        last_ns: Option<i64>,
    ) -> QueryWindow {
        let producers = self.producers.iter();
        let newest = |stored: &ProducerContents| Some((stored.newest_ns?, stored.latest_offset_ns));
        let newest = producers.clone().filter_map(newest).max();
        let whole_from =
            |stored: &ProducerContents| Some((stored.whole_from_ns?, stored.whole_offset_ns));
        let oldest = producers.clone().filter_map(whole_from).min();
        let is_lacking = |stored: &&ProducerContents| stored.evicted > 0 || stored.lost > 0;
        let whole = producers
            .clone()
            .filter(is_lacking)
            .filter_map(whole_from)
            .max();
        // If times are in disorder, at least the newest packet is in the window.
        let whole = whole.map(|whole| newest.map_or(whole, |newest| whole.min(newest)));
        let last = last_ns.map(|last_ns| {
            let going_on = producers.filter(|stored| stored.watermark_ns != i64::MAX);
            let known = going_on.map(|stored| (stored.watermark_ns, stored.latest_offset_ns));
            let (end_ns, offset_ns) = known.max().max(newest).unwrap_or((0, 0));
            (end_ns.saturating_sub(last_ns), offset_ns)
        });
        let stamp = |(ring_ns, offset_ns): (i64, i64)| ring_ns.saturating_add(offset_ns);
        // A window that ends before the time `from` asks for overwritten packets.
        let is_before = |from| to_ns.is_some_and(|to_ns| to_ns < stamp(from));
        let from = match from_ns {
            Some(_) => None,
            None => last.or(whole.filter(|from| !is_before(*from))),
        };
        let known_ns = self.known_to_ns().filter(|ns| *ns != i64::MIN);
        let oldest = oldest.filter(|oldest| !is_before(*oldest));
        let told_from_ns = from_ns.or(from.or(oldest).map(stamp)).or(to_ns);
        let told_to_ns = known_ns.or(newest.map(stamp)).max(told_from_ns);
        QueryWindow {
            is_movable: from_ns.is_none() && last_ns.is_none(),
            from_ring_ns: from.map_or(i64::MIN, |(ring_ns, _)| ring_ns),
            from_ns: from_ns.unwrap_or(i64::MIN),
            to_ns: to_ns.unwrap_or(i64::MAX),
            reported_ns: (told_from_ns, to_ns.or(told_to_ns)),
        }
    }

    /// Stamp up to which all packets are known, ns: every producer that has not ended promised to
    /// store nothing older. `None`: no producer goes on. `i64::MIN`: a producer promised nothing.
    fn known_to_ns(&self) -> Option<i64> {
        let going_on = self
            .producers
            .iter()
            .filter(|stored| stored.watermark_ns != i64::MAX);
        let known = going_on.map(|stored| match stored.watermark_ns {
            i64::MIN => i64::MIN,
            // The promise does not include the watermark itself.
            ns => (ns - 1).saturating_add(stored.latest_offset_ns),
        });
        known.min()
    }

    /// Ring time up to which all records of producers with a promise are known, ns, while the
    /// writer runs.
    pub(super) fn known_ring_ns(&self) -> i64 {
        let known = self.producers.iter().map(|stored| stored.watermark_ns);
        let known = known.filter(|ns| *ns != i64::MIN);
        known.min().unwrap_or(i64::MAX).saturating_sub(1)
    }

    /// No producer with a promise stores a record older than this, ns of ring time. `None`: each
    /// producer has ended or promises nothing.
    pub(super) fn promised_ns(&self) -> Option<i64> {
        let promises = self.producers.iter().map(|stored| stored.watermark_ns);
        promises
            .filter(|ns| !matches!(*ns, i64::MIN | i64::MAX))
            .min()
    }

    /// Whether no more records follow.
    pub(super) fn is_over(&self) -> bool {
        let has_ended = |stored: &ProducerContents| stored.watermark_ns == i64::MAX;
        let all = !self.producers.is_empty() && self.producers.iter().all(has_ended);
        all || self.writer != RegionWriter::Running
    }

    /// Whether all packets up to this stamp, included, are known.
    pub(super) fn is_known_to(&self, to_ns: i64) -> bool {
        let is_unused = self.producers.is_empty() && self.writer == RegionWriter::Running;
        !is_unused && self.known_to_ns().is_none_or(|known_ns| known_ns >= to_ns)
    }

    fn newest_ns(&self) -> Option<i64> {
        let stamp = |stored: &ProducerContents| {
            Some(stored.newest_ns?.saturating_add(stored.latest_offset_ns))
        };
        self.producers.iter().filter_map(stamp).max()
    }

    /// The stamp up to which watermarks promise that all packets are known; without such a promise,
    /// the stamp of the newest packet.
    pub(super) fn end_ns(&self) -> Option<i64> {
        let known_ns = self.known_to_ns().filter(|ns| *ns != i64::MIN);
        known_ns.or(self.newest_ns())
    }

    /// The reason, if any, why a window can have no packets.
    pub(super) fn emptiness(&self, window: &QueryWindow) -> Option<Empty> {
        let stamp = |(ns, offset_ns): (i64, i64)| ns.saturating_add(offset_ns);
        let newest_ns = self.newest_ns();
        let end_ns = self.end_ns().max(newest_ns);
        if end_ns.is_some_and(|end_ns| window.from_ns > end_ns) {
            let ns = window.from_ns.abs_diff(end_ns.unwrap_or_default());
            return Some(Empty::NotYet { ns });
        }
        let evicted = self.producers.iter().filter(|stored| stored.evicted > 0);
        let oldest =
            |stored: &ProducerContents| Some((stored.whole_from_ns?, stored.whole_offset_ns));
        let oldest_ns = evicted.filter_map(oldest).map(stamp).min();
        if oldest_ns.is_some_and(|oldest_ns| window.to_ns < oldest_ns) {
            let ns = oldest_ns.unwrap_or_default().abs_diff(window.to_ns);
            return Some(Empty::AgedOut { ns });
        }
        newest_ns.is_none().then_some(Empty::NothingRecorded)
    }

    /// Whether a clock was set.
    pub(super) fn has_steps(&self) -> bool {
        !self.steps.is_empty()
    }

    /// The number after the last record of a producer.
    pub(super) fn end_of(&self, producer: usize) -> u64 {
        let own = self.producers.iter().find(|stored| stored.id == producer);
        own.map_or(0, |stored| stored.end)
    }

    /// Difference of stamp and ring time of the newest records, ns.
    pub(super) fn latest_offset_ns(&self) -> i64 {
        let newest = self.producers.iter().max_by_key(|it| it.newest_ns);
        newest.map_or(0, |stored| stored.latest_offset_ns)
    }

    /// Lower bound on the stamps in `buckets`, ns.
    pub(super) fn first_ns(&self) -> i64 {
        let first = |it: &CandidateBucket| {
            let (least_ns, _) = offsets(&self.steps, it.bucket.producer);
            it.span_ns.0.saturating_add(least_ns)
        };
        self.buckets.iter().map(first).min().unwrap_or(i64::MAX)
    }

    /// The stamps of the window, ns, that are older than the stamps of which the ring has all
    /// packets. `begin_ns`: start of the recording, if known.
    pub(super) fn before_the_ring(
        &self,
        window: &QueryWindow,
        begin_ns: Option<i64>,
    ) -> Option<StampRange> {
        let evicted = self.producers.iter().filter(|stored| stored.evicted > 0);
        let evicted_ns = evicted.map(|stored| stored.evicted_to_ns).max();
        let is_ranged = window.from_ring_ns != i64::MIN;
        if window.is_movable && (is_ranged || evicted_ns.is_none()) {
            return None; // the window begins where the ring is complete, or later
        }
        let from_ns = match window.from_ns {
            i64::MIN if is_ranged => window.reported_ns.0,
            i64::MIN => begin_ns,
            from_ns => Some(from_ns),
        };
        let to_ns = match evicted_ns {
            // Without steps, stamps are ring times: all packets after `evicted_ns` are in the ring.
            Some(evicted_ns) if self.steps.is_empty() => evicted_ns,
            _ if self.buckets.is_empty() => i64::MAX,
            _ => self.first_ns().saturating_sub(1),
        };
        let stretch = (from_ns.unwrap_or(i64::MIN), to_ns.min(window.to_ns));
        (stretch.0 <= stretch.1).then_some(stretch)
    }

    /// The stamps of a window of which records were overwritten, ns.
    pub(super) fn evicted(&self, window: &QueryWindow) -> Option<StampRange> {
        let producers = self.producers.iter();
        let parts = producers.filter_map(|stored| stored.evicted_in(window));
        parts.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
    }

    /// The packets of a window that are missing according to the region. `without`: producers whose
    /// losses another part of the query reports. `covered`: stamps of which dumps or pins have all
    /// packets.
    pub(super) fn missing(
        &self,
        window: &QueryWindow,
        without: impl Fn(usize) -> bool,
        covered: &[StampRange],
    ) -> QueryLosses {
        let mut losses = QueryLosses::default();
        for stored in self.producers.iter().filter(|stored| !without(stored.id)) {
            let stamps = stored.evicted_in(window);
            let left = stamps.map(|stamps| uncovered(stamps, covered));
            let left = left.unwrap_or_default();
            if let (Some(first), Some(last)) = (left.first(), left.last()) {
                let from_ns = first.0.max(window.all().0).min(last.1);
                losses.add("evicted", (from_ns, last.1), Some(stored.evicted));
            }
            if stored.lost > 0 {
                losses.add("damaged", window.all(), Some(stored.lost));
            }
        }
        if self.is_damaged {
            losses.add("damaged", window.all(), None);
        }
        losses
    }

    /// Adds packets that the recorder may not have published.
    pub(super) fn add_unpublished(&self, window: &QueryWindow, losses: &mut QueryLosses) {
        let known_ns = self
            .known_to_ns()
            .filter(|known_ns| window.to_ns > *known_ns);
        // If the writer runs and the query has no end, the query does not ask for future packets.
        let is_asked = self.writer != RegionWriter::Running || window.to_ns != i64::MAX;
        if let Some(known_ns) = known_ns.filter(|_| is_asked) {
            let (from_ns, to_ns) = window.all();
            losses.add(
                "unpublished",
                (known_ns.max(from_ns), to_ns.max(known_ns)),
                None,
            );
        }
    }
}

impl ProducerContents {
    /// The records of producer `id`, from its state before and after its buckets `own` were read.
    /// `is_claimed`: some bucket was being overwritten.
    fn new(
        id: usize,
        (before, after): (&AttachedProducer, &AttachedProducer),
        own: &[CandidateBucket],
        is_claimed: bool,
        steps: &[Step],
    ) -> Self {
        let (mut end, mut oldest, mut holes) = (0, None, Vec::new());
        for candidate in own {
            if candidate.bucket.first > end {
                holes.push((end, candidate.bucket.first));
                oldest = None;
            }
            oldest = oldest.or(Some(candidate));
            end = candidate
                .bucket
                .first
                .saturating_add(candidate.bucket.packets)
                .max(end);
        }
        if before.published > end {
            holes.push((end, before.published));
        }
        let told = after.evicted_records;
        let (mut evicted, mut lost, mut is_told) = (0_u64, 0_u64, true);
        for (first, end) in holes {
            // While a recorder overwrites records, it has not reported them as overwritten yet.
            if first <= told || is_claimed {
                evicted = evicted.saturating_add(end - first);
                is_told &= end <= told;
            } else {
                lost = lost.saturating_add(end - first);
            }
        }
        let behind_evicted_ns = after.evicted_ns.map(|ns| ns.saturating_add(1));
        let whole_from_ns = oldest
            .map(|candidate: &CandidateBucket| candidate.span_ns.0)
            .max(behind_evicted_ns);
        Self {
            id,
            end: end.max(before.published),
            evicted,
            evicted_to_ns: match (is_told, after.evicted_ns) {
                (true, Some(ns)) => ns,
                // The records were usually older than those in the ring.
                _ => whole_from_ns.unwrap_or(i64::MAX),
            },
            lost,
            whole_from_ns,
            newest_ns: own.iter().map(|candidate| candidate.span_ns.1).max(),
            watermark_ns: before.watermark_ns.unwrap_or(i64::MIN),
            offsets: offsets(steps, id),
            whole_offset_ns: oldest
                .map_or(0, |candidate| offset_ns(steps, id, candidate.bucket.first)),
            latest_offset_ns: offset_ns(steps, id, u64::MAX),
        }
    }
}

impl ProducerContents {
    fn evicted_in(&self, window: &QueryWindow) -> Option<StampRange> {
        let evicted_ns = (i64::MIN, self.evicted_to_ns);
        let is_any = self.evicted > 0 && window.touches(evicted_ns, self.offsets);
        let (from_ns, to_ns) = window.part(evicted_ns, self.offsets);
        let is_open = window.from_ns.max(window.from_ring_ns) == i64::MIN;
        is_any.then_some((if is_open { i64::MIN } else { from_ns }, to_ns))
    }
}

impl QueryWindow {
    /// If the window is movable, begins it after `ring_ns` at the earliest. `offset_ns`: stamp
    /// minus ring time. Returns whether the window is movable.
    pub(super) fn begin_behind(&mut self, ring_ns: i64, offset_ns: i64) -> bool {
        if self.is_movable && ring_ns >= self.from_ring_ns {
            self.from_ring_ns = ring_ns.saturating_add(1);
            self.reported_ns.0 = Some(self.from_ring_ns.saturating_add(offset_ns));
            self.reported_ns.1 = self.reported_ns.1.max(self.reported_ns.0);
        }
        self.is_movable
    }

    /// Begins the window at this ring time; `None`: the time is no longer known. `offset_ns`: stamp
    /// minus ring time.
    pub(super) fn resume(&mut self, ring_ns: Option<i64>, offset_ns: i64) {
        self.is_movable = false;
        self.from_ring_ns = ring_ns.unwrap_or(i64::MIN);
        if let Some(ring_ns) = ring_ns {
            self.reported_ns.0 = Some(ring_ns.saturating_add(offset_ns).max(self.from_ns));
            self.reported_ns.1 = self.reported_ns.1.max(self.reported_ns.0);
        }
    }

    /// Ends the window with this stamp.
    pub(super) fn end_with(&mut self, stamp_ns: i64) {
        self.to_ns = self.to_ns.min(stamp_ns);
        self.reported_ns.1 = Some(stamp_ns);
        self.reported_ns.0 = self.reported_ns.0.min(self.reported_ns.1);
    }

    /// Ends the window for now with this stamp, up to which all packets are known.
    pub(super) fn end_with_known(&mut self, stamp_ns: Option<i64>) {
        let end_ns = stamp_ns.or(self.reported_ns.0);
        self.reported_ns.1 = end_ns
            .map(|end_ns| end_ns.min(self.to_ns))
            .max(self.reported_ns.0);
        self.to_ns = self.reported_ns.1.unwrap_or(self.to_ns);
    }

    /// Moves the reported start back to this stamp of a packet in the answer, if the stamp is
    /// earlier.
    pub(super) fn begin_by(&mut self, stamp_ns: i64) {
        self.reported_ns.0 = self.reported_ns.0.map(|from_ns| from_ns.min(stamp_ns));
    }

    /// Begins the window with this stamp.
    pub(super) fn begin_with(&mut self, stamp_ns: i64) {
        self.from_ns = self.from_ns.max(stamp_ns);
        self.reported_ns.0 = Some(stamp_ns);
    }

    /// Whether the window contains all records of these ring times.
    pub(super) fn holds_all(&self, (first_ns, last_ns): (i64, i64), offsets: (i64, i64)) -> bool {
        first_ns >= self.from_ring_ns
            && first_ns.saturating_add(offsets.0) >= self.from_ns
            && last_ns.saturating_add(offsets.1) <= self.to_ns
    }

    /// Whether the window may contain records of these ring times.
    pub(super) fn touches(&self, (first_ns, last_ns): (i64, i64), offsets: (i64, i64)) -> bool {
        last_ns >= self.from_ring_ns
            && first_ns.saturating_add(offsets.0) <= self.to_ns
            && last_ns.saturating_add(offsets.1) >= self.from_ns
    }

    pub(super) fn holds(&self, ring_ns: i64, stamp_ns: i64) -> bool {
        ring_ns >= self.from_ring_ns && (self.from_ns..=self.to_ns).contains(&stamp_ns)
    }

    /// The stamps that records of these ring times may have in the window.
    pub(super) fn part(&self, (first_ns, last_ns): (i64, i64), offsets: (i64, i64)) -> (i64, i64) {
        let (from_ns, to_ns) = self.all();
        let inside = |ns: i64| ns.min(to_ns).max(from_ns);
        let (first_ns, last_ns) = (
            first_ns.saturating_add(offsets.0),
            last_ns.saturating_add(offsets.1),
        );
        (inside(first_ns), inside(last_ns))
    }

    pub(super) fn all(&self) -> (i64, i64) {
        let (from_ns, to_ns) = self.reported_ns;
        (from_ns.unwrap_or(self.from_ns), to_ns.unwrap_or(self.to_ns))
    }
}

impl QueryLosses {
    /// Adds missing packets of these stamps, ns. `at_most`: upper bound; `None`: unknown number.
    pub(super) fn add(
        &mut self,
        cause: &'static str,
        (from_ns, to_ns): (i64, i64),
        at_most: Option<u64>,
    ) {
        let one = self.0.entry(cause).or_insert((from_ns, to_ns, Some(0)));
        let sum = one.2.zip(at_most).map(|(a, b)| a.saturating_add(b));
        *one = (from_ns.min(one.0), to_ns.max(one.1), sum);
    }

    pub(super) fn has(&self, cause: &str) -> bool {
        self.0.contains_key(cause)
    }

    pub(super) fn add_all(&mut self, others: &Self) {
        for (cause, (from_ns, to_ns, at_most)) in &others.0 {
            self.add(cause, (*from_ns, *to_ns), *at_most);
        }
    }

    pub(super) fn missing(&self) -> Vec<Missing> {
        let missing = self
            .0
            .iter()
            .map(|(cause, (from_ns, to_ns, at_most))| Missing {
                at_most: *at_most,
                ..Missing::new(cause, *from_ns, *to_ns, None)
            });
        missing.collect()
    }
}

/// Stamp minus ring time of a producer's record, ns. If the producer has several clocks, the latest
/// step counts.
pub(crate) fn offset_ns(steps: &[Step], producer: usize, record: u64) -> i64 {
    let own = steps
        .iter()
        .filter(|step| step.producer == producer && step.first <= record);
    own.max_by_key(|step| step.first)
        .map_or(0, |step| step.offset_ns)
}

/// Bounds on the difference of stamp and ring time of a producer's records, ns.
pub(super) fn offsets(steps: &[Step], producer: usize) -> (i64, i64) {
    let own = steps.iter().filter(|step| step.producer == producer);
    own.fold((0, 0), |(least, most), step| {
        (least.min(step.offset_ns), most.max(step.offset_ns))
    })
}
