//! A store-load fence that costs only the side that rarely runs: membarrier(2).
//!
//! Where two threads each store one word and then load the other's (Dekker), each needs a full fence between. On the path of
//! a publication that fence waits until the store buffer is empty, also for the line of the bucket's header that a reader's
//! core may have. Here the frequent side has [`Barrier::light`], which only keeps the compiler from reordering, and the
//! rare side [`Barrier::heavy`], which makes the kernel run a full fence on every processor that runs a thread of this
//! process. A thread that does not run has passed one when it was switched away from. So the two behave as a pair of
//! sequentially consistent fences:
//!
//! - the light side loaded before its processor passed the kernel's fence: then its earlier store is visible after that;
//! - or it loads later: then it sees what the heavy side stored before the call.
//!
//! liburcu's "sys membarrier" flavour and folly's asymmetric fences do the same. Where the kernel has no expedited membarrier
//! (before Linux 4.14, or a filter forbids the call) both sides use real fences.

use crate::sync::{Ordering, fence};

/// Which fences the two sides use; decided once, before there are any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Barrier {
    /// Light against heavy.
    Asymmetric,
    /// Two real fences.
    Symmetric,
}

impl Barrier {
    /// Asks the kernel. To be called before threads share what the fences order.
    pub(crate) fn new() -> Self {
        if register() {
            Self::Asymmetric
        } else {
            Self::Symmetric
        }
    }

    /// The frequent side: between its store and its load.
    #[inline]
    pub(crate) fn light(self) {
        match self {
            Self::Asymmetric => compiler_fence(),
            Self::Symmetric => fence(Ordering::SeqCst),
        }
    }

    /// The rare side: between its store and its load. `false`: the kernel has since been forbidden to help, and the caller
    /// may have missed what the other side stored before.
    pub(crate) fn heavy(self) -> bool {
        fence(Ordering::SeqCst);
        self == Self::Symmetric || everywhere()
    }

    /// Whether [`Self::heavy`] is a fence for other threads, too. Under loom it need not be one: stores past the cache are
    /// plain there.
    pub(crate) fn reaches_others(self) -> bool {
        self == Self::Asymmetric || cfg!(loom)
    }
}

#[cfg(not(loom))]
fn compiler_fence() {
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
}

#[cfg(not(loom))]
fn register() -> bool {
    use rustix::thread::{MembarrierCommand, membarrier, membarrier_query};
    membarrier_query().contains_command(MembarrierCommand::PrivateExpedited)
        && membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok()
}

#[cfg(not(loom))]
fn everywhere() -> bool {
    use rustix::thread::{MembarrierCommand, membarrier};
    membarrier(MembarrierCommand::PrivateExpedited).is_ok()
}

// loom knows no other processor's fence: the models run the symmetric pair, which promises the same.
#[cfg(loom)]
fn register() -> bool {
    false
}

#[cfg(loom)]
fn compiler_fence() {
    fence(Ordering::SeqCst);
}

#[cfg(loom)]
fn everywhere() -> bool {
    true
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicBool, AtomicU64},
        thread,
    };

    use super::*;

    /// Two threads store their own word and then load the other's, in lockstep; counts the rounds in which neither saw the
    /// other's store, which is what fences forbid.
    fn neither_saw(light: impl Fn() + Sync, heavy: impl Fn() + Sync, rounds: u64) -> u64 {
        let words = [AtomicU64::new(0), AtomicU64::new(0)];
        let saw = [AtomicBool::new(false), AtomicBool::new(false)];
        let arrived = AtomicU64::new(0);
        let meet = |all: u64| {
            arrived.fetch_add(1, Ordering::AcqRel);
            while arrived.load(Ordering::Acquire) < all {
                thread::yield_now(); // on one processor the other side needs it
            }
        };
        let side = |mine: usize, fence: &(dyn Fn() + Sync)| {
            let mut count = 0;
            for round in 1..=rounds {
                meet(4 * round - 2);
                words[mine].store(round, Ordering::Relaxed);
                fence();
                let other = words[1 - mine].load(Ordering::Relaxed);
                saw[mine].store(other == round, Ordering::Relaxed);
                meet(4 * round);
                count += u64::from(saw.iter().all(|saw| !saw.load(Ordering::Relaxed)));
            }
            count
        };
        thread::scope(|scope| {
            let other = scope.spawn(|| side(0, &light));
            side(1, &heavy);
            other.join().unwrap()
        })
    }

    #[test]
    fn one_side_always_sees_the_other() {
        for barrier in [Barrier::Symmetric, Barrier::new()] {
            let heavy = || assert!(barrier.heavy());
            assert_eq!(
                neither_saw(|| barrier.light(), heavy, 5_000),
                0,
                "{barrier:?}"
            );
        }
    }
}
