//! Writes pcapng: one section of unspecified length.

use std::io::Write;

use super::{
    options::{BlockEncoder, InterfaceStatistics, PacketOptions, SectionOptions, time},
    sink::{CountingSink, captured_len},
};
use crate::{
    ByteOrder, FileInterface, WriteError,
    block::{
        BLOCK_HEADER_BYTES, BYTE_ORDER_MAGIC, ENHANCED_PACKET, INTERFACE_DESCRIPTION,
        INTERFACE_STATISTICS, INTERFACES_MAX, SECTION_HEADER, option,
    },
    format::effective_snaplen,
};

/// Bytes of an enhanced packet block before the packet.
pub const PACKET_HEADER_BYTES: usize = BLOCK_HEADER_BYTES + 20;

/// Writes a pcapng section to any stream.
///
/// The caller may add interfaces at any time. [`PcapNgWriter::packet`] and
/// [`PcapNgWriter::statistics`] refer to an interface by the index that
/// [`PcapNgWriter::add_interface`] returned. A time before 1970 is clamped to 1970, and counted for
/// packets ([`PcapNgWriter::times_clamped`]). All other times are exact to the resolution.
///
/// libpcap reads the file only if all interfaces have the same link type and the same snap length.
/// Wireshark and [`CaptureReader`](crate::CaptureReader) have no such condition.
#[derive(Debug)]
pub struct PcapNgWriter<W: Write> {
    sink: CountingSink<W>,
    byte_order: ByteOrder,
    interfaces: Vec<WrittenInterface>,
    /// A block without its packet.
    scratch: Vec<u8>,
    times_clamped: u64,
}

/// The facts of an interface that the writer needs after the interface's block.
#[derive(Debug, Clone, Copy)]
struct WrittenInterface {
    unit_ns: u64,
    captured_len_max: u32,
}

impl WrittenInterface {
    /// A time in units of the interface, rounded down, at least 0.
    fn units(self, time_ns: i64) -> u64 {
        time_ns.max(0).unsigned_abs() / self.unit_ns
    }
}

impl<W: Write> PcapNgWriter<W> {
    /// Writes the section header block.
    ///
    /// # Errors
    /// [`WriteError::TooLong`], [`WriteError::Io`].
    pub fn new(inner: W, options: &SectionOptions) -> Result<Self, WriteError> {
        let mut writer = Self {
            sink: CountingSink::new(inner),
            byte_order: options.byte_order,
            interfaces: Vec::new(),
            scratch: Vec::new(),
            times_clamped: 0,
        };
        writer.block(SECTION_HEADER, |block| {
            block.u32(BYTE_ORDER_MAGIC).u16(1).u16(0).u64(u64::MAX);
            block.comments(&options.comments)?;
            block.text(option::SHB_OS, &options.os)?;
            block.text(option::SHB_USERAPPL, &options.application)
        })?;
        Ok(writer)
    }

    /// Writes an interface description block and returns the index of the interface, counted from
    /// 0.
    ///
    /// # Errors
    /// [`WriteError::TooManyInterfaces`], [`WriteError::TooLong`]. [`WriteError::Io`] and
    /// [`WriteError::Failed`] end the writer.
    pub fn add_interface(&mut self, interface: &FileInterface) -> Result<u32, WriteError> {
        let index = u32::try_from(self.interfaces.len())
            .ok()
            .filter(|_| self.interfaces.len() < INTERFACES_MAX)
            .ok_or(WriteError::TooManyInterfaces {
                limit: INTERFACES_MAX,
            })?;
        let (unit_ns, tsresol) = match interface.resolution_ns.is_multiple_of(1000) {
            true => (1000, 6),
            false => (1, 9),
        };
        self.block(INTERFACE_DESCRIPTION, |block| {
            let link_type = interface.link_type.0;
            block.u16(link_type).u16(0).u32(interface.snaplen);
            block.text(option::IF_NAME, &interface.name)?;
            block.text(option::IF_DESCRIPTION, &interface.description)?;
            block.option(option::IF_TSRESOL, &[tsresol])
        })?;
        self.interfaces.push(WrittenInterface {
            unit_ns,
            captured_len_max: effective_snaplen(interface.snaplen, interface.link_type),
        });
        Ok(index)
    }

    /// Writes an enhanced packet block. `time_ns` is nanoseconds since the UNIX epoch, rounded down
    /// to the interface's resolution. `wire_len` is written as given.
    ///
    /// # Errors
    /// [`WriteError::UnknownInterface`]. [`WriteError::TooLong`], also if `data` is longer than the
    /// interface's snap length. [`WriteError::Io`] and [`WriteError::Failed`] end the writer.
    pub fn packet(
        &mut self,
        interface: u32,
        time_ns: i64,
        wire_len: u32,
        data: &[u8],
        options: &PacketOptions<'_>,
    ) -> Result<(), WriteError> {
        let written = self.interface(interface)?;
        let bytes = data.len();
        let captured_len = captured_len(bytes, written.captured_len_max)?;
        let order = self.byte_order;
        let mut block = BlockEncoder::new(&mut self.scratch, order, ENHANCED_PACKET);
        block
            .u32(interface)
            .raw(&time(order, written.units(time_ns)))
            .u32(captured_len)
            .u32(wire_len);
        // The packet belongs here. It is written from `data`, without a copy.
        block.padding(bytes);
        if let Some(flags) = options.flags {
            block.option(option::PACKET_FLAGS, &order.bytes(flags.to_le_bytes()))?;
        }
        for (code, number) in [
            (option::PACKET_DROPCOUNT, options.dropped),
            (option::PACKET_ID, options.id),
        ] {
            let bytes = number.map(|number| order.bytes(number.to_le_bytes()));
            block.number(code, bytes)?;
        }
        block.comments(options.comments)?;
        block.end(bytes)?;
        self.times_clamped += u64::from(time_ns < 0);
        let (head, tail) = self.scratch.split_at(PACKET_HEADER_BYTES);
        self.sink.write([head, data, tail])
    }

    /// Writes an interface statistics block. If an interface has several such blocks, the last
    /// block counts.
    ///
    /// # Errors
    /// [`WriteError::UnknownInterface`], [`WriteError::TooLong`]. [`WriteError::Io`] and
    /// [`WriteError::Failed`] end the writer.
    pub fn statistics(
        &mut self,
        interface: u32,
        statistics: &InterfaceStatistics,
        comments: &[&str],
    ) -> Result<(), WriteError> {
        let written = self.interface(interface)?;
        let order = self.byte_order;
        let time = |time_ns| time(order, written.units(time_ns));
        let count = |count: u64| order.bytes(count.to_le_bytes());
        self.block(INTERFACE_STATISTICS, |block| {
            block.u32(interface).raw(&time(statistics.time_ns));
            block.comments(comments)?;
            block.number(option::ISB_STARTTIME, statistics.start_ns.map(time))?;
            block.number(option::ISB_ENDTIME, statistics.end_ns.map(time))?;
            block.number(option::ISB_IFRECV, statistics.received.map(count))?;
            block.number(option::ISB_IFDROP, statistics.dropped.map(count))?;
            block.number(option::ISB_OSDROP, statistics.os_dropped.map(count))?;
            block.number(option::ISB_USRDELIV, statistics.delivered.map(count))
        })
    }

    /// Flushes and returns the stream. A section needs no end mark.
    ///
    /// # Errors
    /// [`WriteError::Io`] and [`WriteError::Failed`].
    pub fn finish(self) -> Result<W, WriteError> {
        self.sink.finish()
    }

    /// Number of packets whose time the interface cannot represent.
    pub fn times_clamped(&self) -> u64 {
        self.times_clamped
    }

    /// The output stream, for a caller that writes to memory and takes the bytes out.
    pub fn inner_mut(&mut self) -> &mut W {
        &mut self.sink.inner
    }

    fn interface(&self, interface: u32) -> Result<WrittenInterface, WriteError> {
        let count = self.interfaces.len();
        self.interfaces
            .get(interface as usize)
            .copied()
            .ok_or(WriteError::UnknownInterface { interface, count })
    }

    /// Writes a block with the body that `fill` encodes.
    fn block(
        &mut self,
        block_type: u32,
        fill: impl FnOnce(&mut BlockEncoder<'_>) -> Result<(), WriteError>,
    ) -> Result<(), WriteError> {
        let mut block = BlockEncoder::new(&mut self.scratch, self.byte_order, block_type);
        fill(&mut block)?;
        block.end(0)?;
        self.sink.write([&self.scratch, &[], &[]])
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use retroscope_packet::LinkType;

    use super::*;

    fn writer(byte_order: ByteOrder, resolution_ns: u64) -> PcapNgWriter<Vec<u8>> {
        let section = SectionOptions {
            byte_order,
            ..SectionOptions::default()
        };
        let mut writer = PcapNgWriter::new(Vec::new(), &section).unwrap();
        let options = FileInterface {
            resolution_ns,
            ..FileInterface::new(LinkType::ETHERNET)
        };
        assert_eq!(writer.add_interface(&options).unwrap(), 0);
        writer
    }

    /// The bytes that `write` adds to a file.
    fn written(byte_order: ByteOrder, write: impl FnOnce(&mut PcapNgWriter<Vec<u8>>)) -> Vec<u8> {
        let mut writer = writer(byte_order, 1);
        let before = writer.inner_mut().len();
        write(&mut writer);
        writer.finish().unwrap()[before..].to_vec()
    }

    #[test]
    fn section_and_interface_bytes() {
        let file = writer(ByteOrder::Little, 1000).finish().unwrap();
        #[rustfmt::skip]
        assert_eq!(file, [
            0x0a, 0x0d, 0x0d, 0x0a, 28, 0, 0, 0, 0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0,
            0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 28, 0, 0, 0,
            1, 0, 0, 0, 32, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 9, 0, 1, 0, 6, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0, 0,
        ]);
    }

    #[test]
    fn packet_bytes() {
        let options = PacketOptions {
            flags: Some(2),
            dropped: Some(3),
            id: Some((1 << 32) + 4),
            ..PacketOptions::default()
        };
        let packet = written(ByteOrder::Big, |writer| {
            writer
                .packet(0, (7 << 32) + 5, 9, b"abc", &options)
                .unwrap()
        });
        #[rustfmt::skip]
        assert_eq!(packet, [
            0, 0, 0, 6, 0, 0, 0, 72, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 5, 0, 0, 0, 3, 0, 0, 0, 9, b'a', b'b', b'c', 0,
            0, 2, 0, 4, 0, 0, 0, 2, 0, 4, 0, 8, 0, 0, 0, 0, 0, 0, 0, 3, 0, 5, 0, 8, 0, 0, 0, 1, 0, 0, 0, 4,
            0, 0, 0, 0, 0, 0, 0, 72,
        ]);
    }

    #[test]
    fn statistics_bytes() {
        let statistics = InterfaceStatistics {
            time_ns: (1 << 32) + 2,
            start_ns: Some((3 << 32) + 4),
            os_dropped: Some(6),
            delivered: Some(5),
            ..InterfaceStatistics::default()
        };
        let little = written(ByteOrder::Little, |writer| {
            writer.statistics(0, &statistics, &[]).unwrap()
        });
        #[rustfmt::skip]
        assert_eq!(little, [
            5, 0, 0, 0, 64, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0,
            2, 0, 8, 0, 3, 0, 0, 0, 4, 0, 0, 0, 7, 0, 8, 0, 6, 0, 0, 0, 0, 0, 0, 0,
            8, 0, 8, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0, 0,
        ]);
        let big = written(ByteOrder::Big, |writer| {
            writer.statistics(0, &statistics, &[]).unwrap()
        });
        #[rustfmt::skip]
        assert_eq!(big, [
            0, 0, 0, 5, 0, 0, 0, 64, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2,
            0, 2, 0, 8, 0, 0, 0, 3, 0, 0, 0, 4, 0, 7, 0, 8, 0, 0, 0, 0, 0, 0, 0, 6,
            0, 8, 0, 8, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 64,
        ]);
    }
}
