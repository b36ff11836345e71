//! The encoders of a dump: one for each file. A pcap dump has one file for each link type.

use std::{io, sync::Arc};

use retroscope_packet::LinkType;

use super::{
    block::Block,
    encode::DumpFormat,
    output::{CaptureOutput, EncodedPiece, KnownInterfaces},
    packet::PacketMeta,
    sink::PacketGap,
    stream::Heading,
};
#[cfg(test)]
use super::{file::DumpFile, stream::FileDigests};
use crate::intake::interfaces::RecordedInterface;

/// Encoders of the files of one dump.
#[derive(Debug)]
pub(crate) struct Captures {
    format: DumpFormat,
    heading: Heading,
    pub(super) known: KnownInterfaces,
    /// The first file, of [`Self::begin`], then the other files in the order of link types.
    pub(super) outputs: Vec<CaptureOutput>,
}

impl Captures {
    pub(crate) fn new(format: DumpFormat, heading: Heading) -> Self {
        Self {
            format,
            heading,
            known: KnownInterfaces::new(),
            outputs: Vec::new(),
        }
    }

    /// Describes an interface, before the first of its packets.
    pub(super) fn interface(&mut self, id: u16, interface: &Arc<RecordedInterface>) {
        self.known.insert(id, Arc::clone(interface));
    }

    /// Begins the first file, before any packet. Its link type is that of the first known
    /// interface, by default Ethernet.
    pub(super) fn begin(&mut self) -> io::Result<EncodedPiece> {
        let first = self.known.first_key_value();
        let link_type = first.map_or(LinkType::ETHERNET, |(_, it)| it.link_type);
        let mut output = CaptureOutput::new(self.format, link_type, &self.heading)?;
        if let Some((id, _)) = first {
            output.interface(*id, &self.known)?;
        }
        let piece = output.take(Block::default());
        self.outputs.push(output);
        Ok(piece)
    }

    /// Encodes a packet. Returns the encoder of the packet's file.
    pub(super) fn packet(
        &mut self,
        meta: &PacketMeta,
        data: &[u8],
    ) -> io::Result<&mut CaptureOutput> {
        let interface = self.known.get(&meta.interface);
        let link_type = interface.map_or(LinkType::ETHERNET, |it| it.link_type);
        let found = match self.format {
            DumpFormat::PcapNg => Some(0),
            DumpFormat::Pcap => (self.outputs.iter()).position(|it| it.link_type == link_type),
        };
        let place = match found {
            Some(place) => place,
            None => {
                let output = CaptureOutput::new(self.format, link_type, &self.heading)?;
                let others = self.outputs.get(1..).unwrap_or_default();
                let place = 1 + others.partition_point(|it| it.link_type.0 < link_type.0);
                self.outputs.insert(place, output);
                place
            }
        };
        let output = self.outputs.get_mut(place).ok_or(io::ErrorKind::NotFound)?;
        output.push(meta, data, &self.known)?;
        Ok(output)
    }

    pub(super) fn bytes(&mut self) -> usize {
        self.outputs.iter_mut().map(CaptureOutput::bytes).sum()
    }

    /// Notes that packets are missing before the next packet of the first file.
    pub(super) fn gap(&mut self, gap: &PacketGap) {
        if let Some(output) = self.outputs.first_mut() {
            output.comment(&gap.to_string());
        }
    }
}

#[cfg(test)]
impl Captures {
    pub(super) fn create(&mut self, file: &mut DumpFile) -> FileDigests {
        let (piece, mut digests) = (self.begin().unwrap(), file.digests());
        file.create(&piece).unwrap();
        digests.update(&piece);
        digests
    }

    pub(super) fn write_to(&mut self, file: &mut DumpFile, digests: &mut FileDigests) {
        for output in &mut self.outputs {
            let piece = output.take(Block::default());
            file.write(&piece).unwrap();
            digests.update(&piece);
        }
    }
}
