//! One ordered capture file, written while its packets arrive.
//!
//! Packets that come in order go straight into the `.part` file, so that a reader sees them at once. One that belongs
//! before what is already written (a late packet of an unordered input) is put aside, with many others into a `.late.part` file; if there
//! were any, the end merges both into a fresh file. Order is by [`Key`]; the merge knows the main file's packets by time and source
//! only, and puts them before late ones of the same time and source, which arrived after them.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use retroscope_packet::LinkType;
use retroscope_pcapfile::Reader;

use super::{
    behind::{BLOCK_BYTES, Block},
    direct::{DIRECT_BYTES_MIN, is_in_phase},
    disk::KeptFile,
    encode::{Encoder, Format},
    names::Directory,
    packet::{Key, PacketMeta},
    sink::End,
    spaced::Spaced,
    stream::{Finished, Heading, Stream},
};
use crate::intake::interfaces::Interface;

/// Interfaces that were described, by their ring-wide identifiers.
pub(super) type Known = BTreeMap<u16, Arc<Interface>>;

/// Bytes of late packets that are collected before a write(2).
const LATE_BYTES: usize = 256 * 1024;
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
    last: Option<Key>,
    /// Ring-wide interface identifiers in the order of their interface blocks.
    pub(super) interfaces: Vec<u16>,
    /// How many of them were described without a packet.
    interfaces_first: usize,
    /// The interface of each packet of the file, as far as there are several and the format does not tell: pcap.
    origins: Vec<u16>,
    /// By source, from which packet of the file on its stamps are so far from ring time, ns.
    offsets: BTreeMap<usize, Vec<(u64, i64)>>,
    /// Which packets of the file are marked.
    marked: BTreeSet<u64>,
    /// What the next packet of the file is to say of a gap before it, …
    comment: Option<String>,
    /// … and what packets say, by their place.
    comments: BTreeMap<u64, String>,
    late: Option<LateSpool>,
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
            interfaces: Vec::new(),
            interfaces_first: 0,
            origins: Vec::new(),
            offsets: BTreeMap::new(),
            marked: BTreeSet::new(),
            comment: None,
            comments: BTreeMap::new(),
            late: None,
        })
    }

    /// Takes a packet, wherever it belongs. `aside`: older ones may follow, and it waits for the end.
    pub(crate) fn push(
        &mut self,
        meta: &PacketMeta,
        data: &[u8],
        aside: bool,
        known: &Known,
    ) -> io::Result<()> {
        let spooled = self.late.as_ref();
        if aside
            || self.last.is_some_and(|last| meta.key < last)
            || spooled.is_some_and(|late| late.is_before(meta.key))
        {
            let late = match &mut self.late {
                Some(late) => late,
                None => {
                    let path = self.path().with_extension("late.part");
                    let spool = LateSpool::new(&self.directory, path);
                    self.late.insert(spool)
                }
            };
            late.push(meta, data)?;
        } else {
            self.append(meta, data, known)?;
            self.last = Some(meta.key);
        }
        Ok(())
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
        self.late = None;
        *self.encoder.buffer() = Block::default();
    }

    /// How much of it is there.
    pub(crate) fn bytes(&self) -> u64 {
        self.stream.len()
    }

    /// How many descriptors it has open.
    pub(crate) fn open_files(&self) -> usize {
        let late = self.late.as_ref().and_then(|late| late.file.as_ref());
        let is_late_open = late.is_some_and(KeptFile::is_open);
        usize::from(is_late_open) + usize::from(self.stream.is_open())
    }

    /// Gives them back until they are needed.
    pub(crate) fn close_files(&mut self) {
        let is_settled = self.stream.close(&self.directory);
        self.see_settled(is_settled);
        if let Some(file) = self.late.as_mut().and_then(|late| late.file.as_mut()) {
            file.close();
        }
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

    /// Takes packets that lie in a block of the file, which is written as it is, if it is worth that, begins where the file ends, and has nothing late; otherwise each
    /// is [pushed](Self::push). Returns how many bytes are before them.
    pub(crate) fn spaced(&mut self, spaced: Spaced, known: &Known) -> io::Result<u64> {
        let from = self.stream.end() + self.encoder.buffer().len() as u64;
        let mut last = self.last;
        let mut metas = spaced.metas();
        let is_next = |meta: &PacketMeta| {
            let is_late = last.is_some_and(|last| meta.key < last)
                || (self.late.as_ref()).is_some_and(|late| late.is_before(meta.key));
            last = Some(meta.key);
            !is_late && self.index(meta.interface).is_some()
        };
        // Threads are not begun for less than a block.
        let least = match self.stream.has_threads() {
            true => DIRECT_BYTES_MIN,
            false => BLOCK_BYTES,
        };
        let is_worth = spaced.bytes().len() >= least && is_in_phase(spaced.bytes(), from);
        if !is_worth || self.comment.is_some() || !metas.all(is_next) {
            drop(metas);
            for (meta, data) in spaced.packets() {
                self.push(meta, data, false, known)?;
            }
            return Ok(from);
        }
        drop(metas);
        if from > self.stream.end() {
            self.begin()?;
        }
        self.last = last;
        let block = spaced.fill(|meta, head, data, tail| {
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

    fn append(&mut self, meta: &PacketMeta, data: &[u8], known: &Known) -> io::Result<()> {
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
        if let Some(late) = self.late.take() {
            *self = self.merge(late, known)?;
        }
        for (index, id) in self.interfaces.iter().enumerate() {
            if let Some(totals) = end.totals.get(id) {
                self.encoder.statistics(index, totals)?;
            }
        }
        self.flush()?;
        self.stream.finish(&self.directory, &end.verdict)
    }

    /// Writes main and late packets into a new file, in order, and puts it in the place of the old one.
    fn merge(&mut self, late: LateSpool, known: &Known) -> io::Result<Self> {
        self.flush()?;
        let path = self.path().with_extension("merge.part");
        let merged = self.merge_into(&path, late, known);
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

    fn merge_into(&mut self, path: &Path, late: LateSpool, known: &Known) -> io::Result<Self> {
        let mut merged = Self::create(
            &self.directory,
            path.to_owned(),
            self.link_type,
            &self.heading,
        )?;
        // The others come with their first packets: what came late changes nothing in their order.
        for id in self.interfaces.iter().take(self.interfaces_first) {
            merged.interface(*id, known)?;
        }
        let main = self.stream.take(&self.directory)?;
        let mut main = Reader::new(main.reader()).map_err(io::Error::other)?;
        let mut late = late.into_sorted()?;
        let mut next_late = late.next()?;
        let mut index = 0;
        while let Some(record) = main.next().map_err(io::Error::other)? {
            let in_file = record.meta;
            let interface = match self.directory.format {
                Format::PcapNg => self.interfaces[usize::from(in_file.interface)],
                Format::Pcap => self.origin(index),
            };
            let described = described(known, interface)?;
            let source = described.source;
            let time_ns = in_file.time_ns.wrapping_sub(self.offset_ns(source, index));
            while let Some((meta, data)) = next_late.as_ref()
                && (meta.key.time_ns, meta.key.source) < (time_ns, source)
            {
                merged.append(meta, data, known)?;
                next_late = late.next()?;
            }
            let key = Key {
                time_ns,
                source,
                producer: 0,
                record: 0,
            };
            let meta = PacketMeta {
                key,
                stamp_ns: in_file.time_ns,
                wire_len: in_file.wire_len,
                interface,
                direction: u8::try_from(in_file.flags.unwrap_or(0) & 3).unwrap_or(0),
                is_trigger: self.marked.contains(&index),
            };
            merged.comment = self.comments.remove(&index);
            merged.append(&meta, record.data, known)?;
            index += 1;
        }
        while let Some((meta, data)) = next_late {
            merged.append(&meta, &data, known)?;
            next_late = late.next()?;
        }
        Ok(merged)
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

/// Late packets in order of arrival: bytes in a file of their own where they are many, 64 bytes of index each in memory. The file goes with
/// it.
#[derive(Debug)]
struct LateSpool {
    directory: Directory,
    path: PathBuf,
    /// From the first bytes on that are written to it.
    file: Option<KeptFile>,
    /// Bytes of the file.
    written: u64,
    /// What is to follow there.
    buffer: Vec<u8>,
    /// Where each begins in the file, and how long it is.
    index: VecDeque<(PacketMeta, u64, usize)>,
    /// By source, the newest of them, ns.
    newest_ns: HashMap<usize, i64>,
}

impl LateSpool {
    fn new(directory: &Directory, path: PathBuf) -> Self {
        Self {
            directory: directory.clone(),
            path,
            file: None,
            written: 0,
            buffer: Vec::new(),
            index: VecDeque::new(),
            newest_ns: HashMap::new(),
        }
    }

    /// Whether it has packets of the same source that belong before this one, though the merge cannot tell: of the same time, they
    /// were put aside when they came.
    fn is_before(&self, key: Key) -> bool {
        let newest_ns = self.newest_ns.get(&key.source);
        newest_ns.is_some_and(|newest_ns| key.time_ns <= *newest_ns)
    }

    fn push(&mut self, meta: &PacketMeta, data: &[u8]) -> io::Result<()> {
        let Key {
            source, time_ns, ..
        } = meta.key;
        let newest_ns = self.newest_ns.entry(source).or_insert(time_ns);
        *newest_ns = time_ns.max(*newest_ns);
        let offset = self.written + self.buffer.len() as u64;
        self.index.push_back((*meta, offset, data.len()));
        self.buffer.extend_from_slice(data);
        if self.buffer.len() >= LATE_BYTES {
            self.flush()
        } else {
            Ok(())
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        let disk = self.directory.disk();
        let file = match &mut self.file {
            Some(file) => file,
            None => self.file.insert(KeptFile::create(disk, self.path.clone())?),
        };
        let (file, buffer) = (file.get(disk)?, &self.buffer);
        (self.directory).with_room(buffer.len(), || file.write_all_at(buffer, self.written))?;
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// All of it is there, to be taken in order.
    fn into_sorted(mut self) -> io::Result<Self> {
        if self.file.is_some() {
            self.flush()?;
        }
        let index = self.index.make_contiguous();
        index.sort_by_key(|(meta, ..)| meta.key);
        Ok(self)
    }

    /// Takes the next packet.
    fn next(&mut self) -> io::Result<Option<(PacketMeta, Vec<u8>)>> {
        let Some((meta, offset, length)) = self.index.pop_front() else {
            return Ok(None);
        };
        let mut data = vec![0; length];
        match &mut self.file {
            Some(file) => file
                .get(self.directory.disk())?
                .read_exact_at(&mut data, offset)?,
            None => {
                let from = usize::try_from(offset).map_err(io::Error::other)?;
                data.copy_from_slice(&self.buffer[from..from + length]);
            }
        }
        Ok(Some((meta, data)))
    }
}

impl Drop for LateSpool {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            // What cannot be removed holds nothing that anybody needs.
            let _ = self.directory.disk().remove(&file.path);
        }
    }
}
