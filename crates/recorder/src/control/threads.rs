//! Processor time and packets of each thread of a live data path.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use crate::{
    analysis::shard_slots::AnalysisPlacement,
    control::{
        common::RecorderShared, durations::ProcessingTimes, lock, progress::AnalyzerReading,
    },
    intake::inserter::shards::StoredShards,
};

/// A running thread of the data path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThreadStatus {
    /// The thread's name, as `ps -T` shows it.
    pub name: String,
    /// Processor time; `None`: unknown.
    pub cpu: Option<Duration>,
    /// Packets that the thread stored in the ring; `None`: the thread does not capture.
    pub stored: Option<u64>,
    /// The packets of the thread's shard, although another thread may analyze some; `None`: the
    /// thread has no shard.
    pub analysis: Option<AnalysisLedger>,
}

/// What happened to the packets of one shard: usually `stored = analyzed + missed + unread`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnalysisLedger {
    /// Packets that were analyzed, or skipped because no hits are wanted.
    pub analyzed: u64,
    /// Packets that were overwritten before they were analyzed.
    pub missed: u64,
    /// Stored packets that are neither analyzed nor counted as missed yet.
    pub unread: u64,
    /// The longest time between two readings of the clock while packets of the shard were analyzed.
    pub longest: Duration,
}

/// The counters of a shard. Aligned to separate cache lines, because the shard's thread writes
/// often.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct ShardCounters {
    /// Processing times, written by the thread that runs the shard.
    pub(crate) times: ProcessingTimes,
    /// With a reader: number of packets of the shard that were analyzed, or skipped because no hits
    /// are wanted.
    pub(crate) analyzed: AtomicU64,
    /// With a reader: number of packets of the shard that were overwritten before the reader read
    /// them, as far as known.
    pub(crate) missed: AtomicU64,
    /// The longest time between two readings of the clock while packets were analyzed, since
    /// [`Self::take_longest_ns`], ns.
    pub(crate) longest_ns: AtomicI64,
    /// The largest result of [`Self::take_longest_ns`] until now, ns.
    longest_before_ns: AtomicI64,
}

impl ShardCounters {
    /// The longest time between two readings of the clock since the last call, ns.
    pub(crate) fn take_longest_ns(&self) -> i64 {
        let longest_ns = self.longest_ns.swap(0, Relaxed);
        self.longest_before_ns.fetch_max(longest_ns, Relaxed);
        longest_ns
    }
}

/// How packets are divided among the readers of shards.
#[derive(Debug)]
pub(crate) struct DividedAnalysis {
    pub(crate) placement: AnalysisPlacement,
    /// The stored packets by shard, if readers divide the packets of each producer.
    pub(crate) stored: Option<Arc<StoredShards>>,
}

impl RecorderShared {
    /// The running threads of a live data path; empty from files.
    pub(crate) fn threads(&self, reading: &AnalyzerReading) -> Vec<ThreadStatus> {
        if !self.is_live() {
            return Vec::new();
        }
        let threads = self.pulses.threads().into_iter();
        threads
            .map(|(name, id)| ThreadStatus {
                cpu: id.and_then(cpu_time),
                stored: number(&name, "inserter-").map(|producer| self.ring.published(producer)),
                analysis: self.analysis_of(&name, reading),
                name,
            })
            .collect()
    }

    fn analysis_of(&self, thread: &str, reading: &AnalyzerReading) -> Option<AnalysisLedger> {
        let shards = lock(&self.shards);
        let Some(divided) = self.divided.get() else {
            let counters = shards.first().filter(|_| thread == "analyzer")?;
            let stored = self.ring.statistics().stored_packets;
            let seen = (reading.analyzed, reading.lapped);
            return Some(AnalysisLedger::new(seen, stored, counters));
        };
        let prefix = match divided.placement {
            AnalysisPlacement::Inserters => "inserter-",
            _ => "shard-",
        };
        let shard = number(thread, prefix)?;
        let counters = shards.get(shard)?;
        // Read before the stored packets: packets that are stored in between count as unread.
        let seen = (
            counters.analyzed.load(Relaxed),
            counters.missed.load(Relaxed),
        );
        let all = shards.len();
        let producers = 0..self.ring.producers();
        let stored = match (&divided.stored, divided.placement) {
            (Some(stored), _) => {
                let is_mine = |number: u8| usize::from(number) % all == shard;
                producers
                    .map(|producer| stored.get(producer, is_mine).1)
                    .sum()
            }
            (None, AnalysisPlacement::ShardReaders) => self.ring.statistics().stored_packets,
            (None, _) => {
                let own = producers.filter(|producer| producer % all == shard);
                own.map(|producer| self.ring.published(producer)).sum()
            }
        };
        Some(AnalysisLedger::new(seen, stored, counters))
    }
}

impl AnalysisLedger {
    /// `stored` may be less than the analyzed packets: an inserter may analyze packets just before
    /// publishing.
    fn new((analyzed, missed): (u64, u64), stored: u64, counters: &ShardCounters) -> Self {
        let longest_ns = counters.longest_ns.load(Relaxed);
        let longest_ns = longest_ns.max(counters.longest_before_ns.load(Relaxed));
        Self {
            analyzed,
            missed,
            unread: stored.saturating_sub(analyzed + missed),
            longest: Duration::from_nanos(longest_ns.unsigned_abs()),
        }
    }
}

/// The number after the prefix of a thread's name.
fn number(thread: &str, prefix: &str) -> Option<usize> {
    thread.strip_prefix(prefix)?.parse().ok()
}

/// Processor time of a thread of this process (Linux: Documentation/scheduler/sched-stats.rst).
fn cpu_time(thread: u32) -> Option<Duration> {
    let text = fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).ok()?;
    Some(Duration::from_nanos(text.split(' ').next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::{hint, time::Instant};

    use rustix::thread::gettid;

    use super::*;

    #[test]
    fn the_processor_time_of_a_thread_grows_with_its_work() {
        let own = gettid().as_raw_nonzero().get().cast_unsigned();
        let before = cpu_time(own).unwrap();
        let start = Instant::now();
        while cpu_time(own).unwrap() < before + Duration::from_millis(10) {
            hint::spin_loop();
            assert!(start.elapsed() < Duration::from_secs(30), "{before:?}");
        }
        assert_eq!(cpu_time(u32::MAX), None);
    }
}
