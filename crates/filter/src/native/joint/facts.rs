//! What is known of a packet on some way through a set of programs.

use super::condition::ConditionId;

/// A set of conditions.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Bits(Box<[u64]>);

impl Bits {
    /// None of `count`.
    pub(super) fn none(count: usize) -> Self {
        Self(vec![0; count.div_ceil(64)].into())
    }

    pub(super) fn has(&self, id: ConditionId) -> bool {
        self.0[id.0 as usize / 64] >> (id.0 % 64) & 1 == 1
    }

    pub(super) fn add(&mut self, id: ConditionId) {
        self.0[id.0 as usize / 64] |= 1 << (id.0 % 64);
    }

    pub(super) fn take(&mut self, id: ConditionId) {
        self.0[id.0 as usize / 64] &= !(1 << (id.0 % 64));
    }

    /// Those of either.
    pub(super) fn join(&mut self, other: &Self) {
        for (word, other) in self.0.iter_mut().zip(&other.0) {
            *word |= other;
        }
    }

    fn keep(&mut self, other: &Self) {
        for (word, other) in self.0.iter_mut().zip(&other.0) {
            *word &= other;
        }
    }
}

/// Conditions whose answers are known.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Facts {
    known: Bits,
    /// Those that hold, of `known`.
    holds: Bits,
}

impl Facts {
    /// Nothing is known of `count` conditions.
    pub(super) fn none(count: usize) -> Self {
        Self {
            known: Bits::none(count),
            holds: Bits::none(count),
        }
    }

    pub(super) fn get(&self, id: ConditionId) -> Option<bool> {
        self.known.has(id).then(|| self.holds.has(id))
    }

    pub(super) fn set(&mut self, id: ConditionId, answer: bool) {
        self.known.add(id);
        if answer {
            self.holds.add(id);
        } else {
            self.holds.take(id);
        }
    }

    /// Knows what `other` knows too.
    pub(super) fn learn(&mut self, other: &Self) {
        self.known.join(&other.known);
        self.holds.join(&other.holds);
    }

    /// Forgets all but some.
    pub(super) fn keep(&mut self, some: &Bits) {
        self.known.keep(some);
        self.holds.keep(some);
    }

    /// The conditions that are known.
    pub(super) fn known(&self) -> &Bits {
        &self.known
    }
}
