//! What a dump function makes of a trigger packet.

use mlua::{Function, LuaString, Value};

use crate::error::{ScriptError, kind};

/// Longest name that a dump function may give, bytes: it becomes part of messages and of a JSON file.
const NAME_MAX: usize = 256;

/// A function over packets that a dump function returned, for [`crate::Machine::match_derived`]. What it keeps, as the copy of its
/// trigger packet, lives as long.
#[derive(Debug, PartialEq)]
pub struct LuaPredicate(pub(crate) Function);

/// What a dump function made of a trigger packet: it returns a predicate `function(pkt) … end`, or the text of a dump expression, or
/// nil or false for no dump. Behind a predicate it may return a name: two dumps of one name take the same packets.
#[derive(Debug, PartialEq)]
pub enum DerivedDump {
    /// This packet starts no dump.
    Nothing,
    /// The text of a dump expression, as after `--dump`.
    Expression(String),
    /// A function over packets.
    Predicate {
        /// The function.
        predicate: LuaPredicate,
        /// What it takes, if the script says so.
        name: Option<String>,
    },
}

impl DerivedDump {
    /// Judges the value that the dump function of a script returned, and the name beside it.
    pub(crate) fn new(made: Value, name: &Value, script: &str) -> Result<Self, ScriptError> {
        match made {
            Value::Nil | Value::Boolean(false) => Ok(Self::Nothing),
            Value::String(text) => Ok(Self::Expression(text.to_string_lossy())),
            Value::Function(predicate) => Ok(Self::Predicate {
                predicate: LuaPredicate(predicate),
                name: name.as_string().map(printable),
            }),
            other => Err(ScriptError::NoPredicate {
                name: script.to_owned(),
                found: kind(&other).to_owned(),
            }),
        }
    }
}

/// A name without control characters, cut to [`NAME_MAX`] bytes.
fn printable(name: &LuaString) -> String {
    let name = name.to_string_lossy();
    name[..name.floor_char_boundary(NAME_MAX)].replace(char::is_control, " ")
}
