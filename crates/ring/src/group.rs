//! Reader groups: their kind, and how far they are.

use std::sync::Arc;

use crate::sync::{AtomicU64, AtomicUsize, Ordering, Padded};

/// Whether writers wait for a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupKind {
    /// A bucket is overwritten only after the group has passed it: nothing is lost, and a slow group stops the writers
    /// (record and wait mode) or costs new packets (protect mode).
    Gating,
    /// Writers never wait for it; a slow group is lapped, and gets to know how much it missed.
    Lapped,
}

/// Packets and captured bytes that a reader did not get to see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lapped {
    /// Packets.
    pub packets: u64,
    /// Captured bytes.
    pub bytes: u64,
}

impl std::ops::AddAssign for Lapped {
    fn add_assign(&mut self, other: Self) {
        self.packets += other.packets;
        self.bytes += other.bytes;
    }
}

/// What the members of a group share.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) kind: GroupKind,
    /// By producer: the number of the first record that its member is not done with; `u64::MAX` once that is gone.
    positions: Box<[Padded<AtomicU64>]>,
    pub(crate) members_open: AtomicUsize,
}

impl Group {
    /// `positions` of all producers.
    pub(crate) fn new(kind: GroupKind, members: usize, positions: &[u64]) -> Self {
        let padded = |&position: &u64| Padded(AtomicU64::new(position));
        Self {
            kind,
            positions: positions.iter().map(padded).collect(),
            members_open: AtomicUsize::new(members),
        }
    }

    /// The producer's records before this one are done, or missed. Panics unless `producer` exists.
    pub(crate) fn position(&self, producer: usize) -> u64 {
        // Q: Acquire, pairs with set_position(): the member's work on the records is done as well.
        self.positions[producer].0.load(Ordering::Acquire)
    }

    /// The member of this producer is done with the records before `position`.
    pub(crate) fn set_position(&self, producer: usize, position: u64) {
        self.positions[producer]
            .0
            .store(position, Ordering::Release); // pairs with Q
    }
}

/// How far a group is, for other threads.
#[derive(Debug, Clone)]
pub struct Positions(Arc<Group>);

impl Positions {
    pub(crate) fn new(group: &Arc<Group>) -> Self {
        Self(Arc::clone(group))
    }

    /// The producer's records that the group is done with (or missed), all of them up to this number, counted over the
    /// producer's life. Acquire: what the readers did before is visible. `u64::MAX` once the readers are gone.
    ///
    /// # Panics
    /// Unless `producer` is below the ring's number of producers.
    #[must_use]
    pub fn get(&self, producer: usize) -> u64 {
        self.0.position(producer)
    }
}
