//! One overwritten bucket, and what is still known of its packets.

use crate::BucketRef;

/// A bucket that was overwritten.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct EvictedBucket {
    /// The bucket and its generation.
    pub bucket: BucketRef,
    /// The producer that filled the bucket.
    pub producer: usize,
    /// Number of the first record, counted per producer.
    pub first: u64,
    /// Records in the bucket.
    pub packets: u32,
    /// Captured bytes of the records.
    pub bytes: u64,
    /// Smallest ring time, ns.
    pub min_ns: i64,
    /// Largest ring time, ns.
    pub max_ns: i64,
    /// Number of buckets that closed before.
    pub(crate) closing: u64,
    /// Whether a reservation wanted the bucket.
    pub(crate) is_needed: bool,
    /// Ring times of all records, or empty.
    pub(crate) times_ns: Vec<i64>,
}

/// A number of packets, exact or an upper bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EvictedCount {
    /// Packets.
    pub packets: u64,
    /// `false`: `packets` is an upper bound.
    pub exact: bool,
}

/// The overwritten packets of an interval of ring time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Evicted {
    /// Overwritten packets.
    pub packets: u64,
    /// `false`: `packets` is an upper bound, or the log forgot buckets.
    pub exact: bool,
    /// Smallest known ring time of the overwritten packets, or a lower bound, ns.
    pub first_ns: Option<i64>,
    /// Largest known ring time of the overwritten packets, or an upper bound, ns.
    pub last_ns: Option<i64>,
    /// Packets of the interval up to this ring time, ns, may be missing from the counts. `None`:
    /// the log forgot nothing of the interval.
    pub unknown_before_ns: Option<i64>,
}

impl Evicted {
    pub(crate) const NONE: Self = Self {
        packets: 0,
        exact: true,
        first_ns: None,
        last_ns: None,
        unknown_before_ns: None,
    };
}

impl EvictedBucket {
    /// Counts the packets in `from_ns..=to_ns`, without the first `skip_first` records.
    #[must_use]
    pub fn count_in(&self, from_ns: i64, to_ns: i64, skip_first: u32) -> EvictedCount {
        let known = |packets| EvictedCount {
            packets,
            exact: true,
        };
        let left = u64::from(self.packets.saturating_sub(skip_first));
        if left == 0 || self.min_ns > to_ns || self.max_ns < from_ns {
            return known(0);
        }
        if self.min_ns >= from_ns && self.max_ns <= to_ns {
            return known(left);
        }
        if self.knows_all() {
            let times_ns = self.times_ns.iter().skip(skip_first as usize);
            let inside = times_ns.filter(|&time_ns| (from_ns..=to_ns).contains(time_ns));
            return known(inside.count() as u64);
        }
        EvictedCount {
            packets: left,
            exact: false,
        }
    }

    /// Smallest and largest time of the bucket's packets in `from_ns..=to_ns`. If the times are not
    /// known, the part of the interval that the bucket covers. `None`: the bucket has no packet in
    /// the interval.
    #[must_use]
    pub fn span_in(&self, from_ns: i64, to_ns: i64) -> Option<(i64, i64)> {
        if self.knows_all() {
            let times_ns = self.times_ns.iter().copied();
            let inside = times_ns.filter(|time_ns| (from_ns..=to_ns).contains(time_ns));
            return inside.clone().min().zip(inside.max());
        }
        let covered = (from_ns.max(self.min_ns), to_ns.min(self.max_ns));
        (covered.0 <= covered.1).then_some(covered)
    }

    fn knows_all(&self) -> bool {
        self.times_ns.len() == self.packets as usize
    }

    /// Drops the record times.
    pub(crate) fn thin(&mut self) {
        self.times_ns = Vec::new();
    }

    /// Memory of this entry, bytes.
    pub(crate) fn log_bytes(&self) -> usize {
        size_of::<Self>() + size_of_val(self.times_ns.as_slice())
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    impl EvictedBucket {
        /// A bucket of records with these times, without the list of times.
        pub(crate) fn of(times_ns: &[i64]) -> Self {
            Self {
                bucket: BucketRef {
                    index: 0,
                    generation: 1,
                },
                producer: 0,
                first: 0,
                packets: u32::try_from(times_ns.len()).unwrap(),
                bytes: 100 * times_ns.len() as u64,
                min_ns: *times_ns.iter().min().unwrap(),
                max_ns: *times_ns.iter().max().unwrap(),
                closing: 0,
                is_needed: true,
                times_ns: Vec::new(),
            }
        }
    }

    /// An entry with the times of all records.
    fn exact(times_ns: &[i64]) -> EvictedBucket {
        EvictedBucket {
            times_ns: times_ns.to_vec(),
            ..EvictedBucket::of(times_ns)
        }
    }

    #[test]
    fn all_stamps_count_exactly() {
        let times_ns: Vec<i64> = (0..1000).map(|n| (n * 37) % 1000).collect();
        let entry = exact(&times_ns);
        for (from, to, skip) in [
            (0, 999, 0),
            (10, 20, 0),
            (10, 20, 500),
            (-5, 0, 0),
            (1000, 2000, 0),
            (0, 999, 1000),
        ] {
            let naive = times_ns
                .iter()
                .skip(skip as usize)
                .filter(|s| (from..=to).contains(*s))
                .count();
            assert_eq!(
                entry.count_in(from, to, skip),
                EvictedCount {
                    packets: naive as u64,
                    exact: true
                }
            );
        }
        assert_eq!(entry.span_in(10, 20), Some((10, 20)));
        assert_eq!(entry.span_in(1000, 2000), None);
    }

    #[test]
    fn without_times_a_part_of_a_bucket_has_an_upper_bound() {
        let times_ns: Vec<i64> = (0..10_000).map(|n| n * 10).collect();
        let entry = EvictedBucket::of(&times_ns);
        let count = |from_ns, to_ns, skip| {
            let EvictedCount { packets, exact } = entry.count_in(from_ns, to_ns, skip);
            (packets, exact)
        };
        assert_eq!(count(0, 99_990, 0), (10_000, true));
        assert_eq!(count(0, 99_990, 4000), (6000, true));
        assert_eq!(count(99_991, i64::MAX, 0), (0, true));
        assert_eq!(count(0, 49_999, 0), (10_000, false));
        assert_eq!(count(20_000, 49_999, 3000), (7000, false));
        assert_eq!(count(0, 49_999, 10_000), (0, true));
        assert_eq!(entry.span_in(50_001, 50_002), Some((50_001, 50_002)));
        assert_eq!(entry.span_in(99_991, i64::MAX), None);
        assert_eq!(entry.span_in(99_000, i64::MAX), Some((99_000, 99_990)));
    }
}
