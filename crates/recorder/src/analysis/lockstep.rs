//! Files in lockstep: packets are stored, analyzed and written to dumps in steps, so that results
//! should not depend on thread scheduling.
//!
//! Two threads share the analyzer, which runs the dumper. Before the inserter overwrites a bucket,
//! the inserter's thread does the analyzer's remaining work.

use std::{
    sync::{
        Condvar, Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use crate::analysis::{RingReader, analyzer::Analyzer};

/// Time after which the analyzer's thread stops waiting for packets, to check for commands.
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

    /// `None`: a thread has panicked while it had the analyzer, which is then dropped.
    fn lock(&self) -> Option<MutexGuard<'_, Option<Analyzer>>> {
        let analyzer = self.analyzer.lock();
        let analyzer = analyzer.map_err(|poisoned| drop(poisoned.into_inner().take()));
        analyzer.ok()
    }

    /// The analyzer's thread: analyzes until the threads that `left` counts have ended.
    pub(crate) fn run(&self, left: &AtomicUsize) -> Option<Analyzer> {
        let mut analyzer = self.lock()?;
        // Acquire: what the last inserter published is then seen at the end.
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
