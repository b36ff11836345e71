//! How a reader sleeps until a producer has published, at no cost to a producer whose readers are awake, and at little to
//! one whose readers are faster than it.
//!
//! Every reader has a *bed* with a word to sleep on, and every producer a *board* with one bit for each bed:
//!
//! ```text
//! reader    bed = ASLEEP;  its bit on the board of each of its producers;  fence F3;  anything published?  else sleep
//! producer  store published;  fence F4;  board != 0?  then take the bits, and wake each of their beds that is ASLEEP
//! ```
//!
//! After F3 the reader sees the publication, or after F4 the producer sees the bit. F4 runs at every
//! [`publish`](crate::Producer::publish) and at the ends of buckets, F3 only before a sleep, so that F4 is the light side
//! of a [`Barrier`]. A bit is taken by an Acquire swap of the board, which sees the ASLEEP that was stored before the bit.
//!
//! # Batched wake-ups
//!
//! A reader that keeps up with a busy link would sleep after each packet, and each publication would cost its producer a
//! system call: some microseconds, which at a million packets a second nobody has. So where news came soon after the last
//! ones, a sleep begins with a *nap*: [`NAP`] on the reader's own timer, with no bit on any board. What was published
//! meanwhile is read in one go. Only when a nap brings nothing does the reader ask to be woken. A producer then pays for no
//! wake-up as long as something comes in every nap, and else for one in each. A reader that follows an open bucket also
//! looks at its header, whose line the writer wants back, once a nap instead of all the time.
//!
//! On a slow link, where the last sleep lasted [`SLOW`] or longer, there is no nap: the packet that ends it is seen at once,
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
const NAP: Duration = Duration::from_micros(50);

/// A link is slow when nothing came for as long. Its producer then pays for 2000 wake-ups a second
/// at most; each was measured at about 7 µs, with the store and the publication.
const SLOW: Duration = Duration::from_micros(500);

/// A sleep whose F3 may have missed a publication lasts no longer; see [`Barrier::heavy`].
const SLEEP_UNSURE: Duration = Duration::from_millis(1);

/// What the word of a bed says.
const AWAKE: u32 = 0;
/// Sleeps, but is not to be woken by producers.
const NAPPING: u32 = 1;
const ASLEEP: u32 = 2;
/// Somebody wants the reader; survives until its next sleep, which it ends at once.
const WOKEN: u32 = 3;

/// The beds of a ring, by number: as many as it may have readers.
#[derive(Debug)]
pub(crate) struct Beds(Box<[Padded<Futex>]>);

/// Who sleeps for news from one producer.
#[derive(Debug)]
pub(crate) struct Dormitory {
    /// Bit `n`: a reader with a bed of number `n` modulo 64 went to sleep and was not woken since.
    board: AtomicU64,
    barrier: Barrier,
    beds: Arc<Beds>,
}

/// The sleeping half of a reader.
#[derive(Debug)]
pub(crate) struct Sleeper {
    beds: Arc<Beds>,
    bed: usize,
    barrier: Barrier,
    /// The next sleep begins with a nap.
    naps: bool,
}

/// Wakes one reader out of [`Reader::wait`](crate::Reader::wait), from any thread. If it does not sleep, its next sleep ends
/// at once. Outlives the reader; a later reader of the ring may then be woken in its place, for nothing.
#[derive(Debug, Clone)]
pub struct Waker {
    beds: Arc<Beds>,
    bed: usize,
}

impl Sleeper {
    /// For a new reader. What was meant for the last one in this bed is over.
    pub(crate) fn new(beds: &Arc<Beds>, bed: usize, barrier: Barrier) -> Self {
        beds.0[bed].0.swap(AWAKE, Ordering::Relaxed); // nobody sleeps in it
        Self {
            beds: Arc::clone(beds),
            bed,
            barrier,
            naps: false,
        }
    }

    pub(crate) fn bed(&self) -> usize {
        self.bed
    }

    pub(crate) fn waker(&self) -> Waker {
        Waker {
            beds: Arc::clone(&self.beds),
            bed: self.bed,
        }
    }

    /// Sleeps until a producer of `rooms` has published what `news` sees, somebody wants the reader, or `timeout`; `false`
    /// only after the timeout.
    pub(crate) fn sleep<'d>(
        &mut self,
        rooms: impl Iterator<Item = &'d Dormitory>,
        news: impl Fn() -> bool,
        timeout: Duration,
    ) -> bool {
        if self.naps && (self.nap(timeout) || news()) {
            return true;
        }
        let start = Instant::now();
        if !self.word().replace(AWAKE, ASLEEP, Ordering::AcqRel) {
            return self.rise(); // somebody wanted the reader before it slept
        }
        rooms.for_each(|room| room.call_me(self.bed));
        let sure = self.barrier.heavy(); // F3, pairs with F4
        let found = news();
        if !found {
            let longest = if sure {
                timeout
            } else {
                timeout.min(SLEEP_UNSURE)
            };
            self.lie(ASLEEP, start, longest);
        }
        // Under loom, which knows no time, every model is one of a busy link.
        self.naps = cfg!(loom) || start.elapsed() < SLOW;
        // A sleep cut short because F3 was unsure is no timeout.
        self.rise() || found || news() || (!sure && start.elapsed() < timeout)
    }

    /// Sleeps for [`NAP`] or `timeout`, whichever is less; `true` if somebody wanted the reader.
    fn nap(&self, timeout: Duration) -> bool {
        let may_sleep = self.word().replace(AWAKE, NAPPING, Ordering::AcqRel);
        // loom knows no time: there a nap is over at once.
        if may_sleep && !cfg!(loom) {
            self.word().wait(NAPPING, Some(timeout.min(NAP)));
        }
        self.rise()
    }

    /// Sleeps until somebody wants the reader, or `timeout`; `false` only after the timeout. No producer wakes it.
    pub(crate) fn doze(&mut self, timeout: Duration) -> bool {
        let start = Instant::now();
        // As above.
        if self.word().replace(AWAKE, NAPPING, Ordering::AcqRel) && !cfg!(loom) {
            self.lie(NAPPING, start, timeout);
        }
        self.naps = false;
        self.rise()
    }

    /// Sleeps until the word is no longer `how`, or `timeout` after `start`.
    fn lie(&self, how: u32, start: Instant, timeout: Duration) {
        // Relaxed: rise() orders what the waker did.
        while self.word().load(Ordering::Relaxed) == how {
            let left = timeout.saturating_sub(start.elapsed());
            if left.is_zero() {
                return;
            }
            self.word().wait(how, Some(left));
        }
    }

    /// Tells whether somebody wanted the reader.
    fn rise(&self) -> bool {
        // W: Acquire, pairs with Beds::wake() and wake_if_asleep().
        self.word().swap(AWAKE, Ordering::Acquire) == WOKEN
    }

    fn word(&self) -> &Futex {
        &self.beds.0[self.bed].0
    }
}

impl Dormitory {
    pub(crate) fn new(beds: &Arc<Beds>, barrier: Barrier) -> Self {
        Self {
            board: AtomicU64::new(0),
            barrier,
            beds: Arc::clone(beds),
        }
    }

    /// Producer: has published. A load, unless a reader said that it sleeps.
    #[inline]
    pub(crate) fn published(&self) {
        self.barrier.light(); // F4, pairs with F3
        // Relaxed: ordered by F4.
        if self.board.load(Ordering::Relaxed) != 0 {
            self.wake_sleepers();
        }
    }

    #[cold]
    fn wake_sleepers(&self) {
        // S: Acquire, pairs with the Release in call_me().
        let mut board = self.board.swap(0, Ordering::Acquire);
        while board != 0 {
            let first = board.trailing_zeros() as usize;
            board &= board - 1;
            for bed in (first..self.beds.0.len()).step_by(u64::BITS as usize) {
                self.beds.wake_if_asleep(bed);
            }
        }
    }

    fn call_me(&self, bed: usize) {
        // Release: pairs with S.
        self.board
            .fetch_or(1 << (bed % u64::BITS as usize), Ordering::Release);
    }
}

impl Beds {
    pub(crate) fn new(readers: usize) -> Self {
        Self((0..readers).map(|_| Padded(Futex::new(AWAKE))).collect())
    }

    /// Wakes the reader, asleep or about to be.
    pub(crate) fn wake(&self, bed: usize) {
        let word = &self.0[bed].0;
        // Release: pairs with W.
        let before = word.swap(WOKEN, Ordering::Release);
        if before == ASLEEP || before == NAPPING {
            word.wake();
        }
    }

    /// Wakes everybody, asleep or about to be.
    pub(crate) fn wake_all(&self) {
        (0..self.0.len()).for_each(|bed| self.wake(bed));
    }

    /// Wakes the reader if it sleeps and does not merely nap.
    fn wake_if_asleep(&self, bed: usize) {
        let word = &self.0[bed].0;
        // Release: pairs with W.
        if word.replace(ASLEEP, WOKEN, Ordering::AcqRel) {
            word.wake();
        }
    }
}

impl Waker {
    /// Ends the reader's sleep, or its next one.
    pub fn wake(&self) {
        self.beds.wake(self.bed);
    }
}
