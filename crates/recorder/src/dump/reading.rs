//! The position up to which the ring is read: of one dump that catches up, or of all following
//! dumps.

use std::{collections::HashMap, ops::Range};

use retroscope_ring::{BucketInfo, BucketRef, EvictedBucket, Reservation, Ring};

use crate::control::progress::Reach;

/// A reservation, and the records of its buckets that were read.
#[derive(Debug)]
pub(super) struct WindowReading {
    /// Reserves the buckets that are not wholly read.
    reservation: Reservation,
    yields: bool,
    /// The number of records that were read, by reserved bucket. `u32::MAX`: the loss of the bucket
    /// is already reported.
    scanned: HashMap<BucketRef, u32>,
}

/// Buckets that the ring overwrote before all their records were read.
#[derive(Debug, Default)]
pub(super) struct OverwrittenBuckets {
    /// Each overwritten bucket, and how many of its records were read before.
    pub(super) buckets: Vec<(EvictedBucket, u32)>,
    /// The ring may have overwritten and forgotten more buckets, with packets up to this ring time,
    /// ns.
    pub(super) unknown_before_ns: Option<i64>,
}

impl OverwrittenBuckets {
    pub(super) fn is_none(&self) -> bool {
        self.buckets.is_empty() && self.unknown_before_ns.is_none()
    }
}

impl WindowReading {
    /// A reading that has read nothing yet.
    pub(super) fn new(reservation: Reservation) -> Self {
        Self {
            reservation,
            yields: false,
            scanned: HashMap::new(),
        }
    }

    /// A reading that has read all records within `reach`, and needs later records from buckets
    /// that touch `from_ns..=to_ns`. Reserves no closed bucket that is wholly read.
    pub(super) fn resume_at(ring: &Ring, reach: &Reach, from_ns: i64, to_ns: i64) -> Self {
        let mut infos = Vec::new();
        for producer in 0..ring.producers() {
            // Begin at the last record that was read: its bucket may be read only in part.
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
        // The listing comes before the reservation. Otherwise a bucket that closes in between could
        // be reserved but missing in `scanned`, and its records would be read twice.
        let reservation = ring.reserve_unread(|producer| reach.limit(producer), from_ns, to_ns);
        Self {
            reservation,
            yields: false,
            scanned,
        }
    }

    /// Sets whether the reading *yields*, because it makes no progress. The ring drops the
    /// reservations of readings that yield before all other reservations.
    pub(super) fn set_yielding(&mut self, yields: bool) {
        if std::mem::replace(&mut self.yields, yields) != yields {
            self.reservation.set_yielding(yields);
        }
    }

    /// Limits the reading to buckets that touch `from_ns..=to_ns`.
    pub(super) fn narrow(&self, from_ns: i64, to_ns: i64) {
        self.reservation.set_interval(from_ns, to_ns);
    }

    /// Lists the reserved buckets.
    pub(super) fn buckets(&self, out: &mut Vec<BucketInfo>) {
        self.reservation.buckets(out);
    }

    /// The unread records among the first `limit` records of a bucket.
    pub(super) fn unread(&self, info: &BucketInfo, limit: u32) -> Range<u32> {
        self.read(info.bucket)..info.committed.min(limit)
    }

    /// Number of records of a bucket that were read.
    fn read(&self, bucket: BucketRef) -> u32 {
        self.scanned.get(&bucket).copied().unwrap_or(0)
    }

    /// Notes that the first `records` of a bucket were read.
    pub(super) fn has_read(&mut self, bucket: BucketRef, records: u32) {
        self.scanned.insert(bucket, records);
    }

    /// Continues at the position of the reading `other`. The losses of `other`, the latest of which
    /// are `lost`, are already reported, and this reading must not report them again.
    pub(super) fn has_read_as(&mut self, other: &Self, lost: &OverwrittenBuckets) {
        // `u32::MAX` marks losses that `other` inherited in this way. The ring had overwritten
        // these buckets before this reading was made, so this reading cannot report the losses.
        let read = other.scanned.iter().filter(|(_, read)| **read != u32::MAX);
        self.scanned.extend(read);
        let lost = lost.buckets.iter();
        self.scanned
            .extend(lost.map(|(bucket, _)| (bucket.bucket, u32::MAX)));
    }

    /// Lets the ring overwrite the listed buckets that are closed and wholly read.
    pub(super) fn give_back(&mut self, infos: &[BucketInfo]) {
        for info in infos {
            if info.closed && self.read(info.bucket) == info.committed {
                self.reservation.give_back(info.bucket);
                self.scanned.remove(&info.bucket);
            }
        }
    }

    /// Whether the ring has dropped the reservation, which then protects no bucket.
    pub(super) fn has_fallen(&self) -> bool {
        self.reservation.has_fallen()
    }

    /// The unread records that were overwritten since the last call.
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
