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
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use retroscope_ring::{Positions, Reader, Waker};

use crate::{
    analysis::{
        RingReader,
        chunk::{Chunk, MANY},
        director::HitOrder,
        hit_queue::HitQueue,
        predicate::DumpExpression,
        shard::{Findings, FlowEnded, NumberedPacket, NumberedPackets, Shard},
        shard_slots::{ShardSlots, UnanalyzedGap},
    },
    control::{common::RecorderShared, hits::HitRefusal, progress::promised, pulse::ThreadPulse},
};

/// Live: maximum number of batches that one step analyzes.
const BATCHES: usize = 64;
/// From files: hits of a batch are queued once this number has been found.
const TOGETHER: usize = 1024;
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
    /// The reader has analyzed all records of its shard before this number. Used only for files.
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
        waker: Waker,
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
            pulse: common.pulses.of(format!("shard-{slot}")),
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
        self.pulse.beat();
        let live = self.common.is_live();
        let slots = Arc::clone(&self.slots);
        let slot = &slots.all()[self.slot];
        // Read the watermarks before the records: if all records are then read, no unread packet is
        // older.
        let promised_ns = if live {
            promised(&self.common.ring, &self.promises).min()
        } else {
            None
        };
        let shards = self.slots.all().len();
        let (mine, is_whole) = (self.slot, live || shards == 1);
        let is_mine = move |(_, packet): &NumberedPacket<'_>| {
            is_whole || usize::from(packet.shard) % shards == mine
        };
        let mut batches = 0;
        while !live || (batches < BATCHES && !self.is_time_over) {
            let Some(batch) = self.reader.next() else {
                break;
            };
            let mut passed = 0;
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
                // Report only now that the previous batch is analyzed: `next` has just released its
                // bucket. So when the analyzer has seen all records, no reader holds a bucket that
                // may be overwritten.
                slot.queue_found(&mut self.found.files, self.looked);
            }
            let mut end = batch.first + batch.len() as u64;
            let mut packets = NumberedPackets::from(batch.first, batch.iter()).filter(is_mine);
            let found = &mut self.found;
            let (control, clock) = (&self.common.control, &self.common.clock);
            let pulse = &self.pulse;
            let look = |shard: &mut Shard| {
                slot.refresh(shard, &mut found.live);
                let mut chunk = Chunk::new();
                loop {
                    pulse.beat();
                    // A script may be slow: after a stop, ask it about one packet at a time.
                    let is_stopping = live && control.stopping();
                    chunk.most = if is_stopping { 1 } else { MANY };
                    let look = || shard.analyze(batch.producer, &mut packets, &mut chunk, found);
                    let count = slot.times.time(clock, look);
                    if count == 0 {
                        return;
                    }
                    if live {
                        passed += count as u64;
                        if !found.live.is_empty() {
                            slot.queue_hits(&mut found.live);
                            self.waker.wake();
                        }
                        slot.refresh(shard, &mut found.live);
                        if is_stopping && is_long_ago(&mut self.stopped_ns, clock.mono_ns()) {
                            end = batch.first + passed;
                            self.is_time_over = true;
                            return;
                        }
                    } else if let Some(last) = found.files.last()
                        && found.files.len() >= TOGETHER
                    {
                        let looked = last.record + 1;
                        slot.queue_found(&mut found.files, looked);
                    }
                }
            };
            slot.visit_waiting(look);
            self.looked = end;
            batches += 1;
            // Relaxed: other threads only add up such numbers.
            slot.analyzed
                .fetch_add(end - batch.first, Ordering::Relaxed);
            if self.is_time_over {
                self.left = (batch.producer, batch.first + batch.len() as u64 - end);
            }
        }
        let more = live && batches == BATCHES;
        if !more {
            self.reader.finish();
        }
        if live {
            if !more {
                slot.promise(promised_ns.unwrap_or(i64::MAX));
            }
        } else {
            slot.queue_found(&mut self.found.files, self.looked);
        }
        batches > 0
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
