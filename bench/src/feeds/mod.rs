//! Queues of events: the recorder's feed, R-Scope's lockless bimodal queue in both forms of the paper, a locked ring and crossbeam's channel.
//!
//! While somebody listens nothing is lost: producers wait. While nobody does, the oldest is overwritten; of crossbeam's channel the producer takes it out.

mod bimodal;

use std::{
    collections::VecDeque,
    hint::black_box,
    io,
    sync::{Mutex, PoisonError},
    thread,
    time::Instant,
};

use bimodal::{Handshake, Swap};
use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use retroscope_flow::{Cursor, Feed, Heard};

use crate::{
    measure::{Entrant, Failure, check_count, check_sum},
    session::Session,
};

/// Events that each has room for, as many as the recorder keeps.
const CAPACITY: usize = 1024;
/// Events of a run at least.
const EVENTS_MIN: u64 = 10_000;

/// What is compared.
trait Contestant: Sync {
    /// The consumer's own.
    type Listener: Send;

    fn new() -> Self;
    /// Adds a word, also where it has to wait.
    fn add(&self, word: u64);
    fn listen(&self) -> Self::Listener;
    fn next(&self, listener: &mut Self::Listener) -> Option<u64>;
    fn leave(&self, listener: Self::Listener);
}

impl Contestant for Feed<u64> {
    type Listener = Cursor;

    fn new() -> Self {
        Self::new(CAPACITY)
    }

    fn add(&self, word: u64) {
        self.push_or_wait(word, |_| {
            thread::yield_now();
            true
        });
    }

    fn listen(&self) -> Cursor {
        let mut cursor = Self::listen(self, None);
        self.hold(&mut cursor);
        cursor
    }

    fn next(&self, cursor: &mut Cursor) -> Option<u64> {
        match self.hear(cursor) {
            Heard::Event(word) => Some(word),
            Heard::Missed(_) | Heard::Nothing => None,
        }
    }

    fn leave(&self, mut cursor: Cursor) {
        self.release(&mut cursor);
    }
}

impl Contestant for Handshake {
    type Listener = ();

    fn new() -> Self {
        Self::new(CAPACITY)
    }

    fn add(&self, word: u64) {
        self.enqueue(word, thread::yield_now);
    }

    /// It would wait for ever: the producer is not active. The first word answers.
    fn listen(&self) {
        self.start(|| false);
    }

    fn next(&self, (): &mut ()) -> Option<u64> {
        self.dequeue()
    }

    fn leave(&self, (): ()) {
        self.stop(|| false);
    }
}

impl Contestant for Swap {
    type Listener = ();

    fn new() -> Self {
        Self::new(CAPACITY)
    }

    fn add(&self, word: u64) {
        self.enqueue(word, thread::yield_now);
    }

    fn listen(&self) {
        self.start(thread::yield_now);
    }

    fn next(&self, (): &mut ()) -> Option<u64> {
        self.dequeue()
    }

    fn leave(&self, (): ()) {
        self.stop(thread::yield_now);
    }
}

/// A ring under a mutex, and whether somebody listens.
struct Locked(Mutex<(VecDeque<u64>, bool)>);

impl Locked {
    fn with<R>(&self, act: impl FnOnce(&mut VecDeque<u64>, &mut bool) -> R) -> R {
        let mut locked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (words, is_heard) = &mut *locked;
        act(words, is_heard)
    }
}

impl Contestant for Locked {
    type Listener = ();

    fn new() -> Self {
        Self(Mutex::new((VecDeque::with_capacity(CAPACITY), false)))
    }

    fn add(&self, word: u64) {
        while !self.with(|words, is_heard| {
            if words.len() == CAPACITY {
                if *is_heard {
                    return false;
                }
                words.pop_front();
            }
            words.push_back(word);
            true
        }) {
            thread::yield_now();
        }
    }

    fn listen(&self) {
        self.with(|_, is_heard| *is_heard = true);
    }

    fn next(&self, (): &mut ()) -> Option<u64> {
        self.with(|words, _| words.pop_front())
    }

    fn leave(&self, (): ()) {
        self.with(|_, is_heard| *is_heard = false);
    }
}

/// crossbeam's channel: whether somebody listens, the producer is not told.
struct Channel(Sender<u64>, Receiver<u64>, std::sync::atomic::AtomicBool);

impl Contestant for Channel {
    type Listener = ();

    fn new() -> Self {
        let (sender, receiver) = bounded(CAPACITY);
        Self(sender, receiver, false.into())
    }

    fn add(&self, word: u64) {
        while let Err(TrySendError::Full(_)) = self.0.try_send(word) {
            if self.2.load(std::sync::atomic::Ordering::Relaxed) {
                thread::yield_now();
            } else {
                let _ = self.1.try_recv();
            }
        }
    }

    fn listen(&self) {
        self.2.store(true, std::sync::atomic::Ordering::Relaxed);
    }

    fn next(&self, (): &mut ()) -> Option<u64> {
        self.1.try_recv().ok()
    }

    fn leave(&self, (): ()) {
        self.2.store(false, std::sync::atomic::Ordering::Relaxed);
    }
}

/// `feed/…/1p1c`, `feed/…/2p1c`: events that are added and heard, millions a second; `feed/…/alone`: added while nobody listens.
pub(crate) fn rows(session: &Session) -> io::Result<()> {
    session.measure(
        "events, one producer and one listener",
        vec![
            heard::<Feed<u64>>("feed", session, 1),
            heard::<Handshake>("handshake", session, 1),
            heard::<Swap>("swap", session, 1),
            heard::<Locked>("mutex", session, 1),
            heard::<Channel>("crossbeam-channel", session, 1),
        ],
    )?;
    session.measure(
        "events, two producers and one listener",
        vec![
            heard::<Feed<u64>>("feed", session, 2),
            heard::<Locked>("mutex", session, 2),
            heard::<Channel>("crossbeam-channel", session, 2),
        ],
    )?;
    session.measure(
        "events, one producer and nobody listens",
        vec![
            alone::<Feed<u64>>("feed", session),
            alone::<Handshake>("handshake", session),
            alone::<Swap>("swap", session),
            alone::<Locked>("mutex", session),
            alone::<Channel>("crossbeam-channel", session),
        ],
    )
}

fn heard<'a, C: Contestant>(name: &str, session: &Session, producers: u64) -> Entrant<'a> {
    let name = format!("feed/{name}/{producers}p1c");
    Entrant::paced(name, session.scale.seconds, EVENTS_MIN, move |events| {
        let (feed, each) = (C::new(), events / producers);
        let mut listener = feed.listen();
        let start = Instant::now();
        let (count, sum) = thread::scope(|scope| {
            let feed = &feed;
            for producer in 0..producers {
                scope
                    .spawn(move || (0..each).for_each(|number| feed.add(producer * each + number)));
            }
            let (mut count, mut sum) = (0, 0_u64);
            while count < each * producers {
                match feed.next(&mut listener) {
                    Some(word) => (count, sum) = (count + 1, sum.wrapping_add(word)),
                    None => thread::yield_now(),
                }
            }
            (count, sum)
        });
        let per_second = count as f64 / start.elapsed().as_secs_f64();
        feed.leave(listener);
        let all = each * producers;
        check_count(all, count)?;
        check_sum((0..all).fold(0, u64::wrapping_add), sum)?;
        Ok((per_second / 1e6, per_second))
    })
}

/// As many as there is room for are left, the last ones.
fn alone<'a, C: Contestant>(name: &str, session: &Session) -> Entrant<'a> {
    let name = format!("feed/{name}/alone");
    Entrant::paced(name, session.scale.seconds, EVENTS_MIN, move |events| {
        let feed = C::new();
        let start = Instant::now();
        (0..events).for_each(|number| black_box(&feed).add(number));
        let per_second = events as f64 / start.elapsed().as_secs_f64();
        Ok::<_, Failure>((per_second / 1e6, per_second))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A consumer that comes while the producer is idle never begins with the handshake, however long it waits, and at once with compare-and-swap.
    #[test]
    fn an_idle_producer_starves_the_consumer_of_the_handshake() {
        let mut looks = 0;
        let mut wait = || {
            looks += 1;
            looks < 1_000_000
        };
        let handshake = Handshake::new(4);
        handshake.enqueue(7, || ());
        assert!(!handshake.start(&mut wait) && looks == 1_000_000);
        // The producer's next word is the answer.
        handshake.enqueue(8, || ());
        assert!(handshake.start(|| false));
        assert_eq!(
            [(); 3].map(|()| handshake.dequeue()),
            [Some(7), Some(8), None]
        );
        assert!(!handshake.stop(|| false), "likewise");
        let swap = Swap::new(4);
        swap.enqueue(7, || ());
        swap.start(|| panic!("it does not wait"));
        assert_eq!([(); 2].map(|()| swap.dequeue()), [Some(7), None]);
        swap.stop(|| panic!("it does not wait"));
    }

    #[test]
    fn the_oldest_is_overwritten_while_nobody_listens() {
        let (handshake, swap) = (Handshake::new(3), Swap::new(3));
        for word in 0..10 {
            handshake.enqueue(word, || panic!("it waits"));
            swap.enqueue(word, || panic!("it waits"));
        }
        swap.start(|| ());
        assert_eq!(
            [(); 4].map(|()| swap.dequeue()),
            [Some(7), Some(8), Some(9), None]
        );
        // The producer answers, and waits for room, which the consumer then makes.
        handshake.start(|| false);
        let mut taken = Vec::new();
        handshake.enqueue(10, || taken.extend(handshake.dequeue()));
        assert_eq!(taken, [7]);
    }
}
