//! Packets as a caller looks at them, instead of a file of them.

use std::fmt;

use retroscope_packet::LinkType;
use retroscope_ring::InterfaceEntry;

use super::{PacketId, Recording, merge::MatchedPacket};

/// A packet of an answer, while it is looked at.
#[derive(Debug, Clone, Copy)]
pub struct QueriedPacket<'a> {
    /// Its stamp, ns since the epoch.
    pub stamp_ns: i64,
    /// Its name in the answers of this ring.
    pub id: Option<PacketId>,
    /// The name of its interface.
    pub interface: &'a str,
    /// What its first bytes are.
    pub link_type: LinkType,
    /// Its length on the wire, bytes.
    pub wire_len: u32,
    /// Packets of its producer that are missing before it.
    pub dropped: u64,
    /// Its bytes, as far as they are asked for.
    pub data: &'a [u8],
}

/// Who looks at them, and whether they want more.
pub(super) struct PacketVisitor<'v>(&'v mut dyn FnMut(&QueriedPacket<'_>) -> bool);

impl fmt::Debug for PacketVisitor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PacketVisitor").finish_non_exhaustive()
    }
}

impl<'v> PacketVisitor<'v> {
    pub(super) fn new(look: &'v mut dyn FnMut(&QueriedPacket<'_>) -> bool) -> Self {
        Self(look)
    }

    /// Shows a packet. Whether more are wanted.
    pub(super) fn look(
        &mut self,
        entry: &InterfaceEntry,
        packet: &MatchedPacket,
        data: &[u8],
        recording: Recording,
    ) -> bool {
        (self.0)(&QueriedPacket {
            stamp_ns: packet.stamp_ns,
            id: packet.id(recording),
            interface: &entry.name,
            link_type: LinkType(entry.link_type),
            wire_len: packet.wire_len,
            dropped: packet.dropped,
            data,
        })
    }
}
