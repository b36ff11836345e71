//! What tests ask of a dumper.

use super::Dumper;

impl Dumper {
    /// Dumps that wait for their filters.
    pub(crate) fn compiling(&self) -> usize {
        self.active.iter().filter(|dump| dump.is_compiling).count()
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
