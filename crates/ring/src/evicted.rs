//! One overwritten bucket: what is still known of its packets.

use crate::BucketRef;

/// Ring times kept of a bucket, unless all are kept.
pub(crate) const SAMPLES: usize = if cfg!(loom) { 2 } else { 64 };

/// A bucket that was overwritten.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct EvictedBucket {
    /// Which it was.
    pub bucket: BucketRef,
    /// Whose it was.
    pub producer: usize,
    /// The producer's number of its first record.
    pub first: u64,
    /// Its records.
    pub packets: u32,
    /// Their captured bytes.
    pub bytes: u64,
    /// Smallest ring time, ns.
    pub min_ns: i64,
    /// Largest ring time, ns.
    pub max_ns: i64,
    /// Ring times of all records, or of at most [`SAMPLES`] evenly spaced ones ([`sample_index`]), the first and the last among them; none
    /// where the log has no room for it: then counts for part of it are estimates.
    pub(crate) times_ns: Vec<i64>,
}

/// How many packets, and whether that is known or estimated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Count {
    /// Packets.
    pub packets: u64,
    /// `false`: interpolated between samples. None at all is then only likely.
    pub exact: bool,
}

/// What was overwritten of an interval of packet time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Evicted {
    /// Packets.
    pub packets: u64,
    /// `false`: estimated, or the log does not reach back far enough to know all.
    pub exact: bool,
    /// Time of the first of them, ns, as well as it is known.
    pub first_ns: Option<i64>,
    /// Time of the last of them, ns, as well as it is known.
    pub last_ns: Option<i64>,
    /// Buckets with ring times up to this one were forgotten; packets of the interval up to it may be missing here, uncounted.
    /// `None`: nothing of the interval was forgotten.
    pub unknown_before_ns: Option<i64>,
}

impl EvictedBucket {
    /// How many of its packets lie in `from_ns..=to_ns`, without its first `skip_first` records (which a dump that read
    /// the bucket while it was open has already).
    #[must_use]
    pub fn count_in(&self, from_ns: i64, to_ns: i64, skip_first: u32) -> Count {
        let known = |packets| Count {
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
        let estimate = self.estimate(from_ns, to_ns, u64::from(skip_first));
        Count {
            packets: estimate.min(left),
            exact: false,
        }
    }

    /// Time of the first and the last of its packets in `from_ns..=to_ns`: the outermost known times, or where none is
    /// known and there may be some, the part of the interval that the bucket covers.
    #[must_use]
    pub fn span_in(&self, from_ns: i64, to_ns: i64) -> Option<(i64, i64)> {
        let ends = [self.min_ns, self.max_ns];
        let times_ns = self.times_ns.iter().chain(&ends).copied();
        let known = times_ns.filter(|time_ns| (from_ns..=to_ns).contains(time_ns));
        if let (Some(first), Some(last)) = (known.clone().min(), known.max()) {
            return Some((first, last));
        }
        let count = self.count_in(from_ns, to_ns, 0);
        let covered = (from_ns.max(self.min_ns), to_ns.min(self.max_ns));
        (count.packets > 0 || !count.exact).then_some(covered)
    }

    fn knows_all(&self) -> bool {
        self.times_ns.len() == self.packets as usize
    }

    /// Takes the packets between two samples for evenly spread over the time between them.
    fn estimate(&self, from_ns: i64, to_ns: i64, skip_first: u64) -> u64 {
        let count = self.packets as usize;
        let ends = [self.min_ns, self.max_ns];
        let times_ns = if self.times_ns.len() < 2 {
            &ends
        } else {
            self.times_ns.as_slice()
        };
        let samples = times_ns.len();
        let index = |sample| sample_index(sample, samples, count) as u64;
        let mut packets = 0.0;
        for (sample, pair) in times_ns.windows(2).enumerate() {
            let (start, end) = (index(sample).max(skip_first), index(sample + 1));
            if start >= end {
                continue;
            }
            let whole = (end - index(sample)) as f64;
            let skipped = (start - index(sample)) as f64 / whole;
            packets += (end - start) as f64 * share(pair[0], pair[1], skipped, from_ns, to_ns);
        }
        let is_inside = |time_ns: &i64| (from_ns..=to_ns).contains(time_ns);
        if times_ns.last().is_some_and(is_inside) {
            packets += 1.0;
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a sum of non-negative shares of at most u32::MAX packets"
        )]
        let rounded = packets.round() as u64;
        rounded
    }

    /// Keeps samples only.
    pub(crate) fn thin(&mut self) {
        let count = self.times_ns.len();
        if self.knows_all() && count > SAMPLES {
            self.times_ns = (0..SAMPLES)
                .map(|sample| self.times_ns[sample_index(sample, SAMPLES, count)])
                .collect();
        }
    }

    /// Memory that it takes.
    pub(crate) fn log_bytes(&self) -> usize {
        size_of::<Self>() + size_of_val(self.times_ns.as_slice())
    }
}

/// The part of the way from `start` (its first `skipped` share left out) to `end` that lies in `from..=to`.
fn share(start: i64, end: i64, skipped: f64, from: i64, to: i64) -> f64 {
    let (low, high) = (start.min(end), start.max(end));
    if low == high {
        return if (from..=to).contains(&low) { 1.0 } else { 0.0 };
    }
    let length = i128::from(high) - i128::from(low);
    let place = |time: i64| (i128::from(time) - i128::from(low)) as f64 / length as f64;
    // Where times run backwards, the left-out records are those at the upper end.
    let (mut first, mut last) = (place(from).max(0.0), place(to).min(1.0));
    if start <= end {
        first = first.max(skipped);
    } else {
        last = last.min(1.0 - skipped);
    }
    let rest = 1.0 - skipped;
    if rest <= 0.0 {
        0.0
    } else {
        ((last - first) / rest).clamp(0.0, 1.0)
    }
}

/// Which of `count` records is sample number `sample` of `samples`.
pub(crate) fn sample_index(sample: usize, samples: usize, count: usize) -> usize {
    if samples <= 1 {
        0
    } else {
        sample * (count - 1) / (samples - 1)
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    impl EvictedBucket {
        /// Of records with these times, of which none is kept.
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
                times_ns: Vec::new(),
            }
        }
    }

    /// An entry that knows all times, or samples of them.
    fn entry(times_ns: &[i64], all: bool) -> EvictedBucket {
        let kept = if all {
            times_ns.len()
        } else {
            times_ns.len().min(SAMPLES)
        };
        let kept = (0..kept).map(|sample| times_ns[sample_index(sample, kept, times_ns.len())]);
        EvictedBucket {
            times_ns: kept.collect(),
            ..EvictedBucket::of(times_ns)
        }
    }

    #[test]
    fn all_stamps_count_exactly() {
        let times_ns: Vec<i64> = (0..1000).map(|n| (n * 37) % 1000).collect();
        let entry = entry(&times_ns, true);
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
                Count {
                    packets: naive as u64,
                    exact: true
                }
            );
        }
        assert_eq!(entry.span_in(10, 20), Some((10, 20)));
        assert_eq!(entry.span_in(1000, 2000), None);
    }

    #[test]
    fn samples_are_exact_only_for_whole_buckets() {
        let times_ns: Vec<i64> = (0..10_000).map(|n| n * 10).collect();
        let entry = entry(&times_ns, false);
        assert_eq!(entry.times_ns.len(), SAMPLES);
        assert_eq!(
            entry.count_in(0, 99_990, 0),
            Count {
                packets: 10_000,
                exact: true
            }
        );
        assert_eq!(
            entry.count_in(0, 99_990, 4000),
            Count {
                packets: 6000,
                exact: true
            }
        );
        assert_eq!(
            entry.count_in(99_991, i64::MAX, 0),
            Count {
                packets: 0,
                exact: true
            }
        );
        let half = entry.count_in(0, 49_999, 0);
        assert!(!half.exact);
        assert!(half.packets.abs_diff(5000) <= 1, "{half:?}");
        let part = entry.count_in(20_000, 49_999, 3000);
        assert!(part.packets.abs_diff(2000) <= 1, "{part:?}");
        let tiny = entry.count_in(50_000, 50_049, 0);
        assert!(tiny.packets.abs_diff(5) <= 1, "{tiny:?}");
        let none = entry.count_in(50_001, 50_002, 0);
        assert_eq!((none.packets, none.exact), (0, false), "nobody knows");
        assert_eq!(entry.span_in(50_001, 50_002), Some((50_001, 50_002)));
        assert_eq!(
            entry.span_in(50_010, 50_030),
            Some((50_010, 50_030)),
            "no sample inside"
        );
    }

    #[test]
    fn backward_times_are_estimated_too() {
        let times_ns: Vec<i64> = (0..10_000).map(|n| (9999 - n) * 10).collect();
        let entry = entry(&times_ns, false);
        assert!(entry.count_in(0, 49_999, 0).packets.abs_diff(5000) <= 1);
        assert!(entry.count_in(0, 49_999, 7000).packets.abs_diff(3000) <= 1);
        assert!(entry.count_in(50_000, i64::MAX, 7000).packets <= 1);
    }

    #[test]
    fn few_packets_are_always_exact() {
        let entry = entry(&[5, 1, 9], false);
        assert_eq!(
            entry.count_in(2, 9, 0),
            Count {
                packets: 2,
                exact: true
            }
        );
        assert_eq!(
            entry.count_in(2, 9, 1),
            Count {
                packets: 1,
                exact: true
            }
        );
    }

    #[test]
    fn extreme_times_do_not_overflow() {
        let times_ns: Vec<i64> = (0..200)
            .map(|n| if n % 2 == 0 { i64::MIN } else { i64::MAX })
            .collect();
        let entry = entry(&times_ns, false);
        assert!(entry.count_in(0, i64::MAX, 0).packets <= 200);
        assert_eq!(entry.count_in(i64::MIN, i64::MAX, 0).packets, 200);
    }
}
