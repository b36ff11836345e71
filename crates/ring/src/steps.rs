//! Ring time: the stamp of a packet minus the offset of its clock, so that ring time need not jump
//! when a clock is set.
//!
//! The caller that stores a record gives the ring time
//! ([`Record::time_ns`](crate::Record::time_ns)), and reports when the offset changes
//! ([`Producer::step`](crate::Producer::step)). Readers add the offset again ([`Step::stamp_ns`]).
//! The table of steps is in the region, for readers of the region's file.
//!
//! The table is limited, and so are the steps of a producer: 16, and one more for each bucket that
//! the producer filled.

use crate::{
    outer::Outer,
    storage::{Storage, steps::STEPS_MAX},
};

/// Steps that a producer may make in addition to one step for each bucket that it filled.
const STEPS_FREE: u64 = if cfg!(loom) { 1 } else { 16 };

/// The record from which on the stamps of a clock have a new offset from ring time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// Number of the producer of the records.
    pub producer: usize,
    /// The clock that made the step ([`InterfaceEntry::clock`](crate::InterfaceEntry::clock)).
    pub clock: u16,
    /// Number of the first record after the step, counted over the producer's life.
    pub first: u64,
    /// Stamp minus ring time, ns.
    pub offset_ns: i64,
}

impl Step {
    /// The stamp, ns since the UNIX epoch, of a record of `producer` with this clock, number and
    /// ring time. `steps` are the ring's steps ([`Ring::steps`](crate::Ring::steps)), read after
    /// the record was found.
    #[must_use]
    pub fn stamp_ns(steps: &[Self], producer: usize, clock: u16, record: u64, time_ns: i64) -> i64 {
        let of_record =
            |step: &&Self| (step.producer, step.clock) == (producer, clock) && step.first <= record;
        let last = steps.iter().filter(of_record).max_by_key(|step| step.first);
        time_ns.wrapping_add(last.map_or(0, |step| step.offset_ns))
    }
}

/// The table of steps, in the order of the region's slots.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    slots: Vec<Step>,
    /// Steps made, indexed by producer.
    made: Vec<u64>,
}

impl Steps {
    pub(crate) fn all(&self) -> Vec<Step> {
        self.slots.clone()
    }
}

impl Outer {
    /// Adds a step to the table. `false`: the table is full, or the producer made too many steps.
    pub(crate) fn step(&mut self, storage: &Storage, step: Step, filled: u64) -> bool {
        let made = &mut self.steps.made;
        made.resize(made.len().max(step.producer + 1), 0);
        if made[step.producer] >= STEPS_FREE.saturating_add(filled) {
            return false;
        }
        let same = |other: &Step| {
            (other.producer, other.clock, other.first) == (step.producer, step.clock, step.first)
        };
        // Without records since the last step of this clock, the new step replaces the last step.
        let steps = &self.steps.slots;
        let slot = steps.iter().position(same);
        let slot = slot.or_else(|| (steps.len() < STEPS_MAX).then_some(steps.len()));
        let Some(slot) = slot.or_else(|| self.unneeded_step()) else {
            return false;
        };
        match self.steps.slots.get_mut(slot) {
            Some(place) => *place = step,
            None => self.steps.slots.push(step),
        }
        self.steps.made[step.producer] += 1;
        storage.step(slot).write(&step);
        true
    }

    /// The slot of a step that no record in the ring needs, because a later step of the same
    /// producer and clock precedes all these records.
    fn unneeded_step(&self) -> Option<usize> {
        let steps = &self.steps.slots;
        let is_before_all = |step: &Step| {
            let oldest = self.oldest_bucket(step.producer, 0);
            oldest.is_none_or(|oldest| step.first <= oldest.first)
        };
        let is_superseded = |step: &Step| {
            steps.iter().any(|later| {
                (later.producer, later.clock) == (step.producer, step.clock)
                    && step.first < later.first
                    && is_before_all(later)
            })
        };
        steps.iter().position(is_superseded)
    }
}
