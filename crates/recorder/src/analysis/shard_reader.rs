//! A shard that reads the ring itself, beside others.
//!
//! Live the readers are the members of one group, and divide the producers. From files each reads all records, and looks at those of its
//! shards: the inserter has numbered them by address pair (`intake/inserter/shards.rs`). What they find goes to the analyzer,
//! which opens and closes windows: live by a bounded queue, from files in the order of records, for which it waits.
//!
//! With `--analyzers inline` a file's only reader is moved on by the inserter's thread, behind each publication.

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

/// Batches between two looks at clocks.
const BATCHES: usize = 64;
/// Hits from files that are told together.
const TOGETHER: usize = 1024;
/// How long a live recording that is stopped still looks at packets, ns.
pub(crate) const STOP_DRAIN_NS: i64 = 3_000_000_000;

/// See the module.
#[derive(Debug)]
pub(crate) struct ShardReader {
    common: Arc<RecorderShared>,
    slots: Arc<ShardSlots>,
    slot: usize,
    reader: Reader,
    /// Of the analyzer.
    waker: Waker,
    found: ReaderFindings,
    /// From files: its records before this were looked at.
    looked: u64,
    /// Live, of each producer whether it is one of its own that promise watermarks.
    promises: Vec<bool>,
    /// A lower bound of the times of the last batch of each producer, ns.
    last_ns: Vec<i64>,
    stopped_ns: Option<i64>,
    is_time_over: bool,
    /// The end of that time: the producer of the last packets, and how many of their batch were left.
    left: (usize, u64),
    pulse: ThreadPulse,
}

/// What was found and is not told yet.
#[derive(Debug)]
struct ReaderFindings {
    slots: Arc<ShardSlots>,
    /// Live, with what they would dump; …
    live: HitQueue,
    /// … from files the analyzer says that, because it knows the packets before.
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
    /// For the shard of a seat; `reader` is that of its producers.
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
            // From files there is one, whatever the number of queues.
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

    /// Whether any packet was a hit so far.
    pub(crate) fn has_found(&self) -> bool {
        self.found.has_any
    }

    /// A handle that wakes it.
    pub(crate) fn waker(&self) -> Waker {
        self.reader.waker()
    }

    /// How far it and those that it shares producers with have read.
    pub(crate) fn positions(&self) -> Positions {
        self.reader.positions()
    }

    /// Analyzes the remaining packets after the inserters have ended. If a live recording is
    /// stopped, that takes a few seconds at most.
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
    /// Whether somebody waits for what it has found by then.
    fn has_deadline(&self) -> bool {
        !self.common.is_live() || self.common.counters.are_dumps_unfinished()
    }

    /// Sleeps until there is something to read, or the timeout. Returns for how long.
    fn wait(&mut self, timeout: Duration) -> Duration {
        let start_ns = self.common.clock.mono_ns();
        self.reader.wait(timeout);
        let slept_ns = self.common.clock.mono_ns().saturating_sub(start_ns);
        Duration::from_nanos(slept_ns.unsigned_abs())
    }

    /// Looks at what is there, live at most some batches, and tells what it found. False: nothing was there.
    fn step(&mut self) -> bool {
        self.pulse.beat();
        let live = self.common.is_live();
        let slots = Arc::clone(&self.slots);
        let slot = &slots.all()[self.slot];
        // Read before the records, as the analyzer does.
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
                // Only now the bucket of the batch before is given back: when the analyzer has seen all, nobody holds what may be overwritten.
                slot.tell_found(&mut self.found.files, self.looked);
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
                    // A script may be slow: none is asked about many packets behind the time to stop.
                    let is_stopping = live && control.stopping();
                    chunk.most = if is_stopping { 1 } else { MANY };
                    let look = || shard.look(batch.producer, &mut packets, &mut chunk, found);
                    let count = slot.times.time(clock, look);
                    if count == 0 {
                        return;
                    }
                    if live {
                        passed += count as u64;
                        if !found.live.is_empty() {
                            slot.tell(&mut found.live);
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
                        slot.tell_found(&mut found.files, looked);
                    }
                }
            };
            slot.visit_waiting(look);
            self.looked = end;
            batches += 1;
            // Relaxed: numbers, summed by who asks.
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
            slot.tell_found(&mut self.found.files, self.looked);
        }
        batches > 0
    }
}

/// Whether the time to look at packets is over at `mono_ns`, of a recording that is stopped.
fn is_long_ago(stopped_ns: &mut Option<i64>, mono_ns: i64) -> bool {
    mono_ns - *stopped_ns.get_or_insert(mono_ns) >= STOP_DRAIN_NS
}

impl Drop for ShardReader {
    fn drop(&mut self) {
        let slot = &self.slots.all()[self.slot];
        slot.tell_found(&mut self.found.files, u64::MAX);
        slot.promise(i64::MAX);
        self.waker.wake();
    }
}
