//! Modules in Lua: FlowScope's callbacks over the flows of a [`Runner`](crate::Runner).
//!
//! The file returns a table of functions and settings ([`LuaModule::new`]). The states of flows are
//! in memory that Rust owns. The file's functions see only the state of the current flow, through
//! checked accessors (`module.lua`). One call handles up to [`MANY`] packets. If the module makes
//! the keys, another call precedes it.

use std::{cell::Cell, ptr, time::Duration};

use mlua::{Function, Table, Value};
use retroscope_flow::BiflowKey;

use crate::{
    address::PairJoin,
    error::{ScriptError, kind},
    fields,
    machine::{LuaRuntime, Script, ScriptLimits, compiles, partition, setup},
    module_types::{
        CHECKED, CallFault, DUMPS_MAX, FlowPlace, MANY, ModuleDumpRequest, ModuleSettings,
        Partition, ScriptPacket,
    },
};

/// Number of bytes in a key that a module makes.
const KEY: usize = BiflowKey::OPAQUE;
/// Maximum number of kinds of keys that a module makes.
const KINDS_MAX: usize = 4;
/// Names of the functions that a module may have.
const FUNCTIONS: [&str; 6] = [
    "handlePacket",
    "extractFlowKey",
    "buildPacketFilter",
    "checkExpiry",
    "checkInitializer",
    "checkFinalizer",
];

/// A key that the module made.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct MadeKey {
    bytes: [u8; KEY],
    /// Kind of the key, from 1. 0 if the module made no key.
    kind: u32,
}

/// Memory that Lua and Rust share during one call. `module.lua` declares the same fields at the
/// same offsets; a test compares the two declarations.
#[derive(Debug)]
#[repr(C)]
struct ModuleSheet {
    /// Address of the [`FlowPlace`] array of the current packets or flows. Like `states`, it is
    /// valid only during a call into Lua.
    places: Cell<usize>,
    states: Cell<usize>,
    keys: [Cell<MadeKey>; MANY],
    /// For each checked flow: 1 if the flow ended.
    over: [Cell<u8>; CHECKED],
    /// For each ended flow: time until which a dump needs packets of the flow, ns.
    until_ns: [Cell<i64>; CHECKED],
}

/// A module from a Lua file.
#[derive(Debug)]
pub struct LuaModule {
    /// For each packet in [`LuaRuntime::hits`]: the dump expression, or false if the module gave no
    /// expression.
    filters: Table,
    handle: Function,
    make_keys: Function,
    check_begins: Function,
    check: Function,
    check_ends: Function,
    /// Turns compilation to machine code on again after a script was stopped.
    recover: Option<Function>,
    settings: ModuleSettings,
    /// Packet time of the check in progress, seconds.
    now: f64,
    /// The states of flows in the order of slots, `ModuleSettings::state_bytes` bytes for each
    /// slot.
    states: Vec<u64>,
    control: Box<ModuleSheet>,
    /// The last field, because the Lua state must be dropped after the table and functions above.
    state: LuaRuntime,
}

impl LuaModule {
    /// Runs the file once, and reads the table that it returns.
    ///
    /// # Errors
    /// [`ScriptError`], for example if the text is not Lua, fails, or does not return a module.
    pub fn new(script: &Script, limits: ScriptLimits) -> Result<Self, ScriptError> {
        let (state, loaded) = LuaRuntime::new(script, limits)?;
        let Value::Table(table) = &loaded.returned else {
            return Err(ScriptError::NoModule {
                name: script.name().to_owned(),
                found: kind(&loaded.returned).to_owned(),
            });
        };
        let asked = ModuleTable { script, table };
        let (functions, mut settings) = asked.read_settings()?;
        let functions = state.lua.create_table_from(functions).map_err(setup)?;
        let table = |name| match asked.get(name)? {
            Value::Nil => state.lua.create_table().map_err(setup),
            Value::Table(table) => Ok(table),
            other => Err(asked.wrong(name, &format!("a table, not {}", kind(&other)))),
        };
        let (check_state, default_state) = (table("checkState")?, table("defaultState")?);
        let to_lua = |fields: &[fields::StateField]| -> mlua::Result<Table> {
            let tables = fields.iter().map(|field| {
                let table = state.lua.create_table()?;
                table.set("name", field.name.as_str())?;
                table.set("kind", field.kind)?;
                table.set("elements", field.elements)?;
                Ok(table)
            });
            state
                .lua
                .create_sequence_from(tables.collect::<mlua::Result<Vec<_>>>()?)
        };
        let state_fields = to_lua(&asked.state_type()?).map_err(setup)?;
        let kinds = asked.key_types()?;
        let kinds = kinds.iter().map(|fields| to_lua(fields));
        let kinds = kinds.collect::<mlua::Result<Vec<_>>>().map_err(setup)?;
        let kinds = state.lua.create_sequence_from(kinds).map_err(setup)?;
        let control = Box::new(ModuleSheet {
            places: Cell::new(0),
            states: Cell::new(0),
            keys: [const {
                Cell::new(MadeKey {
                    bytes: [0; KEY],
                    kind: 0,
                })
            }; MANY],
            over: [const { Cell::new(0) }; CHECKED],
            until_ns: [const { Cell::new(0) }; CHECKED],
        });
        let control_at = ptr::from_ref(&*control).expose_provenance();
        let load = state
            .lua
            .load(include_str!("module.lua"))
            .set_name("=module");
        let load = load.into_function().map_err(setup)?;
        let arguments = (
            loaded.prelude.shared,
            control_at,
            functions,
            check_state,
            state_fields,
            default_state,
            kinds,
        );
        let made = state.watchdog.watch(|| {
            load.call::<(
                usize,
                Table,
                Function,
                Function,
                Function,
                Function,
                Function,
            )>(arguments)
        });
        let (state_bytes, filters, handle, make_keys, check_begins, check, check_ends) = state
            .judge
            .result(made)
            .map_err(|error| asked.place(error))?;
        settings.state_bytes = state_bytes;
        settings.shunts = state.sheet.shunts();
        let recover = state.lua.load("jit.on()").into_function().map_err(setup)?;
        Ok(Self {
            filters,
            handle,
            make_keys,
            check_begins,
            check,
            check_ends,
            recover: compiles().then_some(recover),
            settings,
            now: 0.0,
            states: Vec::new(),
            control,
            state,
        })
    }

    /// The name of the module in messages.
    pub(crate) fn name(&self) -> &str {
        &self.state.judge.name
    }

    /// The settings of the module; they never change.
    pub(crate) fn settings(&self) -> ModuleSettings {
        self.settings
    }

    /// Makes the keys of at most [`MANY`] packets. The runner calls this if
    /// [`ModuleSettings::has_keys`].
    ///
    /// # Errors
    /// [`CallFault`]. The module then handles none of the packets.
    pub(crate) fn keys(
        &mut self,
        packets: &[ScriptPacket<'_>],
        keys: &mut [Option<BiflowKey>],
    ) -> Result<(), CallFault> {
        self.state.sheet.show(packets);
        let made = self.call::<()>(|it| &it.make_keys, &[], ());
        self.state.sheet.clear();
        made?;
        for (key, made) in keys.iter_mut().zip(&self.control.keys).take(packets.len()) {
            let made = made.get();
            let kind = u8::try_from(made.kind).ok().filter(|kind| *kind > 0);
            *key = kind.map(|kind| BiflowKey::opaque(kind, &made.bytes));
        }
        Ok(())
    }

    /// Handles at most [`MANY`] packets, in order. `dumps` gets the requested dumps, also in order.
    ///
    /// # Errors
    /// [`CallFault`]. Dumps that the module requested before the fault count.
    pub(crate) fn handle(
        &mut self,
        packets: &[ScriptPacket<'_>],
        places: &[FlowPlace],
        dumps: &mut Vec<ModuleDumpRequest>,
    ) -> Result<(), CallFault> {
        self.state.sheet.show(packets);
        self.state.hits[0].set(0);
        let called = self.call::<()>(|it| &it.handle, places, ());
        self.state.sheet.clear();
        let count = self.state.hits[0].get() as usize;
        for (nth, hit) in self.state.hits[1..].iter().take(count).enumerate() {
            let filter = self.filters.raw_get::<Value>(nth + 1).ok();
            let at = hit.get() as usize;
            dumps.push(ModuleDumpRequest {
                at,
                key: places
                    .get(at)
                    .map_or(BiflowKey::default(), |place| place.key),
                filter: filter.and_then(|it| Some(it.as_string()?.to_string_lossy())),
            });
        }
        called
    }

    /// The packets whose flows the module shunted since the last call of this function: bit `n` is
    /// packet `n` of its batch. The call clears these bits.
    pub(crate) fn take_shunted(&mut self) -> u64 {
        self.state.sheet.take_shunted()
    }

    /// Takes the calls of `partition.join` since the last call of this function, in order.
    pub(crate) fn take_joins(&mut self) -> Vec<PairJoin> {
        self.state.take_joins()
    }

    /// Begins a check of all flows at a packet time, ns. Other calls may happen between the calls
    /// of a check.
    ///
    /// # Errors
    /// [`CallFault`]. Then there is no check.
    pub(crate) fn check_begins(&mut self, time_ns: i64) -> Result<(), CallFault> {
        #[expect(clippy::cast_precision_loss, reason = "a time for Lua, in seconds")]
        {
            self.now = time_ns as f64 * 1e-9;
        }
        let now = self.now;
        self.call(|it| &it.check_begins, &[], now)
    }

    /// Checks at most [`CHECKED`] flows. `over` gets the index of each flow that ended, and the
    /// time until which a dump needs packets of the flow, ns.
    ///
    /// # Errors
    /// [`CallFault`]. The check ends, and none of these flows ends.
    pub(crate) fn check(
        &mut self,
        places: &[FlowPlace],
        over: &mut Vec<(usize, i64)>,
    ) -> Result<(), CallFault> {
        if places.is_empty() {
            return Ok(());
        }
        let now = self.now;
        self.call::<()>(|it| &it.check, places, (places.len(), now))?;
        let said = self.control.over.iter().zip(&self.control.until_ns);
        let said = said.take(places.len()).enumerate();
        let found = said.filter(|(_, (is_over, _))| is_over.get() != 0);
        over.extend(found.map(|(at, (_, until_ns))| (at, until_ns.get())));
        Ok(())
    }

    /// Ends a check after which `kept` flows remain and in which `over` flows ended.
    ///
    /// # Errors
    /// [`CallFault`].
    pub(crate) fn check_ends(&mut self, kept: u64, over: u64) -> Result<(), CallFault> {
        self.call(|it| &it.check_ends, &[], (kept, over))
    }

    /// Lines that the module printed since the last call.
    pub(crate) fn take_notes(&mut self) -> Vec<String> {
        self.state.take_notes()
    }

    /// Calls a function of the module. The function can use these places and their states.
    fn call<R: mlua::FromLuaMulti>(
        &mut self,
        function: impl Fn(&Self) -> &Function,
        places: &[FlowPlace],
        arguments: impl mlua::IntoLuaMulti,
    ) -> Result<R, CallFault> {
        let slots = places.iter().filter(|it| it.slot != FlowPlace::NO_SLOT);
        if let Some(last) = slots.map(|place| place.slot as usize).max() {
            let bytes = (last + 1) * self.settings.state_bytes;
            let words = bytes.div_ceil(size_of::<u64>());
            if self.states.len() < words {
                self.states.resize(words, 0);
            }
        }
        self.control.places.set(places.as_ptr().expose_provenance());
        self.control
            .states
            .set(self.states.as_mut_ptr().expose_provenance());
        let called = self
            .state
            .watchdog
            .watch(|| function(self).call::<R>(arguments));
        self.control.places.set(0);
        self.control.states.set(0);
        let result = self.state.judge.result(called);
        result.map_err(|error| {
            if let (ScriptError::Time { .. }, Some(recover)) = (&error, &self.recover) {
                // If this fails, the module still works, but LuaJIT interprets its code.
                let _ = recover.call::<()>(());
            }
            CallFault {
                message: error.to_string(),
                done: usize::try_from(self.state.sheet.number.get()).unwrap_or(0),
            }
        })
    }
}

/// Functions with their names.
type ModuleFunctions = Vec<(&'static str, Function)>;

/// The table that a module's file returned.
#[derive(Debug)]
struct ModuleTable<'a> {
    script: &'a Script,
    table: &'a Table,
}

impl ModuleTable<'_> {
    fn get(&self, field: &str) -> Result<Value, ScriptError> {
        self.table.raw_get(field).map_err(setup)
    }

    /// The error for an invalid field, with the line, if found, that first names the field.
    fn wrong(&self, field: &str, should: &str) -> ScriptError {
        let line = line_of(self.script.text(), field);
        self.wrong_at(line, &format!("{field} should be {should}"))
    }

    fn wrong_at(&self, line: Option<usize>, what: &str) -> ScriptError {
        let line = line.map_or(String::new(), |line| format!("{line}:"));
        ScriptError::Module {
            message: format!("{}:{line} {what}", self.script.name()),
        }
    }

    /// Adds a line number to an error of `module.lua`. For an error about keys, the line is that of
    /// `flowKeys`. Otherwise, if the error contains a field in quotes, the line is the first line,
    /// from `defaultState` on, that contains this field. If there is no such line, the line is that
    /// of `stateType`.
    fn place(&self, error: ScriptError) -> ScriptError {
        let ScriptError::Failed { message } = &error else {
            return error;
        };
        let text = message
            .strip_prefix(&format!("{}: ", self.script.name()))
            .unwrap_or(message);
        let text = match text.strip_prefix("module:") {
            Some(rest) => rest.split_once(": ").map_or(text, |(_, text)| text),
            None => text,
        };
        let field = text.split('\'').nth(1);
        let behind = |start: &str| {
            let text = self.script.text();
            let from = text.find(start)?;
            let line = line_of(&text[from..], field?)?;
            Some(text[..from].matches('\n').count() + line)
        };
        let line = if text.starts_with("flowKeys") {
            line_of(self.script.text(), "flowKeys")
        } else {
            behind("defaultState").or_else(|| line_of(self.script.text(), "stateType"))
        };
        self.wrong_at(line, text)
    }

    /// The functions by name, and the settings.
    fn read_settings(&self) -> Result<(ModuleFunctions, ModuleSettings), ScriptError> {
        let mut functions = ModuleFunctions::new();
        for name in FUNCTIONS {
            match self.get(name)? {
                Value::Nil => {}
                Value::Function(function) => functions.push((name, function)),
                other => return Err(self.wrong(name, &format!("a function, not {}", kind(&other)))),
            }
        }
        let has = |wanted| functions.iter().any(|(name, _)| *name == wanted);
        if !has("handlePacket") {
            let what = "a module has function handlePacket(key, state, pkt, isFirst)";
            return Err(self.wrong_at(None, what));
        }
        let number = |name| match self.get(name)? {
            Value::Nil => Ok(None),
            #[expect(
                clippy::cast_precision_loss,
                reason = "what is that large is out of range"
            )]
            Value::Integer(number) => Ok(Some(number as f64)),
            Value::Number(number) => Ok(Some(number)),
            other => Err(self.wrong(name, &format!("a number, not {}", kind(&other)))),
        };
        let check_interval = match number("checkInterval")? {
            // As in FlowScope, no interval and an interval of at most 0 mean no checks.
            None => None,
            Some(seconds) if seconds <= 0.0 => None,
            Some(seconds) if seconds < 0.001 => {
                return Err(self.wrong("checkInterval", "at least 0.001 seconds"));
            }
            Some(seconds) => Some(
                Duration::try_from_secs_f64(seconds)
                    .map_err(|_| self.wrong("checkInterval", "a number of seconds"))?,
            ),
        };
        let dumps_max = match number("maxDumperRules")? {
            None => DUMPS_MAX,
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "it is in the range"
            )]
            Some(count) if (1.0..=65_536.0).contains(&count) => count as usize,
            Some(_) => return Err(self.wrong("maxDumperRules", "1 to 65536")),
        };
        let dumps = match self.get("mode")? {
            Value::Nil => true,
            Value::String(mode) if mode == "qq" => true,
            Value::String(mode) if mode == "direct" => false,
            _ => return Err(self.wrong("mode", "'qq' or 'direct'")),
        };
        let partition: Partition = partition(&self.get("partition")?).map_err(|found| {
            self.wrong(
                "partition",
                &format!("'flow', 'host' or 'none', not {found}"),
            )
        })?;
        if check_interval.is_some() && !has("checkExpiry") {
            return Err(self.wrong("checkInterval", "left out where there is no checkExpiry"));
        }
        if check_interval.is_none() && has("checkExpiry") {
            return Err(self.wrong("checkExpiry", "left out where there is no checkInterval"));
        }
        let has_keys = has("extractFlowKey");
        if has_keys && self.get("flowKeys")?.is_nil() {
            return Err(self.wrong("extractFlowKey", "left out where there are no flowKeys"));
        }
        if !has_keys && !self.get("flowKeys")?.is_nil() {
            return Err(self.wrong("flowKeys", "left out where there is no extractFlowKey"));
        }
        let settings = ModuleSettings {
            state_bytes: 0,
            shunts: false,
            has_keys,
            decides_expiry: check_interval.is_some(),
            check_interval,
            dumps,
            dumps_max,
            partition,
        };
        Ok((functions, settings))
    }

    /// The fields of a flow's state.
    fn state_type(&self) -> Result<Vec<fields::StateField>, ScriptError> {
        match self.get("stateType")? {
            Value::Nil => Ok(Vec::new()),
            Value::String(text) => self.fields("stateType", &text.to_string_lossy()),
            other => Err(self.wrong("stateType", &format!("a string, not {}", kind(&other)))),
        }
    }

    /// The fields of the keys, by kind.
    fn key_types(&self) -> Result<Vec<Vec<fields::StateField>>, ScriptError> {
        let texts = match self.get("flowKeys")? {
            Value::Nil => return Ok(Vec::new()),
            Value::String(text) => vec![text.to_string_lossy()],
            Value::Table(texts) => {
                let texts = texts
                    .sequence_values::<String>()
                    .collect::<mlua::Result<_>>();
                texts.map_err(|_| self.wrong("flowKeys", "a list of strings"))?
            }
            other => {
                let found = format!("a list of strings, not {}", kind(&other));
                return Err(self.wrong("flowKeys", &found));
            }
        };
        if !(1..=KINDS_MAX).contains(&texts.len()) {
            return Err(self.wrong("flowKeys", "one struct to four"));
        }
        let texts = texts.iter();
        texts.map(|text| self.fields("flowKeys", text)).collect()
    }

    /// Reads the declaration of a struct. An error contains the line of the fault, if the script
    /// contains the text of the declaration unchanged. Otherwise it contains the line of the field
    /// `what`.
    fn fields(&self, what: &str, text: &str) -> Result<Vec<fields::StateField>, ScriptError> {
        fields::read(text).map_err(|wrong| {
            let whole = self.script.text();
            let line = match whole.find(text).filter(|_| !text.is_empty()) {
                Some(from) => Some(1 + whole[..from + wrong.at.start].matches('\n').count()),
                None => line_of(whole, what),
            };
            self.wrong_at(line, &format!("{what}: {}", wrong.what))
        })
    }
}

/// The number, from 1, of the first line that contains `word` as a whole word that is not after
/// `--`.
fn line_of(text: &str, word: &str) -> Option<usize> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let is_alone =
        |at: usize| !text[..at].ends_with(is_part) && !text[at + word.len()..].starts_with(is_part);
    let mut places = text.match_indices(word);
    let is_code = |at: usize| {
        let line = text[..at]
            .lines()
            .next_back()
            .filter(|_| !text[..at].ends_with('\n'));
        !line.unwrap_or("").contains("--")
    };
    let (at, _) = places.find(|(at, _)| is_alone(*at) && is_code(*at))?;
    Some(1 + text[..at].matches('\n').count())
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn lua_and_rust_agree_about_places() {
        let text = "
            local ffi = require('ffi')
            local m = { handlePacket = function() end }
            function m.extractFlowKey()
                local places = {}
                for name, fields in pairs({
                    retroscope_control = { 'places', 'states', 'keys', 'over', 'until_ns' },
                    retroscope_made_key = { 'bytes', 'kind' },
                    retroscope_place = { 'key', 'slot', 'is_first', 'is_reverse' },
                    retroscope_key = { 'addresses', 'ports', 'vlans', 'proto', 'family', 'protocol' },
                }) do
                    local struct = ffi.typeof('struct ' .. name)
                    places[#places + 1] = name .. ' ' .. ffi.sizeof(struct)
                    for _, field in ipairs(fields) do
                        places[#places + 1] = name .. '.' .. field .. ' ' .. ffi.offsetof(struct, field)
                    end
                end
                table.sort(places)
                print(table.concat(places, ' '))
            end
            m.flowKeys = 'uint8_t any;'
            return m";
        let script = Script::new("layout.lua", text, true);
        let mut module = LuaModule::new(&script, ScriptLimits::default()).unwrap();
        let packet = ScriptPacket {
            data: &[0; 60],
            wire_len: 60,
            time_ns: 0,
            interface: 0,
            link_type: retroscope_packet::LinkType::ETHERNET,
            direction: 0,
        };
        module.keys(&[packet], &mut [None]).unwrap();
        let key = BiflowKey::places();
        let mut places = vec![
            format!("retroscope_control {}", size_of::<ModuleSheet>()),
            format!(
                "retroscope_control.places {}",
                offset_of!(ModuleSheet, places)
            ),
            format!(
                "retroscope_control.states {}",
                offset_of!(ModuleSheet, states)
            ),
            format!("retroscope_control.keys {}", offset_of!(ModuleSheet, keys)),
            format!("retroscope_control.over {}", offset_of!(ModuleSheet, over)),
            format!(
                "retroscope_control.until_ns {}",
                offset_of!(ModuleSheet, until_ns)
            ),
            format!("retroscope_made_key {}", size_of::<MadeKey>()),
            format!("retroscope_made_key.bytes {}", offset_of!(MadeKey, bytes)),
            format!("retroscope_made_key.kind {}", offset_of!(MadeKey, kind)),
            format!("retroscope_place {}", size_of::<FlowPlace>()),
            format!("retroscope_place.key {}", offset_of!(FlowPlace, key)),
            format!("retroscope_place.slot {}", offset_of!(FlowPlace, slot)),
            format!(
                "retroscope_place.is_first {}",
                offset_of!(FlowPlace, is_first)
            ),
            format!(
                "retroscope_place.is_reverse {}",
                offset_of!(FlowPlace, is_reverse)
            ),
            format!("retroscope_key {}", size_of::<BiflowKey>()),
        ];
        places.extend(key.map(|(name, place)| format!("retroscope_key.{name} {place}")));
        places.sort_unstable();
        assert_eq!(module.take_notes(), [places.join(" ")]);
    }
}
