//! What a caller may say about sections, interfaces, packets and statistics, and how options are encoded.

use std::ops::Range;

use crate::{
    ByteOrder, WriteError,
    block::{BLOCK_BYTES_MAX, BLOCK_HEADER_BYTES, option},
};

/// What a section header block says about its writer. Empty texts are left out; each is at most 65,535 bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SectionOptions {
    /// The operating system.
    pub os: String,
    /// The program.
    pub application: String,
    /// Comments, in order.
    pub comments: Vec<String>,
    /// Byte order of the section.
    pub byte_order: ByteOrder,
}

/// What may be said of one packet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PacketOptions<'a> {
    /// `epb_flags`: bits 0 and 1 are the direction, 1 inbound, 2 outbound.
    pub flags: Option<u32>,
    /// `epb_dropcount`: packets lost since the one before of the same interface.
    pub dropped: Option<u64>,
    /// `epb_packetid`: a number that names the packet wherever it is written.
    pub id: Option<u64>,
    /// Comments, in order; each at most 65,535 bytes.
    pub comments: &'a [&'a str],
}

/// What an interface statistics block says. `None` means unknown and is left out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InterfaceStatistics {
    /// When these numbers were taken, in ns since the UNIX epoch.
    pub time_ns: i64,
    /// `isb_starttime`: start of the capture, in ns since the UNIX epoch.
    pub start_ns: Option<i64>,
    /// `isb_endtime`: its end.
    pub end_ns: Option<i64>,
    /// `isb_ifrecv`: packets received from the interface.
    pub received: Option<u64>,
    /// `isb_ifdrop`: packets that the interface dropped.
    pub dropped: Option<u64>,
    /// `isb_osdrop`: packets that the operating system dropped.
    pub os_dropped: Option<u64>,
    /// `isb_usrdeliv`: packets that reached the program.
    pub delivered: Option<u64>,
}

/// A time in its two halves, the upper one first in either byte order.
pub(super) fn time(order: ByteOrder, units: u64) -> [u8; 8] {
    match order {
        ByteOrder::Little => units.rotate_left(32).to_le_bytes(),
        ByteOrder::Big => units.to_be_bytes(),
    }
}

/// A block under construction, but for its packet, in memory that is used again and again.
#[derive(Debug)]
pub(super) struct BlockEncoder<'b> {
    bytes: &'b mut Vec<u8>,
    order: ByteOrder,
    /// Options were written, so the end mark is due.
    options: bool,
}

impl<'b> BlockEncoder<'b> {
    /// Where the length of a block stands at its start, which is known only at its end.
    const LENGTH: Range<usize> = 4..BLOCK_HEADER_BYTES;

    pub(super) fn new(bytes: &'b mut Vec<u8>, order: ByteOrder, block_type: u32) -> Self {
        bytes.clear();
        let mut block = Self {
            bytes,
            order,
            options: false,
        };
        block.u32(block_type).u32(0);
        block
    }

    pub(super) fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    pub(super) fn u16(&mut self, number: u16) -> &mut Self {
        self.raw(&self.order.bytes(number.to_le_bytes()))
    }

    pub(super) fn u32(&mut self, number: u32) -> &mut Self {
        self.raw(&self.order.bytes(number.to_le_bytes()))
    }

    pub(super) fn u64(&mut self, number: u64) -> &mut Self {
        self.raw(&self.order.bytes(number.to_le_bytes()))
    }

    /// One option, padded.
    pub(super) fn option(&mut self, code: u16, value: &[u8]) -> Result<(), WriteError> {
        let length = u16::try_from(value.len()).map_err(|_| WriteError::TooLong {
            what: "an option",
            bytes: value.len(),
            limit: usize::from(u16::MAX),
        })?;
        self.options = true;
        let value_bytes = value.len();
        self.u16(code).u16(length).raw(value).padding(value_bytes);
        Ok(())
    }

    /// The zeros after `length` bytes, up to a multiple of four.
    pub(super) fn padding(&mut self, length: usize) {
        self.raw(&[0; 3][..length.next_multiple_of(4) - length]);
    }

    /// A text option, unless it is empty.
    pub(super) fn text(&mut self, code: u16, text: &str) -> Result<(), WriteError> {
        if text.is_empty() {
            return Ok(());
        }
        self.option(code, text.as_bytes())
    }

    pub(super) fn comments<T: AsRef<str>>(&mut self, comments: &[T]) -> Result<(), WriteError> {
        comments
            .iter()
            .try_for_each(|comment| self.option(option::COMMENT, comment.as_ref().as_bytes()))
    }

    /// An option of eight bytes, unless it is unknown.
    pub(super) fn number(&mut self, code: u16, value: Option<[u8; 8]>) -> Result<(), WriteError> {
        value.map_or(Ok(()), |value| self.option(code, &value))
    }

    /// Ends the options and the block: the end mark if there are any, and the block's length, which counts the `packet_bytes` that
    /// stand elsewhere.
    pub(super) fn end(mut self, packet_bytes: usize) -> Result<(), WriteError> {
        if self.options {
            self.u16(option::END).u16(0);
        }
        let bytes = packet_bytes + self.bytes.len() + 4;
        let length = u32::try_from(bytes)
            .ok()
            .filter(|length| *length <= BLOCK_BYTES_MAX)
            .ok_or(WriteError::TooLong {
                what: "a block",
                bytes,
                limit: BLOCK_BYTES_MAX as usize,
            })?;
        self.u32(length);
        let length = self.order.bytes(length.to_le_bytes());
        self.bytes[Self::LENGTH].copy_from_slice(&length);
        Ok(())
    }
}
