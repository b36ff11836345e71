//! A packet of a dump, without its bytes.

/// The sort key of waiting packets: ring time, then source in the user's order, then producer, then
/// record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PacketKey {
    pub(crate) time_ns: i64,
    pub(crate) source: usize,
    pub(crate) producer: usize,
    pub(crate) record: u64,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct PacketMeta {
    pub(crate) key: PacketKey,
    /// The packet's stamp, ns since the epoch.
    pub(crate) stamp_ns: i64,
    pub(crate) wire_len: u32,
    /// Ring-wide interface identifier.
    pub(crate) interface: u16,
    pub(crate) direction: u8,
    /// The packet triggered the dump, or was recognized as an alert's frame when it was written.
    pub(crate) is_trigger: bool,
}
