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
}
