//! A shard in the inserter's thread.
//!
//! Records are written to memory past the cache, and the analyzer reads them back on another
//! processor. For frames of 1514 bytes, reading back took longer than trying a filter. A live
//! inserter has the frames in its first-level cache. Therefore it stores the frames, and then lends
//! the frames to the shard. It wakes the analyzer only for hits and ended flows, and now and then
//! to move the analyzer's position.
//!
//! If too much waits at the source ([placement](super::placement)), the shard goes back to its
//! [slot](crate::analysis::shard_slots), and the analyzer takes over in its own thread. The
//! analyzer also analyzes bursts with truncated frames, and bursts with frames of several
//! interfaces.

use std::sync::Arc;

use retroscope_capture::{Burst, FrameMeta};
use retroscope_ring::{Packet, Positions, Producer, Waker};

use crate::{
    analysis::{
        chunk::Chunk,
        director::HitOrder,
        hit_queue::HitQueue,
        predicate::DumpExpression,
        shard::{Findings, FlowEnded, NumberedPackets, Shard},
        shard_slots::{ShardSlot, ShardSlots},
    },
    control::{common::RecorderShared, hits::HitRefusal, pulse::ThreadPulse},
    intake::placement::{PlacementShared, ShardPlacement},
};

/// Bytes of a record in the ring in addition to the packet.
pub(crate) const DESCRIPTOR_BYTES: u64 = 16;
/// All inserters together leave at most one part in 8 of the ring unread before they wake the
/// analyzer.
const RING_SHARE: u64 = 8;

/// The parts that an inserter needs to run a shard.
#[derive(Debug, Clone)]
pub(crate) struct InlineParts {
    pub(crate) common: Arc<RecorderShared>,
    pub(crate) slots: Arc<ShardSlots>,
    /// How far the analyzer has read.
    pub(crate) positions: Positions,
    pub(crate) analyzer: Waker,
    pub(crate) placing: Arc<PlacementShared>,
}

/// Runs the shard of a producer in the inserter's thread.
#[derive(Debug)]
pub(crate) struct Inline {
    parts: InlineParts,
    producer: usize,
    shard: Option<Box<Shard>>,
    found: InlineFindings,
    /// Decides whether this thread should have the shard.
    placement: ShardPlacement,
    /// Whether the analyzer has something to do since it was last woken.
    is_due: bool,
    /// Bytes stored since the analyzer was last woken. At `unread_max` bytes the inserter wakes it
    /// in any case.
    unread: u64,
    unread_max: u64,
    /// The pulse of the inserter's thread.
    pulse: ThreadPulse,
}

/// Hits and ended flows that the analyzer has not got yet.
#[derive(Debug)]
struct InlineFindings {
    slots: Arc<ShardSlots>,
    hits: HitQueue,
}

impl Findings for InlineFindings {
    fn are_wanted(&self) -> bool {
        self.slots.are_armed()
    }

    fn hit(&mut self, order: HitOrder, expression: Option<Result<DumpExpression, HitRefusal>>) {
        if let Some(expression) = expression {
            self.hits.push((order, expression));
        }
    }

    fn flow_ended(&mut self, _: u64, over: FlowEnded) {
        self.hits.push_flow_ended(over);
    }
}

impl Inline {
    /// For the inserter of a producer; `pulse` counts the turns of its thread.
    pub(crate) fn new(parts: InlineParts, producer: usize, pulse: ThreadPulse) -> Self {
        Self {
            unread_max: parts.placing.part_of_ring(RING_SHARE),
            producer,
            shard: None,
            found: InlineFindings {
                slots: Arc::clone(&parts.slots),
                hits: HitQueue::default(),
            },
            placement: ShardPlacement::new(Arc::clone(&parts.placing)),
            is_due: false,
            unread: 0,
            pulse,
            parts,
        }
    }

    fn slot(&self) -> &ShardSlot {
        self.parts.slots.of(self.producer)
    }

    /// `frames` plain frames are about to be stored: takes or keeps the shard, or leaves the frames
    /// to the analyzer.
    pub(crate) fn before_storing(&mut self, frames: usize, producer: &Producer) {
        let stored = producer.stored();
        let is_read = self.shard.is_some() || self.parts.positions.get(self.producer) == stored;
        if !self.placement.is_inline(is_read) {
            return self.leave();
        }
        if self.shard.is_none() && is_read {
            self.shard = self.slot().take();
        }
        match &mut self.shard {
            Some(shard) => {
                let slot = self.parts.slots.of(self.producer);
                slot.refresh(shard, &mut self.found.hits);
                slot.claim(stored + frames as u64);
            }
            None => self.is_due = true,
        }
    }

    /// Analyzes plain frames of one interface that were stored as records from `first` on. Ring
    /// time is their stamps less `offset_ns`. `bytes`: approximate captured bytes of all frames.
    pub(crate) fn analyze(
        &mut self,
        first: u64,
        (interface, offset_ns): (u16, i64),
        burst: &Burst<'_>,
        (frames, bytes): (&[FrameMeta], u64),
    ) {
        let stored_bytes = bytes + frames.len() as u64 * DESCRIPTOR_BYTES;
        self.placement.stored(stored_bytes);
        let Some(shard) = &mut self.shard else {
            return;
        };
        self.unread += stored_bytes;
        if !self.found.are_wanted() && !shard.needs_all_packets() {
            return;
        }
        let packets = frames.iter().map(|meta| Packet {
            time_ns: meta.time_ns.wrapping_sub(offset_ns),
            wire_len: meta.wire_len,
            interface,
            direction: meta.direction as u8,
            tag_restored: meta.vlan.is_some(),
            shard: 0,
            data: &burst.memory[meta.offset..meta.offset + meta.captured_len as usize],
        });
        let mut packets = NumberedPackets::from(first, packets);
        let look = || {
            let mut chunk = Chunk::new();
            // A script may be slow and a burst long, so the pulse beats for each chunk.
            while shard.analyze(self.producer, &mut packets, &mut chunk, &mut self.found) > 0 {
                self.pulse.beat();
            }
            frames.len()
        };
        let slot = self.parts.slots.of(self.producer);
        slot.times.time(&self.parts.common.clock, look);
    }

    /// Corrects the claim after storing: frames without a free bucket were not stored.
    pub(crate) fn after_storing(&mut self, producer: &Producer) {
        if self.shard.is_some() {
            self.slot().claim(producer.stored());
        }
    }

    /// Leaves the next records to the analyzer.
    pub(crate) fn leave(&mut self) {
        self.is_due = true;
        self.put_back();
    }

    fn put_back(&mut self) {
        if let Some(shard) = self.shard.take() {
            let slot = self.parts.slots.of(self.producer);
            // The hits are queued before the analyzer gets the shard and finds hits in later
            // records.
            slot.queue_hits(&mut self.found.hits);
            slot.put_back(shard);
        }
    }

    /// Gives the hits to the analyzer, before the watermark moves. Returns `false` if the analyzer
    /// is taking earlier hits at this moment. The inserter then keeps its hits, and the watermark
    /// must not move.
    pub(crate) fn flush_hits(&mut self) -> bool {
        if !self.found.hits.is_empty() {
            self.is_due = true;
            self.parts
                .slots
                .of(self.producer)
                .try_queue_hits(&mut self.found.hits);
        }
        self.found.hits.is_empty()
    }

    /// As [`ShardPlacement::observe_wait`].
    pub(crate) fn after_wait(&mut self, now_ns: i64, queueing_delay_ns: i64) {
        self.placement.observe_wait(now_ns, queueing_delay_ns);
    }

    /// Records were published, and the source `is_dry` or not, at `now_ns` of the monotonic clock.
    /// Wakes the analyzer for hits, ended flows and records that it must analyze, or after
    /// `unread_max` bytes. Returns whether there were hits, ended flows or such records.
    pub(crate) fn after_publish(&mut self, is_dry: bool, now_ns: i64) -> bool {
        self.placement.observe_drain(is_dry, now_ns);
        if let Some(shard) = &mut self.shard {
            for over in shard.pass(now_ns) {
                self.found.hits.push_flow_ended(over);
                self.is_due = true;
            }
        }
        if self.is_due || self.unread >= self.unread_max {
            self.parts.analyzer.wake();
            self.unread = 0;
        }
        std::mem::take(&mut self.is_due)
    }

    /// Takes the messages of the shard.
    pub(crate) fn take_notices(&mut self) -> Vec<String> {
        let shard = self.shard.as_mut();
        shard.map(|shard| shard.take_notices()).unwrap_or_default()
    }
}

impl Drop for Inline {
    fn drop(&mut self) {
        self.put_back();
    }
}

#[cfg(test)]
pub(crate) use tests::inline as inline_of_test;

#[cfg(test)]
mod tests;
