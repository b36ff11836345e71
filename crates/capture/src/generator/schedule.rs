//! When each frame is due: integers only, exact for any rate.

use super::config::{GeneratorConfig, Rate};

/// Slots of one share in steps of the whole schedule, each with its time. Slot `n` of the run is due at
/// `floor(n * interval)`; whole and fraction are carried on by addition, which is exact.
#[derive(Debug)]
pub(super) struct Schedule {
    /// The next slot: also the sequence number.
    pub(super) slot: u64,
    /// Slots from one frame of this share to its next.
    stride: u64,
    /// The first slot that is not made.
    pub(super) end: u64,
    /// `floor(slot * interval)`, ns.
    pub(super) offset_ns: i64,
    /// The fraction of it, in `1 / denominator` ns: `< denominator`.
    fraction: u64,
    step_ns: i64,
    step_fraction: u64,
    denominator: u64,
}

impl Schedule {
    pub(super) fn new(config: &GeneratorConfig, queue: usize, queues: usize) -> Self {
        let (numerator, denominator) = rate(config).interval_ns(config.size);
        let split = |slots: usize| {
            let product = slots as u128 * u128::from(numerator);
            let whole = i64::try_from(product / u128::from(denominator)).unwrap_or(i64::MAX);
            (
                whole,
                u64::try_from(product % u128::from(denominator)).unwrap_or(0),
            )
        };
        let (offset_ns, fraction) = split(queue);
        let (step_ns, step_fraction) = split(queues);
        Self {
            slot: queue as u64,
            stride: queues as u64,
            end: config.duration.map_or(u64::MAX, |duration| {
                first_slot_at(config, duration.as_nanos())
            }),
            offset_ns,
            fraction,
            step_ns,
            step_fraction,
            denominator,
        }
    }

    /// Slots of this share that are still to come.
    pub(super) fn left(&self) -> u64 {
        self.end.saturating_sub(self.slot).div_ceil(self.stride)
    }

    /// The next `count` frames are made.
    pub(super) fn advance_by(&mut self, count: usize) {
        if count <= 1 {
            // On the schedule frames come one by one, and a division of this width is dear.
            (0..count).for_each(|_| self.advance());
            return;
        }
        let count = count as u64;
        self.slot = self.slot.saturating_add(self.stride.saturating_mul(count));
        let steps_ns = i128::from(self.step_ns) * i128::from(count);
        let fraction =
            u128::from(self.fraction) + u128::from(self.step_fraction) * u128::from(count);
        let denominator = u128::from(self.denominator);
        let whole_ns = (fraction / denominator).cast_signed();
        let offset_ns = i128::from(self.offset_ns) + steps_ns + whole_ns;
        self.offset_ns = i64::try_from(offset_ns).unwrap_or(i64::MAX);
        // Below the denominator.
        self.fraction = u64::try_from(fraction % denominator).unwrap_or(0);
    }

    /// Slots from one frame to the next.
    pub(super) fn stride(&self) -> u64 {
        self.stride
    }

    #[inline]
    pub(super) fn advance(&mut self) {
        self.slot = self.slot.saturating_add(self.stride);
        self.offset_ns = self.offset_ns.saturating_add(self.step_ns);
        self.fraction += self.step_fraction;
        if self.fraction >= self.denominator {
            self.fraction -= self.denominator;
            self.offset_ns = self.offset_ns.saturating_add(1);
        }
    }
}

/// The rate of the schedule, also where none was given.
fn rate(config: &GeneratorConfig) -> Rate {
    config.rate.unwrap_or(Rate::FOR_FILES)
}

/// The first slot that is due at `time_ns` after the start or later.
pub(super) fn first_slot_at(config: &GeneratorConfig, time_ns: u128) -> u64 {
    let (numerator, denominator) = rate(config).interval_ns(config.size);
    let slot = time_ns
        .saturating_mul(u128::from(denominator))
        .div_ceil(u128::from(numerator));
    u64::try_from(slot).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slot_is_exact() {
        for (rate, size) in [
            ("3pps", 64_u128),
            ("700kpps", 64),
            ("1Gbit", 1514),
            ("7bit", 61),
        ] {
            let config: GeneratorConfig =
                format!("generate:size={size},rate={rate}").parse().unwrap();
            let (numerator, denominator) = config.rate.unwrap().interval_ns(config.size);
            let (numerator, denominator) = (u128::from(numerator), u128::from(denominator));
            for (queue, queues) in [(0, 1), (2, 3)] {
                let mut schedule = Schedule::new(&config, queue, queues);
                for step in 0..3000_u128 {
                    let slot = queue as u128 + step * queues as u128;
                    assert_eq!(u128::from(schedule.slot), slot);
                    let expected = slot * numerator / denominator;
                    assert_eq!(
                        schedule.offset_ns.unsigned_abs(),
                        u64::try_from(expected).unwrap(),
                        "{rate}, slot {slot}"
                    );
                    schedule.advance();
                }
                let mut at_once = Schedule::new(&config, queue, queues);
                at_once.advance_by(0);
                at_once.advance_by(2999);
                at_once.advance_by(1);
                assert_eq!(format!("{at_once:?}"), format!("{schedule:?}"));
                schedule.end = schedule.slot + 1 + 4 * queues as u64;
                assert_eq!(schedule.left(), 5, "the next one and four more");
                schedule.end = schedule.slot;
                assert_eq!(schedule.left(), 0);
            }
        }
    }

    #[test]
    fn the_first_slot_at_a_time() {
        let config: GeneratorConfig = "generate:rate=3pps".parse().unwrap();
        for (time_ns, slot) in [
            (0, 0),
            (1, 1),
            (333_333_333, 1),
            (333_333_334, 2),
            (1_000_000_000, 3),
        ] {
            assert_eq!(first_slot_at(&config, time_ns), slot, "{time_ns} ns");
        }
        assert_eq!(first_slot_at(&config, u128::MAX), u64::MAX);
    }
}
