//! Access to a dumper for tests.

use std::time::{Duration, Instant};

use super::Dumper;
use crate::control::progress::Reach;

impl Dumper {
    /// Number of dumps that wait for their filters.
    pub(crate) fn compiling(&self) -> usize {
        self.active.iter().filter(|dump| dump.is_compiling).count()
    }

    /// Number of dumps that rounds have inspected. A dump counts once for each inspection.
    pub(crate) fn looks(&self) -> usize {
        self.active.looks
    }

    /// Decides by `full`, for each open dump, whether its sink has no room from now on.
    pub(crate) fn fill(&mut self, mut full: impl FnMut() -> bool) {
        let ids: Vec<u64> = self.active.iter().map(|dump| dump.order.id).collect();
        for id in ids {
            if let Some(dump) = self.active.get_mut(id) {
                dump.sink.is_full = full();
            }
        }
    }

    /// Begins a round. Messages may arrive before the test continues the round.
    pub(crate) fn begin_round(&self) -> Reach {
        self.reach()
    }

    pub(crate) fn end_round(&mut self, reach: &Reach) {
        self.round(reach, false);
    }

    pub(crate) fn lose_compiler(&mut self) {
        self.compiler.lose();
    }

    /// Waits until the sinks have done all their work, and handles the results.
    pub(crate) fn settle(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(120);
        loop {
            // The pool is checked first: results that it sent before the check are handled
            // afterwards.
            let is_idle = self.parts.pool.is_idle();
            self.take_outcomes();
            if is_idle && self.ending.is_empty() {
                return;
            }
            assert!(Instant::now() < deadline, "{:?}", self.ending);
            std::thread::park_timeout(Duration::from_micros(100));
        }
    }
}
