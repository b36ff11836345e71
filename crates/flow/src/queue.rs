//! A priority queue of times that usually inserts, peeks and extracts in constant time. In exchange
//! it does not order times within a slot.
//!
//! The queue is R-Scope's multiresolution priority queue (Ros-Giralt et al. 2018, "Algorithms and
//! data structures to accelerate network analysis", section 2.5). Time is divided into slots. A
//! slot is an unordered vector of entries, and bit masks show which slots have entries.
//!
//! Near times have narrow slots, far times have wide slots. An entry stays in its slot. Entries
//! beyond the widest slots wait in a separate list. When the earliest entry of this list is next,
//! the queue inserts the whole list again.
//!
//! An insertion or extraction in a slot touches the end of one vector and the bit masks. A heap
//! misses the cache once for each of its lower levels.
//!
//! Entries are not deleted: the caller must check each extracted entry.

mod slots;
#[cfg(test)]
mod tests;

use slots::{FilledSlot, SlotRing};

use crate::table::RESOLUTIONS;

/// An entry of the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimerEntry {
    /// The due time in the caller's unit.
    pub stamp: u64,
    /// The caller's identifier.
    pub item: u32,
}

/// A queue of time-outs for the flow table.
pub trait Timers {
    /// An empty queue for the time-outs of flows.
    fn empty() -> Self;
    /// Entries in the queue.
    fn len(&self) -> usize;
    /// Whether the queue has no entries.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Adds an entry. If the stamp is before the time of a [`MultiresolutionQueue`], the entry is
    /// due now, and keeps its stamp.
    fn insert(&mut self, entry: TimerEntry);
    /// Takes out one of the earliest entries, if it is due at the time `now`. A
    /// [`MultiresolutionQueue`] waits until the slot of the entry has passed.
    fn extract_due(&mut self, now: u64) -> Option<TimerEntry>;
    /// Takes out one of the earliest entries, due or not. The time of a [`MultiresolutionQueue`]
    /// moves only if its separate list must be inserted again.
    fn extract_early(&mut self) -> Option<TimerEntry>;
    /// Moves the time of the queue forward to `now`, which determines the slots of later
    /// insertions. A [`MultiresolutionQueue`] stops at the slot of its earliest entry.
    fn advance(&mut self, now: u64);
    /// Bytes allocated for slots and entries.
    fn memory_bytes(&self) -> usize;
}

/// The slots of one width.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimerResolution {
    /// A slot is `1 << bits` wide, in the unit of the stamps. At most 63.
    pub bits: u32,
    /// Number of slots: a power of two, 1 to 4096.
    pub slots: usize,
}

/// A queue with slots of several widths. Its time never goes back.
#[derive(Debug, Clone)]
pub struct MultiresolutionQueue {
    /// From the finest slots to the widest.
    levels: Vec<SlotRing>,
    /// Entries that were beyond the window of the widest slots when they were inserted.
    far: Vec<TimerEntry>,
    /// An entry of `far` with the lowest stamp.
    far_first: Option<TimerEntry>,
    now: u64,
    len: usize,
}

impl MultiresolutionQueue {
    /// An empty queue, at time 0. An entry gets the first of these resolutions whose slots reach to
    /// its stamp.
    ///
    /// # Panics
    /// If there is no resolution, if a resolution is not coarser than the resolution before, or if
    /// a resolution is outside the ranges of [`TimerResolution`].
    #[must_use]
    pub fn new(resolutions: &[TimerResolution]) -> Self {
        assert!(!resolutions.is_empty(), "a queue needs a resolution");
        assert!(
            resolutions.is_sorted_by(|a, b| a.bits < b.bits),
            "resolutions must be given finest first"
        );
        Self {
            levels: resolutions.iter().map(SlotRing::new).collect(),
            far: Vec::new(),
            far_first: None,
            now: 0,
            len: 0,
        }
    }

    /// The time of the queue.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.now
    }

    /// One of the earliest entries, not necessarily the next entry of [`Self::extract`].
    #[must_use]
    pub fn peek(&self) -> Option<TimerEntry> {
        match (self.head(), self.far_first) {
            (Some((_, slot)), Some(far)) if far.stamp <= slot.last => Some(far),
            (Some((level, slot)), _) => self.levels[level].entries(slot).last().copied(),
            (None, far) => far,
        }
    }

    /// Takes out one of the earliest entries, and moves the time on to the start of its slot.
    ///
    /// Another entry may be earlier, by less than the width of the wider of the two slots.
    #[inline]
    pub fn extract(&mut self) -> Option<TimerEntry> {
        self.extract_due(u64::MAX)
    }

    /// The earliest slot with an entry, and its level. If slots overlap, the slot that ends first
    /// is the earliest.
    #[inline]
    fn head(&self) -> Option<(usize, FilledSlot)> {
        let heads = self.levels.iter().enumerate();
        heads
            .filter_map(|(level, slots)| Some((level, slots.first(self.now)?)))
            .min_by_key(|(_, slot)| slot.last)
    }

    #[inline]
    fn place(&mut self, entry: TimerEntry) {
        let stamp = entry.stamp.max(self.now);
        for level in &mut self.levels {
            if level.insert(self.now, stamp, entry) {
                return;
            }
        }
        if self.far_first.is_none_or(|far| entry.stamp < far.stamp) {
            self.far_first = Some(entry);
        }
        self.far.push(entry);
    }

    /// At least the earliest of the entries in `far` gets a slot now.
    #[cold]
    fn place_far(&mut self) {
        self.far_first = None;
        for entry in std::mem::take(&mut self.far) {
            self.place(entry);
        }
    }
}

impl Timers for MultiresolutionQueue {
    fn empty() -> Self {
        Self::new(&RESOLUTIONS)
    }

    fn len(&self) -> usize {
        self.len
    }

    #[inline]
    fn insert(&mut self, entry: TimerEntry) {
        self.len += 1;
        self.place(entry);
    }

    #[inline]
    fn extract_due(&mut self, now: u64) -> Option<TimerEntry> {
        let (level, slot) = loop {
            let head = self.head();
            if let Some(far) = self.far_first
                && far.stamp <= now
                && head.is_none_or(|(_, slot)| far.stamp <= slot.last)
            {
                let start = head.map_or(far.stamp, |(_, slot)| slot.first.min(far.stamp));
                self.now = self.now.max(self.levels[0].start(start));
                self.place_far();
                continue;
            }
            match head {
                Some(head) if head.1.last <= now => break head,
                _ => return None,
            }
        };
        self.now = self.now.max(slot.first);
        self.len -= 1;
        self.levels[level].pop(slot)
    }

    #[inline]
    fn extract_early(&mut self) -> Option<TimerEntry> {
        let head = self.head();
        if let Some((level, slot)) = head
            && self.far_first.is_none_or(|far| far.stamp > slot.last)
        {
            self.len -= 1;
            return self.levels[level].pop(slot);
        }
        self.extract()
    }

    fn advance(&mut self, now: u64) {
        let head = self.head().map(|(_, slot)| slot.first);
        let far = self.far_first.map(|far| far.stamp);
        let limit = head.into_iter().chain(far).min().unwrap_or(u64::MAX);
        self.now = self.now.max(now.min(limit));
    }

    fn memory_bytes(&self) -> usize {
        let levels: usize = self.levels.iter().map(SlotRing::memory_bytes).sum();
        levels + self.far.capacity() * size_of::<TimerEntry>()
    }
}
