//! A dump script: from a trigger packet to what its dump takes.

use std::collections::HashMap;

use mlua::{Function, LuaString, Value};

use crate::{
    Limits, Packet, Script, ScriptError,
    machine::{Machine, kind},
};

/// Longest name that a dump function may give, bytes: it becomes part of messages and of a JSON file.
const NAME_MAX: usize = 256;

/// A script that makes filters from trigger packets, `return function(trigger) … end`.
///
/// The function returns a predicate `function(pkt) … end`, or the text of a dump expression, or nil or false for no dump.
/// Behind a predicate it may return a name: two dumps of one name take the same packets.
///
/// A script that raises an error or exceeds a budget is disabled: it derives nothing from then on, and its predicates take
/// nothing.
#[derive(Debug)]
pub struct DumpScript {
    machine: Machine,
    predicates: HashMap<PredicateId, Function>,
    next: u64,
}

/// A predicate of one [`DumpScript`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PredicateId(u64);

/// What a dump function made of a trigger packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Derived {
    /// This packet starts no dump.
    Nothing,
    /// The text of a dump expression, as after `--dump`.
    Expression(String),
    /// A function over packets.
    Predicate {
        /// For [`DumpScript::match_many`].
        id: PredicateId,
        /// What it takes, if the script says so.
        name: Option<String>,
    },
}

impl DumpScript {
    /// Runs the file once, and keeps the function that it returns.
    ///
    /// # Errors
    /// [`ScriptError`]: it is no Lua, fails, or returns no function.
    pub fn new(script: &Script, limits: Limits) -> Result<Self, ScriptError> {
        Ok(Self {
            machine: Machine::new(script, limits)?,
            predicates: HashMap::new(),
            next: 0,
        })
    }

    /// Calls the dump function with a trigger packet, of which the predicate keeps a copy. `None`: the script is disabled.
    pub fn derive(&mut self, trigger: &Packet<'_>) -> Option<Derived> {
        if self.machine.fault.is_some() {
            return None;
        }
        let derived = self
            .machine
            .derive(trigger)
            .and_then(|made| self.take(made));
        derived
            .map_err(|fault| self.machine.fault = Some(fault))
            .ok()
    }

    fn take(&mut self, made: (Value, Value)) -> Result<Derived, ScriptError> {
        match made {
            (Value::Nil | Value::Boolean(false), _) => Ok(Derived::Nothing),
            (Value::String(text), _) => Ok(Derived::Expression(text.to_string_lossy())),
            (Value::Function(predicate), name) => {
                let id = PredicateId(self.next);
                self.next += 1;
                self.predicates.insert(id, predicate);
                let name = name.as_string().map(printable);
                Ok(Derived::Predicate { id, name })
            }
            (other, _) => Err(ScriptError::NoPredicate {
                name: self.name().to_owned(),
                found: kind(&other).to_owned(),
            }),
        }
    }

    /// Which of at most [`crate::MANY`] packets a predicate takes: bit `n` is that of packet `n`.
    ///
    /// # Panics
    /// If there are more packets.
    pub fn match_many(&mut self, id: PredicateId, packets: &[Packet<'_>]) -> u64 {
        match self.predicates.get(&id) {
            Some(predicate) => self.machine.run(Some(predicate), packets),
            None => 0,
        }
    }

    /// Gives a predicate up.
    pub fn forget(&mut self, id: PredicateId) {
        self.predicates.remove(&id);
    }

    /// Why it is disabled, if it is.
    #[must_use]
    pub fn fault(&self) -> Option<&ScriptError> {
        self.machine.fault.as_ref()
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
}

/// A name without control characters, cut to [`NAME_MAX`] bytes.
fn printable(name: &LuaString) -> String {
    let name = name.to_string_lossy();
    let mut end = name.len().min(NAME_MAX);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    name[..end].replace(char::is_control, " ")
}
