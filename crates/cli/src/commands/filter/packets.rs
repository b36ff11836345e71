//! The packets of a file in memory.

use std::{ops::Range, path::Path};

use retroscope_filter::{Aux, FilterFrame, LinkContext, Program};
use retroscope_packet::LinkType;
use retroscope_pcapfile::CaptureReader;

use super::{input::InputFile, program::contexts_of};
use crate::failure::Failure;

/// Maximum number of captured bytes that are kept of a file.
const BYTES_MAX: usize = 256 << 20;

/// Captured bytes and metadata of packets.
#[derive(Debug, Default)]
pub(super) struct FilePackets {
    /// Captured bytes of all packets.
    pub(super) bytes: Vec<u8>,
    /// Byte range and metadata of each packet, at least one.
    pub(super) packets: Vec<PacketRange>,
    /// Link types by interface number.
    interfaces: Vec<LinkType>,
    /// Contexts for compiling a filter, one for each link type.
    pub(super) contexts: Vec<LinkContext>,
    /// The file contains more packets.
    pub(super) is_part: bool,
}

#[derive(Debug)]
pub(super) struct PacketRange {
    captured: Range<usize>,
    wire_len: u32,
    interface: u16,
}

/// Up to 64 consecutive packets of one interface.
#[derive(Debug)]
pub(super) struct PacketRun<'p> {
    pub(super) link_type: LinkType,
    pub(super) interface: u16,
    pub(super) frames: Vec<FilterFrame<'p>>,
    /// Position in the file of the run's first packet, counted from 0.
    pub(super) first: u64,
}

impl FilePackets {
    /// Reads a file, or the start of a large file.
    ///
    /// # Errors
    /// [`Failure`], exit 1: the file cannot be read or has no packets.
    pub(super) fn read(path: &Path) -> Result<Self, Failure> {
        let InputFile { file, name } = InputFile::open(path)?;
        let failed = |error| Failure::failed(format_args!("{name}: {error}"));
        let mut reader = CaptureReader::new(file).map_err(failed)?;
        let mut packets = Self::default();
        while !packets.is_part && reader.fill().map_err(failed)? > 0 {
            for record in reader.records() {
                let end = record.offset + record.captured_len as usize;
                let data = &reader.memory()[record.offset..end];
                packets.is_part = packets.bytes.len() + data.len() > BYTES_MAX;
                if packets.is_part {
                    break;
                }
                let start = packets.bytes.len();
                packets.bytes.extend_from_slice(data);
                packets.packets.push(PacketRange {
                    captured: start..packets.bytes.len(),
                    wire_len: record.wire_len,
                    interface: record.interface,
                });
            }
        }
        let interfaces = reader.interfaces();
        packets.interfaces = interfaces.iter().map(|one| one.link_type).collect();
        packets.contexts = contexts_of(interfaces);
        if packets.packets.is_empty() {
            return Err(Failure::failed(format_args!("{name}: it has no packets")));
        }
        Ok(packets)
    }

    /// All packets in order, grouped in runs.
    pub(super) fn runs(&self) -> Vec<PacketRun<'_>> {
        let mut first = 0;
        let of_one_interface = self.packets.chunk_by(|a, b| a.interface == b.interface);
        let runs = of_one_interface.flat_map(|packets| packets.chunks(Program::MANY));
        runs.map(|packets| {
            let interface = packets[0].interface;
            let frame = |packet: &PacketRange| {
                let data = &self.bytes[packet.captured.clone()];
                FilterFrame::new(data, packet.wire_len, Aux::default())
            };
            let run = PacketRun {
                link_type: self.interfaces[usize::from(interface)],
                interface,
                frames: packets.iter().map(frame).collect(),
                first,
            };
            first += packets.len() as u64;
            run
        })
        .collect()
    }
}
