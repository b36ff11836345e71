//! What tests ask an analyzer.

use super::Analyzer;

impl Analyzer {
    /// Takes the commands that wait, and does nothing else.
    pub(crate) fn obey(&mut self) {
        let now = self.core.common.clock.now();
        self.core.obey(now);
    }

    /// How many records were not looked at.
    pub(crate) fn passed_by(&self) -> usize {
        self.core.passed_by
    }

    /// The ends of windows and when they were closed, ns of ring time.
    pub(crate) fn closings(&self) -> Vec<(i64, i64)> {
        self.core.closed.closings()
    }

    /// When it told of packets that no rule saw, ns of the monotonic clock.
    pub(crate) fn told_ns(&self) -> Option<i64> {
        self.core.unseen.told_ns
    }

    /// How much it remembers: windows open and closed, messages that wait.
    pub(crate) fn remembered(&self) -> [usize; 3] {
        let core = &self.core;
        let unsent = core.parts.messages.unsent.len();
        [core.open.len(), core.closed.len(), unsent]
    }
}
