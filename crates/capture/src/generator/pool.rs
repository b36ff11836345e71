//! The frames that a generator lends: laid out once, written over in place.
//!
//! Where they are small enough every flow has a frame of its own (or several), and making the next one means writing its
//! sequence number and checksum: two stores. Otherwise a few blank frames are shared by all flows, and a flow's headers are
//! copied over them. Either way the memory stays in the L2 cache, as an engine's does.

use std::ops::Range;

use super::Generator;
use crate::{Burst, Direction, FrameMeta};

/// Frames of a burst at most.
const BURST_FRAMES: usize = 512;
/// Memory of the frames, but that there is always one.
const POOL_BYTES: usize = 256 * 1024;

/// See the module.
pub(super) struct Pool {
    /// Frames `slot_bytes` apart: those of `frames`, and behind them the trigger's.
    memory: Vec<u8>,
    slot_bytes: usize,
    frame_bytes: usize,
    /// One a slot; their time stamps are those of the burst that they were last lent in.
    frames: Vec<FrameMeta>,
    trigger: FrameMeta,
    /// Every slot belongs to a flow: that of slot `n` is flow `n` modulo the number of flows. The constant parts of their
    /// checksums by slot; empty where the slots are shared.
    sums: Vec<u32>,
    /// The slot of the next frame: `<= frames.len()`.
    next: usize,
    lent: Lent,
}

/// What a pool is lending.
enum Lent {
    Slots(Range<usize>),
    Trigger,
}

impl Pool {
    pub(super) fn new(generator: &Generator) -> Self {
        let blank = generator.blank_frame();
        let flows = generator.flows();
        // At most 9014: the size was checked.
        let captured_len = u32::try_from(blank.len()).unwrap_or(u32::MAX);
        let slot_bytes = blank.len().next_multiple_of(64);
        let fitting = (POOL_BYTES / slot_bytes).max(1);
        let is_by_flow = flows <= fitting;
        let slots = if is_by_flow {
            flows * (fitting.min(BURST_FRAMES) / flows).max(1)
        } else {
            fitting.min(BURST_FRAMES)
        };
        let mut memory = vec![0; (slots + 1) * slot_bytes];
        for (index, slot) in memory.chunks_exact_mut(slot_bytes).enumerate() {
            slot[..blank.len()].copy_from_slice(blank);
            if is_by_flow {
                generator.lay_out(index % flows, &mut slot[..blank.len()]);
            }
        }
        let meta = |slot: usize| FrameMeta {
            time_ns: 0,
            offset: slot * slot_bytes,
            captured_len,
            wire_len: captured_len,
            interface: 0,
            direction: Direction::Unknown,
            vlan: None,
        };
        Self {
            memory,
            slot_bytes,
            frame_bytes: blank.len(),
            frames: (0..slots).map(meta).collect(),
            trigger: meta(slots),
            sums: if is_by_flow {
                (0..slots).map(|slot| generator.sum(slot % flows)).collect()
            } else {
                Vec::new()
            },
            next: 0,
            lent: Lent::Slots(0..0),
        }
    }

    fn is_by_flow(&self) -> bool {
        !self.sums.is_empty()
    }

    /// Takes back what is lent, to lend another burst.
    pub(super) fn take_back(&mut self) {
        let is_used_up = self.next == self.frames.len() || !self.is_by_flow();
        self.next = if is_used_up { 0 } else { self.next };
        self.lent = Lent::Slots(self.next..self.next);
    }

    /// What is lent now.
    pub(super) fn burst(&self) -> Burst<'_> {
        let frames = match &self.lent {
            Lent::Slots(slots) => &self.frames[slots.clone()],
            Lent::Trigger => std::slice::from_ref(&self.trigger),
        };
        Burst {
            memory: &self.memory,
            frames,
        }
    }

    /// Frames that can still be pushed to this burst.
    fn room(&self) -> usize {
        match &self.lent {
            Lent::Slots(slots) => (self.frames.len() - self.next).min(BURST_FRAMES - slots.len()),
            Lent::Trigger => 0,
        }
    }

    /// Makes up to `count` background frames of one time stamp and lends them too; returns how many the burst had room for.
    pub(super) fn push(&mut self, generator: &mut Generator, count: usize, time_ns: i64) -> usize {
        let count = count.min(self.room());
        let slots = self.next..self.next + count;
        let bytes = slots.start * self.slot_bytes..slots.end * self.slot_bytes;
        let memory = self.memory[bytes].chunks_exact_mut(self.slot_bytes);
        if self.sums.is_empty() {
            for slot in memory {
                generator.write(&mut slot[..self.frame_bytes]);
            }
        } else {
            let mut numbers = generator.take(count);
            for (slot, sum) in memory.zip(&self.sums[slots.clone()]) {
                numbers.renew(&mut slot[..self.frame_bytes], *sum);
            }
        }
        for meta in &mut self.frames[slots.clone()] {
            meta.time_ns = time_ns;
        }
        self.next = slots.end;
        if let Lent::Slots(lent) = &mut self.lent {
            lent.end = slots.end;
        }
        count
    }

    /// Makes the trigger's frame and lends it. The burst must be empty so far; nothing is pushed behind it.
    pub(super) fn push_trigger(&mut self, generator: &mut Generator, time_ns: i64) {
        let slot = &mut self.memory[self.trigger.offset..];
        generator.write_trigger(&mut slot[..self.frame_bytes]);
        self.trigger.time_ns = time_ns;
        self.lent = Lent::Trigger;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of 5000 frames.
    const TRIGGER_SLOT: usize = 2000;

    /// Lends bursts of varying size and compares every frame with the generator's own.
    fn check(text: &str, is_by_flow: bool) {
        let config = text.parse().unwrap();
        let mut reference = Generator::new(&config).unwrap();
        let mut generator = Generator::new(&config).unwrap();
        let mut pool = Pool::new(&generator);
        assert_eq!(pool.is_by_flow(), is_by_flow, "{text}");
        for round in 0.. {
            pool.take_back();
            assert!(pool.burst().frames.is_empty());
            if generator.left() == 0 {
                break;
            }
            if generator.is_trigger_next() {
                pool.push_trigger(&mut generator, round);
                assert_eq!(pool.push(&mut generator, 1, round), 0, "a burst of its own");
            } else {
                for wanted in [1, usize::try_from(round).unwrap() % 300, 700] {
                    let made = 5000 - usize::try_from(generator.left()).unwrap();
                    let next_stop = if made <= TRIGGER_SLOT {
                        TRIGGER_SLOT
                    } else {
                        5000
                    };
                    pool.push(&mut generator, wanted.min(next_stop - made), round);
                }
            }
            let burst = pool.burst();
            assert!((1..=BURST_FRAMES).contains(&burst.frames.len()));
            for frame in burst.iter() {
                let (_, expected) = reference.next_frame().unwrap();
                assert!(frame.data == expected, "{text}, burst {round}");
                assert_eq!(frame.meta.time_ns, round);
            }
        }
        assert!(reference.next_frame().is_none());
    }

    #[test]
    fn frames_are_the_generator_s() {
        let common = "count=5000,rate=1Mpps,trigger-after=2ms";
        check(&format!("generate:flows=1,{common}"), true);
        check(&format!("generate:flows=7,{common}"), true);
        check(&format!("generate:flows=1000,{common}"), true);
        check(&format!("generate:flows=3,size=9014,{common}"), true);
        check(&format!("generate:flows=100,size=9014,{common}"), false);
        check(&format!("generate:flows=6000,size=61,{common}"), false);
    }
}
