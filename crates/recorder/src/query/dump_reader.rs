//! Reads from dumps the packets that left the ring.
//!
//! Each dump is a sorted stream in the merge of the answer ([`AnswerMerge`]). The query opens a
//! dump when the merge reaches the dump's window. A packet's ID and the UUID of its recording show
//! whether the ring or another dump has the packet too.
//!
//! Older programs and `--reproducible` write packets without IDs, which may be in the ring or
//! another dump too. So a dump without IDs gives only packets from before the ring and before all
//! dumps with IDs.
//!
//! The query reads a file to its end, for its checksum, unless the answer ends before or the file
//! has an error.

use std::{
    borrow::Borrow,
    collections::{HashMap, hash_map::Entry},
    num::NonZeroU32,
    sync::Arc,
};

use retroscope_capture::TimeDomain;
use retroscope_ring::{InterfaceEntry, Packet, Step};

use super::{
    PacketId, Query, QueryAnswer, Recording,
    catalog::{CatalogDump, DumpCatalog, StampRange, takes_all_of, uncovered},
    contents::{QueryLosses, QueryWindow, RegionContents},
    dump_file::{CANCELLED, CheckedCaptureFile},
    matching::PacketMatcher,
    merge::{AnswerMerge, MatchedPacket, PacketBatch},
    open_files::OpenFile,
    report::{AnswerDumps, DumpAnswer},
};
use crate::{StoredFile, dump::encode::SNAPLEN, rfc3339};

/// Bytes of memory for the files that a query has open: 512 plain files, or 64 compressed files.
const MEMORY_MAX: usize = 160 << 20;
/// Most bytes of memory of a plain file: the buffer of 64 KiB, and the largest packet, 256 KiB.
const PLAIN_MEMORY: usize = 320 << 10;
/// Most bytes of memory of a file that a recorder compressed, with a window of at most 2 MiB.
const COMPRESSED_MEMORY: usize = 2560 << 10;
/// Limit on the bytes of packets in the pieces of all dumps; a piece has the packets of one time in
/// one dump.
const PIECES_BYTES_MAX: usize = 64 << 20;
const TOO_MANY_ALIKE: &str = "it has more packets of one time stamp than fit into memory";
const CUT: &str =
    "its packets have no IDs: those of times that the ring or other dumps have too are left out";
/// If the ring and dumps have this many interfaces together, dumps cannot add another interface.
const INTERFACES_MAX: usize = 4096;
const TOO_MANY_INTERFACES: &str = "it has more interfaces than an answer may have";
/// Maximum number of dumps that the report lists, and of time ranges that no dump covers.
const TOLD_MAX: usize = 64;

#[derive(Debug)]
pub(super) struct DumpReader {
    catalog: Arc<dyn DumpCatalog>,
    /// Stamps for which dumps are needed.
    pub(super) wanted: StampRange,
    sources: Vec<DumpSource>,
    /// Number of open files, and their memory in bytes.
    open: (usize, usize),
    /// Bytes of the pieces of all dumps.
    pieces_bytes: usize,
    /// Interfaces that only dumps have. In the answer, the first has number 65,535, the second
    /// 65,534.
    others: Vec<Arc<InterfaceEntry>>,
    pub(super) inspected: u64,
    /// The reason if the dumps could not be listed.
    unlisted: Option<String>,
}

#[derive(Debug)]
struct DumpSource {
    dump: CatalogDump,
    state: DumpSourceState,
    /// The number of the dump's recording in the order of packets ([`MatchedPacket::recording`]).
    recording: u32,
    /// The query takes only packets with these stamps from the dump.
    part: StampRange,
    /// Ring time of the latest packet, ns.
    last_ns: i64,
    /// Bytes of the dump's piece in the merge.
    piece_bytes: usize,
    /// By the number of an interface in the file: its number in the answer, and whether its packets
    /// may match.
    numbers: HashMap<u16, (u16, bool)>,
    is_opened: bool,
    covers: bool,
    /// Number of packets that were compared with the query: the record number of the next packet
    /// without an ID.
    read: u64,
    packets: u64,
    /// Packets in the answer that have fewer bytes than the query and the snap length of their
    /// interface allow. Counted only for dumps without `claims`.
    snapped: u64,
    fault: Option<String>,
}

#[derive(Debug)]
enum DumpSourceState {
    Waiting,
    Open(Box<CheckedCaptureFile>, OpenFile),
    Done,
}

impl DumpReader {
    /// Finds the dumps that may have packets of these stamps. Dumps with `claims` are needed only
    /// if the ring `has_evicted` packets. The ring has no packet before `ring_ns`.
    pub(super) fn new(
        catalog: &Arc<dyn DumpCatalog>,
        wanted: StampRange,
        has_evicted: bool,
        (ring_ns, recording): (i64, Recording),
    ) -> Self {
        let (mut found, unlisted) = match catalog.dumps(wanted) {
            Ok(found) => (found, None),
            Err(why) => (Vec::new(), Some(why)),
        };
        found.retain(|dump| has_evicted || dump.claims.is_none());
        found.sort_by_cached_key(|dump| (dump.span, dump.claims.is_none(), dump.id.clone()));
        let named = found.iter().filter(|dump| dump.recording.is_some());
        let first_ns = named.map(|dump| dump.span.0).fold(ring_ns, i64::min);
        let mut recordings = vec![recording.to_string()];
        let mut unnamed_from_ns = i64::MIN;
        let mut sources = Vec::new();
        for (index, dump) in (0_u32..).zip(found) {
            let (mut number, mut part) = (u32::MAX - index, wanted);
            // Another process may have changed the sidecar of a dump of this recording: if the UUID
            // differs, such a dump counts as a dump without IDs.
            let uuid = dump.recording.as_ref();
            if let Some(uuid) = uuid.filter(|it| dump.claims.is_none() || **it == recordings[0]) {
                let known = recordings.iter().position(|known| known == uuid);
                let place = known.unwrap_or_else(|| {
                    recordings.push(uuid.clone());
                    recordings.len() - 1
                });
                number = u32::try_from(place).unwrap_or(number);
            } else if dump.fault().is_none() {
                part.0 = wanted.0.max(unnamed_from_ns);
                part.1 = wanted.1.min(first_ns.saturating_sub(1));
                unnamed_from_ns = unnamed_from_ns.max(dump.span.1.saturating_add(1));
            }
            sources.push(DumpSource::new(dump, number, part));
        }
        Self {
            catalog: Arc::clone(catalog),
            wanted,
            sources,
            open: (0, 0),
            pieces_bytes: 0,
            others: Vec::new(),
            inspected: 0,
            unlisted,
        }
    }

    /// Resets all dumps, for a second pass.
    pub(super) fn again(self) -> Self {
        let again = |it: DumpSource| DumpSource {
            // If a dump had an error and gave no packet in the first pass, it is not read again.
            fault: it.fault.filter(|_| it.packets == 0),
            is_opened: it.is_opened,
            ..DumpSource::new(it.dump, it.recording, it.part)
        };
        Self {
            sources: self.sources.into_iter().map(again).collect(),
            open: (0, 0),
            pieces_bytes: 0,
            inspected: 0,
            ..self
        }
    }

    /// Adds a stream for each dump that can be read.
    pub(super) fn begin(&mut self, merge: &mut AnswerMerge, steps: &[Step]) {
        // Ring time is at most this much before a stamp.
        let most_ns = steps.iter().map(|step| step.offset_ns).fold(0, i64::max);
        for (index, source) in self.sources.iter_mut().enumerate() {
            let fault = source.fault.take();
            match source.dump.fault().or(fault) {
                Some(why) => source.fail(why),
                None => {
                    let from_ns = source.dump.span.0.saturating_sub(most_ns);
                    merge.add_dump(from_ns, index, source.dump.claims.is_some());
                }
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sources.is_empty() && self.unlisted.is_none()
    }

    /// The interface with this number in the answer, if only dumps have the interface.
    pub(super) fn entry(&self, number: u16) -> Option<Arc<InterfaceEntry>> {
        self.others.get(usize::from(u16::MAX - number)).cloned()
    }

    pub(super) fn count(
        &mut self,
        index: usize,
        packet: &MatchedPacket,
        snaplen: u32,
        query: &Query,
    ) {
        let source = &mut self.sources[index];
        let whole = match snaplen {
            0 => packet.wire_len.min(SNAPLEN),
            snaplen => packet.wire_len.min(snaplen),
        };
        let headers = query.headers.map_or(u32::MAX, NonZeroU32::get);
        let is_own = source.dump.claims.is_some();
        source.packets += 1;
        source.snapped += u64::from(!is_own && packet.captured < headers.min(whole));
    }

    /// Reads the packets of the next time in a dump, and opens the dump before its first packet. An
    /// empty piece: the dump has ended.
    pub(super) fn fill(
        &mut self,
        index: usize,
        answer: &mut QueryAnswer,
        contents: &RegionContents,
        lengths: (usize, usize),
    ) -> PacketBatch {
        if matches!(self.sources[index].state, DumpSourceState::Waiting) {
            self.open(index, answer);
        }
        let mut piece = PacketBatch::default();
        self.pieces_bytes -= std::mem::take(&mut self.sources[index].piece_bytes);
        if let Err(why) = self.read(index, &mut piece, (answer, contents, lengths)) {
            self.sources[index].fail(why);
        }
        piece.sort(0);
        self.sources[index].piece_bytes = piece.bytes();
        self.pieces_bytes += piece.bytes();
        if !self.sources[index].is_open() {
            let open = self.sources.iter().filter(|it| it.is_open());
            self.open = open.fold((0, 0), |(files, memory), it| {
                (files + 1, memory + it.memory())
            });
        }
        piece
    }

    fn open(&mut self, index: usize, answer: &QueryAnswer) {
        let source = &mut self.sources[index];
        if answer.cancel.is_cancelled() {
            return source.fail(CANCELLED.to_owned());
        }
        let (files, memory) = self.open;
        let is_room = memory + source.memory() <= MEMORY_MAX;
        let Some(place) = OpenFile::new(files).filter(|_| is_room) else {
            return source.fail(format!(
                "{files} dumps of its time are being read, and no more can be: ask for less time"
            ));
        };
        let opened = self.catalog.open(&source.dump).and_then(|(read, file)| {
            let opened = CheckedCaptureFile::new(read, file.bytes, file.sha256.clone());
            source.dump.files = vec![file];
            opened
        });
        match opened {
            Ok(file) => {
                let expression = &source.dump.expression;
                self.open = (files + 1, memory + source.memory());
                source.state = DumpSourceState::Open(Box::new(file), place);
                source.is_opened = true;
                let has_names = answer.matching.has_names() && !expression.trim().is_empty();
                source.covers = !has_names && takes_all_of(expression, &answer.query);
            }
            Err(why) => source.fail(why),
        }
    }

    fn read(
        &mut self,
        index: usize,
        piece: &mut PacketBatch,
        (answer, contents, lengths): (&mut QueryAnswer, &RegionContents, (usize, usize)),
    ) -> Result<(), String> {
        let Self {
            sources,
            others,
            wanted,
            inspected,
            pieces_bytes,
            ..
        } = self;
        let source = &mut sources[index];
        let DumpSourceState::Open(file, _) = &mut source.state else {
            return Ok(());
        };
        while let Some((meta, data, interface)) = file.peek(&answer.cancel)? {
            if !(source.part.0..=source.part.1).contains(&meta.time_ns) {
                file.step();
                continue;
            }
            let (number, is_asked) = match source.numbers.entry(meta.interface) {
                Entry::Occupied(number) => *number.get(),
                Entry::Vacant(place) => {
                    let name = (interface.name.as_str(), interface.link_type.0);
                    let found = find(&mut answer.matching, &contents.interfaces, others, name)
                        .ok_or(TOO_MANY_INTERFACES)?;
                    *place.insert(found)
                }
            };
            let entry = contents.interfaces.get(usize::from(number));
            let other = others.get(usize::from(u16::MAX - number));
            let entry = entry.or(other.map(|other| &**other));
            let Some(entry) = entry.filter(|_| is_asked) else {
                file.step();
                continue;
            };
            let (producer, record) = match (meta.id, source.recording) {
                (Some(id), 0) => answer.recording.read(PacketId(id)),
                (Some(id), _) => (0, id),
                (None, _) if source.dump.recording.is_none() => (0, source.read),
                (None, _) => return Err("it has packets without an ID".to_owned()),
            };
            // Stamp minus ring time: the stamp that a packet with ring time 0 would have.
            let offset_ns = match source.recording {
                0 => Step::stamp_ns(&contents.steps, producer, entry.clock, record, 0),
                _ => 0,
            };
            let time_ns = meta.time_ns.saturating_sub(offset_ns);
            if time_ns < source.last_ns {
                let stamp = rfc3339(meta.time_ns);
                return Err(format!(
                    "its stamps go back to {stamp}, and the rest of it is left out: a clock was set"
                ));
            }
            if !piece.is_empty() && time_ns > source.last_ns {
                return Ok(());
            }
            if !piece.is_empty() && *pieces_bytes + piece.bytes() > PIECES_BYTES_MAX {
                return Err(TOO_MANY_ALIKE.to_owned());
            }
            source.last_ns = time_ns;
            let packet = Packet {
                time_ns,
                wire_len: meta.wire_len,
                interface: number,
                direction: (meta.flags.unwrap_or(0) & 3) as u8,
                tag_restored: false,
                shard: 0,
                data,
            };
            *inspected += 1;
            source.read += 1;
            if answer.matching.takes(entry, &packet) {
                let place = (source.recording, producer, record);
                piece.push(&packet, place, meta.time_ns, lengths);
            }
            file.step();
        }
        source.state = DumpSourceState::Done;
        let (from_ns, to_ns) = source.part;
        let is_whole = from_ns <= wanted.0.max(source.dump.span.0)
            && to_ns >= wanted.1.min(source.dump.span.1);
        is_whole.then_some(()).ok_or_else(|| CUT.to_owned())
    }

    /// The stamps of which the dumps are sure to have all packets that the query asks for.
    pub(super) fn covered(&self) -> Vec<StampRange> {
        let sure = |source: &&DumpSource| source.covers && source.fault.is_none();
        let sources = self.sources.iter().filter(sure);
        let claims = sources.flat_map(|source| {
            let (from_ns, to_ns) = source.part;
            let claims = source.dump.claims.iter().flatten();
            claims.map(move |claim| (claim.0.max(from_ns), claim.1.min(to_ns)))
        });
        claims.filter(|(from_ns, to_ns)| from_ns <= to_ns).collect()
    }

    /// Adds losses because of dumps without `claims`.
    pub(super) fn add_losses(&self, window: &QueryWindow, losses: &mut QueryLosses) {
        let (from_ns, to_ns) = (
            self.wanted.0.max(window.all().0),
            self.wanted.1.min(window.to_ns),
        );
        let snapped = self.sources.iter().map(|source| source.snapped).sum();
        if snapped > 0 {
            losses.add("truncated", (from_ns, to_ns.max(from_ns)), Some(snapped));
        }
        let others = self.touched(window.to_ns);
        let others = others.filter(|source| source.dump.claims.is_none());
        if let Some(end_ns) = others.map(|source| source.dump.span.1).max() {
            losses.add(
                "not-recorded",
                (from_ns, end_ns.min(to_ns).max(from_ns)),
                None,
            );
        }
    }

    /// Dumps that were read, or should have been read, for an answer that ends with `to_ns`.
    fn touched(&self, to_ns: i64) -> impl Iterator<Item = &DumpSource> {
        let sources = self.sources.iter();
        sources.filter(move |source| {
            let is_waiting = matches!(source.state, DumpSourceState::Waiting);
            !is_waiting && source.dump.span.0 <= to_ns
        })
    }

    /// The report about the dumps, for an answer that ends with `to_ns`. `gap`: stamps that left
    /// the ring. Unless `is_named`, names and times are left out.
    pub(super) fn report(
        &self,
        to_ns: i64,
        gap: Option<StampRange>,
        is_named: bool,
    ) -> AnswerDumps {
        let left = gap.filter(|_| is_named);
        let left = left.map(|gap| uncovered(gap, &self.covered()));
        let left = left.unwrap_or_default().into_iter().take(TOLD_MAX);
        let mut report = AnswerDumps {
            uncovered: left
                .map(|(from_ns, to_ns)| [rfc3339(from_ns), rfc3339(to_ns)])
                .collect(),
            unlisted: self.unlisted.as_ref().map(|why| match is_named {
                true => why.clone(),
                false => "they cannot be listed".to_owned(),
            }),
            ..AnswerDumps::default()
        };
        for source in self.touched(to_ns) {
            report.read += u64::from(source.is_opened);
            report.failed += u64::from(source.fault.is_some());
            report.packets += source.packets;
            if is_named && report.dumps.len() < TOLD_MAX {
                report.dumps.push(source.answer());
            }
        }
        report
    }
}

impl DumpSource {
    fn new(dump: CatalogDump, recording: u32, part: StampRange) -> Self {
        Self {
            dump,
            state: DumpSourceState::Waiting,
            recording,
            part,
            last_ns: i64::MIN,
            piece_bytes: 0,
            numbers: HashMap::new(),
            is_opened: false,
            covers: false,
            read: 0,
            packets: 0,
            snapped: 0,
            fault: None,
        }
    }

    fn is_open(&self) -> bool {
        matches!(self.state, DumpSourceState::Open(..))
    }

    /// Maximum number of bytes of memory for reading the file.
    fn memory(&self) -> usize {
        match self.dump.files.iter().any(StoredFile::is_compressed) {
            true => COMPRESSED_MEMORY,
            false => PLAIN_MEMORY,
        }
    }

    fn fail(&mut self, why: String) {
        self.state = DumpSourceState::Done;
        self.fault = Some(why);
    }

    fn answer(&self) -> DumpAnswer {
        let has_claims = self.dump.claims.iter().any(|claims| !claims.is_empty());
        DumpAnswer {
            id: self.dump.id.clone(),
            files: self
                .dump
                .files
                .iter()
                .map(|file| file.name.clone())
                .collect(),
            from: self.dump.from.clone(),
            to: self.dump.to.clone(),
            packets: self.packets,
            covers: self.covers && self.fault.is_none() && has_claims,
            is_of_this_recording: self.dump.claims.is_some(),
            error: self.fault.clone(),
        }
    }
}

fn number_of(
    interfaces: &[impl Borrow<InterfaceEntry>],
    (name, link_type): (&str, u16),
) -> Option<u16> {
    let is_it =
        |entry: &InterfaceEntry| (entry.name.as_str(), entry.link_type) == (name, link_type);
    let place = interfaces.iter().position(|it| is_it(it.borrow()))?;
    u16::try_from(place).ok()
}

/// The number of a dump's interface in the answer, and whether its packets may match. `None`: there
/// are too many interfaces.
fn find(
    matching: &mut PacketMatcher,
    interfaces: &[InterfaceEntry],
    others: &mut Vec<Arc<InterfaceEntry>>,
    (name, link_type): (&str, u16),
) -> Option<(u16, bool)> {
    if let Some(number) = number_of(interfaces, (name, link_type)) {
        return Some((number, matching.asks(number)));
    }
    let known = number_of(others, (name, link_type));
    if known.is_none() && interfaces.len() + others.len() >= INTERFACES_MAX {
        return None;
    }
    let place = known.unwrap_or_else(|| {
        others.push(Arc::new(InterfaceEntry {
            name: name.to_owned(),
            link_type,
            snaplen: 0,
            time_domain: TimeDomain::File as u8,
            clock: 0,
        }));
        u16::try_from(others.len() - 1).unwrap_or(u16::MAX)
    });
    let is_asked = matching.learn_other(&others[usize::from(place)]);
    Some((u16::MAX - place, is_asked))
}
