//! std's mutex and condition variable, with an order that ThreadSanitizer sees.
//!
//! The standard library is compiled without the sanitizer. The sanitizer does not see the contended
//! part of a lock, so a hand-over through a mutex can look like a race. This module repeats each
//! hand-over on a separate atomic: stored (Release) while the lock is still held, loaded (Acquire)
//! when the lock is held again. A condition variable orders nothing that its mutex does not order.
//!
//! The sanitizer does not support fences. No fence of this crate hands over memory inside the
//! process (the table in `lib.rs` names the edges).

use std::{
    fmt,
    ops::{Deref, DerefMut},
    sync::{LockResult, PoisonError, WaitTimeoutResult},
    time::Duration,
};

use super::{AtomicBool, Ordering};

#[derive(Debug, Default)]
pub(crate) struct Mutex<T> {
    inner: std::sync::Mutex<T>,
    handed_over: AtomicBool,
}

pub(crate) struct MutexGuard<'m, T> {
    /// `None` only after `release`: the guard was given to a wait, or is being dropped.
    inner: Option<std::sync::MutexGuard<'m, T>>,
    handed_over: &'m AtomicBool,
}

#[derive(Debug, Default)]
pub(crate) struct Condvar(std::sync::Condvar);

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self {
            inner: std::sync::Mutex::new(value),
            handed_over: AtomicBool::new(false),
        }
    }

    pub(crate) fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(MutexGuard::new(inner, &self.handed_over))
    }
}

impl<'m, T> MutexGuard<'m, T> {
    fn new(inner: std::sync::MutexGuard<'m, T>, handed_over: &'m AtomicBool) -> Self {
        handed_over.load(Ordering::Acquire); // pairs with release()
        Self {
            inner: Some(inner),
            handed_over,
        }
    }

    fn release(&mut self) -> Option<std::sync::MutexGuard<'m, T>> {
        self.handed_over.store(true, Ordering::Release); // pairs with new()
        self.inner.take()
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        if self.inner.is_some() {
            self.release();
        }
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.inner
            .as_ref()
            .expect("taken by wait() only, which owns the guard")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.inner
            .as_mut()
            .expect("taken by wait() only, which owns the guard")
    }
}

impl<T: fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl Condvar {
    pub(crate) const fn new() -> Self {
        Self(std::sync::Condvar::new())
    }

    pub(crate) fn wait<'m, T>(
        &self,
        mut guard: MutexGuard<'m, T>,
    ) -> LockResult<MutexGuard<'m, T>> {
        let handed_over = guard.handed_over;
        let inner = guard.release().expect("a guard that was not waited with");
        let inner = self.0.wait(inner).unwrap_or_else(PoisonError::into_inner);
        Ok(MutexGuard::new(inner, handed_over))
    }

    pub(crate) fn wait_timeout<'m, T>(
        &self,
        mut guard: MutexGuard<'m, T>,
        timeout: Duration,
    ) -> LockResult<(MutexGuard<'m, T>, WaitTimeoutResult)> {
        let handed_over = guard.handed_over;
        let inner = guard.release().expect("a guard that was not waited with");
        let (inner, timed_out) = self
            .0
            .wait_timeout(inner, timeout)
            .unwrap_or_else(PoisonError::into_inner);
        Ok((MutexGuard::new(inner, handed_over), timed_out))
    }

    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}
