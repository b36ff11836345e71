//! Atomics, fences, mutexes and condition variables: std's, under `cfg(loom)` loom's models, and
//! under ThreadSanitizer std's with explicit hand-offs (`tests/visible.rs`).

use std::sync::PoisonError;

#[cfg(retroscope_sanitize = "thread")]
#[path = "tests/visible.rs"]
mod visible;

#[cfg(loom)]
pub(crate) use loom::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{
    AtomicBool, AtomicI64, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};
#[cfg(not(any(loom, retroscope_sanitize = "thread")))]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};
#[cfg(retroscope_sanitize = "thread")]
pub(crate) use visible::{Condvar, Mutex, MutexGuard};

/// Locks, even after a panic with the lock: the data under the mutex is valid between statements.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A value on separate cache lines. 128 bytes: x86 prefetches lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Padded<T>(pub(crate) T);
