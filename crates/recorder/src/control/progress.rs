//! Progress of the analyzer and the dumper, and requests to stop, for other threads.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use retroscope_ring::{BucketInfo, Ring};

use crate::control::{hits::HitCounts, lock};

/// How far the dumper may read: live everything that is published, from files up to the analyzer's
/// position.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reach {
    /// By producer, the first record that may not be read yet.
    pub(crate) limits: Vec<u64>,
    /// Producers that promise watermarks add no packet older than this, except late packets, ns.
    pub(crate) frontier_ns: i64,
    /// By producer, whether it promises watermarks; empty from files.
    promises: Vec<bool>,
}

/// The watermarks of the producers that promise watermarks, ns; `i64::MIN`: no watermark yet.
pub(crate) fn promised(ring: &Ring, promises: &[bool]) -> impl Iterator<Item = i64> {
    let promising = promises
        .iter()
        .enumerate()
        .filter(|(_, promises)| **promises);
    promising.map(|(producer, _)| ring.watermark(producer).unwrap_or(i64::MIN))
}

impl Reach {
    /// Live: everything that is published. Reads watermarks before limits: a packet that is older
    /// than the watermarks, and was in time, is then within the limits.
    pub(crate) fn of_live(ring: &Ring, promises: &[bool]) -> Self {
        let watermarks = promised(ring, promises);
        Self {
            frontier_ns: watermarks.min().unwrap_or(i64::MAX),
            limits: (0..ring.producers()).map(|p| ring.published(p)).collect(),
            promises: promises.to_vec(),
        }
    }

    /// From files: the records before `end`.
    pub(crate) fn of_files(end: u64, frontier_ns: i64) -> Self {
        Self {
            limits: vec![end],
            frontier_ns,
            promises: Vec::new(),
        }
    }

    pub(crate) fn limit(&self, producer: usize) -> u64 {
        self.limits.get(producer).copied().unwrap_or(0)
    }

    /// The number of records of a bucket that may be read. May exceed the records of the bucket.
    pub(crate) fn limit_in(&self, info: &BucketInfo) -> u32 {
        records_before(self.limit(info.producer), info)
    }

    /// Whether more of a producer's records may be read than before.
    pub(crate) fn is_beyond(&self, before: &Self, producer: usize) -> bool {
        self.limit(producer) > before.limit(producer)
    }

    /// Packets before this ring time, ns, need not wait for older packets. With `everything`, no
    /// packet needs to wait.
    pub(crate) fn frontier_ns(&self, everything: bool) -> i64 {
        if everything {
            i64::MAX
        } else {
            self.frontier_ns
        }
    }

    pub(crate) fn is_promised(&self, producer: usize) -> bool {
        self.promises.get(producer).copied().unwrap_or(true)
    }

    /// Whether all records before `ends` may be read.
    pub(crate) fn covers(&self, ends: &[u64]) -> bool {
        ends.iter()
            .enumerate()
            .all(|(producer, end)| self.limit(producer) >= *end)
    }
}

/// The number of records of a bucket before the record `end` of its producer. May exceed the
/// records of the bucket.
pub(crate) fn records_before(end: u64, info: &BucketInfo) -> u32 {
    u32::try_from(end.saturating_sub(info.first)).unwrap_or(u32::MAX)
}

/// The reading ledger at one moment, and the hits up to that moment.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct AnalyzerReading {
    pub(crate) analyzed: u64,
    pub(crate) lapped: u64,
    /// Packets that no rule saw because they were lapped, or not analyzed before the stop.
    pub(crate) unseen: u64,
    /// Dumps for which packets may have come too late. A verdict that was judged before does not
    /// report these packets.
    pub(crate) outdated: u64,
    pub(crate) hits: HitCounts,
    pub(crate) clock_steps: u64,
}

/// The reading ledger, and counters for other threads. Apart from the ledger, no number is ordered
/// with another. Aligned to separate cache lines, because inserters read the neighbouring fields
/// with each burst.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct AnalyzerCounters {
    pub(crate) reading: Mutex<AnalyzerReading>,
    pub(crate) open_dumps: AtomicU64,
    /// Number of disabled trigger scripts and modules: the largest number of any shard.
    pub(crate) trigger_scripts_failed: AtomicU64,
    /// Whether the dump script is disabled: 0 or 1.
    pub(crate) dump_script_failed: AtomicU64,
    /// Dumps whose window the analyzer has closed.
    pub(crate) closed_dumps: AtomicU64,
    /// Dumps that the dumper has finished; written by the dumper.
    pub(crate) finished_dumps: AtomicU64,
    /// Bytes that are encoded for dumps and not written yet, rounded up.
    pub(crate) copied_bytes: Arc<AtomicUsize>,
}

impl AnalyzerCounters {
    /// The reading ledger, all of one moment. Read the number of stored packets afterwards.
    pub(crate) fn reading(&self) -> AnalyzerReading {
        *lock(&self.reading)
    }

    /// Number of disabled scripts and modules.
    pub(crate) fn scripts_failed(&self) -> u64 {
        let triggers = self.trigger_scripts_failed.load(Ordering::Relaxed);
        triggers + self.dump_script_failed.load(Ordering::Relaxed)
    }

    /// Whether dumps are open or their files unfinished.
    pub(crate) fn are_dumps_unfinished(&self) -> bool {
        self.open_dumps.load(Ordering::Relaxed) > 0 || self.in_flight() > 0
    }

    /// Dumps whose window is closed and whose file is not finished.
    pub(crate) fn in_flight(&self) -> u64 {
        let finished = self.finished_dumps.load(Ordering::Relaxed);
        let closed = self.closed_dumps.load(Ordering::Relaxed);
        closed.saturating_sub(finished)
    }
}

/// The costs of dumps by rule, and full dumps, on their way from the dumper to the director.
#[derive(Debug, Default)]
pub(crate) struct DumpCosts {
    /// Set after each addition, so that [`Self::take`] need not lock an empty `waiting`.
    any: AtomicBool,
    waiting: Mutex<(BTreeMap<usize, RuleSpending>, Vec<FullDump>)>,
}

/// The number of a dump that has reached its limit, and a ring time, ns: up to this time the dump
/// has all of its packets that were read.
type FullDump = (u64, i64);

/// Costs of the dumps of a rule.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct RuleSpending {
    /// Bytes written.
    pub(crate) bytes: u64,
    /// Number of dumps that were finished.
    pub(crate) finished: u64,
}

impl DumpCosts {
    pub(crate) fn add(&self, rule: usize, bytes: u64, finished: u64) {
        let mut waiting = lock(&self.waiting);
        let sum = waiting.0.entry(rule).or_default();
        sum.bytes += bytes;
        sum.finished += finished;
        self.any.store(true, Ordering::Relaxed);
    }

    /// Adds a dump that has reached its limit.
    pub(crate) fn fill(&self, full: FullDump) {
        lock(&self.waiting).1.push(full);
        self.any.store(true, Ordering::Relaxed);
    }

    /// Takes the costs in the order of rules, and the full dumps.
    pub(crate) fn take(&self) -> (BTreeMap<usize, RuleSpending>, Vec<FullDump>) {
        if !self.any.load(Ordering::Relaxed) {
            return Default::default();
        }
        let mut waiting = lock(&self.waiting);
        self.any.store(false, Ordering::Relaxed);
        std::mem::take(&mut waiting)
    }
}

/// Requests to stop, which the threads read. The flags order no other data, and are SeqCst for
/// simplicity.
#[derive(Debug, Default)]
pub(crate) struct StopControl {
    stop: AtomicBool,
    abort: AtomicBool,
    /// When a stop was first requested, or when a live recording ended by itself.
    asked: OnceLock<Instant>,
}

impl StopControl {
    /// Stops the recording, without starting the time limit of [`Self::is_urgent`].
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
    }

    /// Stops the recording on request, or when a live recording ends by itself. Starts the time
    /// limit of [`Self::is_urgent`].
    pub(crate) fn ask_to_stop(&self) {
        self.asked.get_or_init(Instant::now);
        self.stop();
    }

    /// Whether to drop work that takes minutes: everything must end at once, or a stop was
    /// requested at least `grace` ago.
    pub(crate) fn is_urgent(&self, grace: Duration) -> bool {
        let is_late = |asked: &Instant| asked.elapsed() >= grace;
        self.aborting() || self.asked.get().is_some_and(is_late)
    }

    pub(crate) fn stopping(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    pub(crate) fn abort(&self) {
        self.abort.store(true, Ordering::SeqCst);
    }

    pub(crate) fn aborting(&self) -> bool {
        self.abort.load(Ordering::SeqCst)
    }
}
