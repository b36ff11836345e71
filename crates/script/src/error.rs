//! Errors of scripts.

use std::{io, path::PathBuf, time::Duration};

use mlua::Value;

/// Why a script cannot be used, or is disabled.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScriptError {
    /// The file cannot be read.
    #[error("cannot read {}: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error, or the reason why the content is no script: too long, or not UTF-8.
        error: io::Error,
    },
    /// The text is not Lua. The user must correct the script.
    #[error("{message}")]
    Syntax {
        /// Name, line, and the compiler's message.
        message: String,
    },
    /// The file does not return a function. The user must correct the script.
    #[error("{name}: returns {found}, and should return function(pkt) … end")]
    NoFunction {
        /// The script's name.
        name: String,
        /// The type of the returned value.
        found: String,
    },
    /// The file of a module does not return a table. The user must correct the script.
    #[error("{name}: returns {found}, and should return a table, the module")]
    NoModule {
        /// The script's name.
        name: String,
        /// The type of the returned value.
        found: String,
    },
    /// Part of a module is invalid. The user must correct the script.
    #[error("{message}")]
    Module {
        /// Name, line if it is known, and the reason.
        message: String,
    },
    /// The file sets `partition` to an invalid value. The user must correct the script.
    #[error("{name}: partition is {found}, and should be 'flow', 'host' or 'none'")]
    Partition {
        /// The script's name.
        name: String,
        /// The invalid value if it is a string, otherwise its type.
        found: String,
    },
    /// A dump function returned a value other than a predicate, an expression, nil or false. The
    /// user must correct the script.
    #[error(
        "{name}: the dump function returned {found}, and should return function(pkt) … end or an expression"
    )]
    NoPredicate {
        /// The script's name.
        name: String,
        /// The type of the returned value.
        found: String,
    },
    /// The script raised an error, for example because it used a value that a packet does not have.
    #[error("{message}")]
    Failed {
        /// Name, line if it is known, and Lua's message.
        message: String,
    },
    /// One call exceeded its time budget.
    #[error("{name}: stopped, one call took more than {budget:?}")]
    Time {
        /// The script's name.
        name: String,
        /// The time budget of a call.
        budget: Duration,
    },
    /// The script exceeded its memory budget.
    #[error("{name}: stopped, it wanted more than {budget_bytes} bytes of memory")]
    Memory {
        /// The script's name.
        name: String,
        /// The memory budget.
        budget_bytes: usize,
    },
    /// The watchdog thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    /// Our own Lua code or set-up failed, in most cases by a defect of this program or its build.
    #[error("LuaJIT cannot be set up: {message}")]
    Setup {
        /// Lua's message.
        message: String,
    },
}

/// The type of a value in Lua's words.
pub(crate) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Integer(_) => "number",
        other => other.type_name(),
    }
}
