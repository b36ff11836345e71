//! How far one catching-up dump, or all following dumps together, have read the ring.

use std::{collections::HashMap, ops::Range};

use retroscope_ring::{BucketInfo, BucketRef, EvictedBucket, Reservation, Ring};

use crate::control::progress::Reach;

/// Reserved buckets, and how many of their records were read.
#[derive(Debug)]
pub(super) struct WindowReading {
    reservation: Reservation,
    /// Records that were read before this reading began, by producer.
    began_at: Vec<u64>,
    /// Records that were read, by bucket. Without an entry, `began_at` decides.
    scanned: HashMap<BucketRef, u32>,
}

/// Buckets that the ring overwrote before all their records were read.
#[derive(Debug, Default)]
pub(super) struct OverwrittenBuckets {
    /// Each bucket, and how many of its records were read before.
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
    pub(super) fn new(reservation: Reservation) -> Self {
        Self {
            reservation,
            began_at: Vec::new(),
            scanned: HashMap::new(),
        }
    }

    /// Begins where `reach` ends, with the buckets that touch `from_ns..=to_ns`. With `shared`,
    /// takes over the records that `shared` has read and the losses that it has not reported yet.
    pub(super) fn resume_at(
        ring: &Ring,
        reach: &Reach,
        shared: Option<&Self>,
        (from_ns, to_ns): (i64, i64),
    ) -> Self {
        let (read, after) = (reach.limits.clone(), shared.map(|it| &it.reservation));
        Self {
            reservation: ring.reserve_unread(read, after, from_ns, to_ns),
            began_at: reach.limits.clone(),
            scanned: shared.map_or_else(HashMap::new, |it| it.scanned.clone()),
        }
    }

    /// The ring overwrites the buckets of readings that *yield* before all other reserved buckets.
    pub(super) fn set_yielding(&self) {
        self.reservation.set_yielding(true);
    }

    /// Limits the reading to buckets that touch `from_ns..=to_ns`.
    pub(super) fn narrow(&self, from_ns: i64, to_ns: i64) {
        self.reservation.set_interval(from_ns, to_ns);
    }

    pub(super) fn buckets(&self, out: &mut Vec<BucketInfo>) {
        self.reservation.buckets(out);
    }

    pub(super) fn unread(&self, info: &BucketInfo, limit: u32) -> Range<u32> {
        self.read(info.bucket, info.producer, info.first)..info.committed.min(limit)
    }

    fn read(&self, bucket: BucketRef, producer: usize, first: u64) -> u32 {
        let began_at = self.began_at.get(producer).copied().unwrap_or(0);
        let before = u32::try_from(began_at.saturating_sub(first)).unwrap_or(u32::MAX);
        self.scanned.get(&bucket).copied().unwrap_or(before)
    }

    /// Notes that the first `records` of a bucket were read.
    pub(super) fn has_read(&mut self, bucket: BucketRef, records: u32) {
        self.scanned.insert(bucket, records);
    }

    /// Lets the ring overwrite the listed buckets that are closed and wholly read.
    pub(super) fn give_back(&mut self, infos: &[BucketInfo]) {
        for info in infos {
            let read = self.read(info.bucket, info.producer, info.first);
            if info.closed && read >= info.committed {
                self.reservation.give_back(info.bucket);
                self.scanned.remove(&info.bucket);
            }
        }
    }

    /// Reports each bucket once.
    pub(super) fn lost(&mut self) -> OverwrittenBuckets {
        let mut fallen = Vec::new();
        let unknown_before_ns = self.reservation.fallen(&mut fallen);
        let mut buckets = Vec::new();
        for bucket in fallen {
            let skip = self.read(bucket.bucket, bucket.producer, bucket.first);
            self.scanned.remove(&bucket.bucket);
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
