//! A Lua state for one script: the prelude, the user's function, and budgets.
//!
//! The state belongs to one owner and runs on the thread that calls it. Little data crosses the
//! border between Rust and Lua. Rust fills the [`PacketSheet`], whose address the prelude knows,
//! calls one function for a batch, and reads back numbers. The packet addresses in the sheet are
//! valid only during that call. Afterwards the sheet has no packets, and none of our Lua code runs
//! that could read the addresses.
//!
//! **Budgets.** Memory: the state's allocator refuses more than [`ScriptLimits::memory_bytes`], and
//! the script gets an error. Time: see [`crate::watchdog`]. A single library function that runs for
//! long cannot be stopped. For scripts in the sandbox, the prelude therefore omits or limits the
//! library functions whose time is not proportional to the memory that they touch.

use std::{
    cell::Cell,
    fs::File,
    io::{self, Read},
    path::Path,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use mlua::{Function, Lua, Table, Value, chunk::ChunkMode};

use crate::{
    address::{self, PairError, PairJoin},
    dump::{DerivedDump, LuaPredicate},
    error::{ScriptError, kind},
    module_types::{MANY, Partition, ScriptPacket},
    sheet::PacketSheet,
    sys::{self, Stopper},
    watchdog::ScriptWatchdog,
};

/// Maximum number of lines from `print` that are kept until the caller takes them.
const NOTES_MAX: usize = 100;
/// Maximum number of bytes kept of each printed line. The limit bounds the kept copies, as the
/// script's own memory is bounded.
const NOTE_BYTES_MAX: usize = 256 << 10;

/// Maximum number of calls of `partition.join` that are kept until the caller takes them.
const JOINS_MAX: usize = 1024;

/// The text of a script.
#[derive(Debug, Clone)]
pub struct Script {
    name: String,
    text: String,
    trusted: bool,
}

/// The time and memory budgets of a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScriptLimits {
    /// Maximum time of one call, for example of running the file, of one batch, of one dump
    /// function, or of one part of a module's check. The watchdog normally stops a longer call at
    /// most a quarter of this time later.
    pub time: Duration,
    /// Maximum memory of the script's state. Our own part, about 150 KiB, counts; machine code that
    /// LuaJIT makes does not.
    pub memory_bytes: usize,
}

impl Default for ScriptLimits {
    fn default() -> Self {
        Self {
            time: Duration::from_millis(500),
            memory_bytes: 64 << 20,
        }
    }
}

impl Script {
    /// A script from its text. Its errors usually contain `name`, for example the file name.
    ///
    /// A `trusted` script runs with all of Lua's libraries, FFI included: it can do whatever the
    /// program can. Any other script runs in a sandbox.
    #[must_use]
    pub fn new(name: impl Into<String>, text: impl Into<String>, trusted: bool) -> Self {
        Self {
            name: name.into(),
            text: text.into(),
            trusted,
        }
    }

    /// A script from a file of at most 1 MiB; see [`Script::new`].
    ///
    /// # Errors
    /// [`ScriptError::Read`], also if the file is longer or not UTF-8.
    pub fn read(path: &Path, trusted: bool) -> Result<Self, ScriptError> {
        let text = read_text(path).map_err(|error| ScriptError::Read {
            path: path.to_owned(),
            error,
        })?;
        Ok(Self::new(path.display().to_string(), text, trusted))
    }

    /// The name of the script in messages.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Whether the script may join pairs of addresses: its text contains `partition.join`.
    #[must_use]
    pub fn joins(&self) -> bool {
        self.text.contains("partition.join")
    }
}

/// Maximum length of a script file, bytes.
const TEXT_MAX: u64 = 1 << 20;

/// Reads a text of bounded length. The path may be a device without end.
fn read_text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let read = File::open(path)?
        .take(TEXT_MAX + 1)
        .read_to_string(&mut text)?;
    if read as u64 > TEXT_MAX {
        return Err(io::Error::other("longer than 1 MiB, that is no script"));
    }
    Ok(text)
}

/// A script that ran once, and the function that it returned. A trigger script is
/// `return function(pkt) … end`, a dump script is `return function(trigger) … end`.
///
/// A script that raises an error or exceeds a budget is disabled. From then on it matches and
/// derives nothing, and its predicates match nothing. [`Self::fault`] contains the reason.
#[derive(Debug)]
pub struct Machine {
    batch: Function,
    derive: Function,
    /// The value that the file returned.
    main: Function,
    partition: Partition,
    /// The reason why the script is disabled. The script no longer runs then.
    pub fault: Option<ScriptError>,
    /// The last field, because the Lua state must be dropped after the functions above.
    state: LuaRuntime,
}

/// A Lua state with the prelude, after it ran a script's file.
#[derive(Debug)]
pub(crate) struct LuaRuntime {
    /// Before `lua`, because the watchdog's thread stops the state and must end first.
    pub(crate) watchdog: ScriptWatchdog,
    pub(crate) sheet: Box<PacketSheet>,
    /// Number of matching packets, then the index of each of these packets.
    pub(crate) hits: Box<[Cell<u32>]>,
    notes: Notes,
    joins: Joins,
    pub(crate) judge: Judge,
    /// The last field, because the state must be dropped after the fields above.
    pub(crate) lua: Lua,
}

/// The result of running a script's file.
#[derive(Debug)]
pub(crate) struct LoadedScript {
    /// The value that the file gave to the global `partition`.
    pub(crate) partition: Value,
    /// The functions and helpers that the prelude returned in addition to the environment.
    pub(crate) prelude: Prelude,
    /// The value that the file returned.
    pub(crate) returned: Value,
}

/// The functions of the prelude: `batch`, `derive`, and for `module.lua` the table of shared
/// helpers.
#[derive(Debug)]
pub(crate) struct Prelude {
    batch: Function,
    derive: Function,
    pub(crate) shared: Table,
}

/// The partition that a file declares. The error describes an invalid value: the text of a string,
/// or the type of any other value.
pub(crate) fn partition(value: &Value) -> Result<Partition, String> {
    let text = match value {
        Value::Nil => return Ok(Partition::Undeclared),
        Value::String(text) => text.to_string_lossy(),
        other => return Err(kind(other).to_owned()),
    };
    match text.as_str() {
        "none" => Ok(Partition::None),
        "host" => Ok(Partition::Host),
        "flow" => Ok(Partition::Flow),
        _ => Err(format!("'{}'", text.escape_debug())),
    }
}

/// Lines that scripts printed, until the caller takes them.
type Notes = Arc<Mutex<Vec<String>>>;
/// Calls of `partition.join`, until the caller takes them.
type Joins = Arc<Mutex<Vec<PairJoin>>>;

impl LuaRuntime {
    /// Runs the file once.
    ///
    /// # Errors
    /// [`ScriptError`], for example if the text is not Lua, or if the script fails.
    pub(crate) fn new(
        script: &Script,
        limits: ScriptLimits,
    ) -> Result<(Self, LoadedScript), ScriptError> {
        let lua = sys::new_lua(script.trusted);
        let stopper = Stopper::new(&lua).map_err(setup)?;
        let watchdog = ScriptWatchdog::start(stopper, limits.time).map_err(ScriptError::Thread)?;
        let sheet = PacketSheet::new();
        let hits = vec![Cell::new(0); MANY + 1].into_boxed_slice();
        let (notes, joins) = (Notes::default(), Joins::default());
        let places = (
            std::ptr::from_ref(&*sheet).expose_provenance(),
            hits.as_ptr().expose_provenance(),
        );
        let (env, prelude) = prelude(&lua, script, (&notes, &joins), places).map_err(setup)?;
        lua.set_memory_limit(limits.memory_bytes).map_err(setup)?;
        let judge = Judge {
            name: script.name.clone(),
            limits,
        };
        let chunk = lua
            .load(script.text.as_str())
            .set_name(format!("={}", script.name))
            .set_mode(ChunkMode::Text)
            .set_environment(env.clone())
            .into_function();
        let chunk = judge.result((chunk, false))?;
        let joining = env.raw_get::<Value>("partition").map_err(setup)?;
        let returned = judge.result(watchdog.watch(|| chunk.call::<Value>(())))?;
        let mut partition = env.raw_get::<Value>("partition").map_err(setup)?;
        // The global `partition` is the table with `join`, until the file declares its partition in
        // the same global. After the file ran, the table is put back.
        if script.joins() {
            if partition == joining {
                partition = Value::Nil;
            }
            env.raw_set("partition", joining).map_err(setup)?;
        }
        let state = Self {
            watchdog,
            sheet,
            hits,
            notes,
            joins,
            judge,
            lua,
        };
        let loaded = LoadedScript {
            partition,
            prelude,
            returned,
        };
        Ok((state, loaded))
    }

    /// Takes the lines that the script printed since the last call, at most 100.
    pub(crate) fn take_notes(&self) -> Vec<String> {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *notes)
    }

    /// Takes the calls of `partition.join` since the last call.
    pub(crate) fn take_joins(&self) -> Vec<PairJoin> {
        let mut joins = self.joins.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *joins)
    }
}

/// The error for a failure of our own Lua code, or of our set-up of the Lua state.
pub(crate) fn setup(error: mlua::Error) -> ScriptError {
    ScriptError::Setup {
        message: error.to_string(),
    }
}

impl Machine {
    /// Runs the file once, and keeps the function that it returns.
    ///
    /// # Errors
    /// [`ScriptError`], for example if the text is not Lua, if the script fails, or if the file
    /// returns no function.
    pub fn new(script: &Script, limits: ScriptLimits) -> Result<Self, ScriptError> {
        let (state, loaded) = LuaRuntime::new(script, limits)?;
        let Value::Function(main) = loaded.returned else {
            return Err(ScriptError::NoFunction {
                name: script.name.clone(),
                found: kind(&loaded.returned).to_owned(),
            });
        };
        let partition = partition(&loaded.partition).map_err(|found| ScriptError::Partition {
            name: script.name.clone(),
            found,
        })?;
        let Prelude { batch, derive, .. } = loaded.prelude;
        Ok(Self {
            batch,
            derive,
            main,
            partition,
            fault: None,
            state,
        })
    }

    /// The name of the script in messages.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.state.judge.name
    }

    /// The partition that the script declares: the packets that one Lua state must see together.
    #[must_use]
    pub fn partition(&self) -> Partition {
        self.partition
    }

    /// Which of at most [`MANY`] packets the script's function matches: bit `n` is packet `n`. The
    /// function sees the packets one after the other. If the function fails, its matches before the
    /// failure count.
    ///
    /// # Panics
    /// If there are more than [`MANY`] packets and the script is not disabled.
    pub fn match_many(&mut self, packets: &[ScriptPacket<'_>]) -> u64 {
        self.run(None, packets)
    }

    /// Whether the script may shunt flows: its text contains the word `shunt`.
    #[must_use]
    pub fn shunts(&self) -> bool {
        self.state.sheet.shunts()
    }

    /// The packets whose flows the script shunted since the last call of this function: bit `n` is
    /// packet `n` of its batch. The call clears these bits.
    pub fn take_shunted(&mut self) -> u64 {
        self.state.sheet.take_shunted()
    }

    /// Takes the calls of `partition.join` since the last call of this function, in order.
    pub fn take_joins(&mut self) -> Vec<PairJoin> {
        self.state.take_joins()
    }

    /// As [`Self::match_many`], for a predicate that this script derived.
    ///
    /// # Panics
    /// If the script is not disabled, and there are more than [`MANY`] packets, or packets for a
    /// predicate of another script.
    pub fn match_derived(&mut self, predicate: &LuaPredicate, packets: &[ScriptPacket<'_>]) -> u64 {
        self.run(Some(predicate), packets)
    }

    fn run(&mut self, predicate: Option<&LuaPredicate>, packets: &[ScriptPacket<'_>]) -> u64 {
        if self.fault.is_some() || packets.is_empty() {
            return 0;
        }
        self.state.sheet.show(packets);
        self.state.hits[0].set(0);
        let keep = predicate.map_or(&self.main, |predicate| &predicate.0);
        let called = self.state.watchdog.watch(|| self.batch.call::<()>(keep));
        self.state.sheet.clear();
        self.fault = self.state.judge.result(called).err();
        let count = self.state.hits[0].get() as usize;
        let hits = self.state.hits[1..].iter().take(count);
        hits.fold(0, |found, hit| {
            found | 1_u64.checked_shl(hit.get()).unwrap_or(0)
        })
    }

    /// Calls the dump function with a trigger packet. The derived predicate can keep a copy of the
    /// packet. `None` if the script is disabled, or if this call fails and disables the script.
    pub fn derive(&mut self, trigger: &ScriptPacket<'_>) -> Option<DerivedDump> {
        if self.fault.is_some() {
            return None;
        }
        self.state.sheet.show_all(trigger);
        let called = self.state.watchdog.watch(|| self.derive.call(&self.main));
        self.state.sheet.clear();
        let returned = self.state.judge.result(called);
        let derived = returned.and_then(|(made, name)| DerivedDump::new(made, &name, self.name()));
        derived.map_err(|fault| self.fault = Some(fault)).ok()
    }

    /// Takes the lines that the script printed since the last call, at most 100.
    pub fn take_notes(&self) -> Vec<String> {
        self.state.take_notes()
    }

    /// Bytes of memory that the state uses now.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.state.lua.used_memory()
    }
}

/// Runs the prelude, which gets the addresses of the sheet and of the hits. Returns the user's
/// environment and the functions of the prelude.
fn prelude(
    lua: &Lua,
    script: &Script,
    (notes, joins): (&Notes, &Joins),
    (sheet, hits): (usize, usize),
) -> mlua::Result<(Table, Prelude)> {
    let (notes, joins) = (Arc::clone(notes), Arc::clone(joins));
    let join = move |_: &Lua, (to, pair): (Value, Value)| Ok(join(&joins, &to, &pair));
    let join = script
        .joins()
        .then(|| lua.create_function(join))
        .transpose()?;
    let note = lua.create_function(move |_, text: mlua::LuaString| {
        let mut notes = notes.lock().unwrap_or_else(PoisonError::into_inner);
        if notes.len() < NOTES_MAX {
            let text = text.as_bytes();
            let kept = &text[..text.len().min(NOTE_BYTES_MAX)];
            notes.push(String::from_utf8_lossy(kept).into_owned());
        }
        Ok(())
    })?;
    if !compiles() {
        lua.load("jit.off()").exec()?;
    }
    let (env, batch, derive, shared) = lua
        .load(include_str!("prelude.lua"))
        .set_name("=prelude")
        .call((
        sheet,
        hits,
        sys::find_address(),
        sys::want_address(),
        lua.create_function(address::text)?,
        lua.create_function(address::network)?,
        join,
        note,
        script.trusted,
        script.text.as_str(),
    ))?;
    let prelude = Prelude {
        batch,
        derive,
        shared,
    };
    Ok((env, prelude))
}

/// `partition.join(to, pair)`: whether the call is kept, otherwise why not, and whether the script
/// should fail.
fn join(joins: &Joins, to: &Value, pair: &Value) -> (bool, Option<String>, bool) {
    let joined = address::pair(to).and_then(|to| Ok((to, address::pair(pair)?)));
    let (to, pair) = match joined {
        Ok(pairs) => pairs,
        Err(PairError::Misuse(why)) => return (false, Some(why), true),
        Err(PairError::Text(why)) => return (false, Some(why), false),
    };
    let mut joins = joins.lock().unwrap_or_else(PoisonError::into_inner);
    if joins.len() == JOINS_MAX {
        let why = format!("more than {JOINS_MAX} calls for one batch of packets");
        return (false, Some(why), false);
    }
    joins.push(PairJoin { to, pair });
    (true, None, false)
}

/// Whether scripts are compiled to machine code. False if LuaJIT was built so that compiled loops
/// cannot be stopped.
#[must_use]
pub fn compiles() -> bool {
    static COMPILES: OnceLock<bool> = OnceLock::new();
    *COMPILES.get_or_init(|| sys::hooks_reach_compiled_code().unwrap_or(false))
}

/// Turns the failure of a call into a [`ScriptError`].
#[derive(Debug)]
pub(crate) struct Judge {
    pub(crate) name: String,
    limits: ScriptLimits,
}

impl Judge {
    /// The outcome of a call, from its result and whether the watchdog stopped it.
    pub(crate) fn result<R>(
        &self,
        (result, stopped): (mlua::Result<R>, bool),
    ) -> Result<R, ScriptError> {
        if stopped {
            return Err(ScriptError::Time {
                name: self.name.clone(),
                budget: self.limits.time,
            });
        }
        result.map_err(|error| self.fault(&error))
    }

    fn fault(&self, error: &mlua::Error) -> ScriptError {
        match error {
            mlua::Error::SyntaxError { message, .. } => ScriptError::Syntax {
                message: message.clone(),
            },
            mlua::Error::MemoryError(_) => ScriptError::Memory {
                name: self.name.clone(),
                budget_bytes: self.limits.memory_bytes,
            },
            mlua::Error::CallbackError { cause, .. } => self.fault(cause),
            mlua::Error::RuntimeError(message) => ScriptError::Failed {
                message: self.place(message),
            },
            other => ScriptError::Failed {
                message: format!("{}: {other}", self.name),
            },
        }
    }

    /// Lua's message without the stack trace, and with the script's name in front. If the user's
    /// function ends with a tail call of an accessor, Lua knows only a line of the prelude, which
    /// this function removes.
    fn place(&self, message: &str) -> String {
        let text = message.split("\nstack traceback:").next();
        let text = text.unwrap_or(message);
        if text.starts_with(&format!("{}:", self.name)) {
            return text.to_owned();
        }
        let ours = text.strip_prefix("prelude:");
        let text = ours
            .and_then(|rest| rest.split_once(": "))
            .map_or(text, |(_, text)| text);
        format!("{}: {text}", self.name)
    }
}

#[cfg(test)]
mod tests {
    use std::mem::{offset_of, size_of};

    use super::*;
    use crate::slot::PacketSlot;

    #[test]
    fn lua_and_rust_agree_about_sheets() {
        let text = "
            local ffi = require('ffi')
            local slot = ffi.typeof('struct retroscope_slot')
            local sheet = ffi.typeof('struct retroscope_sheet')
            local places = { ffi.sizeof(sheet), ffi.offsetof(sheet, 'slots'), ffi.sizeof(slot), ffi.offsetof(sheet, 'shunted') }
            for name in ([[data time_ns len wire_len interface link_type direction ip later_fragment proto tcp_flags vlan
                ether_type src_port dst_port payload payload_len network transport icmp src dst]]):gmatch('%S+') do
                places[#places + 1] = ffi.offsetof(slot, name)
            end
            print(table.concat(places, ' '))
            return function() end";
        let script = Script::new("layout.lua", text, true);
        let machine = Machine::new(&script, ScriptLimits::default()).unwrap();
        let places = [
            size_of::<PacketSheet>(),
            offset_of!(PacketSheet, slots),
            size_of::<PacketSlot>(),
            PacketSheet::SHUNTED_AT,
            offset_of!(PacketSlot, data),
            offset_of!(PacketSlot, time_ns),
            offset_of!(PacketSlot, len),
            offset_of!(PacketSlot, wire_len),
            offset_of!(PacketSlot, interface),
            offset_of!(PacketSlot, link_type),
            offset_of!(PacketSlot, direction),
            offset_of!(PacketSlot, ip),
            offset_of!(PacketSlot, later_fragment),
            offset_of!(PacketSlot, proto),
            offset_of!(PacketSlot, tcp_flags),
            offset_of!(PacketSlot, vlan),
            offset_of!(PacketSlot, ether_type),
            offset_of!(PacketSlot, src_port),
            offset_of!(PacketSlot, dst_port),
            offset_of!(PacketSlot, payload),
            offset_of!(PacketSlot, payload_len),
            offset_of!(PacketSlot, network),
            offset_of!(PacketSlot, transport),
            offset_of!(PacketSlot, icmp),
            offset_of!(PacketSlot, src),
            offset_of!(PacketSlot, dst),
        ];
        let places: Vec<String> = places.iter().map(usize::to_string).collect();
        assert_eq!(machine.take_notes(), [places.join(" ")]);
    }
}
