//! How a reader sleeps until a producer publishes. While its readers are awake, a producer usually
//! pays one load.
//!
//! Every reader has a *parker*, a word to sleep on. Every producer has a *wait set* of 64 bits. A
//! parker's bit is the parker's number modulo 64:
//!
//! ```text
//! reader    parker = PARKED;  set its bit in each producer's wait set;  fence F3;
//!           anything published?  else sleep
//! producer  store published;  fence F4;
//!           wait set != 0?  then take the bits, and wake each of their parkers that is PARKED
//! ```
//!
//! Unless membarrier(2) fails, either the reader sees the publication after F3, or the producer
//! sees the bit after F4. F4 runs at publications, F3 only before a sleep: F4 is the light side of
//! a [`Barrier`].
//!
//! # Batched wake-ups
//!
//! A reader that keeps up with a busy link would sleep after each packet. Each publication would
//! then cost its producer a system call of some microseconds, more than the whole budget at a
//! million packets a second. On a busy link, a sleep therefore usually begins with a *nap*:
//! [`BUSY_LINK_NAP`] on the reader's own timer, from which no producer wakes the reader. After a
//! nap without news the reader asks to be woken.
//!
//! If the last sleep lasted [`SLOW_LINK_SILENCE`] or longer, the reader skips the nap, and sees the
//! next packet without its delay.
//!
//! No loop here spins until another thread makes progress: a sleeper sleeps in the kernel.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    barrier::Barrier,
    futex::Futex,
    sync::{AtomicU64, Ordering, Padded},
};

/// Length of a nap. The kernel's timer slack (by default 50 µs, prctl(2)) adds to this. At one
/// packet per microsecond the median time from the store of a packet to its reading is then about
/// 60 µs.
const BUSY_LINK_NAP: Duration = Duration::from_micros(50);

/// After a sleep of at least this length, the next sleep begins without a nap. A wake-up was
/// measured at about 7 µs, including the store and the publication.
const SLOW_LINK_SILENCE: Duration = Duration::from_micros(500);

/// Maximum length of a sleep whose F3 may have missed a publication ([`Barrier::heavy`]).
const UNSURE_SLEEP_MAX: Duration = Duration::from_millis(1);

/// State of a parker: the reader does not sleep.
const AWAKE: u32 = 0;
/// State of a parker: the reader sleeps, and producers must not wake the reader.
const NAPPING: u32 = 1;
/// State of a parker: the reader sleeps until a producer publishes.
const PARKED: u32 = 2;
/// State of a parker: the reader was woken. Its current sleep ends, or, if the reader is awake, its
/// next sleep.
const WOKEN: u32 = 3;

/// The words of all parkers of a ring, indexed by number.
#[derive(Debug)]
pub(crate) struct Parkers(Box<[Padded<Futex>]>);

/// The readers that sleep until one producer publishes.
#[derive(Debug)]
pub(crate) struct WaitSet {
    /// Bit `n`: a reader whose parker number is `n` modulo 64 may sleep.
    waiters: AtomicU64,
    barrier: Barrier,
    parkers: Arc<Parkers>,
}

/// The part of a reader that sleeps and is woken.
#[derive(Debug)]
pub(crate) struct Parker {
    waker: Waker,
    barrier: Barrier,
    /// Whether the next [`Self::park`] begins with a nap.
    naps: bool,
}

/// Wakes one reader from [`Reader::wait`](crate::Reader::wait) or
/// [`Reader::doze`](crate::Reader::doze), from any thread. A waker may outlive its reader, and may
/// then wake a later reader of the ring for nothing.
#[derive(Debug, Clone)]
pub struct Waker {
    parkers: Arc<Parkers>,
    number: usize,
}

impl Parker {
    /// Drops wake-ups that were meant for the previous reader with this number.
    pub(crate) fn new(parkers: &Arc<Parkers>, number: usize, barrier: Barrier) -> Self {
        parkers.0[number].0.swap(AWAKE, Ordering::Relaxed); // nobody sleeps on it
        Self {
            waker: Waker {
                parkers: Arc::clone(parkers),
                number,
            },
            barrier,
            naps: false,
        }
    }

    pub(crate) fn number(&self) -> usize {
        self.waker.number
    }

    pub(crate) fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Sleeps until a producer of `wait_sets` publishes something that `news` sees, a [`Waker`] or
    /// `Ring::close` wakes the reader, or `timeout` passes. `false`: the timeout. May end early.
    pub(crate) fn park<'w>(
        &mut self,
        wait_sets: impl Iterator<Item = &'w WaitSet>,
        news: impl Fn() -> bool,
        timeout: Duration,
    ) -> bool {
        if self.naps && (self.nap(timeout) || news()) {
            return true;
        }
        let start = Instant::now();
        if !self.word().replace(AWAKE, PARKED, Ordering::AcqRel) {
            return self.end_sleep(); // a waker was faster than this sleep
        }
        wait_sets.for_each(|wait_set| wait_set.add(self.number()));
        let sure = self.barrier.heavy(); // F3, pairs with F4
        let found = news();
        if !found {
            let longest = if sure {
                timeout
            } else {
                timeout.min(UNSURE_SLEEP_MAX)
            };
            self.sleep_while(PARKED, start, longest);
        }
        self.naps = cfg!(loom) || start.elapsed() < SLOW_LINK_SILENCE;
        // If membarrier failed, the sleep may have ended before the caller's timeout.
        self.end_sleep() || found || news() || (!sure && start.elapsed() < timeout)
    }

    /// A sleep of [`BUSY_LINK_NAP`], or `timeout` if less, that no producer ends. `true`: the
    /// reader was woken.
    fn nap(&self, timeout: Duration) -> bool {
        let may_sleep = self.word().replace(AWAKE, NAPPING, Ordering::AcqRel);
        // Loom has no time: a nap ends at once.
        if may_sleep && !cfg!(loom) {
            self.word().wait(NAPPING, Some(timeout.min(BUSY_LINK_NAP)));
        }
        self.end_sleep()
    }

    /// Sleeps until a [`Waker`] or `Ring::close` wakes the reader, or `timeout` passes (`false`).
    pub(crate) fn doze(&mut self, timeout: Duration) -> bool {
        let start = Instant::now();
        // Loom has no time: a sleep ends at once.
        if self.word().replace(AWAKE, NAPPING, Ordering::AcqRel) && !cfg!(loom) {
            self.sleep_while(NAPPING, start, timeout);
        }
        self.naps = false;
        self.end_sleep()
    }

    /// Sleeps until the word is no longer `state`, or `timeout` after `start`.
    fn sleep_while(&self, state: u32, start: Instant, timeout: Duration) {
        // Relaxed: end_sleep() orders what the waker did.
        while self.word().load(Ordering::Relaxed) == state {
            let left = timeout.saturating_sub(start.elapsed());
            if left.is_zero() {
                return;
            }
            self.word().wait(state, Some(left));
        }
    }

    /// Makes the reader awake. Returns whether the reader was woken.
    fn end_sleep(&self) -> bool {
        // W: Acquire, pairs with Parkers::wake() and wake_if_parked().
        self.word().swap(AWAKE, Ordering::Acquire) == WOKEN
    }

    fn word(&self) -> &Futex {
        &self.waker.parkers.0[self.number()].0
    }
}

impl WaitSet {
    pub(crate) fn new(parkers: &Arc<Parkers>, barrier: Barrier) -> Self {
        Self {
            waiters: AtomicU64::new(0),
            barrier,
            parkers: Arc::clone(parkers),
        }
    }

    /// Wakes sleeping readers after a publication. With an empty wait set it costs F4 and one load.
    #[inline]
    pub(crate) fn notify(&self) {
        self.barrier.light(); // F4, pairs with F3
        // Relaxed: ordered by F4.
        if self.waiters.load(Ordering::Relaxed) != 0 {
            self.wake_all();
        }
    }

    #[cold]
    fn wake_all(&self) {
        // S: Acquire, pairs with the Release in add().
        let mut waiters = self.waiters.swap(0, Ordering::Acquire);
        while waiters != 0 {
            let first = waiters.trailing_zeros() as usize;
            waiters &= waiters - 1;
            for number in (first..self.parkers.0.len()).step_by(u64::BITS as usize) {
                self.parkers.wake_if_parked(number);
            }
        }
    }

    fn add(&self, number: usize) {
        // Release: pairs with S.
        self.waiters
            .fetch_or(1 << (number % u64::BITS as usize), Ordering::Release);
    }
}

impl Parkers {
    pub(crate) fn new(readers: usize) -> Self {
        Self((0..readers).map(|_| Padded(Futex::new(AWAKE))).collect())
    }

    /// Wakes the reader, whether asleep or about to sleep.
    fn wake(&self, number: usize) {
        let word = &self.0[number].0;
        // Release: pairs with W.
        let before = word.swap(WOKEN, Ordering::Release);
        if before == PARKED || before == NAPPING {
            word.wake();
        }
    }

    pub(crate) fn wake_all(&self) {
        (0..self.0.len()).for_each(|number| self.wake(number));
    }

    fn wake_if_parked(&self, number: usize) {
        let word = &self.0[number].0;
        // Release: pairs with W.
        if word.replace(PARKED, WOKEN, Ordering::AcqRel) {
            word.wake();
        }
    }
}

impl Waker {
    /// Ends the reader's current sleep, or the next sleep if the reader is awake.
    pub fn wake(&self) {
        self.parkers.wake(self.number);
    }
}
