//! A hash table of fixed size that any number of threads write and read without locks, with few false negatives.
//!
//! R-Scope's LFN table (R-Scope paper, section 2.4; Ros-Giralt et al., "Lockless hash tables with low false negatives", HPEC 2014). A key has
//! one cell, and takes it from whatever was there. Beside the value the cell holds the exclusive or of the key's hash and the value (Hyatt and
//! Mann, "A lock-less transposition table implementation for parallel search chess engines", ICGA Journal 25, 2002), so that a reader knows
//! whether both are of its key, and of one writer: where two writers or a writer and a reader meet in a cell, the hash does not come out, and
//! nothing is found. So a cell needs no order between its two words, and atomic loads and stores are all there is. A torn cell
//! is taken for a key's only if the two hashes differ in exactly the bits in which the two values do: hashes depend on a secret that no value depends on, so
//! that is once in 2^64.
//!
//! With `k` keys in `n` cells a key that was put is not found, because a later one has its cell, with probability (k - 1) / 2n; a key that has another one's
//! 64-bit hash is found though it was not put, with (k - 1) / 2^65. Keys that nobody asks for any more need no time-out: others take their cells.

use crate::sync::{AtomicU64, Ordering::Relaxed};
use crate::{Advise, BiflowKey, Secret, index::addresses};

/// See the module. `HASH_BITS`: how many bits of hashes are looked at, 1 to 64; less is for measuring false positives only.
#[derive(Debug)]
pub struct LfnTable<const HASH_BITS: u32 = 64> {
    secret: Secret,
    cells: Box<[LfnCell]>,
}

#[derive(Debug)]
struct LfnCell {
    value: AtomicU64,
    /// The exclusive or of the key's hash and the value. What hash comes out of an empty cell, or of one whose key was
    /// taken out, no key has but one in 2^64.
    checked: AtomicU64,
}

impl<const HASH_BITS: u32> LfnTable<HASH_BITS> {
    /// An empty table of so many cells, at least 1, of 16 bytes each.
    ///
    /// # Panics
    /// Where there is no cell.
    #[must_use]
    pub fn new(cells: usize, secret: Secret) -> Self {
        Self::with_advice(cells, secret, |_| {})
    }

    /// The same, where `advise` gets what is reserved, before it is touched. Cells are read at random: with pages of 4 KiB each is far from any that the processor knows.
    ///
    /// # Panics
    /// As [`Self::new`].
    #[must_use]
    pub fn with_advice(cells: usize, secret: Secret, advise: Advise) -> Self {
        assert!(cells > 0, "a table without cells");
        let mut memory = Vec::with_capacity(cells);
        advise(addresses(&memory));
        memory.resize_with(cells, || LfnCell {
            value: AtomicU64::new(0),
            checked: AtomicU64::new(0),
        });
        Self {
            secret,
            cells: memory.into(),
        }
    }

    /// Puts a value to a key. Whatever has its cell is found no more.
    #[inline]
    pub fn put(&self, key: &BiflowKey, value: u64) {
        let hash = self.hash(key);
        let cell = self.cell(hash);
        // Relaxed, as all below: a reader that sees one store without the other sees a hash that does not fit.
        cell.value.store(value, Relaxed);
        cell.checked.store(hash ^ value, Relaxed);
    }

    /// The value that was put to a key last; `None`: none was, or another key has its cell, or a writer is just there.
    #[inline]
    #[must_use]
    pub fn get(&self, key: &BiflowKey) -> Option<u64> {
        let hash = self.hash(key);
        let cell = self.cell(hash);
        let value = cell.value.load(Relaxed);
        (cell.checked.load(Relaxed) ^ value == hash).then_some(value)
    }

    /// Takes a key out, if it is there. One that is put in the same cell at the same time may be gone too.
    #[inline]
    pub fn remove(&self, key: &BiflowKey) {
        if self.get(key).is_some() {
            self.cell(self.hash(key)).checked.store(0, Relaxed);
        }
    }

    /// Cells.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.cells.len()
    }

    #[inline]
    fn hash(&self, key: &BiflowKey) -> u64 {
        self.secret.hash(key) >> (64 - HASH_BITS)
    }

    /// The cell of a hash.
    #[inline]
    fn cell(&self, hash: u64) -> &LfnCell {
        let place = (u128::from(hash) * self.cells.len() as u128) >> HASH_BITS;
        &self.cells[usize::try_from(place).unwrap_or(0)]
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
