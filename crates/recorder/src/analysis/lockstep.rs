//! Files in lockstep: packets are stored, analyzed and written to dumps in steps. Without commands
//! of clients, results normally depend on packets and the ring's size, not on thread scheduling.
//!
//! Two threads share the analyzer, which runs the dumper. The analyzer's thread works while the
//! inserter stores further packets. Before the inserter overwrites a bucket, or decides whether to
//! shed a packet whose flow may have a new mark, it does the rest of this work itself. So a trigger
//! finds the same packets in the ring in every run.

use std::{
    sync::{
        Condvar, Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use crate::analysis::{RingReader, analyzer::Analyzer};

/// Maximum time that the analyzer's thread waits for packets. Then the thread checks for commands.
const NEWS_WAIT: Duration = Duration::from_millis(10);

/// The analyzer of files, for its thread and the inserter's.
#[derive(Debug)]
pub(crate) struct Lockstep {
    /// `None`: the recording has ended, or a thread has panicked.
    analyzer: Mutex<Option<Analyzer>>,
    news: Condvar,
}

impl Lockstep {
    pub(crate) fn new(analyzer: Analyzer) -> Self {
        Self {
            analyzer: Mutex::new(Some(analyzer)),
            news: Condvar::new(),
        }
    }

    /// The inserter's thread analyzes all published packets, and gives the dumps the packets that
    /// the dumps need.
    pub(crate) fn catch_up(&self) {
        let mut analyzer = self.lock();
        let analyzer = analyzer.as_mut().and_then(|it| it.as_mut());
        analyzer.into_iter().for_each(Analyzer::catch_up);
    }

    /// The inserter has published packets.
    pub(crate) fn wake(&self) {
        self.news.notify_one();
    }

    /// The inserter or a reader of shards has ended. Takes the lock, so that the analyzer's thread
    /// either sees the end before it waits or is woken.
    pub(crate) fn ended(&self) {
        drop(self.lock());
        self.news.notify_one();
    }

    /// `None`: a thread has panicked while it had the analyzer. The analyzer is then dropped, so
    /// that no thread waits for the analyzer.
    fn lock(&self) -> Option<MutexGuard<'_, Option<Analyzer>>> {
        let analyzer = self.analyzer.lock();
        let analyzer = analyzer.map_err(|poisoned| drop(poisoned.into_inner().take()));
        analyzer.ok()
    }

    /// The analyzer's thread: analyzes until the threads that `left` counts have ended. `None`: as
    /// [`Self::lock`].
    pub(crate) fn run(&self, left: &AtomicUsize) -> Option<Analyzer> {
        let mut analyzer = self.lock()?;
        // Acquire: everything that the last inserter published is then seen at the end.
        while left.load(Ordering::Acquire) > 0 {
            if analyzer.as_mut().is_some_and(|analyzer| analyzer.step()) {
                // The inserter may wait for the lock.
                drop(analyzer);
                analyzer = self.lock()?;
            } else {
                (analyzer, _) = self.news.wait_timeout(analyzer, NEWS_WAIT).ok()?;
            }
        }
        analyzer.take()
    }
}
