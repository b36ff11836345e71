//! R-Scope's lockless bimodal queue as the paper has it (section 2.2): one producer, and one consumer that is there at times. Words instead of pointers.
//!
//! Mended where the listings cannot be meant: positions go on without end, because `offset_p == offset_c` is a full ring and an empty one there; the form with
//! compare-and-swap locks `trans`, as `lock` is no field of it; and a producer that waits for room lets go of it, because a consumer could not stop otherwise.
//!
//! `crates/flow/tests/loom.rs` has this file too, and runs it under loom.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, AtomicU64};

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, AtomicU64};

/// The ring that both have.
#[derive(Debug)]
struct Words {
    places: Box<[AtomicU64]>,
    produced: AtomicU64,
    consumed: AtomicU64,
}

impl Words {
    fn new(capacity: usize) -> Self {
        Self {
            places: (0..capacity).map(|_| AtomicU64::new(0)).collect(),
            produced: AtomicU64::new(0),
            consumed: AtomicU64::new(0),
        }
    }

    fn place(&self, number: u64) -> &AtomicU64 {
        &self.places[usize::try_from(number % self.places.len() as u64).unwrap_or(0)]
    }

    /// Of the producer. Acquire: the word that was taken is not overwritten before.
    fn is_full(&self) -> bool {
        let held = self.produced.load(Relaxed) - self.consumed.load(Acquire);
        held == self.places.len() as u64
    }

    /// Of the producer, where there is room. Release: the word comes with its number.
    fn put(&self, word: u64) {
        let number = self.produced.load(Relaxed);
        self.place(number).store(word, Relaxed);
        self.produced.store(number + 1, Release);
    }

    /// Of the consumer, or of the producer in its stead.
    fn take(&self) -> Option<u64> {
        let number = self.consumed.load(Relaxed);
        if number == self.produced.load(Acquire) {
            return None;
        }
        let word = self.place(number).load(Relaxed);
        self.consumed.store(number + 1, Release);
        Some(word)
    }
}

/// Without compare-and-swap: both agree by a handshake, so the producer has to be active for the consumer to begin and to end.
#[derive(Debug)]
pub(crate) struct Handshake {
    words: Words,
    /// The consumer's.
    request: AtomicBool,
    /// The producer's.
    acknowledged: AtomicBool,
}

impl Handshake {
    /// Of so many words, at least 1.
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            words: Words::new(capacity),
            request: AtomicBool::new(false),
            acknowledged: AtomicBool::new(false),
        }
    }

    /// Overwrites the oldest word while no consumer is there, else calls `wait` until there is room.
    pub(crate) fn enqueue(&self, word: u64, mut wait: impl FnMut()) {
        loop {
            // Acquire: what the consumer took before it left is taken.
            let is_there = self.request.load(Acquire);
            if self.acknowledged.load(Relaxed) != is_there {
                // Release: whoever goes on does so from where the producer was.
                self.acknowledged.store(is_there, Release);
            }
            if !self.words.is_full() {
                return self.words.put(word);
            }
            if is_there {
                // It may leave meanwhile, and then waits for the answer.
                wait();
            } else {
                self.words.take();
            }
        }
    }

    /// Of the consumer, between `start` and `stop`.
    pub(crate) fn dequeue(&self) -> Option<u64> {
        self.words.take()
    }

    /// The consumer comes. False: the producer has not answered while `wait` said so; it has to, before a word is taken.
    pub(crate) fn start(&self, wait: impl FnMut() -> bool) -> bool {
        self.agree(true, wait)
    }

    /// The consumer leaves; likewise.
    pub(crate) fn stop(&self, wait: impl FnMut() -> bool) -> bool {
        self.agree(false, wait)
    }

    fn agree(&self, is_there: bool, mut wait: impl FnMut() -> bool) -> bool {
        self.request.store(is_there, Release);
        while self.acknowledged.load(Acquire) != is_there {
            if !wait() {
                return false;
            }
        }
        true
    }
}

/// With compare-and-swap: whoever changes the mode, or adds a word, takes `trans` for that.
#[derive(Debug)]
pub(crate) struct Swap {
    words: Words,
    trans: AtomicBool,
    /// The consumer is there.
    state: AtomicBool,
}

impl Swap {
    /// Of so many words, at least 1.
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            words: Words::new(capacity),
            trans: AtomicBool::new(false),
            state: AtomicBool::new(false),
        }
    }

    fn with_trans<R>(&self, wait: &mut impl FnMut(), act: impl FnOnce() -> R) -> R {
        let is_taken = || self.trans.compare_exchange(false, true, Acquire, Relaxed);
        while is_taken().is_err() {
            wait();
        }
        let done = act();
        self.trans.store(false, Release);
        done
    }

    /// As [`Handshake::enqueue`].
    pub(crate) fn enqueue(&self, word: u64, mut wait: impl FnMut()) {
        loop {
            let is_put = self.with_trans(&mut wait, || {
                let is_full = self.words.is_full();
                let is_there = self.state.load(Relaxed);
                if is_full && !is_there {
                    self.words.take();
                }
                let has_room = !(is_full && is_there);
                if has_room {
                    self.words.put(word);
                }
                has_room
            });
            if is_put {
                return;
            }
            wait();
        }
    }

    /// As [`Handshake::dequeue`].
    pub(crate) fn dequeue(&self) -> Option<u64> {
        self.words.take()
    }

    /// The consumer comes, whatever the producer does.
    pub(crate) fn start(&self, mut wait: impl FnMut()) {
        self.with_trans(&mut wait, || self.state.store(true, Relaxed));
    }

    /// The consumer leaves, likewise.
    pub(crate) fn stop(&self, mut wait: impl FnMut()) {
        self.with_trans(&mut wait, || self.state.store(false, Relaxed));
    }
}
