//! A capture file in the format of the one that is read.

use std::{fs::File, io::BufWriter};

use retroscope_pcapfile::{
    Format, Interface, InterfaceOptions, Kind, PacketOptions, PcapNgWriter, PcapOptions,
    PcapWriter, RecordMeta, Resolution, SectionOptions, WriteError,
};

use super::output::BUFFER_BYTES;

/// A capture file under construction.
#[derive(Debug)]
pub(super) enum Capture {
    Pcap(PcapWriter<BufWriter<File>>),
    PcapNg {
        writer: PcapNgWriter<BufWriter<File>>,
        /// Interfaces written. Their indices are those of the input, whatever section they stood in.
        interfaces: usize,
    },
}

impl Capture {
    /// Writes the file's header, in the byte order of the input.
    pub(super) fn start(
        file: File,
        format: Format,
        interfaces: &[Interface],
    ) -> Result<Self, WriteError> {
        let out = BufWriter::with_capacity(BUFFER_BYTES, file);
        match (format.kind, interfaces) {
            (Kind::Pcap, [interface]) => {
                let options = PcapOptions {
                    link_type_extra: format.link_type_extra,
                    snaplen: format.snaplen,
                    resolution: format.resolution,
                    byte_order: format.byte_order,
                    ..PcapOptions::new(interface.link_type)
                };
                PcapWriter::new(out, options).map(Self::Pcap)
            }
            _ => {
                let options = SectionOptions {
                    application: concat!("retroscope ", env!("CARGO_PKG_VERSION")).to_owned(),
                    byte_order: format.byte_order,
                    ..SectionOptions::default()
                };
                let writer = PcapNgWriter::new(out, &options)?;
                Ok(Self::PcapNg {
                    writer,
                    interfaces: 0,
                })
            }
        }
    }

    /// Describes interfaces that are not in the file yet.
    pub(super) fn add_interfaces(&mut self, all: &[Interface]) -> Result<(), WriteError> {
        let Self::PcapNg { writer, interfaces } = self else {
            return Ok(());
        };
        for interface in &all[*interfaces..] {
            writer.add_interface(&InterfaceOptions {
                name: interface.name.clone(),
                description: interface.description.clone(),
                snaplen: interface.snaplen,
                resolution: resolution(interface.resolution_ns),
                ..InterfaceOptions::new(interface.link_type)
            })?;
        }
        *interfaces = all.len();
        Ok(())
    }

    /// Writes a packet: bytes, wire length, flags as they were.
    #[inline]
    pub(super) fn packet(&mut self, record: &RecordMeta, data: &[u8]) -> Result<(), WriteError> {
        match self {
            Self::Pcap(writer) => writer.record(record.time_ns, record.wire_len, data),
            Self::PcapNg { writer, .. } => writer.packet(
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

    /// Packets whose time did not fit.
    pub(super) fn times_clamped(&self) -> u64 {
        match self {
            Self::Pcap(writer) => writer.times_clamped(),
            Self::PcapNg { writer, .. } => writer.times_clamped(),
        }
    }

    /// Writes what is in the buffer.
    pub(super) fn finish(self) -> Result<(), WriteError> {
        match self {
            Self::Pcap(writer) => writer.finish().map(drop),
            Self::PcapNg { writer, .. } => writer.finish().map(drop),
        }
    }
}

/// The resolution that holds the stamps of an interface exactly; those finer than a nanosecond were rounded on reading.
fn resolution(resolution_ns: u64) -> Resolution {
    if resolution_ns.is_multiple_of(1000) {
        Resolution::Micro
    } else {
        Resolution::Nano
    }
}
