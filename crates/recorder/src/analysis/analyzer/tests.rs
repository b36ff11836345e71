//! What tests ask an analyzer.

use super::Analyzer;

impl Analyzer {
    /// How many records were not looked at.
    pub(crate) fn passed_by(&self) -> usize {
        self.core.passed_by
    }

    /// How much it remembers: windows open and closed, messages that wait.
    pub(crate) fn remembered(&self) -> [usize; 3] {
        let core = &self.core;
        let unsent = core.parts.messages.unsent.len();
        [core.open.len(), core.closed.len(), unsent]
    }
}
