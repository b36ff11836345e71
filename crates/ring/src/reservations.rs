//! Reservations: which closed buckets a dump's window still needs. [`Reservation`] is the dump's handle, and [`Entry`] what the outer
//! queue knows of it.
//!
//! A bucket is wanted where its times touch the window and it was not given back. That is compared where it is asked, so that a
//! bucket which closes or is overwritten costs one look at each window, and nothing at what dumps did before.

use std::{collections::HashMap, sync::Arc};

use crate::{
    BucketInfo, BucketRef, Evicted, EvictedBucket,
    outer::{Outer, Slot, State},
    ring::RingInner,
    storage::Storage,
    sync::lock,
};

/// Protects every closed bucket that touches an interval of packet time, now and later, until it is given back, the
/// reservation falls (record mode) or is dropped. Open buckets need no protection: they are never overwritten.
#[derive(Debug)]
pub struct Reservation {
    ring: Arc<RingInner>,
    id: u64,
    evicted_before: Evicted,
}

impl Reservation {
    pub(crate) fn new(ring: &Arc<RingInner>, from_ns: i64, to_ns: i64) -> Self {
        let (id, evicted_before) = lock(&ring.outer).reserve(from_ns, to_ns);
        Self {
            ring: Arc::clone(ring),
            id,
            evicted_before,
        }
    }

    /// Lists every bucket with committed records that touches the interval, open or closed, that was not given back:
    /// in place of what `out` held, by producer and then in the order of its records.
    pub fn buckets(&self, out: &mut Vec<BucketInfo>) {
        out.clear();
        lock(&self.ring.outer).buckets(self.id, &self.ring.storage, out);
    }

    /// This reservation needs a bucket no longer. No effect unless the bucket is closed: an open one may still get
    /// records of the interval.
    pub fn give_back(&self, bucket: BucketRef) {
        lock(&self.ring.outer).give_back(self.id, bucket);
        self.ring.storage.freed.notify();
    }

    /// Changes the interval, both ends included. Buckets given back stay so.
    pub fn set_interval(&self, from_ns: i64, to_ns: i64) {
        lock(&self.ring.outer).set_interval(self.id, from_ns, to_ns);
        self.ring.storage.freed.notify();
    }

    /// Takes what was overwritten although this reservation wanted it (record mode), and appends it to `out`. Each bucket
    /// is told once.
    pub fn fallen(&self, out: &mut Vec<EvictedBucket>) {
        lock(&self.ring.outer).fallen(self.id, out);
    }

    /// What of the interval was gone when the reservation was made: nothing falls between this and [`Self::fallen`].
    #[must_use]
    pub fn evicted_before(&self) -> &Evicted {
        &self.evicted_before
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        lock(&self.ring.outer).release(self.id);
        self.ring.storage.freed.notify();
    }
}

/// All reservations.
#[derive(Debug, Default)]
pub(crate) struct Reservations {
    /// Those that stand, oldest first, and so by number.
    standing: Vec<Entry>,
    /// The windows of `standing`: by themselves, because all are looked at for each bucket that closes.
    windows: Vec<Window>,
    /// Those that fell and are still asked what they lost, by number.
    fallen: Vec<Entry>,
    made: u64,
    /// Fallen since the start.
    pub(crate) fallen_count: u64,
}

/// Times that a reservation wants, both ends included.
#[derive(Debug, Clone, Copy)]
struct Window {
    from_ns: i64,
    to_ns: i64,
}

/// One reservation.
#[derive(Debug)]
struct Entry {
    id: u64,
    window: Window,
    /// By bucket, the number of its closing in the generation that was given back.
    given: HashMap<u32, u64>,
    /// Overwritten although they were wanted, and not told yet.
    lost: Vec<EvictedBucket>,
}

impl Window {
    const EMPTY: Self = Self {
        from_ns: i64::MAX,
        to_ns: i64::MIN,
    };

    #[inline]
    fn touches(self, min_ns: i64, max_ns: i64) -> bool {
        min_ns <= self.to_ns && max_ns >= self.from_ns && self.from_ns <= self.to_ns
    }
}

impl Entry {
    /// Whether it wants a bucket, whether it stands or not.
    fn wants(&self, index: usize, slot: &Slot) -> bool {
        slot.state == State::Closed
            && self.window.touches(slot.min_ns, slot.max_ns)
            && !self.has_given(index, slot)
    }

    fn has_given(&self, index: usize, slot: &Slot) -> bool {
        !self.given.is_empty() && self.given.get(&slot.bucket(index).index) == Some(&slot.closing)
    }

    /// Wants no bucket any more. Adds those that no reservation wants now to `unwanted`.
    fn give_up(&self, slots: &mut [Slot], unwanted: &mut Vec<u32>) {
        for (index, slot) in slots.iter_mut().enumerate() {
            if self.wants(index, slot) {
                slot.wanted -= 1;
                if slot.wanted == 0 {
                    unwanted.push(slot.bucket(index).index);
                }
            }
        }
    }
}

impl Reservations {
    /// A reservation that stands, by its place.
    fn standing_at(&self, id: u64) -> Option<usize> {
        self.standing
            .binary_search_by_key(&id, |entry| entry.id)
            .ok()
    }

    fn get(&mut self, id: u64) -> Option<&mut Entry> {
        let place = self.standing_at(id);
        let fallen = || self.fallen.binary_search_by_key(&id, |entry| entry.id);
        match place {
            Some(place) => self.standing.get_mut(place),
            None => fallen().ok().and_then(|place| self.fallen.get_mut(place)),
        }
    }

    /// A bucket of these times closes; how many standing reservations want it.
    pub(crate) fn closed(&self, min_ns: i64, max_ns: i64) -> u32 {
        let touches = |window: &Window| u32::from(window.touches(min_ns, max_ns));
        self.windows.iter().map(touches).sum()
    }

    /// A closed bucket that no standing reservation wants is overwritten: those that fell are told.
    pub(crate) fn evicted(&mut self, index: usize, slot: &Slot, bucket: &EvictedBucket) {
        for entry in &mut self.fallen {
            if entry.wants(index, slot) {
                entry.lost.push(bucket.clone());
            }
        }
    }

    /// Where the oldest standing reservation is that wants a bucket which `could` be overwritten but for it.
    pub(crate) fn oldest_in_the_way(
        &self,
        slots: &[Slot],
        could: impl Fn(usize, &Slot) -> bool,
    ) -> Option<usize> {
        let wanted = || slots.iter().filter(|slot| slot.wanted > 0);
        let min_ns = wanted().map(|slot| slot.min_ns).min()?;
        let max_ns = wanted().map(|slot| slot.max_ns).max()?;
        // Most windows that want nothing lie apart from all that is wanted.
        self.standing.iter().position(|entry| {
            let mut slots = slots.iter().enumerate();
            entry.window.touches(min_ns, max_ns)
                && slots.any(|(index, slot)| entry.wants(index, slot) && could(index, slot))
        })
    }

    /// The reservation at `place` protects nothing any more. Adds the buckets that no reservation wants now to `unwanted`.
    pub(crate) fn fall(&mut self, place: usize, slots: &mut [Slot], unwanted: &mut Vec<u32>) {
        self.fallen_count += 1;
        self.windows.remove(place);
        let entry = self.standing.remove(place);
        entry.give_up(slots, unwanted);
        let behind = self.fallen.partition_point(|other| other.id < entry.id);
        self.fallen.insert(behind, entry);
    }
}

/// Reservations, by their number.
impl Outer {
    /// Makes a reservation. Also returns what of its interval was overwritten before.
    pub(crate) fn reserve(&mut self, from_ns: i64, to_ns: i64) -> (u64, Evicted) {
        let reservations = &mut self.reservations;
        let id = reservations.made;
        reservations.made += 1;
        reservations.standing.push(Entry {
            id,
            window: Window::EMPTY,
            given: HashMap::new(),
            lost: Vec::new(),
        });
        reservations.windows.push(Window::EMPTY);
        self.set_interval(id, from_ns, to_ns);
        (id, self.evicted(from_ns, to_ns))
    }

    pub(crate) fn set_interval(&mut self, id: u64, from_ns: i64, to_ns: i64) {
        let window = Window { from_ns, to_ns };
        let Some(place) = self.reservations.standing_at(id) else {
            if let Some(fallen) = self.reservations.get(id) {
                fallen.window = window;
            }
            return;
        };
        let entry = &mut self.reservations.standing[place];
        entry.give_up(&mut self.slots, &mut self.unwanted);
        entry.window = window;
        self.reservations.windows[place] = window;
        for (index, slot) in self.slots.iter_mut().enumerate() {
            slot.wanted += u32::from(entry.wants(index, slot));
        }
        self.list_unwanted();
    }

    pub(crate) fn give_back(&mut self, id: u64, bucket: BucketRef) {
        let stands = self.reservations.standing_at(id).is_some();
        let Some(entry) = self.reservations.get(id) else {
            return;
        };
        let Some(slot) = self.slots.get_mut(bucket.index as usize) else {
            return;
        };
        if slot.state != State::Closed || slot.generation != bucket.generation {
            return;
        }
        let wants = entry.wants(bucket.index as usize, slot);
        entry.given.insert(bucket.index, slot.closing);
        if wants && stands {
            slot.wanted -= 1;
            self.unwanted.push(bucket.index);
            self.list_unwanted();
        }
    }

    pub(crate) fn release(&mut self, id: u64) {
        let reservations = &mut self.reservations;
        if let Some(place) = reservations.standing_at(id) {
            reservations.windows.remove(place);
            let entry = reservations.standing.remove(place);
            entry.give_up(&mut self.slots, &mut self.unwanted);
            self.list_unwanted();
        } else {
            reservations.fallen.retain(|entry| entry.id != id);
        }
    }

    pub(crate) fn buckets(&mut self, id: u64, storage: &Storage, out: &mut Vec<BucketInfo>) {
        let Some(entry) = self.reservations.get(id) else {
            return;
        };
        for (index, slot) in self.slots.iter().enumerate() {
            let given = slot.state == State::Closed && entry.has_given(index, slot);
            if !given
                && let Some(info) = slot.info(index, storage)
                && entry.window.touches(info.min_ns, info.max_ns)
            {
                out.push(info);
            }
        }
        out.sort_unstable_by_key(|info| (info.producer, info.first));
    }

    pub(crate) fn fallen(&mut self, id: u64, out: &mut Vec<EvictedBucket>) {
        if let Some(entry) = self.reservations.get(id) {
            out.append(&mut entry.lost);
        }
    }
}
