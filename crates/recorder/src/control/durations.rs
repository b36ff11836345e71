//! The distribution of durations, in fixed memory.
//!
//! With eight steps to a power of two, a quantile is at most an eighth too large, and not too
//! small. The 496 counters, 3,968 bytes, represent any number of nanoseconds.

use std::{
    array,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use serde::Serialize;

use crate::control::ring_time::RingClock;

/// Binary logarithm of [`STEPS`], the number of counters for each power of two.
const STEPS_LOG2: u32 = 3;
const STEPS: u64 = 1 << STEPS_LOG2;
/// Number of counters: one for each value below [`STEPS`], and [`STEPS`] for each power of two
/// above.
const COUNTERS: usize = ((64 - STEPS_LOG2 + 1) as usize) << STEPS_LOG2;

/// A histogram of durations. One thread at a time records, any thread may read.
#[derive(Debug)]
pub(crate) struct Durations {
    counts: [AtomicU64; COUNTERS],
    /// Sum of all recorded durations, ns; saturates.
    sum_ns: AtomicU64,
}

impl Default for Durations {
    fn default() -> Self {
        Self {
            counts: array::from_fn(|_| AtomicU64::new(0)),
            sum_ns: AtomicU64::new(0),
        }
    }
}

impl Durations {
    /// Records that `packets` packets took `ns` each. Only one thread at a time may call this.
    pub(crate) fn record(&self, ns: u64, packets: u64) {
        let count = &self.counts[index(ns)];
        // Relaxed load and store: only one thread at a time writes.
        count.store(count.load(Relaxed).saturating_add(packets), Relaxed);
        let sum_ns = self.sum_ns.load(Relaxed);
        let more_ns = ns.saturating_mul(packets);
        self.sum_ns.store(sum_ns.saturating_add(more_ns), Relaxed);
    }

    /// The number of packets in each class, by its upper bound, ns; and the sum of all durations,
    /// ns. The last bound must be `u64::MAX`. A packet counts with the largest duration of its
    /// counter ([`last_of`]).
    pub(crate) fn histogram_of<const N: usize>(&self, below_ns: &[u64; N]) -> ([u64; N], u64) {
        let mut packets = [0; N];
        for (at, count) in self.counts.iter().enumerate() {
            let place = below_ns.partition_point(|below| *below <= last_of(at));
            packets[place.min(N - 1)] += count.load(Relaxed);
        }
        (packets, self.sum_ns.load(Relaxed))
    }

    /// The duration, ns, that this part of all packets (0 to 1) does not exceed. `None`: no
    /// packets.
    pub(crate) fn quantile(&self, part: f64) -> Option<u64> {
        // One copy, so that the sum and the counts agree.
        let counts: [u64; COUNTERS] = array::from_fn(|at| self.counts[at].load(Relaxed));
        let all = counts.iter().map(|count| *count as f64).sum::<f64>();
        let mut below = 0.0;
        let mut greatest = None;
        for (at, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            below += *count as f64;
            greatest = Some(last_of(at));
            if below >= part * all {
                break;
            }
        }
        greatest
    }
}

/// The index of the counter that counts this duration.
fn index(ns: u64) -> usize {
    let shift = ns.max(1).ilog2().saturating_sub(STEPS_LOG2);
    // From 8 ns on, the last term has the four highest bits of the value: the step, and the leading
    // bit, which adds [`STEPS`].
    ((shift as usize) << STEPS_LOG2) + (ns >> shift & (2 * STEPS - 1)) as usize
}

/// The largest duration that the counter at this index counts, ns.
fn last_of(index: usize) -> u64 {
    let Some(shift) = (index >> STEPS_LOG2).checked_sub(1) else {
        return index as u64;
    };
    let first = (STEPS | index as u64 & (STEPS - 1)) << shift;
    first + ((1 << shift) - 1)
}

/// The processing times of packets. Only a sample is timed, because reading the clock takes time
/// too.
#[derive(Debug, Default)]
pub(crate) struct ProcessingTimes {
    durations: Durations,
    turn: AtomicU64,
}

/// One in this number of calls of [`ProcessingTimes::time`] that analyze packets is timed.
const SAMPLING: u64 = 8;

impl ProcessingTimes {
    /// Runs `look`, which analyzes packets and returns their number. Only one thread at a time may
    /// call this.
    pub(crate) fn time(&self, clock: &RingClock, look: impl FnOnce() -> usize) -> usize {
        // Relaxed: only one thread at a time uses the number.
        let turn = self.turn.load(Relaxed);
        let start_ns = turn.is_multiple_of(SAMPLING).then(|| clock.mono_ns());
        let packets = look();
        if packets == 0 {
            // Idle calls must not use up the turns that are timed.
            return 0;
        }
        self.turn.store(turn.wrapping_add(1), Relaxed);
        if let Some(start_ns) = start_ns {
            let took_ns = clock.mono_ns().saturating_sub(start_ns).unsigned_abs();
            self.durations
                .record(took_ns / packets as u64, packets as u64);
        }
        packets
    }

    pub(crate) fn histogram(&self) -> ProcessingHistogram {
        let (packets, sum_ns) = (self.durations).histogram_of(&ProcessingHistogram::BELOW_NS);
        ProcessingHistogram {
            packets,
            sum_ns,
            p9999_ns: self.durations.quantile(0.9999),
        }
    }
}

/// Processing times of the packets of one shard. One in eight chunks of up to 64 packets is timed,
/// and each of its packets counts with the mean time. A time is at most an eighth too large
/// (R-Scope 2018, table 2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct ProcessingHistogram {
    /// Packets by [`Self::BELOW_NS`].
    pub packets: [u64; 8],
    /// Sum of the processing times, ns.
    pub sum_ns: u64,
    /// Time that 99.99 % of the packets do not exceed, ns; `None`: no packet was timed.
    pub p9999_ns: Option<u64>,
}

impl ProcessingHistogram {
    /// Upper bounds of the classes, ns: times in a class are below its bound and not below the
    /// previous bound.
    pub const BELOW_NS: [u64; 8] = [
        100,
        1_000,
        10_000,
        100_000,
        1_000_000,
        10_000_000,
        100_000_000,
        u64::MAX,
    ];
}

/// Ages of trigger packets when their dumps opened. An age is at most an eighth too large.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AgeHistogram {
    /// Dumps by [`Self::BELOW_NS`].
    pub dumps: [u64; 11],
    /// Sum of all ages, ns.
    pub sum_ns: u64,
}

impl AgeHistogram {
    pub(crate) fn of(ages: &Durations) -> Self {
        let (dumps, sum_ns) = ages.histogram_of(&Self::BELOW_NS);
        Self { dumps, sum_ns }
    }

    /// Upper bounds of the classes, ns: ages in a class are below its bound and not below the
    /// previous bound.
    pub const BELOW_NS: [u64; 11] = [
        1_000_000,
        2_500_000,
        5_000_000,
        10_000_000,
        25_000_000,
        50_000_000,
        100_000_000,
        250_000_000,
        1_000_000_000,
        10_000_000_000,
        u64::MAX,
    ];
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::SystemClock;

    const PARTS: [f64; 7] = [0.0, 0.001, 0.5, 0.9, 0.99, 0.9999, 1.0];

    /// Checks that each quantile is at least the exact quantile of the samples, and at most an
    /// eighth more. A sample is a duration, ns, and a number of packets.
    fn check(samples: &mut [(u64, u64)], what: &str) {
        let durations = Durations::default();
        samples
            .iter()
            .for_each(|(ns, packets)| durations.record(*ns, *packets));
        samples.sort_unstable();
        let all: u64 = samples.iter().map(|(_, packets)| packets).sum();
        for part in PARTS {
            let least = part * all as f64;
            let mut seen = 0;
            let reached = |(_, packets): &&(u64, u64)| {
                seen += packets;
                seen as f64 >= least
            };
            let (exact, _) = *samples.iter().find(reached).unwrap();
            let told = durations.quantile(part).unwrap();
            assert!(
                told >= exact && told - exact <= exact / 8,
                "{what} {part}: {told} for {exact}"
            );
        }
    }

    #[test]
    fn it_is_at_most_an_eighth_above_the_sorted_samples() {
        for seed in 0..200 {
            let mut random = fastrand::Rng::with_seed(seed);
            let bits = random.u32(1..=64);
            let count = random.usize(1..3000);
            let sample = |_| {
                (
                    random.u64(..) >> (64 - random.u32(1..=bits)),
                    random.u64(1..300),
                )
            };
            let mut samples: Vec<_> = (0..count).map(sample).collect();
            check(&mut samples, &format!("seed {seed}"));
        }
    }

    #[test]
    fn extremes() {
        assert_eq!(Durations::default().quantile(0.9999), None);
        for ns in [0, 1, 7, 8, 9, 15, 16, u64::MAX / 2, u64::MAX - 1, u64::MAX] {
            check(&mut [(ns, 1)], &ns.to_string());
        }
        check(&mut [(0, 1), (u64::MAX, 1)], "both ends");
        // One packet in ten thousand may be slow; a second one changes the quantile.
        let durations = Durations::default();
        durations.record(100, 9999);
        durations.record(1 << 20, 1);
        assert!(durations.quantile(0.9999).unwrap() < 113);
        durations.record(1 << 20, 1);
        assert!(durations.quantile(0.9999).unwrap() >= 1 << 20);
        durations.record(100, u64::MAX);
        durations.record(100, u64::MAX);
        assert!(durations.quantile(0.5).unwrap() < 113, "no count wraps");
    }

    #[test]
    fn idle_calls_use_up_no_turn() {
        let times = ProcessingTimes::default();
        let clock = RingClock::new(Arc::new(SystemClock));
        for _ in 0..16 {
            (0..7).for_each(|_| _ = times.time(&clock, || 0));
            assert_eq!(times.time(&clock, || 10), 10);
        }
        assert_eq!(times.histogram().packets.iter().sum::<u64>(), 20);
    }

    #[test]
    fn a_histogram_has_all_packets() {
        let times = ProcessingTimes::default();
        assert_eq!(times.histogram(), ProcessingHistogram::default());
        for (ns, packets) in [
            (0, 1),
            (88, 2),
            (99, 4),
            (101, 8),
            (850_000, 16),
            (u64::MAX, 32),
        ] {
            times.durations.record(ns, packets);
        }
        let ProcessingHistogram {
            packets, p9999_ns, ..
        } = times.histogram();
        // 99 ns counts as 103 ns.
        assert_eq!(packets, [3, 12, 0, 0, 16, 0, 0, 32]);
        assert_eq!(p9999_ns, Some(u64::MAX));
    }

    #[test]
    fn each_counter_begins_behind_the_one_before() {
        let mut first = 0;
        for at in 0..COUNTERS {
            assert_eq!((index(first), index(last_of(at))), (at, at));
            first = last_of(at).wrapping_add(1);
        }
        assert_eq!(first, 0, "the last one ends with the greatest number");
    }
}
