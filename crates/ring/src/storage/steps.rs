//! One step of a clock in the region's table.
//!
//! ```text
//! word 0    0: empty; odd: being written; even: the other words are of one step
//!      1    producer in bits 16..64, clock in bits 0..16
//!      2    number of the producer's first record after the step
//!      3    stamp minus ring time of this clock's records from then on, ns, two's complement
//! ```
//!
//! A slot may be reused if no record in the ring needs its step.

use crate::{
    Step,
    sync::{AtomicU64, Ordering, fence},
};

pub(crate) const STEPS_MAX: usize = if cfg!(loom) { 2 } else { 1024 };

/// A slot for a step, as stored in the region.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct StepSlot([AtomicU64; 4]);

impl StepSlot {
    /// Replaces the step in this slot. One writer at a time.
    pub(crate) fn write(&self, step: &Step) {
        let [version, words @ ..] = &self.0;
        let before = version.load(Ordering::Relaxed); // this is the only writer
        version.store(before + 1, Ordering::Relaxed); // ordered by the fence
        fence(Ordering::Release); // a reader of a new word then sees the odd version
        for (word, value) in words.iter().zip(encode(step)) {
            word.store(value, Ordering::Relaxed); // ordered by the version
        }
        version.store(before + 2, Ordering::Release); // then a reader sees the words
    }
}

fn encode(step: &Step) -> [u64; 3] {
    let place = (step.producer as u64) << 16 | u64::from(step.clock);
    [place, step.first, step.offset_ns.cast_unsigned()]
}

/// Decodes the words of a slot. `None`: the slot is empty, or was being written at each of 8
/// attempts.
#[cfg(not(loom))]
pub(crate) fn read(load: impl Fn(usize, Ordering) -> u64) -> Option<Step> {
    const ATTEMPTS: usize = 8;
    for _ in 0..ATTEMPTS {
        let version = load(0, Ordering::Acquire);
        if version == 0 {
            return None;
        }
        let [place, first, offset_ns] = [1, 2, 3].map(|word| load(word, Ordering::Relaxed));
        fence(Ordering::Acquire); // the words are loaded before the second load
        if version.is_multiple_of(2) && load(0, Ordering::Relaxed) == version {
            return Some(Step {
                producer: usize::try_from(place >> 16).ok()?,
                #[expect(clippy::cast_possible_truncation, reason = "its low 16 bits")]
                clock: place as u16,
                first,
                offset_ns: offset_ns.cast_signed(),
            });
        }
    }
    None
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_in_comes_out() {
        let slot = StepSlot::default();
        let load = |word: usize, order| slot.0[word].load(order);
        assert_eq!(read(load), None);
        for producer in [0, 16_383] {
            let step = Step {
                producer,
                clock: 65_535,
                first: u64::MAX - 1,
                offset_ns: -3_600_000_000_000,
            };
            slot.write(&step);
            assert_eq!(read(load), Some(step));
        }
        slot.0[0].fetch_add(1, Ordering::Relaxed);
        assert_eq!(read(load), None, "being written");
    }
}
