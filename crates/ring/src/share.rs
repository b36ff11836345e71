//! How the members of a group share buckets: each takes the next bucket of any producer, so that one busy producer keeps all
//! of them busy. Without locks; a member that is preempted keeps back its own bucket and nothing else.
//!
//! For every producer exactly one member *follows*: it has the newest bucket that the group has taken, reads it also while
//! it is open, and goes on to its successor. The bucket's name stands in the producer's *tail* word. Whoever exchanges the
//! name for that of the successor takes the successor, and follows from then on:
//!
//! ```text
//! follower, at the end of its closed bucket B     tail: B → C;  fails: another member has C, and the follower is done here
//! member without records, B closed                mark = end of B;  starts += 1;  tail: B → C;  fails: mark = none
//! ```
//!
//! The successor is held before the exchange, so that what was taken is there. A name has a generation and never comes
//! back. Where the successor was overwritten, the tail is exchanged for none: the new follower finds its place under the
//! outer mutex, and counts what was missed behind B. So lapped records are counted once in a group.
//!
//! | edge | store | load | what it carries |
//! |---|---|---|---|
//! | N | the exchange of a tail, and its store | the exchange, and the look at it | the taker's mark and its `start` |
//! | M, Q | `Group::start`, `Group::set_mark` | `Group::position` | see there |
//!
//! A member that has no records looks at the tails of the others' producers, which takes no hold unless one is closed. A
//! member that hands out records, sees that more buckets wait, and that a peer sleeps, wakes one peer.
//!
//! When a member is dropped, what it had not handed out yet becomes an *orphan*: the lane with its cursor and hold, which
//! the next member without records adopts. What it had handed out is done, whatever the member made of it.

use std::sync::Arc;

use crate::{
    BucketRef,
    cursor::Cursor,
    group::{Group, Lane},
    sleep::Beds,
    storage::{Hold, Link, Storage},
    sync::{AtomicU64, AtomicUsize, Mutex, Ordering, Padded, lock},
};

/// See the module.
#[derive(Debug)]
pub(crate) struct Share {
    /// By producer: the [`Link`] to the bucket that its follower has; 0: none.
    tails: Box<[Padded<AtomicU64>]>,
    orphans: Mutex<Vec<Cursor>>,
    orphan_count: AtomicUsize,
    /// Bit `n`: a member whose number modulo 64 is `n` sleeps, and would rather help. Not exact.
    idle: AtomicU64,
    beds: Arc<Beds>,
    /// By member: its bed.
    bed_numbers: Box<[usize]>,
}

impl Share {
    pub(crate) fn new(producers: usize, beds: &Arc<Beds>, bed_numbers: &[usize]) -> Self {
        Self {
            tails: (0..producers).map(|_| Padded(AtomicU64::new(0))).collect(),
            orphans: Mutex::new(Vec::with_capacity(producers * bed_numbers.len())),
            orphan_count: AtomicUsize::new(0),
            idle: AtomicU64::new(0),
            beds: Arc::clone(beds),
            bed_numbers: bed_numbers.into(),
        }
    }

    /// Exchanges a bucket at its end for the successor, or for none; `false`: another member was first.
    pub(crate) fn go_on(&self, producer: usize, from: BucketRef, to: Option<BucketRef>) -> bool {
        let (from, to) = (Link::to(from).0, to.map_or(0, |to| Link::to(to).0));
        // N: Release for what the taker did before; Acquire, so that who fails sees what the taker did.
        self.tails[producer]
            .0
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// Follower, after it had none: says which bucket it has.
    pub(crate) fn found(&self, producer: usize, bucket: BucketRef) {
        self.tails[producer]
            .0
            .store(Link::to(bucket).0, Ordering::Release); // pairs with N
    }

    /// Takes what comes behind a producer's newest taken bucket, if that is closed and was continued.
    pub(crate) fn take(&self, lane: Lane, group: &Group, storage: &Arc<Storage>) -> Option<Cursor> {
        let tail = self.waiting(lane.producer, storage)?;
        let hold = Hold::new(storage, tail.target()?)?;
        if !hold.header().control.is_closed() {
            return None; // the look was at another generation
        }
        let next = hold.next()?;
        let cursor = Cursor::behind(lane, &hold, Hold::new(storage, next));
        // Before others can see it: N carries it to whoever then finds that its own part is at its end.
        group.start(lane, cursor.position);
        let to = cursor.hold.as_ref().map(Hold::bucket);
        if self.go_on(lane.producer, hold.bucket(), to) {
            return Some(cursor);
        }
        group.end(lane); // somebody was first
        None
    }

    /// Whether a member without records could find some; a guess.
    pub(crate) fn has_work(&self, storage: &Storage) -> bool {
        let mut producers = 0..self.tails.len();
        self.has_orphans() || producers.any(|producer| self.waiting(producer, storage).is_some())
    }

    /// A member leaves something to the others. Wakes them.
    pub(crate) fn abandon(&self, cursors: impl Iterator<Item = Cursor>) {
        let mut orphans = lock(&self.orphans);
        orphans.extend(cursors);
        self.orphan_count.store(orphans.len(), Ordering::Relaxed); // a hint; whoever misses it is woken below
        drop(orphans);
        for &bed in &self.bed_numbers {
            self.beds.wake(bed);
        }
    }

    fn has_orphans(&self) -> bool {
        self.orphan_count.load(Ordering::Relaxed) != 0 // a hint: the mutex decides
    }

    pub(crate) fn adopt(&self) -> Option<Cursor> {
        if !self.has_orphans() {
            return None;
        }
        let mut orphans = lock(&self.orphans);
        let cursor = orphans.pop();
        self.orphan_count.store(orphans.len(), Ordering::Relaxed); // as in abandon()
        cursor
    }

    /// The last member is gone: gives up the holds.
    pub(crate) fn forget_orphans(&self) {
        lock(&self.orphans).clear();
    }

    /// Member, about to sleep.
    pub(crate) fn offer(&self, row: usize) {
        self.idle.fetch_or(idle_bit(row), Ordering::Relaxed); // a hint: a peer that misses it tries again
    }

    /// Wakes one member that offered itself, if there is one and the producer has more than one bucket to read.
    pub(crate) fn call_peer(&self, producer: usize, storage: &Storage) {
        let mut idle = self.idle.load(Ordering::Relaxed); // a hint
        if idle == 0 || self.waiting(producer, storage).is_none() {
            return;
        }
        while idle != 0 {
            let first = idle.trailing_zeros() as usize;
            let bit = idle_bit(first);
            let mine = self.idle.fetch_and(!bit, Ordering::Relaxed) & bit != 0;
            let mut beds = self.bed_numbers.iter().skip(first).step_by(64);
            if mine && beds.any(|&bed| self.beds.wake_if_asleep(bed)) {
                return;
            }
            idle &= !bit;
        }
    }

    /// The tail of a producer, if its bucket is closed and has a successor: seen without holding it.
    fn waiting(&self, producer: usize, storage: &Storage) -> Option<Link> {
        let tail = Link(self.tails[producer].0.load(Ordering::Acquire)); // pairs with N
        let bucket = tail.target()?;
        let header = storage.bucket(bucket.index as usize);
        let more = header.control.is_closed() && header.next.load(Ordering::Relaxed) != 0; // a guess: no hold
        more.then_some(tail)
    }
}

fn idle_bit(row: usize) -> u64 {
    1 << (row % u64::BITS as usize)
}
