//! The pass over a ring's buckets: once for an answer, again and again for one that follows.
//!
//! A pass visits the buckets by their smallest time, takes the packets that match out of each, and gives out those that nothing older comes
//! before any more. In a follow that is what every producer's watermark has passed, so that the order is that of an answer given later, and
//! a reader may go on behind any packet of it (`resume.rs`). What a pass has read of a bucket that is still open, the next one leaves out.

use std::{io, sync::Arc, time::Duration};

use retroscope_ring::{AttachedState, Buffer, CopyError, Step};

use super::{
    Answer, IndexUse, PacketId, QueryError, QueryReport,
    contents::{Candidate, Contents, Losses, offset_ns, offsets},
    dumped::Dumped,
    index::{Needed, Says},
    merge::{Merge, Piece},
    newest::{Last, Newest},
    seen::{Looker, Seen},
    stream::{Statistics, Stream},
};
use crate::intake::InterfaceCounts;

/// How long a follow waits before it looks for packets again: a tenth of what an inserter may wait before it says how far it is.
const FOLLOW_LOOK: Duration = Duration::from_millis(10);
/// The same as a multiple of what a look takes, where there are very many buckets: it then costs no more than a twentieth of a processor.
const LOOKS_SHARE: i64 = 20;
/// How long the last packet may wait to become the one with the verdict, ns, where none comes behind it.
const HELD_BACK_NS: i64 = 200_000_000;
/// How often a follow writes statistics, ns.
const STATISTICS_EVERY_NS: i64 = 1_000_000_000;

/// An answer that is being written.
#[derive(Debug)]
pub(super) struct Reading<'v, W: io::Write> {
    pub(super) answer: Answer,
    /// As the answer began.
    pub(super) start: Arc<Contents>,
    /// As it was looked at last.
    pub(super) latest: Arc<Contents>,
    pub(super) buffer: Buffer,
    pub(super) merge: Merge,
    /// What has left the ring, where it is asked for.
    pub(super) dumped: Option<Dumped>,
    /// `None`: packets are counted only.
    pub(super) stream: Option<Stream<W>>,
    /// Who looks at packets that are not written.
    pub(super) looker: Option<Looker<'v>>,
    pub(super) losses: Losses,
    /// By producer.
    pub(super) progress: Vec<Progress>,
    /// `None`: no packet of the window is left out.
    pub(super) newest: Option<Newest>,
    /// Where the newest packets may begin, while the answer is counted.
    pub(super) last: Option<Last>,
    /// What a bucket must have for the index; `None`: there is none, or it does not help.
    pub(super) needed: Option<Needed>,
    pub(super) tally: Tally,
    /// Passes before this one.
    pub(super) passes: u64,
    /// A follow: the stamp up to which all that was asked for is written, ns. One that is ended in the middle of a pass has what comes before its last packet.
    pub(super) written_to_ns: Option<i64>,
}

/// How far a producer was read.
#[derive(Debug, Default, Clone)]
pub(super) struct Progress {
    /// Behind the last record that was looked for; `None`: none was.
    pub(super) end: Option<u64>,
    /// Records before this one were read.
    pub(super) read: u64,
    /// Records that are missing since its last packet in the answer.
    pub(super) dropped: u64,
    /// Its last packet in the answer.
    pub(super) last: Option<PacketId>,
}

/// What was counted.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) packets: u64,
    pub(super) bytes: u64,
    pub(super) inspected: u64,
    /// Packets of interfaces that the region does not list: their link type is unknown.
    pub(super) unlisted: u64,
    /// Packets from before 1970, which pcapng cannot tell.
    pub(super) restamped: u64,
    /// Stamps of the first and the last packet in the answer, ns.
    pub(super) first_ns: Option<i64>,
    pub(super) last_ns: Option<i64>,
    /// When the last one came, on the monotonic clock, ns.
    pub(super) came_ns: i64,
    /// What ended the answer.
    pub(super) ended_by: Option<&'static str>,
    pub(super) index: IndexUse,
}

/// A bucket to be read.
#[derive(Debug)]
pub(super) struct Visit<'c> {
    pub(super) candidate: &'c Candidate,
    /// Its records that were read before.
    pub(super) skip: u64,
    /// Records that are missing before it.
    hole: u64,
}

impl<'c> Visit<'c> {
    /// All records of a bucket.
    pub(super) fn of(candidate: &'c Candidate) -> Self {
        Self {
            candidate,
            skip: 0,
            hole: 0,
        }
    }
}

impl<'v, W: io::Write> Reading<'v, W> {
    pub(super) fn new(answer: Answer, stream: Option<Stream<W>>) -> Self {
        let info = answer.attached.info();
        let start = Arc::clone(&answer.contents);
        let progress = |producer| Progress {
            end: answer.resume.end_of(producer),
            ..Progress::default()
        };
        // What was in an answer before, only records tell.
        let has_index = answer.index.is_some() && answer.query.after.is_empty();
        let needed = has_index.then(|| answer.matching.needed(&start.interfaces));
        Self {
            latest: Arc::clone(&start),
            start,
            buffer: Buffer::new(),
            merge: Merge::new(info.producers, info.bucket_bytes),
            dumped: None,
            stream,
            looker: None,
            losses: Losses::default(),
            progress: (0..info.producers).map(progress).collect(),
            newest: None,
            last: None,
            needed: needed.flatten(),
            tally: Tally::default(),
            passes: 0,
            written_to_ns: None,
            answer,
        }
    }

    /// Shows the packets to somebody.
    pub(super) fn shown_to(self, look: &'v mut dyn FnMut(&Seen<'_>) -> bool) -> Self {
        let looker = Some(Looker::new(look));
        Self { looker, ..self }
    }

    pub(super) fn run(mut self) -> Result<QueryReport, QueryError> {
        self.dumped = self.answer.dumped();
        if self.answer.query.follow {
            self.follow()?;
        } else {
            if self.answer.query.newest {
                self = self.find_newest()?;
            }
            self.whole_pass()?;
        }
        self.end()
    }

    /// Reads all of the window.
    pub(super) fn whole_pass(&mut self) -> Result<(), QueryError> {
        let contents = Arc::clone(&self.start);
        let visits = self.visits(&contents);
        self.pass(&contents, &visits, None)?;
        self.is_ended();
        Ok(())
    }

    /// Passes until there is an end.
    fn follow(&mut self) -> Result<(), QueryError> {
        self.write_interfaces()?;
        let mut told_ns = self.answer.clock.mono_ns();
        loop {
            let begin_ns = self.answer.clock.mono_ns();
            // Before the region is looked at: what was stored until then is in it.
            let has_left = self
                .answer
                .recorder
                .as_ref()
                .is_some_and(|it| it.strong_count() == 0);
            let contents = match self.passes {
                0 => Arc::clone(&self.start),
                _ => Arc::new(Contents::read(&self.answer.attached)?),
            };
            self.latest = Arc::clone(&contents);
            self.answer.matching.learn(&contents.interfaces);
            let is_over = has_left || contents.is_over();
            let to_ns = self.answer.window.to_ns;
            let is_past = to_ns != i64::MAX && contents.is_known_to(to_ns);
            let until_ns = contents.promised_ns().filter(|_| !is_over && !is_past);
            let visits = self.visits(&contents);
            let has_news = !visits.is_empty();
            self.pass(&contents, &visits, until_ns)?;
            self.written_to_ns = match self.tally.ended_by {
                None => contents.end_ns(),
                Some(_) => self.written_to_ns.max(self.tally.last_ns),
            };
            for (producer, progress) in self.progress.iter_mut().enumerate() {
                // What it stores from now on is not missed.
                progress.end.get_or_insert(contents.end_of(producer));
            }
            let now_ns = self.answer.clock.mono_ns();
            if is_over && !is_past && self.tally.ended_by.is_none() {
                self.tally.ended_by = Some("end");
            }
            if is_past || self.tally.ended_by.is_some() {
                return Ok(());
            }
            if now_ns.saturating_sub(told_ns) >= STATISTICS_EVERY_NS {
                told_ns = now_ns;
                self.write_interfaces()?;
                self.write_statistics()?;
            }
            let is_silent = now_ns.saturating_sub(self.tally.came_ns) >= HELD_BACK_NS;
            if let Some(stream) = &mut self.stream {
                if is_silent && stream.holds_back() {
                    stream.let_go(None).map_err(QueryError::Output)?;
                }
                stream.flush().map_err(QueryError::Output)?;
            }
            let took_ns = if has_news {
                0
            } else {
                now_ns.saturating_sub(begin_ns)
            };
            let rest_ns = took_ns
                .saturating_mul(LOOKS_SHARE)
                .clamp(0, STATISTICS_EVERY_NS);
            let rest = Duration::from_nanos(rest_ns.unsigned_abs());
            self.answer.cancel.wait(rest.max(FOLLOW_LOOK));
        }
    }

    /// What there is to be read, by time: buckets with records that were not read before.
    pub(super) fn visits<'c>(&mut self, contents: &'c Contents) -> Vec<Visit<'c>> {
        let mut order: Vec<usize> = (0..contents.buckets.len()).collect();
        order.sort_by_key(|index| {
            let bucket = &contents.buckets[*index].bucket;
            (bucket.producer, bucket.first, bucket.sequence)
        });
        let mut visits = Vec::new();
        let mut read = Vec::new();
        for index in order {
            let candidate = &contents.buckets[index];
            let bucket = &candidate.bucket;
            let Some(progress) = self.progress.get_mut(bucket.producer) else {
                continue;
            };
            let end = bucket.first.saturating_add(bucket.packets);
            let offsets = offsets(&contents.steps, bucket.producer);
            if !self.answer.window.touches(candidate.reach_ns, offsets) {
                progress.end = progress.end.map(|known| known.max(end));
                continue;
            }
            let hole = progress
                .end
                .map_or(0, |known| bucket.first.saturating_sub(known));
            progress.end = progress.end.max(Some(end));
            let skip = progress
                .read
                .saturating_sub(bucket.first)
                .min(bucket.packets);
            if skip < bucket.packets || hole > 0 {
                let visit = Visit {
                    candidate,
                    skip,
                    hole,
                };
                visits.push((index, visit));
                read.push((bucket.producer, end));
            }
        }
        if self.answer.query.follow {
            for (producer, end) in read {
                let progress = &mut self.progress[producer];
                progress.read = progress.read.max(end);
            }
        }
        visits.sort_by_key(|(index, _)| *index);
        visits.into_iter().map(|(_, visit)| visit).collect()
    }

    /// Reads these buckets and writes what comes before `until_ns` of ring time; `None`: all.
    pub(super) fn pass(
        &mut self,
        contents: &Contents,
        visits: &[Visit<'_>],
        until_ns: Option<i64>,
    ) -> Result<(), QueryError> {
        if let Some(dumped) = self.dumped.as_mut().filter(|_| self.passes == 0) {
            dumped.begin(&mut self.merge, &contents.steps);
        }
        for visit in visits {
            if self.is_ended() {
                break;
            }
            self.bucket(contents, visit, until_ns)?;
        }
        if !self.is_ended() {
            self.write_before(contents, until_ns)?;
        }
        self.passes += 1;
        Ok(())
    }

    /// Whether there is no more to be done.
    pub(super) fn is_ended(&mut self) -> bool {
        if self.tally.ended_by.is_none() && self.answer.cancel.is_cancelled() {
            self.tally.ended_by = Some("cancelled");
        }
        self.tally.ended_by.is_some()
    }

    /// Reads a bucket, if it may have packets of the window, and writes those of buckets before it.
    fn bucket(
        &mut self,
        contents: &Contents,
        visit: &Visit<'_>,
        until_ns: Option<i64>,
    ) -> Result<(), QueryError> {
        let Candidate {
            bucket, span_ns, ..
        } = visit.candidate;
        let producer = bucket.producer;
        let offsets = offsets(&contents.steps, producer);
        let window = self.answer.window;
        if visit.hole > 0 {
            self.progress[producer].dropped += visit.hole;
            // Else the contents tell it.
            if self.passes > 0 || self.answer.resume.end_of(producer).is_some() {
                let stamps = window.part(*span_ns, offsets);
                self.losses.add("evicted", stamps, Some(visit.hole));
            }
        }
        if !window.touches(visit.candidate.reach_ns, offsets) || visit.skip >= bucket.packets {
            return Ok(());
        }
        let before_ns = until_ns.map_or(span_ns.0, |until_ns| until_ns.min(span_ns.0));
        self.write_before(contents, Some(before_ns))?;
        if self.is_ended() {
            return Ok(());
        }
        let says = self.ask_index(contents, visit);
        let index = &mut self.tally.index;
        match says {
            Some(Says::Nothing) => {
                index.ruled_out += 1;
                self.tally.inspected += bucket.packets;
                return Ok(());
            }
            Some(Says::Perhaps) => index.read += 1,
            Some(Says::Useless) => index.useless += 1,
            Some(Says::Unknown) => index.made += 1,
            None => {}
        }
        // Of those that were in the answer before, none is missing.
        let had = self.answer.resume.end_of(producer).unwrap_or(0);
        let end = bucket.first.saturating_add(bucket.packets);
        let left = end.saturating_sub(had.max(bucket.first.saturating_add(visit.skip)));
        let copied =
            self.answer
                .attached
                .copy_bucket_from(bucket.bucket, visit.skip, &mut self.buffer);
        let cause = match copied {
            Ok(()) if self.take(contents, visit) => {
                self.fill_index(contents, visit, says);
                return Ok(());
            }
            Ok(()) | Err(CopyError::Damaged { .. }) => "damaged",
            // As it was when its header was read, it had nothing of the window.
            Err(CopyError::Overwritten(_)) if !window.touches(*span_ns, offsets) => return Ok(()),
            Err(CopyError::Overwritten(_)) => {
                let offset_ns = offset_ns(&contents.steps, producer, bucket.first);
                let is_first = self.tally.packets == 0 && self.passes == 0;
                let window = &mut self.answer.window;
                if is_first && window.begin_behind(span_ns.1, offset_ns) {
                    return Ok(());
                }
                self.progress[producer].dropped += left;
                "evicted"
            }
            Err(error) => return Err(error.into()),
        };
        if left > 0 {
            let stamps = window.part(*span_ns, offsets);
            self.losses.add(cause, stamps, Some(left));
        }
        Ok(())
    }

    /// What the index says of a bucket; `None`: it is not asked.
    pub(super) fn ask_index(&self, contents: &Contents, visit: &Visit<'_>) -> Option<Says> {
        let Candidate {
            bucket, span_ns, ..
        } = visit.candidate;
        let needed = self.needed.as_ref()?;
        if bucket.state != AttachedState::Closed || visit.skip > 0 || self.passes > 0 {
            return None;
        }
        let says = self.answer.index.as_ref()?.asks(bucket.bucket, needed);
        let offsets = offsets(&contents.steps, bucket.producer);
        // How many of its packets are in the window, only they tell.
        let is_whole = self.answer.window.holds_all(*span_ns, offsets);
        Some(match says {
            Says::Nothing if !is_whole => Says::Perhaps,
            says => says,
        })
    }

    /// Gives the index what it lacks of the copied bucket.
    fn fill_index(&self, contents: &Contents, visit: &Visit<'_>, says: Option<Says>) {
        if says == Some(Says::Unknown)
            && let (Some(index), Some(needed)) = (&self.answer.index, &self.needed)
        {
            let bucket = visit.candidate.bucket.bucket;
            let packets = self.buffer.packets();
            index.make(bucket, needed, &contents.interfaces, packets);
        }
    }

    /// Keeps the packets of the copied bucket that are asked for. `false`: the bucket does not hold what its header says.
    fn take(&mut self, contents: &Contents, visit: &Visit<'_>) -> bool {
        let Candidate {
            bucket, span_ns, ..
        } = visit.candidate;
        let lengths = self.lengths();
        let mut piece = Piece::default();
        let found = self.each_match(contents, visit, |packet, record, stamp_ns| {
            let place = (0, bucket.producer, record);
            piece.push(packet, place, stamp_ns, lengths);
        });
        let dropped = &mut self.progress[bucket.producer].dropped;
        if !piece.is_empty() {
            piece.sort(std::mem::take(dropped));
            self.merge.add(piece);
        }
        let left = usize::try_from(bucket.packets - visit.skip).unwrap_or(usize::MAX);
        let is_there = self.buffer.len() >= left && found.bytes <= bucket.bytes;
        let is_inside = span_ns.0 <= found.times_ns.0 && found.times_ns.1 <= span_ns.1;
        // The header of an open one speaks of more than so many records.
        let is_part = bucket.state == AttachedState::Open || visit.skip > 0;
        is_there
            && is_inside
            && (is_part || (found.bytes, found.times_ns) == (bucket.bytes, *span_ns))
    }

    /// Calls `take` with each packet of the copied bucket that is asked for, its number and its stamp.
    pub(super) fn each_match(
        &mut self,
        contents: &Contents,
        visit: &Visit<'_>,
        mut take: impl FnMut(&retroscope_ring::Packet<'_>, u64, i64),
    ) -> FoundInBucket {
        let bucket = &visit.candidate.bucket;
        let Contents {
            interfaces, steps, ..
        } = contents;
        let offsets = offsets(steps, bucket.producer);
        let Answer {
            window,
            matching,
            resume,
            ..
        } = &mut self.answer;
        // An open bucket has more records by now than when its header was read.
        let left = usize::try_from(bucket.packets - visit.skip).unwrap_or(usize::MAX);
        let mut found = FoundInBucket::default();
        for (index, packet) in (visit.skip..).zip(self.buffer.packets().take(left)) {
            found.bytes = found.bytes.saturating_add(packet.data.len() as u64);
            let time_ns = packet.time_ns;
            found.times_ns = (time_ns.min(found.times_ns.0), time_ns.max(found.times_ns.1));
            let record = bucket.first.wrapping_add(index);
            let Some(entry) = interfaces.get(usize::from(packet.interface)) else {
                self.tally.unlisted += u64::from(window.touches((time_ns, time_ns), offsets));
                continue;
            };
            let stamp_ns = Step::stamp_ns(steps, bucket.producer, entry.clock, record, time_ns);
            if !window.holds(time_ns, stamp_ns)
                || !matching.asks(packet.interface)
                || resume.had(time_ns, bucket.producer, record)
            {
                continue;
            }
            self.tally.inspected += 1;
            if matching.takes(entry, &packet) {
                take(&packet, record, stamp_ns);
            }
        }
        found
    }

    /// Bytes of each packet that the answer has at most, and that are kept for the answer.
    fn lengths(&self) -> (usize, usize) {
        let headers = self.answer.query.headers;
        let snaplen = headers.map_or(usize::MAX, |bytes| bytes.get() as usize);
        let is_shown = self.stream.is_some() || self.looker.is_some();
        (snaplen, if is_shown { snaplen } else { 0 })
    }

    /// Writes packets, in order, that nothing of `until_ns` or later comes before.
    fn write_before(
        &mut self,
        contents: &Contents,
        until_ns: Option<i64>,
    ) -> Result<(), QueryError> {
        let before = self.tally.packets;
        let lengths = self.lengths();
        let mut merge = std::mem::take(&mut self.merge);
        while let Some((packet, data, dump)) = merge.next(until_ns, |dump| {
            let dumped = self.dumped.as_mut();
            let answer = &mut self.answer;
            dumped.map_or_else(Piece::default, |it| {
                it.fill(dump, answer, contents, lengths)
            })
        }) {
            let window = &self.answer.window;
            // The window may have begun later since.
            if dump.is_none() && !window.holds(packet.time_ns, packet.stamp_ns) {
                continue;
            }
            let dumped = self.dumped.as_ref();
            let other = dumped.and_then(|dumped| dumped.entry(packet.interface));
            let entry = contents.interfaces.get(usize::from(packet.interface));
            let Some(entry) = entry.or(other.as_deref()) else {
                continue; // never: `Dumped` made one for each packet
            };
            let goes_on = self.give(entry, packet, data, dump);
            if !goes_on.map_err(QueryError::Output)? {
                break;
            }
        }
        self.merge = merge;
        if self.tally.packets > before {
            self.tally.came_ns = self.answer.clock.mono_ns();
        }
        Ok(())
    }

    /// Writes the blocks of interfaces that are asked for, so that programs which read a pipe begin: where these have one link type, as these
    /// programs want it.
    fn write_interfaces(&mut self) -> Result<(), QueryError> {
        let Some(stream) = &mut self.stream else {
            return Ok(());
        };
        let numbered = (0_u16..).zip(&self.latest.interfaces);
        let mut asked = numbered.filter(|(number, _)| self.answer.matching.asks(*number));
        let first = asked.clone().next().map(|(_, entry)| entry.link_type);
        if asked
            .clone()
            .all(|(_, entry)| Some(entry.link_type) == first)
        {
            stream.interfaces(&mut asked).map_err(QueryError::Output)?;
        }
        Ok(())
    }

    fn write_statistics(&mut self) -> Result<(), QueryError> {
        let report = self.report();
        self.write_statistics_of(&report)
    }

    pub(super) fn write_statistics_of(&mut self, report: &QueryReport) -> Result<(), QueryError> {
        let window = self.final_window();
        let Some(stream) = &mut self.stream else {
            return Ok(());
        };
        let recorder = self
            .answer
            .recorder
            .as_ref()
            .and_then(std::sync::Weak::upgrade);
        let recorder = recorder.filter(|recorder| recorder.is_live());
        let statistics = Statistics {
            report: &report.comment(),
            start_ns: self.answer.attached.info().created_ns,
            span_ns: window.told,
        };
        let counts = |number| match &recorder {
            Some(recorder) => recorder.intake.interface_counts(number),
            None => InterfaceCounts::default(),
        };
        let written = stream.statistics(&statistics, counts);
        written.map_err(QueryError::Output)
    }
}

/// What a bucket turned out to hold.
#[derive(Debug)]
pub(super) struct FoundInBucket {
    bytes: u64,
    /// Smallest and largest ring time, ns.
    times_ns: (i64, i64),
}

impl Default for FoundInBucket {
    fn default() -> Self {
        Self {
            bytes: 0,
            times_ns: (i64::MAX, i64::MIN),
        }
    }
}
