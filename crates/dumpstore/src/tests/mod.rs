//! Helpers that the tests of this crate share.

#[expect(dead_code, reason = "the tests of the recorder use the rest")]
pub(crate) mod fake_disk;

use std::sync::atomic::{AtomicI64, Ordering};

use retroscope_capture::clock::{Clock, Now};

/// A second in ns.
pub(crate) const S: i64 = 1_000_000_000;

/// A clock that tests advance.
#[derive(Debug, Default)]
pub(crate) struct FakeClock {
    pub(crate) wall_ns: AtomicI64,
    mono_ns: AtomicI64,
}

impl FakeClock {
    pub(crate) fn pass(&self, ns: i64) {
        self.wall_ns.fetch_add(ns, Ordering::SeqCst);
        self.mono_ns.fetch_add(ns, Ordering::SeqCst);
    }
}

impl Clock for FakeClock {
    fn now(&self) -> Now {
        Now {
            wall_ns: self.wall_ns.load(Ordering::SeqCst),
            mono_ns: self.mono_ns.load(Ordering::SeqCst),
            read_gap_ns: 0,
        }
    }
}
