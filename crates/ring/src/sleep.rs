//! How a reader sleeps until a producer has published, without cost to a producer whose readers are awake.
//!
//! The same Dekker protocol as the writers' bell, per producer:
//!
//! ```text
//! reader    asleep = true (its mutex);  flag of each of its producers = 1;  fence F3;  anything published?  else sleep
//! producer  store published;  fence F4;  flag != 0?  then swap it to 0 and wake the readers that say they sleep
//! ```
//!
//! After F3 the reader sees the publication, or after F4 the producer sees the flag. A flag that another reader set is as
//! good: the swap is Acquire, so that the walk over the readers sees every `asleep` that was set before the flag it took.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use crate::sync::{AtomicBool, Condvar, Mutex, Ordering, fence, lock, wait_timeout};

/// Who sleeps for news from one producer.
#[derive(Debug)]
pub(crate) struct Dormitory {
    flag: AtomicBool,
    readers: Mutex<Vec<Arc<Sleeper>>>,
}

/// One reader's bed.
#[derive(Debug)]
pub(crate) struct Sleeper {
    state: Mutex<SleepState>,
    condition: Condvar,
}

#[derive(Debug)]
struct SleepState {
    asleep: bool,
    /// Survives until the next sleep, which it ends at once.
    woken: bool,
}

/// Wakes one reader out of [`Reader::wait`](crate::Reader::wait), from any thread. If it does not sleep, its next sleep ends at once.
#[derive(Debug, Clone)]
pub struct Waker(Arc<Sleeper>);

impl Dormitory {
    pub(crate) fn new() -> Self {
        Self {
            flag: AtomicBool::new(false),
            readers: Mutex::new(Vec::new()),
        }
    }

    pub(crate) fn enter(&self, sleeper: &Arc<Sleeper>) {
        lock(&self.readers).push(Arc::clone(sleeper));
    }

    pub(crate) fn leave(&self, sleeper: &Arc<Sleeper>) {
        lock(&self.readers).retain(|other| !Arc::ptr_eq(other, sleeper));
    }

    /// Producer: has published. One fence and one load unless a reader said that it sleeps.
    pub(crate) fn published(&self) {
        fence(Ordering::SeqCst); // F4, pairs with F3
        if !self.flag.load(Ordering::Relaxed) {
            return; // ordered by F4
        }
        // S: Acquire, pairs with the Release in call_me().
        if self.flag.swap(false, Ordering::Acquire) {
            for sleeper in lock(&self.readers).iter() {
                sleeper.wake_if_asleep();
            }
        }
    }

    /// Wakes everybody, asleep or about to be.
    pub(crate) fn wake_all(&self) {
        for sleeper in lock(&self.readers).iter() {
            sleeper.wake();
        }
    }

    fn call_me(&self) {
        self.flag.store(true, Ordering::Release); // pairs with S
    }
}

impl Sleeper {
    pub(crate) fn new() -> Self {
        Self {
            state: Mutex::new(SleepState {
                asleep: false,
                woken: false,
            }),
            condition: Condvar::new(),
        }
    }

    /// Sleeps until a producer of `rooms` has published what `news` sees, somebody wakes the reader, or `timeout`; `false`
    /// only after the timeout.
    pub(crate) fn sleep<'d>(
        &self,
        rooms: impl Iterator<Item = &'d Dormitory>,
        news: impl Fn() -> bool,
        timeout: Duration,
    ) -> bool {
        let start = Instant::now();
        {
            let mut state = lock(&self.state);
            if std::mem::take(&mut state.woken) {
                return true;
            }
            state.asleep = true;
        }
        rooms.for_each(Dormitory::call_me);
        fence(Ordering::SeqCst); // F3, pairs with F4
        let mut woken = news();
        let mut state = lock(&self.state);
        while !woken {
            woken = state.woken;
            let left = timeout.saturating_sub(start.elapsed());
            if woken || left.is_zero() {
                break;
            }
            state = wait_timeout(&self.condition, state, left);
        }
        state.asleep = false;
        state.woken = false;
        woken
    }

    fn wake_if_asleep(&self) {
        let mut state = lock(&self.state);
        if state.asleep {
            state.woken = true;
            self.condition.notify_one();
        }
    }

    fn wake(&self) {
        lock(&self.state).woken = true;
        self.condition.notify_one();
    }
}

impl Waker {
    pub(crate) fn new(sleeper: &Arc<Sleeper>) -> Self {
        Self(Arc::clone(sleeper))
    }

    /// Ends the reader's sleep, or its next one.
    pub fn wake(&self) {
        self.0.wake();
    }
}
