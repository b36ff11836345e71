//! A dump's window: buckets that are kept until they were written.

use std::sync::Arc;

use crate::{BucketInfo, BucketRef, Evicted, EvictedBucket, ring::Shared, sync::lock};

/// Protects every closed bucket that touches an interval of packet time, now and later, until it is given back, the
/// reservation falls (record mode) or is dropped. Open buckets need no protection: they are never overwritten.
#[derive(Debug)]
pub struct Reservation {
    shared: Arc<Shared>,
    id: u64,
    evicted_before: Evicted,
}

impl Reservation {
    pub(crate) fn new(shared: &Arc<Shared>, from_ns: i64, to_ns: i64) -> Self {
        let (id, evicted_before) = lock(&shared.outer).reserve(from_ns, to_ns);
        Self {
            shared: Arc::clone(shared),
            id,
            evicted_before,
        }
    }

    /// Lists every bucket with committed records that touches the interval, open or closed, that was not given back:
    /// in place of what `out` held, by producer and then in the order of its records.
    pub fn buckets(&self, out: &mut Vec<BucketInfo>) {
        out.clear();
        lock(&self.shared.outer).buckets(self.id, &self.shared.storage, out);
    }

    /// This reservation needs a bucket no longer. No effect unless the bucket is closed: an open one may still get
    /// records of the interval.
    pub fn give_back(&self, bucket: BucketRef) {
        lock(&self.shared.outer).give_back(self.id, bucket);
        self.shared.storage.freed.notify();
    }

    /// Changes the interval, both ends included. Buckets given back stay so.
    pub fn set_interval(&self, from_ns: i64, to_ns: i64) {
        lock(&self.shared.outer).set_interval(self.id, from_ns, to_ns);
        self.shared.storage.freed.notify();
    }

    /// Takes what was overwritten although this reservation wanted it (record mode), and appends it to `out`. Each bucket
    /// is told once.
    pub fn fallen(&self, out: &mut Vec<EvictedBucket>) {
        lock(&self.shared.outer).fallen(self.id, out);
    }

    /// What of the interval was gone when the reservation was made: nothing falls between this and [`Self::fallen`].
    #[must_use]
    pub fn evicted_before(&self) -> &Evicted {
        &self.evicted_before
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        lock(&self.shared.outer).release(self.id);
        self.shared.storage.freed.notify();
    }
}
