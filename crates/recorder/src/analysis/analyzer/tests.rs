//! Access to an analyzer's state, for tests.

use super::Analyzer;

impl Analyzer {
    pub(crate) fn run_commands(&mut self) {
        let now = self.core.common.clock.now();
        self.core.run_commands(now);
    }

    pub(crate) fn passed_by(&self) -> usize {
        self.core.passed_by
    }

    /// The ends of windows and the times at which they were closed, ns of ring time.
    pub(crate) fn closings(&self) -> Vec<(i64, i64)> {
        self.core.closed.closings()
    }

    /// When the analyzer last reported packets that no rule saw, ns of the monotonic clock.
    pub(crate) fn told_ns(&self) -> Option<i64> {
        self.core.unseen.told_ns
    }

    /// Sizes of the analyzer's collections: open windows, closed windows, unsent messages.
    pub(crate) fn remembered(&self) -> [usize; 3] {
        let core = &self.core;
        let unsent = core.parts.messages.unsent.len();
        [core.open.len(), core.closed.len(), unsent]
    }
}
