//! A running recorder: its threads, started, watched and joined.

use std::{
    io,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread::JoinHandle,
    time::Duration,
};

use retroscope_capture::SourceError;
use retroscope_ring::{Ring, RingError, RingStatistics, Waker};
use retroscope_script::ScriptError;

use crate::{
    analysis::terms::TriggerRequest,
    control::{
        common::Common,
        events::{Event, EventQueue},
        hits::HitCounts,
        lock,
        progress::Control,
    },
    dump::{log::DumpCounts, report::DumpReport},
    intake::counters::SourceSnapshot,
    start::expressions::ExpressionError,
};

/// Why a recorder did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// An expression is wrong: the user's mistake.
    #[error("{0}")]
    Expression(ExpressionError),
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
    pub(super) common: Arc<Common>,
    pub(super) waker: Waker,
    pub(super) events: EventQueue,
    pub(super) inserters: Vec<JoinHandle<Vec<SourceError>>>,
    pub(super) analyzer: JoinHandle<()>,
    pub(super) dumper: JoinHandle<()>,
    pub(super) notices: Vec<String>,
    /// Live: what the monotonic clock showed before the first packet, ns.
    pub(super) start_mono_ns: Option<i64>,
}

/// Controls a recorder from any thread or signal loop.
#[derive(Debug, Clone)]
pub struct Handle {
    control: Arc<Control>,
    waker: Waker,
}

/// What a recorder is doing.
#[derive(Debug, Clone)]
pub struct Status {
    /// Every source's intake ledger.
    pub sources: Vec<SourceSnapshot>,
    /// The ring.
    pub ring: RingStatistics,
    /// How far the ring reaches back: all packets stored within this time are in it. Elapsed time, whatever their stamps. `None`: files,
    /// whose time is not ours.
    pub history: Option<Duration>,
    /// Packets that the analyzer has seen, and those it was too slow for.
    pub analyzed: u64,
    /// See `analyzed`.
    pub lapped: u64,
    /// Hits so far.
    pub hits: HitCounts,
    /// Dumps whose window is open or whose file is not finished.
    pub dumps_open: u64,
    /// Live: bytes of packets that are copied for dumps and not written yet. They stay below 64 MiB.
    pub copied_bytes: u64,
    /// Steps of the real-time clock beyond 100 ms.
    pub clock_steps: u64,
    /// Scripts that failed or exceeded a budget, and do nothing any more.
    pub scripts_failed: u64,
}

/// What a recorder did; by default nothing.
#[derive(Debug, Default)]
pub struct Summary {
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
    /// What hits became.
    pub hits: HitCounts,
    /// See [`Status::scripts_failed`].
    pub scripts_failed: u64,
    /// The last 10,000 dumps, in the order of triggers.
    pub dumps: Vec<DumpReport>,
    /// The dumps that were finished before these.
    pub dumps_before: DumpCounts,
    /// Sources that ended by an error.
    pub errors: Vec<SourceError>,
    /// A thread of ours panicked: a bug.
    pub panicked: bool,
}

impl Summary {
    /// Packets stored that the analyzer neither saw nor was told it missed.
    #[must_use]
    pub fn unread(&self) -> u64 {
        self.stored
            .saturating_sub(self.analyzed)
            .saturating_sub(self.lapped)
    }
}

impl Handle {
    /// Ends the capture; open windows are closed and their files completed.
    pub fn stop(&self) {
        self.control.stop();
        self.waker.wake();
    }

    /// Ends everything; unfinished files stay as they are.
    pub fn abort(&self) {
        self.control.abort();
        self.stop();
    }

    /// Triggers by hand, with the window of the configuration. Where 1,024 such triggers wait, it is one of them.
    pub fn trigger(&self) {
        // Nobody can tell them apart.
        let _ = self.trigger_with(TriggerRequest::default());
    }

    /// Triggers by hand, from any thread, and returns at once: a dump of what `manual_dump` of the configuration takes, with a window of its own. It starts
    /// a dump, or belongs to an open one that was asked for in the same way, or is refused where `max_dumps` by hand are open.
    ///
    /// # Errors
    /// The request, where 1,024 others wait to be looked at: nothing is asked for then.
    pub fn trigger_with(&self, request: TriggerRequest) -> Result<(), TriggerRequest> {
        self.control.trigger(request)?;
        self.waker.wake();
        Ok(())
    }
}

impl Recorder {
    /// What stops and triggers this recorder from other threads, for signals and the like.
    #[must_use]
    pub fn handle(&self) -> Handle {
        Handle {
            control: Arc::clone(&self.common.control),
            waker: self.waker.clone(),
        }
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

    /// Waits for news, at most `timeout`; `Err(Disconnected)` when all threads are done. Whoever does not take them holds nobody up:
    /// then they are counted ([`Event::Missed`]).
    ///
    /// # Errors
    /// As `Receiver::recv_timeout`.
    pub fn event(&self, timeout: Duration) -> Result<Event, mpsc::RecvTimeoutError> {
        self.events.take(timeout)
    }

    /// What it is doing now.
    #[must_use]
    pub fn status(&self) -> Status {
        let common = &*self.common;
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &common.counters;
        let ring = common.ring.statistics();
        let history = |start_mono_ns: i64| {
            let since_ns = ring.whole_since_mono_ns.unwrap_or(start_mono_ns);
            let ns = common.clock.mono_ns().saturating_sub(since_ns);
            Duration::from_nanos(u64::try_from(ns).unwrap_or(0))
        };
        Status {
            sources: common.intake.snapshots(),
            history: self.start_mono_ns.map(history),
            ring,
            analyzed: load(&counters.analyzed),
            lapped: load(&counters.lapped),
            hits: *lock(&counters.hits),
            dumps_open: load(&counters.open_dumps) + counters.in_flight(),
            copied_bytes: counters.copied_bytes.load(Ordering::Relaxed) as u64,
            clock_steps: load(&counters.clock_steps),
            scripts_failed: counters.scripts_failed(),
        }
    }

    /// Sums up without waiting for threads that may hang.
    #[must_use]
    pub fn abandon(self) -> Summary {
        sum_up(&self.common, Vec::new(), false)
    }

    /// Waits for all threads and sums up.
    #[must_use]
    pub fn join(self) -> Summary {
        let mut panicked = false;
        let mut errors = Vec::new();
        for inserter in self.inserters {
            match inserter.join() {
                Ok(ends) => errors.extend(ends),
                Err(_) => panicked = true,
            }
        }
        for thread in [self.analyzer, self.dumper] {
            panicked |= thread.join().is_err();
        }
        sum_up(&self.common, errors, panicked)
    }
}

fn sum_up(common: &Common, errors: Vec<SourceError>, panicked: bool) -> Summary {
    let counters = &common.counters;
    let (dumps, dumps_before) = common.log.summary();
    Summary {
        sources: common.intake.snapshots(),
        stored: common.ring.statistics().stored_packets,
        analyzed: counters.analyzed.load(Ordering::Relaxed),
        lapped: counters.lapped.load(Ordering::Relaxed),
        not_analyzed: counters.unseen.load(Ordering::Relaxed),
        hits: *lock(&counters.hits),
        scripts_failed: counters.scripts_failed(),
        dumps,
        dumps_before,
        errors,
        panicked,
    }
}
