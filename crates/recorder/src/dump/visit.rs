//! A bucket to be looked at, and which dumps want which of its records.

use std::ops::Range;

use retroscope_ring::BucketInfo;

use super::active::ActiveDump;

/// See the module.
#[derive(Debug)]
pub(super) struct BucketVisit {
    pub(super) info: BucketInfo,
    /// The records that those dumps want which follow, each as far as its window goes. Records are counted from the start of the bucket.
    pub(super) following: Range<u32>,
    /// What those dumps want which catch up, in the order of their numbers.
    pub(super) wanted: Vec<WantedRecords>,
    /// Of both, what is shown to the scripts that decide for some of them.
    pub(super) scripted: Vec<WantedRecords>,
    /// What the filters of all these dumps look at lies between these ring times, ns.
    pub(super) window: (i64, i64),
    /// From here on packets will still be read in buckets visited later, ns.
    pub(super) until_ns: i64,
}

/// What a dump wants of a bucket.
#[derive(Debug, Clone)]
pub(super) struct WantedRecords {
    /// Its number.
    pub(super) id: u64,
    pub(super) records: Range<u32>,
}

impl BucketVisit {
    /// Nobody wants anything of it yet.
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

    /// A dump wants it whose filter looks at what lies between these ring times, ns.
    pub(super) fn extend(&mut self, (from_ns, to_ns): (i64, i64)) {
        self.window = (self.window.0.min(from_ns), self.window.1.max(to_ns));
    }

    /// The records from the first that is wanted to the last.
    pub(super) fn records(&self) -> Range<u32> {
        let following = Some(&self.following).filter(|records| !records.is_empty());
        let wanted = self.wanted.iter().map(|want| &want.records);
        let all = following.into_iter().chain(wanted).cloned();
        let all = all.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end));
        all.unwrap_or_default()
    }

    /// Whether a dump wants a record.
    pub(super) fn is_for(&self, dump: &ActiveDump, index: u32) -> bool {
        if dump.reading.is_none() {
            let record = self.info.first + u64::from(index);
            return self.following.contains(&index) && record < dump.end(self.info.producer);
        }
        let want = (self.wanted).binary_search_by_key(&dump.order.id, |want| want.id);
        want.is_ok_and(|want| self.wanted[want].records.contains(&index))
    }
}
