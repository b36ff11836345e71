//! How a writer without a bucket learns that it may find one now: an eventcount.
//!
//! What frees buckets (a hold given back, a group's position, a reservation, the mode) changes without the outer mutex,
//! so that the usual mutex and condition variable are not enough. Both sides put a sequentially consistent fence between
//! their own store and the load of the other's (Dekker):
//!
//! ```text
//! writer  waiters += 1;  fence F1;  look for a bucket (holds, positions, …);  sleep while epoch is what it was before
//! freer   store what frees;  fence F2;  waiters != 0?  then epoch += 1, wake
//! ```
//!
//! Whichever fence comes later in their total order: after F1 the writer sees the bucket, after F2 the freer sees the
//! writer. A writer that does not wait (protect mode) uses the epoch to fail at once until something changed.
//!
//! The epoch is the word that writers sleep on, so that there is no mutex which a writer could keep from a freer. It wraps
//! after 2³² notifications; a writer would have to be stopped for all of them, between its search and its sleep, to miss the last.

use crate::{
    futex::Futex,
    sync::{AtomicUsize, Ordering, fence},
};

/// See the module.
#[derive(Debug)]
pub(crate) struct EventCount {
    /// Producers that found no bucket since they last got one.
    waiters: AtomicUsize,
    /// Counts the notifications that somebody could have waited for.
    epoch: Futex,
}

impl EventCount {
    pub(crate) fn new() -> Self {
        Self {
            waiters: AtomicUsize::new(0),
            epoch: Futex::new(0),
        }
    }

    /// Freer: to be called after each store that may free a bucket. A fence and a load while nobody waits.
    pub(crate) fn notify(&self) {
        fence(Ordering::SeqCst); // F2, pairs with F1
        if self.waiters.load(Ordering::Relaxed) == 0 {
            return; // ordered by F2
        }
        self.epoch.fetch_add(1, Ordering::Release); // B: pairs with epoch()
        self.epoch.wake();
    }

    /// Writer: counts itself as waiting. It must look for a bucket once more before it sleeps.
    pub(crate) fn add_waiter(&self) {
        self.waiters.fetch_add(1, Ordering::Relaxed); // ordered by F1
        fence(Ordering::SeqCst); // F1, pairs with F2
    }

    /// Writer: has a bucket, or gives up.
    pub(crate) fn remove_waiter(&self) {
        self.waiters.fetch_sub(1, Ordering::Relaxed); // only ever costs a needless notification
    }

    /// Writer: to be read before it looks for a bucket.
    pub(crate) fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Acquire) // pairs with B
    }

    /// Writer, enlisted: sleeps until there was a notification after `epoch` was read; may return early.
    pub(crate) fn wait(&self, epoch: u32) {
        self.epoch.wait(epoch, None);
    }
}
