//! A shard with its own reader of the ring.
//!
//! Live, the readers divide the producers, or each reader reads all records and analyzes those of
//! its shard ([`AnalysisPlacement`]). When reading files, each reader reads all records. The
//! readers queue hits for the analyzer, which opens and closes windows.

use std::{
    cell::Cell,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use retroscope_ring::{Batch, Packet, Positions, Reader, Waker};

use crate::{
    analysis::{
        RingReader,
        chunk::{Chunk, MANY},
        director::HitOrder,
        hit_queue::HitQueue,
        predicate::DumpExpression,
        shard::{Findings, FlowEnded, NumberedPacket, NumberedPackets, OwnPackets, Shard},
        shard_slots::{AnalysisPlacement, ShardSlot, ShardSlots, UnanalyzedGap},
    },
    control::{common::RecorderShared, hits::HitRefusal, progress::promised, pulse::ThreadPulse},
    intake::{counters::hull, inserter::shards::StoredShards},
};

/// Live: maximum number of batches that one step analyzes.
const BATCHES: usize = 64;
/// From files: a reader with at least this number of hits queues them before the batch ends.
const TOGETHER: usize = 1024;
/// Live: desired maximum time between two readings of the clock while packets are analyzed, ns.
pub(crate) const STRIDE_NS: i64 = 50_000;
/// Live: approximate time limit for analyzing packets after a stop, ns.
pub(crate) const STOP_DRAIN_NS: i64 = 3_000_000_000;

/// Reads the ring for one shard.
#[derive(Debug)]
pub(crate) struct ShardReader {
    reader: Reader,
    work: ReaderWork,
    /// Live: the shard, while an inserter has taken it from its slot.
    shard: Option<Box<Shard>>,
    pulse: ThreadPulse,
}

/// The state with which a reader analyzes packets.
#[derive(Debug)]
struct ReaderWork {
    common: Arc<RecorderShared>,
    slots: Arc<ShardSlots>,
    slot: usize,
    /// Wakes the analyzer.
    waker: Waker,
    found: ReaderFindings,
    /// The next record to analyze, of the producer of the last batch or burst.
    looked: u64,
    /// Live, by producer: whether the producer is this reader's and promises watermarks.
    promises: Vec<bool>,
    /// By producer: a lower bound of the packet times of the last batch, ns.
    last_ns: Vec<i64>,
    stopped_ns: Option<i64>,
    is_time_over: bool,
    stride: Stride,
    /// Live, if the readers divide the shards: the numbers of stored packets by shard.
    stored: Option<Arc<StoredShards>>,
    /// With `stored`, by producer: what the reader knows about its shard's packets.
    shares: Vec<Share>,
}

/// A shard's packets of one producer. An overtaken reader learns how many packets of its shard it
/// missed from a later count in [`StoredShards`].
#[derive(Debug, Default, Clone)]
struct Share {
    /// Packets of the shard that were analyzed or missed.
    accounted: u64,
    /// The record after the last one read.
    next: u64,
    /// Time range of missed packets whose number is not known yet, ns.
    gap_ns: Option<(i64, i64)>,
    /// With a gap: a record after the gap, and the number of the shard's packets before this
    /// record.
    counted: Option<(u64, u64)>,
}

impl Share {
    /// The producer overtook the reader, which continues with record `first`.
    fn overtaken(&mut self, first: u64, span_ns: (i64, i64)) {
        self.gap_ns = Some(hull(self.gap_ns.unwrap_or(span_ns), span_ns));
        self.counted = self.counted.filter(|(record, _)| *record >= first);
    }

    /// For a gap without a count: remembers the record that `count` returns, if not before `first`,
    /// and the number of the shard's packets before this record.
    fn look_behind(&mut self, first: u64, count: impl FnOnce() -> (u64, u64)) {
        if self.gap_ns.is_some() && self.counted.is_none() {
            self.counted = Some(count()).filter(|(record, _)| *record >= first);
        }
    }

    /// The records before `end` were read, and `analyzed` more packets were analyzed. `before`
    /// returns how many of these packets are before a record. Returns the gap's time range and
    /// missed packets, if their number is known now.
    fn read(
        &mut self,
        end: u64,
        analyzed: u64,
        before: impl FnOnce(u64) -> u64,
    ) -> Option<((i64, i64), u64)> {
        let mut gap = None;
        if let Some((record, packets)) = self.counted.take_if(|(record, _)| *record <= end) {
            let missed = packets.saturating_sub(self.accounted + before(record));
            self.accounted += missed;
            gap = self.gap_ns.take().map(|span_ns| (span_ns, missed));
        }
        self.accounted += analyzed;
        self.next = end;
        gap
    }
}

/// The findings of a reader that are not queued yet.
#[derive(Debug)]
struct ReaderFindings {
    slots: Arc<ShardSlots>,
    /// Live: hits, with what they would dump, and ended flows.
    live: HitQueue,
    /// Hits from files. The analyzer derives what the hits would dump.
    files: Vec<HitOrder>,
}

impl Findings for ReaderFindings {
    fn are_wanted(&self) -> bool {
        self.slots.are_armed()
    }

    fn hit(&mut self, order: HitOrder, expression: Option<Result<DumpExpression, HitRefusal>>) {
        match expression {
            Some(expression) => self.live.push((order, expression)),
            None => self.files.push(order),
        }
    }

    fn flow_ended(&mut self, _: u64, over: FlowEnded) {
        self.live.push_flow_ended(over);
    }
}

impl ShardReader {
    /// A reader for the shard of a slot; `reader` reads the producers of that shard.
    pub(crate) fn new(
        common: Arc<RecorderShared>,
        (slots, slot): (Arc<ShardSlots>, usize),
        reader: Reader,
        (waker, pulse): (Waker, ThreadPulse),
    ) -> Self {
        let mut promises = common.intake.promises();
        for (producer, promises) in promises.iter_mut().enumerate() {
            let is_mine = producer % slots.all().len() == slot;
            *promises &= is_mine || slots.placement == AnalysisPlacement::ShardReaders;
        }
        let work = ReaderWork {
            // Files have one producer, whatever the number of queues.
            last_ns: vec![i64::MIN; promises.len().max(1)],
            promises,
            found: ReaderFindings {
                slots: Arc::clone(&slots),
                live: HitQueue::default(),
                files: Vec::new(),
            },
            slots,
            slot,
            waker,
            looked: 0,
            stopped_ns: None,
            is_time_over: false,
            stride: Stride {
                packets: MANY,
                read_ns: 0,
            },
            stored: None,
            shares: Vec::new(),
            common,
        };
        Self {
            reader,
            work,
            shard: None,
            pulse,
        }
    }

    /// `stored`: live, if the readers divide the shards, the inserters' counts of packets by shard.
    pub(crate) fn with_stored(mut self, stored: Option<Arc<StoredShards>>) -> Self {
        self.work.shares = vec![Share::default(); self.work.promises.len()];
        self.work.stored = stored;
        self
    }

    /// A handle that wakes this reader.
    pub(crate) fn waker(&self) -> Waker {
        self.reader.waker()
    }

    /// How far the readers of the group of this reader have read.
    pub(crate) fn positions(&self) -> Positions {
        self.reader.positions()
    }

    /// Takes the shard out of its slot for the inserter. Returns `false` if the slot is empty or in
    /// use.
    pub(crate) fn take_shard(&mut self) -> bool {
        self.shard = self.work.slots.all()[self.work.slot].take();
        self.shard.is_some()
    }

    /// Queues the shard's hits, then puts the shard back into its slot.
    pub(crate) fn put_back(&mut self) {
        self.pass_analyzed();
        let slot = &self.work.slots.all()[self.work.slot];
        slot.queue_hits(&mut self.work.found.live);
        self.reader.release();
        if let Some(shard) = self.shard.take() {
            slot.put_back(shard);
        }
    }

    /// Queues the hits of the inserter's shard without waiting. Returns `false` if some are left.
    pub(crate) fn flush_hits(&mut self) -> bool {
        let hits = &mut self.work.found.live;
        if !hits.is_empty() {
            self.work.slots.all()[self.work.slot].try_queue_hits(hits);
        }
        hits.is_empty()
    }

    /// Whether a producer of this reader promises watermarks.
    pub(crate) fn promises_watermarks(&self) -> bool {
        self.work.promises.contains(&true)
    }

    /// Whether the inserter's shard has hits or ended flows to queue.
    pub(crate) fn has_hits(&self) -> bool {
        !self.work.found.live.is_empty()
    }

    /// Releases the held bucket, if any.
    pub(crate) fn release(&mut self) {
        self.reader.release();
    }

    /// The record after the last one that the inserter's shard analyzed or skipped.
    pub(crate) fn looked(&self) -> u64 {
        self.work.looked
    }

    /// Analyzes or skips packets that the inserter stored as records from [`Self::looked`] on,
    /// while `go_on` returns `true`. `go_on` gets the monotonic time, ns.
    pub(crate) fn analyze_in_hand<'p>(
        &mut self,
        producer: usize,
        packets: impl ExactSizeIterator<Item = Packet<'p>> + Clone,
        pulse: &ThreadPulse,
        go_on: &mut dyn FnMut(i64) -> bool,
    ) {
        let Some(shard) = &mut self.shard else {
            return;
        };
        let (slots, work) = (Arc::clone(&self.work.slots), &mut self.work);
        let (slot, first) = (&slots.all()[work.slot], work.looked);
        let end = first + packets.len() as u64;
        if !work.found.are_wanted() && !shard.needs_all_packets() {
            work.looked = end;
        } else {
            work.stride.begin(work.common.clock.mono_ns());
            let mut analysis = work.analysis(slot, pulse, true, (first, end));
            let mut packets = NumberedPackets::from(first, packets);
            analysis.run(shard, producer, &mut packets, go_on);
            work.looked = analysis.next;
        }
        // Relaxed: no other data is ordered with the number.
        slot.counters
            .analyzed
            .fetch_add(work.looked - first, Ordering::Relaxed);
    }

    /// Moves the reader past the records that were analyzed in hand, if it is not past these
    /// records already.
    fn pass_analyzed(&mut self) {
        // If inserters run shards, the shard in slot N analyzes the packets of producer N.
        let producer = self.work.slot;
        let position = self.reader.positions().get(producer);
        self.reader
            .continue_at(producer, self.work.looked.max(position));
    }

    /// Call this after the records analyzed in hand are published. Applies rule changes, lets time
    /// pass in the shard, and returns whether it found ended flows.
    pub(crate) fn after_publish(&mut self, now_ns: i64) -> bool {
        self.pass_analyzed();
        let Some(shard) = &mut self.shard else {
            return false;
        };
        let slot = &self.work.slots.all()[self.work.slot];
        slot.refresh(shard, &mut self.work.found.live);
        let mut over = shard.pass(now_ns).into_iter().peekable();
        let is_any = over.peek().is_some();
        over.for_each(|over| self.work.found.live.push_flow_ended(over));
        is_any
    }

    /// Takes the messages of the inserter's shard.
    pub(crate) fn take_notices(&mut self) -> Vec<String> {
        let shard = self.shard.as_mut();
        shard.map(|shard| shard.take_notices()).unwrap_or_default()
    }

    /// [`RingReader::step`] with a thread's pulse; live, only while `go_on` returns `true` for the
    /// monotonic time. If an inserter has taken the shard, releases the held bucket.
    pub(crate) fn step_while(
        &mut self,
        pulse: &ThreadPulse,
        go_on: &mut dyn FnMut(i64) -> bool,
    ) -> bool {
        pulse.beat();
        let work = &mut self.work;
        let live = work.common.is_live();
        // Read the watermark before the records that it covers.
        let promised_ns = live
            .then(|| promised(&work.common.ring, &work.promises).min())
            .flatten();
        let is_enough = Cell::new(false);
        let mut go_on = |now_ns| {
            is_enough.set(!go_on(now_ns));
            !is_enough.get()
        };
        if live {
            work.stride.begin(work.common.clock.mono_ns());
        }
        let (mut batches, mut rest) = (0, None);
        while !live
            || (batches < BATCHES && rest.is_none() && !work.is_time_over && !is_enough.get())
        {
            let Some(batch) = self.reader.next() else {
                break;
            };
            let end = work.batch(&batch, self.shard.as_deref_mut(), pulse, &mut go_on);
            let is_whole = end == batch.first + batch.len() as u64;
            rest = (!is_whole).then_some((batch.producer, end));
            batches += 1;
        }
        let more = live && (batches == BATCHES || is_enough.get());
        match rest {
            Some((producer, record)) => self.reader.continue_at(producer, record),
            None if !more => self.reader.finish(),
            None => {}
        }
        // Count missed packets before the promise, which lets windows close.
        let are_known = more || work.settle();
        let slot = &work.slots.all()[work.slot];
        if self.shard.is_some() {
            self.reader.release();
        } else if !live {
            slot.queue_found(&mut work.found.files, work.looked);
        } else if !more && are_known {
            slot.promise(promised_ns.unwrap_or(i64::MAX));
        }
        batches > 0
    }

    /// Analyzes the packets that are left when the inserters have ended; after a live stop for
    /// about 3 s at most.
    pub(crate) fn end(mut self) {
        while self.step() && !self.work.is_time_over {}
        if self.work.is_time_over || self.work.stored.is_some() {
            self.leave_rest();
        }
    }

    /// Counts the packets that were left unread or missed.
    fn leave_rest(&mut self) {
        let work = &mut self.work;
        let (slots, is_mine) = (Arc::clone(&work.slots), work.is_mine());
        let slot = &slots.all()[work.slot];
        let now_ns = work.common.clock.now().ring_ns;
        let mut unread = vec![0; work.last_ns.len()];
        while let Some(batch) = self.reader.next() {
            let packets = batch.iter().filter(|packet| is_mine(packet.shard));
            unread[batch.producer] += packets.count() as u64;
            if batch.missed.packets > 0 {
                let span_ns = (work.last_ns[batch.producer].min(now_ns), now_ns);
                work.missed(batch.producer, batch.first, batch.missed.packets, span_ns);
            }
        }
        for (producer, unread) in unread.into_iter().enumerate() {
            let span_ns = (work.last_ns[producer].min(now_ns), now_ns);
            let gap = |packets, is_lapped| UnanalyzedGap {
                producer,
                span_ns,
                packets,
                is_lapped,
            };
            if unread > 0 {
                slot.miss(gap(unread, false));
            }
            if let Some(stored) = &work.stored {
                let share = &work.shares[producer];
                let (_, packets) = stored.get(producer, is_mine);
                let missed = packets.saturating_sub(share.accounted + unread);
                if missed > 0 {
                    slot.miss(gap(missed, true));
                }
            }
        }
    }
}

impl ReaderWork {
    /// Whether several readers divide the packets of each producer.
    fn is_divided(&self) -> bool {
        self.slots.placement == AnalysisPlacement::ShardReaders && self.slots.all().len() > 1
    }

    /// Whether packets of this shard number belong to this reader.
    fn is_mine(&self) -> impl Fn(u8) -> bool + Copy + use<> {
        let (shards, is_divided) = (self.slots.all().len(), self.is_divided());
        let mine = self.slot;
        move |shard| !is_divided || usize::from(shard) % shards == mine
    }

    /// `packets` packets of the producer, of all shards, were overwritten unread. The reader
    /// continues with record `first`.
    fn missed(&mut self, producer: usize, first: u64, packets: u64, span_ns: (i64, i64)) {
        if self.stored.is_some() {
            return self.shares[producer].overtaken(first, span_ns);
        }
        self.slots.all()[self.slot].miss(UnanalyzedGap {
            producer,
            span_ns,
            packets,
            is_lapped: true,
        });
    }

    /// Counts the packets missed in gaps whose number is known now. Returns whether no gap is left.
    fn settle(&mut self) -> bool {
        let Some(stored) = &self.stored else {
            return true;
        };
        let is_mine = self.is_mine();
        let mut are_known = true;
        for (producer, share) in self.shares.iter_mut().enumerate() {
            let next = share.next;
            share.look_behind(next, || stored.get(producer, is_mine));
            if let Some((span_ns, packets)) = share.read(next, 0, |_| 0) {
                self.slots.all()[self.slot].miss(UnanalyzedGap {
                    producer,
                    span_ns,
                    packets,
                    is_lapped: true,
                });
            }
            are_known &= share.gap_ns.is_none();
        }
        are_known
    }

    /// Analyzes a batch, live only while `go_on` returns `true`. Returns the next record to
    /// analyze.
    fn batch(
        &mut self,
        batch: &Batch<'_>,
        own: Option<&mut Shard>,
        pulse: &ThreadPulse,
        go_on: &mut dyn FnMut(i64) -> bool,
    ) -> u64 {
        let live = self.common.is_live();
        let (producer, first) = (batch.producer, batch.first);
        let batch_end = first + batch.len() as u64;
        let from_ns = std::mem::replace(&mut self.last_ns[producer], batch.oldest_ns);
        if batch.missed.packets > 0 {
            let span_ns = (from_ns.min(batch.oldest_ns), from_ns.max(batch.oldest_ns));
            self.missed(producer, first, batch.missed.packets, span_ns);
        }
        let slots = Arc::clone(&self.slots);
        let (slot, is_mine) = (&slots.all()[self.slot], self.is_mine());
        if let Some(stored) = &self.stored {
            self.shares[producer].look_behind(first, || stored.get(producer, is_mine));
        }
        if !live {
            // `next` has left the previous batch. So when the analyzer has seen everything, no
            // reader holds a bucket that may be overwritten.
            slot.queue_found(&mut self.found.files, self.looked);
        }
        let is_divided = self.is_divided();
        let mut packets = NumberedPackets::from(first, batch.iter());
        let is_inserters = own.is_some();
        let mut analysis = self.analysis(slot, pulse, is_inserters, (first, batch_end));
        let mut look = |shard: &mut Shard| {
            if is_divided {
                let packets = packets.clone();
                analysis.run(shard, producer, &mut OwnPackets { packets, is_mine }, go_on);
            } else {
                analysis.run(shard, producer, &mut packets, go_on);
            }
        };
        match own {
            Some(shard) => look(shard),
            None => _ = slot.visit_waiting(look),
        }
        let (analyzed, is_time_over) = (analysis.analyzed, analysis.is_time_over);
        let end = if live { analysis.next } else { batch_end };
        (self.is_time_over, self.looked) = (is_time_over, end);
        // Relaxed: no other data is ordered with the number.
        slot.counters
            .analyzed
            .fetch_add(analyzed, Ordering::Relaxed);
        if self.stored.is_some() {
            let before = |record| {
                let before = NumberedPackets::from(first, batch.iter());
                let before = before.take_while(|(number, _)| *number < record);
                before.filter(|(_, packet)| is_mine(packet.shard)).count() as u64
            };
            if let Some((span_ns, packets)) = self.shares[producer].read(end, analyzed, before) {
                slot.miss(UnanalyzedGap {
                    producer,
                    span_ns,
                    packets,
                    is_lapped: true,
                });
            }
        }
        end
    }

    /// The analysis of the records `span.0..span.1`.
    fn analysis<'a>(
        &'a mut self,
        slot: &'a ShardSlot,
        pulse: &'a ThreadPulse,
        is_inserters: bool,
        span: (u64, u64),
    ) -> BatchAnalysis<'a> {
        BatchAnalysis {
            common: &self.common,
            slot,
            found: &mut self.found,
            pulse,
            waker: &self.waker,
            stride: &mut self.stride,
            stopped_ns: &mut self.stopped_ns,
            is_inserters,
            next: span.0,
            end: span.1,
            analyzed: 0,
            is_time_over: false,
        }
    }
}

impl RingReader for ShardReader {
    /// Whether findings are urgent: always from files; live, while dumps are unfinished.
    fn has_deadline(&self) -> bool {
        !self.work.common.is_live() || self.work.common.counters.are_dumps_unfinished()
    }

    /// Waits for packets, at most about `timeout`. Returns how long it slept.
    fn wait(&mut self, timeout: Duration) -> Duration {
        let start_ns = self.work.common.clock.mono_ns();
        self.reader.wait(timeout);
        let slept_ns = self.work.common.clock.mono_ns().saturating_sub(start_ns);
        Duration::from_nanos(slept_ns.unsigned_abs())
    }

    /// Analyzes available packets, live at most [`BATCHES`] batches. Returns `false` if it read no
    /// records.
    fn step(&mut self) -> bool {
        let pulse = self.pulse.clone();
        self.step_while(&pulse, &mut |_| true)
    }
}

/// The analysis of a batch that a [`ShardReader`] has read, or of a burst that an inserter has
/// stored.
struct BatchAnalysis<'a> {
    common: &'a RecorderShared,
    slot: &'a ShardSlot,
    found: &'a mut ReaderFindings,
    pulse: &'a ThreadPulse,
    waker: &'a Waker,
    stride: &'a mut Stride,
    stopped_ns: &'a mut Option<i64>,
    /// Whether an inserter has taken the shard.
    is_inserters: bool,
    /// The next record to analyze.
    next: u64,
    /// The record after the last record to analyze.
    end: u64,
    analyzed: u64,
    is_time_over: bool,
}

impl BatchAnalysis<'_> {
    /// Analyzes packets. Live, ends when `go_on` returns `false`, or when the time after a stop is
    /// over.
    fn run<'p>(
        &mut self,
        shard: &mut Shard,
        producer: usize,
        packets: &mut (impl Iterator<Item = NumberedPacket<'p>> + Clone),
        go_on: &mut dyn FnMut(i64) -> bool,
    ) {
        let live = self.common.is_live();
        let clock = &self.common.clock;
        self.slot.refresh(shard, &mut self.found.live);
        let mut chunk = Chunk::new();
        loop {
            self.pulse.beat();
            // A script may be slow: after a stop, ask it about one packet at a time.
            let is_stopping = live && self.common.control.stopping();
            chunk.most = match (is_stopping, live) {
                (true, _) => 1,
                (false, true) => self.stride.packets,
                (false, false) => MANY,
            };
            let look = || shard.analyze(producer, packets, &mut chunk, self.found);
            let count = self.slot.counters.times.time(clock, look);
            self.analyzed += count as u64;
            self.next = packets.clone().next().map_or(self.end, |(next, _)| next);
            shard.set_analyzed(producer, self.next);
            if count == 0 {
                return;
            }
            if !live {
                if let Some(last) = self.found.files.last()
                    && self.found.files.len() >= TOGETHER
                {
                    let looked = last.record + 1;
                    self.slot.queue_found(&mut self.found.files, looked);
                }
                continue;
            }
            if !self.is_inserters && !self.found.live.is_empty() {
                self.slot.queue_hits(&mut self.found.live);
                self.waker.wake();
            }
            self.slot.refresh(shard, &mut self.found.live);
            let now_ns = clock.mono_ns();
            self.is_time_over = is_stopping && is_long_ago(self.stopped_ns, now_ns);
            let took_ns = self.stride.read(now_ns, count);
            self.slot
                .counters
                .longest_ns
                .fetch_max(took_ns, Ordering::Relaxed);
            if self.is_time_over || !go_on(now_ns) || self.next >= self.end {
                return;
            }
        }
    }
}

/// The number of packets between two readings of the clock.
#[derive(Debug)]
struct Stride {
    /// Adapts to the number of packets that take [`STRIDE_NS`]; at least 1 and at most [`MANY`].
    packets: usize,
    read_ns: i64,
}

impl Stride {
    /// Analysis begins at monotonic time `now_ns`.
    fn begin(&mut self, now_ns: i64) {
        self.read_ns = now_ns;
    }

    /// `count` packets were analyzed until monotonic time `now_ns`. Returns how long that took, ns,
    /// at least 1.
    fn read(&mut self, now_ns: i64, count: usize) -> i64 {
        let took_ns = now_ns.saturating_sub(self.read_ns).max(1);
        let fitting = (count as i64).saturating_mul(STRIDE_NS) / took_ns;
        let most = MANY.min(2 * self.packets);
        self.packets = usize::try_from(fitting).unwrap_or(most).clamp(1, most);
        self.read_ns = now_ns;
        took_ns
    }
}

/// Whether a stopped recording has used up its time to analyze packets at `mono_ns`.
fn is_long_ago(stopped_ns: &mut Option<i64>, mono_ns: i64) -> bool {
    mono_ns - *stopped_ns.get_or_insert(mono_ns) >= STOP_DRAIN_NS
}

impl Drop for ShardReader {
    fn drop(&mut self) {
        let slot = &self.work.slots.all()[self.work.slot];
        slot.queue_found(&mut self.work.found.files, u64::MAX);
        slot.promise(i64::MAX);
        self.work.waker.wake();
    }
}
