//! A hash table of fixed size that any number of threads write and read without locks, with few
//! false negatives.
//!
//! The table is R-Scope's LFN table (R-Scope paper, section 2.4; Ros-Giralt et al., "Lockless hash
//! tables with low false negatives", HPEC 2014). A key has one cell, and replaces the earlier key
//! of the cell.
//!
//! Next to the value the cell holds the exclusive or of the key's hash and the value. This check is
//! from Hyatt and Mann, "A lock-less transposition table implementation for parallel search chess
//! engines", ICGA Journal 25, 2002. If a reader gets the words of two writers with different
//! values, the hash does not match, and the reader finds nothing. So the two words of a cell need
//! no order, and relaxed atomic loads and stores suffice. A wrong match needs two hashes that
//! differ in exactly the bits in which the two values differ. Hashes depend on a secret, and values
//! do not, so the probability is 2^-64.
//!
//! Let `k` keys be stored in `n` cells, with `k` much smaller than `n`. A stored key is not found
//! with probability about (k - 1) / 2n, because a later key has its cell. A stored key gives the
//! value of another key with probability about (k - 1) / 2^65, because a later key has the same
//! 64-bit hash. Unused keys need no time-out: other keys take over their cells.

use crate::sync::{AtomicU64, Ordering::Relaxed};
use crate::{Advise, BiflowKey, Secret, index::addresses};

/// A hash table without locks: see the module documentation. `HASH_BITS`: number of bits of each
/// hash that count, 1 to 64. Fewer than 64 bits serve only to measure false positives.
#[derive(Debug)]
pub struct LfnTable<const HASH_BITS: u32 = 64> {
    secret: Secret,
    cells: Box<[LfnCell]>,
}

#[derive(Debug)]
struct LfnCell {
    value: AtomicU64,
    /// The exclusive or of the key's hash and the value. An empty cell matches a key with
    /// probability 2^-64.
    checked: AtomicU64,
}

impl<const HASH_BITS: u32> LfnTable<HASH_BITS> {
    /// An empty table of `cells` cells, at least 1, of 16 bytes each.
    ///
    /// # Panics
    /// If `cells` is 0.
    #[must_use]
    pub fn new(cells: usize, secret: Secret) -> Self {
        Self::with_advice(cells, secret, |_| {})
    }

    /// As [`Self::new`]. `advise` gets the reserved memory before the first write. Cells are read
    /// at random, so in a large table with pages of 4 KiB nearly every read misses the TLB.
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

    /// Stores a value for a key. Another key that has the same cell is no longer found.
    #[inline]
    pub fn put(&self, key: &BiflowKey, value: u64) {
        let hash = self.hash(key);
        let cell = self.cell(hash);
        // Relaxed, as all accesses below: see the module documentation.
        cell.value.store(value, Relaxed);
        cell.checked.store(hash ^ value, Relaxed);
    }

    /// The latest value of a key. `None` without a value, if another key has the cell, or if the
    /// words of the cell come from writers of different values.
    #[inline]
    #[must_use]
    pub fn get(&self, key: &BiflowKey) -> Option<u64> {
        let hash = self.hash(key);
        let cell = self.cell(hash);
        let value = cell.value.load(Relaxed);
        (cell.checked.load(Relaxed) ^ value == hash).then_some(value)
    }

    /// Removes a key, if it is present. A key that another thread stores in the same cell at the
    /// same time may be removed too.
    #[inline]
    pub fn remove(&self, key: &BiflowKey) {
        if self.get(key).is_some() {
            self.cell(self.hash(key)).checked.store(0, Relaxed);
        }
    }

    /// The number of cells.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.cells.len()
    }

    #[inline]
    fn hash(&self, key: &BiflowKey) -> u64 {
        self.secret.hash(key) >> (64 - HASH_BITS)
    }

    #[inline]
    fn cell(&self, hash: u64) -> &LfnCell {
        let place = (u128::from(hash) * self.cells.len() as u128) >> HASH_BITS;
        &self.cells[usize::try_from(place).unwrap_or(0)]
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
