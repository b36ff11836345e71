//! What a caller may say about sections, interfaces, packets and statistics, and how options are encoded.

use retroscope_packet::LinkType;

use crate::{
    ByteOrder, Resolution, WriteError,
    block::{BLOCK_BYTES_MAX, option},
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

/// What an interface description block says. Empty texts are left out; each is at most 65,534 bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterfaceOptions {
    /// Name, as `eth0`.
    pub name: String,
    /// Text for people.
    pub description: String,
    /// Link-layer header type of its packets.
    pub link_type: LinkType,
    /// Bytes kept of each packet at most; 0: no limit, and libpcap then takes 262,144.
    pub snaplen: u32,
    /// Resolution of its time stamps.
    pub resolution: Resolution,
    /// Seconds that are added to its time stamps, which are written as unsigned numbers: below zero, and the interface
    /// can hold times before 1970. With 0, `if_tsoffset` is left out.
    pub time_offset_seconds: i64,
}

impl InterfaceOptions {
    /// No texts, no snap length, nanoseconds since 1970.
    #[must_use]
    pub fn new(link_type: LinkType) -> Self {
        Self {
            name: String::new(),
            description: String::new(),
            link_type,
            snaplen: 0,
            resolution: Resolution::Nano,
            time_offset_seconds: 0,
        }
    }
}

/// What may be said of one packet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PacketOptions<'a> {
    /// `epb_flags`: bits 0 and 1 are the direction, 1 inbound, 2 outbound.
    pub flags: Option<u32>,
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
    /// `isb_usrdeliv`: packets that reached the program.
    pub delivered: Option<u64>,
}

/// A block, or the end of one, under construction in memory that is used again and again.
#[derive(Debug)]
pub(super) struct Encoder<'b> {
    bytes: &'b mut Vec<u8>,
    order: ByteOrder,
    /// Options were written, so the end mark is due.
    options: bool,
}

impl<'b> Encoder<'b> {
    pub(super) fn new(bytes: &'b mut Vec<u8>, order: ByteOrder) -> Self {
        bytes.clear();
        Self {
            bytes,
            order,
            options: false,
        }
    }

    pub(super) fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    pub(super) fn u16(&mut self, number: u16) -> &mut Self {
        self.raw(&self.order.u16_bytes(number))
    }

    pub(super) fn u32(&mut self, number: u32) -> &mut Self {
        self.raw(&self.order.u32_bytes(number))
    }

    pub(super) fn u64(&mut self, number: u64) -> &mut Self {
        self.raw(&self.order.u64_bytes(number))
    }

    /// A time in its two halves, the upper one first in either byte order.
    #[expect(clippy::cast_possible_truncation, reason = "the two halves")]
    pub(super) fn time(&mut self, units: u64) -> &mut Self {
        self.u32((units >> 32) as u32).u32(units as u32)
    }

    /// One option, padded.
    pub(super) fn option(&mut self, code: u16, value: &[u8]) -> Result<&mut Self, WriteError> {
        let length = u16::try_from(value.len()).map_err(|_| WriteError::OptionTooLong {
            bytes: value.len(),
            limit: usize::from(u16::MAX),
        })?;
        self.options = true;
        let padding = value.len().next_multiple_of(4) - value.len();
        Ok(self
            .u16(code)
            .u16(length)
            .raw(value)
            .raw(&[0; 3][..padding]))
    }

    /// A text option, unless it is empty.
    pub(super) fn text(&mut self, code: u16, text: &str) -> Result<&mut Self, WriteError> {
        if text.is_empty() {
            Ok(self)
        } else {
            self.option(code, text.as_bytes())
        }
    }

    pub(super) fn comments<T: AsRef<str>>(
        &mut self,
        comments: &[T],
    ) -> Result<&mut Self, WriteError> {
        for comment in comments {
            self.option(option::COMMENT, comment.as_ref().as_bytes())?;
        }
        Ok(self)
    }

    /// A counter option, unless it is unknown.
    pub(super) fn counter(
        &mut self,
        code: u16,
        count: Option<u64>,
    ) -> Result<&mut Self, WriteError> {
        match count {
            Some(count) => self.option(code, &self.order.u64_bytes(count)),
            None => Ok(self),
        }
    }

    /// Ends the options and the block: the end mark if there are any, and the block's length, which counts `before` bytes
    /// outside this encoder. Returns that length for the block's start.
    pub(super) fn end(&mut self, before: usize) -> Result<u32, WriteError> {
        if self.options {
            self.u16(option::END).u16(0);
        }
        let bytes = before + self.bytes.len() + 4;
        let length = u32::try_from(bytes)
            .ok()
            .filter(|length| *length <= BLOCK_BYTES_MAX)
            .ok_or(WriteError::BlockTooLong {
                bytes,
                limit: BLOCK_BYTES_MAX as usize,
            })?;
        self.u32(length);
        Ok(length)
    }
}
