//! The pass over a ring's buckets: usually once for an answer, repeatedly for a follow.
//!
//! A pass visits the buckets by their smallest time, and takes the matching packets out of each
//! bucket. Usually it gives out a packet when no older packet can follow. So a follow usually has
//! the same order as a later answer.

use std::{io, sync::Arc, time::Duration};

use retroscope_ring::{AttachedState, Buffer, CopyError, Step};

use super::{
    IndexUse, PacketId, QueryAnswer, QueryError, QueryReport,
    contents::{CandidateBucket, QueryLosses, RegionContents, offset_ns, offsets},
    dump_reader::DumpReader,
    index::{IndexAnswer, IndexQuestion},
    merge::{AnswerMerge, PacketBatch},
    newest::{LastPackets, NewestStart},
    stream::{AnswerStatistics, AnswerStream},
    visitor::{Look, PacketVisitor},
};
use crate::intake::InterfaceCounts;

/// Shortest wait of a follow between two checks for packets.
const FOLLOW_LOOK: Duration = Duration::from_millis(10);
/// After a check that finds no new records, a follow waits at least this many times as long as the
/// check took, but at most 1 s.
const LOOKS_SHARE: i64 = 20;
/// A follow does not write its latest packet at once: if the answer ends, that packet gets the
/// verdict. If no packet follows within this time, ns, the follow writes the latest packet without
/// a verdict.
const HELD_BACK_NS: i64 = 200_000_000;
/// Interval at which a follow writes statistics, ns.
const STATISTICS_EVERY_NS: i64 = 1_000_000_000;

#[derive(Debug)]
pub(super) struct AnswerReading<'v, W: io::Write> {
    pub(super) answer: QueryAnswer,
    /// The contents of the ring at the start of the answer.
    pub(super) start: Arc<RegionContents>,
    /// The latest contents of the ring.
    pub(super) latest: Arc<RegionContents>,
    pub(super) buffer: Buffer,
    pub(super) merge: AnswerMerge,
    /// Dumps with packets that left the ring, if the query asks for dumps.
    pub(super) dumped: Option<DumpReader>,
    /// The output. `None`: packets are not written.
    pub(super) stream: Option<AnswerStream<W>>,
    /// The caller's function, which gets the packets instead of the output.
    pub(super) visitor: Option<PacketVisitor<'v>>,
    pub(super) losses: QueryLosses,
    pub(super) progress: Vec<ProducerProgress>,
    /// Where the newest packets begin. `None`: no packet of the window is left out.
    pub(super) newest: Option<NewestStart>,
    /// The candidates for the start of the newest packets, while the answer is counted.
    pub(super) last: Option<LastPackets>,
    /// The question for the index. `None`: the index is not used.
    pub(super) needed: Option<IndexQuestion>,
    pub(super) tally: QueryTally,
    /// Number of earlier passes.
    pub(super) passes: u64,
    /// Follow: stamp up to which usually all matching packets are written, ns.
    pub(super) written_to_ns: Option<i64>,
}

/// Progress of the reading of one producer.
#[derive(Debug, Default, Clone)]
pub(super) struct ProducerProgress {
    /// The number after the last record that is accounted for: a later bucket that begins after
    /// this number shows a gap. `None`: the first bucket shows no gap.
    pub(super) end: Option<u64>,
    /// Follow: the next pass skips the records before this record.
    pub(super) read: u64,
    /// Records that are missing since the last bucket with a matching packet.
    pub(super) dropped: u64,
    /// The producer's last packet in the answer, without packets from dumps.
    pub(super) last: Option<PacketId>,
}

#[derive(Debug, Default)]
pub(super) struct QueryTally {
    pub(super) packets: u64,
    pub(super) bytes: u64,
    pub(super) inspected: u64,
    /// Packets of interfaces that the region does not list: their link type is unknown.
    pub(super) unlisted: u64,
    /// Packets from before 1970, whose stamps pcapng cannot store.
    pub(super) restamped: u64,
    /// Stamp of the first packet in the answer, ns.
    pub(super) first_ns: Option<i64>,
    pub(super) last_ns: Option<i64>,
    /// Time at which the answer last got packets, on the monotonic clock, ns.
    pub(super) came_ns: i64,
    /// The reason why the answer ended early.
    pub(super) ended_by: Option<&'static str>,
    pub(super) index: IndexUse,
}

#[derive(Debug)]
pub(super) struct BucketRead<'c> {
    pub(super) candidate: &'c CandidateBucket,
    /// Records of the bucket that were read before.
    pub(super) skip: u64,
    /// Records that are missing before the bucket.
    hole: u64,
}

impl<'c> BucketRead<'c> {
    pub(super) fn of(candidate: &'c CandidateBucket) -> Self {
        Self {
            candidate,
            skip: 0,
            hole: 0,
        }
    }
}

impl<'v, W: io::Write> AnswerReading<'v, W> {
    pub(super) fn new(answer: QueryAnswer, stream: Option<AnswerStream<W>>) -> Self {
        let info = answer.attached.info();
        let start = Arc::clone(&answer.contents);
        let progress = |producer| ProducerProgress {
            end: answer.resume.end_of(producer),
            ..ProducerProgress::default()
        };
        // With `after`, the query uses no index: only the records of a bucket show which packets an
        // earlier answer had.
        let has_index = answer.index.is_some() && answer.query.after.is_empty();
        let needed = has_index.then(|| answer.matching.needed(&start.interfaces));
        Self {
            latest: Arc::clone(&start),
            start,
            buffer: Buffer::new(),
            merge: AnswerMerge::new(info.producers, info.bucket_bytes),
            dumped: None,
            stream,
            visitor: None,
            losses: QueryLosses::default(),
            progress: (0..info.producers).map(progress).collect(),
            newest: None,
            last: None,
            needed: needed.flatten(),
            tally: QueryTally::default(),
            passes: 0,
            written_to_ns: None,
            answer,
        }
    }

    pub(super) fn shown_to(self, look: &'v mut Look<'v>) -> Self {
        let visitor = Some(PacketVisitor(look));
        Self { visitor, ..self }
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

    pub(super) fn whole_pass(&mut self) -> Result<(), QueryError> {
        let contents = Arc::clone(&self.start);
        let visits = self.visits(&contents);
        self.pass(&contents, &visits, None)?;
        self.is_ended();
        Ok(())
    }

    fn follow(&mut self) -> Result<(), QueryError> {
        self.write_interfaces()?;
        let mut told_ns = self.answer.clock.mono_ns();
        loop {
            let begin_ns = self.answer.clock.mono_ns();
            // Whether the recorder has ended is read before the region, which then has all of its
            // records. The region of the first pass was read earlier.
            let recorder = self.answer.recorder.as_ref();
            let has_left = self.passes > 0 && recorder.is_some_and(|it| it.strong_count() == 0);
            let contents = match self.passes {
                0 => Arc::clone(&self.start),
                _ => Arc::new(RegionContents::read(&self.answer.attached)?),
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
                // If later records of the producer are missing, the next pass reports a gap.
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

    /// The buckets that may have packets of the window that no earlier pass has read, and buckets
    /// before which records are missing. Sorted by their smallest time.
    pub(super) fn visits<'c>(&mut self, contents: &'c RegionContents) -> Vec<BucketRead<'c>> {
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
                let visit = BucketRead {
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

    /// Reads these buckets and writes the packets before `until_ns` of ring time; `None`: all
    /// packets.
    pub(super) fn pass(
        &mut self,
        contents: &RegionContents,
        visits: &[BucketRead<'_>],
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

    /// Whether the answer has ended.
    pub(super) fn is_ended(&mut self) -> bool {
        let scan = self.answer.scan.as_ref();
        if scan.is_some_and(|scan| scan.are_over(self.answer.clock.mono_ns())) {
            self.answer
                .cancel
                .cancel_because("the scan took longer than 60 s");
        }
        if self.tally.ended_by.is_none() && self.answer.cancel.is_cancelled() {
            self.tally.ended_by = Some("cancelled");
        }
        self.tally.ended_by.is_some()
    }

    /// Reads a bucket, unless the window, an earlier pass or the index excludes all of its packets.
    /// First writes the packets before the bucket.
    fn bucket(
        &mut self,
        contents: &RegionContents,
        visit: &BucketRead<'_>,
        until_ns: Option<i64>,
    ) -> Result<(), QueryError> {
        let CandidateBucket {
            bucket, span_ns, ..
        } = visit.candidate;
        let producer = bucket.producer;
        let offsets = offsets(&contents.steps, producer);
        let window = self.answer.window;
        if visit.hole > 0 {
            self.progress[producer].dropped += visit.hole;
            // In other cases `RegionContents::missing` reports the loss.
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
            Some(IndexAnswer::Nothing) => {
                index.ruled_out += 1;
                self.tally.inspected += bucket.packets;
                return Ok(());
            }
            Some(IndexAnswer::Perhaps) => index.read += 1,
            Some(IndexAnswer::Useless) => index.useless += 1,
            Some(IndexAnswer::Unknown) => index.made += 1,
            None => {}
        }
        // Packets of an earlier answer are not missing.
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
            // According to its header, the bucket had no packet of the window.
            Err(CopyError::Overwritten(_)) if !window.touches(*span_ns, offsets) => return Ok(()),
            Err(CopyError::Overwritten(_)) => {
                let offset_ns = offset_ns(&contents.steps, producer, bucket.first);
                let is_first = self.tally.packets == 0 && self.passes == 0;
                let window = &mut self.answer.window;
                // Dumps may give packets from before the bucket: the start of the window stays.
                let is_first = is_first && self.dumped.is_none();
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

    /// The result of the index for a bucket; `None`: the index is not used.
    pub(super) fn ask_index(
        &self,
        contents: &RegionContents,
        visit: &BucketRead<'_>,
    ) -> Option<IndexAnswer> {
        let CandidateBucket {
            bucket, span_ns, ..
        } = visit.candidate;
        let needed = self.needed.as_ref()?;
        if bucket.state != AttachedState::Closed || visit.skip > 0 || self.passes > 0 {
            return None;
        }
        let says = self.answer.index.as_ref()?.asks(bucket.bucket, needed);
        let offsets = offsets(&contents.steps, bucket.producer);
        // If only a part of the bucket is in the window, the bucket must be read to count its
        // packets.
        let is_whole = self.answer.window.holds_all(*span_ns, offsets);
        Some(match says {
            IndexAnswer::Nothing if !is_whole => IndexAnswer::Perhaps,
            says => says,
        })
    }

    fn fill_index(
        &self,
        contents: &RegionContents,
        visit: &BucketRead<'_>,
        says: Option<IndexAnswer>,
    ) {
        if says == Some(IndexAnswer::Unknown)
            && let (Some(index), Some(needed)) = (&self.answer.index, &self.needed)
        {
            let bucket = visit.candidate.bucket.bucket;
            let packets = self.buffer.packets();
            index.make(bucket, needed, &contents.interfaces, packets);
        }
    }

    /// Takes the matching packets out of the copied bucket. Returns false if the bucket differs
    /// from its header.
    fn take(&mut self, contents: &RegionContents, visit: &BucketRead<'_>) -> bool {
        let CandidateBucket {
            bucket, span_ns, ..
        } = visit.candidate;
        let lengths = self.lengths();
        let mut piece = PacketBatch::default();
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
        // The header has the bytes and times of all records; in an open bucket, also of records
        // that are not published.
        let is_part = bucket.state == AttachedState::Open || visit.skip > 0;
        is_there
            && is_inside
            && (is_part || (found.bytes, found.times_ns) == (bucket.bytes, *span_ns))
    }

    /// Calls `take` with each matching packet, its record number and its stamp.
    pub(super) fn each_match(
        &mut self,
        contents: &RegionContents,
        visit: &BucketRead<'_>,
        mut take: impl FnMut(&retroscope_ring::Packet<'_>, u64, i64),
    ) -> FoundInBucket {
        let bucket = &visit.candidate.bucket;
        let RegionContents {
            interfaces, steps, ..
        } = contents;
        let offsets = offsets(steps, bucket.producer);
        let QueryAnswer {
            window,
            matching,
            resume,
            scan,
            ..
        } = &mut self.answer;
        let is_tried = |place, packet: &retroscope_ring::Packet<'_>| {
            let bounds = scan.as_ref();
            bounds.is_none_or(|bounds| bounds.has(place, packet.shard))
        };
        // An open bucket may have more records by now than when its header was read.
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
                || !is_tried((bucket.producer, record), &packet)
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

    /// Maximum number of bytes of each packet: in the answer, and in memory while the packet waits.
    fn lengths(&self) -> (usize, usize) {
        let headers = self.answer.query.headers;
        let snaplen = headers.map_or(usize::MAX, |bytes| bytes.get() as usize);
        let is_shown = self.stream.is_some() || self.visitor.is_some();
        (snaplen, if is_shown { snaplen } else { 0 })
    }

    /// Writes the waiting packets before `until_ns` of ring time; `None`: all packets. If too many
    /// bytes wait, also later packets.
    fn write_before(
        &mut self,
        contents: &RegionContents,
        until_ns: Option<i64>,
    ) -> Result<(), QueryError> {
        let before = self.tally.packets;
        let lengths = self.lengths();
        let mut merge = std::mem::take(&mut self.merge);
        while let Some((packet, data, dump)) = merge.next(until_ns, |dump| {
            let dumped = self.dumped.as_mut();
            let answer = &mut self.answer;
            dumped.map_or_else(PacketBatch::default, |it| {
                it.fill(dump, answer, contents, lengths)
            })
        }) {
            let window = &self.answer.window;
            // The start of the window may have moved forward since the packet was read.
            if dump.is_none() && !window.holds(packet.time_ns, packet.stamp_ns) {
                continue;
            }
            let dumped = self.dumped.as_ref();
            let other = dumped.and_then(|dumped| dumped.entry(packet.interface));
            let entry = contents.interfaces.get(usize::from(packet.interface));
            let Some(entry) = entry.or(other.as_deref()) else {
                continue; // never: `DumpReader` knows the interfaces of all its packets
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

    /// Writes the blocks of interfaces whose packets may match, so that programs that read a pipe
    /// begin. Writes no block if these interfaces have several link types.
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
        let statistics = AnswerStatistics {
            report: &report.comment(),
            start_ns: self.answer.attached.info().created_ns,
            span_ns: window.reported_ns,
        };
        let counts = |number| match &recorder {
            Some(recorder) => recorder.intake.interface_counts(number),
            None => InterfaceCounts::default(),
        };
        let written = stream.statistics(&statistics, counts);
        written.map_err(QueryError::Output)
    }
}

/// The sum of bytes and the range of times of the records that were read from a bucket.
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
