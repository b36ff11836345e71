//! How long something took, as a distribution in fixed memory.
//!
//! Eight steps to a power of two: what [`Durations::quantile`] answers is never less than what was recorded, and at most an eighth more.
//! 496 counters, 4 KiB, hold any number of nanoseconds, so nothing is cut off at either end.

use std::{
    array,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use serde::Serialize;

use crate::control::ring_time::RingClock;

/// Steps to a power of two, as a power of two.
const STEPS_LOG2: u32 = 3;
const STEPS: u64 = 1 << STEPS_LOG2;
/// The values below [`STEPS`] have a counter each, and the powers of two above them so many.
const COUNTERS: usize = ((64 - STEPS_LOG2 + 1) as usize) << STEPS_LOG2;

/// See the module. One thread records, any may ask.
#[derive(Debug)]
pub(crate) struct Durations {
    counts: [AtomicU64; COUNTERS],
    /// Of all that was recorded, ns; it stays at the greatest number.
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
    /// So many packets took `ns` each. To be called by one thread only.
    pub(crate) fn record(&self, ns: u64, packets: u64) {
        let count = &self.counts[index(ns)];
        // Relaxed: numbers that stand for themselves. Nobody else writes them, so that no locked instruction is needed.
        count.store(count.load(Relaxed).saturating_add(packets), Relaxed);
        let sum_ns = self.sum_ns.load(Relaxed);
        let more_ns = ns.saturating_mul(packets);
        self.sum_ns.store(sum_ns.saturating_add(more_ns), Relaxed);
    }

    /// [`Self::below`], and all that was recorded, ns.
    pub(crate) fn histogram_of<const N: usize>(&self, below_ns: &[u64; N]) -> ([u64; N], u64) {
        (self.below(below_ns), self.sum_ns.load(Relaxed))
    }

    /// How many packets took less than each of these and no less than the one before, ns. The last one is the greatest number.
    fn below<const N: usize>(&self, below_ns: &[u64; N]) -> [u64; N] {
        let mut packets = [0; N];
        for (at, count) in self.counts.iter().enumerate() {
            let place = below_ns.partition_point(|below| *below <= last_of(at));
            packets[place.min(N - 1)] += count.load(Relaxed);
        }
        packets
    }

    /// What this part of all packets (0 to 1) took at most, ns; `None` if there are none. What is recorded meanwhile is in it, or not.
    pub(crate) fn quantile(&self, part: f64) -> Option<u64> {
        // Relaxed: as where they are written. Summed up from one copy, so that the part is found in it.
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

/// The counter of a value.
fn index(ns: u64) -> usize {
    let shift = ns.max(1).ilog2().saturating_sub(STEPS_LOG2);
    // The step, with the leading bit of those that have one.
    ((shift as usize) << STEPS_LOG2) + (ns >> shift & (2 * STEPS - 1)) as usize
}

/// The greatest value of a counter.
fn last_of(index: usize) -> u64 {
    let Some(shift) = (index >> STEPS_LOG2).checked_sub(1) else {
        return index as u64;
    };
    let first = (STEPS | index as u64 & (STEPS - 1)) << shift;
    first + ((1 << shift) - 1)
}

/// The processing times of packets, of which one look in [`SAMPLING`] is timed: reading the clock takes as long as a packet or two.
#[derive(Debug, Default)]
pub(crate) struct ProcessingTimes {
    durations: Durations,
    turn: AtomicU64,
}

/// See [`ProcessingTimes`].
const SAMPLING: u64 = 8;

impl ProcessingTimes {
    /// Runs `look`, which returns at how many packets it looked. To be called by one thread at a time.
    pub(crate) fn time(&self, clock: &RingClock, look: impl FnOnce() -> usize) -> usize {
        // Relaxed: a number of this thread's own.
        let turn = self.turn.load(Relaxed);
        self.turn.store(turn.wrapping_add(1), Relaxed);
        if !turn.is_multiple_of(SAMPLING) {
            return look();
        }
        let start_ns = clock.mono_ns();
        let packets = look() as u64;
        let took_ns = clock.mono_ns().saturating_sub(start_ns);
        if let Some(each_ns) = took_ns.unsigned_abs().checked_div(packets) {
            self.durations.record(each_ns, packets);
        }
        usize::try_from(packets).unwrap_or(usize::MAX)
    }

    /// What is known of them.
    pub(crate) fn histogram(&self) -> ProcessingHistogram {
        ProcessingHistogram {
            packets: self.durations.below(&ProcessingHistogram::BELOW_NS),
            sum_ns: self.durations.sum_ns.load(Relaxed),
            p9999_ns: self.durations.quantile(0.9999),
        }
    }
}

/// How long the packets of one shard took to be looked at: of those that were timed, one burst in eight, and as if the packets of a burst took
/// equally long. A time is at most an eighth too large (R-Scope 2018, table 2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct ProcessingHistogram {
    /// Packets by [`Self::BELOW_NS`].
    pub packets: [u64; 8],
    /// What they took together, ns.
    pub sum_ns: u64,
    /// What 99.99 % of them took at most, ns; `None`: none was timed.
    pub p9999_ns: Option<u64>,
}

impl ProcessingHistogram {
    /// Packets took less than this, and no less than the one before, ns.
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

/// How long after its packet each trigger opened a dump. The dumper records.
#[derive(Debug, Default)]
pub(crate) struct TriggerAges(Durations);

impl TriggerAges {
    /// A dump is opened for a packet that came so long ago. To be called by one thread only.
    pub(crate) fn record(&self, age_ns: u64) {
        self.0.record(age_ns, 1);
    }

    /// What is known of them.
    pub(crate) fn histogram(&self) -> AgeHistogram {
        AgeHistogram {
            dumps: self.0.below(&AgeHistogram::BELOW_NS),
            sum_ns: self.0.sum_ns.load(Relaxed),
        }
    }
}

/// How old trigger packets were when their dumps were opened. An age is at most an eighth too large.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AgeHistogram {
    /// Dumps by [`Self::BELOW_NS`].
    pub dumps: [u64; 11],
    /// The ages of all of them together, ns.
    pub sum_ns: u64,
}

impl AgeHistogram {
    /// Ages are less than this, and no less than the one before, ns.
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
    use super::*;

    const PARTS: [f64; 7] = [0.0, 0.001, 0.5, 0.9, 0.99, 0.9999, 1.0];

    /// Beside the samples in order.
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
        // One in ten thousand may take long, and one more may not.
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
        // That of 99 ns counts as 103.
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
