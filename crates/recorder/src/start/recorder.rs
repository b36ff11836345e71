//! A running recorder: its state, its events, and the end of its threads.

use std::{
    cell::RefCell,
    io,
    path::PathBuf,
    sync::{Arc, atomic::Ordering, mpsc},
    thread::JoinHandle,
    time::Duration,
};

use retroscope_capture::SourceError;
use retroscope_ring::{Mode, Ring, RingError, RingStatistics};
use retroscope_script::ScriptError;

use crate::{
    analysis::{
        flows::{FlowCounts, FlowReceiver},
        trigger_scripts::ModuleStatus,
    },
    control::{
        alerts::AlertCounts,
        common::RecorderShared,
        durations::{AgeHistogram, ProcessingHistogram},
        events::{RecorderEvent, Subscription},
        hits::HitCounts,
        outcomes::RuleHits,
        pins::Pin,
        threads::ThreadStatus,
    },
    dump::{
        log::{DumpCounts, DumpTotals},
        pool::BUDGET_BYTES,
        post::{Post, PostCounter, PostCounts},
        report::DumpReport,
    },
    intake::counters::SourceSnapshot,
    start::{expressions::ExpressionError, handle::RecorderHandle},
};

/// Why a recorder did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// An expression is wrong: the user's mistake.
    #[error("{0}")]
    Expression(ExpressionError),
    /// Two triggers have the same name, or a name is invalid: the user's mistake.
    #[error("{0}")]
    Names(String),
    /// Packets cannot be analyzed in the requested place: the user's mistake.
    #[error("{0}")]
    Analyzers(String),
    /// `capture-threads` is smaller than the number of queues, and a queue can share no thread: the
    /// user's mistake. Contains the name of the source.
    #[error("capture-threads: {0} needs a thread of its own")]
    Threads(String),
    /// A script is wrong. That is the user's mistake, unless the error is [`ScriptError::Setup`] or
    /// [`ScriptError::Thread`].
    #[error(transparent)]
    Script(#[from] ScriptError),
    /// A source did not open.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The ring cannot be made as configured.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// The directory cannot be written.
    #[error("cannot write to {}: {error}", path.display())]
    Directory {
        /// Path of the directory.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The caller's function `opened_all` failed ([`Recorder::start`]), or the threads of `--post`
    /// could not be started.
    #[error("{0}")]
    Opened(Box<dyn std::error::Error + Send + Sync>),
    /// A thread could not be started, or could not drop its capabilities.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] io::Error),
}

/// The recorder's threads.
#[derive(Debug)]
pub struct Recorder {
    pub(super) common: Arc<RecorderShared>,
    pub(super) handle: RecorderHandle,
    pub(super) events: RefCell<Subscription>,
    pub(super) inserters: Vec<JoinHandle<Vec<SourceError>>>,
    /// The analyzer, the readers of shards, and live the dumper.
    pub(super) analyzers: Vec<JoinHandle<()>>,
    pub(super) post: Option<Post>,
    pub(super) notices: Vec<String>,
    pub(super) flows: Option<FlowReceiver>,
}

/// The state of a running recorder.
#[derive(Debug, Clone)]
pub struct RecorderStatus {
    /// Every source's intake ledger.
    pub sources: Vec<SourceSnapshot>,
    /// The ring.
    pub ring: RingStatistics,
    /// Size of the ring, bytes.
    pub ring_bytes: u64,
    /// Stamp of the oldest packet in the ring, ns since the epoch; approximate if a source's own
    /// clock was set. `None`: the ring is empty.
    pub oldest_stamp_ns: Option<i64>,
    /// Live: the ring has all packets that were stored within this time until now, by the monotonic
    /// clock.
    pub history: Option<Duration>,
    /// The history goal, and the bytes of each direction that flows keep for it (`None`: all
    /// bytes). `None`: no goal.
    pub history_goal: Option<(Duration, Option<u64>)>,
    /// Packets published. The reading ledger: usually `stored = analyzed + lapped + unread`.
    pub stored: u64,
    /// Packets that were analyzed, or skipped because no hits are wanted.
    pub analyzed: u64,
    /// Packets that were overwritten before they were analyzed.
    pub lapped: u64,
    /// Packets that are counted neither in `analyzed` nor in `lapped` yet.
    pub unread: u64,
    /// Outcomes of hits.
    pub hits: HitCounts,
    /// Outcomes of hits, by rule.
    pub hits_by_rule: Vec<RuleHits>,
    /// Outcomes of manual triggers.
    pub hits_by_hand: HitCounts,
    /// Live: ages of trigger packets when their dumps opened.
    pub trigger_ages: AgeHistogram,
    /// Outcomes of IDS alerts.
    pub alerts: AlertCounts,
    /// Finished dumps.
    pub dumps: DumpTotals,
    /// Dumps whose window is open or whose file is not finished.
    pub dumps_open: u64,
    /// Bytes that are encoded for dumps and not written yet, rounded up.
    pub copied_bytes: u64,
    /// Limit of `copied_bytes`: a dump without room waits.
    pub copied_bytes_max: u64,
    /// Steps of the real-time clock beyond 100 ms.
    pub clock_steps: u64,
    /// Dumps for which packets may have arrived too late ([`SourceSnapshot::late`]).
    pub outdated: u64,
    /// Scripts and modules that are disabled after failing or exceeding a budget.
    pub scripts_failed: u64,
    /// Counts of flows; `None`: flows are not counted.
    pub flows: Option<FlowCounts>,
    /// Status of modules.
    pub modules: Vec<ModuleStatus>,
    /// Processing times of packets, by shard.
    pub processing: Vec<ProcessingHistogram>,
    /// The behavior if dumps and pins need all buckets of the ring.
    pub when_full: Mode,
    /// Live: the running threads of the data path.
    pub threads: Vec<ThreadStatus>,
    /// Results of the commands of dumps; `None`: there are no commands.
    pub post: Option<PostCounts>,
    /// Number of trigger rules, including scripts and modules.
    pub rules: usize,
    /// All pins, including fallen pins.
    pub pins: Vec<Pin>,
    /// The number of the next event.
    pub next_event: u64,
}

/// The results of a recorder.
#[derive(Debug, Default)]
pub struct RecorderSummary {
    /// Every source's intake ledger.
    pub sources: Vec<SourceSnapshot>,
    /// Packets published. The reading ledger: usually `stored = analyzed + lapped + unread`.
    pub stored: u64,
    /// Packets that were analyzed, or skipped because no hits are wanted.
    pub analyzed: u64,
    /// Packets that were overwritten before they were analyzed.
    pub lapped: u64,
    /// Packets that were lapped, or unread at the stop, while rules could trigger: triggers may
    /// have been missed.
    pub not_analyzed: u64,
    /// See [`RecorderStatus::outdated`].
    pub outdated: u64,
    /// See [`RecorderStatus::processing`].
    pub processing: Vec<ProcessingHistogram>,
    /// Length of a live recording, up to the moment of this summary.
    pub elapsed: Option<Duration>,
    /// Outcomes of hits.
    pub hits: HitCounts,
    /// See [`RecorderStatus::scripts_failed`].
    pub scripts_failed: u64,
    /// See [`RecorderStatus::flows`].
    pub flows: Option<FlowCounts>,
    /// See [`RecorderStatus::modules`].
    pub modules: Vec<ModuleStatus>,
    /// Outcomes of IDS alerts.
    pub alerts: AlertCounts,
    /// The last 10,000 finished dumps, in the order of triggers.
    pub dumps: Vec<DumpReport>,
    /// Counts of the dumps that finished before the dumps in `dumps`.
    pub dumps_before: DumpCounts,
    /// See [`RecorderStatus::post`].
    pub post: Option<PostCounts>,
    /// Errors that ended sources or queues; after [`Recorder::abandon`] none.
    pub errors: Vec<SourceError>,
    /// Whether a thread for which [`Recorder::join`] waited panicked: a bug.
    pub panicked: bool,
}

impl RecorderSummary {
    /// Published packets that are counted neither in `analyzed` nor in `lapped`.
    #[must_use]
    pub fn unread(&self) -> u64 {
        self.stored
            .saturating_sub(self.analyzed)
            .saturating_sub(self.lapped)
    }
}

impl RecorderStatus {
    /// Reads the analyzer's ledger before the number of published packets, so this number usually
    /// includes the ledger's packets.
    pub(super) fn of(common: &RecorderShared, handle: &RecorderHandle) -> Self {
        let counters = &common.counters;
        let reading = counters.reading();
        let ring = common.ring.statistics();
        let history = |start_mono_ns: i64| {
            let since_ns = ring.whole_since_mono_ns.unwrap_or(start_mono_ns);
            let ns = common.clock.mono_ns().saturating_sub(since_ns);
            Duration::from_nanos(u64::try_from(ns).unwrap_or(0))
        };
        let seen = reading.analyzed + reading.lapped;
        Self {
            sources: common.intake.snapshots(),
            history: handle.start_mono_ns.map(history),
            history_goal: handle.history.as_ref().map(|history| {
                let goal = Duration::from_nanos(history.goal_ns.unsigned_abs());
                (goal, history.limit())
            }),
            ring,
            ring_bytes: common.ring.bytes(),
            oldest_stamp_ns: ring.oldest_ns.map(|ns| common.stamp_ns(ns)),
            stored: ring.stored_packets,
            analyzed: reading.analyzed,
            lapped: reading.lapped,
            unread: ring.stored_packets.saturating_sub(seen),
            hits: reading.hits,
            hits_by_rule: common.outcomes.list(),
            hits_by_hand: common.outcomes.by_hand(),
            trigger_ages: AgeHistogram::of(&common.trigger_ages),
            alerts: common.alerts.counts(),
            dumps: common.log.totals(),
            dumps_open: counters.open_dumps.load(Ordering::Relaxed) + counters.in_flight(),
            copied_bytes: counters.copied_bytes.load(Ordering::Relaxed) as u64,
            copied_bytes_max: BUDGET_BYTES as u64,
            clock_steps: reading.clock_steps,
            outdated: reading.outdated,
            scripts_failed: counters.scripts_failed(),
            flows: common.flow_counts(),
            modules: common.module_statuses(),
            processing: common.processing(),
            threads: common.threads(&reading),
            when_full: common.ring.mode(),
            post: handle.post.as_ref().map(PostCounter::counts),
            rules: handle.rules.len(),
            pins: common.pins.list(common.clock.mono_ns()),
            next_event: handle.log.end(),
        }
    }
}

impl Recorder {
    /// Controls this recorder from other threads, for example for signals.
    #[must_use]
    pub fn handle(&self) -> RecorderHandle {
        self.handle.clone()
    }

    /// The ring.
    #[must_use]
    pub fn ring(&self) -> &Ring {
        &self.common.ring
    }

    /// Takes the messages of the start.
    pub fn take_notices(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notices)
    }

    /// Takes the receiver of ended flows, once; `None`: flows are not counted, or the receiver was
    /// taken. From files the recorder waits for the receiver.
    pub fn take_flows(&mut self) -> Option<FlowReceiver> {
        self.flows.take()
    }

    /// Waits for an event, at most `timeout`; `Err(Disconnected)` when all threads that send events
    /// have ended and no event is left. Events that the caller misses are counted
    /// ([`RecorderEvent::Missed`]).
    ///
    /// # Errors
    /// As `Receiver::recv_timeout`.
    pub fn event(&self, timeout: Duration) -> Result<RecorderEvent, mpsc::RecvTimeoutError> {
        self.events.borrow_mut().take(timeout)
    }

    /// The present state.
    #[must_use]
    pub fn status(&self) -> RecorderStatus {
        RecorderStatus::of(&self.common, &self.handle)
    }

    /// The running threads of the data path, and the number of turns of each. A thread whose number
    /// does not change for many seconds probably hangs. From files the list is empty: there, a
    /// thread may wait for others for any time.
    #[must_use]
    pub fn turns(&self) -> Vec<(String, u64)> {
        if self.common.is_live() {
            self.common.pulses.list()
        } else {
            Vec::new()
        }
    }

    /// Whether a stop was requested, or a limit such as `-c` or a panic stops the recorder.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.common.control.stopping()
    }

    /// Sums up without waiting for threads that may hang.
    #[must_use]
    pub fn abandon(self) -> RecorderSummary {
        sum_up(&self.common, &self.handle, Vec::new(), false)
    }

    /// Waits for the threads that store, analyze and dump packets, and sums up.
    #[must_use]
    pub fn join(self) -> RecorderSummary {
        // No caller takes the waiting flows any more, so threads must not wait for the receiver.
        drop(self.flows);
        let mut panicked = false;
        let mut errors = Vec::new();
        for inserter in self.inserters {
            match inserter.join() {
                Ok(ends) => errors.extend(ends),
                Err(_) => panicked = true,
            }
        }
        for thread in self.analyzers {
            panicked |= thread.join().is_err();
        }
        panicked |= self.post.is_some_and(|post| !post.join());
        sum_up(&self.common, &self.handle, errors, panicked)
    }
}

fn sum_up(
    common: &RecorderShared,
    handle: &RecorderHandle,
    errors: Vec<SourceError>,
    panicked: bool,
) -> RecorderSummary {
    let counters = &common.counters;
    let since = |start_ns: i64| {
        let ns = common.clock.mono_ns().saturating_sub(start_ns);
        Duration::from_nanos(u64::try_from(ns).unwrap_or(0))
    };
    let reading = counters.reading();
    let (dumps, dumps_before) = common.log.summary();
    let dumps = dumps.into_iter().map(Arc::unwrap_or_clone).collect();
    RecorderSummary {
        sources: common.intake.snapshots(),
        stored: common.ring.statistics().stored_packets,
        analyzed: reading.analyzed,
        lapped: reading.lapped,
        not_analyzed: reading.unseen,
        outdated: reading.outdated,
        processing: common.processing(),
        elapsed: handle.start_mono_ns.map(since),
        hits: reading.hits,
        scripts_failed: counters.scripts_failed(),
        flows: common.flow_counts(),
        modules: common.module_statuses(),
        alerts: common.alerts.counts(),
        dumps,
        dumps_before,
        post: handle.post.as_ref().map(PostCounter::counts),
        errors,
        panicked,
    }
}
