//! Writes a capture file: a copy in the format of the input, or generated traffic.

use std::{fs::File, io::BufWriter};

use retroscope_pcapfile::{
    ByteOrder, FileFormat, FileInterface, PacketOptions, PcapNgWriter, PcapOptions, PcapWriter,
    RecordMeta, SectionOptions, WriteError,
};
use retroscope_recorder::PROGRAM;

use super::target::OutputTarget;

/// Size of a write buffer in bytes.
pub(super) const BUFFER_BYTES: usize = 256 << 10;

/// A capture file that is being written.
#[derive(Debug)]
pub(super) struct Capture {
    writer: CaptureWriter,
    /// Packets with the time `i64::MAX` (year 2262), to which the reader clamps later times. The
    /// writer counts the times that it clamps itself, for example times before 1970.
    times_beyond: u64,
}

#[derive(Debug)]
enum CaptureWriter {
    Pcap(PcapWriter<BufWriter<File>>),
    PcapNg {
        writer: PcapNgWriter<BufWriter<File>>,
        /// Number of written interfaces. In a copy, indices are equal to those of the input, across
        /// all of its sections.
        interfaces: usize,
    },
}

impl Capture {
    /// Writes the file's header, in the format and the byte order of the input.
    pub(super) fn start(file: File, format: FileFormat) -> Result<Self, WriteError> {
        match format.pcap {
            Some(options) => Self::pcap(file, options),
            None => Self::pcapng(file, format.byte_order),
        }
    }

    /// Writes the header of a pcap file.
    pub(super) fn pcap(file: File, options: PcapOptions) -> Result<Self, WriteError> {
        let writer = PcapWriter::new(BufWriter::with_capacity(BUFFER_BYTES, file), options)?;
        Ok(Self {
            writer: CaptureWriter::Pcap(writer),
            times_beyond: 0,
        })
    }

    /// Writes the section header of a pcapng file. The caller adds the interfaces.
    pub(super) fn pcapng(file: File, byte_order: ByteOrder) -> Result<Self, WriteError> {
        let options = SectionOptions {
            application: PROGRAM.to_owned(),
            byte_order,
            ..SectionOptions::default()
        };
        let out = BufWriter::with_capacity(BUFFER_BYTES, file);
        Ok(Self {
            writer: CaptureWriter::PcapNg {
                writer: PcapNgWriter::new(out, &options)?,
                interfaces: 0,
            },
            times_beyond: 0,
        })
    }

    /// Writes interfaces that are not in the file yet. pcap has no interface descriptions.
    pub(super) fn add_interfaces(&mut self, all: &[FileInterface]) -> Result<(), WriteError> {
        if let CaptureWriter::PcapNg { writer, interfaces } = &mut self.writer {
            for interface in &all[*interfaces..] {
                writer.add_interface(interface)?;
                *interfaces += 1;
            }
        }
        Ok(())
    }

    /// Writes a packet with its captured bytes and wire length unchanged. pcapng also keeps the
    /// packet's flags; pcap has no flags.
    #[inline]
    pub(super) fn packet(&mut self, record: &RecordMeta, data: &[u8]) -> Result<(), WriteError> {
        self.times_beyond += u64::from(record.time_ns == i64::MAX);
        match &mut self.writer {
            CaptureWriter::Pcap(writer) => writer.record(record.time_ns, record.wire_len, data),
            CaptureWriter::PcapNg { writer, .. } => writer.packet(
                u32::from(record.interface),
                record.time_ns,
                record.wire_len,
                data,
                &PacketOptions {
                    flags: record.flags,
                    ..PacketOptions::default()
                },
            ),
        }
    }

    /// Flushes the buffer. Returns the number of packets whose time was clamped or is `i64::MAX`.
    pub(super) fn finish(self) -> Result<u64, WriteError> {
        let (times_clamped, finished) = match self.writer {
            CaptureWriter::Pcap(writer) => (writer.times_clamped(), writer.finish().map(drop)),
            CaptureWriter::PcapNg { writer, .. } => {
                (writer.times_clamped(), writer.finish().map(drop))
            }
        };
        finished?;
        Ok(times_clamped + self.times_beyond)
    }
}

/// The message that `target` cannot be written. For a system error, the message leaves out the
/// number of written bytes.
pub(super) fn cannot_write(target: &OutputTarget, error: WriteError) -> anyhow::Error {
    let cause = match error {
        WriteError::Io { error, .. } => anyhow::Error::new(error),
        error => anyhow::Error::new(error),
    };
    cause.context(format!("cannot write {target}"))
}
