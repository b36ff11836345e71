//! Reader groups: their kind and their positions.

use std::sync::Arc;

use crate::sync::{AtomicU64, AtomicUsize, Ordering, Padded};

/// Whether writers wait for a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupKind {
    /// A bucket is overwritten only after the group has passed the bucket. The group misses no
    /// packet that is stored after the group was made. A slow group stops the writers (record and
    /// wait mode) or costs new packets (protect mode).
    Gating,
    /// Writers do not wait for the group's position. A slow group is lapped, and learns how many
    /// packets it missed.
    Lapped,
}

/// Packets and captured bytes that were overwritten before a reader reached the packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lapped {
    /// Number of packets.
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
    /// For each producer, the number of the first record that its member has not finished;
    /// `u64::MAX` after the member was dropped.
    positions: Box<[Padded<AtomicU64>]>,
    pub(crate) members_open: AtomicUsize,
}

impl Group {
    /// `positions` has one number for each producer: its first record that the group reads.
    pub(crate) fn new(kind: GroupKind, members: usize, positions: &[u64]) -> Self {
        let padded = |&position: &u64| Padded(AtomicU64::new(position));
        Self {
            kind,
            positions: positions.iter().map(padded).collect(),
            members_open: AtomicUsize::new(members),
        }
    }

    /// The producer's records before this number are finished or missed. Panics unless `producer`
    /// exists.
    pub(crate) fn position(&self, producer: usize) -> u64 {
        // Q: Acquire, pairs with set_position(): the member's work on the records is finished as
        // well.
        self.positions[producer].0.load(Ordering::Acquire)
    }

    /// The member of this producer has finished or missed the records before `position`.
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

    /// The group has finished or missed all of the producer's records before this number, counted
    /// over the producer's life. Acquire: the earlier work of the readers is visible. `u64::MAX`
    /// after the reader of this producer was dropped.
    ///
    /// # Panics
    /// Unless `producer` is below the ring's number of producers.
    #[must_use]
    pub fn get(&self, producer: usize) -> u64 {
        self.0.position(producer)
    }
}
