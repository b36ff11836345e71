//! The calls into LuaJIT that mlua has no safe function for: a state with FFI for our own prelude, and the hook that stops
//! a script, which the watchdog sets from its thread.
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

use crate::{plan::Packet, sheet::Sheet, slot::Facts};

/// What a stopped script is told.
const STOPPED: &std::ffi::CStr = c"the script was stopped";

/// A state with the libraries that the prelude needs, or with all of them.
///
/// Only the prelude, which is ours, sees FFI: user code gets another environment (`prelude.lua`), and sees it too only if
/// it is trusted by the user's own word.
pub(crate) fn new_lua(trusted: bool) -> Lua {
    let few =
        StdLib::BIT | StdLib::FFI | StdLib::JIT | StdLib::MATH | StdLib::STRING | StdLib::TABLE;
    let libs = if trusted { StdLib::ALL } else { few };
    // Lua's own pcall, which is compiled and uses no native stack; mlua's would let panics pass, and uses it up in a script that
    // recurses through it. No function of ours panics.
    let options = LuaOptions::new().catch_rust_panics(true);
    // SAFETY: the function is unsafe because code with FFI or debug can do anything. Untrusted code gets neither, nor byte
    // code; trusted code is as much part of the program as ours, by `lua-trusted`.
    unsafe { Lua::unsafe_new_with(libs, options) }
}

/// Stops what a Lua state runs, from any thread.
#[derive(Debug)]
pub(crate) struct Stopper {
    state: *mut lua_State,
}

// SAFETY: `lua_sethook` is the only call with the pointer. Whoever holds a `Stopper` keeps the
// state alive: `Machine` drops its watchdog before its state.
//
// The call is a data race that we tolerate. It writes the state's hook and LuaJIT's dispatch table
// while the state's thread reads, and at times writes, the same words without atomics. The memory
// models of C and Rust define no result for that. LuaJIT supports the call all the same (luajit-2.1
// src/lj_record.c, at `LUAJIT_ENABLE_CHECKHOOK`: another native thread or a signal handler may set
// a hook). Each of these words is aligned, and LuaJIT's processors store such a word whole. No
// compiler sees both sides of the race: they are in different libraries. The worst result is a lost
// stop, which the watchdog repeats (`Watched::stop`, `raised`). A loop in compiled code calls
// nothing: only a hook ends the loop.
unsafe impl Send for Stopper {}

impl Stopper {
    /// For the state of `lua`, which must outlive it: see the drop order of [`crate::machine::Machine`].
    pub(crate) fn new(lua: &Lua) -> mlua::Result<Self> {
        let state = Cell::new(ptr::null_mut());
        // SAFETY: the closure touches no stack slot of the state; it only notes where the state is.
        unsafe { lua.exec_raw::<()>((), |raw| state.set(raw)) }?;
        Ok(Self { state: state.get() })
    }

    /// Every Lua instruction raises an error from now on, until [`Self::release`]: `pcall` catches one, and the next
    /// instruction raises another.
    pub(crate) fn stop(&self) {
        // SAFETY: see `Send`, which says why the race is tolerated; `raise` has the type of a hook
        // and raises a Lua error, as hooks may.
        unsafe { ffi::lua_sethook(self.state, Some(raise), ffi::LUA_MASKCOUNT, 1) };
    }

    /// Lets the state run again. Called while it does not run.
    pub(crate) fn release(&self) {
        // SAFETY: see `Send`; no hook is set by this.
        unsafe { ffi::lua_sethook(self.state, None, 0, 0) };
    }
}

/// `LUAJIT_MODE_ENGINE | LUAJIT_MODE_OFF` and `LUAJIT_MODE_ENGINE | LUAJIT_MODE_FLUSH` of `luajit.h`.
const COMPILER_OFF: c_int = 0;
const FORGET_COMPILED: c_int = 0x200;

unsafe extern "C-unwind" {
    /// Of `luajit.h`, linked with the rest of Lua's functions.
    fn luaJIT_setmode(state: *mut lua_State, index: c_int, mode: c_int) -> c_int;
}

/// The hook of a script that is stopped: raises an error. Compiled code is given up first, since LuaJIT would otherwise start
/// to compile the ways out of it, with the hook being called in between.
unsafe extern "C-unwind" fn raise(state: *mut lua_State, _: *mut lua_Debug) {
    // Relaxed: see `raised`.
    RAISED.fetch_add(1, Ordering::Relaxed);
    for mode in [COMPILER_OFF, FORGET_COMPILED] {
        // SAFETY: a hook runs between two instructions of the interpreter on the state's own thread, where the functions of
        // the `jit` library may be called; these two are `jit.off()` and `jit.flush()`.
        unsafe { luaJIT_setmode(state, 0, mode) };
    }
    // SAFETY: LuaJIT gives a hook at least `LUA_MINSTACK` free slots; the text is copied.
    unsafe { ffi::lua_pushstring(state, STOPPED.as_ptr()) };
    // SAFETY: the message is on top. Nothing in this frame needs dropping when the error unwinds it.
    unsafe { ffi::lua_error(state) };
}

/// How often the hook was called, by all scripts of the process.
static RAISED: AtomicU64 = AtomicU64::new(0);

/// A number that changes whenever a script that is stopped is told so. Where it did not for some milliseconds, none is within the
/// hook. Setting the hook then is safe: LuaJIT keeps "a hook is being called" in the same byte, and a store of it by another
/// thread, at the moment when the script leaves the hook, would set that for good, and no hook be called any more.
pub(crate) fn raised() -> u64 {
    // Relaxed: a counter, read again and again.
    RAISED.load(Ordering::Relaxed)
}

/// What Lua calls to search: the address of [`find`], as a number.
pub(crate) fn find_address() -> usize {
    (find as *const ()).expose_provenance()
}

/// Where a needle of `needle_len` bytes is in `len` bytes; -1: nowhere. Takes time in proportion to the two lengths.
///
/// # Safety
/// `data` is good for reading `len` bytes, and `needle` for `needle_len`. Only the prelude calls this: with a payload inside captured
/// bytes that are borrowed for the call into Lua, and with a Lua string that is on its stack.
unsafe extern "C" fn find(
    data: *const u8,
    len: usize,
    needle: *const c_char,
    needle_len: usize,
) -> i64 {
    // SAFETY: of the caller; the bytes are not written while Lua runs.
    let data = unsafe { std::slice::from_raw_parts(data, len) };
    // SAFETY: of the caller; Lua strings do not change.
    let needle = unsafe { std::slice::from_raw_parts(needle.cast::<u8>(), needle_len) };
    memchr::memmem::find(data, needle).map_or(-1, |at| i64::try_from(at).unwrap_or(-1))
}

/// What Lua calls to be told more of the headers: the address of [`want`], as a number.
pub(crate) fn want_address() -> usize {
    (want as *const ()).expose_provenance()
}

/// [`Sheet::want`], for Lua.
///
/// # Safety
/// `sheet` is that of the machine whose prelude calls this, and shows packets that are borrowed for the call into Lua:
/// [`crate::machine`] clears it when the call ends.
unsafe extern "C" fn want(sheet: *const Sheet, facts: u32) {
    // SAFETY: of the caller: the machine owns the sheet and outlives its state. What changes in it is in cells, and this thread
    // is the only one to use it.
    let sheet = unsafe { &*sheet };
    let count = usize::try_from(sheet.count.get()).unwrap_or(0);
    if count == 0 {
        return;
    }
    let packets: *const Packet<'_> = ptr::with_exposed_provenance(sheet.packets.get());
    // SAFETY: of the caller; `Sheet::show` noted address and length of one slice, and exposed the address.
    let packets = unsafe { std::slice::from_raw_parts(packets, count) };
    sheet.want(Facts(facts), packets);
}

/// Whether a hook that is set while compiled code runs stops it: whether LuaJIT was built with `LUAJIT_ENABLE_CHECKHOOK`.
pub(crate) fn hooks_reach_compiled_code() -> mlua::Result<bool> {
    /// The round of the loop that sets the hook, by when the loop is compiled, and the one that it ends after by itself.
    const SET_AT: u32 = 10_000;
    const END_AT: u32 = 20_000;
    /// The last round that began.
    static LAST: AtomicU32 = AtomicU32::new(0);

    /// Called from the compiled loop in every round: a way out of it to call this once would lead to the interpreter, where
    /// hooks always work.
    ///
    /// # Safety
    /// `state` is a Lua state that is running, on this thread.
    unsafe extern "C" fn set(state: *mut lua_State, round: u32) {
        // Relaxed: read on the same thread.
        LAST.store(round, Ordering::Relaxed);
        if round == SET_AT {
            // SAFETY: as above; see also `Stopper::stop`.
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
    // Stopped in any case: behind the loop, if not in it.
    let stopped = rounds.call::<()>(()).is_err();
    stopper.release();
    Ok(stopped && LAST.load(Ordering::Relaxed) < END_AT)
}
