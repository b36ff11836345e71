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
pub(crate) mod packet_id;
pub(crate) mod pins;
pub(crate) mod progress;
pub(crate) mod pulse;
pub(crate) mod ring_time;
pub(crate) mod unprivileged;

use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, Ordering::Relaxed},
};

pub(crate) use retroscope_dumpstore::time;

/// Locks, whether or not a thread panicked with the lock: the recorder ends then, and reports what there is.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counters that one thread stores and all may read. No counter is ordered with another.
#[derive(Debug)]
pub(crate) struct Counters<const N: usize>([AtomicU64; N]);

impl<const N: usize> Counters<N> {
    /// Replaces all counters.
    pub(crate) fn store(&self, counts: [u64; N]) {
        for (counter, count) in self.0.iter().zip(counts) {
            counter.store(count, Relaxed);
        }
    }

    /// Adds each counter to the sum in its place.
    pub(crate) fn add_to(&self, sums: [&mut u64; N]) {
        for (sum, counter) in sums.into_iter().zip(&self.0) {
            *sum += counter.load(Relaxed);
        }
    }
}

impl<const N: usize> Default for Counters<N> {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; N])
    }
}
