//! Gives packets of an answer to a function instead of a file.

use std::fmt;

use retroscope_packet::LinkType;
use retroscope_ring::{InterfaceEntry, Packet};

use super::{PacketId, Recording, merge::MatchedPacket};

/// A packet of an answer for a caller's function.
#[derive(Debug, Clone, Copy)]
pub struct QueriedPacket<'a> {
    /// Stamp of the packet, ns since the epoch.
    pub stamp_ns: i64,
    /// ID of the packet in the answers of this ring. `None`: the packet is from a dump of another
    /// recording, or from a dump without IDs.
    pub id: Option<PacketId>,
    /// The name of the packet's interface.
    pub interface: &'a str,
    /// The type of the packet's link-layer header.
    pub link_type: LinkType,
    /// Length of the packet on the wire, bytes.
    pub wire_len: u32,
    /// Packets of the producer that are missing before this packet.
    pub dropped: u64,
    /// The packet's bytes, truncated to [`Query::headers`](crate::Query::headers).
    pub data: &'a [u8],
}

/// The caller's function, which returns whether it wants more packets.
pub(super) type Look<'v> = dyn FnMut(&InterfaceEntry, &MatchedPacket, &[u8]) -> bool + 'v;

pub(super) struct PacketVisitor<'v>(pub(super) &'v mut Look<'v>);

impl fmt::Debug for PacketVisitor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PacketVisitor").finish_non_exhaustive()
    }
}

impl MatchedPacket {
    pub(super) fn queried<'a>(
        &self,
        entry: &'a InterfaceEntry,
        data: &'a [u8],
        recording: Recording,
    ) -> QueriedPacket<'a> {
        QueriedPacket {
            stamp_ns: self.stamp_ns,
            id: self.id(recording),
            interface: &entry.name,
            link_type: LinkType(entry.link_type),
            wire_len: self.wire_len,
            dropped: self.dropped,
            data,
        }
    }

    /// The packet as a record of the ring.
    pub(super) fn recorded<'a>(&self, data: &'a [u8]) -> Packet<'a> {
        Packet {
            time_ns: self.time_ns,
            wire_len: self.wire_len,
            interface: self.interface,
            direction: self.direction,
            tag_restored: false,
            shard: 0,
            data,
        }
    }
}
