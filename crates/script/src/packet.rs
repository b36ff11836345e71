//! A packet as scripts see it.

use retroscope_packet::LinkType;

/// Packets of one call at most.
pub const MANY: usize = 64;

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
