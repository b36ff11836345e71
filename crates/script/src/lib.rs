//! Lua filters: the user's trigger and dump functions, compiled by LuaJIT and run over batches of packets.
//!
//! FlowScope's `--trigger-code` and `--dumper-code` (FlowScope paper, section IV, listing 1): a trigger script is
//! `return function(pkt) … end`, a dump script `return function(trigger) … end` that makes a predicate of a trigger packet.
//! What is different here: packets are given to Lua in batches, so that LuaJIT compiles the loop over them and not only what
//! is in it; the accessors check every offset; and a script has budgets of time and memory. One that fails or exceeds them is
//! disabled and says why, and whoever runs it goes on.
//!
//! ```
//! use retroscope_packet::LinkType;
//! use retroscope_script::{Limits, Machine, Packet, Script};
//!
//! let script = Script::new("port.lua", "return function(pkt) return pkt:has_port(53) end", false);
//! let mut trigger = Machine::new(&script, Limits::default())?;
//! let udp = [
//!     0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, // IPv4
//!     0x04, 0xd2, 0, 53, 0, 8, 0, 0, // UDP
//! ];
//! let packet = |data| Packet { data, wire_len: 28, time_ns: 0, interface: 0, link_type: LinkType::RAW, direction: 0 };
//! assert_eq!(trigger.match_many(&[packet(&udp), packet(&udp[..22]), packet(&udp)]), 0b101);
//! # Ok::<(), retroscope_script::ScriptError>(())
//! ```
//!
//! # What is trusted
//! Scripts are: they are given by whoever starts the program. The sandbox keeps their mistakes, and the packets that they
//! are fed with, away from the process's memory and from the system: user code sees no FFI, no pointer, no byte code, no file,
//! and no other environment (`prelude.lua`). It is not meant for scripts of unknown authors: LuaJIT itself has no such
//! promise.
//!
//! This crate does **not** know the ring, threads of the recorder, or clocks; it has one thread for each script, that watches
//! over its time (`watchdog.rs`).

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

pub use dump::{DerivedDump, LuaPredicate};
pub use error::ScriptError;
pub use machine::{Machine, Script, ScriptLimits, compiles};
pub use module::LuaModule;
pub use module_types::{
    MANY, ModuleDumpRequest, ModuleFlowEnd, ModuleSettings, Partition, ScriptPacket,
};
pub use runner::{ModuleCounts, Runner};
