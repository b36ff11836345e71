//! Encodes packets as bytes of a capture file.
//!
//! The encoders write into memory. The first comment of a pcapng file is the dump's headline. The
//! second comment is the verdict, a field of fixed length that says `unfinished` and is overwritten
//! in place at the end. If packets have IDs, the third comment is the UUID of the recording.

use std::io;

use retroscope_capture::TimeDomain;
use retroscope_packet::LinkType;
use retroscope_pcapfile::{
    FileInterface as InterfaceBlock, InterfaceStatistics, PacketOptions, PcapNgWriter, PcapOptions,
    PcapWriter, SectionOptions, WriteError,
};

use super::{
    block::Block,
    disk::{DiskFile, file_changed_error},
    packet::PacketMeta,
    report::PROGRAM,
    stream::Heading,
};
use crate::{control::packet_id::Recording, intake::interfaces::RecordedInterface};

/// The file format of dumps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DumpFormat {
    /// pcapng: interfaces, comments, statistics, verdict.
    PcapNg,
    /// pcap with ns stamps: one link type for each file; only the sidecar has the verdict.
    Pcap,
}

impl DumpFormat {
    pub(super) fn extension(self) -> &'static str {
        match self {
            Self::PcapNg => "pcapng",
            Self::Pcap => "pcap",
        }
    }

    /// Whether the format can store this time stamp.
    pub(super) fn holds(self, time_ns: i64) -> bool {
        match self {
            Self::PcapNg => time_ns >= 0,
            // Unsigned seconds of 32 bits.
            Self::Pcap => u32::try_from(time_ns.div_euclid(1_000_000_000)).is_ok(),
        }
    }
}

/// Counters for the statistics block of an interface. `None`: unknown.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InterfaceTotals {
    /// Start of the recording, ns since the epoch. From files: the time of the earliest packet.
    pub(crate) start_ns: i64,
    /// When the dump's window was closed, ns since the epoch.
    pub(crate) end_ns: i64,
    /// Packets since the start that reached the engine; from files, recorded packets.
    pub(crate) received: Option<u64>,
    /// Packets since the start that were lost.
    pub(crate) dropped: Option<u64>,
    /// Packets of the interface in the dump.
    pub(crate) written: u64,
}

/// The snap length of all interface blocks: the most bytes of a packet that the ring stores. All
/// blocks have the same snap length, because libpcap refuses files with several.
pub(crate) const SNAPLEN: u32 = 262_144;
/// Longest headline, bytes. A dump expression can be longer than an option of the file may be.
const HEADLINE_BYTES: usize = 4000;
/// Length of the verdict's field, bytes.
const VERDICT_BYTES: usize = 240;
/// The text of the verdict's field until the dump is finished.
const UNFINISHED: &str = "verdict: unfinished";
/// Bytes of a block's type and length.
const BLOCK_START_BYTES: usize = 8;

/// Encodes the blocks of one capture file.
#[derive(Debug)]
pub(crate) struct Encoder {
    kind: EncoderKind,
    recording: Option<Recording>,
    /// Number of encoded packets.
    pub(super) packets: u64,
}

#[derive(Debug)]
enum EncoderKind {
    PcapNg(PcapNgWriter<Block>, VerdictField),
    Pcap(PcapWriter<Block>),
}

impl Encoder {
    /// Encodes the file header. `link_type` matters to pcap only.
    pub(crate) fn new(
        format: DumpFormat,
        link_type: LinkType,
        heading: &Heading,
    ) -> io::Result<Self> {
        let kind = match format {
            DumpFormat::Pcap => {
                let mut options = PcapOptions::new(link_type);
                options.snaplen = SNAPLEN;
                EncoderKind::Pcap(PcapWriter::new(Block::default(), options).map_err(plain)?)
            }
            DumpFormat::PcapNg => {
                let more = Some(field(UNFINISHED))
                    .into_iter()
                    .chain(heading.recording.map(comment));
                let options = section(&heading.headline, more);
                let mut writer = PcapNgWriter::new(Block::default(), &options).map_err(plain)?;
                let field = VerdictField::of(writer.inner_mut().bytes());
                let field = field.ok_or_else(|| io::Error::other("no verdict field"))?;
                EncoderKind::PcapNg(writer, field)
            }
        };
        Ok(Self {
            kind,
            recording: heading.recording,
            packets: 0,
        })
    }

    /// Encodes an interface block; pcap has no such block.
    pub(crate) fn interface(&mut self, interface: &RecordedInterface) -> io::Result<()> {
        let EncoderKind::PcapNg(writer, _) = &mut self.kind else {
            return Ok(());
        };
        let block = InterfaceBlock {
            name: interface.name.clone(),
            description: description(interface),
            snaplen: SNAPLEN,
            ..InterfaceBlock::new(interface.link_type)
        };
        writer.add_interface(&block).map(drop).map_err(plain)
    }

    /// Encodes a packet of the interface with this index; pcap cannot store the comment.
    pub(crate) fn packet(
        &mut self,
        interface: usize,
        meta: &PacketMeta,
        data: &[u8],
        comment: Option<&str>,
    ) -> io::Result<()> {
        let time_ns = meta.stamp_ns;
        self.packets += 1;
        match &mut self.kind {
            EncoderKind::Pcap(writer) => writer.record(time_ns, meta.wire_len, data),
            EncoderKind::PcapNg(writer, _) => {
                let id = |recording: Recording| recording.id(meta.key.producer, meta.key.record).0;
                let mut options = PacketOptions {
                    flags: (meta.direction != 0).then(|| u32::from(meta.direction)),
                    id: self.recording.map(id),
                    ..PacketOptions::default()
                };
                let both = [comment.unwrap_or_default(), "retroscope: trigger packet"];
                options.comments = match (comment, meta.is_trigger) {
                    (None, false) => &[],
                    (Some(_), false) => &both[..1],
                    (None, true) => &both[1..],
                    (Some(_), true) => &both,
                };
                let index = u32::try_from(interface).map_err(io::Error::other)?;
                writer.packet(index, time_ns, meta.wire_len, data, &options)
            }
        }
        .map_err(plain)
    }

    /// Encodes an interface's statistics block; pcap has no such block.
    pub(crate) fn statistics(
        &mut self,
        interface: usize,
        totals: &InterfaceTotals,
    ) -> io::Result<()> {
        let EncoderKind::PcapNg(writer, _) = &mut self.kind else {
            return Ok(());
        };
        let statistics = InterfaceStatistics {
            time_ns: totals.end_ns,
            start_ns: Some(totals.start_ns.min(totals.end_ns)),
            end_ns: Some(totals.end_ns),
            received: totals.received,
            dropped: totals.dropped,
            os_dropped: None,
            delivered: Some(totals.written),
        };
        writer
            .statistics(
                u32::try_from(interface).map_err(io::Error::other)?,
                &statistics,
                &[],
            )
            .map_err(plain)
    }

    pub(super) fn buffer(&mut self) -> &mut Block {
        match &mut self.kind {
            EncoderKind::PcapNg(writer, _) => writer.inner_mut(),
            EncoderKind::Pcap(writer) => writer.inner_mut(),
        }
    }

    /// The place of the verdict in the file's header. `None` for pcap.
    pub(crate) fn verdict_field(&self) -> Option<&VerdictField> {
        match &self.kind {
            EncoderKind::PcapNg(_, field) => Some(field),
            EncoderKind::Pcap(_) => None,
        }
    }
}

/// The place and the current text of the verdict in a file. Packets may hold any bytes, so the
/// place is remembered and not searched.
#[derive(Debug, Clone)]
pub(crate) struct VerdictField {
    /// Type and length of the section header block that has the field.
    block_start: [u8; BLOCK_START_BYTES],
    /// Bytes of the file before the field.
    offset: u64,
    /// The text in the field, [`VERDICT_BYTES`] bytes.
    text: String,
}

impl VerdictField {
    /// Finds the field in a section header block: the last text of its form, because a headline
    /// before it may quote the text.
    fn of(header: &[u8]) -> Option<Self> {
        let text = field(UNFINISHED);
        let mut places = header.windows(VERDICT_BYTES);
        Some(Self {
            block_start: *header.first_chunk()?,
            offset: places.rposition(|place| place == text.as_bytes())? as u64,
            text,
        })
    }

    /// A copy of `header`, the first bytes of the file, with this verdict in the field.
    pub(crate) fn filled(&self, header: &[u8], verdict: &str) -> Vec<u8> {
        let mut header = header.to_vec();
        let offset = usize::try_from(self.offset).unwrap_or(usize::MAX);
        if let Some(place) = header
            .get_mut(offset..)
            .and_then(|it| it.get_mut(..VERDICT_BYTES))
        {
            place.copy_from_slice(field(verdict).as_bytes());
        }
        header
    }

    /// Overwrites the field in the file. If the field or the start of the block is not as expected,
    /// another process changed the file: writes nothing and returns an error.
    pub(crate) fn write(&mut self, file: &dyn DiskFile, verdict: &str) -> io::Result<()> {
        let mut block_start = [0; BLOCK_START_BYTES];
        let mut found = [0; VERDICT_BYTES];
        let read = file
            .read_exact_at(&mut block_start, 0)
            .and_then(|()| file.read_exact_at(&mut found, self.offset));
        let is_short = |error: &io::Error| error.kind() == io::ErrorKind::UnexpectedEof;
        match read {
            Err(error) if !is_short(&error) => return Err(error),
            Ok(()) if block_start == self.block_start && found == *self.text.as_bytes() => {}
            _ => return Err(file_changed_error()),
        }
        let text = field(verdict);
        file.write_all_at(text.as_bytes(), self.offset)?;
        self.text = text;
        Ok(())
    }
}

/// The section header of a pcapng file: a headline and further comments.
pub(crate) fn section(headline: &str, more: impl IntoIterator<Item = String>) -> SectionOptions {
    let headline = shortened(headline, HEADLINE_BYTES).to_owned();
    SectionOptions {
        os: std::env::consts::OS.to_owned(),
        application: PROGRAM.to_owned(),
        comments: std::iter::once(headline).chain(more).collect(),
        ..SectionOptions::default()
    }
}

/// The comment of a file in which packets have IDs.
pub(crate) fn comment(recording: Recording) -> String {
    format!("recording: {recording}")
}

/// The text in exactly [`VERDICT_BYTES`] bytes: cut if it is too long, else filled up with spaces.
fn field(text: &str) -> String {
    let text = shortened(text, VERDICT_BYTES - 1);
    let fill = VERDICT_BYTES - text.len();
    format!("{text}{}", " ".repeat(fill))
}

fn shortened(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}

/// The system's error in a [`WriteError`], if any.
pub(crate) fn plain(error: WriteError) -> io::Error {
    match error {
        WriteError::Io { error, .. } => error,
        other => io::Error::other(other),
    }
}

/// A description of an interface's time stamps. Empty for exact stamps of a file.
fn description(interface: &RecordedInterface) -> String {
    let steps = match interface.time_resolution_ns {
        0 | 1 => String::new(),
        ns => format!(" in steps of {ns} ns"),
    };
    match interface.time_domain {
        TimeDomain::File if steps.is_empty() => steps,
        TimeDomain::File => format!("time stamps{steps}"),
        domain => format!("time stamps: {}{steps}", domain.as_str()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_between_characters() {
        assert_eq!(shortened("aé", 2), "a");
        assert_eq!(field("verdict: é").len(), VERDICT_BYTES);
    }
}
