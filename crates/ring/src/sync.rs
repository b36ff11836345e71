//! The only door to synchronisation primitives: std normally, loom's models of them under `cfg(loom)`.

use std::{sync::PoisonError, time::Duration};

#[cfg(loom)]
pub(crate) use loom::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU64, AtomicUsize, Ordering, fence},
};
#[cfg(not(loom))]
pub(crate) use std::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU64, AtomicUsize, Ordering, fence},
};

/// Locks, also after another thread panicked inside: what the ring keeps under a mutex is valid between statements.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits on a condition variable; wake-ups may be spurious.
pub(crate) fn wait<'m, T>(condition: &Condvar, guard: MutexGuard<'m, T>) -> MutexGuard<'m, T> {
    condition
        .wait(guard)
        .unwrap_or_else(PoisonError::into_inner)
}

/// Waits at most `timeout`; wake-ups may be spurious. Under loom time does not pass: a lost wake-up is a deadlock there.
pub(crate) fn wait_timeout<'m, T>(
    condition: &Condvar,
    guard: MutexGuard<'m, T>,
    timeout: Duration,
) -> MutexGuard<'m, T> {
    condition
        .wait_timeout(guard, timeout)
        .unwrap_or_else(PoisonError::into_inner)
        .0
}

/// A value on cache lines of its own. 128 bytes: x86 prefetches lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Padded<T>(pub(crate) T);
