//! Ends an answer from another thread.

use std::{
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use crate::control::lock;

/// Ends an answer early, from any thread, for example if the client is gone. Clones end the same
/// answers.
#[derive(Debug, Clone, Default)]
pub struct Cancel(Arc<CancelState>);

#[derive(Debug, Default)]
struct CancelState {
    /// Set under the mutex, so that a thread that is about to wait sees the flag. Read without the
    /// mutex.
    is_cancelled: AtomicBool,
    /// The reason why the answers end.
    waiting: Mutex<Option<String>>,
    called: Condvar,
}

impl Cancel {
    /// Ends the answers that got this object with
    /// [`QueryAnswer::until`](crate::QueryAnswer::until).
    pub fn cancel(&self) {
        let _waiting = lock(&self.0.waiting);
        self.0.is_cancelled.store(true, Ordering::SeqCst);
        self.0.called.notify_all();
    }

    /// Ends the answers, and adds a sentence to [`QueryReport::notes`](crate::QueryReport::notes).
    pub fn cancel_because(&self, why: &str) {
        *lock(&self.0.waiting) = Some(why.to_owned());
        self.cancel();
    }

    pub(crate) fn why(&self) -> Option<String> {
        lock(&self.0.waiting).clone()
    }

    /// Whether [`Self::cancel`] was called.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.is_cancelled.load(Ordering::SeqCst)
    }

    /// Waits for this time, or until [`Self::cancel`] is called.
    pub(super) fn wait(&self, time: Duration) {
        let guard = lock(&self.0.waiting);
        let _ = self
            .0
            .called
            .wait_timeout_while(guard, time, |_| !self.is_cancelled());
    }
}
