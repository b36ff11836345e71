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
        let mut outer = lock(&ring.outer);
        let reservations = &mut outer.reservations;
        let id = reservations.made;
        reservations.made += 1;
        reservations.standing.push(Entry {
            id,
            window: Window::EMPTY,
            given: HashMap::new(),
            lost: Vec::new(),
        });
        reservations.windows.push(Window::EMPTY);
        outer.set_interval(id, Window { from_ns, to_ns });
        Self {
            ring: Arc::clone(ring),
            id,
            evicted_before: outer.evicted(from_ns, to_ns),
        }
    }

    /// Lists every bucket with committed records that touches the interval, open or closed, that was not given back:
    /// in place of what `out` held, by producer and then in the order of its records.
    pub fn buckets(&self, out: &mut Vec<BucketInfo>) {
        out.clear();
        let outer = lock(&self.ring.outer);
        let Some(entry) = outer.reservations.get(self.id) else {
            return;
        };
        for (index, slot) in outer.by_producer() {
            let given = slot.state == State::Closed && entry.has_given(index, slot);
            if !given
                && let Some(info) = slot.info(index, &self.ring.storage)
                && entry.window.touches(info.min_ns, info.max_ns)
            {
                out.push(info);
            }
        }
    }

    /// This reservation needs a bucket no longer. No effect unless the bucket is closed: an open one may still get
    /// records of the interval.
    pub fn give_back(&self, bucket: BucketRef) {
        let index = bucket.index as usize;
        let mut outer = lock(&self.ring.outer);
        let Outer {
            slots,
            reservations,
            unwanted,
            ..
        } = &mut *outer;
        let stands = reservations.standing_at(self.id).is_some();
        let entry = reservations.get_mut(self.id);
        let (Some(entry), Some(slot)) = (entry, slots.get_mut(index)) else {
            return;
        };
        if slot.state != State::Closed || slot.generation != bucket.generation {
            return;
        }
        let wants = entry.wants(index, slot);
        entry.given.insert(bucket.index, slot.closing);
        if wants && stands {
            slot.wanted -= 1;
            unwanted.push(bucket.index);
            outer.list_unwanted();
        }
        drop(outer);
        self.ring.storage.freed.notify();
    }

    /// Changes the interval, both ends included. Buckets given back stay so.
    pub fn set_interval(&self, from_ns: i64, to_ns: i64) {
        lock(&self.ring.outer).set_interval(self.id, Window { from_ns, to_ns });
        self.ring.storage.freed.notify();
    }

    /// Takes what was overwritten although this reservation wanted it (record mode), and appends it to `out`. Each bucket
    /// is told once.
    pub fn fallen(&self, out: &mut Vec<EvictedBucket>) {
        if let Some(entry) = lock(&self.ring.outer).reservations.get_mut(self.id) {
            out.append(&mut entry.lost);
        }
    }

    /// What of the interval was gone when the reservation was made: nothing falls between this and [`Self::fallen`].
    #[must_use]
    pub fn evicted_before(&self) -> &Evicted {
        &self.evicted_before
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut outer = lock(&self.ring.outer);
        let reservations = &mut outer.reservations;
        if let Some(place) = reservations.standing_at(self.id) {
            reservations.windows.remove(place);
            let entry = reservations.standing.remove(place);
            let outer = &mut *outer;
            entry.give_up(&mut outer.slots, &mut outer.unwanted);
            outer.list_unwanted();
        } else {
            reservations.fallen.retain(|entry| entry.id != self.id);
        }
        drop(outer);
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

    fn get(&self, id: u64) -> Option<&Entry> {
        let fallen = || self.fallen.binary_search_by_key(&id, |entry| entry.id);
        match self.standing_at(id) {
            Some(place) => self.standing.get(place),
            None => self.fallen.get(fallen().ok()?),
        }
    }

    fn get_mut(&mut self, id: u64) -> Option<&mut Entry> {
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

impl Outer {
    fn set_interval(&mut self, id: u64, window: Window) {
        let Some(place) = self.reservations.standing_at(id) else {
            if let Some(fallen) = self.reservations.get_mut(id) {
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
}
