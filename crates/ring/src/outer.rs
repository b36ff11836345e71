//! The outer queue: the free, open and closed buckets, and the choice of the bucket that is
//! overwritten next.
//!
//! One mutex protects the outer queue. Producers wait for the mutex, so most walks release it after
//! every [`PIECE`] buckets. Holds and positions of gating groups change without the mutex.

use std::{iter, ops::Range, sync::Arc};

use crate::{
    BucketInfo, BucketRef, EvictedBucket, Mode, RingConfig, RingStatistics,
    closed::ClosedBuckets,
    config::Geometry,
    group::Group,
    log::Log,
    reservations::{Needs, Reservations},
    steps::Steps,
    storage::{Claimed, OpenBucket, OpenedBucket, Storage},
    sync::Ordering,
};

/// Number of buckets that most walks visit before they release the mutex.
pub(crate) const PIECE: usize = 64;

/// Number of values of [`BucketSlot::protection`].
const PROTECTIONS: usize = 3;

#[derive(Debug)]
pub(crate) struct Outer {
    /// Buckets never used.
    free: Vec<u32>,
    pub(crate) slots: Vec<BucketSlot>,
    /// Indexed by producer.
    chains: Vec<Chain>,
    /// Empty between calls. A field, so that [`Self::victim`] allocates nothing.
    scratch: Vec<u32>,
    pub(crate) log: Log,
    pub(crate) reservations: Reservations,
    pub(crate) steps: Steps,
    /// Groups that must have passed a bucket before it is overwritten.
    pub(crate) gating: Vec<Arc<Group>>,
    /// Buckets closed since the start.
    pub(crate) closings: u64,
    /// The latest closing time of all overwritten buckets, ns of the monotonic clock. `i64::MIN` if
    /// no bucket was overwritten.
    evicted_closed_mono_ns: i64,
    /// Numbers of unused parkers.
    pub(crate) parkers_free: Vec<usize>,
}

/// The outer queue's state of one bucket.
#[derive(Debug, Clone, Default)]
pub(crate) struct BucketSlot {
    pub(crate) state: BucketState,
    pub(crate) generation: u64,
    pub(crate) producer: usize,
    pub(crate) first: u64,
    first_bytes: u64,
    /// Records in the bucket. This field and the fields up to `place` are valid only for closed
    /// buckets.
    packets: u32,
    bytes: u64,
    pub(crate) min_ns: i64,
    pub(crate) max_ns: i64,
    /// Upper bound of the times of this bucket and of the producer's older buckets in the ring, ns.
    upto_ns: i64,
    /// `Outer::closings` when the bucket closed: unique over the ring's life.
    pub(crate) closing: u64,
    /// Time of closing, ns of the monotonic clock.
    closed_mono_ns: i64,
    needs: Needs,
    /// Position in the heap of [`Chain::closed`] that has the bucket.
    pub(crate) place: usize,
    /// Neighbors in the producer's list of buckets.
    older: Option<u32>,
    newer: Option<u32>,
}

/// The buckets of one producer.
#[derive(Debug)]
struct Chain {
    /// Ends of the producer's list of buckets, in record order.
    oldest: Option<u32>,
    newest: Option<u32>,
    /// All closed buckets, by [`BucketSlot::protection`]. Each heap has room for all buckets of the
    /// ring, 4 bytes a bucket.
    closed: [ClosedBuckets; PROTECTIONS],
    /// In the current search of `victim`: a gating group has not passed the remaining buckets.
    is_gated: bool,
}

impl Chain {
    fn new(buckets: usize) -> Self {
        Self {
            oldest: None,
            newest: None,
            closed: [(); PROTECTIONS].map(|()| ClosedBuckets::new(buckets)),
            is_gated: false,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum BucketState {
    #[default]
    Free,
    Open,
    Closed,
}

/// Why a producer got no bucket.
#[derive(Debug)]
pub(crate) enum Obstacle {
    /// No bucket is free, and the caller did not allow to overwrite a bucket.
    NoneFree,
    /// No bucket may be overwritten now. `wait`: the producer must wait for a bucket.
    Blocked { wait: bool },
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct OldestBucket {
    pub(crate) bucket: BucketRef,
    /// The number of the producer's records before this bucket.
    pub(crate) first: u64,
    pub(crate) first_bytes: u64,
}

impl Outer {
    pub(crate) fn new(geometry: Geometry, config: &RingConfig) -> Self {
        let buckets = geometry.buckets;
        let count = u32::try_from(buckets).expect("a geometry has at most 65,535 buckets");
        Self {
            free: (0..count).rev().collect(),
            slots: vec![BucketSlot::default(); buckets],
            chains: (0..geometry.producers)
                .map(|_| Chain::new(buckets))
                .collect(),
            scratch: Vec::with_capacity(buckets),
            log: Log::new(config.eviction_detail, geometry.producers),
            reservations: Reservations::default(),
            steps: Steps::default(),
            gating: Vec::new(),
            closings: 0,
            evicted_closed_mono_ns: i64::MIN,
            parkers_free: (0..config.readers + config.releasing_readers)
                .rev()
                .collect(),
        }
    }

    /// Claims a free bucket, or, if `overwrite`, the first closed bucket that may be overwritten
    /// ("What is overwritten" in `lib.rs`).
    pub(crate) fn take<'s>(
        &mut self,
        storage: &'s Arc<Storage>,
        mode: Mode,
        overwrite: bool,
    ) -> Result<Claimed<'s>, Obstacle> {
        if let Some(index) = self.free.pop() {
            let claimed = Claimed::claim(storage, index as usize);
            return Ok(claimed.expect("nobody can hold a free bucket"));
        }
        if !overwrite {
            return Err(Obstacle::NoneFree);
        }
        let protections = match mode {
            Mode::Record => PROTECTIONS,
            Mode::Protect | Mode::Wait => 1,
        };
        let found = (0..protections).find_map(|protection| self.victim(storage, protection));
        if let Some(claimed) = found {
            self.evict(storage, &claimed);
            return Ok(claimed);
        }
        Err(Obstacle::Blocked {
            wait: match mode {
                Mode::Record => self.is_gated(),
                Mode::Protect => false,
                Mode::Wait => true,
            },
        })
    }

    /// Appends an opened bucket to its producer's list.
    pub(crate) fn opened(&mut self, opened: &OpenedBucket<'_>) {
        let BucketRef { index, generation } = opened.bucket();
        let slot = &mut self.slots[index as usize];
        slot.state = BucketState::Open;
        slot.generation = generation;
        slot.producer = opened.opening().producer;
        slot.first = opened.opening().first;
        slot.first_bytes = opened.opening().first_bytes;
        let chain = &mut self.chains[slot.producer];
        (slot.older, slot.newer) = (chain.newest.replace(index), None);
        match slot.older {
            Some(older) => self.slots[older as usize].newer = Some(index),
            None => chain.oldest = Some(index),
        }
    }

    /// Marks a bucket closed in the outer queue. Returns the number of buckets that closed before.
    pub(crate) fn close_bucket(&mut self, open: &OpenBucket, mono_ns: i64) -> u64 {
        let index = open.bucket().index;
        let (min_ns, max_ns) = open.span_ns();
        let closing = self.closings;
        self.closings += 1;
        let older = self.slots[index as usize].older;
        let older_ns = older.map_or(i64::MIN, |older| self.slots[older as usize].upto_ns);
        let slot = &mut self.slots[index as usize];
        slot.state = BucketState::Closed;
        slot.upto_ns = older_ns.max(max_ns);
        slot.packets =
            u32::try_from(open.end() - slot.first).expect("a bucket has at most 2^27 descriptors");
        slot.bytes = open.end_bytes() - slot.first_bytes;
        slot.min_ns = min_ns;
        slot.max_ns = max_ns;
        slot.closing = closing;
        slot.closed_mono_ns = mono_ns;
        slot.needs = self.reservations.needs(min_ns, max_ns);
        self.list(index);
        closing
    }

    /// Adds a closed bucket to the heap of its protection.
    fn list(&mut self, index: u32) {
        let slot = &self.slots[index as usize];
        let heap = &mut self.chains[slot.producer].closed[slot.protection()];
        heap.push(index, &mut self.slots);
    }

    /// Changes how many reservations want a closed bucket.
    pub(crate) fn change_needs(&mut self, index: u32, change: impl FnOnce(&mut Needs)) {
        let slot = &mut self.slots[index as usize];
        let before = slot.protection();
        change(&mut slot.needs);
        let after = slot.protection();
        if before != after {
            let heaps = &mut self.chains[slot.producer].closed;
            heaps[before].remove(index, &mut self.slots);
            heaps[after].push(index, &mut self.slots);
        }
    }

    /// The producer's oldest bucket that has, or may still get, records from number `position` on.
    pub(crate) fn oldest_bucket(&self, producer: usize, position: u64) -> Option<OldestBucket> {
        let mut mine = self.oldest_first(producer);
        let (index, slot) = mine.find(|(_, slot)| slot.reaches(position))?;
        Some(OldestBucket {
            bucket: slot.bucket(index),
            first: slot.first,
            first_bytes: slot.first_bytes,
        })
    }

    fn oldest_first(&self, producer: usize) -> impl Iterator<Item = (usize, &BucketSlot)> {
        self.linked(self.chains[producer].oldest, |slot| slot.newer)
    }

    pub(crate) fn newest(&self, producer: usize) -> Option<u32> {
        self.chains[producer].newest
    }

    fn linked(
        &self,
        first: Option<u32>,
        next: impl Fn(&BucketSlot) -> Option<u32>,
    ) -> impl Iterator<Item = (usize, &BucketSlot)> {
        let indices = iter::successors(first, move |&index| next(&self.slots[index as usize]));
        indices.map(|index| (index as usize, &self.slots[index as usize]))
    }

    /// The statistics that the outer queue has without a walk over buckets. The other fields are 0
    /// or `None`.
    pub(crate) fn totals(&self) -> RingStatistics {
        let (evicted_packets, evicted_bytes) = self.log.totals();
        RingStatistics {
            stored_packets: 0,
            stored_bytes: 0,
            evicted_packets,
            evicted_bytes,
            oldest_ns: None,
            newest_ns: None,
            whole_since_mono_ns: Some(self.evicted_closed_mono_ns).filter(|ns| *ns != i64::MIN),
            free_buckets: 0,
            open_buckets: 0,
            closed_buckets: 0,
            reserved_buckets: 0,
            reservations_fallen: self.reservations.fallen_count,
        }
    }

    /// Adds the counts and times of a range of buckets to `sum`.
    pub(crate) fn count(&self, buckets: Range<usize>, storage: &Storage, sum: &mut RingStatistics) {
        for index in buckets {
            let slot = &self.slots[index];
            match slot.state {
                BucketState::Free => sum.free_buckets += 1,
                BucketState::Open => sum.open_buckets += 1,
                BucketState::Closed => {
                    sum.closed_buckets += 1;
                    sum.reserved_buckets += usize::from(slot.protection() > 0);
                }
            }
            if let Some(info) = slot.info(index, storage) {
                sum.oldest_ns = Some(sum.oldest_ns.map_or(info.min_ns, |ns| ns.min(info.min_ns)));
                sum.newest_ns = sum.newest_ns.max(Some(info.max_ns));
            }
        }
    }

    /// Claims the first bucket to have closed, of those with this protection that every gating
    /// group has passed and nobody holds. Takes at most one more step for each producer and each
    /// held bucket.
    fn victim<'s>(&mut self, storage: &'s Arc<Storage>, protection: usize) -> Option<Claimed<'s>> {
        self.chains
            .iter_mut()
            .for_each(|chain| chain.is_gated = false);
        let mut held = std::mem::take(&mut self.scratch);
        let found = loop {
            let chains = self.chains.iter().filter(|chain| !chain.is_gated);
            let first = chains.filter_map(|chain| chain.closed[protection].first());
            let Some(index) = first.min_by_key(|index| self.slots[*index as usize].closing) else {
                break None;
            };
            let slot = &self.slots[index as usize];
            let (is_passed, chain) = (self.passed(slot), &mut self.chains[slot.producer]);
            if !is_passed {
                // A group passes the producer's buckets in their order: it has not passed any later
                // bucket of the producer.
                chain.is_gated = true;
                continue;
            }
            chain.closed[protection].remove(index, &mut self.slots);
            let claimed = Claimed::claim(storage, index as usize);
            if claimed.is_some() {
                break claimed;
            }
            held.push(index);
        };
        held.drain(..).for_each(|index| self.list(index));
        self.scratch = held;
        found
    }

    /// Whether a gating group has not passed some closed bucket. A group passes the newest closed
    /// bucket of a producer last.
    fn is_gated(&self) -> bool {
        self.chains.iter().any(|chain| {
            let mut newest_first = self.linked(chain.newest, |slot| slot.older);
            let newest = newest_first.find(|(_, slot)| slot.state == BucketState::Closed);
            newest.is_some_and(|(_, slot)| !self.passed(slot))
        })
    }

    /// Whether every gating group has finished or missed all records of a closed bucket.
    pub(crate) fn passed(&self, slot: &BucketSlot) -> bool {
        let end = slot.first + u64::from(slot.packets);
        self.gating
            .iter()
            .all(|group| group.position(slot.producer) >= end)
    }

    /// Logs a claimed bucket before it is overwritten, and removes the bucket from its producer's
    /// list.
    fn evict(&mut self, storage: &Storage, claimed: &Claimed<'_>) {
        let index = claimed.bucket().index as usize;
        let slot = &mut self.slots[index];
        let victim = slot.contents(index);
        if victim.is_needed {
            self.reservations.bump_news();
        }
        let stamp = |record| claimed.old_time_ns(record);
        self.log.add(victim, stamp);
        slot.state = BucketState::Free;
        let latest = &mut self.evicted_closed_mono_ns;
        *latest = slot.closed_mono_ns.max(*latest);
        let end = slot.first + u64::from(slot.packets);
        storage.tell_evicted(slot.producer, end, slot.max_ns, *latest);
        let (older, newer) = (slot.older, slot.newer);
        let chain = &mut self.chains[slot.producer];
        match older {
            Some(older) => self.slots[older as usize].newer = newer,
            None => chain.oldest = newer,
        }
        match newer {
            Some(newer) => self.slots[newer as usize].older = older,
            None => chain.newest = older,
        }
    }
}

impl BucketSlot {
    pub(crate) fn bucket(&self, index: usize) -> BucketRef {
        BucketRef {
            index: u32::try_from(index).expect("at most 65,535 buckets"),
            generation: self.generation,
        }
    }

    /// A closed bucket as an entry of the log, without record times.
    pub(crate) fn contents(&self, index: usize) -> EvictedBucket {
        EvictedBucket {
            bucket: self.bucket(index),
            producer: self.producer,
            first: self.first,
            closing: self.closing,
            is_needed: self.protection() > 0,
            packets: self.packets,
            bytes: self.bytes,
            min_ns: self.min_ns,
            max_ns: self.max_ns,
            times_ns: Vec::new(),
        }
    }

    /// 0: no reservation wants the closed bucket. 1: only yielding reservations. 2: others.
    fn protection(&self) -> usize {
        let last = self.needs.iter().rposition(|count| *count > 0);
        last.map_or(0, |kind| kind + 1)
    }

    /// Whether the bucket or an older bucket of its producer may have records of `from_ns` or
    /// later. An open bucket may still get such records.
    pub(crate) fn may_reach(&self, from_ns: i64) -> bool {
        self.state == BucketState::Open || self.upto_ns >= from_ns
    }

    /// The previous bucket of the same producer.
    pub(crate) fn older(&self) -> Option<u32> {
        self.older
    }

    /// Whether the bucket has, or may still get, records of its producer from number `position` on.
    pub(crate) fn reaches(&self, position: u64) -> bool {
        self.state == BucketState::Open || self.first + u64::from(self.packets) > position
    }

    /// `None`: the bucket has no committed records.
    pub(crate) fn info(&self, index: usize, storage: &Storage) -> Option<BucketInfo> {
        let (committed, min_ns, max_ns, closed) = match self.state {
            BucketState::Free => return None,
            BucketState::Closed => (self.packets, self.min_ns, self.max_ns, true),
            BucketState::Open => {
                let header = storage.bucket(index);
                let committed = header.committed.load(Ordering::Acquire); // pairs with P1: the times cover these records
                let committed =
                    u32::try_from(committed).expect("a bucket has at most 2^27 descriptors");
                let min_ns = header.min_ns.load(Ordering::Relaxed); // ordered by `committed`; may be newer
                let max_ns = header.max_ns.load(Ordering::Relaxed); // ordered by `committed`; may be newer
                (committed, min_ns, max_ns, false)
            }
        };
        (committed > 0).then(|| BucketInfo {
            bucket: self.bucket(index),
            producer: self.producer,
            first: self.first,
            committed,
            min_ns,
            max_ns,
            closed,
        })
    }
}

#[cfg(not(loom))]
#[cfg(test)]
pub(crate) mod tests {
    use rustix::time::{ClockId, clock_gettime};

    use super::*;
    use crate::GroupKind;

    /// Processor time of this thread, ns.
    pub(crate) fn processor_ns() -> i64 {
        let now = clock_gettime(ClockId::ThreadCPUTime);
        now.tv_sec * 1_000_000_000 + now.tv_nsec
    }

    /// An outer queue of 65,535 closed buckets, one packet each, that a gating group has yet to
    /// read. Only a few buckets have memory.
    fn unread() -> (Outer, Arc<Storage>) {
        let config = RingConfig {
            prefault: false,
            ..RingConfig::new(16 << 20, 2, 0)
        };
        let few = config.geometry().unwrap();
        let (storage, _) = Storage::new(few, &config, None).unwrap();
        let geometry = Geometry {
            buckets: 65_535,
            ..few
        };
        let mut outer = Outer::new(geometry, &config);
        outer.free.clear();
        outer
            .gating
            .push(Arc::new(Group::new(GroupKind::Gating, 1, &[0, 0])));
        for (index, slot) in outer.slots.iter_mut().enumerate() {
            let producer = usize::from(index == 65_534);
            let closing = index as u64;
            slot.state = BucketState::Closed;
            slot.producer = producer;
            slot.first = if producer == 0 { closing } else { 0 };
            (slot.packets, slot.closing) = (1, closing);
        }
        (0..65_535).for_each(|index| outer.list(index));
        (outer, Arc::new(storage))
    }

    /// A waiting writer searches again, under the mutex, whenever the group advances.
    #[test]
    fn a_try_costs_the_same_however_many_buckets_are_unread() {
        let (mut outer, storage) = unread();
        let before_ns = processor_ns();
        const TRIES: i64 = 10_000;
        for _ in 0..TRIES {
            let taken = outer.take(&storage, Mode::Wait, true);
            assert!(matches!(taken, Err(Obstacle::Blocked { wait: true })));
        }
        let each_ns = (processor_ns() - before_ns) / TRIES;
        eprintln!("a try on 65,535 unread buckets: {each_ns} ns");
        // A try that visits all buckets takes 100 µs and more.
        assert!(each_ns < 20_000, "{each_ns} ns");
    }

    /// An outer queue without memory, whose buckets are all closed. Bucket `n` belongs to producer
    /// `n % producers` and has the times from `n` s to `n + 1` s.
    pub(crate) fn closed(buckets: usize, producers: usize) -> Outer {
        const S: i64 = 1_000_000_000;
        let geometry = Geometry {
            buckets,
            bucket_bytes: 2 << 20,
            producers,
        };
        let mut outer = Outer::new(geometry, &RingConfig::new(1 << 30, producers, 1));
        while let Some(index) = outer.free.pop() {
            let (n, producer) = (index as usize, index as usize % producers);
            let older = outer.chains[producer].newest.replace(index);
            match older {
                Some(older) => outer.slots[older as usize].newer = Some(index),
                None => outer.chains[producer].oldest = Some(index),
            }
            let from_ns = i64::from(index) * S;
            outer.slots[n] = BucketSlot {
                state: BucketState::Closed,
                producer,
                first: u64::from(index),
                packets: 1,
                min_ns: from_ns,
                max_ns: from_ns + S,
                upto_ns: from_ns + S,
                closing: u64::from(index),
                older,
                ..BucketSlot::default()
            };
            outer.list(index);
        }
        outer.closings = buckets as u64;
        outer
    }
}
