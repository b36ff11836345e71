//! A packet as stored ([`Record`]) and as read ([`Packet`]).

/// A captured frame to store.
#[derive(Debug, Clone, Copy)]
pub struct Record<'a> {
    /// Ring time, ns: the stamp, since the UNIX epoch, minus the offset of its clock
    /// ([`Producer::step`](crate::Producer::step)).
    pub time_ns: i64,
    /// Bytes on the wire, including a restored tag.
    pub wire_len: u32,
    /// Number from [`Ring::add_interface`](crate::Ring::add_interface).
    pub interface: u16,
    /// 0 unknown, 1 inbound, 2 outbound (pcapng's `epb_flags`); only the low two bits are kept.
    pub direction: u8,
    /// Whether the frame contains a VLAN tag that the NIC or kernel had removed.
    pub tag_restored: bool,
    /// One of 32 shards by which readers divide the packets. Only the low five bits are kept.
    pub shard: u8,
    /// The captured bytes, stored back to back, truncated to 256 KiB in total.
    pub parts: [&'a [u8]; 3],
}

impl<'a> Record<'a> {
    /// A complete frame, in one part, of unknown direction.
    #[must_use]
    #[inline]
    pub fn whole(time_ns: i64, interface: u16, frame: &'a [u8]) -> Self {
        Self {
            time_ns,
            wire_len: u32::try_from(frame.len()).unwrap_or(u32::MAX),
            interface,
            direction: 0,
            tag_restored: false,
            shard: 0,
            parts: [frame, &[], &[]],
        }
    }
}

/// A stored frame, borrowed from its bucket or from a copy ([`Buffer`](crate::Buffer)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet<'r> {
    /// Ring time, ns. [`Step::stamp_ns`](crate::Step::stamp_ns) returns the stamp.
    pub time_ns: i64,
    /// Bytes on the wire.
    pub wire_len: u32,
    /// Number in the ring's table of interfaces.
    pub interface: u16,
    /// 0 unknown, 1 inbound, 2 outbound.
    pub direction: u8,
    /// Whether the frame contains a VLAN tag that the NIC or kernel had removed.
    pub tag_restored: bool,
    /// Shard, `0..32`.
    pub shard: u8,
    /// The captured bytes.
    pub data: &'r [u8],
}
