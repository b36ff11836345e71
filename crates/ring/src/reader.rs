//! The reading side: a member of a group, and what it is handed.

use std::{sync::Arc, time::Duration};

use crate::{
    BucketRef, GroupKind, Lapped, Packets, Positions, Waker,
    group::Group,
    outer::Place,
    ring::Shared,
    sleep::Sleeper,
    storage::Hold,
    sync::{Ordering, lock},
};

/// One member of a group: sees each record of its producers once, in the order of each producer. One thread at a time.
#[derive(Debug)]
pub struct Reader {
    shared: Arc<Shared>,
    group: Arc<Group>,
    sleeper: Arc<Sleeper>,
    cursors: Vec<Cursor>,
    /// The cursor to be asked first.
    turn: usize,
    /// The cursor whose batch was handed out and is not done yet.
    lent: Option<usize>,
    lapped: Lapped,
}

/// Where a reader is in the chain of one producer's buckets.
#[derive(Debug)]
pub(crate) struct Cursor {
    producer: usize,
    /// The bucket that `position` lies in or at the end of. `None`: `position` is at the start of a bucket yet to be found.
    hold: Option<Hold>,
    /// Number of the first record not handed out.
    position: u64,
    /// The producer's captured bytes before `position`; kept up at the ends of buckets only.
    bytes: u64,
    /// Lost since the last batch of this producer.
    missed: Lapped,
}

/// A run of records of one producer, in one bucket. The bucket is held as long as the reader has not moved on.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Batch<'r> {
    /// Whose records.
    pub producer: usize,
    /// The producer's number of the first of them.
    pub first: u64,
    /// Lost between the producer's last batch and this one.
    pub missed: Lapped,
    packets: Packets<'r>,
    bucket: BucketRef,
}

impl Batch<'_> {
    /// Records, at least 1.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "it never is")]
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// The bucket that they lie in.
    #[must_use]
    pub fn bucket(&self) -> BucketRef {
        self.bucket
    }
}

impl<'r> Batch<'r> {
    /// The records, in order.
    pub fn iter(&self) -> Packets<'r> {
        self.packets.clone()
    }
}

impl<'r> IntoIterator for Batch<'r> {
    type Item = crate::Packet<'r>;
    type IntoIter = Packets<'r>;

    fn into_iter(self) -> Packets<'r> {
        self.packets
    }
}

impl Reader {
    pub(crate) fn new(shared: &Arc<Shared>, group: &Arc<Group>, cursors: Vec<Cursor>) -> Self {
        let sleeper = Arc::new(Sleeper::new());
        for cursor in &cursors {
            shared.dormitories[cursor.producer].0.enter(&sleeper);
        }
        Self {
            shared: Arc::clone(shared),
            group: Arc::clone(group),
            sleeper,
            cursors,
            turn: 0,
            lent: None,
            lapped: Lapped::default(),
        }
    }

    /// The next run of published records, of the producers in turn. `None`: nothing new.
    ///
    /// Also declares the batch before done ([`Self::finish`]).
    #[expect(
        clippy::should_implement_trait,
        reason = "lends from the reader, which Iterator cannot"
    )]
    pub fn next(&mut self) -> Option<Batch<'_>> {
        self.finish();
        let count = self.cursors.len();
        let (turn, end) = (0..count).find_map(|step| {
            let turn = (self.turn + step) % count;
            let end = self.advance(turn)?;
            Some((turn, end))
        })?;
        self.turn = (turn + 1) % count;
        self.lent = Some(turn);
        let cursor = &mut self.cursors[turn];
        let producer = cursor.producer;
        let first = std::mem::replace(&mut cursor.position, end);
        let missed = std::mem::take(&mut cursor.missed);
        let hold = cursor.hold.as_ref();
        let hold = hold.expect("advance() leaves a hold where it finds records");
        let start = hold.first();
        let packets = Packets::new(hold, in_bucket(first - start), in_bucket(end - start));
        let bucket = hold.bucket();
        Some(Batch {
            producer,
            first,
            missed,
            packets,
            bucket,
        })
    }

    /// Declares the last batch done, which moves the group's position past it, without fetching another.
    pub fn finish(&mut self) {
        if let Some(turn) = self.lent.take() {
            self.pass(turn);
        }
    }

    /// Records of a producer that the group is done with, or missed; counted over the producer's life.
    ///
    /// # Panics
    /// Unless `producer` is below the ring's number of producers.
    #[must_use]
    pub fn position(&self, producer: usize) -> u64 {
        self.group.position(producer)
    }

    /// The group's positions, for other threads.
    #[must_use]
    pub fn positions(&self) -> Positions {
        Positions::new(&self.group)
    }

    /// All that this reader missed.
    #[must_use]
    pub fn lapped(&self) -> Lapped {
        self.lapped
    }

    /// The producers that this member serves.
    pub fn producers(&self) -> impl Iterator<Item = usize> {
        self.cursors.iter().map(|cursor| cursor.producer)
    }

    /// Sleeps until one of its producers has published something that was not handed out yet, somebody wakes it, or
    /// `timeout`. `false`: the timeout came first. The last batch stays lent.
    pub fn wait(&mut self, timeout: Duration) -> bool {
        let shared = &self.shared;
        let rooms = self
            .cursors
            .iter()
            .map(|cursor| &shared.dormitories[cursor.producer].0);
        let news = || {
            self.cursors
                .iter()
                .any(|cursor| shared.published(cursor.producer) > cursor.position)
        };
        self.sleeper.sleep(rooms, news, timeout)
    }

    /// A handle that wakes this reader.
    #[must_use]
    pub fn waker(&self) -> Waker {
        Waker::new(&self.sleeper)
    }

    /// Finds records behind a cursor, and returns the number behind the last of them. The cursor then holds their bucket.
    fn advance(&mut self, turn: usize) -> Option<u64> {
        loop {
            let cursor = &mut self.cursors[turn];
            let Some(hold) = &cursor.hold else {
                if self.shared.published(cursor.producer) == cursor.position {
                    return None;
                }
                let missed = cursor.find_place(&self.shared);
                self.lapped += missed;
                if missed.packets > 0 {
                    self.pass(turn);
                }
                continue;
            };
            let end = hold.first() + hold.committed() as u64;
            if end > cursor.position {
                return Some(end);
            }
            if !hold.header().control.is_closed() {
                return None;
            }
            let end = hold.first() + hold.committed() as u64;
            if end > cursor.position {
                return Some(end); // committed between the first look and the closing
            }
            cursor.leave_bucket(&self.shared);
        }
    }

    /// The group is done with all that a cursor has handed out.
    fn pass(&self, turn: usize) {
        let cursor = &self.cursors[turn];
        self.group.set_position(cursor.producer, cursor.position);
        if self.group.kind == GroupKind::Gating {
            self.shared.storage.bell.ring();
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        for cursor in &self.cursors {
            self.shared.dormitories[cursor.producer]
                .0
                .leave(&self.sleeper);
            self.group.set_position(cursor.producer, u64::MAX);
        }
        let mut outer = lock(&self.shared.outer);
        outer.readers_open -= 1;
        // Relaxed: the outer mutex orders the members.
        if self.group.members_open.fetch_sub(1, Ordering::Relaxed) == 1 {
            outer
                .gating
                .retain(|group| !Arc::ptr_eq(group, &self.group));
        }
        drop(outer);
        self.cursors.clear(); // gives the holds back
        self.shared.storage.bell.ring();
    }
}

impl Cursor {
    pub(crate) fn new(producer: usize, position: u64, bytes: u64) -> Self {
        Self {
            producer,
            hold: None,
            position,
            bytes,
            missed: Lapped::default(),
        }
    }

    /// All of the closed bucket was handed out: goes on to the next one, if that was not overwritten meanwhile.
    fn leave_bucket(&mut self, shared: &Shared) {
        let Some(hold) = self.hold.take() else { return };
        let header = hold.header();
        // Relaxed: final since the closing that the caller has seen (edge L).
        self.bytes =
            header.first_bytes.load(Ordering::Relaxed) + header.bytes.load(Ordering::Relaxed);
        // The next bucket is held before this one is given back, and opened before this one was closed.
        self.hold = hold
            .next()
            .and_then(|next| Hold::new(&shared.storage, next));
        if let Some(next) = &self.hold {
            assert_eq!(
                next.first(),
                self.position,
                "buckets of a producer follow each other"
            );
        }
    }

    /// Without a bucket, and behind the producer: finds the oldest bucket with later records, and returns what was lost
    /// before it.
    fn find_place(&mut self, shared: &Shared) -> Lapped {
        let outer = lock(&shared.outer);
        let place = outer.place(self.producer, self.position);
        // The mutex keeps the bucket from being claimed.
        self.hold = place.and_then(|place| Hold::new(&shared.storage, place.bucket));
        let (first, first_bytes) = match place {
            Some(Place {
                first, first_bytes, ..
            }) => (first, first_bytes),
            None => shared.published_with_bytes(self.producer), // its last bucket is gone, and so is the producer
        };
        drop(outer);
        let missed = Lapped {
            packets: first.saturating_sub(self.position),
            bytes: first_bytes.saturating_sub(self.bytes),
        };
        if missed.packets > 0 {
            (self.position, self.bytes) = (first, first_bytes);
        }
        self.missed += missed;
        missed
    }
}

fn in_bucket(records: u64) -> usize {
    usize::try_from(records).expect("a bucket has at most 2^27 descriptors")
}
