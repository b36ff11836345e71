//! The log of overwritten buckets, which lets a dump report what it misses.

use std::collections::VecDeque;

use crate::{Evicted, EvictedBucket, EvictionDetail, windows::TimeWindow};

/// Buckets remembered with [`EvictionDetail::Bounds`]: 16 GiB of history in buckets of 2 MiB.
const BOUNDED_BUCKETS: usize = if cfg!(loom) { 8 } else { 8192 };

/// Maximum number of entries that are summed up while the mutex is locked once.
const PIECE: u64 = 1024;

/// The last overwritten buckets, oldest first.
#[derive(Debug)]
pub(crate) struct Log {
    detail: EvictionDetail,
    entries: VecDeque<EvictedBucket>,
    /// With `Exact`: the number of entries, from the front, without record times.
    thinned: usize,
    /// Memory of the entries, bytes.
    bytes_used: usize,
    /// The smallest and the largest time of the forgotten buckets, indexed by producer, because the
    /// clocks of producers may be far apart.
    forgotten: Vec<Option<(i64, i64)>>,
    /// Buckets evicted since the start.
    evictions: u64,
    /// The number of evictions up to the last forgotten bucket that a reservation wanted.
    forgotten_needed: u64,
    packets: u64,
    bytes: u64,
}

impl Log {
    pub(crate) fn new(detail: EvictionDetail, producers: usize) -> Self {
        let bounded = match detail {
            EvictionDetail::Bounds => BOUNDED_BUCKETS,
            EvictionDetail::Exact { .. } => 0,
        };
        Self {
            detail,
            entries: VecDeque::with_capacity(bounded),
            thinned: 0,
            bytes_used: 0,
            forgotten: vec![None; producers],
            evictions: 0,
            forgotten_needed: 0,
            packets: 0,
            bytes: 0,
        }
    }

    /// Packets and captured bytes evicted since the start.
    pub(crate) fn totals(&self) -> (u64, u64) {
        (self.packets, self.bytes)
    }

    pub(crate) fn evictions(&self) -> u64 {
        self.evictions
    }

    /// Adds an overwritten bucket, whose `times_ns` must be empty. `time_ns` returns a record's
    /// ring time by index.
    pub(crate) fn add(&mut self, mut entry: EvictedBucket, time_ns: impl Fn(usize) -> i64) {
        self.packets += u64::from(entry.packets);
        self.bytes += entry.bytes;
        let budget_bytes = match self.detail {
            EvictionDetail::Bounds if self.entries.len() == BOUNDED_BUCKETS => {
                self.forget_oldest();
                None
            }
            EvictionDetail::Bounds => None,
            EvictionDetail::Exact { budget_bytes } => {
                entry.times_ns = (0..entry.packets as usize).map(time_ns).collect();
                Some(budget_bytes)
            }
        };
        self.bytes_used += entry.log_bytes();
        self.entries.push_back(entry);
        self.evictions += 1;
        if let Some(budget_bytes) = budget_bytes {
            self.keep_budget(budget_bytes);
        }
    }

    /// The remembered buckets after the first `evictions` evictions, oldest first.
    pub(crate) fn since(&self, evictions: u64) -> impl Iterator<Item = &EvictedBucket> {
        let later = self.evictions.saturating_sub(evictions);
        let later = usize::try_from(later).unwrap_or(usize::MAX);
        let entries = &self.entries;
        entries.range(entries.len().saturating_sub(later)..)
    }

    /// Whether the log forgot a bucket that a reservation wanted, after the first `evictions`.
    pub(crate) fn has_forgotten(&self, evictions: u64) -> bool {
        evictions < self.forgotten_needed
    }

    /// The largest forgotten time of all producers whose forgotten times touch the window.
    pub(crate) fn unknown_before_ns(&self, window: TimeWindow) -> Option<i64> {
        let forgotten = self.forgotten.iter().flatten();
        let touching = forgotten.filter(|(min_ns, max_ns)| window.touches(*min_ns, *max_ns));
        touching.map(|(_, max_ns)| *max_ns).max()
    }

    /// Adds the evicted packets of a window to `sum`, for the last [`PIECE`] of the first
    /// `evictions` overwritten buckets. Returns `evictions` for the next call; 0 after the last
    /// piece.
    pub(crate) fn add_evicted(&self, window: TimeWindow, evictions: u64, sum: &mut Evicted) -> u64 {
        let forgotten = self.evictions - self.entries.len() as u64;
        let left = evictions.saturating_sub(PIECE).max(forgotten);
        let TimeWindow { from_ns, to_ns, .. } = window;
        let count = usize::try_from(evictions.saturating_sub(left)).unwrap_or(usize::MAX);
        let piece = self.since(left).take(count);
        for entry in piece.filter(|entry| window.touches(entry.min_ns, entry.max_ns)) {
            let count = entry.count_in(from_ns, to_ns, 0);
            sum.packets += count.packets;
            sum.exact &= count.exact;
            if let Some((first, last)) = entry.span_in(from_ns, to_ns) {
                sum.first_ns = Some(sum.first_ns.map_or(first, |known| known.min(first)));
                sum.last_ns = Some(sum.last_ns.map_or(last, |known| known.max(last)));
            }
        }
        if left > forgotten { left } else { 0 }
    }

    /// Records in `sum` whether the log forgot buckets that may touch the window.
    pub(crate) fn add_forgotten(&self, window: TimeWindow, sum: &mut Evicted) {
        sum.unknown_before_ns = self.unknown_before_ns(window);
        sum.exact &= sum.unknown_before_ns.is_none();
    }

    fn keep_budget(&mut self, budget_bytes: usize) {
        while self.bytes_used > budget_bytes && self.thinned < self.entries.len() {
            let entry = &mut self.entries[self.thinned];
            let before = entry.log_bytes();
            entry.thin();
            self.bytes_used -= before - entry.log_bytes();
            self.thinned += 1;
        }
        while self.bytes_used > budget_bytes && !self.entries.is_empty() {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        let Some(entry) = self.entries.pop_front() else {
            return;
        };
        if entry.is_needed {
            self.forgotten_needed = self.evictions - self.entries.len() as u64;
        }
        self.bytes_used -= entry.log_bytes();
        self.thinned = self.thinned.saturating_sub(1);
        let span = &mut self.forgotten[entry.producer];
        let (min_ns, max_ns) = span.unwrap_or((entry.min_ns, entry.max_ns));
        *span = Some((min_ns.min(entry.min_ns), max_ns.max(entry.max_ns)));
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    fn add(log: &mut Log, times_ns: &[i64]) {
        log.add(EvictedBucket::of(times_ns), |index| times_ns[index]);
    }

    impl Log {
        fn evicted(&self, from_ns: i64, to_ns: i64) -> Evicted {
            let (window, mut sum) = (TimeWindow::new(from_ns, to_ns), Evicted::NONE);
            let mut evictions = self.evictions;
            while evictions > 0 {
                evictions = self.add_evicted(window, evictions, &mut sum);
            }
            self.add_forgotten(window, &mut sum);
            sum
        }
    }

    fn exact(budget_bytes: usize) -> Log {
        Log::new(EvictionDetail::Exact { budget_bytes }, 1)
    }

    #[test]
    fn the_log_of_bounds_forgets_the_oldest_and_says_so() {
        let mut log = Log::new(EvictionDetail::Bounds, 1);
        for n in 0..BOUNDED_BUCKETS as i64 + 10 {
            add(&mut log, &[n * 10, n * 10 + 9]);
        }
        assert_eq!(log.entries.len(), BOUNDED_BUCKETS);
        let recent = log.evicted(1000, 1009);
        assert_eq!(recent.packets, 2);
        assert!(recent.exact);
        assert_eq!((recent.first_ns, recent.last_ns), (Some(1000), Some(1009)));
        assert_eq!(
            recent.unknown_before_ns, None,
            "what was forgotten is older than the interval"
        );
        let old = log.evicted(0, 200);
        assert!(!old.exact);
        assert_eq!(old.unknown_before_ns, Some(99));
        assert_eq!(
            old.packets, 22,
            "an upper bound: the last bucket is in the interval in part"
        );
        assert_eq!(
            log.totals().0,
            2 * (BOUNDED_BUCKETS as u64 + 10),
            "totals forget nothing"
        );
    }

    #[test]
    fn the_budget_thins_and_then_forgets() {
        let times_ns: Vec<i64> = (0..1000).collect();
        let each = size_of::<EvictedBucket>() + 8000;
        let mut log = exact(2 * each);
        for _ in 0..3 {
            add(&mut log, &times_ns);
        }
        assert_eq!(
            log.entries
                .iter()
                .map(|e| e.times_ns.len())
                .collect::<Vec<_>>(),
            [0, 0, 1000]
        );
        assert_eq!(
            log.bytes_used,
            log.entries
                .iter()
                .map(EvictedBucket::log_bytes)
                .sum::<usize>()
        );
        assert_eq!(log.evicted(0, 999).packets, 3000);
        assert_eq!(log.evicted(0, 999).unknown_before_ns, None);
        let mut none = exact(10);
        add(&mut none, &times_ns);
        assert_eq!((none.evictions(), none.since(0).count()), (1, 0));
        assert!(none.has_forgotten(0) && !none.has_forgotten(1));
        let mut log = exact(size_of::<EvictedBucket>());
        add(&mut log, &times_ns);
        add(&mut log, &times_ns);
        assert_eq!(log.entries.len(), 1);
        let sum = log.evicted(0, 999);
        assert_eq!(
            (sum.packets, sum.exact, sum.unknown_before_ns),
            (1000, false, Some(999))
        );
    }
}
