//! A word that a thread can sleep on: futex(2).
//!
//! Under loom a mutex and a condition variable replace the kernel, and timeouts are ignored.

use std::time::Duration;

use crate::sync::{AtomicU32, Ordering};

#[derive(Debug)]
pub(crate) struct Futex {
    word: AtomicU32,
    #[cfg(loom)]
    sleepers: (crate::sync::Mutex<()>, crate::sync::Condvar),
}

impl Futex {
    pub(crate) fn new(value: u32) -> Self {
        Self {
            word: AtomicU32::new(value),
            #[cfg(loom)]
            sleepers: (crate::sync::Mutex::new(()), crate::sync::Condvar::new()),
        }
    }

    pub(crate) fn load(&self, order: Ordering) -> u32 {
        self.word.load(order)
    }

    pub(crate) fn swap(&self, value: u32, order: Ordering) -> u32 {
        self.word.swap(value, order)
    }

    pub(crate) fn fetch_add(&self, value: u32, order: Ordering) -> u32 {
        self.word.fetch_add(value, order)
    }

    /// Stores `new` if the word is `old`, and returns whether it was. A failure is an Acquire load.
    pub(crate) fn replace(&self, old: u32, new: u32, order: Ordering) -> bool {
        self.word
            .compare_exchange(old, new, order, Ordering::Acquire)
            .is_ok()
    }

    /// Sleeps while the word is `value`, until `timeout` passes (`None`: no limit). May return
    /// early.
    #[cfg(not(loom))]
    pub(crate) fn wait(&self, value: u32, timeout: Option<Duration>) {
        use rustix::thread::futex::{self, Flags, Timespec};
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        });
        // An error (EAGAIN, EINTR, ETIMEDOUT) only ends the wait.
        let _ = futex::wait(&self.word, Flags::PRIVATE, value, timeout.as_ref());
    }

    /// Wakes all threads that sleep on the word. The caller must change the word first.
    #[cfg(not(loom))]
    pub(crate) fn wake(&self) {
        use rustix::thread::futex::{self, Flags};
        // The result is the number of threads woken.
        let _ = futex::wake(&self.word, Flags::PRIVATE, i32::MAX.unsigned_abs());
    }

    #[cfg(loom)]
    pub(crate) fn wait(&self, value: u32, _timeout: Option<Duration>) {
        let guard = crate::sync::lock(&self.sleepers.0);
        // Relaxed: the lock orders changes before wake().
        if self.word.load(Ordering::Relaxed) == value {
            drop(self.sleepers.1.wait(guard));
        }
    }

    #[cfg(loom)]
    pub(crate) fn wake(&self) {
        let _guard = crate::sync::lock(&self.sleepers.0);
        self.sleepers.1.notify_all();
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use std::{sync::Arc, thread};

    use super::*;

    #[test]
    fn a_wait_ends_at_another_value_at_the_timeout_and_when_woken() {
        let futex = Arc::new(Futex::new(1));
        futex.wait(2, None);
        futex.wait(1, Some(Duration::from_micros(1)));
        let other = Arc::clone(&futex);
        let waker = thread::spawn(move || {
            other.swap(2, Ordering::Release);
            other.wake();
        });
        while futex.load(Ordering::Acquire) == 1 {
            futex.wait(1, None);
        }
        waker.join().unwrap();
        assert!(!futex.replace(1, 3, Ordering::AcqRel));
        assert!(futex.replace(2, 3, Ordering::AcqRel));
        assert_eq!(futex.fetch_add(1, Ordering::Relaxed), 3);
    }
}
