//! A packet of a dump, without its bytes.

/// The sort key of packets that wait to be written: ring time, then source in the order the user
/// gave, then producer, then record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PacketKey {
    pub(crate) time_ns: i64,
    pub(crate) source: usize,
    pub(crate) producer: usize,
    pub(crate) record: u64,
}

/// The properties of a packet in a dump.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PacketMeta {
    /// The packet's place, in ring time.
    pub(crate) key: PacketKey,
    /// The packet's stamp, ns since the epoch.
    pub(crate) stamp_ns: i64,
    pub(crate) wire_len: u32,
    /// Ring-wide interface identifier.
    pub(crate) interface: u16,
    pub(crate) direction: u8,
    /// The packet triggered the dump, or matched one of its alerts when the packet was written. A
    /// pcapng file marks such a packet with a comment.
    pub(crate) is_trigger: bool,
}
