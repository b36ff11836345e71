//! How a reader sleeps until a producer has published, at no cost to a producer whose readers are awake, and at little to
//! one whose readers are faster than it.
//!
//! Every reader has a *parker*, a word to sleep on, and every producer a *wait set* with one bit for each parker:
//!
//! ```text
//! reader    parker = PARKED;  its bit in the wait set of each of its producers;  fence F3;  anything published?  else sleep
//! producer  store published;  fence F4;  wait set != 0?  then take the bits, and wake each of their parkers that is PARKED
//! ```
//!
//! After F3 the reader sees the publication, or after F4 the producer sees the bit. F4 runs at every
//! [`publish`](crate::Producer::publish) and at the ends of buckets, F3 only before a sleep, so that F4 is the light side
//! of a [`Barrier`]. The bits are taken by an Acquire swap, which sees the PARKED that was stored before each bit.
//!
//! # Batched wake-ups
//!
//! A reader that keeps up with a busy link would sleep after each packet, and each publication would cost its producer a
//! system call of some microseconds, more than the whole time that there is at a million packets a second. So where news came soon after the last
//! ones, a sleep begins with a *nap*: [`BUSY_LINK_NAP`] on the reader's own timer, with no bit in any wait set. What was published
//! meanwhile is read in one go. Only when a nap brings nothing does the reader ask to be woken. A producer then pays for no
//! wake-up as long as something comes in every nap, and else for one in each. A reader that follows an open bucket also
//! looks at its header, whose line the writer wants back, once a nap instead of all the time.
//!
//! On a slow link, where the last sleep lasted [`SLOW_LINK_SILENCE`] or longer, there is no nap: the packet that ends it is seen at once,
//! and the timer is not set for nothing.
//!
//! # Nobody spins
//!
//! There is no loop here, nor elsewhere in this crate, that waits for another thread to go on: a sleeper sleeps in the
//! kernel, a waker stores one word and makes one call. The loops around compare-and-swap repeat only because another thread
//! has succeeded.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    barrier::Barrier,
    futex::Futex,
    sync::{AtomicU64, Ordering, Padded},
};

/// How long a reader leaves the producers of a busy link alone. The kernel's timer slack (50 µs, prctl(2)) comes on top. At
/// a packet each microsecond the median from store to peek is then about 60 µs.
const BUSY_LINK_NAP: Duration = Duration::from_micros(50);

/// A link on which nothing comes for this long is slow. Its producer then pays for 2000 wake-ups a second
/// at most; each was measured at about 7 µs, with the store and the publication.
const SLOW_LINK_SILENCE: Duration = Duration::from_micros(500);

/// A sleep whose F3 may have missed a publication lasts no longer; see [`Barrier::heavy`].
const UNSURE_SLEEP_MAX: Duration = Duration::from_millis(1);

/// What the word of a parker says.
const AWAKE: u32 = 0;
/// Sleeps, and is not to be woken by producers.
const NAPPING: u32 = 1;
/// Sleeps until a producer publishes.
const PARKED: u32 = 2;
/// Somebody wants the reader; survives until its next sleep, which it ends at once.
const WOKEN: u32 = 3;

/// The words of all parkers of a ring, by number: as many as it may have readers.
#[derive(Debug)]
pub(crate) struct Parkers(Box<[Padded<Futex>]>);

/// The readers that sleep for news from one producer.
#[derive(Debug)]
pub(crate) struct WaitSet {
    /// Bit `n`: a reader whose parker has number `n` modulo 64 went to sleep and was not woken since.
    waiters: AtomicU64,
    barrier: Barrier,
    parkers: Arc<Parkers>,
}

/// The sleeping half of a reader.
#[derive(Debug)]
pub(crate) struct Parker {
    waker: Waker,
    barrier: Barrier,
    /// The next sleep begins with a nap.
    naps: bool,
}

/// Wakes one reader out of [`Reader::wait`](crate::Reader::wait), from any thread. If it does not sleep, its next sleep ends
/// at once. Outlives the reader; a later reader of the ring may then be woken in its place, for nothing.
#[derive(Debug, Clone)]
pub struct Waker {
    parkers: Arc<Parkers>,
    number: usize,
}

impl Parker {
    /// The parker of a new reader. Wishes that were meant for the last reader with this number are dropped.
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

    /// Sleeps until a producer of `wait_sets` has published what `news` sees, somebody wants the reader, or `timeout`; `false`
    /// only after the timeout.
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
            return self.end_sleep(); // somebody wanted the reader before it slept
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
        // Under loom, which knows no time, every model is one of a busy link.
        self.naps = cfg!(loom) || start.elapsed() < SLOW_LINK_SILENCE;
        // A sleep cut short because F3 was unsure is no timeout.
        self.end_sleep() || found || news() || (!sure && start.elapsed() < timeout)
    }

    /// Sleeps for [`BUSY_LINK_NAP`] or `timeout`, whichever is less; `true` if somebody wanted the reader.
    fn nap(&self, timeout: Duration) -> bool {
        let may_sleep = self.word().replace(AWAKE, NAPPING, Ordering::AcqRel);
        // loom knows no time: there a nap is over at once.
        if may_sleep && !cfg!(loom) {
            self.word().wait(NAPPING, Some(timeout.min(BUSY_LINK_NAP)));
        }
        self.end_sleep()
    }

    /// Sleeps until somebody wants the reader, or `timeout`; `false` only after the timeout. No producer wakes it.
    pub(crate) fn doze(&mut self, timeout: Duration) -> bool {
        let start = Instant::now();
        // loom knows no time: there a sleep is over at once.
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

    /// Tells whether somebody wanted the reader.
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

    /// The producer has published: wakes readers. Costs a load, unless a reader is in the wait set.
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

    /// Wakes the reader, asleep or about to be.
    fn wake(&self, number: usize) {
        let word = &self.0[number].0;
        // Release: pairs with W.
        let before = word.swap(WOKEN, Ordering::Release);
        if before == PARKED || before == NAPPING {
            word.wake();
        }
    }

    /// Wakes everybody, asleep or about to be.
    pub(crate) fn wake_all(&self) {
        (0..self.0.len()).for_each(|number| self.wake(number));
    }

    /// Wakes the reader if it sleeps and does not merely nap.
    fn wake_if_parked(&self, number: usize) {
        let word = &self.0[number].0;
        // Release: pairs with W.
        if word.replace(PARKED, WOKEN, Ordering::AcqRel) {
            word.wake();
        }
    }
}

impl Waker {
    /// Ends the reader's sleep, or its next one.
    pub fn wake(&self) {
        self.parkers.wake(self.number);
    }
}
