//! A shard with its own reader of the ring.
//!
//! Live, the readers are the members of one group and divide the producers. When reading files,
//! each reader reads all records and analyzes those of its shard, which the inserter numbered by
//! address pair (`intake/inserter/shards.rs`). The hits go to the analyzer, which opens and closes
//! windows. Live, a bounded queue carries the hits. When reading files, the analyzer waits for the
//! readers and takes hits in the order of records.
//!
//! With `--set analyzers=inline`, the inserter's thread runs a file's only reader, after each
//! publication.

use std::{
    cell::Cell,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use retroscope_ring::{Packet, Positions, Reader, Waker};

use crate::{
    analysis::{
        RingReader,
        chunk::{Chunk, MANY},
        director::HitOrder,
        hit_queue::HitQueue,
        predicate::DumpExpression,
        shard::{Findings, FlowEnded, NumberedPacket, NumberedPackets, Shard},
        shard_slots::{ShardSlot, ShardSlots, UnanalyzedGap},
    },
    control::{common::RecorderShared, hits::HitRefusal, progress::promised, pulse::ThreadPulse},
};

/// Live: maximum number of batches that one step analyzes.
const BATCHES: usize = 64;
/// From files: hits of a batch are queued once this number has been found.
const TOGETHER: usize = 1024;
/// Time between two readings of the clock while live packets are analyzed, ns, unless one packet
/// takes longer.
pub(crate) const STRIDE_NS: i64 = 50_000;
/// How long a stopped live recording still analyzes packets, ns.
pub(crate) const STOP_DRAIN_NS: i64 = 3_000_000_000;

/// Reads the ring for one shard.
#[derive(Debug)]
pub(crate) struct ShardReader {
    common: Arc<RecorderShared>,
    slots: Arc<ShardSlots>,
    slot: usize,
    reader: Reader,
    /// Wakes the analyzer.
    waker: Waker,
    found: ReaderFindings,
    /// The reader has analyzed all its records before this number. Not used by a live reader of
    /// several producers.
    looked: u64,
    /// Live, for each producer: whether the producer belongs to this reader and promises
    /// watermarks.
    promises: Vec<bool>,
    /// By producer: a lower bound of the packet times of the last batch, ns.
    last_ns: Vec<i64>,
    stopped_ns: Option<i64>,
    is_time_over: bool,
    /// If the time after a stop ran out: the producer of the last packets, and the number of
    /// packets of its batch that were left.
    left: (usize, u64),
    /// The shard, while an inserter runs this reader. Otherwise the shard is in its slot.
    shard: Option<Box<Shard>>,
    stride: Stride,
    /// The pulse of the thread that runs [`RingReader::step`].
    pulse: ThreadPulse,
}

/// The findings of a reader that are not queued yet.
#[derive(Debug)]
struct ReaderFindings {
    slots: Arc<ShardSlots>,
    /// Live hits, with what they would dump.
    live: HitQueue,
    /// Hits from files. The analyzer derives what they would dump, because only the analyzer knows
    /// all packets before.
    files: Vec<HitOrder>,
    has_any: bool,
}

impl Findings for ReaderFindings {
    fn are_wanted(&self) -> bool {
        self.slots.are_armed()
    }

    fn hit(&mut self, order: HitOrder, expression: Option<Result<DumpExpression, HitRefusal>>) {
        self.has_any = true;
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
            *promises &= producer % slots.all().len() == slot;
        }
        Self {
            // Files have one producer, whatever the number of queues.
            last_ns: vec![i64::MIN; promises.len().max(1)],
            promises,
            found: ReaderFindings {
                slots: Arc::clone(&slots),
                live: HitQueue::default(),
                files: Vec::new(),
                has_any: false,
            },
            slots,
            slot,
            reader,
            waker,
            looked: 0,
            stopped_ns: None,
            is_time_over: false,
            left: (0, 0),
            shard: None,
            stride: Stride {
                packets: MANY,
                read_ns: 0,
            },
            pulse,
            common,
        }
    }

    /// Whether any packet has been a hit.
    pub(crate) fn has_found(&self) -> bool {
        self.found.has_any
    }

    /// A handle that wakes this reader.
    pub(crate) fn waker(&self) -> Waker {
        self.reader.waker()
    }

    /// How far the readers of the group of this reader have read.
    pub(crate) fn positions(&self) -> Positions {
        self.reader.positions()
    }

    /// The inserter takes the shard out of its slot, if no other thread uses the shard. Until
    /// [`Self::put_back`], only the inserter may call this reader.
    pub(crate) fn take_shard(&mut self) -> bool {
        self.shard = self.slots.all()[self.slot].take();
        self.shard.is_some()
    }

    /// The inserter puts the shard back into its slot, after its hits.
    pub(crate) fn put_back(&mut self) {
        let slot = &self.slots.all()[self.slot];
        slot.queue_hits(&mut self.found.live);
        self.reader.release();
        if let Some(shard) = self.shard.take() {
            slot.put_back(shard);
        }
    }

    /// Gives the hits of the inserter's shard to the analyzer. Returns `false` if the analyzer is
    /// just taking earlier hits.
    pub(crate) fn flush_hits(&mut self) -> bool {
        let hits = &mut self.found.live;
        if !hits.is_empty() {
            self.slots.all()[self.slot].try_queue_hits(hits);
        }
        hits.is_empty()
    }

    /// Whether a producer of this reader promises watermarks.
    pub(crate) fn promises_watermarks(&self) -> bool {
        self.promises.contains(&true)
    }

    /// Whether the inserter's shard has hits that the analyzer does not have yet.
    pub(crate) fn has_hits(&self) -> bool {
        !self.found.live.is_empty()
    }

    /// Holds no bucket until the next step.
    pub(crate) fn release(&mut self) {
        self.reader.release();
    }

    /// The inserter's shard has analyzed the records of its producer before this number.
    pub(crate) fn looked(&self) -> u64 {
        self.looked
    }

    /// The inserter's shard analyzes packets that the inserter stored as records from
    /// [`Self::looked`] on, as long as `go_on` returns `true` for the time of the monotonic clock.
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
        let (slot, first) = (&self.slots.all()[self.slot], self.looked);
        if !self.found.are_wanted() && !shard.needs_all_packets() {
            self.looked += packets.len() as u64;
        } else {
            self.stride.begin(self.common.clock.mono_ns());
            let mut analysis = BatchAnalysis {
                common: &self.common,
                slot,
                found: &mut self.found,
                pulse,
                waker: &self.waker,
                stride: &mut self.stride,
                stopped_ns: &mut self.stopped_ns,
                is_inserters: true,
                next: first,
                is_time_over: false,
            };
            let mut packets = NumberedPackets::from(first, packets);
            analysis.run(shard, producer, &mut packets, go_on);
            self.looked = analysis.next;
        }
        // Relaxed: a number that others only sum.
        slot.analyzed
            .fetch_add(self.looked - first, Ordering::Relaxed);
    }

    /// The records that the inserter's shard has analyzed are published.
    pub(crate) fn after_publish(&mut self, producer: usize, now_ns: i64) -> bool {
        self.reader.continue_at(producer, self.looked);
        let Some(shard) = &mut self.shard else {
            return false;
        };
        let mut over = shard.pass(now_ns).into_iter().peekable();
        let is_any = over.peek().is_some();
        over.for_each(|over| self.found.live.push_flow_ended(over));
        is_any
    }

    /// Takes the messages of the inserter's shard.
    pub(crate) fn take_notices(&mut self) -> Vec<String> {
        let shard = self.shard.as_mut();
        shard.map(|shard| shard.take_notices()).unwrap_or_default()
    }

    /// As [`RingReader::step`], in the thread of this pulse, live only as long as `go_on` returns
    /// `true` for the time of the monotonic clock. Afterwards the reader holds no bucket if an inserter runs the reader.
    pub(crate) fn step_while(
        &mut self,
        pulse: &ThreadPulse,
        go_on: &mut dyn FnMut(i64) -> bool,
    ) -> bool {
        pulse.beat();
        let live = self.common.is_live();
        let slots = Arc::clone(&self.slots);
        let slot = &slots.all()[self.slot];
        // Read before the records, as the analyzer does.
        let promised_ns = live
            .then(|| promised(&self.common.ring, &self.promises).min())
            .flatten();
        let shards = self.slots.all().len();
        let (mine, is_whole) = (self.slot, live || shards == 1);
        let is_mine = move |(_, packet): &NumberedPacket<'_>| {
            is_whole || usize::from(packet.shard) % shards == mine
        };
        let mut own = self.shard.take();
        let is_enough = Cell::new(false);
        let mut go_on = |now_ns| {
            is_enough.set(!go_on(now_ns));
            !is_enough.get()
        };
        if live {
            self.stride.begin(self.common.clock.mono_ns());
        }
        let (mut batches, mut rest) = (0, None);
        while !live || (batches < BATCHES && !self.is_time_over && !is_enough.get()) {
            let Some(batch) = self.reader.next() else {
                break;
            };
            let last_ns = &mut self.last_ns[batch.producer];
            let from_ns = std::mem::replace(last_ns, batch.oldest_ns);
            if batch.missed.packets > 0 {
                slot.miss(UnanalyzedGap {
                    producer: batch.producer,
                    span_ns: (from_ns.min(batch.oldest_ns), from_ns.max(batch.oldest_ns)),
                    packets: batch.missed.packets,
                    is_lapped: true,
                });
            }
            if !live {
                // `next` has just released the bucket of the previous batch. So when the analyzer
                // has seen everything, no reader holds a bucket that may be overwritten.
                slot.queue_found(&mut self.found.files, self.looked);
            }
            let batch_end = batch.first + batch.len() as u64;
            let mut packets = NumberedPackets::from(batch.first, batch.iter()).filter(is_mine);
            let mut analysis = BatchAnalysis {
                common: &self.common,
                slot,
                found: &mut self.found,
                pulse,
                waker: &self.waker,
                stride: &mut self.stride,
                stopped_ns: &mut self.stopped_ns,
                is_inserters: own.is_some(),
                next: batch.first,
                is_time_over: false,
            };
            let mut look = |shard: &mut Shard| {
                analysis.run(shard, batch.producer, &mut packets, &mut go_on);
            };
            match own.as_deref_mut() {
                Some(shard) => look(shard),
                None => _ = slot.visit_waiting(look),
            }
            self.is_time_over = analysis.is_time_over;
            let end = if live { analysis.next } else { batch_end };
            self.looked = end;
            batches += 1;
            // Relaxed: a number that others only sum.
            slot.analyzed
                .fetch_add(end - batch.first, Ordering::Relaxed);
            if self.is_time_over {
                self.left = (batch.producer, batch_end - end);
            } else if end < batch_end {
                rest = Some((batch.producer, end));
            }
        }
        let more = live && (batches == BATCHES || is_enough.get());
        match rest {
            Some((producer, record)) => self.reader.continue_at(producer, record),
            None if !more => self.reader.finish(),
            None => {}
        }
        self.shard = own;
        if self.shard.is_some() {
            self.reader.release();
        } else if !live {
            slot.queue_found(&mut self.found.files, self.looked);
        } else if !more {
            slot.promise(promised_ns.unwrap_or(i64::MAX));
        }
        batches > 0
    }

    /// Analyzes the remaining packets after the inserters have ended. If a live recording is
    /// stopped, the analysis takes about 3 s at most.
    pub(crate) fn end(mut self) {
        while self.step() && !self.is_time_over {}
        let (ring, positions) = (&self.common.ring, self.reader.positions());
        let now_ns = self.common.clock.now().ring_ns;
        let shards = self.slots.all().len();
        for producer in
            (0..ring.producers()).filter(|it| self.is_time_over && it % shards == self.slot)
        {
            let (broken_off, left) = self.left;
            let left = if producer == broken_off { left } else { 0 };
            let behind = ring
                .published(producer)
                .saturating_sub(positions.get(producer));
            let packets = behind + left;
            if packets > 0 {
                self.slots.all()[self.slot].miss(UnanalyzedGap {
                    producer,
                    span_ns: (self.last_ns[producer].min(now_ns), now_ns),
                    packets,
                    is_lapped: false,
                });
            }
        }
    }
}

impl RingReader for ShardReader {
    /// Whether another thread waits for the findings of this reader.
    fn has_deadline(&self) -> bool {
        !self.common.is_live() || self.common.counters.are_dumps_unfinished()
    }

    /// Sleeps until there is something to read, or until the timeout. Returns how long the thread
    /// slept.
    fn wait(&mut self, timeout: Duration) -> Duration {
        let start_ns = self.common.clock.mono_ns();
        self.reader.wait(timeout);
        let slept_ns = self.common.clock.mono_ns().saturating_sub(start_ns);
        Duration::from_nanos(slept_ns.unsigned_abs())
    }

    /// Analyzes available packets, live at most [`BATCHES`] batches, and queues the hits. Returns
    /// `false` if there were no packets.
    fn step(&mut self) -> bool {
        let pulse = self.pulse.clone();
        self.step_while(&pulse, &mut |_| true)
    }
}

/// The analysis of a batch that a [`ShardReader`] has read.
struct BatchAnalysis<'a> {
    common: &'a RecorderShared,
    slot: &'a ShardSlot,
    found: &'a mut ReaderFindings,
    pulse: &'a ThreadPulse,
    waker: &'a Waker,
    stride: &'a mut Stride,
    stopped_ns: &'a mut Option<i64>,
    /// Whether hits stay in `found` until the inserter queues them.
    is_inserters: bool,
    /// The record after the last analyzed one.
    next: u64,
    is_time_over: bool,
}

impl BatchAnalysis<'_> {
    /// Analyzes packets, live as long as `go_on` returns `true` for the time of the monotonic
    /// clock.
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
            let count = self.slot.times.time(clock, look);
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
            self.next += count as u64;
            if !self.is_inserters && !self.found.live.is_empty() {
                self.slot.queue_hits(&mut self.found.live);
                self.waker.wake();
            }
            self.slot.refresh(shard, &mut self.found.live);
            let now_ns = clock.mono_ns();
            self.is_time_over = is_stopping && is_long_ago(self.stopped_ns, now_ns);
            self.stride.read(now_ns, count);
            if self.is_time_over || !go_on(now_ns) {
                return;
            }
        }
    }
}

/// The number of packets between two readings of the clock.
#[derive(Debug)]
struct Stride {
    /// At most as many packets as take [`STRIDE_NS`], at least 1, at most [`MANY`].
    packets: usize,
    read_ns: i64,
}

impl Stride {
    /// Analysis begins at a time of the monotonic clock.
    fn begin(&mut self, now_ns: i64) {
        self.read_ns = now_ns;
    }

    /// `count` packets were analyzed until a time of the monotonic clock.
    fn read(&mut self, now_ns: i64, count: usize) {
        let took_ns = now_ns.saturating_sub(self.read_ns).max(1);
        let fitting = (count as i64).saturating_mul(STRIDE_NS) / took_ns;
        let most = MANY.min(2 * self.packets);
        self.packets = usize::try_from(fitting).unwrap_or(most).clamp(1, most);
        self.read_ns = now_ns;
    }
}

/// Whether a stopped recording has used up its time to analyze packets at `mono_ns`.
fn is_long_ago(stopped_ns: &mut Option<i64>, mono_ns: i64) -> bool {
    mono_ns - *stopped_ns.get_or_insert(mono_ns) >= STOP_DRAIN_NS
}

impl Drop for ShardReader {
    fn drop(&mut self) {
        let slot = &self.slots.all()[self.slot];
        slot.queue_found(&mut self.found.files, u64::MAX);
        slot.promise(i64::MAX);
        self.waker.wake();
    }
}
