//! Where a reader is in the chain of one producer's buckets.

use crate::{
    Lapped,
    group::{Group, Lane},
    outer::Place,
    ring::Shared,
    storage::Hold,
    sync::{Ordering, lock},
};

/// A position in the records of one producer, and the way on from there. It belongs to one member at a time, and so does
/// its lane.
#[derive(Debug)]
pub(crate) struct Cursor {
    pub(crate) lane: Lane,
    /// The bucket that `position` lies in or at the end of. `None`: `position` is at the start of a bucket yet to be found.
    pub(crate) hold: Option<Hold>,
    /// Number of the first record not handed out.
    pub(crate) position: u64,
    /// The producer's captured bytes before `position`; kept up at the ends of buckets only.
    bytes: u64,
    /// Lost since the last batch of this producer.
    pub(crate) missed: Lapped,
}

/// What a cursor finds in front of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ahead {
    /// Records up to this number, not included. The cursor holds their bucket.
    Records(u64),
    Nothing,
    /// Another member goes on behind what this cursor has handed out: it is at its end.
    Over,
}

impl Cursor {
    pub(crate) fn new(lane: Lane, position: u64, bytes: u64) -> Self {
        Self {
            lane,
            hold: None,
            position,
            bytes,
            missed: Lapped::default(),
        }
    }

    /// At the end of a closed bucket; `next` is the one behind it, unless that was overwritten.
    pub(crate) fn behind(lane: Lane, closed: &Hold, next: Option<Hold>) -> Self {
        let position = closed.first() + closed.committed() as u64;
        if let Some(next) = &next {
            assert_eq!(
                next.first(),
                position,
                "buckets of a producer follow each other"
            );
        }
        Self {
            lane,
            hold: next,
            position,
            bytes: end_bytes(closed),
            missed: Lapped::default(),
        }
    }

    /// Looks for records, in this bucket and those that follow. What was lost meanwhile is added to `lapped`.
    pub(crate) fn advance(&mut self, shared: &Shared, group: &Group, lapped: &mut Lapped) -> Ahead {
        loop {
            let Some(hold) = &self.hold else {
                if shared.published(self.lane.producer) == self.position {
                    return Ahead::Nothing;
                }
                *lapped += self.find_place(shared, group);
                continue;
            };
            let end = hold.first() + hold.committed() as u64;
            if end > self.position {
                return Ahead::Records(end);
            }
            if !hold.header().control.is_closed() {
                return Ahead::Nothing;
            }
            let end = hold.first() + hold.committed() as u64;
            if end > self.position {
                return Ahead::Records(end); // committed between the first look and the closing
            }
            if !self.leave_bucket(shared, group) {
                return Ahead::Over;
            }
        }
    }

    /// All of the closed bucket was handed out: goes on to the next one, if that was not overwritten meanwhile. `false`:
    /// another member of the group does.
    fn leave_bucket(&mut self, shared: &Shared, group: &Group) -> bool {
        let Some(hold) = self.hold.take() else {
            return true;
        };
        // The next bucket is held before this one is given back, and opened before this one was closed.
        let next = hold.next();
        let next = next.and_then(|next| Hold::new(&shared.storage, next));
        let behind = Self::behind(self.lane, &hold, next);
        if let Some(share) = &group.share {
            let to = behind.hold.as_ref().map(Hold::bucket);
            if !share.go_on(self.lane.producer, hold.bucket(), to) {
                return false;
            }
        }
        assert_eq!(behind.position, self.position, "all of it was handed out");
        (self.hold, self.bytes) = (behind.hold, behind.bytes);
        true
    }

    /// Without a bucket, and behind the producer: finds the oldest bucket with later records, and returns what was lost
    /// before it.
    fn find_place(&mut self, shared: &Shared, group: &Group) -> Lapped {
        let Lane { producer, .. } = self.lane;
        let outer = lock(&shared.outer);
        let place = outer.place(producer, self.position);
        // The mutex keeps the bucket from being claimed.
        self.hold = place.and_then(|place| Hold::new(&shared.storage, place.bucket));
        let (first, first_bytes) = match place {
            Some(Place {
                first, first_bytes, ..
            }) => (first, first_bytes),
            None => shared.published_with_bytes(producer), // its last bucket is gone, and so is the producer
        };
        drop(outer);
        let missed = Lapped {
            packets: first.saturating_sub(self.position),
            bytes: first_bytes.saturating_sub(self.bytes),
        };
        if missed.packets > 0 {
            (self.position, self.bytes) = (first, first_bytes);
            shared.pass(group, self.lane, self.position);
        }
        self.missed += missed;
        if let (Some(share), Some(hold)) = (&group.share, &self.hold) {
            share.found(producer, hold.bucket());
        }
        missed
    }
}

/// Captured bytes of a producer up to the end of a closed bucket.
fn end_bytes(closed: &Hold) -> u64 {
    let header = closed.header();
    // Relaxed: final since the closing that the caller has seen (edge L).
    header.first_bytes.load(Ordering::Relaxed) + header.bytes.load(Ordering::Relaxed)
}
