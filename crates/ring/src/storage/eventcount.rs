//! An eventcount: how a writer without a bucket learns that a bucket may be free now.
//!
//! Some of the state that frees buckets (a released hold, a group's position, the mode) changes
//! without the outer mutex, so a condition variable is not enough. Each side puts a sequentially
//! consistent fence between its own store and its load of the other side's store (Dekker):
//!
//! ```text
//! writer  waiters += 1;  fence F1;  search for a bucket;  sleep while epoch is unchanged
//! freer   store that frees;  fence F2;  waiters != 0?  then epoch += 1, wake
//! ```
//!
//! The fences have a total order. If F1 is later, the writer sees the bucket; if F2 is later, the
//! freer sees the writer. A writer that must not wait uses the epoch to fail at once until
//! something changes.
//!
//! The epoch wraps: a writer that is stopped between its search and its sleep, or its next store,
//! for 2³² notifications can miss these.

use crate::{
    futex::Futex,
    sync::{AtomicUsize, Ordering, fence},
};

/// The eventcount of a ring, for buckets that become free.
#[derive(Debug)]
pub(crate) struct EventCount {
    /// Producers that found no bucket since they last got a bucket.
    waiters: AtomicUsize,
    /// Number of notifications that found a waiter.
    epoch: Futex,
}

impl EventCount {
    pub(crate) fn new() -> Self {
        Self {
            waiters: AtomicUsize::new(0),
            epoch: Futex::new(0),
        }
    }

    /// Freer: must be called after each store that may free a bucket. Costs a fence and a load
    /// while nobody waits.
    pub(crate) fn notify(&self) {
        fence(Ordering::SeqCst); // F2, pairs with F1
        if self.waiters.load(Ordering::Relaxed) == 0 {
            return; // ordered by F2
        }
        self.epoch.fetch_add(1, Ordering::Release); // B: pairs with epoch()
        self.epoch.wake();
    }

    /// Writer: must search for a bucket once more before it sleeps.
    pub(crate) fn add_waiter(&self) {
        self.waiters.fetch_add(1, Ordering::Relaxed); // ordered by F1
        fence(Ordering::SeqCst); // F1, pairs with F2
    }

    pub(crate) fn remove_waiter(&self) {
        self.waiters.fetch_sub(1, Ordering::Relaxed); // a late decrement only costs a needless notification
    }

    /// Writer: must be read before the search for a bucket.
    pub(crate) fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Acquire) // pairs with B
    }

    /// Writer, after [`Self::add_waiter`]: sleeps until a notification after `epoch` was read. May
    /// return early.
    pub(crate) fn wait(&self, epoch: u32) {
        self.epoch.wait(epoch, None);
    }
}
