//! Ring time: a stamp less the steps that its clock has made, so that the ring's order goes on smoothly where a clock is set.
//!
//! Whoever stores gives ring time ([`Record::time_ns`](crate::Record::time_ns)) and says when the difference to the stamp changes
//! ([`Producer::step`](crate::Producer::step)); whoever reads adds it again ([`Step::stamp_ns`]). The steps stand in a table of the
//! region, because a later reader of its file needs them too.
//!
//! The table has a bound, and so does what a producer may put there: some steps, and one more for each bucket that it filled. A clock that
//! jumps faster is in disorder, and is not followed.

use crate::{
    outer::Outer,
    storage::{Storage, steps::STEPS_MAX},
};

/// Steps of a producer's clocks beyond one for each bucket that it filled.
const STEPS_FREE: u64 = if cfg!(loom) { 1 } else { 16 };

/// The record from which on the stamps of a clock have a new offset from ring time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// Whose records.
    pub producer: usize,
    /// Those of interfaces with this [`InterfaceEntry::clock`](crate::InterfaceEntry::clock).
    pub clock: u16,
    /// The number of the first of them, counted over the producer's life.
    pub first: u64,
    /// Stamp less ring time, ns.
    pub offset_ns: i64,
}

impl Step {
    /// The stamp of a record, ns since the UNIX epoch: of `producer`, stamped by `clock`, with this number and ring time. `steps`
    /// are the ring's ([`Ring::steps`](crate::Ring::steps)), read after the record was found.
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
    /// How many steps each producer made.
    made: Vec<u64>,
}

impl Steps {
    pub(crate) fn all(&self) -> Vec<Step> {
        self.slots.clone()
    }
}

impl Outer {
    /// Puts a step into the table; `false`: there was no place, or the producer made too many for the `filled` buckets that it filled.
    pub(crate) fn step(&mut self, storage: &Storage, step: Step, filled: u64) -> bool {
        let made = &mut self.steps.made;
        made.resize(made.len().max(step.producer + 1), 0);
        if made[step.producer] >= STEPS_FREE.saturating_add(filled) {
            return false;
        }
        let same = |other: &Step| {
            (other.producer, other.clock, other.first) == (step.producer, step.clock, step.first)
        };
        // Nothing was stored since the last step of this clock: the new one replaces it.
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

    /// The slot of a step that no record in the ring needs: a later step of its producer and clock applies from the producer's oldest
    /// record on, or from before it.
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
