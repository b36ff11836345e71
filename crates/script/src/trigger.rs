//! A trigger script: which packets of a batch it takes.

use crate::{Limits, Packet, Script, ScriptError, machine::Machine};

/// A script that decides about packets, `return function(pkt) … end`.
///
/// A script that raises an error or exceeds a budget is disabled: it takes nothing from then on, and [`Trigger::fault`] says
/// why.
#[derive(Debug)]
pub struct Trigger {
    machine: Machine,
}

impl Trigger {
    /// Runs the file once, and keeps the function that it returns.
    ///
    /// # Errors
    /// [`ScriptError`]: it is no Lua, fails, or returns no function.
    pub fn new(script: &Script, limits: Limits) -> Result<Self, ScriptError> {
        let machine = Machine::new(script, limits)?;
        Ok(Self { machine })
    }

    /// Which of at most [`crate::MANY`] packets it takes: bit `n` is that of packet `n`. It asks about each in turn.
    ///
    /// # Panics
    /// If there are more packets.
    pub fn match_many(&mut self, packets: &[Packet<'_>]) -> u64 {
        self.machine.run(None, packets)
    }

    /// Why it is disabled, if it is.
    #[must_use]
    pub fn fault(&self) -> Option<&ScriptError> {
        self.machine.fault.as_ref()
    }

    /// As [`Trigger::fault`], and gives the script up.
    #[must_use]
    pub fn into_fault(self) -> Option<ScriptError> {
        self.machine.fault
    }

    /// What errors call it.
    #[must_use]
    pub fn name(&self) -> &str {
        self.machine.name()
    }

    /// What it printed since the last time, lines. It keeps 100 at most.
    pub fn take_notes(&mut self) -> Vec<String> {
        self.machine.take_notes()
    }

    /// Bytes of memory that its state uses now.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.machine.memory_bytes()
    }
}
