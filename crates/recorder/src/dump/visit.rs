//! Which dumps need which records of a bucket.
//!
//! A new dump *catches up*: it reads the records of its window that are in the ring. After that it
//! *follows*: it reads new records together with the other following dumps.

use std::ops::Range;

use retroscope_ring::BucketInfo;

use super::active::ActiveDump;

#[derive(Debug)]
pub(super) struct BucketVisit {
    pub(super) info: BucketInfo,
    /// The records that following dumps have not read, counted from the start of the bucket.
    pub(super) following: Range<u32>,
    /// The records that catching-up dumps need, in the order of the dumps' numbers.
    pub(super) wanted: Vec<WantedRecords>,
    /// The records that dumps with a dump script need, following or catching up.
    pub(super) scripted: Vec<WantedRecords>,
    /// The range of ring times, ns, that the dumps' filters need.
    pub(super) window: (i64, i64),
    /// Buckets that are visited later in the pass have no packets before this ring time, ns.
    pub(super) until_ns: i64,
}

#[derive(Debug, Clone)]
pub(super) struct WantedRecords {
    pub(super) id: u64,
    pub(super) records: Range<u32>,
}

impl BucketVisit {
    pub(super) fn new(info: BucketInfo) -> Self {
        Self {
            info,
            following: 0..0,
            wanted: Vec::new(),
            scripted: Vec::new(),
            window: (i64::MAX, i64::MIN),
            until_ns: i64::MAX,
        }
    }

    /// Adds the range of ring times, ns, that a dump's filter needs.
    pub(super) fn extend(&mut self, (from_ns, to_ns): (i64, i64)) {
        self.window = (self.window.0.min(from_ns), self.window.1.max(to_ns));
    }

    /// The range from the first needed record to the last.
    pub(super) fn records(&self) -> Range<u32> {
        let following = Some(&self.following).filter(|records| !records.is_empty());
        let wanted = self.wanted.iter().map(|want| &want.records);
        let all = following.into_iter().chain(wanted).cloned();
        let all = all.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end));
        all.unwrap_or_default()
    }

    pub(super) fn is_for(&self, dump: &ActiveDump, index: u32) -> bool {
        if dump.reading.is_none() {
            let record = self.info.first + u64::from(index);
            return self.following.contains(&index) && record < dump.end(self.info.producer);
        }
        let want = (self.wanted).binary_search_by_key(&dump.order.id, |want| want.id);
        want.is_ok_and(|want| self.wanted[want].records.contains(&index))
    }
}
