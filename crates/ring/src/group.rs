//! Reader groups: their kind, and how far they are.

use std::sync::Arc;

use crate::{
    share::Share,
    sync::{AtomicU64, AtomicUsize, Ordering, Padded},
};

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

/// One row of a group's marks for one producer. Whoever has the lane is the only one to move its mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lane {
    /// `0..rows`.
    pub(crate) row: usize,
    pub(crate) producer: usize,
}

/// What the members of a group share.
///
/// A group that divides producers has one row of marks: the mark of a producer is the group's position. In one that divides
/// buckets each member has a row, and the position is the least mark of the producer: that of the oldest bucket in work,
/// or where the member goes on that follows the producer.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) name: String,
    pub(crate) kind: GroupKind,
    producers: usize,
    /// By row, then producer: the number of the first record that the lane's owner is not done with; `u64::MAX` while
    /// nobody works in the lane.
    marks: Box<[Padded<AtomicU64>]>,
    /// By producer: lanes that somebody began to work in.
    starts: Box<[Padded<AtomicU64>]>,
    /// Of a group that divides buckets.
    pub(crate) share: Option<Share>,
    pub(crate) members_open: AtomicUsize,
}

impl Group {
    /// `positions` of all producers; the mark of each is in the row of its first owner.
    pub(crate) fn new(
        name: &str,
        kind: GroupKind,
        members: usize,
        positions: &[u64],
        share: Option<Share>,
    ) -> Self {
        let rows = if share.is_some() { members } else { 1 };
        let mark = |row: usize, producer: usize| {
            let mine = producer % rows == row;
            Padded(AtomicU64::new(if mine {
                positions[producer]
            } else {
                u64::MAX
            }))
        };
        let lanes = (0..rows).flat_map(|row| (0..positions.len()).map(move |p| (row, p)));
        Self {
            name: name.to_owned(),
            kind,
            producers: positions.len(),
            marks: lanes.map(|(row, producer)| mark(row, producer)).collect(),
            starts: positions
                .iter()
                .map(|_| Padded(AtomicU64::new(0)))
                .collect(),
            share,
            members_open: AtomicUsize::new(members),
        }
    }

    /// Lanes there are.
    pub(crate) fn lanes(&self) -> usize {
        self.marks.len()
    }

    /// The producer's records before this one are done, or missed. Panics unless `producer` exists.
    pub(crate) fn position(&self, producer: usize) -> u64 {
        assert!(
            producer < self.producers,
            "producer {producer} does not exist"
        );
        loop {
            // M: Acquire, pairs with start(): a lane whose start is counted is seen with its mark.
            let starts = self.starts[producer].0.load(Ordering::Acquire);
            // Q: Acquire, pairs with set_mark(): the members' work on the records is done as well.
            let marks = self.marks.iter().skip(producer).step_by(self.producers);
            let position = marks
                .map(|mark| mark.0.load(Ordering::Acquire))
                .min()
                .unwrap_or(u64::MAX);
            // A member ends its lane only after it saw that another one goes on behind it. So a walk that saw the end of the
            // one and missed the start of the other sees another count now. Only such a start makes it repeat.
            if self.starts[producer].0.load(Ordering::Relaxed) == starts {
                return position; // ordered by the loads of the marks
            }
        }
    }

    /// The owner is done with the records before `position`.
    pub(crate) fn set_mark(&self, lane: Lane, position: u64) {
        self.marks[lane.row * self.producers + lane.producer]
            .0
            .store(position, Ordering::Release); // pairs with Q
    }

    /// The owner begins to work in a lane, at `position`. To be called before others can see that somebody does.
    pub(crate) fn start(&self, lane: Lane, position: u64) {
        self.set_mark(lane, position);
        self.starts[lane.producer].0.fetch_add(1, Ordering::Release); // pairs with M
    }

    /// The owner has done all of its part, and saw that another goes on behind it.
    pub(crate) fn end(&self, lane: Lane) {
        self.set_mark(lane, u64::MAX);
    }

    /// The last member is gone.
    pub(crate) fn end_all(&self) {
        for mark in &self.marks {
            mark.0.store(u64::MAX, Ordering::Release); // pairs with Q
        }
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

    /// The group's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }
}
