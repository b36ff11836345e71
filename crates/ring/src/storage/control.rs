//! The word that decides between claim and hold.
//!
//! ```text
//! bits  0..2   state: 0 free, 1 claimed, 2 open, 3 closed
//!       2..16  holds: number of readers that borrow from the bucket
//!      16..64  generation: number of claims of the bucket
//! ```
//!
//! ```text
//! free ──claim──▶ claimed ──open──▶ open ──close──▶ closed
//!                    ▲                                │
//!                    └──────────── claim ─────────────┘
//! ```
//!
//! A claim needs `holds == 0` and increments the generation. A hold needs the generation that the
//! reader knows and a bucket that is open or closed.

#[cfg(not(loom))]
use crate::AttachedState;
use crate::sync::{AtomicU64, Ordering, fence};

const STATE_MASK: u64 = 0b11;
const FREE: u64 = 0;
const CLAIMED: u64 = 1;
const OPEN: u64 = 2;
const CLOSED: u64 = 3;
const HOLD_ONE: u64 = 1 << 2;
const HOLDS_MASK: u64 = ((1 << 14) - 1) << 2;
const GENERATION_SHIFT: u32 = 16;
/// Generations wrap after 2⁴⁸ claims: 326 days at 100 ns each.
const GENERATION_MASK: u64 = (1 << 48) - 1;

/// State and generation of a control word in an attached region, whatever its value.
#[cfg(not(loom))]
pub(crate) fn decode(word: u64) -> (AttachedState, u64) {
    let state = match word & STATE_MASK {
        FREE => AttachedState::Free,
        CLAIMED => AttachedState::Claimed,
        OPEN => AttachedState::Open,
        _ => AttachedState::Closed,
    };
    (state, word >> GENERATION_SHIFT)
}

/// State, holds and generation of a bucket, initially all 0.
#[derive(Debug, Default)]
#[repr(transparent)]
pub(crate) struct Control(AtomicU64);

impl Control {
    /// Claims a free or closed bucket that nobody holds, and returns its new generation.
    pub(crate) fn claim(&self) -> Option<u64> {
        let old = self.0.load(Ordering::Relaxed); // a guess; the exchange below verifies it
        let state = old & STATE_MASK;
        if (state != FREE && state != CLOSED) || old & HOLDS_MASK != 0 {
            return None;
        }
        let generation = ((old >> GENERATION_SHIFT) + 1) & GENERATION_MASK;
        let new = (generation << GENERATION_SHIFT) | CLAIMED;
        // C: Acquire, pairs with R in release(): the readers' last loads come before our first
        // store.
        self.0
            .compare_exchange(old, new, Ordering::Acquire, Ordering::Relaxed)
            .ok()?;
        // G: a reader of another process that sees a new byte also sees the new generation.
        fence(Ordering::Release);
        Some(generation)
    }

    /// Opens a claimed bucket for readers, after its header was written.
    pub(crate) fn open(&self, generation: u64) {
        // O: Release, pairs with H in hold(). A plain store: only the claimer changes a claimed
        // word.
        self.0
            .store((generation << GENERATION_SHIFT) | OPEN, Ordering::Release);
    }

    /// Ends an open bucket, after its last publication and its link.
    pub(crate) fn close(&self) {
        // L: Release, pairs with is_closed(): the last record and the link come before.
        let old = self.0.fetch_add(CLOSED - OPEN, Ordering::Release);
        assert_eq!(old & STATE_MASK, OPEN, "only an open bucket can be closed");
    }

    /// Keeps the bucket from being claimed. `false`: the bucket is free or claimed, has another
    /// generation, or has 16,383 holds, the maximum.
    pub(crate) fn hold(&self, generation: u64) -> bool {
        let mut old = self.0.load(Ordering::Relaxed); // a guess; the exchange below verifies it
        loop {
            let state = old & STATE_MASK;
            if old >> GENERATION_SHIFT != generation
                || (state != OPEN && state != CLOSED)
                || old & HOLDS_MASK == HOLDS_MASK
            {
                return false;
            }
            // H: Acquire, pairs with O in open(): the header belongs to this generation.
            match self.0.compare_exchange_weak(
                old,
                old + HOLD_ONE,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => return true,
                Err(now) => old = now,
            }
        }
    }

    pub(crate) fn release(&self) {
        // R: Release, pairs with C in claim().
        let old = self.0.fetch_sub(HOLD_ONE, Ordering::Release);
        assert_ne!(old & HOLDS_MASK, 0, "a hold was given back twice");
    }

    /// Whether no more records will be committed. For a reader that holds the bucket.
    pub(crate) fn is_closed(&self) -> bool {
        self.0.load(Ordering::Acquire) & STATE_MASK == CLOSED // pairs with L
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_goes_round() {
        let control = Control::default();
        assert!(!control.hold(0), "free");
        assert_eq!(control.claim(), Some(1));
        assert!(!control.hold(1), "claimed, header unfinished");
        assert_eq!(control.claim(), None);
        control.open(1);
        assert!(!control.hold(0));
        assert!(control.hold(1));
        assert_eq!(control.claim(), None, "open");
        assert!(!control.is_closed());
        control.close();
        assert!(control.is_closed());
        assert_eq!(control.claim(), None, "held");
        control.release();
        assert_eq!(control.claim(), Some(2));
        assert!(!control.hold(1));
    }

    #[test]
    fn the_word_is_pinned() {
        let control = Control::default();
        assert_eq!(control.claim(), Some(1));
        control.open(1);
        assert!(control.hold(1));
        assert!(control.hold(1));
        control.close();
        let word = control.0.load(Ordering::Relaxed);
        assert_eq!(word, (1 << 16) | (2 << 2) | 3);
        assert_eq!(decode(word), (AttachedState::Closed, 1));
        assert_eq!(decode(word ^ 1), (AttachedState::Open, 1));
        assert_eq!(decode(1), (AttachedState::Claimed, 0));
        assert_eq!(decode(7 << 16), (AttachedState::Free, 7));
    }

    #[test]
    fn a_hold_too_many_is_refused() {
        let control = Control::default();
        assert_eq!(control.claim(), Some(1));
        control.open(1);
        for _ in 0..16_383 {
            assert!(control.hold(1));
        }
        assert!(!control.hold(1));
        control.close();
        assert!(control.is_closed(), "the state is as before");
        control.release();
        assert!(control.hold(1));
    }

    #[test]
    #[should_panic(expected = "given back twice")]
    fn a_hold_is_given_back_once() {
        let control = Control::default();
        control.claim();
        control.open(1);
        control.release();
    }
}

/// Models of the control word alone. In a model of the whole ring, other fences would hide a
/// missing order here.
#[cfg(loom)]
#[cfg(test)]
mod models {
    use std::sync::Arc;

    use super::*;

    struct Bucket {
        control: Control,
        value: loom::cell::UnsafeCell<u64>,
    }

    impl Bucket {
        fn claim(&self) -> bool {
            let Some(generation) = self.control.claim() else {
                return false;
            };
            // loom checks the order of the accesses.
            self.value.with_mut(|value| assert!(!value.is_null()));
            self.control.open(generation);
            self.control.close();
            true
        }

        fn read(&self, generation: u64) -> bool {
            let held = self.control.hold(generation);
            if held {
                self.value.with(|value| assert!(!value.is_null()));
                self.control.release();
            }
            held
        }
    }

    #[test]
    #[expect(
        clippy::arc_with_non_send_sync,
        reason = "loom's cells watch themselves"
    )]
    fn a_reader_comes_before_or_after_a_writer() {
        loom::model(|| {
            let bucket = Arc::new(Bucket {
                control: Control::default(),
                value: loom::cell::UnsafeCell::new(0),
            });
            assert!(bucket.claim());
            let readers: Vec<_> = (0..2)
                .map(|_| {
                    let bucket = Arc::clone(&bucket);
                    loom::thread::spawn(move || {
                        let new = bucket.read(2);
                        assert!(!bucket.read(1) || !new, "the older one after the newer one");
                    })
                })
                .collect();
            let claimed = bucket.claim();
            for reader in readers {
                reader.join().expect("no panic");
            }
            assert!(claimed || bucket.claim(), "nobody holds it any more");
        });
    }
}
