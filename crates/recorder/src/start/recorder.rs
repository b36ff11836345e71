//! A running recorder: its threads, started, watched and joined.

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
    /// Two triggers have one name, or a name is none: the user's mistake.
    #[error("{0}")]
    Names(String),
    /// The packets cannot be looked at where they should be: the user's mistake.
    #[error("{0}")]
    Analyzers(String),
    /// A script is wrong: the user's mistake, unless it is [`ScriptError::Setup`] or [`ScriptError::Thread`].
    #[error(transparent)]
    Script(#[from] ScriptError),
    /// A source did not open.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The ring cannot be had.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// The directory cannot be written.
    #[error("cannot write to {}: {error}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// The caller's last step before the threads failed.
    #[error("{0}")]
    Opened(Box<dyn std::error::Error + Send + Sync>),
    /// A thread could not be started.
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
    /// The analyzer, and the readers of shards.
    pub(super) analyzers: Vec<JoinHandle<()>>,
    pub(super) dumper: JoinHandle<()>,
    pub(super) post: Option<Post>,
    pub(super) notices: Vec<String>,
    pub(super) flows: Option<FlowReceiver>,
}

/// What a recorder is doing.
#[derive(Debug, Clone)]
pub struct RecorderStatus {
    /// Every source's intake ledger.
    pub sources: Vec<SourceSnapshot>,
    /// The ring.
    pub ring: RingStatistics,
    /// Its size, bytes.
    pub ring_bytes: u64,
    /// The earliest stamp in it, ns since the epoch; where a source's own clock was set, about. `None`: it is empty.
    pub oldest_stamp_ns: Option<i64>,
    /// How far the ring reaches back: all packets stored within this time are in it. Elapsed time, whatever their stamps. `None`: files,
    /// whose time is not ours.
    pub history: Option<Duration>,
    /// How far it is to reach back, and how many bytes of each direction flows keep for that: `None`, all.
    pub history_goal: Option<(Duration, Option<u64>)>,
    /// The reading ledger of one moment, `stored = analyzed + lapped + unread`: packets published, …
    pub stored: u64,
    /// … those that the analyzer has seen, …
    pub analyzed: u64,
    /// … those that it was too slow for, …
    pub lapped: u64,
    /// … and those that it has not come to.
    pub unread: u64,
    /// Hits so far, of the same moment as `analyzed`.
    pub hits: HitCounts,
    /// What hits became, by rule.
    pub hits_by_rule: Vec<RuleHits>,
    /// What triggers by hand became.
    pub hits_by_hand: HitCounts,
    /// Live: how old trigger packets were when their dumps were opened.
    pub trigger_ages: AgeHistogram,
    /// What became of alerts of an IDS.
    pub alerts: AlertCounts,
    /// Dumps that are finished.
    pub dumps: DumpTotals,
    /// Dumps whose window is open or whose file is not finished.
    pub dumps_open: u64,
    /// Live: bytes of packets that are copied for dumps and not written yet.
    pub copied_bytes: u64,
    /// What they stay below: a dump without room waits.
    pub copied_bytes_max: u64,
    /// Steps of the real-time clock beyond 100 ms.
    pub clock_steps: u64,
    /// Dumps that packets may have come too late for ([`SourceSnapshot::late`]): their verdicts do not report these packets.
    pub outdated: u64,
    /// Scripts that failed or exceeded a budget, and do nothing any more.
    pub scripts_failed: u64,
    /// What became of flows; `None`: they are not counted.
    pub flows: Option<FlowCounts>,
    /// What modules did.
    pub modules: Vec<ModuleStatus>,
    /// How long packets take to be looked at, by shard.
    pub processing: Vec<ProcessingHistogram>,
    /// What happens when nothing in the ring may be overwritten but what dumps and pins want.
    pub when_full: Mode,
    /// What became of the commands of dumps; `None`: there are none.
    pub post: Option<PostCounts>,
    /// Trigger rules, scripts among them.
    pub rules: usize,
    /// Stretches of time that the ring keeps.
    pub pins: Vec<Pin>,
    /// The number of the next event.
    pub next_event: u64,
}

/// What a recorder did; by default nothing.
#[derive(Debug, Default)]
pub struct RecorderSummary {
    /// Every source's intake ledger, closed.
    pub sources: Vec<SourceSnapshot>,
    /// The reading ledger of the analyzer group: `stored = analyzed + lapped + unread`.
    pub stored: u64,
    /// See `stored`.
    pub analyzed: u64,
    /// See `stored`.
    pub lapped: u64,
    /// Of the lapped packets and those unread at the stop, those that came while there were rules that triggered: triggers may have been missed.
    pub not_analyzed: u64,
    /// See [`RecorderStatus::outdated`].
    pub outdated: u64,
    /// See [`RecorderStatus::processing`].
    pub processing: Vec<ProcessingHistogram>,
    /// How long a live recording was, to the moment of this summary.
    pub elapsed: Option<Duration>,
    /// What hits became.
    pub hits: HitCounts,
    /// See [`RecorderStatus::scripts_failed`].
    pub scripts_failed: u64,
    /// See [`RecorderStatus::flows`].
    pub flows: Option<FlowCounts>,
    /// See [`RecorderStatus::modules`].
    pub modules: Vec<ModuleStatus>,
    /// What became of alerts of an IDS.
    pub alerts: AlertCounts,
    /// The last 10,000 dumps, in the order of triggers.
    pub dumps: Vec<DumpReport>,
    /// The dumps that were finished before these.
    pub dumps_before: DumpCounts,
    /// See [`RecorderStatus::post`].
    pub post: Option<PostCounts>,
    /// Sources that ended by an error.
    pub errors: Vec<SourceError>,
    /// A thread of ours panicked: a bug.
    pub panicked: bool,
}

impl RecorderSummary {
    /// Packets stored that the analyzer neither saw nor was told it missed.
    #[must_use]
    pub fn unread(&self) -> u64 {
        self.stored
            .saturating_sub(self.analyzed)
            .saturating_sub(self.lapped)
    }
}

impl RecorderStatus {
    /// Any thread may ask. The ledger of the analyzer is read first, under its lock, then the ring, under its own: what the former counts
    /// was published before, so that `unread` is what was published and not read at the moment between.
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
            trigger_ages: common.trigger_ages.histogram(),
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
            when_full: common.ring.mode(),
            post: handle.post.as_ref().map(PostCounter::counts),
            rules: handle.rules.len(),
            pins: common.pins.list(),
            next_event: handle.log.end(),
        }
    }
}

impl Recorder {
    /// What controls this recorder from other threads: for signals and the like.
    #[must_use]
    pub fn handle(&self) -> RecorderHandle {
        self.handle.clone()
    }

    /// The ring, for its size and pages.
    #[must_use]
    pub fn ring(&self) -> &Ring {
        &self.common.ring
    }

    /// Sentences from the start.
    pub fn take_notices(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notices)
    }

    /// Flows that ended, to be taken once; `None`: they are not counted, or somebody has it. From files the recorder waits for who has it.
    pub fn take_flows(&mut self) -> Option<FlowReceiver> {
        self.flows.take()
    }

    /// Waits for news, at most `timeout`; `Err(Disconnected)` when all threads are done. Whoever does not take them holds nobody up:
    /// then they are counted ([`RecorderEvent::Missed`]).
    ///
    /// # Errors
    /// As `Receiver::recv_timeout`.
    pub fn event(&self, timeout: Duration) -> Result<RecorderEvent, mpsc::RecvTimeoutError> {
        self.events.borrow_mut().take(timeout)
    }

    /// What it is doing now.
    #[must_use]
    pub fn status(&self) -> RecorderStatus {
        RecorderStatus::of(&self.common, &self.handle)
    }

    /// The threads of the data path that have not ended, and how many turns each has made: live one a second at least, also without packets,
    /// so that one whose number stands still hangs. From files none are told: there a thread waits for the others as long as it takes.
    #[must_use]
    pub fn turns(&self) -> Vec<(String, u64)> {
        if self.common.is_live() {
            self.common.pulses.list()
        } else {
            Vec::new()
        }
    }

    /// Whether it was asked to stop, or stops by itself.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.common.control.stopping()
    }

    /// Sums up without waiting for threads that may hang.
    #[must_use]
    pub fn abandon(self) -> RecorderSummary {
        sum_up(&self.common, &self.handle, Vec::new(), false)
    }

    /// Waits for all threads and sums up.
    #[must_use]
    pub fn join(self) -> RecorderSummary {
        // Nobody takes flows that wait here.
        drop(self.flows);
        let mut panicked = false;
        let mut errors = Vec::new();
        for inserter in self.inserters {
            match inserter.join() {
                Ok(ends) => errors.extend(ends),
                Err(_) => panicked = true,
            }
        }
        for thread in self.analyzers.into_iter().chain([self.dumper]) {
            panicked |= thread.join().is_err();
        }
        // The dumper has told them of the last dump.
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
