//! The reading side: a member of a group, and the batches that it gets.

use std::{sync::Arc, time::Duration};

use crate::{
    Lapped, Packets, Positions, Waker,
    cursor::ProducerCursor,
    group::Group,
    parker::Parker,
    ring::RingInner,
    sync::{Ordering, lock},
};

/// One member of a group ([`Ring::group_of`](crate::Ring::group_of)). Gets the records of each of
/// its producers in order, except overwritten records.
#[derive(Debug)]
pub struct Reader {
    ring: Arc<RingInner>,
    group: Arc<Group>,
    parker: Parker,
    cursors: Box<[ProducerCursor]>,
    /// Index of the cursor that the next search tries first. The number of cursors means 0.
    turn: usize,
    /// Index of the cursor whose last batch is not finished.
    lent: Option<usize>,
    lapped: Lapped,
}

/// A run of records of one producer, in one bucket. The reader holds the bucket while the batch is
/// in use.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Batch<'r> {
    /// Number of the producer.
    pub producer: usize,
    /// Number of the first record, counted per producer.
    pub first: u64,
    /// Packets lost between the reader's previous batch of this producer and this batch.
    pub missed: Lapped,
    /// A lower bound of the ring times, ns, of the bucket's records up to the end of the batch.
    pub oldest_ns: i64,
    packets: Packets<'r>,
}

impl Batch<'_> {
    /// Number of records, at least 1.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "it never is")]
    pub fn len(&self) -> usize {
        self.packets.len()
    }
}

impl<'r> Batch<'r> {
    /// Ring time, ns, and captured bytes of each record, without access to the captured bytes.
    pub fn times_and_lengths(&self) -> impl ExactSizeIterator<Item = (i64, usize)> + use<'r> {
        self.packets.clone().times_and_lengths()
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
    pub(crate) fn new(
        ring: &Arc<RingInner>,
        group: &Arc<Group>,
        parker: usize,
        cursors: Box<[ProducerCursor]>,
    ) -> Self {
        Self {
            ring: Arc::clone(ring),
            group: Arc::clone(group),
            parker: Parker::new(&ring.parkers, parker, ring.barrier),
            cursors,
            turn: 0,
            lent: None,
            lapped: Lapped::default(),
        }
    }

    /// The next run of published records, from the producers in turn. `None`: no new records, or
    /// the bucket of the new records has the maximum number of holds.
    ///
    /// Also finishes the previous batch ([`Self::finish`]).
    #[expect(
        clippy::should_implement_trait,
        reason = "lends from the reader, which Iterator cannot"
    )]
    pub fn next(&mut self) -> Option<Batch<'_>> {
        self.finish();
        let (turn, end) = self.find()?;
        self.turn = turn + 1;
        self.lent = Some(turn);
        let cursor = &mut self.cursors[turn];
        let producer = cursor.producer;
        let first = std::mem::replace(&mut cursor.position, end);
        let missed = std::mem::take(&mut cursor.missed);
        let hold = cursor.hold.as_ref();
        let hold = hold.expect("advance() leaves a hold where it finds records");
        let start = hold.first();
        let packets = Packets::new(hold, in_bucket(first - start), in_bucket(end - start));
        let oldest_ns = hold.oldest_ns();
        Some(Batch {
            producer,
            first,
            missed,
            oldest_ns,
            packets,
        })
    }

    /// Finishes the last batch: moves the group's position after the batch.
    pub fn finish(&mut self) {
        if let Some(turn) = self.lent.take() {
            let cursor = &self.cursors[turn];
            self.ring
                .pass(&self.group, cursor.producer, cursor.position);
        }
    }

    /// As [`Self::finish`], and holds no bucket afterwards. The bytes of later losses are an upper
    /// bound ([`Lapped::bytes`]).
    ///
    /// A reader that holds buckets only while no producer needs a bucket can be one of
    /// [`RingConfig::releasing_readers`](crate::RingConfig::releasing_readers).
    pub fn release(&mut self) {
        self.finish();
        self.cursors.iter_mut().for_each(ProducerCursor::release);
    }

    /// Continues with the record `next` of `producer`, and moves the group's position to this
    /// record: to return the end of a batch, or to skip records.
    ///
    /// The bytes of later losses are an upper bound. No effect if this reader does not read the
    /// producer.
    ///
    /// # Panics
    /// If `next` is before the group's position, at which an unfinished batch begins.
    pub fn continue_at(&mut self, producer: usize, next: u64) {
        let Some(turn) = (self.cursors.iter()).position(|it| it.producer == producer) else {
            return;
        };
        if self.lent == Some(turn) {
            self.lent = None;
        }
        self.finish();
        let finished = self.group.position(producer);
        assert!(next >= finished, "records before {finished} are finished");
        self.cursors[turn].go_to(next);
        self.ring.pass(&self.group, producer, next);
    }

    /// The group's positions.
    #[must_use]
    pub fn positions(&self) -> Positions {
        Positions::new(&self.group)
    }

    /// The packets that this reader is known to have missed. Members of a group count different
    /// packets.
    #[must_use]
    pub fn lapped(&self) -> Lapped {
        self.lapped
    }

    /// Sleeps until a producer of this reader publishes records that were not handed out yet, a
    /// [`Waker`] or [`Ring::close`](crate::Ring::close) wakes the reader, or `timeout` passes
    /// (returns `false`). Does not [finish](Self::finish) the last batch.
    ///
    /// On a busy link the reader usually sleeps about 100 µs, so that no producer has to wake it
    /// ("Batched wake-ups" in `parker.rs`).
    pub fn wait(&mut self, timeout: Duration) -> bool {
        let ring = &self.ring;
        let behind = |cursor: &ProducerCursor| ring.published(cursor.producer) > cursor.position;
        let news = || self.cursors.iter().any(behind);
        let cursors = self.cursors.iter();
        let wait_sets = cursors.map(|cursor| &ring.wait_sets[cursor.producer].0);
        self.parker.park(wait_sets, news, timeout)
    }

    /// Sleeps until a [`Waker`] or [`Ring::close`](crate::Ring::close) wakes the reader, or
    /// `timeout` passes (returns `false`). Publications do not end the sleep.
    ///
    /// Does not finish the last batch: a writer that waits for the group keeps waiting.
    pub fn doze(&mut self, timeout: Duration) -> bool {
        self.parker.doze(timeout)
    }

    /// A handle that wakes this reader.
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.parker.waker()
    }

    /// The index of the first cursor from `turn` on that has records, and the number after the last
    /// record that it can read in its bucket.
    fn find(&mut self) -> Option<(usize, u64)> {
        let mut turn = self.turn;
        for _ in 0..self.cursors.len() {
            if turn >= self.cursors.len() {
                turn = 0;
            }
            let cursor = &mut self.cursors[turn];
            if let Some(end) = cursor.advance(&self.ring, &self.group, &mut self.lapped) {
                return Some((turn, end));
            }
            turn += 1;
        }
        None
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.finish();
        for cursor in &mut self.cursors {
            self.group.set_position(cursor.producer, u64::MAX);
            cursor.hold = None;
        }
        let mut outer = lock(&self.ring.outer);
        outer.parkers_free.push(self.parker.number());
        // Relaxed: the outer mutex orders the members.
        if self.group.members_open.fetch_sub(1, Ordering::Relaxed) == 1 {
            outer
                .gating
                .retain(|group| !Arc::ptr_eq(group, &self.group));
        }
        drop(outer);
        self.ring.storage.freed.notify();
    }
}

fn in_bucket(records: u64) -> usize {
    usize::try_from(records).expect("a bucket has at most 2^27 descriptors")
}
