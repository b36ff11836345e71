//! The time at which each frame is due, in integers, exact for any rate.

use super::{
    config::GeneratorConfig,
    interval::{DueTime, Interval},
};

/// The slots of one share. A slot has the same time as in the whole schedule.
#[derive(Debug)]
pub(super) struct Schedule {
    interval: Interval,
    /// The next slot, which is also the sequence number.
    pub(super) slot: u64,
    /// Slots from one frame of this share to its next frame.
    pub(super) stride: u64,
    /// When the next slot is due. The function `step` adds the time of one stride, the field
    /// `step`, with a carry and without a wide division.
    due: DueTime,
    step: DueTime,
    /// The first slot after the end.
    end: u64,
}

impl Schedule {
    pub(super) fn new(config: &GeneratorConfig, queue: usize, queues: usize) -> Self {
        let interval = config.interval();
        let end = config.duration.map_or(u64::MAX, |duration| {
            interval.first_slot_at(duration.as_nanos())
        });
        Self {
            interval,
            slot: queue as u64,
            stride: queues as u64,
            due: interval.times(queue as u64),
            step: interval.times(queues as u64),
            end: end.min(config.count.unwrap_or(u64::MAX)),
        }
    }

    /// When the next frame is due, ns after the start; `None` at the end.
    pub(super) fn offset_ns(&self) -> Option<i64> {
        (self.slot < self.end).then(|| i64::try_from(self.due.ns).unwrap_or(i64::MAX))
    }

    /// Remaining slots of this share.
    pub(super) fn left(&self) -> u64 {
        self.end.saturating_sub(self.slot).div_ceil(self.stride)
    }

    /// Advances past the next frame.
    #[inline]
    pub(super) fn step(&mut self) {
        self.slot = self.slot.saturating_add(self.stride);
        let rest = self.due.rest + self.step.rest;
        let carries = rest >= self.interval.denominator;
        self.due.rest = match carries {
            true => rest - self.interval.denominator,
            false => rest,
        };
        let ns = self.due.ns.saturating_add(self.step.ns);
        self.due.ns = ns.saturating_add(carries.into());
    }

    /// Advances past the next `count` frames.
    pub(super) fn advance(&mut self, count: usize) {
        self.slot = self
            .slot
            .saturating_add(self.stride.saturating_mul(count as u64));
        self.due = self.interval.times(self.slot);
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
                    schedule.step();
                }
                let mut at_once = Schedule::new(&config, queue, queues);
                at_once.advance(0);
                at_once.advance(2999);
                at_once.advance(1);
                assert_eq!(at_once.slot, schedule.slot);
                assert_eq!(at_once.offset_ns(), schedule.offset_ns());
                schedule.end = schedule.slot + 1 + 4 * queues as u64;
                assert_eq!(schedule.left(), 5, "the next one and four more");
                schedule.end = schedule.slot;
                assert_eq!((schedule.left(), schedule.offset_ns()), (0, None));
            }
        }
    }

    #[test]
    fn the_first_slot_at_a_time() {
        let config: GeneratorConfig = "generate:rate=3pps".parse().unwrap();
        let interval = config.interval();
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
