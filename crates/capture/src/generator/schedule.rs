//! When each frame is due: integers only, exact for any rate.

use super::config::{GeneratorConfig, Rate};

/// The time between two slots of a run: ns as a fraction.
#[derive(Debug, Clone, Copy)]
pub(super) struct Interval {
    numerator: u128,
    denominator: u128,
}

impl Interval {
    /// Of frames of a configuration; that of [`Rate::FOR_FILES`] where it has no rate.
    pub(super) fn of(config: &GeneratorConfig) -> Self {
        let (bits, rate) = match config.rate.unwrap_or(Rate::FOR_FILES) {
            Rate::FramesPerSecond(rate) => (1, rate),
            Rate::BitsPerSecond(rate) => (u128::from(config.size) * 8, rate),
        };
        Self {
            numerator: bits * 1_000_000_000,
            denominator: u128::from(rate),
        }
    }

    /// When a slot is due, ns after the start, rounded down.
    fn due_ns(self, slot: u64) -> i64 {
        let due_ns = u128::from(slot) * self.numerator / self.denominator;
        i64::try_from(due_ns).unwrap_or(i64::MAX)
    }

    /// The first slot that is due at `time_ns` after the start or later.
    pub(super) fn first_slot_at(self, time_ns: u128) -> u64 {
        let slots = time_ns.saturating_mul(self.denominator);
        u64::try_from(slots.div_ceil(self.numerator)).unwrap_or(u64::MAX)
    }
}

/// The slots of one share in steps of the whole schedule.
#[derive(Debug)]
pub(super) struct Schedule {
    interval: Interval,
    /// The next slot: also the sequence number.
    pub(super) slot: u64,
    /// Slots from one frame of this share to its next.
    pub(super) stride: u64,
    /// The first slot that is not made.
    end: u64,
}

impl Schedule {
    pub(super) fn new(config: &GeneratorConfig, queue: usize, queues: usize) -> Self {
        let interval = Interval::of(config);
        let end = config.duration.map_or(u64::MAX, |duration| {
            interval.first_slot_at(duration.as_nanos())
        });
        Self {
            interval,
            slot: queue as u64,
            stride: queues as u64,
            end: end.min(config.count.unwrap_or(u64::MAX)),
        }
    }

    /// When the next frame is due, ns after the start; `None` at the end.
    pub(super) fn offset_ns(&self) -> Option<i64> {
        (self.slot < self.end).then(|| self.interval.due_ns(self.slot))
    }

    /// Slots of this share that are still to come.
    pub(super) fn left(&self) -> u64 {
        self.end.saturating_sub(self.slot).div_ceil(self.stride)
    }

    /// The next `count` frames are made.
    pub(super) fn advance(&mut self, count: usize) {
        self.slot = self
            .slot
            .saturating_add(self.stride.saturating_mul(count as u64));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slot_is_exact() {
        for (rate, size, interval_ns) in [
            ("3pps", 64, (1_000_000_000, 3)),
            ("700kpps", 64, (1_000_000_000, 700_000)),
            ("1Gbit", 1514, (1514 * 8, 1)),
            ("7bit", 61, (61 * 8 * 1_000_000_000, 7)),
        ] {
            let text = format!("generate:size={size},rate={rate}");
            let config: GeneratorConfig = text.parse().unwrap();
            for (queue, queues) in [(0, 1), (2, 3)] {
                let mut schedule = Schedule::new(&config, queue, queues);
                for step in 0..3000 {
                    let slot = queue as u64 + step * queues as u64;
                    assert_eq!(schedule.slot, slot);
                    let expected_ns = i64::try_from(slot).unwrap() * interval_ns.0 / interval_ns.1;
                    assert_eq!(
                        schedule.offset_ns(),
                        Some(expected_ns),
                        "{rate}, slot {slot}"
                    );
                    schedule.advance(1);
                }
                let mut at_once = Schedule::new(&config, queue, queues);
                at_once.advance(0);
                at_once.advance(2999);
                at_once.advance(1);
                assert_eq!(at_once.slot, schedule.slot);
                schedule.end = schedule.slot + 1 + 4 * queues as u64;
                assert_eq!(schedule.left(), 5, "the next one and four more");
                schedule.end = schedule.slot;
                assert_eq!((schedule.left(), schedule.offset_ns()), (0, None));
            }
        }
    }

    #[test]
    fn the_first_slot_at_a_time() {
        let interval = Interval::of(&"generate:rate=3pps".parse().unwrap());
        for (time_ns, slot) in [
            (0, 0),
            (1, 1),
            (333_333_333, 1),
            (333_333_334, 2),
            (1_000_000_000, 3),
        ] {
            assert_eq!(interval.first_slot_at(time_ns), slot, "{time_ns} ns");
        }
        assert_eq!(interval.first_slot_at(u128::MAX), u64::MAX);
    }
}
