//! Encodes the packets of one capture file. Only [`CaptureOutput::finish`] touches the disk.
//!
//! The packets of an unordered input are in several [runs](super::runs). [`CaptureOutput::finish`]
//! merges the runs into a new file, which is in order by ring time and source. Packets of one time
//! and source keep the order in which they arrived.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::Arc,
};

use retroscope_packet::LinkType;
use retroscope_pcapfile::RecordMeta;

use super::{
    block::Block,
    disk::file_changed_error,
    encode::{DumpFormat, Encoder, VerdictField},
    names::Directory,
    packet::{PacketKey, PacketMeta},
    runs::{Runs, SortKey},
    sink::SinkEnd,
    stream::{CaptureStream, FileDigests, FinishedFile, Heading},
};
use crate::{control::packet_id::PacketId, intake::interfaces::RecordedInterface};

/// Interfaces that were described, by their ring-wide identifiers.
pub(super) type KnownInterfaces = BTreeMap<u16, Arc<RecordedInterface>>;

/// Longest comment of one packet, bytes. An option of the file cannot be longer than 64 KiB.
const COMMENT_BYTES: usize = 1000;

/// Sums over packets of a dump.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct WrittenTotals {
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    pub(crate) first_ns: Option<i64>,
    pub(crate) last_ns: Option<i64>,
    /// Packets whose time stamp the format cannot store: they have another stamp in the file.
    pub(crate) restamped: u64,
}

/// Bytes on their way to a file: the file header, whole pcapng blocks or pcap records.
#[derive(Debug)]
pub(crate) struct EncodedPiece {
    /// The link type of the file, which identifies the file among those of the dump.
    pub(super) link_type: LinkType,
    pub(super) block: Block,
    /// Packets of the file, up to the end of this piece.
    pub(super) written: WrittenTotals,
    /// Ring-wide identifiers of the interfaces that this piece describes.
    pub(super) interfaces: Vec<u16>,
    /// In the first piece of a pcapng file, the place of the verdict.
    pub(super) field: Option<VerdictField>,
}

/// Encodes one file of a dump, and completes the file on disk.
#[derive(Debug)]
pub(crate) struct CaptureOutput {
    format: DumpFormat,
    /// The one link type of a pcap file.
    pub(super) link_type: LinkType,
    heading: Heading,
    encoder: Encoder,
    /// Bytes of the file before those in the encoder.
    offset: u64,
    encoded: WrittenTotals,
    last: Option<SortKey>,
    /// All packets up to now are in order: the file is one run.
    is_sorted: bool,
    /// Ring-wide interface identifiers in the order of their interface blocks.
    pub(super) interfaces: Vec<u16>,
    /// Number of `interfaces` that were described before all packets.
    interfaces_first: usize,
    /// Number of `interfaces` that the pieces up to now describe.
    interfaces_taken: usize,
    /// The interface of each packet of a pcap file with several interfaces: pcap records have no
    /// interface.
    origins: Vec<u16>,
    /// By source: the number of a packet in the file, and the difference of stamp and ring time
    /// from that packet on, ns.
    offsets: BTreeMap<usize, Vec<(u64, i64)>>,
    /// Numbers of the marked packets in the file.
    marked: BTreeSet<u64>,
    /// The comment of the next packet, about missing packets.
    comment: Option<String>,
    /// The comments of packets, by the packet's number in the file.
    comments: BTreeMap<u64, String>,
}

impl CaptureOutput {
    pub(crate) fn new(
        format: DumpFormat,
        link_type: LinkType,
        heading: &Heading,
    ) -> io::Result<Self> {
        Ok(Self {
            format,
            link_type,
            heading: heading.clone(),
            encoder: Encoder::new(format, link_type, heading)?,
            offset: 0,
            encoded: WrittenTotals::default(),
            last: None,
            is_sorted: true,
            interfaces: Vec::new(),
            interfaces_first: 0,
            interfaces_taken: 0,
            origins: Vec::new(),
            offsets: BTreeMap::new(),
            marked: BTreeSet::new(),
            comment: None,
            comments: BTreeMap::new(),
        })
    }

    /// Encodes a packet after all earlier packets. A packet that belongs before the previous packet
    /// begins a run.
    pub(crate) fn push(
        &mut self,
        meta: &PacketMeta,
        data: &[u8],
        known: &KnownInterfaces,
    ) -> io::Result<()> {
        let place = (meta.key.time_ns, meta.key.source);
        self.is_sorted &= self.last.is_none_or(|last| last <= place);
        self.last = Some(place);
        let index = self.interfaces.iter().position(|id| *id == meta.interface);
        let index = match index {
            Some(index) => index,
            None => self.describe(meta.interface, known)?,
        };
        if self.format == DumpFormat::Pcap && self.interfaces.len() > 1 {
            // All packets before the second interface are of the first interface.
            let before = usize::try_from(self.encoder.packets).unwrap_or(usize::MAX);
            self.origins.resize(before, self.interfaces[0]);
            self.origins.push(meta.interface);
        }
        if meta.is_trigger {
            self.marked.insert(self.encoder.packets);
        }
        let offset_ns = meta.stamp_ns.wrapping_sub(meta.key.time_ns);
        let offsets = self.offsets.entry(meta.key.source).or_default();
        if offset_ns != offsets.last().map_or(0, |(_, last_ns)| *last_ns) {
            offsets.push((self.encoder.packets, offset_ns));
        }
        let is_held = self.format.holds(meta.stamp_ns);
        self.encoded.count(meta, data, is_held);
        let comment = self.comment.take();
        self.encoder.packet(index, meta, data, comment.as_deref())?;
        if let Some(comment) = comment {
            self.comments.insert(self.encoder.packets - 1, comment);
        }
        Ok(())
    }

    /// Adds a text to the comment of the next packet, after the texts of earlier calls.
    pub(crate) fn comment(&mut self, text: &str) {
        let comment = self.comment.get_or_insert_default();
        if !comment.is_empty() {
            comment.push('\n');
        }
        comment.push_str(text);
        let end = comment.floor_char_boundary(COMMENT_BYTES);
        comment.truncate(end);
    }

    /// Encodes an interface block before all packets.
    pub(crate) fn interface(&mut self, id: u16, known: &KnownInterfaces) -> io::Result<()> {
        self.describe(id, known)?;
        self.interfaces_first = self.interfaces.len();
        Ok(())
    }

    fn describe(&mut self, id: u16, known: &KnownInterfaces) -> io::Result<usize> {
        self.encoder.interface(described(known, id)?)?;
        self.interfaces.push(id);
        Ok(self.interfaces.len() - 1)
    }

    /// Bytes that were encoded and not [taken](Self::take).
    pub(crate) fn bytes(&mut self) -> usize {
        self.encoder.buffer().len()
    }

    /// Takes the memory of the current block if nothing is encoded in the block.
    pub(crate) fn give_back(&mut self) -> Option<Block> {
        let buffer = self.encoder.buffer();
        if buffer.len() > 0 {
            return None;
        }
        let block = std::mem::take(buffer);
        buffer.start(self.offset);
        Some(block)
    }

    /// Takes the encoded bytes. `next`: a block for the next bytes, whose old bytes are dropped.
    pub(crate) fn take(&mut self, next: Block) -> EncodedPiece {
        let field = match self.offset {
            0 => self.encoder.verdict_field().cloned(),
            _ => None,
        };
        let buffer = self.encoder.buffer();
        let block = std::mem::replace(buffer, next);
        self.offset += block.len() as u64;
        buffer.start(self.offset);
        let interfaces = self.interfaces[self.interfaces_taken..].to_vec();
        self.interfaces_taken = self.interfaces.len();
        EncodedPiece {
            link_type: self.link_type,
            block,
            written: self.encoded,
            interfaces,
            field,
        }
    }

    /// Completes the file on disk, still under its `.part` name: merges, adds statistics and
    /// verdict, and syncs.
    ///
    /// After an error the file of `stream` has at least the packets in [`CaptureStream::safe`].
    pub(crate) fn finish(
        mut self,
        directory: &Directory,
        (stream, digests): (&mut CaptureStream, &mut FileDigests),
        end: &SinkEnd,
        known: &KnownInterfaces,
    ) -> io::Result<FinishedFile> {
        while !self.is_sorted {
            self = self.merge(directory, (stream, digests), known)?;
        }
        for (index, id) in self.interfaces.iter().enumerate() {
            if let Some(totals) = end.totals.get(id) {
                self.encoder.statistics(index, totals)?;
            }
        }
        let last = self.take(Block::default());
        stream.write(directory, &last)?;
        digests.update(&last);
        stream.finish(directory, &end.verdict, digests)
    }

    /// Replaces the file by a new file, in which each group of up to [`FAN_IN`](super::runs) runs
    /// is one run.
    fn merge(
        &self,
        directory: &Directory,
        (stream, digests): (&mut CaptureStream, &mut FileDigests),
        known: &KnownInterfaces,
    ) -> io::Result<Self> {
        let path = stream.path().with_extension("merge.part");
        let mut merged = Self::new(self.format, self.link_type, &self.heading)?;
        // The other interfaces are described with their first packets.
        for id in self.interfaces.iter().take(self.interfaces_first) {
            merged.interface(*id, known)?;
        }
        let first = merged.take(Block::default());
        let mut into = CaptureStream::create(directory, path.clone(), &first)?;
        digests.restart(&first);
        let to = (&mut merged, &mut into, digests);
        let copied = self.merge_into(directory, stream, known, to);
        let renamed = copied.and_then(|()| directory.disk().rename(&path, stream.path()));
        if let Err(error) = renamed {
            let _ = directory.disk().remove(&path);
            return Err(error);
        }
        into.rename(stream.path());
        *stream = into;
        Ok(merged)
    }

    fn merge_into(
        &self,
        directory: &Directory,
        stream: &mut CaptureStream,
        known: &KnownInterfaces,
        (merged, into, digests): (&mut Self, &mut CaptureStream, &mut FileDigests),
    ) -> io::Result<()> {
        let mut header = Encoder::new(self.format, self.link_type, &Heading::default())?;
        for id in &self.interfaces {
            header.interface(described(known, *id)?)?;
        }
        let place = |record: &RecordMeta, packet| {
            let (key, _) = self.found(record, packet, known)?;
            Ok((key.time_ns, key.source))
        };
        let file = stream.take(directory)?;
        let mut runs = Runs::new(&*file, self.format, header.buffer().bytes(), place)?;
        let mut spare = Block::default();
        while let Some((record, data, packet)) = runs.next()? {
            let (key, interface) = self.found(&record, packet, known)?;
            let meta = PacketMeta {
                key,
                stamp_ns: record.time_ns,
                wire_len: record.wire_len,
                interface,
                direction: u8::try_from(record.flags.unwrap_or(0) & 3).unwrap_or(0),
                is_trigger: self.marked.contains(&packet),
            };
            merged.comment = self.comments.get(&packet).cloned();
            merged.push(&meta, data, known)?;
            if merged.bytes() >= directory.block_bytes {
                let piece = merged.take(std::mem::take(&mut spare));
                into.write(directory, &piece)?;
                digests.update(&piece);
                spare = piece.block;
            }
        }
        let piece = merged.take(Block::default());
        into.write(directory, &piece)?;
        digests.update(&piece);
        Ok(())
    }

    /// The place and the ring-wide interface of a packet, which has the number `packet` in the
    /// file.
    fn found(
        &self,
        record: &RecordMeta,
        packet: u64,
        known: &KnownInterfaces,
    ) -> io::Result<(PacketKey, u16)> {
        let interface = match self.format {
            DumpFormat::PcapNg => self.interfaces.get(usize::from(record.interface)).copied(),
            DumpFormat::Pcap => Some(self.origin(packet)),
        };
        let interface = interface.ok_or_else(file_changed_error)?;
        let source = described(known, interface)?.source;
        let id = self.heading.recording.zip(record.id);
        let (producer, record_number) =
            id.map_or((0, 0), |(recording, id)| recording.read(PacketId(id)));
        let key = PacketKey {
            time_ns: record.time_ns.wrapping_sub(self.offset_ns(source, packet)),
            source,
            producer,
            record: record_number,
        };
        Ok((key, interface))
    }

    /// The interface of packet `index` of a pcap file.
    fn origin(&self, index: u64) -> u16 {
        let place = usize::try_from(index).unwrap_or(usize::MAX);
        let first = self.interfaces.first();
        let origin = self.origins.get(place).or(first);
        origin.copied().unwrap_or_default()
    }

    /// Stamp minus ring time of packet `index` of the file, ns.
    fn offset_ns(&self, source: usize, index: u64) -> i64 {
        let offsets = self.offsets.get(&source).map_or(&[][..], Vec::as_slice);
        let before = offsets.partition_point(|(from, _)| *from <= index);
        before.checked_sub(1).map_or(0, |last| offsets[last].1)
    }
}

impl WrittenTotals {
    pub(crate) fn with(self, other: Self) -> Self {
        let either = |pick: fn(i64, i64) -> i64, a: Option<i64>, b: Option<i64>| {
            a.zip(b).map(|(a, b)| pick(a, b)).or(a).or(b)
        };
        Self {
            packets: self.packets + other.packets,
            bytes: self.bytes + other.bytes,
            first_ns: either(i64::min, self.first_ns, other.first_ns),
            last_ns: either(i64::max, self.last_ns, other.last_ns),
            restamped: self.restamped + other.restamped,
        }
    }

    /// Counts a packet. `is_held`: the format holds its time stamp.
    pub(super) fn count(&mut self, meta: &PacketMeta, data: &[u8], is_held: bool) {
        self.restamped += u64::from(!is_held);
        let time_ns = meta.key.time_ns;
        self.packets += 1;
        self.bytes += data.len() as u64;
        self.first_ns = Some(self.first_ns.map_or(time_ns, |t| t.min(time_ns)));
        self.last_ns = Some(self.last_ns.map_or(time_ns, |t| t.max(time_ns)));
    }
}

fn described(known: &KnownInterfaces, id: u16) -> io::Result<&RecordedInterface> {
    let interface = known.get(&id).map(|interface| &**interface);
    interface.ok_or_else(|| io::Error::other(format!("interface {id} was never described")))
}
