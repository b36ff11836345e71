//! The result of a dump function for a trigger packet.

use mlua::{Function, LuaString, Value};

use crate::error::{ScriptError, kind};

/// Maximum number of bytes kept of a name that a dump function returns. The name becomes part of
/// messages and of a JSON file.
const NAME_MAX: usize = 256;

/// A function over packets that a dump function returned, for [`crate::Machine::match_derived`].
/// The values that the function captures, such as the copy of its trigger packet, live as long as
/// the predicate and the Lua state both do.
#[derive(Debug, PartialEq)]
pub struct LuaPredicate(pub(crate) Function);

/// The result of a dump function for a trigger packet.
///
/// A dump function returns a predicate `function(pkt) … end`, the text of a dump expression, or nil
/// or false for no dump. After a predicate it may return a name. If two predicates have the same
/// name, the script promises that they match the same packets.
#[derive(Debug, PartialEq)]
pub enum DerivedDump {
    /// The trigger packet starts no dump.
    Nothing,
    /// The text of a dump expression, as after `--dump`.
    Expression(String),
    /// A function over packets.
    Predicate {
        /// The function.
        predicate: LuaPredicate,
        /// The script's name for the matching packets, if there is one.
        name: Option<String>,
    },
}

impl DerivedDump {
    /// Converts the value that a dump function returned, and the name after the value.
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

/// A name truncated to [`NAME_MAX`] bytes. Spaces replace control characters.
fn printable(name: &LuaString) -> String {
    let name = name.to_string_lossy();
    name[..name.floor_char_boundary(NAME_MAX)].replace(char::is_control, " ")
}
