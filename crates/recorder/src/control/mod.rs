//! State that the threads share, for example time, progress, commands, and events.

pub(crate) mod alerts;
pub(crate) mod audit;
pub(crate) mod commands;
pub(crate) mod common;
pub(crate) mod durations;
pub(crate) mod events;
pub(crate) mod hits;
pub(crate) mod outcomes;
pub(crate) mod packet_id;
pub(crate) mod pins;
pub(crate) mod progress;
pub(crate) mod pulse;
pub(crate) mod ring_extent;
pub(crate) mod ring_time;
pub(crate) mod rule_scan;
pub(crate) mod threads;
pub(crate) mod unprivileged;

use std::sync::{
    Mutex, MutexGuard, PoisonError, TryLockError,
    atomic::{AtomicU64, Ordering::Relaxed},
};

pub(crate) use retroscope_dumpstore::time;

/// Locks a mutex, poisoned or not: after a panic of a thread, the recorder can still report its
/// results.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes a lock if it is free; a poisoned lock too.
pub(crate) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(place) => Some(place),
        Err(TryLockError::Poisoned(place)) => Some(place.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Counters that one thread at a time stores and all may read. No counter is ordered with another.
#[derive(Debug)]
pub(crate) struct AtomicCounters<const N: usize>([AtomicU64; N]);

impl<const N: usize> AtomicCounters<N> {
    pub(crate) fn store(&self, counts: [u64; N]) {
        for (counter, count) in self.0.iter().zip(counts) {
            counter.store(count, Relaxed);
        }
    }

    /// Adds each counter to the sum at its index.
    pub(crate) fn add_to(&self, sums: [&mut u64; N]) {
        for (sum, counter) in sums.into_iter().zip(&self.0) {
            *sum += counter.load(Relaxed);
        }
    }
}

impl<const N: usize> Default for AtomicCounters<N> {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; N])
    }
}
