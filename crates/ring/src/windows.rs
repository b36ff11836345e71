//! Windows of ring time, and the number of windows that touch a bucket.

use crate::EvictedBucket;

/// A range of ring time, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TimeWindow {
    pub(crate) from_ns: i64,
    pub(crate) to_ns: i64,
}

/// Many windows. Two binary searches count the windows that touch a bucket.
#[derive(Debug, Default)]
pub(crate) struct WindowCounts {
    /// The starts of the windows, ascending.
    from_ns: Vec<i64>,
    /// The ends of the windows, ascending.
    to_ns: Vec<i64>,
}

impl TimeWindow {
    pub(crate) const EMPTY: Self = Self {
        from_ns: i64::MAX,
        to_ns: i64::MIN,
    };

    /// Empty if the end is before the start.
    pub(crate) fn new(from_ns: i64, to_ns: i64) -> Self {
        if from_ns > to_ns {
            return Self::EMPTY;
        }
        Self { from_ns, to_ns }
    }

    pub(crate) fn touches(self, min_ns: i64, max_ns: i64) -> bool {
        min_ns <= self.to_ns && max_ns >= self.from_ns && self.from_ns <= self.to_ns
    }

    pub(crate) fn touches_bucket(self, bucket: &EvictedBucket) -> bool {
        self.touches(bucket.min_ns, bucket.max_ns)
    }
}

impl WindowCounts {
    /// Replaces a window, which must be present unless empty.
    pub(crate) fn replace(&mut self, before: TimeWindow, after: TimeWindow) {
        for (all, before_ns, after_ns) in [
            (&mut self.from_ns, before.from_ns, after.from_ns),
            (&mut self.to_ns, before.to_ns, after.to_ns),
        ] {
            let place = |all: &[i64], ns| all.partition_point(|other| *other < ns);
            if before != TimeWindow::EMPTY {
                all.remove(place(all, before_ns));
            }
            if after != TimeWindow::EMPTY {
                all.insert(place(all, after_ns), after_ns);
            }
        }
    }

    /// Number of windows that touch these times: starts up to `max_ns`, minus ends before `min_ns`.
    pub(crate) fn touching(&self, min_ns: i64, max_ns: i64) -> usize {
        let started = self.from_ns.partition_point(|from_ns| *from_ns <= max_ns);
        started - self.to_ns.partition_point(|to_ns| *to_ns < min_ns)
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use fastrand::Rng;

    use super::*;

    /// Times that include both extremes and leave some windows empty.
    fn time(rng: &mut Rng) -> i64 {
        match rng.u8(0..20) {
            0 => i64::MIN,
            1 => i64::MAX,
            _ => rng.i64(-50..50),
        }
    }

    #[test]
    fn two_searches_count_what_a_check_of_each_window_counts() {
        let mut rng = Rng::with_seed(0);
        let (mut counts, mut all) = (WindowCounts::default(), Vec::new());
        let mut found = 0;
        for _ in 0..5000 {
            let before = match all.len() {
                0..30 => TimeWindow::EMPTY,
                windows => all.swap_remove(rng.usize(0..windows)),
            };
            let after = TimeWindow::new(time(&mut rng), time(&mut rng));
            counts.replace(before, after);
            all.push(after);
            let (a, b) = (time(&mut rng), time(&mut rng));
            let (min_ns, max_ns) = (a.min(b), a.max(b));
            let touching = all.iter().filter(|window| window.touches(min_ns, max_ns));
            let expected = touching.count();
            assert_eq!(counts.touching(min_ns, max_ns), expected);
            found += expected;
        }
        assert!(found > 1000, "hardly a window touches: {found}");
    }
}
