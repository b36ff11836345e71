//! The threads for work that may wait for a disk.
//!
//! Each dump has a sink (its [files](super::file)) with two lanes. One lane writes blocks to the
//! disk, the other adds the blocks to the SHA-256 digests. One worker at a time does the work of a
//! lane, in order. SHA-256 takes 0.5 to 0.7 s for a GB on a processor with instructions for
//! SHA-256, about as long as a disk that writes 2 GB/s.
//!
//! Work that may wait until a disk has stored data (sync, merge, sidecar) is *slow*. Usually at
//! least two of the four writing workers do no slow work. The first packets of a dump come before
//! all other work of these workers. Separate workers compress, because compression may take hours.
//!
//! All sinks share a budget of encoded bytes that are not written yet. A queue may grow to about
//! half of the rest of the budget (dynamic thresholds, Choudhury and Hahne 1998). So a sink that
//! makes no progress takes at most about a third of the budget, and other sinks go on.
//!
//! From files the dumper waits until the sinks have done their work, so that results do not depend
//! on the speed of a disk.

mod budget;
mod queue;
#[cfg(test)]
mod tests;
mod work;

use std::{
    io,
    sync::{
        Arc, Condvar, Mutex,
        atomic::AtomicUsize,
        mpsc::{self, RecvTimeoutError},
    },
    thread::{Builder, JoinHandle},
    time::Duration,
};

use rustix::process::{Resource, getrlimit};

use self::{
    budget::PoolLimits,
    work::{Lane, PoolShared, SinkBody, SinkSlot},
};
pub(super) use self::{
    queue::{DISK, STOPPED, SinkFault, SinkQueue},
    work::{SinkOutcome, SinkWork},
};
use super::{block::SpareBlocks, captures::Captures, file::DumpFile, names::Directory};
use crate::control::{common::RecorderShared, lock};

/// Number of writing workers.
const WRITERS: usize = 4;
/// Number of writing workers that usually do no slow work.
const NEVER_SLOW: usize = 2;
/// Number of workers that compress complete dumps.
const COMPRESSORS: usize = 2;
/// Limit of the bytes of packets, of all dumps, that are copied and not written yet. A disk of 1
/// GB/s that stalls for 20 ms needs a third of this budget.
pub(crate) const BUDGET_BYTES: usize = 64 << 20;
/// Descriptors that a worker may open during its work. The pool leaves room for these descriptors.
const FILES_AT_WORK: usize = 3;
/// Time that the dumper waits for a result of the workers before it checks whether the workers
/// still run.
const WRITERS_WAIT: Duration = Duration::from_millis(100);

#[derive(Debug, Clone, Copy)]
pub(crate) struct PoolConfig {
    pub(crate) writers: usize,
    pub(crate) compressors: usize,
    /// From files: the dumper waits until the threads have done the work of a sink.
    pub(crate) waits: bool,
    /// Bytes that may be encoded and not written, for all sinks.
    pub(crate) budget_bytes: usize,
    /// Descriptors that sinks may have open, about.
    pub(crate) files_max: usize,
}

impl PoolConfig {
    /// Resources for live sources, or for files. Dumps may use half of the descriptors of this
    /// process.
    pub(crate) fn new(is_live: bool) -> Self {
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        Self {
            writers: WRITERS,
            compressors: COMPRESSORS,
            waits: !is_live,
            budget_bytes: BUDGET_BYTES,
            files_max: usize::try_from(descriptors / 2).unwrap_or(usize::MAX),
        }
    }

    /// Keeps the compressing workers only if dumps are compressed.
    pub(crate) fn compressing(self, is_wanted: bool) -> Self {
        Self {
            compressors: if is_wanted { self.compressors } else { 0 },
            ..self
        }
    }
}

/// The dumper's end of the worker threads.
#[derive(Debug)]
pub(crate) struct Pool {
    shared: Arc<PoolShared>,
    news: mpsc::Receiver<(u64, SinkOutcome)>,
    writers: Vec<JoinHandle<()>>,
    /// The dumper waits for the threads, as in [`PoolConfig`].
    waits: bool,
}

/// If a worker panics, tells the other workers to end and wakes the dumper.
struct Watch(Arc<PoolShared>);

impl Drop for Watch {
    fn drop(&mut self) {
        if std::thread::panicking() {
            lock(&self.0.state).is_over = true;
            self.0.done.notify_all();
        }
    }
}

impl Pool {
    /// Starts the threads, with the privileges of the calling thread.
    pub(crate) fn start(config: PoolConfig, common: &RecorderShared) -> io::Result<Self> {
        let (news_tx, news) = mpsc::channel();
        let at_work = FILES_AT_WORK * (config.writers + config.compressors);
        let shared = Arc::new(PoolShared {
            limits: Arc::new(PoolLimits {
                budget_bytes: config.budget_bytes,
                files_kept: config.files_max.saturating_sub(at_work),
                queued: Arc::clone(&common.counters.copied_bytes),
                files: AtomicUsize::new(0),
                spares: SpareBlocks::default(),
            }),
            slow_max: config.writers.saturating_sub(NEVER_SLOW).max(1),
            state: Mutex::default(),
            work: Condvar::new(),
            compressions: Condvar::new(),
            done: Condvar::new(),
        });
        let mut pool = Self {
            shared,
            news,
            writers: Vec::new(),
            waits: config.waits,
        };
        pool.spawn(config.writers, (Lane::Write, "dump-writer"), &news_tx)?;
        pool.spawn(config.compressors, (Lane::Compress, "dump-zstd"), &news_tx)?;
        Ok(pool)
    }

    fn spawn(
        &mut self,
        count: usize,
        (lane, name): (Lane, &str),
        news: &mpsc::Sender<(u64, SinkOutcome)>,
    ) -> io::Result<()> {
        for number in 0..count {
            let (watch, news) = (Watch(Arc::clone(&self.shared)), news.clone());
            let thread = Builder::new().name(format!("{name}-{number}"));
            let thread = thread.spawn(move || watch.0.work(lane, &news))?;
            self.writers.push(thread);
        }
        Ok(())
    }

    /// Adds a sink for dump `id`, whose files are in `directory`, and queues the creation of the
    /// first file.
    pub(super) fn open(
        &mut self,
        id: u64,
        (captures, directory): (Captures, &Directory),
        file: Box<DumpFile>,
    ) -> SinkQueue {
        let body = SinkBody::new(file, &self.shared.limits);
        let sink = (body.file.held(), self.waits);
        lock(&self.shared.state)
            .slots
            .insert(id, SinkSlot::new(body));
        let mut queue = SinkQueue::new(id, (captures, directory), sink, &self.shared);
        queue.begin();
        queue
    }

    /// The result of earlier work, if one has arrived.
    pub(super) fn outcome(&self) -> Option<(u64, SinkOutcome)> {
        let outcome = self.news.try_recv().ok();
        if outcome.is_none() {
            self.look();
        }
        outcome
    }

    /// Waits for the result of earlier work, at most [`WRITERS_WAIT`]. `None`: no result has
    /// arrived.
    pub(super) fn wait(&self) -> Option<(u64, SinkOutcome)> {
        match self.news.recv_timeout(WRITERS_WAIT) {
            Ok(outcome) => Some(outcome),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                self.look();
                None
            }
        }
    }

    /// Frees memory that was not used since the last call.
    pub(super) fn rest(&self) {
        self.shared.limits.spares.trim();
    }

    /// Panics if a worker has ended. Workers end only with the pool, or after a worker panicked.
    fn look(&self) {
        let is_gone = self.writers.iter().any(JoinHandle::is_finished);
        assert!(!is_gone, "a thread that writes dumps panicked");
    }

    /// Whether no sink has any work left.
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        let state = lock(&self.shared.state);
        let mut slots = state.slots.values();
        slots.all(|slot| slot.body.is_some() && slot.work.is_empty())
    }
}

impl Drop for Pool {
    /// Workers finish their current piece of work. All further work is dropped.
    fn drop(&mut self) {
        lock(&self.shared.state).is_over = true;
        self.shared.work.notify_all();
        self.shared.compressions.notify_all();
        for writer in self.writers.drain(..) {
            // The panic was printed when it happened.
            let _ = writer.join();
        }
    }
}
