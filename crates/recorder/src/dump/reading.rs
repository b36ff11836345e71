//! How far the ring was read: for one dump that catches up, or for all that follow together.

use std::{collections::HashMap, ops::Range};

use retroscope_ring::{BucketInfo, BucketRef, EvictedBucket, Reservation, Ring};

use crate::control::progress::Reach;

/// See the module.
#[derive(Debug)]
pub(super) struct WindowReading {
    /// Of what is not read yet.
    reservation: Reservation,
    yields: bool,
    /// How many records of a bucket were looked at, of the buckets that it still wants.
    scanned: HashMap<BucketRef, u32>,
}

/// What was overwritten before it was read.
#[derive(Debug, Default)]
pub(super) struct OverwrittenBuckets {
    /// Buckets, and how many records of each were looked at: not all.
    pub(super) buckets: Vec<(EvictedBucket, u32)>,
    /// More may have been overwritten that nobody remembers: packets of ring times up to this one, ns.
    pub(super) unknown_before_ns: Option<i64>,
}

impl OverwrittenBuckets {
    pub(super) fn is_none(&self) -> bool {
        self.buckets.is_empty() && self.unknown_before_ns.is_none()
    }
}

impl WindowReading {
    /// Nothing was read yet.
    pub(super) fn new(reservation: Reservation) -> Self {
        Self {
            reservation,
            yields: false,
            scanned: HashMap::new(),
        }
    }

    /// All records within `reach` were read; later ones are wanted from buckets that touch `from_ns..=to_ns`. Visits the unread buckets
    /// only.
    pub(super) fn resume_at(ring: &Ring, reach: &Reach, from_ns: i64, to_ns: i64) -> Self {
        let mut infos = Vec::new();
        for producer in 0..ring.producers() {
            // The last record that was read shows the bucket that is read in part.
            let from = reach.limit(producer).saturating_sub(1);
            ring.buckets_from(producer, from, &mut infos);
        }
        let mut scanned = HashMap::new();
        for info in &infos {
            let read = reach.limit_in(info).min(info.committed);
            if read > 0 && !(info.closed && read == info.committed) {
                scanned.insert(info.bucket, read);
            }
        }
        // After the listing: a bucket that closes in between is not wanted if all its records were read.
        let reservation = ring.reserve_unread(|producer| reach.limit(producer), from_ns, to_ns);
        Self {
            reservation,
            yields: false,
            scanned,
        }
    }

    /// Whether it stands still: then others that go on are not to lose their reservations before it does.
    pub(super) fn set_yielding(&mut self, yields: bool) {
        if std::mem::replace(&mut self.yields, yields) != yields {
            self.reservation.set_yielding(yields);
        }
    }

    /// No more is wanted than what touches `from_ns..=to_ns`.
    pub(super) fn narrow(&self, from_ns: i64, to_ns: i64) {
        self.reservation.set_interval(from_ns, to_ns);
    }

    /// Lists the buckets that it wants.
    pub(super) fn buckets(&self, out: &mut Vec<BucketInfo>) {
        self.reservation.buckets(out);
    }

    /// Which records of a bucket are still to be looked at, of the first `limit`.
    pub(super) fn unread(&self, info: &BucketInfo, limit: u32) -> Range<u32> {
        self.read(info.bucket)..info.committed.min(limit)
    }

    /// How many records of a bucket were looked at.
    fn read(&self, bucket: BucketRef) -> u32 {
        self.scanned.get(&bucket).copied().unwrap_or(0)
    }

    /// The first `records` of a bucket were looked at.
    pub(super) fn has_read(&mut self, bucket: BucketRef, records: u32) {
        self.scanned.insert(bucket, records);
    }

    /// It goes on where another one is, whose losses are told already: they are not told again.
    pub(super) fn has_read_as(&mut self, other: &Self, lost: &OverwrittenBuckets) {
        self.scanned.extend(&other.scanned);
        let lost = lost.buckets.iter();
        self.scanned
            .extend(lost.map(|(bucket, _)| (bucket.bucket, u32::MAX)));
    }

    /// Of the buckets listed, those that are closed and wholly read may be overwritten.
    pub(super) fn give_back(&mut self, infos: &[BucketInfo]) {
        for info in infos {
            if info.closed && self.read(info.bucket) == info.committed {
                self.reservation.give_back(info.bucket);
                self.scanned.remove(&info.bucket);
            }
        }
    }

    /// Whether it protects nothing any more.
    pub(super) fn has_fallen(&self) -> bool {
        self.reservation.has_fallen()
    }

    /// What was overwritten although it was wanted, since this was last asked.
    pub(super) fn lost(&mut self) -> OverwrittenBuckets {
        let mut fallen = Vec::new();
        let unknown_before_ns = self.reservation.fallen(&mut fallen);
        let mut buckets = Vec::new();
        for bucket in fallen {
            let skip = self.scanned.remove(&bucket.bucket).unwrap_or(0);
            if skip < bucket.packets {
                buckets.push((bucket, skip));
            }
        }
        OverwrittenBuckets {
            buckets,
            unknown_before_ns,
        }
    }
}
