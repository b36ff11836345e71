//! What the threads share: time, how far each has come, commands, and news for whoever watches.

pub(crate) mod alerts;
pub(crate) mod audit;
pub(crate) mod commands;
pub(crate) mod common;
pub(crate) mod durations;
pub(crate) mod events;
pub(crate) mod held;
pub(crate) mod hits;
pub(crate) mod outcomes;
pub(crate) mod pins;
pub(crate) mod progress;
pub(crate) mod pulse;
pub(crate) mod ring_time;
pub(crate) mod time;
pub(crate) mod unprivileged;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, whether or not a thread panicked with the lock: the recorder ends then, and reports what there is.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
