//! Reader groups: their kind and their positions.

use std::sync::Arc;

use crate::sync::{AtomicU64, AtomicUsize, Ordering, Padded};

/// Whether writers respect a group's position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupKind {
    /// A bucket is overwritten only after the group has passed the bucket. A slow group can stop
    /// the writers, or in protect mode cost new packets.
    Gating,
    /// The group's position does not stop writers. A slow group can miss packets, and learns how
    /// many.
    Lapped,
}

/// Packets and captured bytes that were overwritten before a reader reached the packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lapped {
    /// Packets.
    pub packets: u64,
    /// Captured bytes. An upper bound after [`release`](crate::Reader::release) or
    /// [`continue_at`](crate::Reader::continue_at).
    pub bytes: u64,
}

impl std::ops::AddAssign for Lapped {
    fn add_assign(&mut self, other: Self) {
        self.packets += other.packets;
        self.bytes += other.bytes;
    }
}

/// The state that the members of a group share.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) kind: GroupKind,
    /// For each producer, the number before which the group needs no records; `u64::MAX` after the
    /// member was dropped.
    positions: Box<[Padded<AtomicU64>]>,
    pub(crate) members_open: AtomicUsize,
}

impl Group {
    /// `positions`: for each producer, the first record that the group reads.
    pub(crate) fn new(kind: GroupKind, members: usize, positions: &[u64]) -> Self {
        let padded = |&position: &u64| Padded(AtomicU64::new(position));
        Self {
            kind,
            positions: positions.iter().map(padded).collect(),
            members_open: AtomicUsize::new(members),
        }
    }

    /// The group needs no record before this number. Panics unless `producer` exists.
    pub(crate) fn position(&self, producer: usize) -> u64 {
        // Q: Acquire, pairs with set_position().
        self.positions[producer].0.load(Ordering::Acquire)
    }

    pub(crate) fn set_position(&self, producer: usize, position: u64) {
        self.positions[producer]
            .0
            .store(position, Ordering::Release); // pairs with Q
    }
}

/// The positions of a group, for other threads.
#[derive(Debug, Clone)]
pub struct Positions(Arc<Group>);

impl Positions {
    pub(crate) fn new(group: &Arc<Group>) -> Self {
        Self(Arc::clone(group))
    }

    /// The group needs none of the producer's records before this number, counted over the
    /// producer's life. `u64::MAX` after the reader of this producer was dropped. Acquire: the
    /// reader's work on these records is visible.
    ///
    /// # Panics
    /// Unless `producer` is below the ring's number of producers.
    #[must_use]
    pub fn get(&self, producer: usize) -> u64 {
        self.0.position(producer)
    }
}
