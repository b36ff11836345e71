//! What a reader lends.

/// A descriptor of one lent record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordMeta {
    /// Nanoseconds since the UNIX epoch, clamped to what `i64` holds. 0 for packets without time (simple packet blocks).
    pub time_ns: i64,
    /// Where the captured bytes start in [`Reader::memory`](crate::Reader::memory).
    pub offset: usize,
    /// Bytes captured. `offset + captured_len <= memory.len()`.
    pub captured_len: u32,
    /// Bytes on the wire, as the file says: smaller than `captured_len` only in odd files.
    pub wire_len: u32,
    /// Index into [`Reader::interfaces`](crate::Reader::interfaces).
    pub interface: u16,
    /// pcapng's `epb_flags`, if the packet has them: bits 0 and 1 tell the direction (1 inbound, 2 outbound), bits 5 to 8
    /// the length of the frame check sequence in the captured bytes.
    pub flags: Option<u32>,
    /// pcapng's `epb_packetid`, if the packet has one.
    pub id: Option<u64>,
}

/// A lent record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'r> {
    /// Its descriptor.
    pub meta: RecordMeta,
    /// Its captured bytes.
    pub data: &'r [u8],
}
