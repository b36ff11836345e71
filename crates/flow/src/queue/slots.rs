//! The slots of one width: a ring of vectors that slides over time, and bit masks of the slots with
//! entries.

use super::{TimerEntry, TimerResolution};

/// Maximum number of slots: two levels of 64-bit words.
const SLOTS_MAX: usize = 64 * 64;
/// An empty slot keeps a vector for at most this number of entries (1 KiB). Otherwise each slot
/// would in time keep memory for its maximum.
const KEPT: usize = 64;

/// A slot with entries.
#[derive(Debug, Clone, Copy)]
pub(super) struct FilledSlot {
    place: usize,
    /// The lowest stamp that the slot covers.
    pub(super) first: u64,
    /// The highest stamp that the slot covers.
    pub(super) last: u64,
}

/// A ring of slots. Its window starts with the slot of the queue's time.
#[derive(Debug, Clone)]
pub(super) struct SlotRing {
    bits: u32,
    slots: Box<[Vec<TimerEntry>]>,
    /// A bit for each slot, set if the slot has entries.
    filled: [u64; 64],
    /// A bit for each word of `filled`, set if the word is not 0.
    filled_words: u64,
}

impl SlotRing {
    pub(super) fn new(resolution: &TimerResolution) -> Self {
        let &TimerResolution { bits, slots } = resolution;
        assert!(bits < u64::BITS, "a slot of 2^{bits} holds all time");
        assert!(
            slots.is_power_of_two() && slots <= SLOTS_MAX,
            "{slots} slots: not a power of two up to {SLOTS_MAX}"
        );
        Self {
            bits,
            slots: vec![Vec::new(); slots].into(),
            filled: [0; 64],
            filled_words: 0,
        }
    }

    /// Adds an entry to the slot of `stamp`, which is at least `now`. Returns false if the stamp is
    /// beyond the window.
    #[inline]
    pub(super) fn insert(&mut self, now: u64, stamp: u64, entry: TimerEntry) -> bool {
        let slot = stamp >> self.bits;
        if slot - (now >> self.bits) >= self.slots.len() as u64 {
            return false;
        }
        let place = self.place(slot);
        self.slots[place].push(entry);
        self.filled[place / 64] |= 1 << (place % 64);
        self.filled_words |= 1 << (place / 64);
        true
    }

    /// The first slot with entries. No slot before the slot of `now` has entries.
    #[inline]
    pub(super) fn first(&self, now: u64) -> Option<FilledSlot> {
        let start = now >> self.bits;
        let from = self.place(start);
        let place = self.filled_from(from)?;
        let ahead = place.wrapping_sub(from) & (self.slots.len() - 1);
        let first = (start + ahead as u64) << self.bits;
        Some(FilledSlot {
            place,
            first,
            last: first | ((1 << self.bits) - 1),
        })
    }

    pub(super) fn start(&self, stamp: u64) -> u64 {
        stamp >> self.bits << self.bits
    }

    #[inline]
    pub(super) fn entries(&self, slot: FilledSlot) -> &[TimerEntry] {
        &self.slots[slot.place]
    }

    /// Takes the entry that was inserted last.
    #[inline]
    pub(super) fn pop(&mut self, slot: FilledSlot) -> Option<TimerEntry> {
        let entries = &mut self.slots[slot.place];
        let entry = entries.pop();
        if entries.is_empty() {
            if entries.capacity() > KEPT {
                *entries = Vec::new();
            }
            let word = slot.place / 64;
            self.filled[word] &= !(1 << (slot.place % 64));
            if self.filled[word] == 0 {
                self.filled_words &= !(1 << word);
            }
        }
        entry
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let entries: usize = self.slots.iter().map(Vec::capacity).sum();
        entries * size_of::<TimerEntry>() + size_of_val(&*self.slots)
    }

    #[expect(clippy::cast_possible_truncation, reason = "it is masked")]
    #[inline]
    fn place(&self, slot: u64) -> usize {
        slot as usize & (self.slots.len() - 1)
    }

    /// The index of the first slot with entries, from `from` on, around the ring to `from`.
    #[inline]
    fn filled_from(&self, from: usize) -> Option<usize> {
        let word = from / 64;
        let here = self.filled[word] & (!0 << (from % 64));
        if here != 0 {
            return Some(word * 64 + here.trailing_zeros() as usize);
        }
        if self.filled_words == 0 {
            return None;
        }
        // First the words after this word, then the words before, then this word, for the bits
        // below `from`.
        let behind = self.filled_words & (!1 << word);
        let word = if behind == 0 {
            self.filled_words
        } else {
            behind
        };
        let word = word.trailing_zeros() as usize;
        Some(word * 64 + self.filled[word].trailing_zeros() as usize)
    }
}
