//! Packets that have left the ring, from dumps that hold them.
//!
//! The files are read side by side, in the order of stamps, each from when its window begins, and
//! none with a lock held. All packets of one stamp are looked at together: one that several dumps
//! hold, or the ring does too, is given once. Dumps hold no numbers of packets, so a packet is
//! known by its interface, direction, length and bytes; of two that are alike in one dump, both
//! are given. A file is read to its end, for its checksum, unless a limit ends the answer before:
//! then it is taken for what it was so far. Memory: [`MEMORY_MAX`] for the files that are open,
//! and the packets of one stamp.

use std::{
    collections::{BTreeSet, HashMap, VecDeque, hash_map::Entry},
    io,
    sync::Arc,
};

use retroscope_capture::TimeDomain;
use retroscope_ring::{InterfaceEntry, Packet};

use super::{
    Cancel, Query,
    contents::{Losses, Window},
    dump_file::{CANCELLED, DumpFile},
    giving::Given,
    matching::Matching,
    merge::Found,
    open_files::OpenFile,
    report::{DumpAnswer, FromDumps},
    shelf::{Shelf, Shelved, Stretch, takes_all_of, uncovered},
};
use crate::{StoredFile, dump::encode::SNAPLEN, rfc3339};

/// Bytes of memory for the files that a query has open: 512 plain files, or 64 compressed files.
const MEMORY_MAX: usize = 160 << 20;
/// Most bytes of memory of a plain file: the buffer of 64 KiB, and the largest packet, 256 KiB.
const PLAIN_MEMORY: usize = 320 << 10;
/// Most bytes of memory of a compressed file, which has a window of 2 MiB in addition.
const COMPRESSED_MEMORY: usize = 2560 << 10;
/// Packets of one stamp, and bytes of them, that are held together: all of a stamp are looked at at once. Files of others may have only one.
const BATCH_MAX: usize = 65_536;
const BATCH_BYTES_MAX: usize = 64 << 20;
const TOO_MANY_ALIKE: &str = "it has more packets of one time stamp than are compared";
/// Interfaces of an answer.
const INTERFACES_MAX: usize = 4096;
const TOO_MANY_INTERFACES: &str = "it has more interfaces than an answer may have";
/// Dumps that are told by name, and stretches that no dump covers.
const TOLD_MAX: usize = 64;
/// Bytes of a packet that its hash goes by: where a snap length is larger, two copies of it have the same.
const HASHED_BYTES: usize = 64;
/// Packets of one stamp that are searched one by one.
const SEARCHED_MAX: usize = 16;
/// Who has a packet as well, if not a dump.
const RING: usize = usize::MAX;

/// See the module.
#[derive(Debug)]
pub(super) struct Dumped {
    shelf: Arc<dyn Shelf>,
    /// Stamps that are wanted of dumps.
    pub(super) wanted: Stretch,
    sources: Vec<Source>,
    /// What comes next: stamp; whether that is of a packet, or the start of a dump that is not open; which dump.
    queue: BTreeSet<(i64, bool, usize)>,
    /// Files that are open, and their memory.
    open: (usize, usize),
    /// Packets of one stamp that are ready, …
    batch: Vec<Held>,
    batch_ns: Option<i64>,
    batch_bytes: usize,
    /// … where they are, by hash, if there are many, …
    places: HashMap<u64, VecDeque<usize>>,
    /// … and the last stamp that any were ready of.
    ready_ns: i64,
    /// Interfaces that the ring does not have, from number 65,535 down.
    others: Vec<InterfaceEntry>,
    pub(super) inspected: u64,
    /// Why there are none.
    unlisted: Option<String>,
}

/// What it takes to judge a packet of a dump.
pub(super) struct Asking<'a> {
    pub(super) query: &'a Query,
    pub(super) matching: &'a mut Matching,
    /// Those of the ring.
    pub(super) interfaces: &'a [InterfaceEntry],
    pub(super) cancel: &'a Cancel,
}

/// Who is given packets.
pub(super) type Give<'g> = &'g mut dyn FnMut(&InterfaceEntry, &Found, &[u8]) -> io::Result<Given>;

#[derive(Debug)]
struct Source {
    dump: Shelved,
    state: State,
    /// Its next packet.
    next: Option<Held>,
    /// By number of an interface in the file, that in the answer and whether its packets are asked for.
    numbers: HashMap<u16, (u16, bool)>,
    covers: bool,
    packets: u64,
    /// Packets that it has less of than their interface gives.
    snapped: u64,
    fault: Option<String>,
}

#[derive(Debug)]
enum State {
    Waiting,
    Open(Box<DumpFile>, OpenFile),
    Done,
}

/// A packet that a dump has.
#[derive(Debug)]
struct Held {
    stamp_ns: i64,
    interface: u16,
    direction: u8,
    wire_len: u32,
    data: Vec<u8>,
    source: usize,
    /// The dump that last brought this packet, or [`RING`]: the next one alike of the same dump is another packet.
    claimed: usize,
    is_given: bool,
}

impl Held {
    fn is(&self, other: &Key<'_>) -> bool {
        let len = self.data.len().min(other.data.len());
        (self.interface, self.direction, self.wire_len)
            == (other.interface, other.direction, other.wire_len)
            && self.data[..len] == other.data[..len]
    }

    fn key(&self) -> Key<'_> {
        Key {
            interface: self.interface,
            direction: self.direction,
            wire_len: self.wire_len,
            data: &self.data,
        }
    }
}

/// What tells a packet from others of its stamp.
#[derive(Debug, Clone, Copy)]
struct Key<'a> {
    interface: u16,
    direction: u8,
    wire_len: u32,
    data: &'a [u8],
}

impl Key<'_> {
    fn hash(&self) -> u64 {
        let data = &self.data[..self.data.len().min(HASHED_BYTES)];
        let part = u64::from(self.interface) << 32 ^ u64::from(self.wire_len);
        data.iter().fold(part, |hash, byte| {
            (hash.rotate_left(5) ^ u64::from(*byte)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        })
    }
}

impl Dumped {
    /// None yet.
    fn of(shelf: Arc<dyn Shelf>, wanted: Stretch) -> Self {
        Self {
            shelf,
            wanted,
            sources: Vec::new(),
            queue: BTreeSet::new(),
            open: (0, 0),
            batch: Vec::new(),
            batch_ns: None,
            batch_bytes: 0,
            ready_ns: i64::MIN,
            places: HashMap::new(),
            others: Vec::new(),
            inspected: 0,
            unlisted: None,
        }
    }

    /// Finds the dumps that may have something of these stamps; those of this recording only where it `has_evicted` some of it.
    pub(super) fn new(shelf: &Arc<dyn Shelf>, wanted: Stretch, has_evicted: bool) -> Self {
        let mut dumped = Self::of(Arc::clone(shelf), wanted);
        let found = shelf.dumps(wanted);
        let mut found = found.unwrap_or_else(|why| {
            dumped.unlisted = Some(why);
            Vec::new()
        });
        found.retain(|dump| has_evicted || dump.claims.is_none());
        // What is sure to have all comes first.
        found.sort_by_cached_key(|dump| (dump.span, dump.claims.is_none(), dump.id.clone()));
        dumped.sources = found.into_iter().map(Source::new).collect();
        dumped.begin();
        dumped
    }

    /// The same once more, from its start.
    pub(super) fn again(self) -> Self {
        let again = |it: Source| Source {
            // What could not be read is not tried again: nobody counts on it.
            fault: it.fault.filter(|_| it.packets == 0),
            ..Source::new(it.dump)
        };
        let mut again = Self {
            sources: self.sources.into_iter().map(again).collect(),
            others: self.others,
            unlisted: self.unlisted,
            ..Self::of(self.shelf, self.wanted)
        };
        again.begin();
        again
    }

    fn begin(&mut self) {
        for (index, source) in self.sources.iter_mut().enumerate() {
            let fault = source.fault.take();
            match source.dump.gone.clone().or(fault) {
                Some(why) => source.fail(why),
                None => _ = self.queue.insert((source.dump.span.0, false, index)),
            }
        }
    }

    /// There are none, and that is known.
    pub(super) fn is_empty(&self) -> bool {
        self.sources.is_empty() && self.unlisted.is_none()
    }

    /// Nothing is left in them.
    pub(super) fn is_done(&self) -> bool {
        self.queue.is_empty() && self.batch.is_empty()
    }

    /// Gives the packets before a stamp, and gets those of this stamp ready; `None`: gives all. Whether more are wanted.
    pub(super) fn give_before(
        &mut self,
        until_ns: Option<i64>,
        asking: &mut Asking<'_>,
        give: Give<'_>,
    ) -> io::Result<bool> {
        let is_before = |ns: i64| until_ns.is_none_or(|until_ns| ns < until_ns);
        loop {
            if !self.batch_ns.is_none_or(is_before) {
                return Ok(true);
            }
            if !self.give_batch(asking, give)? {
                return Ok(false);
            }
            match self.queue.first() {
                Some(&(ns, ..)) if until_ns.is_none_or(|until_ns| ns <= until_ns) => {
                    self.next_batch(ns, asking);
                }
                _ => return Ok(true),
            }
        }
    }

    /// The ring has this packet too, of the last stamp that packets were got ready for.
    pub(super) fn leave_out(
        &mut self,
        entry: &InterfaceEntry,
        packet: &Found,
        data: &[u8],
        interfaces: &[InterfaceEntry],
    ) {
        if self.batch_ns != Some(packet.stamp_ns) || self.batch.is_empty() {
            return;
        }
        // Two of its numbers may mean the same.
        let interface = number_of(interfaces, &entry.name, entry.link_type);
        let key = Key {
            interface: interface.unwrap_or(packet.interface),
            direction: packet.direction,
            wire_len: packet.wire_len,
            data,
        };
        if let Some(place) = self.claim(&key, RING) {
            self.batch[place].is_given = true;
        }
    }

    fn give_batch(&mut self, asking: &Asking<'_>, give: Give<'_>) -> io::Result<bool> {
        self.places.clear();
        let (headers, others) = (asking.query.headers, &self.others);
        let headers = headers.map_or(usize::MAX, |bytes| bytes.get() as usize);
        self.batch_bytes = 0;
        for held in self.batch.drain(..).filter(|held| !held.is_given) {
            let entry = asking.interfaces.get(usize::from(held.interface));
            let entry = entry.or_else(|| others.get(usize::from(u16::MAX - held.interface)));
            let Some(entry) = entry else {
                continue; // never: `find` made one for each packet that is held
            };
            let data = &held.data[..held.data.len().min(headers)];
            let Held {
                interface,
                direction,
                wire_len,
                ..
            } = held;
            let found = Found::of_dump(held.stamp_ns, (interface, direction), wire_len, data);
            let given = give(entry, &found, data)?;
            let source = &mut self.sources[held.source];
            let whole = match entry.snaplen {
                0 => wire_len.min(SNAPLEN),
                snaplen => wire_len.min(snaplen),
            };
            let is_short = data.len() < headers.min(whole as usize);
            let is_own = source.dump.claims.is_some();
            source.packets += u64::from(given.is_given);
            source.snapped += u64::from(given.is_given && is_short && !is_own);
            if !given.goes_on {
                return Ok(false);
            }
        }
        self.batch_ns = None;
        Ok(true)
    }

    /// Opens dumps that begin by then, or gets the packets of the first stamp up to then ready.
    fn next_batch(&mut self, ns: i64, asking: &mut Asking<'_>) {
        while let Some(&(next_ns, is_packet, index)) = self.queue.first() {
            if next_ns > self.batch_ns.unwrap_or(ns) {
                break;
            }
            self.queue.pop_first();
            if is_packet {
                (self.batch_ns, self.ready_ns) = (Some(next_ns), next_ns);
                let is_ready = |held: &mut Held| held.stamp_ns == next_ns;
                while let Some(held) = self.sources[index].next.take_if(is_ready) {
                    self.batch_bytes += held.data.len();
                    if self.batch.len() >= BATCH_MAX || self.batch_bytes > BATCH_BYTES_MAX {
                        self.sources[index].fail(TOO_MANY_ALIKE.to_owned());
                        break;
                    }
                    self.add(held);
                    self.read_on(index, asking);
                }
            } else {
                self.open(index, asking);
                self.read_on(index, asking);
            }
            self.wait(index);
        }
    }

    /// Adds a packet to those of its stamp, unless another dump had it.
    fn add(&mut self, held: Held) {
        if let Some(place) = self.claim(&held.key(), held.source) {
            let known = &mut self.batch[place];
            if known.data.len() < held.data.len() {
                (known.data, known.source) = (held.data, held.source);
            }
            return;
        }
        if !self.places.is_empty() {
            let places = self.places.entry(held.key().hash()).or_default();
            places.push_back(self.batch.len());
        }
        self.batch.push(held);
    }

    /// Finds a packet that is this one, and that `by` did not have before.
    fn claim(&mut self, key: &Key<'_>, by: usize) -> Option<usize> {
        let batch = &mut self.batch;
        let is_it = |held: &Held| held.claimed != by && !held.is_given && held.is(key);
        if batch.len() <= SEARCHED_MAX {
            let place = batch.iter().position(is_it)?;
            batch[place].claimed = by;
            return Some(place);
        }
        if self.places.is_empty() {
            for (place, held) in batch.iter().enumerate() {
                let places = self.places.entry(held.key().hash()).or_default();
                places.push_back(place);
            }
        }
        // Places are searched from the one that was found longest ago.
        let places = self.places.get_mut(&key.hash())?;
        let at = places.iter().position(|place| is_it(&batch[*place]))?;
        let place = places.remove(at)?;
        batch[place].claimed = by;
        places.push_back(place);
        Some(place)
    }

    fn open(&mut self, index: usize, asking: &Asking<'_>) {
        let source = &mut self.sources[index];
        if asking.cancel.is_cancelled() {
            return source.fail(CANCELLED.to_owned());
        }
        if !matches!(source.dump.files.as_slice(), [file] if file.is_pcapng()) {
            return source.fail("pcap tells neither interfaces nor directions".to_owned());
        }
        let (files, memory) = self.open;
        let is_room = memory + source.memory() <= MEMORY_MAX;
        let Some(place) = OpenFile::new(files).filter(|_| is_room) else {
            return source.fail(format!(
                "{files} dumps of its time are being read, and no more can be: ask for less time"
            ));
        };
        let opened = self.shelf.open(&source.dump).and_then(|(read, file)| {
            let opened = DumpFile::new(read, file.bytes, file.sha256.clone());
            source.dump.files = vec![file];
            opened
        });
        match opened {
            Ok(file) => {
                let expression = &source.dump.expression;
                self.open = (files + 1, memory + source.memory());
                source.state = State::Open(Box::new(file), place);
                let has_names = asking.matching.has_names() && !expression.trim().is_empty();
                source.covers = !has_names && takes_all_of(expression, asking.query);
            }
            Err(why) => source.fail(why),
        }
    }

    /// The next packet of a dump waits for its turn, unless that is over.
    fn wait(&mut self, index: usize) {
        let source = &mut self.sources[index];
        match &source.next {
            Some(next) if next.stamp_ns > self.ready_ns => {
                self.queue.insert((next.stamp_ns, true, index));
            }
            Some(next) => {
                let stamp = rfc3339(next.stamp_ns);
                source.fail(format!(
                    "its stamps go back to {stamp}, and the rest of it is left out: a clock was set"
                ));
            }
            None => {}
        }
        if !source.is_open() {
            let open = self.sources.iter().filter(|it| it.is_open());
            self.open = open.fold((0, 0), |(files, memory), it| {
                (files + 1, memory + it.memory())
            });
        }
    }

    /// Reads the next packet of a dump that is asked for.
    fn read_on(&mut self, index: usize, asking: &mut Asking<'_>) {
        let Self {
            sources,
            others,
            wanted,
            inspected,
            ..
        } = self;
        let Source {
            state,
            next,
            numbers,
            ..
        } = &mut sources[index];
        let State::Open(file, _) = state else {
            return;
        };
        let fault = loop {
            let (meta, data, interface) = match file.next(asking.cancel) {
                Ok(Some(found)) => found,
                Ok(None) => break None,
                Err(why) => break Some(why),
            };
            if !(wanted.0..=wanted.1).contains(&meta.time_ns) {
                continue;
            }
            let (number, is_asked) = match numbers.entry(meta.interface) {
                Entry::Occupied(number) => *number.get(),
                Entry::Vacant(place) => {
                    let name = (interface.name.as_str(), interface.link_type.0);
                    match find(asking, others, name) {
                        Some(number) => *place.insert(number),
                        None => break Some(TOO_MANY_INTERFACES.to_owned()),
                    }
                }
            };
            if !is_asked {
                continue;
            }
            let entry = asking.interfaces.get(usize::from(number));
            let Some(entry) = entry.or_else(|| others.get(usize::from(u16::MAX - number))) else {
                continue;
            };
            let packet = Packet {
                time_ns: meta.time_ns,
                wire_len: meta.wire_len,
                interface: number,
                direction: (meta.flags.unwrap_or(0) & 3) as u8,
                tag_restored: false,
                shard: 0,
                data,
            };
            *inspected += 1;
            if asking.matching.takes(entry, &packet) {
                *next = Some(Held {
                    stamp_ns: packet.time_ns,
                    interface: number,
                    direction: packet.direction,
                    wire_len: packet.wire_len,
                    data: data.to_vec(),
                    source: index,
                    claimed: index,
                    is_given: false,
                });
                return;
            }
        };
        *state = State::Done;
        if let Some(why) = fault {
            sources[index].fail(why);
        }
    }

    /// The stamps that are sure to be in the answer, as far as it goes.
    pub(super) fn covered(&self) -> Vec<Stretch> {
        let sure = |source: &&Source| source.covers && source.fault.is_none();
        let sources = self.sources.iter().filter(sure);
        let claims = sources.filter_map(|source| source.dump.claims.as_ref());
        claims.flatten().copied().collect()
    }

    /// Adds what the answer lacks because of dumps of other recordings.
    pub(super) fn add_losses(&self, window: &Window, losses: &mut Losses) {
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

    /// Dumps that were read, or should have been, for an answer that ends here.
    fn touched(&self, to_ns: i64) -> impl Iterator<Item = &Source> {
        let sources = self.sources.iter();
        sources.filter(move |source| {
            let is_waiting = matches!(source.state, State::Waiting);
            !is_waiting && source.dump.span.0 <= to_ns
        })
    }

    /// What the verdict says of them, in an answer that ends with `to_ns`; `gap`: what has left the ring of it. Unless `is_named`, neither which they are nor when
    /// they are of.
    pub(super) fn report(&self, to_ns: i64, gap: Option<Stretch>, is_named: bool) -> FromDumps {
        let left = gap.filter(|_| is_named);
        let left = left.map(|gap| uncovered(gap, &self.covered()));
        let left = left.unwrap_or_default().into_iter().take(TOLD_MAX);
        let mut report = FromDumps {
            uncovered: left
                .map(|(from_ns, to_ns)| [rfc3339(from_ns), rfc3339(to_ns)])
                .collect(),
            unlisted: self.unlisted.as_ref().map(|why| match is_named {
                true => why.clone(),
                false => "they cannot be listed".to_owned(),
            }),
            ..FromDumps::default()
        };
        for source in self.touched(to_ns) {
            report.read += u64::from(source.dump.gone.is_none());
            report.failed += u64::from(source.fault.is_some());
            report.packets += source.packets;
            if is_named && report.dumps.len() < TOLD_MAX {
                report.dumps.push(source.answer());
            }
        }
        report
    }
}

impl Source {
    fn new(dump: Shelved) -> Self {
        Self {
            dump,
            state: State::Waiting,
            next: None,
            numbers: HashMap::new(),
            covers: false,
            packets: 0,
            snapped: 0,
            fault: None,
        }
    }

    fn is_open(&self) -> bool {
        matches!(self.state, State::Open(..))
    }

    /// Bytes of memory that reading it takes at most.
    fn memory(&self) -> usize {
        match self.dump.files.iter().any(StoredFile::is_compressed) {
            true => COMPRESSED_MEMORY,
            false => PLAIN_MEMORY,
        }
    }

    fn fail(&mut self, why: String) {
        self.state = State::Done;
        self.next = None;
        self.fault = Some(why);
    }

    fn answer(&self) -> DumpAnswer {
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
            covers: self.covers && self.fault.is_none() && self.dump.claims.is_some(),
            is_of_this_recording: self.dump.claims.is_some(),
            error: self.fault.clone(),
        }
    }
}

fn number_of(interfaces: &[InterfaceEntry], name: &str, link_type: u16) -> Option<u16> {
    let is_it =
        |entry: &InterfaceEntry| (entry.name.as_str(), entry.link_type) == (name, link_type);
    let place = interfaces.iter().position(is_it)?;
    u16::try_from(place).ok()
}

/// The number that an interface of a dump has in the answer, and whether its packets are asked for; `None`: there are too many.
fn find(
    asking: &mut Asking<'_>,
    others: &mut Vec<InterfaceEntry>,
    (name, link_type): (&str, u16),
) -> Option<(u16, bool)> {
    if let Some(number) = number_of(asking.interfaces, name, link_type) {
        return Some((number, asking.matching.asks(number)));
    }
    let known = number_of(others, name, link_type);
    if known.is_none() && asking.interfaces.len() + others.len() >= INTERFACES_MAX {
        return None;
    }
    let place = known.unwrap_or_else(|| {
        others.push(InterfaceEntry {
            name: name.to_owned(),
            link_type,
            snaplen: 0,
            time_domain: TimeDomain::File as u8,
            clock: 0,
        });
        u16::try_from(others.len() - 1).unwrap_or(u16::MAX)
    });
    let is_asked = asking.matching.learn_other(&others[usize::from(place)]);
    Some((u16::MAX - place, is_asked))
}
