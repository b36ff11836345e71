//! The outer queue: the free, open and closed buckets, and the choice of the bucket that is
//! overwritten next.
//!
//! One mutex protects the outer queue. A producer takes the mutex for each bucket that it fills.
//! Readers that start or were lapped, and dumps that list buckets, take the mutex too. Most walks
//! release the mutex after every [`PIECE`] buckets, so that producers do not wait for a whole walk.
//! `Outer::let_fall` walks over all buckets at once. `Outer::oldest_bucket` walks over the buckets
//! of one producer up to the position of a reader. Holds and positions of gating groups change
//! without the mutex.

use std::{cmp::Reverse, collections::BinaryHeap, iter, ops::Range, sync::Arc};

use crate::{
    BucketInfo, BucketRef, EvictedBucket, Mode, RingConfig, RingStatistics,
    config::Geometry,
    group::Group,
    log::Log,
    reservations::{GivenBackBy, Reservations},
    steps::Steps,
    storage::{Claimed, OpenBucket, OpenedBucket, Storage},
    sync::Ordering,
};

/// Number of buckets that most walks visit before they release the mutex.
pub(crate) const PIECE: usize = 64;

/// The state of the outer queue. A mutex protects this state.
#[derive(Debug)]
pub(crate) struct Outer {
    /// Buckets never used. The last element is used next.
    free: Vec<u32>,
    pub(crate) slots: Vec<BucketSlot>,
    /// Indexed by producer.
    chains: Vec<Chain>,
    /// Empty between calls. A field, so that a search for a bucket to overwrite allocates nothing.
    pub(crate) scratch: Vec<u32>,
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
    /// Numbers of unused parkers. One more reader can be opened for each.
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
    /// Records in the bucket. This field and the fields up to `given_back_by` are valid only for
    /// closed buckets.
    packets: u32,
    bytes: u64,
    pub(crate) min_ns: i64,
    pub(crate) max_ns: i64,
    /// Upper bound of the times of this bucket and of the producer's older buckets in the ring, ns.
    upto_ns: i64,
    /// `Outer::closings` when the bucket closed. Identifies the bucket in this generation, and is
    /// never used again.
    pub(crate) closing: u64,
    /// Time of closing, ns of the monotonic clock.
    closed_mono_ns: i64,
    /// Number of the list on which this closed bucket was set aside (`reservations.rs`). A bucket
    /// on the released list keeps this number. `None`: the bucket is in `Chain::overwritable`.
    pub(crate) aside: Option<u64>,
    /// Neighbors in the circular list of set-aside buckets.
    pub(crate) aside_before: u32,
    pub(crate) aside_after: u32,
    /// Reservations that have given the bucket back since it closed and before they fell.
    pub(crate) given_back_by: GivenBackBy,
    /// Neighbors in the producer's list of buckets. `None` at the ends of the list, and for buckets
    /// that were never used.
    older: Option<u32>,
    newer: Option<u32>,
}

/// The buckets of one producer.
#[derive(Debug, Default)]
struct Chain {
    /// Ends of the list of all buckets of the producer, linked in record order.
    oldest: Option<u32>,
    newest: Option<u32>,
    /// Candidates for eviction as (closing number, bucket), the first to close on top: all closed
    /// buckets except those set aside. `victim` sets a candidate aside if a reservation wants the
    /// candidate. The heap has room for all buckets of the ring, 16 bytes a bucket, and never
    /// allocates.
    overwritable: BinaryHeap<Reverse<(u64, u32)>>,
    /// The current search of `victim` has found that a gating group has not passed the remaining
    /// candidates.
    is_gated: bool,
}

impl Chain {
    fn new(buckets: usize) -> Self {
        Self {
            overwritable: BinaryHeap::with_capacity(buckets),
            ..Self::default()
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
    /// The search is unfinished: the producer must release the mutex and call again.
    Unfinished,
}

/// Where a reader without a bucket continues.
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

    /// Finds a bucket for a producer. Prefers a free bucket. If `overwrite`, the alternative is the
    /// first closed bucket, by order of closing, that every gating group has passed, nobody holds
    /// and no reservation wants. In record mode reservations fall until such a bucket exists: first
    /// the yielding reservations, then the others, each kind oldest first.
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
        loop {
            if !self.list_released() {
                return Err(Obstacle::Unfinished);
            }
            if let Some(claimed) = self.victim(storage)? {
                self.evict(storage, &claimed);
                return Ok(claimed);
            }
            if mode != Mode::Record || self.reservations.is_none_standing() {
                break;
            }
            if !self.let_fall(storage) {
                break;
            }
        }
        Err(Obstacle::Blocked {
            wait: match mode {
                Mode::Record => self.is_gated(),
                Mode::Protect => false,
                Mode::Wait => true,
            },
        })
    }

    /// Appends a bucket that a producer has opened to the producer's list of buckets.
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

    /// Closes a bucket whose records are all published. Returns its closing number: the number of
    /// buckets that closed before.
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
        slot.given_back_by.clear();
        self.list(index);
        closing
    }

    /// Makes a closed bucket a candidate for eviction.
    pub(crate) fn list(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        slot.aside = None;
        let list = &mut self.chains[slot.producer].overwritable;
        list.push(Reverse((slot.closing, index)));
    }

    /// The producer's oldest bucket that has, or may still get, records from number `position` on.
    /// A reader continues there. `None`: the producer has no such bucket.
    pub(crate) fn oldest_bucket(&self, producer: usize, position: u64) -> Option<OldestBucket> {
        let mut mine = self.oldest_first(producer);
        let (index, slot) = mine.find(|(_, slot)| slot.reaches(position))?;
        Some(OldestBucket {
            bucket: slot.bucket(index),
            first: slot.first,
            first_bytes: slot.first_bytes,
        })
    }

    /// A producer's buckets, in record order.
    fn oldest_first(&self, producer: usize) -> impl Iterator<Item = (usize, &BucketSlot)> {
        self.linked(self.chains[producer].oldest, |slot| slot.newer)
    }

    /// The newest bucket of a producer. [`BucketSlot::older`] leads from it to older buckets.
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
                    sum.reserved_buckets += usize::from(self.reservations.is_wanted(slot));
                }
            }
            if let Some(info) = slot.info(index, storage) {
                sum.oldest_ns = Some(sum.oldest_ns.map_or(info.min_ns, |ns| ns.min(info.min_ns)));
                sum.newest_ns = sum.newest_ns.max(Some(info.max_ns));
            }
        }
    }

    /// Claims the first candidate to have closed that every gating group has passed, no reservation
    /// wants and nobody holds. Sets the candidates aside that a reservation wants; after [`PIECE`]
    /// of them the search is [`Obstacle::Unfinished`]. Takes one more step for each producer and
    /// each held candidate, however many buckets a gating group has still to read. `Ok(None)`: no
    /// candidate can be overwritten.
    fn victim<'s>(&mut self, storage: &'s Arc<Storage>) -> Result<Option<Claimed<'s>>, Obstacle> {
        self.chains
            .iter_mut()
            .for_each(|chain| chain.is_gated = false);
        let mut set_aside = 0;
        let mut held = std::mem::take(&mut self.scratch);
        let found = loop {
            let candidates = self.chains.iter().filter(|chain| !chain.is_gated);
            let Some(&Reverse((_, index))) = candidates
                .filter_map(|chain| chain.overwritable.peek())
                .max()
            else {
                break Ok(None);
            };
            let slot = &self.slots[index as usize];
            let (producer, is_passed) = (slot.producer, self.passed(slot));
            let chain = &mut self.chains[producer];
            if !is_passed {
                // A group passes the producer's buckets in their order: it has not passed any later
                // bucket of the producer.
                chain.is_gated = true;
                continue;
            }
            if set_aside == PIECE {
                break Err(Obstacle::Unfinished);
            }
            chain.overwritable.pop();
            if self.set_aside(index) {
                set_aside += 1;
            } else if let Some(claimed) = Claimed::claim(storage, index as usize) {
                break Ok(Some(claimed));
            } else {
                held.push(index);
            }
        };
        held.drain(..).for_each(|index| self.list(index));
        self.scratch = held;
        found
    }

    /// Whether a gating group has not passed some closed bucket. Checks only the newest closed
    /// bucket of each producer, which a group passes last.
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
    /// list. If reservations have fallen, changes the counter of their news.
    fn evict(&mut self, storage: &Storage, claimed: &Claimed<'_>) {
        let index = claimed.bucket().index as usize;
        let slot = &mut self.slots[index];
        let victim = EvictedBucket {
            bucket: slot.bucket(index),
            producer: slot.producer,
            first: slot.first,
            closing: slot.closing,
            packets: slot.packets,
            bytes: slot.bytes,
            min_ns: slot.min_ns,
            max_ns: slot.max_ns,
            times_ns: Vec::new(),
        };
        let stamp = |record| claimed.old_time_ns(record);
        self.log.add(victim, stamp);
        self.reservations.evicted();
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
    /// read. All but the last bucket belong to the first of two producers. Only a few buckets have
    /// memory.
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
            let entry = (closing, u32::try_from(index).unwrap());
            outer.chains[producer].overwritable.push(Reverse(entry));
        }
        (outer, Arc::new(storage))
    }

    /// A waiting writer searches again, under the mutex, whenever a member of a gating group
    /// advances. If the group has read no bucket, a search must not visit all buckets.
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

    /// Number of candidates for eviction.
    pub(crate) fn candidates(outer: &Outer) -> usize {
        let chains = outer.chains.iter();
        chains.map(|chain| chain.overwritable.len()).sum()
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
            let list = &mut outer.chains[producer].overwritable;
            list.push(Reverse((u64::from(index), index)));
        }
        outer.closings = buckets as u64;
        outer
    }
}
