//! One ordered capture file, written while its packets arrive.
//!
//! Each packet goes straight into the `.part` file, so that a reader sees the packet at once. The
//! packets of an unordered input are in several [runs](super::runs). The end merges the runs into a
//! new file, which is in order by ring time and source; packets of one time and source keep the
//! order in which they arrived.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use retroscope_alert::Alert;
use retroscope_packet::LinkType;
use retroscope_pcapfile::RecordMeta;

use super::{
    behind::{BLOCK_BYTES, Block},
    direct::{DIRECT_BYTES_MIN, is_in_phase},
    disk::changed_by_somebody,
    encode::{Encoder, Format},
    names::Directory,
    packet::{Key, PacketMeta},
    runs::{Place, Runs},
    sink::End,
    spaced::Spaced,
    stream::{Finished, Heading, Stream},
};
use crate::{analysis::alerts::is_alerted, intake::interfaces::Interface};

/// Interfaces that were described, by their ring-wide identifiers.
pub(super) type Known = BTreeMap<u16, Arc<Interface>>;

/// Longest comment of one packet: a few gaps. An option of the file could not be longer than 64 KiB.
const COMMENT_BYTES: usize = 1000;

/// What was written of a dump, or is to be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    pub(crate) first_ns: Option<i64>,
    pub(crate) last_ns: Option<i64>,
    /// Packets whose time stamp the format cannot hold: they have another one.
    pub(crate) restamped: u64,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Output {
    directory: Directory,
    /// The one link type of a pcap file.
    link_type: LinkType,
    heading: Heading,
    /// It holds whole blocks of the packets counted in `safe`.
    stream: Stream,
    encoder: Encoder,
    /// Packets that are wholly in the file: what a failed dump still holds.
    pub(super) safe: Written,
    /// Including what is being written, with the length of the file when it is there.
    begun: VecDeque<(u64, Written)>,
    /// Including what is not written out yet.
    appended: Written,
    /// Place of the last packet.
    last: Option<Place>,
    /// The packets are one run.
    is_sorted: bool,
    /// Ring-wide interface identifiers in the order of their interface blocks.
    pub(super) interfaces: Vec<u16>,
    /// How many of them were described without a packet.
    interfaces_first: usize,
    /// The interface of each packet of the file, as far as there are several and the format does not tell: pcap.
    origins: Vec<u16>,
    /// By source, from which packet of the file on its stamps are so far from ring time, ns.
    offsets: BTreeMap<usize, Vec<(u64, i64)>>,
    /// Which packets of the file are marked, …
    marked: BTreeSet<u64>,
    /// … and alerts that others turned out to be about.
    alerts: Vec<Arc<Alert>>,
    /// What the next packet of the file is to say of a gap before it, …
    comment: Option<String>,
    /// … and what packets say, by their place.
    comments: BTreeMap<u64, String>,
}

impl Output {
    /// Creates `part`, which must not exist, and writes the file header.
    pub(crate) fn create(
        directory: &Directory,
        part: PathBuf,
        link_type: LinkType,
        heading: &Heading,
    ) -> io::Result<Self> {
        let mut encoder = Encoder::new(directory.format, link_type, &heading.headline)?;
        let field = encoder.verdict_field().cloned();
        let header = encoder.buffer();
        let stream = Stream::create(directory, part, header.bytes(), field, &heading.expected)?;
        header.start(stream.len());
        Ok(Self {
            directory: directory.clone(),
            link_type,
            heading: heading.clone(),
            stream,
            encoder,
            safe: Written::default(),
            begun: VecDeque::new(),
            appended: Written::default(),
            last: None,
            is_sorted: true,
            interfaces: Vec::new(),
            interfaces_first: 0,
            origins: Vec::new(),
            offsets: BTreeMap::new(),
            marked: BTreeSet::new(),
            alerts: Vec::new(),
            comment: None,
            comments: BTreeMap::new(),
        })
    }

    /// Writes a packet after those before. A packet that belongs before one of them begins a run.
    pub(crate) fn push(&mut self, meta: &PacketMeta, data: &[u8], known: &Known) -> io::Result<()> {
        self.see(meta.key);
        let index = match self.index(meta.interface) {
            Some(index) => index,
            None => self.describe(meta.interface, known)?,
        };
        if self.directory.format == Format::Pcap && self.interfaces.len() > 1 {
            // All before the second one are of the first.
            let before = usize::try_from(self.encoder.packets).unwrap_or(usize::MAX);
            self.origins.resize(before, self.interfaces[0]);
            self.origins.push(meta.interface);
        }
        if meta.is_trigger {
            self.marked.insert(self.encoder.packets);
        }
        self.note(meta, data);
        let comment = self.comment.take();
        self.encoder.packet(index, meta, data, comment.as_deref())?;
        if let Some(comment) = comment {
            self.comments.insert(self.encoder.packets - 1, comment);
        }
        if self.encoder.buffer().len() < self.directory.block_bytes {
            return Ok(());
        }
        self.begin()
    }

    /// Notes the place of the next packet.
    fn see(&mut self, key: Key) {
        let place = (key.time_ns, key.source);
        self.is_sorted &= self.last.is_none_or(|last| last <= place);
        self.last = Some(place);
    }

    /// What it has of an alert is marked in the end: see [`DumpFile::mark`](super::file::DumpFile::mark).
    pub(crate) fn mark(&mut self, alert: &Arc<Alert>) {
        self.alerts.push(Arc::clone(alert));
    }

    fn is_alerted(&self, stamp_ns: i64, data: &[u8], described: &Interface) -> bool {
        let stamp_us = stamp_ns.div_euclid(1000);
        let mut about = self.alerts.iter();
        about.any(|alert| {
            alert.time_ns.div_euclid(1000) == stamp_us
                && is_alerted(alert, described.link_type, data)
        })
    }

    /// The next packet is to say this; what an earlier call said stands before it.
    pub(crate) fn comment(&mut self, text: &str) {
        let comment = self.comment.get_or_insert_default();
        if !comment.is_empty() {
            comment.push('\n');
        }
        comment.push_str(text);
        let end = comment.floor_char_boundary(COMMENT_BYTES);
        comment.truncate(end);
    }

    /// Where it is now.
    pub(crate) fn path(&self) -> &Path {
        self.stream.path()
    }

    /// The file was renamed.
    pub(crate) fn rename(&mut self, path: &Path) {
        self.stream.rename(path);
    }

    /// What tells its file from others.
    pub(crate) fn identity(&self) -> (u64, u64) {
        self.stream.identity()
    }

    /// Gives back what it keeps for more, in memory and on the disk: it has failed, and nothing more comes.
    pub(crate) fn give_memory_back(&mut self) {
        *self.encoder.buffer() = Block::default();
    }

    /// How much of it is there.
    pub(crate) fn bytes(&self) -> u64 {
        self.stream.len()
    }

    /// How many descriptors it has open.
    pub(crate) fn open_files(&self) -> usize {
        usize::from(self.stream.is_open())
    }

    /// Gives them back until they are needed.
    pub(crate) fn close_files(&mut self) {
        let is_settled = self.stream.close(&self.directory);
        self.see_settled(is_settled);
    }

    /// Writes an interface block before all packets.
    pub(crate) fn interface(&mut self, id: u16, known: &Known) -> io::Result<()> {
        self.describe(id, known)?;
        self.interfaces_first = self.interfaces.len();
        Ok(())
    }

    /// Writes an interface block; its index is returned.
    fn describe(&mut self, id: u16, known: &Known) -> io::Result<usize> {
        self.encoder.interface(described(known, id)?)?;
        self.interfaces.push(id);
        Ok(self.interfaces.len() - 1)
    }

    /// The index of an interface that was described.
    fn index(&self, id: u16) -> Option<usize> {
        self.interfaces.iter().position(|it| *it == id)
    }

    /// Takes packets that lie in a block of the file, which is written as it is, if it is worth that and begins where the file ends; otherwise each
    /// is [pushed](Self::push). Returns how many bytes are before them.
    pub(crate) fn spaced(&mut self, spaced: Spaced, known: &Known) -> io::Result<u64> {
        let from = self.stream.end() + self.encoder.buffer().len() as u64;
        let is_described = |meta: &PacketMeta| self.index(meta.interface).is_some();
        // Threads are not begun for less than a block.
        let least = match self.stream.has_threads() {
            true => DIRECT_BYTES_MIN,
            false => BLOCK_BYTES,
        };
        let is_worth = spaced.bytes().len() >= least && is_in_phase(spaced.bytes(), from);
        if !is_worth || self.comment.is_some() || !spaced.metas().all(is_described) {
            for (meta, data) in spaced.packets() {
                self.push(meta, data, known)?;
            }
            return Ok(from);
        }
        if from > self.stream.end() {
            self.begin()?;
        }
        let block = spaced.fill(|meta, head, data, tail| {
            self.see(meta.key);
            let index = self.index(meta.interface).ok_or(io::ErrorKind::NotFound)?;
            self.note(meta, data);
            (self.encoder).packet_in_place(index, meta, (head, data.len(), tail))
        })?;
        let end = from + block.len() as u64;
        self.begun.push_back((end, self.appended));
        let begun = self.stream.begin_block(&self.directory, block);
        self.see_settled(begun.is_ok());
        self.encoder.buffer().start(self.stream.end());
        if let Some(written) = begun? {
            self.directory.behind.take_back(written);
        }
        Ok(from)
    }

    /// Begins to write what is encoded.
    fn begin(&mut self) -> io::Result<()> {
        let block = self.encoder.buffer();
        self.begun
            .push_back((self.stream.end() + block.len() as u64, self.appended));
        let begun = self.stream.begin(&self.directory, block);
        self.see_settled(begun.is_ok());
        begun
    }

    /// Takes note of a packet that is encoded next.
    fn note(&mut self, meta: &PacketMeta, data: &[u8]) {
        let offset_ns = meta.stamp_ns.wrapping_sub(meta.key.time_ns);
        let offsets = self.offsets.entry(meta.key.source).or_default();
        if offset_ns != offsets.last().map_or(0, |(_, last_ns)| *last_ns) {
            offsets.push((self.encoder.packets, offset_ns));
        }
        let is_held = self.directory.format.holds(meta.stamp_ns);
        self.appended.count(meta, data, is_held);
    }

    /// What of that which was begun is there now. `may_follow`: the rest may still come.
    fn see_settled(&mut self, may_follow: bool) {
        let len = self.stream.len();
        while let Some((_, written)) = self.begun.pop_front_if(|(end, _)| *end <= len) {
            self.safe = written;
        }
        if !may_follow {
            self.begun.clear();
        }
    }

    /// Hands everything to the file system.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        let flushed = self.stream.flush(&self.directory, self.encoder.buffer());
        self.see_settled(flushed.is_ok());
        flushed?;
        self.safe = self.appended;
        Ok(())
    }

    /// Completes the file on disk, still under its `.part` name: merged, with statistics and verdict, synced.
    ///
    /// After an error the file holds what is [`Self::safe`].
    pub(crate) fn finish(&mut self, end: &End, known: &Known) -> io::Result<Finished> {
        if !self.alerts.is_empty() && self.directory.format == Format::PcapNg {
            *self = self.merge(known)?;
        }
        while !self.is_sorted {
            *self = self.merge(known)?;
        }
        for (index, id) in self.interfaces.iter().enumerate() {
            if let Some(totals) = end.totals.get(id) {
                self.encoder.statistics(index, totals)?;
            }
        }
        self.flush()?;
        self.stream.finish(&self.directory, &end.verdict)
    }

    /// Replaces the file by a new file, in which as many runs are merged as one pass can merge.
    fn merge(&mut self, known: &Known) -> io::Result<Self> {
        self.flush()?;
        let path = self.path().with_extension("merge.part");
        let merged = self.merge_into(&path, known);
        match merged {
            Ok(mut merged) => {
                self.directory.disk().rename(&path, self.path())?;
                merged.rename(self.path());
                Ok(merged)
            }
            Err(error) => {
                let _ = self.directory.disk().remove(&path);
                Err(error)
            }
        }
    }

    fn merge_into(&mut self, path: &Path, known: &Known) -> io::Result<Self> {
        let format = self.directory.format;
        let mut merged = Self::create(
            &self.directory,
            path.to_owned(),
            self.link_type,
            &self.heading,
        )?;
        // The others come with their first packets, in whatever run these are.
        for id in self.interfaces.iter().take(self.interfaces_first) {
            merged.interface(*id, known)?;
        }
        let file = self.stream.take(&self.directory)?;
        let mut header = Encoder::new(format, self.link_type, "")?;
        for id in &self.interfaces {
            header.interface(described(known, *id)?)?;
        }
        let place = |record: &RecordMeta, packet| {
            let (key, _) = self.found(record, packet, known)?;
            Ok((key.time_ns, key.source))
        };
        let mut runs = Runs::new(&*file, format, header.buffer().bytes(), place)?;
        while let Some((record, data, packet)) = runs.next()? {
            let (key, interface) = self.found(&record, packet, known)?;
            let is_marked = self.marked.contains(&packet)
                || self.is_alerted(record.time_ns, data, described(known, interface)?);
            let meta = PacketMeta {
                key,
                stamp_ns: record.time_ns,
                wire_len: record.wire_len,
                interface,
                direction: u8::try_from(record.flags.unwrap_or(0) & 3).unwrap_or(0),
                is_trigger: is_marked,
            };
            merged.comment = self.comments.get(&packet).cloned();
            merged.push(&meta, data, known)?;
        }
        Ok(merged)
    }

    /// The place and the ring-wide interface of a packet of the file, which has this number there.
    fn found(&self, record: &RecordMeta, packet: u64, known: &Known) -> io::Result<(Key, u16)> {
        let interface = match self.directory.format {
            Format::PcapNg => self.interfaces.get(usize::from(record.interface)).copied(),
            Format::Pcap => Some(self.origin(packet)),
        };
        let interface = interface.ok_or_else(changed_by_somebody)?;
        let source = described(known, interface)?.source;
        let key = Key {
            time_ns: record.time_ns.wrapping_sub(self.offset_ns(source, packet)),
            source,
            producer: 0,
            record: 0,
        };
        Ok((key, interface))
    }
}

impl Output {
    /// The interface of packet `index` of a pcap file.
    fn origin(&self, index: u64) -> u16 {
        let place = usize::try_from(index).unwrap_or(usize::MAX);
        let first = self.interfaces.first();
        let origin = self.origins.get(place).or(first);
        origin.copied().unwrap_or_default()
    }

    /// Stamp less ring time of packet `index` of the file, ns.
    fn offset_ns(&self, source: usize, index: u64) -> i64 {
        let offsets = self.offsets.get(&source).map_or(&[][..], Vec::as_slice);
        let before = offsets.partition_point(|(from, _)| *from <= index);
        before.checked_sub(1).map_or(0, |last| offsets[last].1)
    }
}

impl Written {
    /// The sum of two files.
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

fn described(known: &Known, id: u16) -> io::Result<&Interface> {
    let interface = known.get(&id).map(|interface| &**interface);
    interface.ok_or_else(|| io::Error::other(format!("interface {id} was never described")))
}
