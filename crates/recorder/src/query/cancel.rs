//! Ending an answer from another thread.

use std::{
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use crate::control::lock;

/// Ends an answer early, from any thread: who asked is gone. Clones end the same answers.
#[derive(Debug, Clone, Default)]
pub struct Cancel(Arc<CancelState>);

#[derive(Debug, Default)]
struct CancelState {
    /// Set under the mutex, so that who is about to wait sees it; read for each packet without. It carries no data.
    is_cancelled: AtomicBool,
    /// Why it was called, if that was said.
    waiting: Mutex<Option<String>>,
    called: Condvar,
}

impl Cancel {
    /// Ends the answers that [`QueryAnswer::until`](crate::QueryAnswer::until) was given it for: before the next packet or look.
    pub fn cancel(&self) {
        let _waiting = lock(&self.0.waiting);
        self.0.is_cancelled.store(true, Ordering::SeqCst);
        self.0.called.notify_all();
    }

    /// The same, with a sentence that stands in [`QueryReport::notes`](crate::QueryReport::notes).
    pub fn cancel_because(&self, why: &str) {
        *lock(&self.0.waiting) = Some(why.to_owned());
        self.cancel();
    }

    pub(super) fn why(&self) -> Option<String> {
        lock(&self.0.waiting).clone()
    }

    /// Whether [`Self::cancel`] was called.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.is_cancelled.load(Ordering::SeqCst)
    }

    /// Waits for so long, or until it is called.
    pub(super) fn wait(&self, time: Duration) {
        let guard = lock(&self.0.waiting);
        // Poisoned or not, the flag is looked at again.
        let _ = self
            .0
            .called
            .wait_timeout_while(guard, time, |_| !self.is_cancelled());
    }
}
