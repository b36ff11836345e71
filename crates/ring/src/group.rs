//! Reader groups: their kind, and how far they are.

use std::sync::Arc;

use crate::sync::{AtomicU64, AtomicUsize, Ordering, Padded};

/// Whether writers wait for a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupKind {
    /// A bucket is overwritten only after the group has passed it: nothing is lost, and a slow group stops the writers
    /// (record and wait mode) or costs new packets (protect mode).
    Gating,
    /// Writers take no notice; a slow group is lapped, and told so.
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
    pub(crate) name: String,
    pub(crate) kind: GroupKind,
    /// For each producer, the number of the first record that the group is not done with. Written by the one member that
    /// serves the producer.
    positions: Box<[Padded<AtomicU64>]>,
    pub(crate) members_open: AtomicUsize,
}

impl Group {
    pub(crate) fn new(
        name: &str,
        kind: GroupKind,
        positions: impl Iterator<Item = u64>,
        members: usize,
    ) -> Self {
        Self {
            name: name.to_owned(),
            kind,
            positions: positions
                .map(|position| Padded(AtomicU64::new(position)))
                .collect(),
            members_open: AtomicUsize::new(members),
        }
    }

    pub(crate) fn position(&self, producer: usize) -> u64 {
        // Q: Acquire, pairs with set_position(): the member's work on the records is done as well.
        self.positions[producer].0.load(Ordering::Acquire)
    }

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

    /// The producer's records that the group is done with (or missed), counted over the producer's life. Acquire: what
    /// the reader did before is visible. `u64::MAX` once the reader is gone.
    ///
    /// # Panics
    /// Unless `producer` is below the ring's number of producers.
    #[must_use]
    pub fn get(&self, producer: usize) -> u64 {
        self.0.position(producer)
    }

    /// The group's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }
}
