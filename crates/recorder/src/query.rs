//! Asking a ring that another process writes, or left behind, or the recorder's own: its packets of a window, in order, with a verdict; and,
//! in a follow, those that come.
//!
//! The recorder's threads are not asked. The region is read as [`Attached`] lets it be, bucket by bucket, and of a bucket only the packets that
//! match are kept, until their turn comes (`query/merge.rs`): memory follows the answer, not the ring.
//!
//! A region numbers its records, which shows what was overwritten, what is torn, and what was not published (`query/contents.rs`). It
//! does not tell what was lost before the ring: that a recorder knows only of its own ([`RecorderHandle::query`]). Everything in
//! it is foreign input.
//!
//! | file | holds |
//! |---|---|
//! | `reading.rs` | the pass over the buckets, once or again and again |
//! | `contents.rs` | what a region says that it holds, and what must be missing |
//! | `merge.rs`, `giving.rs`, `stream.rs` | packets of many buckets in one order, those of them that are given, and as pcapng |
//! | `dumped.rs`, `dump_file.rs`, `catalog.rs` | what has left the ring, from dumps that hold it |
//! | `resume.rs` | going on behind a packet |
//! | `seen.rs` | packets that are looked at rather than written |
//! | `newest.rs` | the last so many packets |
//! | `matching.rs`, `index.rs` | which packets are asked for; which buckets cannot have them |
//! | `lost.rs`, `ending.rs`, `report.rs` | what was lost before the ring; what an answer says of itself |

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
use retroscope_ring::{Attached, CopyError};

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
    reading::AnswerReading,
    resume::Resume,
    stream::AnswerStream,
};
pub use crate::control::packet_id::PacketId;
use crate::{
    RecorderHandle,
    control::{common::RecorderShared, packet_id::Recording},
};

/// What is asked for.
#[derive(Debug, Clone, Default)]
pub struct Query {
    /// A pcap-filter(7) expression; empty: every packet. Its `inbound` and `outbound` are those of the interfaces, but where files were
    /// recorded.
    pub expression: String,
    /// Another one, of packets that who asks may see at all: tried on all their bytes. Empty: every packet.
    pub within: String,
    /// `expression` is tried on so many bytes of each packet; `None`: on all.
    pub tried_bytes: Option<NonZeroU32>,
    /// `expression` is tried on no more than the headers up to that of TCP, UDP, SCTP or ICMP, or an ARP message.
    pub tried_headers: bool,
    /// Packets with this Community ID (version 1, seed 0) only, in both directions. Later fragments have none.
    pub community_id: Option<String>,
    /// Packets of interfaces with these names only; empty: of all.
    pub interfaces: Vec<String>,
    /// Stamps from here on, ns since the UNIX epoch; `None`: from where the ring is whole.
    pub from_ns: Option<i64>,
    /// Stamps up to here, included; `None`: all that is there.
    pub to_ns: Option<i64>,
    /// Where `from_ns` is not given: so long before the latest time that the recorder knew, ns. While it runs that is no more than some
    /// tens of milliseconds ago.
    pub last_ns: Option<i64>,
    /// No more packets than these.
    pub limit_packets: Option<u64>,
    /// No more captured bytes than these.
    pub limit_bytes: Option<u64>,
    /// With a limit: the last packets instead of the first.
    pub newest: bool,
    /// So many bytes of each packet (snap length).
    pub headers: Option<NonZeroU32>,
    /// Goes on with the packets that come, until `to_ns`, a limit, the end of the recording, or [`QueryAnswer::until`].
    pub follow: bool,
    /// Goes on behind these packets of an answer before: its last one, or the last of each producer ([`QueryReport::after`]), which is exact
    /// also where some were overwritten meanwhile. Nothing comes twice, and what is missing is told.
    pub after: Vec<PacketId>,
    /// What has left the ring comes from dumps, of a recorder that is asked itself ([`RecorderHandle::query`]). Not with `after`.
    pub dumps: DumpsAsked,
}

/// Whether an answer has packets of dumps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DumpsAsked {
    /// Those of the ring only.
    #[default]
    No,
    /// Of dumps too; the verdict says of how many.
    Counted,
    /// The same; the verdict says of which.
    Named,
}

/// Why a query has no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QueryError {
    /// Usage: the expression is none, or compiles for no link type of the ring.
    #[error("{0}")]
    Filter(#[from] FilterError),
    /// Usage: what it says.
    #[error("{0}")]
    Usage(String),
    /// Environment: the recorder whose ring it is has ended.
    #[error("the recording has ended")]
    Ended,
    /// Input or environment: the region cannot be read.
    #[error("{0}")]
    Ring(#[from] CopyError),
    /// Environment: the answer cannot be written.
    #[error("{0}")]
    Output(#[source] io::Error),
}

/// A query of a ring, ready to be written. It keeps the ring's memory until it is dropped.
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
    /// Who records into the ring, and knows what was lost before it.
    recorder: Option<Weak<RecorderShared>>,
    /// Of the same recorder.
    index: Option<Arc<BucketIndex>>,
    /// Where its dumps are.
    catalog: Option<Arc<dyn DumpCatalog>>,
}

impl Query {
    /// Looks at what a ring holds now, and compiles the expression for it.
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
        })
    }

    /// Both expressions, in one.
    #[must_use]
    pub fn whole_expression(&self) -> String {
        match (self.within.trim(), self.expression.trim()) {
            ("", one) | (one, "") => one.to_owned(),
            (within, asked) => format!("({within}) and ({asked})"),
        }
    }

    /// What no ring can answer.
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
    /// Asks the ring: what is in it now, or with [`Query::follow`] what comes too. The answer tells what was lost before the ring as well. It keeps
    /// the ring's memory while it lasts.
    ///
    /// # Errors
    /// Those of [`Query::of`]; [`QueryError::Ended`].
    pub fn query(&self, query: &Query) -> Result<QueryAnswer, QueryError> {
        let common = self.common().map_err(|_| QueryError::Ended)?;
        let answer = query.of(common.ring.attached())?;
        let answer = answer.with_losses_of(&common);
        Ok(answer.with_dumps_of(Arc::new(self.clone())))
    }
}

impl QueryAnswer {
    /// Tells what was lost before the ring too, of a query of this recorder's own ring.
    pub(crate) fn with_losses_of(self, common: &Arc<RecorderShared>) -> Self {
        Self {
            recorder: Some(Arc::downgrade(common)),
            clock: common.clock.shared(),
            index: Some(Arc::clone(&common.index)).filter(|index| !index.is_empty()),
            ..self
        }
    }

    /// Lets dumps give what has left the ring.
    fn with_dumps_of(self, catalog: Arc<dyn DumpCatalog>) -> Self {
        let is_asked = self.query.dumps != DumpsAsked::No && self.query.after.is_empty();
        let catalog = Some(catalog).filter(|_| is_asked);
        Self { catalog, ..self }
    }

    /// The dumps that may have what has left the ring; `None`: nothing has that is asked for.
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

    /// Lets an index tell which buckets need not be read.
    #[cfg(test)]
    fn with_index(self, index: &Arc<BucketIndex>) -> Self {
        let index = Some(Arc::clone(index));
        Self { index, ..self }
    }

    /// Lets another thread end it, where who asked is gone. It then has the verdict of what it has.
    #[must_use]
    pub fn until(self, cancel: &Cancel) -> Self {
        let cancel = cancel.clone();
        Self { cancel, ..self }
    }

    /// Writes the packets as one pcapng section, which a program may read while it comes: the verdict stands in a comment of the last
    /// packet and, as JSON, of each interface's statistics, behind all packets. An answer without packets has the ring's interfaces. A
    /// follow writes statistics every second, and flushes `out` when it has written something. `out` may block: what is overwritten
    /// meanwhile is told.
    ///
    /// # Errors
    /// [`QueryError::Ring`], [`QueryError::Output`]. What was written before has no verdict.
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

    /// Shows the packets, in order, to `look`, which says whether it wants more.
    ///
    /// # Errors
    /// [`QueryError::Ring`].
    pub fn each(
        self,
        mut look: impl FnMut(&QueriedPacket<'_>) -> bool,
    ) -> Result<QueryReport, QueryError> {
        let reading = AnswerReading::<io::Sink>::new(self, None);
        reading.shown_to(&mut look).run()
    }

    /// Looks for the packets and writes none.
    ///
    /// # Errors
    /// [`QueryError::Ring`].
    pub fn count(self) -> Result<QueryReport, QueryError> {
        AnswerReading::<io::Sink>::new(self, None).run()
    }
}
