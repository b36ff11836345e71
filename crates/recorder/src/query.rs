//! Asking a ring that another process writes, or left behind, or the recorder's own: its packets of a window, in order, with a verdict.
//!
//! The recorder's threads are not asked. The region is read as [`Attached`] lets it be, bucket by bucket, and of a bucket only the packets that
//! match are kept, until their turn comes (`query/merge.rs`): memory follows the answer, not the ring.
//!
//! A region numbers its records, which shows what was overwritten, what is torn, and what was not published (`query/contents.rs`). It
//! does not tell what was lost before the ring: that a recorder knows only of its own ([`Answer::with_losses_of`]). Everything in it is
//! foreign input.

mod contents;
mod merge;
mod stream;
#[cfg(test)]
mod tests;

use std::{io, sync::Arc};

use retroscope_capture::TimeDomain;
use retroscope_filter::{Filter, FilterError};
use retroscope_packet::LinkType;
use retroscope_ring::{Attached, AttachedState, Buffer, CopyError, InterfaceEntry, Packet, Step};
use serde::Serialize;

use self::{
    contents::{Candidate, Contents, Losses, Window, offset_ns, offsets},
    merge::{Found, Merge, Piece},
    stream::Stream,
};
use crate::{
    CommandError, Handle, Missing, Verdict,
    analysis::prepared::{LinkTypes, Prepared, mode, view},
    control::common::Common,
    rfc3339,
};

/// Remarks on link types, at most: a damaged region may name thousands.
const REFUSALS_TOLD: usize = 8;

/// What is asked for.
#[derive(Debug, Clone, Default)]
pub struct Query {
    /// A pcap-filter(7) expression; empty: every packet. Its `inbound` and `outbound` are those of the interfaces, but where files were
    /// recorded.
    pub expression: String,
    /// Stamps from here on, ns since the UNIX epoch; `None`: from where the ring is whole.
    pub from_ns: Option<i64>,
    /// Stamps up to here, included; `None`: all that is there.
    pub to_ns: Option<i64>,
    /// Where `from_ns` is not given: so long before the latest time that the recorder knew, ns. While it runs that is no more than some
    /// tens of milliseconds ago.
    pub last_ns: Option<i64>,
}

/// What a query found. Times are RFC 3339.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct QueryReport {
    /// Start of the window: as asked, else the time since which all is there. `null`: the ring is empty.
    pub from: Option<String>,
    /// End of the window: as asked, else the latest time up to which the ring is sure to have all.
    pub to: Option<String>,
    /// Packets in the answer.
    pub packets: u64,
    /// Captured bytes of these packets.
    pub bytes: u64,
    /// See [`Verdict`]; never `failed`.
    pub verdict: Verdict,
    /// What is missing, one entry a cause, or source and cause for what was lost before the ring: `evicted`, `unpublished` (a recorder that was killed, or goes on, had not shown it), `damaged` (the
    /// region contradicts itself), `interface-limit` (of interfaces that the region does not list), `restamped` (in the answer as of 1970:
    /// pcapng has no earlier time).
    pub missing: Vec<Missing>,
    /// Up to when `missing` has what was lost before the ring: in the NIC, in the kernel, for want of a free bucket. `null`: it does not tell.
    pub losses_known_to: Option<String>,
    /// Remarks.
    pub notes: Vec<String>,
}

/// Why a query has no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QueryError {
    /// Usage: the expression is none, or compiles for no link type of the ring.
    #[error("{0}")]
    Filter(#[from] FilterError),
    /// Input or environment: the region cannot be read.
    #[error("{0}")]
    Ring(#[from] CopyError),
    /// Environment: the answer cannot be written.
    #[error("{0}")]
    Output(#[source] io::Error),
}

impl Query {
    /// Looks at what a ring holds now, and compiles the expression for it.
    ///
    /// # Errors
    /// [`QueryError::Filter`], [`QueryError::Ring`].
    pub fn of<'a>(&self, attached: &'a Attached) -> Result<Answer<'a>, QueryError> {
        let contents = Contents::read(attached)?;
        let filter = match self.expression.trim() {
            "" => None,
            expression => {
                let interfaces = contents.interfaces.iter();
                let known: Vec<_> = interfaces
                    .clone()
                    .map(|entry| LinkType(entry.link_type))
                    .collect();
                let is_offline = interfaces
                    .clone()
                    .any(|entry| entry.time_domain == TimeDomain::File as u8);
                let mut filter = Prepared::new(Filter::resolved(expression)?, mode(is_offline));
                filter.check(&LinkTypes::new(&known, &Vec::new))?;
                Some(filter)
            }
        };
        Ok(Answer {
            attached,
            headline: format!("retroscope query {}", self.expression.trim())
                .trim_end()
                .to_owned(),
            window: contents.window(self.from_ns, self.to_ns, self.last_ns),
            filter,
            contents,
            recorder: None,
        })
    }
}

/// A query of a ring, ready to be written.
#[derive(Debug)]
pub struct Answer<'a> {
    attached: &'a Attached,
    contents: Contents,
    window: Window,
    /// `None`: every packet.
    filter: Option<Prepared>,
    headline: String,
    /// Who records into the ring, and knows what was lost before it.
    recorder: Option<Arc<Common>>,
}

impl Answer<'_> {
    /// Tells what was lost before the ring too, of a query of this recorder's own ring.
    ///
    /// # Errors
    /// [`CommandError::Ended`].
    pub fn with_losses_of(self, handle: &Handle) -> Result<Self, CommandError> {
        let recorder = Some(handle.common()?);
        Ok(Self { recorder, ..self })
    }

    /// Writes the packets as one pcapng section, which a program may read while it comes: the verdict stands in a comment of the last
    /// packet and of each interface's statistics, behind all packets. An answer without packets has the ring's interfaces.
    ///
    /// # Errors
    /// [`QueryError::Ring`], [`QueryError::Output`]. What was written before has no verdict.
    pub fn write_to(mut self, out: impl io::Write) -> Result<QueryReport, QueryError> {
        let stream = Stream::new(out, &self.headline).map_err(QueryError::Output)?;
        let info = self.attached.info();
        let buckets = std::mem::take(&mut self.contents.buckets);
        let mut writing = Writing {
            losses: self.contents.missing(&self.window),
            buffer: Buffer::new(),
            merge: Merge::new(info.producers, info.bucket_bytes),
            unlisted: 0,
            answer: self,
            stream,
        };
        for candidate in &buckets {
            writing.bucket(candidate)?;
        }
        writing.write_before(None)?;
        writing.end()
    }

    fn matches(&self, entry: &InterfaceEntry, packet: &Packet<'_>) -> bool {
        self.filter.as_ref().is_none_or(|filter| {
            let packet = view(LinkType(entry.link_type), packet, filter.mode);
            filter.filter.matches(&packet)
        })
    }

    fn notes(&self) -> Vec<String> {
        let refused = self.filter.iter().flat_map(|filter| &filter.refused);
        let note = |(link_type, error): &(LinkType, String)| {
            format!("no packet of link type {} matches: {error}", link_type.0)
        };
        refused.take(REFUSALS_TOLD).map(note).collect()
    }
}

/// An answer that is being written.
struct Writing<'a, W: io::Write> {
    answer: Answer<'a>,
    buffer: Buffer,
    merge: Merge,
    stream: Stream<W>,
    losses: Losses,
    /// Packets of interfaces that the region does not list: their link type is unknown.
    unlisted: u64,
}

impl<W: io::Write> Writing<'_, W> {
    /// Reads a bucket, if it may have packets of the window, and writes those of buckets before it. Buckets come by their smallest time.
    fn bucket(&mut self, candidate: &Candidate) -> Result<(), QueryError> {
        let offsets = offsets(&self.answer.contents.steps, candidate.bucket.producer);
        let window = self.answer.window;
        if !window.touches(candidate.reach_ns, offsets) {
            return Ok(());
        }
        self.write_before(Some(candidate.span_ns.0))?;
        let copied = self
            .answer
            .attached
            .copy_bucket(candidate.bucket.bucket, &mut self.buffer);
        let cause = match copied {
            Ok(()) if self.take(candidate, offsets) => return Ok(()),
            Ok(()) | Err(CopyError::Damaged { .. }) => "damaged",
            // As it was when its header was read, it had nothing of the window.
            Err(CopyError::Overwritten(_)) if !window.touches(candidate.span_ns, offsets) => {
                return Ok(());
            }
            Err(CopyError::Overwritten(_)) => {
                let steps = &self.answer.contents.steps;
                let offset_ns = offset_ns(steps, candidate.bucket.producer, candidate.bucket.first);
                let window = &mut self.answer.window;
                if self.stream.packets == 0 && window.begin_behind(candidate.span_ns.1, offset_ns) {
                    return Ok(());
                }
                "evicted"
            }
            Err(error) => return Err(error.into()),
        };
        let stamps = window.part(candidate.span_ns, offsets);
        self.losses
            .add(cause, stamps, Some(candidate.bucket.packets));
        Ok(())
    }

    /// Keeps the packets of the copied bucket that are asked for. `false`: the bucket does not hold what its header says.
    fn take(&mut self, candidate: &Candidate, offsets: (i64, i64)) -> bool {
        let Candidate {
            bucket, span_ns, ..
        } = candidate;
        let Contents {
            interfaces, steps, ..
        } = &self.answer.contents;
        let window = &self.answer.window;
        let mut piece = Piece::default();
        // An open bucket has more records by now than when its header was read.
        let packets = usize::try_from(bucket.packets).unwrap_or(usize::MAX);
        let (mut bytes, mut found_ns) = (0_u64, (i64::MAX, i64::MIN));
        for (index, packet) in (0..).zip(self.buffer.packets().take(packets)) {
            bytes = bytes.saturating_add(packet.data.len() as u64);
            let time_ns = packet.time_ns;
            found_ns = (time_ns.min(found_ns.0), time_ns.max(found_ns.1));
            let Some(entry) = interfaces.get(usize::from(packet.interface)) else {
                self.unlisted += u64::from(window.touches((time_ns, time_ns), offsets));
                continue;
            };
            let record = bucket.first.wrapping_add(index);
            let stamp_ns = Step::stamp_ns(steps, bucket.producer, entry.clock, record, time_ns);
            if window.holds(time_ns, stamp_ns) && self.answer.matches(entry, &packet) {
                piece.push(&packet, stamp_ns);
            }
        }
        self.merge.add(bucket, piece);
        let is_there = self.buffer.len() >= packets && bytes <= bucket.bytes;
        let is_inside = span_ns.0 <= found_ns.0 && found_ns.1 <= span_ns.1;
        // The header of an open one speaks of more than so many records.
        let is_open = bucket.state == AttachedState::Open;
        is_there && is_inside && (is_open || (bytes, found_ns) == (bucket.bytes, *span_ns))
    }

    fn write_before(&mut self, until_ns: Option<i64>) -> Result<(), QueryError> {
        let (stream, interfaces) = (&mut self.stream, &self.answer.contents.interfaces);
        let window = &self.answer.window;
        let write = |packet: &Found, data: &[u8]| {
            // The window may have begun later since.
            if !window.holds(packet.time_ns, packet.stamp_ns) {
                return Ok(());
            }
            stream.packet(&interfaces[usize::from(packet.interface)], packet, data)
        };
        let written = self.merge.take_before(until_ns, write);
        written.map_err(QueryError::Output)
    }

    /// What a live recorder lost of the window before its ring, and up to when it knows that: at most to the window's end `to`; `None`: not at all.
    fn lost_before_the_ring(&self, to: Option<&String>) -> (Vec<Missing>, Option<String>) {
        let Some(recorder) = self.answer.recorder.as_ref().filter(|it| it.is_live()) else {
            return (Vec::new(), None);
        };
        let Answer {
            contents, window, ..
        } = &self.answer;
        let offset_ns = contents.latest_offset_ns();
        // Several, where clocks differ or were set meanwhile. After a step back the same stamps come again.
        let mut parts = if window.from_ns == i64::MIN && window.to_ns == i64::MAX {
            vec![(i64::MIN, i64::MAX)]
        } else {
            recorder.ring_times(window.all())
        };
        // What lies in two of them is lost once.
        parts.sort_unstable();
        parts.dedup_by(|next, before| {
            let touches = next.0 <= before.1;
            if touches {
                before.1 = before.1.max(next.1);
            }
            touches
        });
        let now_ns = recorder.clock.now().ring_ns;
        if parts.first().is_some_and(|part| part.0 > now_ns) {
            return (Vec::new(), None); // all of it is to come
        }
        parts.retain(|part| part.0 <= now_ns);
        if window.to_ns == i64::MAX {
            let end_ns = contents.known_ring_ns();
            parts
                .iter_mut()
                .for_each(|part| part.1 = part.1.min(end_ns));
        }
        let (mut lost, mut known_ns) = (Vec::<Missing>::new(), Some(i64::MAX));
        for (from_ns, to_ns) in &parts {
            let part_ns = (*from_ns.max(&window.from_ring_ns), *to_ns);
            let (more, known_in_part_ns) = recorder.intake.known_losses(part_ns, offset_ns);
            known_ns = known_ns.min(known_in_part_ns);
            for entry in more {
                let is_same =
                    |one: &&mut Missing| (&one.source, one.cause) == (&entry.source, entry.cause);
                match lost.iter_mut().find(is_same) {
                    // Some may have been counted in both.
                    Some(one) => {
                        let count = |it: &Missing| it.packets.or(it.at_most).unwrap_or(0);
                        one.at_most = Some(count(one).saturating_add(count(&entry)));
                        one.packets = None;
                    }
                    None => lost.push(entry),
                }
            }
        }
        if !contents.steps.is_empty() {
            // By which setting of the clock they would have been stamped is not known here.
            let (from_ns, to_ns) = window.all();
            for entry in &mut lost {
                (entry.from, entry.to) = (rfc3339(from_ns), rfc3339(to_ns));
            }
        }
        let uncounted = recorder.intake.unknown_losses();
        let end_ns = parts.iter().map(|part| part.1).max();
        let known_ns = known_ns.filter(|_| uncounted.is_empty());
        let known_to = known_ns.and_then(|known_ns| match end_ns {
            Some(end_ns) if known_ns < end_ns => Some(rfc3339(known_ns.saturating_add(offset_ns))),
            _ => to.cloned(),
        });
        (lost, known_to)
    }

    fn end(mut self) -> Result<QueryReport, QueryError> {
        let Window { told, .. } = self.answer.window;
        for (cause, packets) in [
            ("interface-limit", self.unlisted),
            ("restamped", self.stream.restamped),
        ] {
            if packets > 0 {
                self.losses
                    .add(cause, self.answer.window.all(), Some(packets));
            }
        }
        let mut notes = self.answer.notes();
        if self.merge.disordered > 0 {
            let count = self.merge.disordered;
            notes.push(format!(
                "stamps in disorder: {count} packets stand behind younger ones"
            ));
        }
        let to = told.1.map(rfc3339);
        let (lost, losses_known_to) = self.lost_before_the_ring(to.as_ref());
        let mut missing = self.losses.into_missing();
        missing.extend(lost);
        let recorder = self.answer.recorder.iter();
        notes.extend(recorder.flat_map(|it| it.intake.unknown_losses()));
        let report = QueryReport {
            from: told.0.map(rfc3339),
            to,
            packets: self.stream.packets,
            bytes: self.stream.bytes,
            verdict: if missing.is_empty() {
                Verdict::Complete
            } else {
                Verdict::Incomplete
            },
            missing,
            losses_known_to,
            notes,
        };
        let verdict = format!("verdict: {}", report.reasons());
        let interfaces = &self.answer.contents.interfaces;
        let finished = self.stream.finish(&verdict, interfaces, told);
        finished.map_err(QueryError::Output)?;
        Ok(report)
    }
}

impl QueryReport {
    /// The verdict with its reasons: `incomplete: up to 12 packets evicted; losses before the ring unknown`.
    #[must_use]
    pub fn reasons(&self) -> String {
        let missing: Vec<String> = self.missing.iter().map(Missing::to_string).collect();
        let separator = if missing.is_empty() { "" } else { ": " };
        let verdict = self.verdict.as_str();
        let missing = missing.join(", ");
        let losses = match &self.losses_known_to {
            None => "; losses before the ring unknown".to_owned(),
            known if *known == self.to => String::new(),
            Some(known) => format!("; losses before the ring unknown after {known}"),
        };
        format!("{verdict}{separator}{missing}{losses}")
    }
}
