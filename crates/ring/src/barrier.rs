//! A store-load fence that costs only the side that rarely runs: membarrier(2).
//!
//! If two threads each store one word and then load the other's word (Dekker), each thread needs a
//! full fence between its store and its load. Here the frequent side has [`Barrier::light`], which
//! only prevents reordering by the compiler. The rare side has [`Barrier::heavy`], which makes the
//! kernel run a full fence on every processor that runs a thread of this process. The two sides
//! behave as a pair of sequentially consistent fences:
//!
//! - if the light side loads before its processor passes the kernel's fence, its earlier store is
//!   visible after that fence;
//! - if the light side loads later, it sees the store that the heavy side made before the call.
//!
//! liburcu's "sys membarrier" flavour and folly's asymmetric fences do the same. If the kernel has
//! no expedited membarrier (before Linux 4.14, or a filter forbids the call), both sides use real
//! fences.

use crate::sync::{Ordering, fence};

/// The fences that the two sides use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Barrier {
    /// The light side prevents reordering by the compiler; the heavy side calls membarrier(2).
    Asymmetric,
    /// Both sides run a full fence.
    Symmetric,
}

impl Barrier {
    /// Asks the kernel for membarrier(2). Must be called before threads share the ordered data.
    pub(crate) fn new() -> Self {
        if register() {
            Self::Asymmetric
        } else {
            Self::Symmetric
        }
    }

    /// The fence of the frequent side, between its store and its load.
    #[inline]
    pub(crate) fn light(self) {
        match self {
            Self::Asymmetric => compiler_fence(),
            Self::Symmetric => fence(Ordering::SeqCst),
        }
    }

    /// The fence of the rare side, between its store and its load. `false`: the system call failed
    /// (a filter may forbid it), and the caller may have missed a store of the other side.
    pub(crate) fn heavy(self) -> bool {
        fence(Ordering::SeqCst);
        self == Self::Symmetric || everywhere()
    }

    /// Whether [`Self::heavy`] is a fence for other threads, too. Always `true` under loom:
    /// non-temporal stores are regular stores there.
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

// Loom knows no fences on other processors, so the models use the symmetric pair.
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

    /// Two threads, in lockstep, store their own word and then load the other's word. Counts the
    /// rounds in which neither thread saw the other's store.
    fn neither_saw(light: impl Fn() + Sync, heavy: impl Fn() + Sync, rounds: u64) -> u64 {
        let words = [AtomicU64::new(0), AtomicU64::new(0)];
        let saw = [AtomicBool::new(false), AtomicBool::new(false)];
        let arrived = AtomicU64::new(0);
        let meet = |all: u64| {
            arrived.fetch_add(1, Ordering::AcqRel);
            while arrived.load(Ordering::Acquire) < all {
                thread::yield_now(); // on one processor, lets the other side run
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
