//! A shard in the inserter's thread.
//!
//! Records go to memory past the cache, and the analyzer reads them back on another processor: of frames of 1514 bytes that
//! took it longer than to try a filter on them. A live inserter has the frames in its first-level cache. So it lends them to the shard
//! behind storing them, and wakes the analyzer only where there is a hit, and now and then to move on.
//!
//! Where too much waits at the source ([placement](super::placement)), the shard goes back to its [seat](crate::analysis::seats), and the analyzer,
//! which has a thread of its own, takes over. So it does for bursts whose frames are cut, or are of several interfaces.

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

/// What a record takes in the ring beside its bytes.
pub(crate) const DESCRIPTOR_BYTES: u64 = 16;
/// All inserters together leave no more than this part of the ring unread before they call: one in 8.
const RING_SHARE: u64 = 8;

/// What inserters need to have shards.
#[derive(Debug, Clone)]
pub(crate) struct InlineParts {
    pub(crate) common: Arc<RecorderShared>,
    pub(crate) slots: Arc<ShardSlots>,
    /// How far the analyzer has read.
    pub(crate) positions: Positions,
    pub(crate) analyzer: Waker,
    pub(crate) placing: Arc<PlacementShared>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Inline {
    parts: InlineParts,
    producer: usize,
    shard: Option<Box<Shard>>,
    found: InlineFindings,
    /// Whether this thread is to have the shard.
    placement: ShardPlacement,
    /// Whether something was stored since the analyzer was last called that it has to look at.
    is_due: bool,
    /// Bytes stored since the analyzer was last called, and the number from which on it is called at any rate.
    unread: u64,
    unread_max: u64,
    /// That of the inserter.
    pulse: ThreadPulse,
}

/// Hits of the records that are stored since the last publication.
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
    /// For the inserter of a producer, whose turns `pulse` counts.
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

    /// So many frames are to be stored as they stand: takes the shard, keeps it, or leaves them to the analyzer.
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

    /// Looks at frames of one interface that were stored as they stand, as records from `first` on; ring time is their stamps less `offset_ns`.
    /// They have so many captured `bytes`, about.
    pub(crate) fn look(
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
        if !self.found.are_wanted() && !shard.looks_always() {
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
            // A script may be slow, and a burst long.
            while shard.look(self.producer, &mut packets, &mut chunk, &mut self.found) > 0 {
                self.pulse.beat();
            }
            frames.len()
        };
        let slot = self.parts.slots.of(self.producer);
        slot.times.time(&self.parts.common.clock, look);
    }

    /// What was claimed is stored, as far as there was room.
    pub(crate) fn after_storing(&mut self, producer: &Producer) {
        if self.shard.is_some() {
            self.slot().claim(producer.stored());
        }
    }

    /// Leaves what is stored next to the analyzer.
    pub(crate) fn leave(&mut self) {
        self.is_due = true;
        self.put_back();
    }

    fn put_back(&mut self) {
        if let Some(shard) = self.shard.take() {
            let slot = self.parts.slots.of(self.producer);
            // Before the analyzer finds something behind it.
            slot.tell(&mut self.found.hits);
            slot.put_back(shard);
        }
    }

    /// Before the watermark moves: tells the analyzer what was found. False: it is just taking what was told before, and the watermark must not
    /// move past what was found.
    pub(crate) fn tell(&mut self) -> bool {
        if !self.found.hits.is_empty() {
            self.is_due = true;
            self.parts
                .slots
                .of(self.producer)
                .try_tell(&mut self.found.hits);
        }
        self.found.hits.is_empty()
    }

    /// As [`ShardPlacement::asked`].
    pub(crate) fn after_wait(&mut self, now_ns: i64, queueing_delay_ns: i64) {
        self.placement.observe_wait(now_ns, queueing_delay_ns);
    }

    /// What was stored is published, and the source `is_dry` or not, at `now_ns` of the monotonic clock: calls the analyzer, if it
    /// is to do something. Returns whether it is.
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

    /// What the shard has to say.
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
