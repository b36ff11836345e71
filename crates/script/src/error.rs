//! What can go wrong with a script.

use std::{io, path::PathBuf, time::Duration};

use mlua::Value;

/// Why a script cannot be used, or is used no more.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScriptError {
    /// The file cannot be read.
    #[error("cannot read {}: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// The text is not Lua: the user's mistake.
    #[error("{message}")]
    Syntax {
        /// Name, line and what the compiler said.
        message: String,
    },
    /// The file does not return a function: the user's mistake.
    #[error("{name}: returns {found}, and should return function(pkt) … end")]
    NoFunction {
        /// The script's name.
        name: String,
        /// The type of what it returned.
        found: String,
    },
    /// The file of a module does not return a table: the user's mistake.
    #[error("{name}: returns {found}, and should return a table, the module")]
    NoModule {
        /// The script's name.
        name: String,
        /// The type of what it returned.
        found: String,
    },
    /// Something of a module is not what it should be: the user's mistake.
    #[error("{message}")]
    Module {
        /// Name, line if it is known, and what is wrong.
        message: String,
    },
    /// The file sets `partition` to something else: the user's mistake.
    #[error("{name}: partition is {found}, and should be 'flow', 'host' or 'none'")]
    Partition {
        /// The script's name.
        name: String,
        /// What it is.
        found: String,
    },
    /// A dump function returned neither a predicate nor an expression: the user's mistake.
    #[error(
        "{name}: the dump function returned {found}, and should return function(pkt) … end or an expression"
    )]
    NoPredicate {
        /// The script's name.
        name: String,
        /// The type of what it returned.
        found: String,
    },
    /// It raised an error: the user's mistake, most often a value that a packet does not have.
    #[error("{message}")]
    Failed {
        /// Name, line and what Lua said.
        message: String,
    },
    /// One call took longer than it may.
    #[error("{name}: stopped, one call took more than {budget:?}")]
    Time {
        /// The script's name.
        name: String,
        /// What a call may take.
        budget: Duration,
    },
    /// The script wanted more memory than it may have.
    #[error("{name}: stopped, it wanted more than {budget_bytes} bytes of memory")]
    Memory {
        /// The script's name.
        name: String,
        /// What it may have.
        budget_bytes: usize,
    },
    /// The thread that watches over the time cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    /// LuaJIT refused our own part of the work: a bug of ours or of the build.
    #[error("LuaJIT cannot be set up: {message}")]
    Setup {
        /// What Lua said.
        message: String,
    },
}

/// A value's type, as Lua calls it.
pub(crate) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Integer(_) => "number",
        other => other.type_name(),
    }
}
