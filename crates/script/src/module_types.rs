//! Modules over flows: the packets and flows that a module sees, and the dumps that it requests.
//!
//! FlowScope's user modules work alike (FlowScope paper, section IV, and its later
//! `lua/flowscope.lua`). For each packet FlowScope looks up the flow and calls the module with the
//! flow's state; the module says whether to dump the flow. The main differences: the flow table is
//! that of [`retroscope_flow`], of bounded memory. One call handles a batch of packets. A failed
//! call loses the rest of its batch, or its check; a second failure disables the module.
//!
//! The caller passes packets and times to [`crate::Runner`], which returns requests. The runner
//! reads no clock.

use std::time::Duration;

use retroscope_flow::BiflowKey;
use retroscope_packet::LinkType;

/// Maximum number of packets of one call.
pub const MANY: usize = 64;
/// Maximum number of flows that one call checks.
pub(crate) const CHECKED: usize = 4096;

/// A packet, borrowed for one call.
#[derive(Debug, Clone, Copy)]
pub struct ScriptPacket<'p> {
    /// Captured bytes.
    pub data: &'p [u8],
    /// Bytes on the wire.
    pub wire_len: u32,
    /// Time stamp, ns since the UNIX epoch.
    pub time_ns: i64,
    /// Number of the interface among all interfaces of the ring.
    pub interface: u16,
    /// Link type of `data`.
    pub link_type: LinkType,
    /// As in pcapng's `epb_flags`: 1 inbound, 2 outbound, otherwise unknown.
    pub direction: u8,
}

/// The flow of a packet and the slot of the flow's state. Lua reads this struct.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct FlowPlace {
    /// The key of the flow.
    pub(crate) key: BiflowKey,
    /// The number of the slot. [`Self::NO_SLOT`] if the packet has no flow.
    pub(crate) slot: u32,
    /// 1 if the packet begins a flow; the slot then holds no state of this flow. Otherwise 0.
    pub(crate) is_first: u16,
    /// 1 if the packet goes from the key's second end to the first. Otherwise 0.
    pub(crate) is_reverse: u16,
}

impl FlowPlace {
    /// The slot number of a packet without a flow.
    pub(crate) const NO_SLOT: u32 = u32::MAX;
}

/// The place of a packet without a flow.
impl Default for FlowPlace {
    fn default() -> Self {
        Self {
            key: BiflowKey::default(),
            slot: Self::NO_SLOT,
            is_first: 0,
            is_reverse: 0,
        }
    }
}

/// The end of a flow for which a module requested a dump.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModuleFlowEnd {
    /// Index, in the batch, of the packet before which the flow ended. 0 without a batch.
    pub at: usize,
    /// The key of the flow.
    pub key: BiflowKey,
    /// Time of the check, ns.
    pub now_ns: i64,
    /// Time until which the dump needs packets, ns, at least `now_ns`.
    pub until_ns: i64,
}

/// A module's request to dump the flow of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModuleDumpRequest {
    /// Index of the packet in the batch.
    pub at: usize,
    /// The key of the packet's flow.
    pub key: BiflowKey,
    /// The dump expression; the packet fills in its variables. `None`: the configured expression.
    pub filter: Option<String>,
}

/// The packets that one instance of a script or module must see, all of them and in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Partition {
    /// All packets: the file declares `none`.
    None,
    /// All packets: the file declares no partition.
    #[default]
    Undeclared,
    /// All packets between two addresses.
    Host,
    /// All packets of a flow: the same addresses, ports and protocol, in both directions.
    Flow,
}

/// The settings of a module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModuleSettings {
    /// Size of a flow's state, bytes.
    pub state_bytes: usize,
    /// The module makes the keys of flows.
    pub has_keys: bool,
    /// Packet time between two checks of all flows, above 0. `None` if the module has no checks.
    pub check_interval: Option<Duration>,
    /// The checks, instead of time-outs, decide when a flow ends.
    pub decides_expiry: bool,
    /// The module may request dumps.
    pub dumps: bool,
    /// Maximum number of the module's dumps that are open at once.
    pub dumps_max: usize,
    /// The packets that one instance must see.
    pub partition: Partition,
    /// The module may shunt flows: drop the rest of a flow.
    pub shunts: bool,
}

/// FlowScope's default of `maxDumperRules`.
pub(crate) const DUMPS_MAX: usize = 50;

/// A call of a module that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CallFault {
    /// The reason, with the module's name and, if known, the line.
    pub(crate) message: String,
    /// For a call that handles packets: the number of packets that it handled before it failed.
    pub(crate) done: usize,
}
