//! Lua scripts: the user's trigger functions, dump functions and modules, compiled by LuaJIT and
//! run over batches of packets.
//!
//! Trigger and dump functions correspond to FlowScope's `--trigger-code` and `--dumper-code`
//! (FlowScope paper, section IV, listing 1). A trigger script is `return function(pkt) … end`. A
//! dump script is `return function(trigger) … end`, which returns a predicate, an expression or nil
//! for a trigger packet.
//!
//! The main differences from FlowScope:
//!
//! - Lua gets packets in batches, so that LuaJIT compiles the loop over the packets together with
//!   the function.
//! - The accessors check every offset.
//! - A script has budgets of time and memory. A script that fails or exceeds a budget is disabled
//!   with a message, a module after its second failure. The recorder continues.
//!
//! ```
//! use retroscope_packet::LinkType;
//! use retroscope_script::{Machine, Script, ScriptLimits, ScriptPacket};
//!
//! let script = Script::new("port.lua", "return function(pkt) return pkt:has_port(53) end", false);
//! let mut trigger = Machine::new(&script, ScriptLimits::default())?;
//! let udp = [
//!     0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, // IPv4
//!     0x04, 0xd2, 0, 53, 0, 8, 0, 0, // UDP
//! ];
//! let packet = |data| ScriptPacket {
//!     data,
//!     wire_len: 28,
//!     time_ns: 0,
//!     interface: 0,
//!     link_type: LinkType::RAW,
//!     direction: 0,
//! };
//! assert_eq!(trigger.match_many(&[packet(&udp), packet(&udp[..22]), packet(&udp)]), 0b101);
//! # Ok::<(), retroscope_script::ScriptError>(())
//! ```
//!
//! # Trust
//! Scripts are trusted: the person who starts the program chooses them. The sandbox keeps their
//! mistakes, and the packets that they see, away from the process's memory and from the system. In
//! the sandbox, user code sees no FFI, no pointer, no byte code, no file, and no other environment
//! (`prelude.lua`). A script that is `trusted` runs without the sandbox ([`Script::new`]). The
//! sandbox is not meant for scripts of unknown authors: LuaJIT makes no such promise.
//!
//! This crate does **not** know the ring, the threads of the recorder, or clocks. For the Lua state
//! of each script it starts one thread, which limits the time of calls into this state
//! (`watchdog.rs`).

mod address;
mod dump;
mod error;
mod fields;
mod machine;
mod module;
mod module_types;
mod runner;
mod sheet;
mod slot;
mod sys;
mod watchdog;

pub use address::{AddressPair, PairJoin};
pub use dump::{DerivedDump, LuaPredicate};
pub use error::ScriptError;
pub use machine::{Machine, Script, ScriptLimits, compiles};
pub use module::LuaModule;
pub use module_types::{
    MANY, ModuleDumpRequest, ModuleFlowEnd, ModuleSettings, Partition, ScriptPacket,
};
pub use runner::{ModuleCounts, Runner};
