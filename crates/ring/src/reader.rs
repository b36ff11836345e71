//! The reading side: a member of a group, and what it is handed.

use std::{sync::Arc, time::Duration};

use crate::{
    BucketRef, GroupKind, Lapped, Packets, Positions, Summaries, Waker,
    cursor::{Ahead, Cursor},
    group::{Group, Lane},
    ring::Shared,
    sleep::Sleeper,
    sync::{Ordering, lock},
};

/// One member of a group: is handed each record that falls to it once. One thread at a time.
///
/// In a group that divides producers ([`Ring::group_of`](crate::Ring::group_of)) a member sees all records of its producers,
/// in the order of each producer. In one that divides buckets ([`Ring::sharing_group`](crate::Ring::sharing_group)) records
/// of one bucket stay in order and with one member, and nothing else is promised.
#[derive(Debug)]
pub struct Reader {
    shared: Arc<Shared>,
    group: Arc<Group>,
    /// Its number in the group.
    member: usize,
    sleeper: Sleeper,
    /// Producers, or parts of what they stored, in which this member has the next record; room for all there can be.
    cursors: Vec<Cursor>,
    /// The cursor to be asked first.
    turn: usize,
    /// The cursor whose batch was handed out and is not done yet.
    lent: Option<usize>,
    lapped: Lapped,
}

/// A run of records of one producer, in one bucket. The bucket is held as long as the reader has not moved on.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Batch<'r> {
    /// Whose records.
    pub producer: usize,
    /// The producer's number of the first of them.
    pub first: u64,
    /// Lost between the producer's last batch and this one. In a group that divides buckets that last batch may have been
    /// handed to another member, and the loss found (and counted by [`Reader::lapped`]) by one that was dropped since.
    pub missed: Lapped,
    /// No record that was published in their bucket until they were found is older, ns since the UNIX epoch.
    pub oldest_ns: i64,
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
    /// What is known of the records without touching their payload, in order.
    pub fn summaries(&self) -> Summaries<'r> {
        self.packets.summaries()
    }

    /// The records, in order.
    pub fn iter(&self) -> Packets<'r> {
        self.packets.clone().ahead()
    }
}

impl<'r> IntoIterator for Batch<'r> {
    type Item = crate::Packet<'r>;
    type IntoIter = Packets<'r>;

    fn into_iter(self) -> Packets<'r> {
        self.packets.ahead()
    }
}

impl Reader {
    /// A member of a new group. `cursors` of the producers with which it starts; `cursors_max` it may come to have.
    pub(crate) fn new(
        shared: &Arc<Shared>,
        group: &Arc<Group>,
        (member, bed): (usize, usize),
        cursors: impl Iterator<Item = Cursor>,
        cursors_max: usize,
    ) -> Self {
        let mut room = Vec::with_capacity(cursors_max);
        room.extend(cursors);
        Self {
            shared: Arc::clone(shared),
            group: Arc::clone(group),
            member,
            sleeper: Sleeper::new(&shared.beds, bed, shared.barrier),
            cursors: room,
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
        let (turn, end) = self.find().or_else(|| self.help())?;
        self.turn = turn + 1;
        self.lent = Some(turn);
        let cursor = &mut self.cursors[turn];
        let producer = cursor.lane.producer;
        if let Some(share) = &self.group.share {
            share.call_peer(producer, &self.shared.storage);
        }
        let first = std::mem::replace(&mut cursor.position, end);
        let missed = std::mem::take(&mut cursor.missed);
        let hold = cursor.hold.as_ref();
        let hold = hold.expect("advance() leaves a hold where it finds records");
        let start = hold.first();
        let packets = Packets::new(hold, in_bucket(first - start), in_bucket(end - start));
        let bucket = hold.bucket();
        let oldest_ns = hold.oldest_ns();
        Some(Batch {
            producer,
            first,
            missed,
            oldest_ns,
            packets,
            bucket,
        })
    }

    /// Declares the last batch done, which moves the group's position past it, without fetching another. Where members share
    /// buckets, the position goes on behind this one's bucket only when it calls [`Self::next`] again (or is dropped).
    pub fn finish(&mut self) {
        if let Some(turn) = self.lent.take() {
            let cursor = &self.cursors[turn];
            self.shared.pass(&self.group, cursor.lane, cursor.position);
        }
    }

    /// Records of a producer that the group is done with, or missed: all of them up to this number, counted over the
    /// producer's life. Where members share buckets, later ones may be done as well.
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

    /// All that this reader found missing. The group has missed the sum over its members; nothing is counted twice.
    #[must_use]
    pub fn lapped(&self) -> Lapped {
        self.lapped
    }

    /// The producers whose records this member may be handed.
    pub fn producers(&self) -> impl Iterator<Item = usize> {
        let all = self.group.share.is_some();
        (0..self.shared.dormitories.len()).filter(move |&producer| {
            all || self
                .cursors
                .iter()
                .any(|cursor| cursor.lane.producer == producer)
        })
    }

    /// Sleeps until one of its producers has published something that was not handed out yet, somebody wakes it, or
    /// `timeout`. `false`: the timeout came first. The last batch stays lent.
    ///
    /// On a busy link it sleeps about 100 µs whatever is published meanwhile, so that nobody has to wake it: see "Batched
    /// wake-ups" in `sleep.rs`. To poll instead, call [`Self::next`] again.
    pub fn wait(&mut self, timeout: Duration) -> bool {
        let (shared, share) = (&self.shared, &self.group.share);
        let behind = |cursor: &Cursor| shared.published(cursor.lane.producer) > cursor.position;
        let news = || {
            self.cursors.iter().any(behind)
                || share
                    .as_ref()
                    .is_some_and(|share| share.has_work(&shared.storage))
        };
        let offer = || {
            if let Some(share) = share {
                share.offer(self.member);
            }
        };
        let rooms = self
            .cursors
            .iter()
            .map(|cursor| &shared.dormitories[cursor.lane.producer].0);
        self.sleeper.sleep(rooms, news, offer, timeout)
    }

    /// Sleeps until somebody wakes it ([`Self::waker`]), or `timeout`, whatever is published meanwhile. `false`: the timeout came
    /// first. The last batch stays lent.
    ///
    /// For readers that are told by other means what is worth reading. Behind a [`GroupKind::Gating`] group it is a writer that
    /// waits.
    pub fn doze(&mut self, timeout: Duration) -> bool {
        self.sleeper.doze(timeout)
    }

    /// A handle that wakes this reader.
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.sleeper.waker()
    }

    /// The first cursor from `turn` on that has records, and the number behind the last of them.
    fn find(&mut self) -> Option<(usize, u64)> {
        let mut turn = self.turn;
        for _ in 0..self.cursors.len() {
            if turn >= self.cursors.len() {
                turn = 0;
            }
            let ahead = self.cursors[turn].advance(&self.shared, &self.group, &mut self.lapped);
            match ahead {
                Ahead::Records(end) => return Some((turn, end)),
                Ahead::Nothing => turn += 1,
                Ahead::Over => {
                    // The others keep their order: one that changed places could be passed over.
                    let cursor = self.cursors.remove(turn);
                    self.group.end(cursor.lane);
                    if self.group.kind == GroupKind::Gating {
                        self.shared.storage.bell.ring();
                    }
                }
            }
        }
        None
    }

    /// Has no records: where members share buckets, takes over what others left or have not come to yet.
    fn help(&mut self) -> Option<(usize, u64)> {
        while let Some(cursor) = self.group.share.as_ref()?.adopt() {
            self.cursors.push(cursor);
            if let Some(found) = self.find() {
                return Some(found);
            }
        }
        for producer in 0..self.shared.dormitories.len() {
            if let Some(cursor) = self.take(producer) {
                self.cursors.push(cursor);
                if let Some(found) = self.find() {
                    return Some(found);
                }
            }
        }
        None
    }

    fn take(&self, producer: usize) -> Option<Cursor> {
        let mut mine = self.cursors.iter().map(|cursor| cursor.lane.producer);
        if mine.any(|mine| mine == producer) {
            return None; // it follows this one itself
        }
        let lane = Lane {
            row: self.member,
            producer,
        };
        let share = self.group.share.as_ref()?;
        share.take(lane, &self.group, &self.shared.storage)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.finish();
        if let Some(share) = &self.group.share {
            share.abandon(self.cursors.drain(..));
        }
        for cursor in self.cursors.drain(..) {
            self.group.end(cursor.lane); // gives the hold back, too
        }
        let mut outer = lock(&self.shared.outer);
        outer.beds_free.push(self.sleeper.bed());
        // Relaxed: the outer mutex orders the members.
        if self.group.members_open.fetch_sub(1, Ordering::Relaxed) == 1 {
            outer
                .gating
                .retain(|group| !Arc::ptr_eq(group, &self.group));
            self.group.end_all();
        }
        drop(outer);
        if let Some(share) = &self.group.share
            && self.group.members_open.load(Ordering::Relaxed) == 0
        {
            share.forget_orphans();
        }
        self.shared.storage.bell.ring();
    }
}

fn in_bucket(records: u64) -> usize {
    usize::try_from(records).expect("a bucket has at most 2^27 descriptors")
}
