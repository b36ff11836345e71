//! A priority queue of times that usually inserts, peeks and extracts in constant time. In exchange
//! it does not order times within a slot.
//!
//! The queue is R-Scope's multiresolution priority queue (Ros-Giralt et al. 2018, "Algorithms and
//! data structures to accelerate network analysis", section 2.5). Time is divided into slots. A
//! slot is an unordered vector of entries, and bit masks show which slots have entries.
//!
//! Near times have narrow slots, far times have wide slots. An entry stays in its slot, so the
//! queue moves nothing from wide slots to narrow slots. Entries beyond the widest slots wait in a
//! separate list. When the earliest entry of this list is next, the queue inserts all entries of
//! the list again.
//!
//! An insertion touches the end of one vector and the bit masks. So does an extraction that does
//! not insert the list again. Their time is independent of the number of entries, whereas a heap
//! misses the cache once for each of its lower levels.
//!
//! Entries are not deleted. The caller checks each extracted entry, and inserts it again if its
//! time has changed.

mod slots;
#[cfg(test)]
mod tests;

use slots::{FilledSlot, SlotRing};

use crate::table::RESOLUTIONS;

/// An entry of the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimerEntry {
    /// The due time in the caller's unit. The flow table gives times in nanoseconds plus
    /// 2^63.
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
    /// Adds an entry. If the stamp is before the time of a [`MultiresolutionQueue`], the queue
    /// treats the entry as due now, and keeps the stamp.
    fn insert(&mut self, entry: TimerEntry);
    /// Takes out one of the earliest entries, if it is due at the time `now`. A
    /// [`MultiresolutionQueue`] waits until the whole slot of the entry has passed. So the queue
    /// delays an entry by less than the width of its slot if the caller takes all due entries.
    fn extract_due(&mut self, now: u64) -> Option<TimerEntry>;
    /// Takes out one of the earliest entries, due or not. The time of a
    /// [`MultiresolutionQueue`] stays, unless the earliest entry was beyond the widest slots when
    /// it was inserted.
    fn extract_early(&mut self) -> Option<TimerEntry>;
    /// Moves the time of the queue forward to `now`, which determines the slots of later
    /// insertions. A [`MultiresolutionQueue`] stops at the slot of its first entry, and ignores a
    /// time before its own time.
    fn advance(&mut self, now: u64);
    /// Bytes taken from the allocator. Slots of a [`MultiresolutionQueue`] that become empty give
    /// large vectors back.
    fn memory_bytes(&self) -> usize;
}

/// The slots of one width.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimerResolution {
    /// A slot is `1 << bits` wide, in the unit of the stamps. At most 63.
    pub bits: u32,
    /// Number of slots: a power of two, 1 to 4096. Entries that are due within this number of slots
    /// from now fit.
    pub slots: usize,
}

/// A queue with slots of several widths. Its time, "now", never goes back. [`Self::extract`] and
/// [`Timers::extract_due`] move the time to the start of the slot of the entry, and
/// [`Timers::advance`] moves the time towards a given time.
#[derive(Debug, Clone)]
pub struct MultiresolutionQueue {
    /// From the finest slots to the widest.
    levels: Vec<SlotRing>,
    /// Entries that were beyond the window of the widest slots when they were inserted.
    far: Vec<TimerEntry>,
    /// The earliest of `far`.
    far_first: Option<TimerEntry>,
    now: u64,
    len: usize,
}

impl MultiresolutionQueue {
    /// An empty queue, at time 0.
    ///
    /// An entry gets the first of these resolutions whose slots reach to the stamp of the entry.
    ///
    /// # Panics
    /// If there is no resolution, if a resolution is not coarser than the resolution before, and if
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

    /// An entry of the earliest slot. [`Self::extract`] returns the same entry, unless entries
    /// beyond all slots are about to join the slot.
    #[must_use]
    pub fn peek(&self) -> Option<TimerEntry> {
        match (self.head(), self.far_first) {
            (Some((_, slot)), Some(far)) if far.stamp <= slot.last => Some(far),
            (Some((level, slot)), _) => self.levels[level].entries(slot).last().copied(),
            (None, far) => far,
        }
    }

    /// Takes an entry out of the earliest slot, and moves the time on to the start of that slot.
    ///
    /// Another entry may be earlier, by less than the width of the wider of the two slots: if slots
    /// overlap, the slot that ends first is the earliest. An entry that was inserted after its due
    /// time counts as due at its insertion. In one slot, the entry that was inserted last is taken
    /// first.
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

    /// Inserts again the entries that were beyond the slots. At least the earliest of these entries
    /// is near enough now.
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
