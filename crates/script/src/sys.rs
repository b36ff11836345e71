//! The calls into LuaJIT for which mlua has no safe function: a state with FFI for the prelude, and
//! the hook by which the watchdog's thread stops a script. Also the functions that Lua calls by
//! their addresses.
#![expect(
    unsafe_code,
    reason = "a Lua state with FFI; the hook of LuaJIT is set from another thread; a search that Lua calls by address"
)]

use std::{
    cell::Cell,
    ffi::{c_char, c_int},
    ptr,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};

use mlua::{
    Lua, LuaOptions, StdLib,
    ffi::{self, lua_Debug, lua_State},
};

use crate::{module_types::ScriptPacket, sheet::PacketSheet, slot::PacketFacts};

/// The error message of a stopped script.
const STOPPED: &std::ffi::CStr = c"the script was stopped";

/// A state with the libraries that the prelude needs; for a trusted script, with all libraries.
///
/// Untrusted user code does not see FFI: it gets another environment than our own Lua code
/// (`prelude.lua` and `module.lua`).
pub(crate) fn new_lua(trusted: bool) -> Lua {
    let few =
        StdLib::BIT | StdLib::FFI | StdLib::JIT | StdLib::MATH | StdLib::STRING | StdLib::TABLE;
    let libs = if trusted { StdLib::ALL } else { few };
    // `true` keeps Lua's own `pcall`, which is compiled and uses no native stack. The version of
    // mlua would let panics pass, and would exhaust the native stack in a script that recurses
    // through `pcall`. No function of ours panics.
    let options = LuaOptions::new().catch_rust_panics(true);
    // SAFETY: the function is unsafe because code with FFI or debug can do anything. Untrusted code
    // gets neither, and no byte code. Trusted code counts as part of the program, by
    // `lua-trusted`.
    unsafe { Lua::unsafe_new_with(libs, options) }
}

/// Stops the code that a Lua state runs, from any thread.
#[derive(Debug)]
pub(crate) struct Stopper {
    state: *mut lua_State,
}

// SAFETY: `lua_sethook` is the only call with the pointer. The owner of a `Stopper` keeps the state
// alive: `LuaRuntime` drops its watchdog before its state.
//
// The call is a data race that we tolerate. It writes the state's hook and LuaJIT's dispatch table
// while the state's thread reads, and at times writes, the same words without atomics. The memory
// models of C and Rust define no result for that. LuaJIT supports the call all the same (luajit-2.1
// src/lj_record.c, at `LUAJIT_ENABLE_CHECKHOOK`: another native thread or a signal handler may set
// a hook). Each of these words is aligned, and LuaJIT's processors store such a word whole. No
// compiler sees both sides of the race: they are in different libraries. The worst result is a lost
// stop, which the watchdog repeats (`WatchdogState::stop`, `raised`). A loop in compiled code calls
// nothing: only a hook ends the loop.
unsafe impl Send for Stopper {}

impl Stopper {
    /// A stopper for the state of `lua`, which must outlive the stopper: see the drop order of
    /// [`crate::machine::LuaRuntime`].
    pub(crate) fn new(lua: &Lua) -> mlua::Result<Self> {
        let state = Cell::new(ptr::null_mut());
        // SAFETY: the closure touches no stack slot of the state; it only notes the address of the
        // state.
        unsafe { lua.exec_raw::<()>((), |raw| state.set(raw)) }?;
        Ok(Self { state: state.get() })
    }

    /// Makes each interpreted instruction, and compiled loops at their head, raise an error until
    /// [`Self::release`]. If `pcall` catches an error, the next instruction raises another one.
    pub(crate) fn stop(&self) {
        // SAFETY: see `Send`, which says why the race is tolerated; `raise` has the type of a hook
        // and raises a Lua error, as hooks may.
        unsafe { ffi::lua_sethook(self.state, Some(raise), ffi::LUA_MASKCOUNT, 1) };
    }

    /// Lets the state run again. Call this only while the state does not run.
    pub(crate) fn release(&self) {
        // SAFETY: see `Send`; no hook is set by this.
        unsafe { ffi::lua_sethook(self.state, None, 0, 0) };
    }
}

/// `LUAJIT_MODE_ENGINE | LUAJIT_MODE_OFF` and `LUAJIT_MODE_ENGINE | LUAJIT_MODE_FLUSH` of
/// `luajit.h`.
const COMPILER_OFF: c_int = 0;
const FORGET_COMPILED: c_int = 0x200;

unsafe extern "C-unwind" {
    /// From `luajit.h`, linked with the other functions of Lua.
    fn luaJIT_setmode(state: *mut lua_State, index: c_int, mode: c_int) -> c_int;
}

/// The hook of a stopped script: raises an error. Before that, the hook turns the compiler off and
/// discards compiled code. Otherwise LuaJIT would begin to compile the exits of that code, and
/// would call this hook meanwhile.
unsafe extern "C-unwind" fn raise(state: *mut lua_State, _: *mut lua_Debug) {
    // Relaxed: see `raised`.
    RAISED.fetch_add(1, Ordering::Relaxed);
    for mode in [COMPILER_OFF, FORGET_COMPILED] {
        // SAFETY: a hook runs between two instructions of the interpreter on the state's own
        // thread, where the functions of the `jit` library may be called; these two are `jit.off()`
        // and `jit.flush()`.
        unsafe { luaJIT_setmode(state, 0, mode) };
    }
    // SAFETY: LuaJIT gives a hook at least `LUA_MINSTACK` free slots; the text is copied.
    unsafe { ffi::lua_pushstring(state, STOPPED.as_ptr()) };
    // SAFETY: the message is on top. Nothing in this frame needs dropping when the error unwinds
    // the frame.
    unsafe { ffi::lua_error(state) };
}

/// Number of calls of the hook by all scripts of the process.
static RAISED: AtomicU64 = AtomicU64::new(0);

/// A number that changes whenever the hook begins to run in a stopped script. If the number stays
/// the same for some milliseconds, it is very likely that no script is inside the hook.
///
/// Only then is it safe to set the hook again. LuaJIT keeps the flag "a hook is being called" in a
/// byte that `lua_sethook` also writes. If another thread writes this byte at the moment when the
/// script leaves the hook, the flag can stay set, and LuaJIT then never calls a hook again.
pub(crate) fn raised() -> u64 {
    // Relaxed: a counter that is read repeatedly.
    RAISED.load(Ordering::Relaxed)
}

/// The address of [`find`] as a number, by which Lua calls the search.
pub(crate) fn find_address() -> usize {
    (find as *const ()).expose_provenance()
}

/// The offset of a needle of `needle_len` bytes in `len` bytes, or -1. The time is proportional to
/// the sum of the two lengths.
///
/// # Safety
/// `data` must be valid for reads of `len` bytes, and `needle` for `needle_len` bytes. Only the
/// prelude calls this function. It passes a payload inside captured bytes and a Lua string that is
/// on the Lua stack. The captured bytes are borrowed for the call into Lua, or are a copy that Lua
/// keeps.
unsafe extern "C" fn find(
    data: *const u8,
    len: usize,
    needle: *const c_char,
    needle_len: usize,
) -> i64 {
    // SAFETY: the caller's promise; nobody writes the bytes while Lua runs.
    let data = unsafe { std::slice::from_raw_parts(data, len) };
    // SAFETY: the caller's promise; Lua strings do not change.
    let needle = unsafe { std::slice::from_raw_parts(needle.cast::<u8>(), needle_len) };
    memchr::memmem::find(data, needle).map_or(-1, |at| i64::try_from(at).unwrap_or(-1))
}

/// The address of [`want`] as a number, by which Lua requests more facts.
pub(crate) fn want_address() -> usize {
    (want as *const ()).expose_provenance()
}

/// [`PacketSheet::want`], for Lua.
///
/// # Safety
/// `sheet` must be the sheet of the Lua state whose prelude calls this. The sheet shows packets
/// that are borrowed for the call into Lua: [`crate::machine`] and [`crate::module`] clear the
/// sheet when the call ends.
unsafe extern "C" fn want(sheet: *const PacketSheet, facts: u32) {
    // SAFETY: the caller's promise. `LuaRuntime` owns the sheet. After the sheet is dropped, only
    // finalizers of trusted code can run. The fields that change are cells, and only this thread
    // uses the sheet.
    let sheet = unsafe { &*sheet };
    let count = usize::try_from(sheet.count.get()).unwrap_or(0);
    if count == 0 {
        return;
    }
    let packets: *const ScriptPacket<'_> = ptr::with_exposed_provenance(sheet.packets.get());
    // SAFETY: the caller's promise. `PacketSheet::show` stored address and length of one slice, and
    // exposed the address.
    let packets = unsafe { std::slice::from_raw_parts(packets, count) };
    sheet.want(PacketFacts(facts), packets);
}

/// Whether a hook that is set while compiled code runs stops the code. It does if LuaJIT was built
/// with `LUAJIT_ENABLE_CHECKHOOK`.
pub(crate) fn hooks_reach_compiled_code() -> mlua::Result<bool> {
    /// The iteration that sets the hook. By then LuaJIT has compiled the loop. `END_AT` is the last
    /// iteration if no hook stops the loop.
    const SET_AT: u32 = 10_000;
    const END_AT: u32 = 20_000;
    /// The last iteration that began.
    static LAST: AtomicU32 = AtomicU32::new(0);

    /// The compiled loop calls this in every iteration. A call in only one iteration would leave
    /// compiled code for the interpreter, where hooks always work.
    ///
    /// # Safety
    /// `state` must be a Lua state that runs on this thread.
    unsafe extern "C" fn set(state: *mut lua_State, round: u32) {
        // Relaxed: the same thread reads the value.
        LAST.store(round, Ordering::Relaxed);
        if round == SET_AT {
            // SAFETY: the caller's promise; see also `Stopper::stop`.
            unsafe { ffi::lua_sethook(state, Some(raise), ffi::LUA_MASKCOUNT, 1) };
        }
    }

    let lua = new_lua(false);
    let stopper = Stopper::new(&lua)?;
    let rounds: mlua::Function = lua
        .load(
            "local ffi, set, state, last = ffi, ...
             set = ffi.cast('void (*)(void *, uint32_t)', set)
             state = ffi.cast('void *', state)
             return function()
               for round = 1, last do set(state, round) end
             end",
        )
        .call((
            (set as *const ()).expose_provenance(),
            stopper.state.expose_provenance(),
            END_AT,
        ))?;
    // The hook raises an error in any case: in the loop or after the loop.
    let stopped = rounds.call::<()>(()).is_err();
    stopper.release();
    Ok(stopped && LAST.load(Ordering::Relaxed) < END_AT)
}
