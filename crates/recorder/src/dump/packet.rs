//! A packet of a dump, apart from its bytes.

/// The place of a packet in a dump: ring time, then source in the order the user gave, then queue, then record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PacketKey {
    pub(crate) time_ns: i64,
    pub(crate) source: usize,
    pub(crate) producer: usize,
    pub(crate) record: u64,
}

/// See the module.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PacketMeta {
    /// Its place, in ring time.
    pub(crate) key: PacketKey,
    /// What it is written with, ns since the epoch.
    pub(crate) stamp_ns: i64,
    pub(crate) wire_len: u32,
    /// Ring-wide interface identifier.
    pub(crate) interface: u16,
    pub(crate) direction: u8,
    /// The packet that triggered the dump.
    pub(crate) is_trigger: bool,
}
