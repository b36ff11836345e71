//! Hash tables whose versions share memory.
//!
//! A table is cut into shards, each an array of cache lines of four 16-byte slots with linear probing over lines. A new
//! version copies the array of pointers and, when it changes, the shards that changed: some KiB, whatever the size of the
//! table. A look-up reads the pointer (the array of them stays in the first-level cache) and, nearly always, one line.

use std::sync::Arc;

/// Shards of a table, a power of two.
const SHARDS: usize = 256;
const LINE: usize = 4;
/// Slots used before a shard grows: five eighths.
const LOAD: (usize, usize) = (5, 8);

/// 16 bytes with a key in them. All zeros: no key.
pub(super) trait Slot: Copy + Default {
    type Key: Copy;

    fn key(&self) -> Self::Key;
    fn is_empty(&self) -> bool;
    fn has_key(&self, key: Self::Key) -> bool;
    fn hash(key: Self::Key, seeds: Seeds) -> u64;
}

/// What hashes are keyed with, so that nobody who chooses packets, and through `$flow` rules, chooses collisions.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seeds(pub(super) u64, pub(super) u64);

impl Seeds {
    /// Multiplies to 128 bits and folds them: two words into one.
    #[inline]
    pub(super) fn hash(self, a: u64, b: u64) -> u64 {
        let product = u128::from(a ^ self.0) * u128::from(b ^ self.1);
        #[expect(clippy::cast_possible_truncation, reason = "the two halves are folded")]
        let (low, high) = (product as u64, (product >> 64) as u64);
        low ^ high
    }
}

#[derive(Debug, Clone, Copy, Default)]
#[repr(C, align(64))]
struct Line<S>([S; LINE]);

/// A table from keys to slots, at most one a key. Cloning it is making a version.
#[derive(Debug, Clone)]
pub(super) struct Table<S> {
    shards: Vec<Arc<[Line<S>]>>,
    used: Vec<u32>,
    seeds: Seeds,
}

impl<S: Slot> Table<S> {
    pub(super) fn new(seeds: Seeds) -> Self {
        const { assert!(size_of::<S>() == 16) };
        let empty: Arc<[Line<S>]> = Arc::new([Line::default()]);
        Self {
            shards: vec![empty; SHARDS],
            used: vec![0; SHARDS],
            seeds,
        }
    }

    #[inline]
    pub(super) fn hash(&self, key: S::Key) -> u64 {
        S::hash(key, self.seeds)
    }

    #[inline]
    fn shard_of(hash: u64) -> usize {
        const { assert!(SHARDS == 256) };
        (hash >> 56) as usize
    }

    /// The slot of a key, or any slot and `false`. Takes no branch that depends on where in a line the key is, or on whether it
    /// is there: neither can be predicted.
    #[inline(always)]
    pub(super) fn get(&self, key: S::Key, hash: u64) -> (S, bool) {
        let lines = &*self.shards[Self::shard_of(hash)];
        let mask = lines.len() - 1;
        #[expect(clippy::cast_possible_truncation, reason = "masked")]
        let mut at = hash as usize & mask;
        loop {
            let slots = &lines[at].0;
            let mut found = 0_u32;
            for (bit, slot) in slots.iter().enumerate() {
                found |= u32::from(slot.has_key(key)) << bit;
            }
            // Slots of a line are filled in order. One branch, which is hardly ever taken.
            let goes_on = u32::from(found == 0) & u32::from(!slots[LINE - 1].is_empty());
            if goes_on == 0 {
                let slot = slots[found.trailing_zeros() as usize % LINE];
                return (slot, found != 0);
            }
            at = (at + 1) & mask;
        }
    }

    /// Loads the line where a search begins, so that it is near when that comes: made for a run of keys, the loads wait for
    /// memory together.
    #[inline]
    pub(super) fn touch(&self, hash: u64) -> bool {
        let lines = &*self.shards[Self::shard_of(hash)];
        #[expect(clippy::cast_possible_truncation, reason = "masked")]
        let at = hash as usize & (lines.len() - 1);
        lines[at].0[0].is_empty()
    }

    /// The slot of a key; `hash` is that of [`Self::hash`].
    #[inline]
    pub(super) fn find(&self, key: S::Key, hash: u64) -> Option<&S> {
        let lines = &*self.shards[Self::shard_of(hash)];
        let mask = lines.len() - 1;
        #[expect(clippy::cast_possible_truncation, reason = "masked")]
        let mut at = hash as usize & mask;
        loop {
            let line = &lines[at];
            for slot in &line.0 {
                if slot.has_key(key) {
                    return Some(slot);
                }
            }
            // Slots of a line are filled in order.
            if line.0[LINE - 1].is_empty() {
                return None;
            }
            at = (at + 1) & mask;
        }
    }

    /// Adds a slot whose key is not there yet.
    pub(super) fn insert(&mut self, slot: S) {
        let hash = self.hash(slot.key());
        let index = Self::shard_of(hash);
        let used = self.used[index] as usize + 1;
        let lines = self.shards[index].len();
        if used * LOAD.1 > lines * LINE * LOAD.0 {
            self.shards[index] = self.rebuilt(index, lines * 2, |_| true);
        }
        place(Arc::make_mut(&mut self.shards[index]), slot, hash);
        self.used[index] += 1;
    }

    /// Takes a key's slot out.
    pub(super) fn remove(&mut self, key: S::Key) {
        let hash = self.hash(key);
        if self.find(key, hash).is_none() {
            return;
        }
        let index = Self::shard_of(hash);
        let used = self.used[index] as usize - 1;
        let mut lines = self.shards[index].len();
        while lines > 1 && used * LOAD.1 * 4 < lines * LINE * LOAD.0 {
            lines /= 2;
        }
        self.shards[index] = self.rebuilt(index, lines, |slot| !slot.has_key(key));
        self.used[index] -= 1;
    }

    /// A shard with those of its slots that are to stay.
    fn rebuilt(&self, index: usize, lines: usize, stays: impl Fn(&S) -> bool) -> Arc<[Line<S>]> {
        let mut rebuilt = vec![Line::default(); lines];
        let old = self.shards[index].iter().flat_map(|line| &line.0);
        for slot in old.filter(|slot| !slot.is_empty() && stays(slot)) {
            place(&mut rebuilt, *slot, self.hash(slot.key()));
        }
        rebuilt.into()
    }

    /// Bytes of memory.
    pub(super) fn bytes(&self) -> usize {
        let lines: usize = self.shards.iter().map(|shard| shard.len()).sum();
        lines * size_of::<Line<S>>() + SHARDS * (size_of::<Arc<[Line<S>]>>() + size_of::<u32>())
    }
}

/// Puts a slot into the first free place of its line or those behind it. There is one: the load is bounded.
fn place<S: Slot>(lines: &mut [Line<S>], slot: S, hash: u64) {
    let mask = lines.len() - 1;
    #[expect(clippy::cast_possible_truncation, reason = "masked")]
    let mut at = hash as usize & mask;
    loop {
        if let Some(free) = lines[at].0.iter_mut().find(|slot| slot.is_empty()) {
            *free = slot;
            return;
        }
        at = (at + 1) & mask;
    }
}
