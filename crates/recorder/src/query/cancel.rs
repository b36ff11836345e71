//! Ending an answer from another thread.

use std::{
    sync::{Arc, Condvar, Mutex},
    time::Duration,
};

use crate::control::lock;

/// Ends an answer early, from any thread: who asked is gone. Clones end the same answers.
#[derive(Debug, Clone, Default)]
pub struct Cancel(Arc<(Mutex<bool>, Condvar)>);

impl Cancel {
    /// Ends the answers that [`Answer::until`](crate::Answer::until) was given it for: within a bucket or a look.
    pub fn cancel(&self) {
        *lock(&self.0.0) = true;
        self.0.1.notify_all();
    }

    /// Whether [`Self::cancel`] was called.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        *lock(&self.0.0)
    }

    /// Waits for so long, or until it is called.
    pub(super) fn wait(&self, time: Duration) {
        let (is_cancelled, called) = &*self.0;
        let guard = lock(is_cancelled);
        // Poisoned or not, the flag is looked at again.
        let _ = called.wait_timeout_while(guard, time, |is_cancelled| !*is_cancelled);
    }
}
