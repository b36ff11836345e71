//! The options of sections, packets and statistics, and their encoding.

use std::ops::Range;

use crate::{
    ByteOrder, WriteError,
    block::{BLOCK_BYTES_MAX, BLOCK_HEADER_BYTES, option},
};

/// The options of a section header block. An empty `os` or `application` is omitted. Each text has
/// at most 65,535 bytes.
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

/// The options of a packet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PacketOptions<'a> {
    /// `epb_flags`: bits 0 and 1 are the direction, 1 inbound, 2 outbound.
    pub flags: Option<u32>,
    /// `epb_dropcount`: packets lost since the previous packet of the same interface.
    pub dropped: Option<u64>,
    /// `epb_packetid`: a number that identifies the packet in every file that contains it.
    pub id: Option<u64>,
    /// Comments, in order, each of at most 65,535 bytes.
    pub comments: &'a [&'a str],
}

/// The content of an interface statistics block. `None` means unknown; such options are omitted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InterfaceStatistics {
    /// Time at which the statistics were read, ns since the UNIX epoch.
    pub time_ns: i64,
    /// `isb_starttime`: start of the capture, ns since the UNIX epoch.
    pub start_ns: Option<i64>,
    /// `isb_endtime`: end of the capture, ns since the UNIX epoch.
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

/// A time as two 32-bit halves, the upper half first in either byte order.
pub(super) fn time(order: ByteOrder, units: u64) -> [u8; 8] {
    match order {
        ByteOrder::Little => units.rotate_left(32).to_le_bytes(),
        ByteOrder::Big => units.to_be_bytes(),
    }
}

/// A block under construction without its packet. The memory is reused for all blocks.
#[derive(Debug)]
pub(super) struct BlockEncoder<'b> {
    bytes: &'b mut Vec<u8>,
    order: ByteOrder,
    /// The block has options, so it needs the end mark.
    options: bool,
}

impl<'b> BlockEncoder<'b> {
    /// Position of the length at the start of a block. The length is known only at the end of the
    /// block.
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

    /// Writes one option with padding.
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

    /// Writes the zeros after `length` bytes, up to a multiple of four.
    pub(super) fn padding(&mut self, length: usize) {
        self.raw(&[0; 3][..length.next_multiple_of(4) - length]);
    }

    /// Writes a text option, unless the text is empty.
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

    /// Writes an option of eight bytes, unless the value is unknown.
    pub(super) fn number(&mut self, code: u16, value: Option<[u8; 8]>) -> Result<(), WriteError> {
        value.map_or(Ok(()), |value| self.option(code, &value))
    }

    /// Ends the options and the block. Writes the end mark if there are options, and the length of
    /// the block. The length includes `packet_bytes`, which are not in this memory.
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
