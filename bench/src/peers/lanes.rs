//! The loops of both sides, the same for every peer and every use: send each item, receive until there are no more.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::queue::{Receiver, Sender};
use crate::contest::Failure;
use crate::race::{Course, LIMIT};

/// How long a side that finds the queue full or empty leaves it alone.
///
/// Every look at an empty queue takes the producer's cache line away from it, to be fetched back before the next item can
/// be sent: a consumer that is the faster side and looks all the time slows the producer down, and itself with it. Measured
/// on two cores of an EPYC guest, 64 bytes, used well: looking again at once left rte_ring and ReaderWriterQueue 20 to 60 of
/// the 220 Mpps that they reach with pauses; rtrb does 248 with 10 µs and 256 with 20 µs; 40 µs cost a fifth.
const PAUSE: Duration = Duration::from_micros(20);

/// Pauses before the first that also yields: where more threads run than there are CPUs, the side that is waited for may
/// need this one.
const PAUSES: u32 = 4;

/// What the threads of one run share beside the queue.
#[derive(Debug)]
pub(super) struct Lanes {
    /// Producers that have not sent everything yet.
    sending: AtomicUsize,
}

impl Lanes {
    pub(super) fn new(producers: usize) -> Self {
        Self {
            sending: AtomicUsize::new(producers),
        }
    }

    /// Says that one producer has sent everything.
    pub(super) fn done(&self) {
        // D1: Release, pairs with D2 in `receive_all`: who sees the last one done sees all items.
        self.sending.fetch_sub(1, Ordering::Release);
    }

    /// Receives every item until all producers are done and the queue is empty.
    ///
    /// # Errors
    /// [`Failure::Deadline`] once the run is given up.
    pub(super) fn receive_all<T>(
        &self,
        course: &Course,
        receiver: &mut impl Receiver<T>,
        mut see: impl FnMut(T),
    ) -> Result<(), Failure> {
        let mut wait = Wait::default();
        loop {
            // D2: Acquire, before the look that may find nothing.
            let last = self.sending.load(Ordering::Acquire) == 0;
            match receiver.try_receive() {
                Some(item) => {
                    see(item);
                    wait = Wait::default();
                }
                None if last => return Ok(()),
                None => wait.pause(course)?,
            }
        }
    }
}

/// Tries until `attempt` gives something, leaving the queue alone in between.
///
/// # Errors
/// [`Failure::Deadline`] once the run is given up.
#[inline]
pub(super) fn until<T>(
    course: &Course,
    mut attempt: impl FnMut() -> Option<T>,
) -> Result<T, Failure> {
    let mut wait = Wait::default();
    loop {
        if let Some(value) = attempt() {
            return Ok(value);
        }
        wait.pause(course)?;
    }
}

/// Sends one item, however long the queue stays full.
///
/// # Errors
/// [`Failure::Deadline`] once the run is given up.
#[inline]
pub(super) fn send<T>(
    course: &Course,
    sender: &mut impl Sender<T>,
    item: T,
) -> Result<(), Failure> {
    let Err(mut item) = sender.try_send(item) else {
        return Ok(());
    };
    let mut wait = Wait::default();
    loop {
        wait.pause(course)?;
        match sender.try_send(item) {
            Ok(()) => return Ok(()),
            Err(back) => item = back,
        }
    }
}

/// One wait, however many pauses it takes.
#[derive(Debug, Default)]
struct Wait {
    pauses: u32,
}

impl Wait {
    #[cold]
    fn pause(&mut self, course: &Course) -> Result<(), Failure> {
        if course.stopped() {
            return Err(Failure::Deadline {
                seconds: LIMIT.as_secs(),
            });
        }
        if self.pauses == PAUSES {
            std::thread::yield_now();
        } else {
            self.pauses += 1;
        }
        let start = Instant::now();
        while start.elapsed() < PAUSE {
            std::hint::spin_loop();
        }
        Ok(())
    }
}
