//! How a writer without a bucket learns that it may find one now.
//!
//! What frees buckets (a hold given back, a group's position, a reservation, the mode) changes without the outer mutex,
//! so that the usual mutex and condition variable are not enough. Both sides put a sequentially consistent fence between
//! their own store and the load of the other's (Dekker):
//!
//! ```text
//! writer  waiting += 1;  fence F1;  look for a bucket (holds, positions, …);  sleep while epoch is what it was before
//! freer   store what frees;  fence F2;  waiting != 0?  then epoch += 1, wake
//! ```
//!
//! Whichever fence comes later in their total order: after F1 the writer sees the bucket, after F2 the freer sees the
//! writer. A writer that does not wait (protect mode) uses the epoch to fail at once until something changed.
//!
//! The epoch is the word that writers sleep on, so that there is no mutex which a writer could keep from a freer. It wraps
//! after 2³² rings; a writer would have to be stopped for all of them, between its search and its sleep, to miss the last.

use crate::{
    futex::Futex,
    sync::{AtomicUsize, Ordering, fence},
};

/// See the module.
#[derive(Debug)]
pub(crate) struct Bell {
    /// Producers that found no bucket since they last got one.
    waiting: AtomicUsize,
    /// Counts rings that somebody could have waited for.
    epoch: Futex,
}

impl Bell {
    pub(crate) fn new() -> Self {
        Self {
            waiting: AtomicUsize::new(0),
            epoch: Futex::new(0),
        }
    }

    /// Freer: to be called after each store that may free a bucket. A fence and a load while nobody waits.
    pub(crate) fn ring(&self) {
        fence(Ordering::SeqCst); // F2, pairs with F1
        if self.waiting.load(Ordering::Relaxed) == 0 {
            return; // ordered by F2
        }
        self.epoch.fetch_add(1, Ordering::Release); // B: pairs with epoch()
        self.epoch.wake();
    }

    /// Writer: counts itself as waiting. It must look for a bucket once more before it sleeps.
    pub(crate) fn enlist(&self) {
        self.waiting.fetch_add(1, Ordering::Relaxed); // ordered by F1
        fence(Ordering::SeqCst); // F1, pairs with F2
    }

    /// Writer: has a bucket, or gives up.
    pub(crate) fn leave(&self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed); // only ever costs a needless ring
    }

    /// Writer: to be read before it looks for a bucket.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire).into() // pairs with B
    }

    /// Writer, enlisted: sleeps until the bell rang after `epoch` was read; may return early.
    pub(crate) fn wait(&self, epoch: u64) {
        if let Ok(epoch) = u32::try_from(epoch) {
            self.epoch.wait(epoch, None);
        }
    }
}
