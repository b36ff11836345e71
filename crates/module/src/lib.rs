//! Modules: analysis by flow, which says what is dumped.
//!
//! FlowScope's user modules (FlowScope paper, section IV, and its later `lua/flowscope.lua`): for each packet a flow is looked up, a
//! function of the module sees the flow's state, and says whether the flow is wanted. What is different here: the table of flows is that of
//! [`retroscope_flow`], of bounded memory; a module is called for a batch, not for a packet; and one that fails loses that batch and goes on,
//! until it fails again.
//!
//! [`FlowModule`] is what a module in Rust implements; [`Handler`] is what a [`Runner`] drives: [`Compiled`] makes the one of the other, and
//! modules in Lua are handlers of the crate `script`. Pure: packets and times in, wishes out. No threads, no clock, no input or output.
//!
//! ```
//! use retroscope_flow::{Key, TrackerConfig};
//! use retroscope_module::{Compiled, FlowModule, Packet, Runner};
//! use retroscope_packet::LinkType;
//!
//! /// Dumps flows of more than two packets.
//! #[derive(Debug)]
//! struct Long;
//!
//! impl FlowModule for Long {
//!     type State = u64;
//!
//!     fn name(&self) -> &str {
//!         "long"
//!     }
//!
//!     fn handle_packet(&mut self, _: &Key, packets: &mut u64, _: &Packet<'_>, _: bool) -> bool {
//!         *packets += 1;
//!         *packets == 3
//!     }
//! }
//!
//! let mut runner = Runner::new(Box::new(Compiled::new(Long)), &TrackerConfig::default());
//! let udp = [
//!     0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, // IPv4
//!     0x04, 0xd2, 0, 53, 0, 8, 0, 0, // UDP
//! ];
//! let packet = Packet { data: &udp, wire_len: 28, time_ns: 0, interface: 0, link_type: LinkType::RAW, direction: 0 };
//! let mut dumps = Vec::new();
//! runner.look(&[packet; 4], &[0; 4], &mut dumps);
//! assert_eq!(dumps.iter().map(|dump| dump.at).collect::<Vec<_>>(), [2]);
//! ```
#![forbid(unsafe_code)]

mod compiled;
mod runner;

use std::{fmt, time::Duration};

pub use compiled::{Compiled, FlowModule};
use retroscope_flow::Key;
use retroscope_packet::LinkType;
pub use runner::{ModuleCounts, Runner};

/// Packets of one call at most.
pub const MANY: usize = 64;
/// Flows that are checked by one call at most.
pub const CHECKED: usize = 4096;

/// A packet, borrowed for one call.
#[derive(Debug, Clone, Copy)]
pub struct Packet<'p> {
    /// Captured bytes.
    pub data: &'p [u8],
    /// Bytes on the wire.
    pub wire_len: u32,
    /// Time stamp, ns since the UNIX epoch.
    pub time_ns: i64,
    /// Ring-wide number of the interface.
    pub interface: u16,
    /// What `data` starts with.
    pub link_type: LinkType,
    /// As in pcapng's `epb_flags`: 1 inbound, 2 outbound, else not known.
    pub direction: u8,
}

/// Where the state of a packet's flow is: plain data, which Lua reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Place {
    /// The key of the flow.
    pub key: Key,
    /// The number of its state; [`Self::NO_SLOT`]: the packet is of no flow.
    pub slot: u32,
    /// 1: the state is that of another flow, which ended, or of none; the packet begins one. Else 0.
    pub is_first: u16,
    /// 1: the packet goes from the key's second end to the first. Else 0.
    pub is_reverse: u16,
}

impl Place {
    /// Of a packet without flow.
    pub const NO_SLOT: u32 = u32::MAX;
}

/// A packet of no flow.
impl Default for Place {
    fn default() -> Self {
        Self {
            key: Key::default(),
            slot: Self::NO_SLOT,
            is_first: 0,
            is_reverse: 0,
        }
    }
}

/// A flow that a module wanted dumped is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Over {
    /// The number of the packet, in what the module was called with, before which it was found to be over.
    pub at: usize,
    /// Its key.
    pub key: Key,
    /// When it was checked, ns.
    pub now_ns: i64,
    /// Until when packets are wanted, ns, at least `now_ns`.
    pub until_ns: i64,
}

/// A module wants the flow of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dump {
    /// The packet's number in what it was called with.
    pub at: usize,
    /// The key of its flow.
    pub key: Key,
    /// What is to be dumped: a dump expression, in which the packet fills in variables. `None`: what is configured.
    pub filter: Option<String>,
}

/// Which packets have to be seen by one state of a module, all and in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Partition {
    /// All packets.
    #[default]
    None,
    /// Those of a pair of addresses.
    Host,
    /// Those of a flow: the same addresses, ports and protocol, in both directions.
    Flow,
}

/// What a module asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Bytes of a flow's state.
    pub state_bytes: usize,
    /// It makes the keys of flows itself.
    pub has_keys: bool,
    /// Between two checks of all flows, of packet time, above 0; `None`: there are none.
    pub check_interval: Option<Duration>,
    /// Checks say when flows are over, and their time-outs do not.
    pub decides_expiry: bool,
    /// It may ask for dumps.
    pub dumps: bool,
    /// Dumps of its that may be open at once.
    pub dumps_max: usize,
    /// Which packets it sees.
    pub partition: Partition,
    /// It may shunt flows: say that the rest of a flow is not wanted.
    pub shunts: bool,
}

/// FlowScope's `maxDumperRules` where a module has none.
pub const DUMPS_MAX: usize = 50;

impl Default for Plan {
    fn default() -> Self {
        Self {
            state_bytes: 0,
            has_keys: false,
            check_interval: None,
            decides_expiry: false,
            dumps: true,
            dumps_max: DUMPS_MAX,
            partition: Partition::None,
            shunts: false,
        }
    }
}

/// A call of a module that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Why, with the place in the module.
    pub message: String,
    /// Packets that it was done with before.
    pub done: usize,
}

/// What a [`Runner`] drives: a module that is called for batches, and keeps its states, in slots whose numbers it is told.
pub trait Handler: Send + fmt::Debug {
    /// What messages call it.
    fn name(&self) -> &str;

    /// What it asks for; always the same.
    fn plan(&self) -> Plan;

    /// Makes the keys of at most [`MANY`] packets. Called where [`Plan::has_keys`].
    ///
    /// # Errors
    /// [`Fault`]; none of the packets is handled then.
    fn keys(&mut self, packets: &[Packet<'_>], keys: &mut [Option<Key>]) -> Result<(), Fault>;

    /// Handles at most [`MANY`] packets, in order. `dumps` gets what is wanted, in order too.
    ///
    /// # Errors
    /// [`Fault`]; what it wanted before that counts.
    fn handle(
        &mut self,
        packets: &[Packet<'_>],
        places: &[Place],
        dumps: &mut Vec<Dump>,
    ) -> Result<(), Fault>;

    /// The packets of the last call of [`Self::handle`] whose flows, by their headers, it shunted: nothing of these is wanted behind that packet.
    /// Bit `n` is that of packet `n`. They are told once.
    fn take_shunted(&mut self) -> u64 {
        0
    }

    /// A check of all flows begins, at a packet time. Other calls come between those of a check.
    ///
    /// # Errors
    /// [`Fault`]; there is no check then.
    fn check_begins(&mut self, time_ns: i64) -> Result<(), Fault>;

    /// Checks at most [`CHECKED`] flows. `over` gets, of those that are over, their numbers, and until when packets of them are wanted, ns.
    ///
    /// # Errors
    /// [`Fault`]; the check ends, and none of these flows is over.
    fn check(&mut self, places: &[Place], over: &mut Vec<(usize, i64)>) -> Result<(), Fault>;

    /// A check of all flows is done; so many go on, and so many were over.
    ///
    /// # Errors
    /// [`Fault`].
    fn check_ends(&mut self, kept: u64, over: u64) -> Result<(), Fault>;

    /// What it has to say to the user, lines.
    fn take_notes(&mut self) -> Vec<String>;
}
