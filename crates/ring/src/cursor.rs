//! The position of a reader in the chain of one producer's buckets.

use crate::{
    BucketRef, Lapped,
    group::Group,
    ring::RingInner,
    storage::Hold,
    sync::{Ordering, lock},
};

/// A position in the records of one producer, and the bucket at that position.
#[derive(Debug)]
pub(crate) struct ProducerCursor {
    pub(crate) producer: usize,
    /// The bucket that contains `position` or ends there. `None`: [`Self::advance`] searches for
    /// the bucket.
    pub(crate) hold: Option<Hold>,
    /// The bucket whose hold [`Self::release`] gave up last.
    released: Option<BucketRef>,
    /// Number of the first record not handed out.
    pub(crate) position: u64,
    /// Captured bytes of the producer's records before the current bucket, or fewer after
    /// [`Self::go_to`] or [`Reader::release`](crate::Reader::release).
    bytes: u64,
    /// Packets lost since the last batch of this producer.
    pub(crate) missed: Lapped,
}

impl ProducerCursor {
    pub(crate) fn new(producer: usize, position: u64, bytes: u64) -> Self {
        Self {
            producer,
            hold: None,
            released: None,
            position,
            bytes,
            missed: Lapped::default(),
        }
    }

    /// Moves to the first bucket with unread records. Returns the number after its last readable
    /// record. `None`: no record can be read now. Adds losses to `lapped`.
    pub(crate) fn advance(
        &mut self,
        ring: &RingInner,
        group: &Group,
        lapped: &mut Lapped,
    ) -> Option<u64> {
        loop {
            let Some(hold) = &self.hold else {
                if ring.published(self.producer) <= self.position {
                    return None;
                }
                let released = self.released.take();
                let hold = released.and_then(|bucket| Hold::new(&ring.storage, bucket));
                self.hold = hold.filter(|hold| may_contain(hold, self.position));
                if self.hold.is_some() {
                    continue;
                }
                *lapped += self.find_bucket(ring, group);
                // `None`: the producer has no bucket left, or the bucket already has the maximum
                // number of holds. A later call tries again.
                self.hold.as_ref()?;
                continue;
            };
            // Loaded before the mark: if the bucket is closed, the mark is final.
            let is_closed = hold.header().control.is_closed();
            let end = hold.first() + hold.committed() as u64;
            if end > self.position {
                return Some(end);
            }
            if !is_closed {
                return None;
            }
            self.leave_bucket(ring);
        }
    }

    /// Moves to a record. Keeps the hold if the bucket may contain the record.
    pub(crate) fn go_to(&mut self, position: u64) {
        self.position = position;
        self.hold = self.hold.take().filter(|hold| may_contain(hold, position));
    }

    /// Gives up its hold, and remembers the bucket.
    pub(crate) fn release(&mut self) {
        if let Some(hold) = self.hold.take() {
            self.released = Some(hold.bucket());
        }
    }

    /// The reader got all records of the closed bucket: continues with the next bucket if that
    /// bucket exists and can be held.
    fn leave_bucket(&mut self, ring: &RingInner) {
        let Some(closed) = self.hold.take() else {
            return;
        };
        // The next bucket is held before this bucket is released.
        let next = closed.next();
        self.hold = next.and_then(|next| Hold::new(&ring.storage, next));
        if let Some(next) = &self.hold {
            assert_eq!(
                next.first(),
                self.position,
                "buckets of a producer follow each other"
            );
        }
        let header = closed.header();
        // Relaxed: final since the closing that the caller has seen (edge L).
        self.bytes =
            header.first_bytes.load(Ordering::Relaxed) + header.bytes.load(Ordering::Relaxed);
    }

    /// Finds the oldest bucket with records from the position on, and returns the losses before
    /// that bucket.
    fn find_bucket(&mut self, ring: &RingInner, group: &Group) -> Lapped {
        let outer = lock(&ring.outer);
        let oldest = outer.oldest_bucket(self.producer, self.position);
        // The mutex keeps the bucket from being claimed.
        self.hold = oldest.and_then(|oldest| Hold::new(&ring.storage, oldest.bucket));
        let (first, first_bytes) = match oldest {
            Some(oldest) => (oldest.first, oldest.first_bytes),
            // The producer was dropped, and its last bucket was overwritten.
            None => ring.published_with_bytes(self.producer),
        };
        drop(outer);
        if first <= self.position {
            // The bytes before the position may be out of date after `go_to` or `release`.
            self.bytes = self.bytes.max(first_bytes);
            return Lapped::default();
        }
        let missed = Lapped {
            packets: first - self.position,
            bytes: first_bytes.saturating_sub(self.bytes),
        };
        (self.position, self.bytes) = (first, first_bytes);
        ring.pass(group, self.producer, self.position);
        self.missed += missed;
        missed
    }
}

/// Whether the bucket contains record `position`, or its committed records end there.
fn may_contain(hold: &Hold, position: u64) -> bool {
    let end = hold.first() + hold.committed() as u64;
    (hold.first()..=end).contains(&position)
}
