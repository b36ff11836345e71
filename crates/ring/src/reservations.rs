//! Reservations: the closed buckets that the windows of dumps and pins still need.
//!
//! A reservation wants a closed bucket whose times touch the window, unless the bucket was given
//! back, or read before the reservation was made. Each closed bucket has the number of reservations
//! that want it ([`Needs`]): found when the bucket closes (`windows.rs`), and corrected when a
//! reservation changes. So no producer visits all reservations.

use std::{collections::HashMap, sync::Arc};

use crate::{
    BucketInfo, BucketRef, Evicted, EvictedBucket,
    outer::{BucketSlot, BucketState, Outer},
    ring::RingInner,
    sync::{AtomicU64, Mutex, Ordering, lock},
    windows::{TimeWindow, WindowCounts},
};

/// Protects the closed buckets that touch an interval of ring time, now and later. The caller can
/// end the protection of a bucket, change the interval, or drop the reservation. In record mode, if
/// no other bucket can be overwritten, the ring may overwrite a protected bucket: then the
/// reservation has *fallen*. Open buckets are never overwritten.
#[derive(Debug)]
pub struct Reservation {
    ring: Arc<RingInner>,
    /// Locked before the mutex of the outer queue.
    state: Mutex<ReservationState>,
    evicted_before: Evicted,
}

/// The buckets that a reservation wants and has lost.
#[derive(Debug)]
struct ReservationState {
    window: TimeWindow,
    yields: bool,
    /// Buckets closed before the reservation was made.
    made_after: u64,
    /// Number of each producer's records that were read before the reservation was made; 0 for
    /// producers after the list.
    read: Vec<u64>,
    /// Buckets given back: the generation, by bucket index.
    given_back: HashMap<u32, u64>,
    /// Number of evictions that were compared with the window.
    compared: u64,
    /// Lost buckets that were not reported yet.
    lost: Vec<EvictedBucket>,
    /// The ring time, ns, up to which losses are unknown and not reported yet, because the log
    /// forgot evictions.
    unknown_before_ns: Option<i64>,
    /// A bucket is, or may be, lost.
    has_fallen: bool,
}

/// How many reservations want a closed bucket: those that yield, and those that do not.
pub(crate) type Needs = [usize; 2];

/// The outer queue's state of all reservations.
#[derive(Debug, Default)]
pub(crate) struct Reservations {
    /// The windows of the reservations that yield, and of those that do not.
    windows: [WindowCounts; 2],
    /// Reservations that are known to have fallen since the start.
    pub(crate) fallen_count: u64,
    /// The counter of [`Ring::reservation_news`](crate::Ring::reservation_news).
    pub(crate) news: Arc<AtomicU64>,
}

impl Reservation {
    pub(crate) fn new(ring: &Arc<RingInner>, from_ns: i64, to_ns: i64) -> Self {
        let mut reservation = Self::unread(ring, (Vec::new(), None), from_ns, to_ns);
        let mut evictions = lock(&reservation.state).compared;
        let window = TimeWindow::new(from_ns, to_ns);
        while evictions > 0 {
            let log = &lock(&ring.outer).log;
            evictions = log.add_evicted(window, evictions, &mut reservation.evicted_before);
        }
        let log = &lock(&ring.outer).log;
        log.add_forgotten(window, &mut reservation.evicted_before);
        reservation
    }

    /// Implements [`Ring::reserve_unread`](crate::Ring::reserve_unread).
    pub(crate) fn unread(
        ring: &Arc<RingInner>,
        (read, after): (Vec<u64>, Option<&Self>),
        from_ns: i64,
        to_ns: i64,
    ) -> Self {
        let state = ReservationState {
            window: TimeWindow::EMPTY,
            yields: false,
            made_after: lock(&ring.outer).closings,
            read,
            given_back: HashMap::new(),
            compared: u64::MAX,
            lost: Vec::new(),
            unknown_before_ns: None,
            has_fallen: false,
        };
        let reservation = Self {
            ring: Arc::clone(ring),
            state: Mutex::new(state),
            evicted_before: Evicted::NONE,
        };
        reservation.set_interval(from_ns, to_ns);
        // The walk may have missed buckets that were overwritten before it ended.
        let compared = match after {
            Some(after) => lock(&after.state).compared,
            None => lock(&ring.outer).log.evictions(),
        };
        lock(&reservation.state).compared = compared;
        reservation
    }

    /// Replaces the contents of `out` by the buckets, open or closed, that have committed records
    /// and whose times touch the interval. Omits closed buckets that this reservation does not
    /// protect. The order is by producer and then by record.
    pub fn buckets(&self, out: &mut Vec<BucketInfo>) {
        let state = lock(&self.state);
        let is_wanted = |index: usize, slot: &BucketSlot| {
            slot.state != BucketState::Closed || state.keeps(&slot.contents(index))
        };
        self.ring.buckets_within(state.window, is_wanted, out);
    }

    /// Ends the protection of a closed bucket. No effect on an open bucket, which may still get
    /// records of the interval.
    pub fn give_back(&self, bucket: BucketRef) {
        let state = &mut *lock(&self.state);
        let mut outer = lock(&self.ring.outer);
        let Some(slot) = outer.slots.get(bucket.index as usize) else {
            return;
        };
        if slot.state != BucketState::Closed || slot.generation != bucket.generation {
            return;
        }
        let contents = slot.contents(bucket.index as usize);
        // The comparison needs the generation that `given_back` is about to forget.
        state.catch_up(&mut outer);
        let was_wanted = state.wants(&contents);
        state.given_back.insert(bucket.index, bucket.generation);
        if was_wanted {
            outer.change_needs(bucket.index, |needs| needs[state.kind()] -= 1);
        }
        drop(outer);
        self.ring.storage.freed.notify();
    }

    /// Changes the interval of ring time, both ends included. Buckets given back stay given back.
    /// [`Self::fallen`] may miss a bucket that is overwritten during this call.
    pub fn set_interval(&self, from_ns: i64, to_ns: i64) {
        self.change(|state| state.window = TimeWindow::new(from_ns, to_ns));
    }

    /// Sets whether the ring overwrites the buckets of this reservation before the buckets of
    /// reservations that do not yield. A new reservation does not yield.
    pub fn set_yielding(&self, yields: bool) {
        self.change(|state| state.yields = yields);
    }

    /// Whether the ring overwrote, or may have overwritten, a bucket that this reservation wanted.
    #[must_use]
    pub fn has_fallen(&self) -> bool {
        let state = &mut *lock(&self.state);
        state.catch_up(&mut lock(&self.ring.outer));
        state.has_fallen
    }

    /// Appends to `out` the buckets that were overwritten although this reservation wanted them
    /// (record mode), each once, in the order of overwriting.
    ///
    /// Returns the ring time, ns, up to which buckets may be missing from the report, because the
    /// ring forgot them. Call this before the ring overwrites as many buckets as it remembers: 8192
    /// with [`EvictionDetail::Bounds`](crate::EvictionDetail::Bounds).
    #[must_use = "what the ring has forgotten may be missing"]
    pub fn fallen(&self, out: &mut Vec<EvictedBucket>) -> Option<i64> {
        let state = &mut *lock(&self.state);
        state.catch_up(&mut lock(&self.ring.outer));
        out.append(&mut state.lost);
        state.unknown_before_ns.take()
    }

    /// The packets that were overwritten before the reservation was made, of its first interval.
    /// Always empty after [`Ring::reserve_unread`](crate::Ring::reserve_unread).
    #[must_use]
    pub fn evicted_before(&self) -> &Evicted {
        &self.evicted_before
    }

    /// Changes the window or whether the reservation yields. Buckets that close from now on see the
    /// new state; a walk corrects the numbers of the buckets that closed before.
    fn change(&self, change: impl FnOnce(&mut ReservationState)) {
        let state = &mut *lock(&self.state);
        let mut outer = lock(&self.ring.outer);
        let closings = outer.closings;
        state.catch_up(&mut outer);
        let (before, kind_before) = (state.window, state.kind());
        change(state);
        let (after, kind) = (state.window, state.kind());
        if (before, kind_before) == (after, kind) {
            return;
        }
        let windows = &mut outer.reservations.windows;
        windows[kind_before].replace(before, TimeWindow::EMPTY);
        windows[kind].replace(TimeWindow::EMPTY, after);
        drop(outer);
        let from_ns = before.from_ns.min(after.from_ns);
        for producer in 0..self.ring.wait_sets.len() {
            self.ring.newest_first(producer, |outer, index| {
                let slot = &outer.slots[index];
                if slot.state != BucketState::Closed || slot.closing >= closings {
                    return true;
                }
                let bucket = slot.contents(index);
                if !slot.may_reach(from_ns) || state.had_read(&bucket) {
                    return false;
                }
                if state.keeps(&bucket) {
                    let count = |window: TimeWindow| usize::from(window.touches_bucket(&bucket));
                    outer.change_needs(bucket.bucket.index, |needs| {
                        needs[kind_before] -= count(before);
                        needs[kind] += count(after);
                    });
                }
                true
            });
        }
        self.ring.storage.freed.notify();
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.change(|state| state.window = TimeWindow::EMPTY);
    }
}

impl ReservationState {
    /// The place of this reservation in [`Needs`].
    fn kind(&self) -> usize {
        usize::from(!self.yields)
    }

    fn wants(&self, bucket: &EvictedBucket) -> bool {
        self.window.touches_bucket(bucket) && self.keeps(bucket)
    }

    /// Whether a closed bucket was neither given back nor read before.
    fn keeps(&self, bucket: &EvictedBucket) -> bool {
        let BucketRef { index, generation } = bucket.bucket;
        self.given_back.get(&index) != Some(&generation) && !self.had_read(bucket)
    }

    fn had_read(&self, bucket: &EvictedBucket) -> bool {
        let read = self.read.get(bucket.producer).copied().unwrap_or(0);
        bucket.closing < self.made_after && bucket.first + u64::from(bucket.packets) <= read
    }

    /// Compares the new evictions with the window. Must be called before the window or the set of
    /// given-back buckets changes.
    fn catch_up(&mut self, outer: &mut Outer) {
        let log = &outer.log;
        for gone in log.since(self.compared) {
            if gone.is_needed && self.wants(gone) {
                self.lost.push(gone.clone());
            }
        }
        if log.has_forgotten(self.compared) {
            let unknown_before_ns = log.unknown_before_ns(self.window);
            self.unknown_before_ns = self.unknown_before_ns.max(unknown_before_ns);
        }
        self.compared = log.evictions();
        if !self.has_fallen && (!self.lost.is_empty() || self.unknown_before_ns.is_some()) {
            self.has_fallen = true;
            outer.reservations.fallen_count += 1;
        }
    }
}

impl Reservations {
    /// How many reservations want a bucket with these times that closes now.
    pub(crate) fn needs(&self, min_ns: i64, max_ns: i64) -> Needs {
        (self.windows.each_ref()).map(|windows| windows.touching(min_ns, max_ns))
    }

    pub(crate) fn bump_news(&self) {
        self.news.fetch_add(1, Ordering::Release); // N: pairs with Ring::reservation_news()
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Mode, RingConfig,
        outer::{
            Obstacle, PIECE,
            tests::{closed, processor_ns},
        },
        storage::Storage,
    };

    const BUCKETS: u32 = 65_535;

    /// The median and the 99th percentile of the steps' processor times, ns.
    fn steps_ns(steps: impl Iterator<Item = u32>, mut step: impl FnMut(u32)) -> (i64, i64) {
        let mut times_ns = Vec::new();
        for number in steps {
            let start_ns = processor_ns();
            step(number);
            times_ns.push(processor_ns() - start_ns);
        }
        times_ns.sort_unstable();
        let last = times_ns.len() - 1;
        (times_ns[last / 2], times_ns[last * 99 / 100])
    }

    /// Inserters wait while another thread has the mutex, so each step of a reservation must be
    /// short, and a search among wanted buckets too.
    #[test]
    fn a_window_of_the_whole_ring_takes_the_mutex_for_a_moment() {
        let config = RingConfig {
            prefault: false,
            ..RingConfig::new(16 << 20, 1, 0)
        };
        let (storage, _) = Storage::new(config.geometry().unwrap(), &config, None).unwrap();
        let storage = Arc::new(storage);
        let whole = TimeWindow::new(0, i64::MAX);
        for producers in [1, 16] {
            let mut outer = closed(BUCKETS as usize, producers);
            let windows = steps_ns(0..500, |_| {
                outer.reservations.windows[1].replace(TimeWindow::EMPTY, whole);
            });
            let pieces = || (0..BUCKETS).step_by(PIECE).rev();
            let count = |outer: &mut Outer, first: u32, change: fn(&mut Needs)| {
                let end = first + u32::try_from(PIECE).unwrap();
                let piece = first..BUCKETS.min(end);
                piece.for_each(|index| outer.change_needs(index, change));
            };
            let opening = steps_ns(pieces(), |first| {
                count(&mut outer, first, |needs| needs[1] += 1);
            });
            let search = steps_ns(0..500, |_| {
                match outer.take(&storage, Mode::Wait, true) {
                    Ok(claimed) => panic!("{claimed:?} is reserved"),
                    Err(obstacle) => assert!(matches!(obstacle, Obstacle::Blocked { .. })),
                };
            });
            let ending = steps_ns(pieces(), |first| {
                count(&mut outer, first, |needs| needs[1] -= 1);
            });
            eprintln!(
                "{producers} producers, ns: windows {windows:?}, opening {opening:?}, search {search:?}, ending {ending:?}"
            );
            // The 99th percentile is larger if other programs use the caches.
            for (median_ns, _) in [windows, opening, search, ending] {
                // Sanitizers slow each access.
                assert!(
                    cfg!(retroscope_sanitize) || median_ns <= 50_000,
                    "{median_ns} ns"
                );
            }
        }
    }
}
