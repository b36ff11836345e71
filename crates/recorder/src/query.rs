//! Queries: the packets of a window of a ring, with a verdict. The ring is the recorder's own, or
//! the ring of another process, which may have ended. A follow goes on with new packets.
//!
//! A query reads the ring's memory, the *region*, bucket by bucket ([`Attached`]), without the
//! recorder's threads. It keeps only the matching packets of each bucket until their turn
//! (`query/merge.rs`).
//!
//! Record numbers show which records are missing, and watermarks show up to when all records are
//! published (`query/contents.rs`). The region does not show losses before the ring, at intake: a
//! recorder knows these only for its own ring ([`RecorderHandle::query`]). Everything in a region
//! is untrusted input.
//!
//! | file | contents |
//! |---|---|
//! | `reading.rs` | the pass over the buckets, once or repeatedly |
//! | `contents.rs` | what a region says that it has, and what must be missing |
//! | `merge.rs`, `giving.rs`, `stream.rs` | one order for packets of many buckets, limits, pcapng |
//! | `dump_reader.rs`, `dump_file.rs`, `catalog.rs` | packets that left the ring, from dumps |
//! | `resume.rs` | continuing after a packet of an earlier answer |
//! | `visitor.rs` | packets for a function instead of a file |
//! | `newest.rs` | the last N packets |
//! | `matching.rs`, `index.rs` | which packets match; which buckets cannot have such packets |
//! | `cancel.rs`, `open_files.rs` | ending an answer from another thread; a limit of open files |
//! | `lost.rs`, `ending.rs`, `report.rs` | losses before the ring; the report of an answer |

mod cancel;
mod catalog;
pub(crate) mod contents;
mod dump_file;
mod dump_reader;
mod ending;
mod giving;
pub(crate) mod index;
mod lost;
mod matching;
mod merge;
mod newest;
mod open_files;
mod reading;
mod report;
mod resume;
mod stream;
#[cfg(test)]
mod tests;
mod visitor;

use std::{
    io,
    num::NonZeroU32,
    sync::{Arc, Weak},
};

use retroscope_capture::clock::{Clock, SystemClock};
use retroscope_filter::FilterError;
use retroscope_ring::{Attached, CopyError, InterfaceEntry, Packet, Step};

pub use self::{
    cancel::Cancel,
    report::{AnswerDumps, DumpAnswer, Empty, IndexUse, QueryReport},
    visitor::QueriedPacket,
};

use self::{
    catalog::DumpCatalog,
    contents::{QueryWindow, RegionContents},
    dump_reader::DumpReader,
    index::BucketIndex,
    matching::PacketMatcher,
    merge::MatchedPacket,
    reading::AnswerReading,
    resume::Resume,
    stream::AnswerStream,
};
pub use crate::control::packet_id::PacketId;
use crate::{
    RecorderHandle,
    analysis::prepared::PreparedFilter,
    control::{common::RecorderShared, packet_id::Recording, rule_scan::ScanBounds},
};

/// A request for packets.
#[derive(Debug, Clone, Default)]
pub struct Query {
    /// A pcap-filter(7) expression; empty: every packet.
    pub expression: String,
    /// A second expression, for the packets that the client may see at all. The query matches it on
    /// all bytes of a packet. Empty: every packet.
    pub within: String,
    /// The query matches `expression` on at most this many bytes of each packet; `None`: no limit.
    pub tried_bytes: Option<NonZeroU32>,
    /// The query matches `expression` only on the known headers of a packet, with the first 4 bytes
    /// of ICMP, and 28 bytes of ARP or RARP.
    pub tried_headers: bool,
    /// Only packets with this Community ID (version 1, seed 0), in both directions.
    pub community_id: Option<String>,
    /// Only packets of interfaces with these names; empty: of all interfaces.
    pub interfaces: Vec<String>,
    /// First stamp, ns since the UNIX epoch. `None`: `last_ns` sets the start; without `last_ns`,
    /// the window usually begins where the ring is complete.
    pub from_ns: Option<i64>,
    /// Last stamp, included; `None`: no end.
    pub to_ns: Option<i64>,
    /// If `from_ns` is not given: the window begins this many ns before the latest time that the
    /// recorder knew.
    pub last_ns: Option<i64>,
    /// Maximum number of packets.
    pub limit_packets: Option<u64>,
    /// Maximum number of captured bytes.
    pub limit_bytes: Option<u64>,
    /// With a limit: the last packets instead of the first packets.
    pub newest: bool,
    /// Maximum number of bytes of each packet (snap length).
    pub headers: Option<NonZeroU32>,
    /// Follow new packets, for example until `to_ns`, a limit or the end of the recording.
    pub follow: bool,
    /// Continue after these packets of an earlier answer: its last packet, or the last packet of
    /// each producer ([`QueryReport::after`]).
    pub after: Vec<PacketId>,
    /// Read from dumps the packets that left the ring. Only for a query to the recorder itself
    /// ([`RecorderHandle::query`]), and not with `after`.
    pub dumps: DumpsAsked,
}

/// Whether an answer has packets of dumps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DumpsAsked {
    /// Only packets of the ring.
    #[default]
    No,
    /// Packets of dumps too. The report has the number of dumps.
    Counted,
    /// Packets of dumps too. The report has the number of dumps, and lists the first 64.
    Named,
}

/// The reason why a query has no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QueryError {
    /// Usage: an expression is invalid, or compiles for no link type of the ring.
    #[error("{0}")]
    Filter(#[from] FilterError),
    /// Usage: another error, in words.
    #[error("{0}")]
    Usage(String),
    /// Environment: the recorder of the ring has ended.
    #[error("the recording has ended")]
    Ended,
    /// Input or environment: the region cannot be read.
    #[error("{0}")]
    Ring(#[from] CopyError),
    /// Environment: the answer cannot be written.
    #[error("{0}")]
    Output(#[source] io::Error),
}

/// A query of a ring, ready to run. Keeps the ring's memory until it is dropped.
#[derive(Debug)]
pub struct QueryAnswer {
    attached: Arc<Attached>,
    contents: Arc<RegionContents>,
    window: QueryWindow,
    matching: PacketMatcher,
    recording: Recording,
    resume: Resume,
    query: Query,
    cancel: Cancel,
    clock: Arc<dyn Clock>,
    /// The recorder of the ring, which knows the losses before the ring.
    recorder: Option<Weak<RecorderShared>>,
    index: Option<Arc<BucketIndex>>,
    catalog: Option<Arc<dyn DumpCatalog>>,
    /// For the scan of a rule's past: the records to try.
    scan: Option<ScanBounds>,
}

impl Query {
    /// Reads the contents of a ring, and compiles the expressions for the ring's link types.
    ///
    /// # Errors
    /// [`QueryError::Filter`], [`QueryError::Usage`], [`QueryError::Ring`].
    pub fn of(&self, ring: impl Into<Arc<Attached>>) -> Result<QueryAnswer, QueryError> {
        self.check()?;
        let attached = ring.into();
        let contents = Arc::new(RegionContents::read(&attached)?);
        let matching = PacketMatcher::new(self, &contents)?;
        let recording = Recording::of(&attached.info());
        let mut window = contents.window(self.from_ns, self.to_ns, self.last_ns);
        let resume = Resume::new(&self.after, recording, &attached, &contents)?;
        resume.narrow(&mut window, &contents);
        Ok(QueryAnswer {
            attached,
            contents,
            window,
            matching,
            recording,
            resume,
            query: self.clone(),
            cancel: Cancel::default(),
            clock: Arc::new(SystemClock),
            recorder: None,
            index: None,
            catalog: None,
            scan: None,
        })
    }

    /// Both expressions, combined with `and`.
    #[must_use]
    pub fn whole_expression(&self) -> String {
        match (self.within.trim(), self.expression.trim()) {
            ("", one) | (one, "") => one.to_owned(),
            (within, asked) => format!("({within}) and ({asked})"),
        }
    }

    /// Refuses queries that no ring can answer.
    fn check(&self) -> Result<(), QueryError> {
        let usage = |text: &str| Err(QueryError::Usage(text.to_owned()));
        let has_limit = self.limit_packets.is_some() || self.limit_bytes.is_some();
        if self.newest && !has_limit {
            return usage("the newest packets: how many? It takes a limit of packets or bytes");
        }
        if self.newest && (self.follow || !self.after.is_empty()) {
            return usage("the newest packets are those of now: they cannot be followed");
        }
        if self
            .from_ns
            .zip(self.to_ns)
            .is_some_and(|(from, to)| from > to)
        {
            return usage("the window ends before it begins");
        }
        Ok(())
    }
}

impl RecorderHandle {
    /// Queries the ring. While a live recorder runs, the report includes losses before the ring.
    /// The answer keeps the ring's memory.
    ///
    /// # Errors
    /// The errors of [`Query::of`], and [`QueryError::Ended`].
    pub fn query(&self, query: &Query) -> Result<QueryAnswer, QueryError> {
        let common = self.common().map_err(|_| QueryError::Ended)?;
        let answer = query.of(common.ring.attached())?;
        let answer = answer.with_losses_of(&common);
        Ok(answer.with_dumps_of(Arc::new(self.clone())))
    }

    /// The stamp of a packet in the ring, ns since the UNIX epoch. `None`: the packet was
    /// overwritten, or cannot be read.
    ///
    /// # Errors
    /// [`QueryError::Usage`]: the recording never had this packet. [`QueryError::Ended`],
    /// [`QueryError::Ring`].
    pub fn stamp_of(&self, id: PacketId) -> Result<Option<i64>, QueryError> {
        let common = self.common().map_err(|_| QueryError::Ended)?;
        let attached = common.ring.attached();
        let contents = RegionContents::read(&attached)?;
        let recording = Recording::of(&attached.info());
        let found = resume::find(id, recording, &attached, &contents);
        let found = found.map_err(|why| QueryError::Usage(format!("packet {id}: {why}")))?;
        Ok(found.place.and_then(|(time_ns, interface)| {
            let clock = contents.interfaces.get(usize::from(interface))?.clock;
            let (steps, producer, record) = (&contents.steps, found.producer, found.record);
            Some(Step::stamp_ns(steps, producer, clock, record, time_ns))
        }))
    }
}

impl QueryAnswer {
    /// Adds the recorder of the ring, with its clock and its index.
    pub(crate) fn with_losses_of(self, common: &Arc<RecorderShared>) -> Self {
        Self {
            recorder: Some(Arc::downgrade(common)),
            clock: common.clock.shared(),
            index: Some(Arc::clone(&common.index)).filter(|index| !index.is_empty()),
            ..self
        }
    }

    /// Adds the recorder's dumps, if the query asks for dumps.
    fn with_dumps_of(self, catalog: Arc<dyn DumpCatalog>) -> Self {
        let is_asked = self.query.dumps != DumpsAsked::No && self.query.after.is_empty();
        let catalog = Some(catalog).filter(|_| is_asked);
        Self { catalog, ..self }
    }

    /// The dumps that may have packets of the window that left the ring. `None`: the query needs no
    /// dumps.
    fn dumped(&self) -> Option<DumpReader> {
        let catalog = self.catalog.as_ref()?;
        let recorder = self.recorder.as_ref().and_then(Weak::upgrade);
        let is_live = recorder.is_some_and(|recorder| recorder.is_live());
        let begin_ns = self.attached.info().created_ns.filter(|_| is_live);
        let wanted = self.contents.before_the_ring(&self.window, begin_ns)?;
        let has_evicted = self.contents.evicted(&self.window).is_some();
        let known = (self.contents.first_ns(), self.recording);
        let dumped = DumpReader::new(catalog, wanted, has_evicted, known);
        Some(dumped).filter(|dumped| has_evicted || !dumped.is_empty())
    }

    /// Tries the filter of a rule on the records within `bounds`. With `fragments`, the answer also
    /// has all fragments, except those in buckets that the index rules out.
    pub(crate) fn for_rule(
        mut self,
        filter: &PreparedFilter,
        bounds: ScanBounds,
        fragments: bool,
    ) -> Self {
        let interfaces = &self.contents.interfaces;
        self.matching.set_rule(filter, interfaces, fragments);
        self.scan = Some(bounds);
        self
    }

    #[cfg(test)]
    fn with_index(self, index: &Arc<BucketIndex>) -> Self {
        let index = Some(Arc::clone(index));
        Self { index, ..self }
    }

    /// Lets another thread end the answer, for example when the client is gone.
    #[must_use]
    pub fn until(self, cancel: &Cancel) -> Self {
        let cancel = cancel.clone();
        Self { cancel, ..self }
    }

    /// Writes the packets as one pcapng section, which a program may read at the same time. The
    /// verdict is in a comment of the last packet, unless a follow wrote that packet before its
    /// end. The report is, as JSON, in the statistics of each interface, after all packets.
    ///
    /// A follow also writes statistics, with the report up to then, about every second, and flushes
    /// `out` after each pass over the ring. `out` may block: packets that are overwritten meanwhile
    /// are reported.
    ///
    /// # Errors
    /// [`QueryError::Ring`], [`QueryError::Output`]. Output that was written before has no final
    /// verdict.
    pub fn write_to(self, out: impl io::Write) -> Result<QueryReport, QueryError> {
        let mut headline = format!("retroscope query {}", self.query.whole_expression());
        if let Some(id) = &self.query.community_id {
            headline = format!("{} community ID {id}", headline.trim_end());
        }
        let snaplen = self.query.headers.map(NonZeroU32::get);
        let stream = AnswerStream::new(out, headline.trim_end(), snaplen, self.recording);
        let stream = stream.map_err(QueryError::Output)?;
        AnswerReading::new(self, Some(stream)).run()
    }

    /// Gives the packets to `look`, which returns whether it wants more.
    ///
    /// # Errors
    /// [`QueryError::Ring`].
    pub fn each(
        self,
        mut look: impl FnMut(&QueriedPacket<'_>) -> bool,
    ) -> Result<QueryReport, QueryError> {
        let recording = self.recording;
        let mut look = |entry: &InterfaceEntry, packet: &MatchedPacket, data: &[u8]| {
            look(&packet.queried(entry, data, recording))
        };
        let reading = AnswerReading::<io::Sink>::new(self, None);
        reading.shown_to(&mut look).run()
    }

    /// As [`Self::each`]: gives the packets as records of their producers, with the producer and
    /// the number of the record.
    pub(crate) fn each_record(
        self,
        mut look: impl FnMut((usize, u64), &Packet<'_>) -> bool,
    ) -> Result<QueryReport, QueryError> {
        let mut look = |_: &InterfaceEntry, packet: &MatchedPacket, data: &[u8]| {
            look((packet.producer, packet.record), &packet.recorded(data))
        };
        let reading = AnswerReading::<io::Sink>::new(self, None);
        reading.shown_to(&mut look).run()
    }

    /// Counts the packets without writing.
    ///
    /// # Errors
    /// [`QueryError::Ring`].
    pub fn count(self) -> Result<QueryReport, QueryError> {
        AnswerReading::<io::Sink>::new(self, None).run()
    }
}
