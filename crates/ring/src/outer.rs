//! The outer queue: which buckets are free, open and closed, and which one is next to be overwritten.
//!
//! One mutex around this, taken once for each bucket that is filled, and by whoever asks about the past. Holds and
//! positions of gating groups change without it.

use std::sync::Arc;

use crate::{
    BucketInfo, BucketRef, Evicted, EvictedBucket, EvictionDetail, Mode,
    evicted::Victim,
    group::Group,
    log::Log,
    storage::{Claimed, OpenBucket, Storage},
    sync::Ordering,
};

/// See the module.
#[derive(Debug)]
pub(crate) struct Outer {
    /// Buckets never used, last one first.
    free: Vec<u32>,
    slots: Vec<Slot>,
    /// The largest time of each closed bucket; apart from the slots, so that a search for the smallest stays in cache.
    last_ns: Vec<i64>,
    log: Log,
    /// Oldest first.
    reservations: Vec<Claim>,
    reservations_made: u64,
    reservations_fallen: u64,
    /// Groups that must have passed a bucket before it is overwritten.
    pub(crate) gating: Vec<Arc<Group>>,
    /// Buckets closed ever.
    closings: u64,
    pub(crate) producers_opened: usize,
    /// Beds (see `sleep.rs`) that no reader has: as many readers may still be opened.
    pub(crate) beds_free: Vec<usize>,
}

/// What the outer queue knows about a bucket.
#[derive(Debug, Clone, Copy)]
struct Slot {
    state: State,
    generation: u64,
    producer: usize,
    sequence: u64,
    first: u64,
    first_bytes: u64,
    /// The rest is known of closed buckets only.
    packets: u32,
    bytes: u64,
    min_ns: i64,
    max_ns: i64,
    /// `Outer::closings` when it closed: decides between equal times.
    closing: u64,
    /// Standing reservations that want it.
    wanted: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Free,
    Open,
    Closed,
}

/// One reservation.
#[derive(Debug)]
struct Claim {
    id: u64,
    from_ns: i64,
    to_ns: i64,
    /// Closed buckets that touch the interval and were not given back, also after it fell.
    wants: Bits,
    /// Closed buckets that were given back.
    given: Bits,
    /// It did not fall.
    stands: bool,
    lost: Vec<EvictedBucket>,
}

/// Answer to a producer that needs a bucket.
#[derive(Debug)]
pub(crate) enum Taken<'s> {
    Bucket(Claimed<'s>),
    /// None is free: one would have to be overwritten.
    NoneFree,
    /// None may be overwritten now. `gated`: one will be when a gating group has passed it.
    Blocked {
        gated: bool,
    },
}

/// Where a reader without a bucket goes on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) bucket: BucketRef,
    /// The producer's records and captured bytes before this bucket.
    pub(crate) first: u64,
    pub(crate) first_bytes: u64,
}

/// Sums over all buckets.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) free: usize,
    pub(crate) open: usize,
    pub(crate) closed: usize,
    pub(crate) reserved: usize,
    pub(crate) span_ns: Option<(i64, i64)>,
    pub(crate) evicted: (u64, u64),
    pub(crate) reservations_fallen: u64,
}

impl Outer {
    pub(crate) fn new(buckets: usize, readers: usize, detail: EvictionDetail) -> Self {
        let slot = Slot {
            state: State::Free,
            generation: 0,
            producer: 0,
            sequence: 0,
            first: 0,
            first_bytes: 0,
            packets: 0,
            bytes: 0,
            min_ns: i64::MAX,
            max_ns: i64::MIN,
            closing: 0,
            wanted: 0,
        };
        let count = u32::try_from(buckets).expect("a geometry has at most 65,535 buckets");
        Self {
            free: (0..count).rev().collect(),
            slots: vec![slot; buckets],
            last_ns: vec![i64::MAX; buckets],
            log: Log::new(detail),
            reservations: Vec::new(),
            reservations_made: 0,
            reservations_fallen: 0,
            gating: Vec::new(),
            closings: 0,
            producers_opened: 0,
            beds_free: (0..readers).rev().collect(),
        }
    }

    /// Finds a bucket for a producer: a free one, else, if `overwrite`, the closed one with the smallest largest time
    /// that every gating group has passed, nobody holds and no reservation wants. In record mode the oldest reservations
    /// fall until there is one.
    pub(crate) fn take<'s>(
        &mut self,
        storage: &'s Arc<Storage>,
        mode: Mode,
        overwrite: bool,
    ) -> Taken<'s> {
        if let Some(index) = self.free.pop() {
            let claimed = Claimed::claim(storage, index as usize);
            return Taken::Bucket(claimed.expect("nobody can hold a free bucket"));
        }
        if !overwrite {
            return Taken::NoneFree;
        }
        loop {
            if let Some(claimed) = self.victim(storage) {
                self.evict(&claimed);
                return Taken::Bucket(claimed);
            }
            if mode != Mode::Record || !self.let_one_fall(storage) {
                break;
            }
        }
        let gated = self
            .slots
            .iter()
            .any(|slot| slot.state == State::Closed && !self.passed(slot));
        Taken::Blocked { gated }
    }

    /// A claimed bucket was opened.
    pub(crate) fn opened(&mut self, open: &OpenBucket) {
        let BucketRef { index, generation } = open.bucket();
        let slot = &mut self.slots[index as usize];
        slot.state = State::Open;
        slot.generation = generation;
        slot.producer = open.opening().producer;
        slot.sequence = open.opening().sequence;
        slot.first = open.opening().first;
        slot.first_bytes = open.opening().first_bytes;
    }

    /// Closes a bucket, everything in which was published.
    pub(crate) fn close(&mut self, open: OpenBucket, next: Option<BucketRef>) {
        let index = open.bucket().index as usize;
        let (min_ns, max_ns) = open.span_ns();
        let slot = &mut self.slots[index];
        slot.state = State::Closed;
        slot.packets =
            u32::try_from(open.end() - slot.first).expect("a bucket has at most 2^27 descriptors");
        slot.bytes = open.end_bytes() - slot.first_bytes;
        slot.min_ns = min_ns;
        slot.max_ns = max_ns;
        slot.closing = self.closings;
        slot.wanted = 0;
        self.closings += 1;
        self.last_ns[index] = max_ns;
        for claim in &mut self.reservations {
            if claim.touches(min_ns, max_ns) {
                claim.wants.set(index);
                slot.wanted += u32::from(claim.stands);
            }
        }
        open.close(next);
    }

    /// Where a reader that has seen a producer's records before `position` goes on: the producer's oldest bucket with
    /// later ones. `None`: the producer has none left.
    pub(crate) fn place(&self, producer: usize, position: u64) -> Option<Place> {
        let later = |slot: &&Slot| match slot.state {
            State::Free => false,
            State::Open => slot.producer == producer,
            State::Closed => {
                slot.producer == producer && slot.first + u64::from(slot.packets) > position
            }
        };
        let mine = self
            .slots
            .iter()
            .enumerate()
            .filter(|(_, slot)| later(slot));
        let (index, slot) = mine.min_by_key(|(_, slot)| slot.sequence)?;
        Some(Place {
            bucket: slot.bucket(index),
            first: slot.first,
            first_bytes: slot.first_bytes,
        })
    }

    pub(crate) fn evicted(&self, from_ns: i64, to_ns: i64) -> Evicted {
        self.log.evicted(from_ns, to_ns)
    }

    pub(crate) fn tally(&self, storage: &Storage) -> Tally {
        let mut tally = Tally {
            evicted: self.log.totals(),
            reservations_fallen: self.reservations_fallen,
            ..Tally::default()
        };
        for (index, slot) in self.slots.iter().enumerate() {
            match slot.state {
                State::Free => tally.free += 1,
                State::Open => tally.open += 1,
                State::Closed => tally.closed += 1,
            }
            tally.reserved += usize::from(slot.state == State::Closed && slot.wanted > 0);
            if let Some(info) = slot.info(index, storage) {
                let (oldest, newest) = tally.span_ns.unwrap_or((info.min_ns, info.max_ns));
                tally.span_ns = Some((oldest.min(info.min_ns), newest.max(info.max_ns)));
            }
        }
        tally
    }

    fn victim<'s>(&self, storage: &'s Arc<Storage>) -> Option<Claimed<'s>> {
        let mut tried: Option<(i64, u64)> = None;
        loop {
            let mut best: Option<((i64, u64), usize)> = None;
            for (index, &last_ns) in self.last_ns.iter().enumerate() {
                if best.is_some_and(|((best_ns, _), _)| last_ns > best_ns) {
                    continue;
                }
                let slot = &self.slots[index];
                let key = (last_ns, slot.closing);
                let better = best.is_none_or(|(best, _)| key < best)
                    && tried.is_none_or(|tried| key > tried);
                if better && slot.state == State::Closed && slot.wanted == 0 && self.passed(slot) {
                    best = Some((key, index));
                }
            }
            let (key, index) = best?;
            if let Some(claimed) = Claimed::claim(storage, index) {
                return Some(claimed);
            }
            tried = Some(key); // held: the next older one
        }
    }

    /// Every gating group has seen all of a closed bucket.
    fn passed(&self, slot: &Slot) -> bool {
        let end = slot.first + u64::from(slot.packets);
        self.gating
            .iter()
            .all(|group| group.position(slot.producer) >= end)
    }

    /// The oldest reservation that keeps a bucket which could otherwise be overwritten loses its protection.
    fn let_one_fall(&mut self, storage: &Storage) -> bool {
        let in_the_way = |claim: &Claim, outer: &Self| {
            claim.stands
                && outer.slots.iter().enumerate().any(|(index, slot)| {
                    claim.wants.get(index)
                        && slot.state == State::Closed
                        && outer.passed(slot)
                        && !storage.bucket(index).control.is_held()
                })
        };
        let Some(oldest) = self
            .reservations
            .iter()
            .position(|claim| in_the_way(claim, self))
        else {
            return false;
        };
        let claim = &mut self.reservations[oldest];
        claim.stands = false;
        for (index, slot) in self.slots.iter_mut().enumerate() {
            slot.wanted -= u32::from(claim.wants.get(index));
        }
        self.reservations_fallen += 1;
        true
    }

    /// Remembers what a claimed bucket held, and tells the reservations that wanted it.
    fn evict(&mut self, claimed: &Claimed<'_>) {
        let index = claimed.bucket().index as usize;
        let slot = &mut self.slots[index];
        let victim = Victim {
            bucket: slot.bucket(index),
            producer: slot.producer,
            first: slot.first,
            packets: slot.packets,
            bytes: slot.bytes,
            min_ns: slot.min_ns,
            max_ns: slot.max_ns,
        };
        slot.state = State::Free;
        self.last_ns[index] = i64::MAX;
        let entry = self.log.add(victim, |record| claimed.old_time_ns(record));
        for claim in &mut self.reservations {
            if claim.wants.get(index) {
                claim.lost.push(
                    entry
                        .cloned()
                        .unwrap_or_else(|| victim.with_stamps(Vec::new())),
                );
            }
            claim.wants.clear(index);
            claim.given.clear(index);
        }
    }
}

/// Reservations.
impl Outer {
    /// Makes a reservation; also tells what of its interval is gone already.
    pub(crate) fn reserve(&mut self, from_ns: i64, to_ns: i64) -> (u64, Evicted) {
        let id = self.reservations_made;
        self.reservations_made += 1;
        let buckets = self.slots.len();
        self.reservations.push(Claim {
            id,
            from_ns,
            to_ns,
            wants: Bits::new(buckets),
            given: Bits::new(buckets),
            stands: true,
            lost: Vec::new(),
        });
        self.set_interval(id, from_ns, to_ns);
        (id, self.evicted(from_ns, to_ns))
    }

    pub(crate) fn set_interval(&mut self, id: u64, from_ns: i64, to_ns: i64) {
        let Some(claim) = self.reservations.iter_mut().find(|claim| claim.id == id) else {
            return;
        };
        (claim.from_ns, claim.to_ns) = (from_ns, to_ns);
        for (index, slot) in self.slots.iter_mut().enumerate() {
            if slot.state != State::Closed {
                continue;
            }
            let before = claim.wants.get(index);
            let now = claim.touches(slot.min_ns, slot.max_ns) && !claim.given.get(index);
            if before && !now {
                claim.wants.clear(index);
                slot.wanted -= u32::from(claim.stands);
            } else if now && !before {
                claim.wants.set(index);
                slot.wanted += u32::from(claim.stands);
            }
        }
    }

    pub(crate) fn give_back(&mut self, id: u64, bucket: BucketRef) {
        let Some(claim) = self.reservations.iter_mut().find(|claim| claim.id == id) else {
            return;
        };
        let index = bucket.index as usize;
        let Some(slot) = self.slots.get_mut(index) else {
            return;
        };
        if slot.state != State::Closed || slot.generation != bucket.generation {
            return;
        }
        claim.given.set(index);
        if claim.wants.get(index) {
            claim.wants.clear(index);
            slot.wanted -= u32::from(claim.stands);
        }
    }

    pub(crate) fn release(&mut self, id: u64) {
        let Some(place) = self.reservations.iter().position(|claim| claim.id == id) else {
            return;
        };
        let claim = self.reservations.remove(place);
        for (index, slot) in self.slots.iter_mut().enumerate() {
            slot.wanted -= u32::from(claim.stands && claim.wants.get(index));
        }
    }

    pub(crate) fn buckets(&self, id: u64, storage: &Storage, out: &mut Vec<BucketInfo>) {
        let Some(claim) = self.reservations.iter().find(|claim| claim.id == id) else {
            return;
        };
        for (index, slot) in self.slots.iter().enumerate() {
            let given = slot.state == State::Closed && claim.given.get(index);
            if !given
                && let Some(info) = slot.info(index, storage)
                && claim.touches(info.min_ns, info.max_ns)
            {
                out.push(info);
            }
        }
        out.sort_unstable_by_key(|info| (info.producer, info.first));
    }

    pub(crate) fn fallen(&mut self, id: u64, out: &mut Vec<EvictedBucket>) {
        if let Some(claim) = self.reservations.iter_mut().find(|claim| claim.id == id) {
            out.append(&mut claim.lost);
        }
    }
}

impl Slot {
    fn bucket(&self, index: usize) -> BucketRef {
        BucketRef {
            index: u32::try_from(index).expect("at most 65,535 buckets"),
            generation: self.generation,
        }
    }

    /// `None`: nothing was committed in it.
    fn info(&self, index: usize, storage: &Storage) -> Option<BucketInfo> {
        let (committed, min_ns, max_ns, closed) = match self.state {
            State::Free => return None,
            State::Closed => (self.packets, self.min_ns, self.max_ns, true),
            State::Open => {
                let header = storage.bucket(index);
                let committed = header.committed.load(Ordering::Acquire); // pairs with P1: the span covers these
                let committed =
                    u32::try_from(committed).expect("a bucket has at most 2^27 descriptors");
                let min_ns = header.min_ns.load(Ordering::Relaxed); // ordered by `committed`; may be newer
                let max_ns = header.max_ns.load(Ordering::Relaxed); // as above
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

impl Claim {
    fn touches(&self, min_ns: i64, max_ns: i64) -> bool {
        min_ns <= self.to_ns && max_ns >= self.from_ns && self.from_ns <= self.to_ns
    }
}

/// A set of bucket numbers.
#[derive(Debug)]
struct Bits(Vec<u64>);

impl Bits {
    fn new(length: usize) -> Self {
        Self(vec![0; length.div_ceil(64)])
    }

    fn get(&self, index: usize) -> bool {
        self.0[index / 64] & (1 << (index % 64)) != 0
    }

    fn set(&mut self, index: usize) {
        self.0[index / 64] |= 1 << (index % 64);
    }

    fn clear(&mut self, index: usize) {
        self.0[index / 64] &= !(1 << (index % 64));
    }
}
