//! The records that a reader lends.

/// The descriptor of a lent record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordMeta {
    /// Nanoseconds since the UNIX epoch, clamped to the range of `i64`. 0 for packets without time
    /// (simple packet blocks).
    pub time_ns: i64,
    /// Offset of the captured bytes in [`CaptureReader::memory`](crate::CaptureReader::memory).
    pub offset: usize,
    /// Number of captured bytes. `offset + captured_len <= memory.len()`.
    pub captured_len: u32,
    /// Bytes on the wire, according to the file. Less than `captured_len` only in unusual files.
    pub wire_len: u32,
    /// Index into [`CaptureReader::interfaces`](crate::CaptureReader::interfaces).
    pub interface: u16,
    /// pcapng's `epb_flags` (or the obsolete `pack_flags`), if the packet has them. Bits 0 and 1
    /// are the direction (1 inbound, 2 outbound). Bits 5 to 8 are the frame check sequence's
    /// length, bytes.
    pub flags: Option<u32>,
    /// pcapng's `epb_packetid`, if the packet has one.
    pub id: Option<u64>,
}

/// A lent record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CaptureRecord<'r> {
    /// The descriptor of the record.
    pub meta: RecordMeta,
    /// The captured bytes of the record.
    pub data: &'r [u8],
}
