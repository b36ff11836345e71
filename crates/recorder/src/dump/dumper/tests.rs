//! What tests ask of a dumper.

use super::Dumper;

impl Dumper {
    /// Dumps that wait for their filters.
    pub(crate) fn compiling(&self) -> usize {
        self.active.iter().filter(|dump| dump.is_compiling).count()
    }

    /// How many dumps rounds have looked at so far, one that is looked at twice counted twice.
    pub(crate) fn looks(&self) -> usize {
        self.active.looks
    }

    /// Dumps that are `stalled` hand nothing on from now on.
    pub(crate) fn stall(&mut self, mut stalled: impl FnMut() -> bool) {
        let ids: Vec<u64> = self.active.iter().map(|dump| dump.order.id).collect();
        for id in ids {
            self.active.change(id, |dump| dump.is_stalled = stalled());
        }
    }

    /// Loses the thread that compiles.
    pub(crate) fn lose_compiler(&mut self) {
        self.compiler.lose();
    }

    /// Does all there is to do before the last message comes, and then the rest.
    pub(crate) fn step_before_the_last(&mut self) {
        let mut messages: Vec<_> = self.parts.messages.try_iter().collect();
        let last = messages.pop();
        messages.into_iter().for_each(|message| self.take(message));
        self.step();
        last.into_iter().for_each(|message| self.take(message));
        self.step();
    }

    /// Dumps that may be amended.
    pub(crate) fn finished(&self) -> usize {
        self.finished.len()
    }
}
