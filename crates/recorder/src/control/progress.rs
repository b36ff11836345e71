//! How far the threads have come, as the others see it.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Condvar, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use retroscope_ring::{BucketInfo, Positions, Ring};

use crate::control::{hits::HitCounts, lock};

/// How far the dumper may read.
#[derive(Debug)]
pub(crate) enum DumperProgress {
    /// Offline: up to where the analyzer is, so that what a dump sees depends on the packets only.
    Follow {
        /// Records that the analyzer has passed.
        positions: Positions,
        /// How late a packet may be, ns.
        hold_ns: i64,
    },
    /// Live: everything published.
    Live {
        /// For each producer, whether it promises watermarks.
        promises: Vec<bool>,
    },
}

/// A reading of [`DumperProgress`].
#[derive(Debug, Clone, Default)]
pub(crate) struct Reach {
    /// By producer, the first record that may not be read yet.
    pub(crate) limits: Vec<u64>,
    /// No packet older than this will come within reach later from producers that promise so; ns.
    pub(crate) frontier_ns: i64,
    /// By producer, whether it does. Offline all do.
    promises: Vec<bool>,
}

impl DumperProgress {
    /// Reads clocks first, then marks: a packet below the clock that came in time is then within the marks. Offline the clock is
    /// `packet_clock`.
    pub(crate) fn reach(&self, ring: &Ring, packet_clock: &AtomicI64) -> Reach {
        match self {
            Self::Follow { positions, hold_ns } => {
                // C1: Acquire, pairs with C0 in the analyzer.
                let clock_ns = packet_clock.load(Ordering::Acquire);
                let frontier_ns = clock_ns.saturating_sub(*hold_ns);
                Reach {
                    limits: vec![positions.get(0)],
                    frontier_ns,
                    promises: Vec::new(),
                }
            }
            Self::Live { promises } => {
                let watermarks = promised(ring, promises);
                Reach {
                    frontier_ns: watermarks.min().unwrap_or(i64::MAX),
                    limits: (0..ring.producers()).map(|p| ring.published(p)).collect(),
                    promises: promises.clone(),
                }
            }
        }
    }
}

/// The watermarks of the producers that promise them, ns; `i64::MIN`: not yet.
pub(crate) fn promised(ring: &Ring, promises: &[bool]) -> impl Iterator<Item = i64> {
    let promising = promises
        .iter()
        .enumerate()
        .filter(|(_, promises)| **promises);
    promising.map(|(producer, _)| ring.watermark(producer).unwrap_or(i64::MIN))
}

impl Reach {
    /// The first record of a producer that may not be read yet.
    pub(crate) fn limit(&self, producer: usize) -> u64 {
        self.limits.get(producer).copied().unwrap_or(0)
    }

    /// How many records of a bucket may be read, if it has so many.
    pub(crate) fn limit_in(&self, info: &BucketInfo) -> u32 {
        records_before(self.limit(info.producer), info)
    }

    /// Whether more of a producer's records may be read than before.
    pub(crate) fn is_beyond(&self, before: &Self, producer: usize) -> bool {
        self.limit(producer) > before.limit(producer)
    }

    /// All records before `ends` may be read, too: the analyzer has seen them, and does not go on meanwhile.
    pub(crate) fn extend(&mut self, ends: &[u64]) {
        for (limit, end) in self.limits.iter_mut().zip(ends) {
            *limit = (*limit).max(*end);
        }
    }

    /// Below it packets are final in order; all are where they wait for nothing (`everything`), ns.
    pub(crate) fn frontier_ns(&self, everything: bool) -> i64 {
        if everything {
            i64::MAX
        } else {
            self.frontier_ns
        }
    }

    /// Whether packets of a producer come in time, as far as promised.
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

/// How many records of a bucket come before a record of its producer, if it has so many.
pub(crate) fn records_before(end: u64, info: &BucketInfo) -> u32 {
    u32::try_from(end.saturating_sub(info.first)).unwrap_or(u32::MAX)
}

/// Where an offline writer waits before it overwrites: until the analyzer has seen every record stored so far and the
/// dumper has written what it wants of them. What a trigger finds in the ring is then a function of the packets and of
/// the ring's size, however the threads were scheduled.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    state: Mutex<GateState>,
    moved: Condvar,
}

#[derive(Debug, Default)]
struct GateState {
    asked: u64,
    analyzer: u64,
    dumper: u64,
    off: bool,
}

impl Gate {
    /// Asks the other two and waits for them; `wake` is called once to wake the analyzer.
    pub(crate) fn wait(&self, wake: impl FnOnce()) {
        let mut state = lock(&self.state);
        state.asked += 1;
        let mine = state.asked;
        drop(state);
        wake();
        let mut state = lock(&self.state);
        while state.dumper < mine && !state.off {
            state = self
                .moved
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// What the analyzer should answer once it has read everything.
    pub(crate) fn asked_of_analyzer(&self) -> Option<u64> {
        let state = lock(&self.state);
        (state.asked > state.analyzer).then_some(state.asked)
    }

    pub(crate) fn analyzer_done(&self, asked: u64) {
        lock(&self.state).analyzer = asked;
    }

    /// What the dumper should answer once it has written everything.
    pub(crate) fn asked_of_dumper(&self) -> Option<u64> {
        let state = lock(&self.state);
        (state.analyzer > state.dumper).then_some(state.analyzer)
    }

    pub(crate) fn dumper_done(&self, asked: u64) {
        lock(&self.state).dumper = asked;
        self.moved.notify_all();
    }

    /// Lets everybody pass from now on: a thread is gone.
    pub(crate) fn off(&self) {
        lock(&self.state).off = true;
        self.moved.notify_all();
    }
}

/// The reading ledger of one moment, and the hits so far.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct AnalyzerReading {
    pub(crate) analyzed: u64,
    pub(crate) lapped: u64,
    /// How many that were lapped, or unread at the stop, came while there were rules.
    pub(crate) unseen: u64,
    /// Dumps that packets came too late for: their verdicts do not report these packets.
    pub(crate) outdated: u64,
    /// What hits became.
    pub(crate) hits: HitCounts,
    pub(crate) clock_steps: u64,
}

/// The reading ledger, and counters for status lines. The analyzer writes all of it unless a field says otherwise; but for the ledger no
/// number is ordered with another. It lies on cache lines of its own, because inserters read what stands beside it with each burst.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct AnalyzerCounters {
    /// The lock is taken once a batch, and by who asks.
    pub(crate) reading: Mutex<AnalyzerReading>,
    pub(crate) open_dumps: AtomicU64,
    /// Trigger scripts that are disabled.
    pub(crate) trigger_scripts_failed: AtomicU64,
    /// Whether the dump script is: 0 or 1. Whoever holds the script writes it.
    pub(crate) dump_script_failed: AtomicU64,
    /// Dumps whose window the analyzer closed.
    pub(crate) closed_dumps: AtomicU64,
    /// Dumps that the dumper is done with. The dumper writes it.
    pub(crate) finished_dumps: AtomicU64,
    /// See [`Status::copied_bytes`](crate::Status). The dumper and the threads that write dumps change it.
    pub(crate) copied_bytes: Arc<AtomicUsize>,
}

impl AnalyzerCounters {
    /// The reading ledger, all of it of one moment. What is stored by then is read afterwards, and so has it all.
    pub(crate) fn reading(&self) -> AnalyzerReading {
        *lock(&self.reading)
    }

    /// Scripts that are disabled.
    pub(crate) fn scripts_failed(&self) -> u64 {
        let triggers = self.trigger_scripts_failed.load(Ordering::Relaxed);
        triggers + self.dump_script_failed.load(Ordering::Relaxed)
    }

    /// Whether dumps are open, or their file is not finished: they wait for packet time, and for the engines' counters. Live.
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

/// What dumps cost, from the dumper to the director, summed by rule, and which of them are full. The director takes it when it likes, live; from files only after
/// the dumper has answered [`Message::Account`](crate::dump::Message). The dumper writes nothing between that answer and the taking, so each
/// run knows the same.
#[derive(Debug, Default)]
pub(crate) struct DumpCosts {
    /// Whether costs are waiting. It orders no other access: the mutex protects the data.
    any: AtomicBool,
    waiting: Mutex<(BTreeMap<usize, RuleSpending>, Vec<FullDump>)>,
}

/// A dump that has all that it was asked for, and the ring time up to which nothing that was read before is missing from it, ns.
type FullDump = (u64, i64);

/// What dumps of a rule did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct RuleSpending {
    /// Bytes that they wrote.
    pub(crate) bytes: u64,
    /// How many of them are done with.
    pub(crate) finished: u64,
}

impl DumpCosts {
    /// Adds to what was not taken yet of a rule.
    pub(crate) fn add(&self, rule: usize, bytes: u64, finished: u64) {
        let mut waiting = lock(&self.waiting);
        let sum = waiting.0.entry(rule).or_default();
        sum.bytes += bytes;
        sum.finished += finished;
        self.any.store(true, Ordering::Relaxed);
    }

    /// A dump is full.
    pub(crate) fn fill(&self, full: FullDump) {
        lock(&self.waiting).1.push(full);
        self.any.store(true, Ordering::Relaxed);
    }

    /// Takes what there is, in the order of rules, and the dumps that are full.
    pub(crate) fn take(&self) -> (BTreeMap<usize, RuleSpending>, Vec<FullDump>) {
        if !self.any.load(Ordering::Relaxed) {
            return Default::default();
        }
        let mut waiting = lock(&self.waiting);
        self.any.store(false, Ordering::Relaxed);
        std::mem::take(&mut waiting)
    }
}

/// Requests to end, read by the threads. The flags carry no data with them; SeqCst for simplicity, they are read
/// once a burst at most.
#[derive(Debug, Default)]
pub(crate) struct StopControl {
    stop: AtomicBool,
    abort: AtomicBool,
    /// When somebody first asked it to stop, or a live recording ended by itself.
    asked: OnceLock<Instant>,
}

impl StopControl {
    /// It stops by itself.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
    }

    /// Somebody asks it to stop, and may wait for that; or a live recording ends by itself.
    pub(crate) fn ask_to_stop(&self) {
        self.asked.get_or_init(Instant::now);
        self.stop();
    }

    /// Whether all is to end at once, or somebody asked it to stop so long ago: what may take minutes is given up then.
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
