//! Converts the stamps of a NIC's clock to the system's time.
//!
//! A NIC's clock counts ticks of unknown length from an arbitrary start. The driver can read the
//! clock. Two readings together with the system's clock give the length of a tick, and the last
//! reading gives the offset. The error of a reading matters less if the readings are further apart.
//! An error of 1 µs in 10 ms is 100 parts per million. With a reading every 100 ms, this becomes 10
//! µs between two readings.

/// Readings that are closer than this say nothing about the length of a tick.
const BASE_NS_MIN: i64 = 10_000_000;

/// Time between two readings of the clocks, once the length of a tick is known.
const CLOCK_READING_PERIOD_NS: i64 = 100_000_000;

/// If a new reading is further than this from the first reading, the reading before the new one
/// replaces the first. So the conversion follows a drifting clock.
const BASE_NS_MAX: i64 = 10_000_000_000;

/// Both clocks at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DeviceClockReading {
    /// The device's clock.
    pub(super) ticks: u64,
    /// The system's clock, ns since the UNIX epoch.
    pub(super) time_ns: i64,
}

/// A device's clock in relation to the system's clock.
#[derive(Debug)]
pub(super) struct DeviceClock {
    first: DeviceClockReading,
    last: DeviceClockReading,
    /// Length of a tick in ns; `None`: not known yet.
    tick_ns: Option<f64>,
}

impl DeviceClock {
    pub(super) fn new(reading: DeviceClockReading) -> Self {
        Self {
            first: reading,
            last: reading,
            tick_ns: None,
        }
    }

    /// Whether it is time for a reading.
    pub(super) fn is_due(&self, now_ns: i64) -> bool {
        let wait_ns = if self.tick_ns.is_some() {
            CLOCK_READING_PERIOD_NS
        } else {
            BASE_NS_MIN
        };
        now_ns.abs_diff(self.last.time_ns) >= wait_ns.unsigned_abs()
    }

    /// Adds a reading. Starts again from this reading, and keeps the known length of a tick, if the
    /// first reading is less than [`BASE_NS_MIN`] ago. Does so too if a clock seems to be set: the
    /// ticks do not grow, or the length of a tick changes by more than 1 %.
    pub(super) fn read(&mut self, reading: DeviceClockReading) {
        let passed_ns = reading.time_ns.saturating_sub(self.first.time_ns);
        let ticks = reading.ticks.wrapping_sub(self.first.ticks).cast_signed();
        let tick_ns = passed_ns as f64 / ticks as f64;
        let is_step = |known: f64| (tick_ns / known - 1.0).abs() > 0.01;
        if passed_ns < BASE_NS_MIN || ticks <= 0 || self.tick_ns.is_some_and(is_step) {
            *self = Self {
                tick_ns: self.tick_ns,
                ..Self::new(reading)
            };
            return;
        }
        self.tick_ns = Some(tick_ns);
        if passed_ns > BASE_NS_MAX {
            self.first = self.last;
        }
        self.last = reading;
    }

    /// The system's time at a stamp, never later than `now_ns`; `None`: not known yet.
    pub(super) fn time_ns(&self, stamp: u64, now_ns: i64) -> Option<i64> {
        let ticks = stamp.wrapping_sub(self.last.ticks).cast_signed();
        let since_ns = ticks as f64 * self.tick_ns?;
        #[expect(
            clippy::cast_possible_truncation,
            reason = "saturates, and is far from both ends"
        )]
        let since_ns = since_ns.round() as i64;
        Some(self.last.time_ns.saturating_add(since_ns).min(now_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START_NS: i64 = 1_700_000_000_000_000_000;

    /// A reading `after_ns` ns after the start. The device's clock has 156.25 MHz and starts
    /// shortly before its wrap-around.
    fn reading(after_ns: i64) -> DeviceClockReading {
        let ticks = u128::from(after_ns.unsigned_abs()) * 15_625 / 100_000;
        DeviceClockReading {
            ticks: (u64::MAX - 1000).wrapping_add(u64::try_from(ticks).unwrap()),
            time_ns: START_NS + after_ns,
        }
    }

    #[test]
    fn stamps_are_placed_in_the_systems_time() {
        let mut clock = DeviceClock::new(reading(0));
        assert_eq!(clock.time_ns(5, i64::MAX), None, "nothing is known of it");
        assert!(!clock.is_due(START_NS + 1_000_000) && clock.is_due(START_NS + BASE_NS_MIN));
        for step in 1..300 {
            let now_ns = step * CLOCK_READING_PERIOD_NS;
            assert!(clock.is_due(START_NS + now_ns));
            clock.read(reading(now_ns));
            for age_ns in [0, 6400, 40_000_000] {
                let stamp = reading(now_ns - age_ns).ticks;
                let found_ns = clock.time_ns(stamp, i64::MAX).unwrap();
                let error_ns = found_ns - (START_NS + now_ns - age_ns);
                assert!(error_ns.abs() <= 20, "{error_ns} ns off at {now_ns}");
            }
            let ahead = reading(now_ns + 1000).ticks;
            assert_eq!(
                clock.time_ns(ahead, START_NS + now_ns),
                Some(START_NS + now_ns)
            );
        }
    }

    #[test]
    fn a_system_clock_that_was_set_is_followed() {
        let mut clock = DeviceClock::new(reading(0));
        clock.read(reading(CLOCK_READING_PERIOD_NS));
        for step_ns in [3_600_000_000_000, -3_600_000_000_000] {
            let set = |after_ns| DeviceClockReading {
                time_ns: reading(after_ns).time_ns + step_ns,
                ..reading(after_ns)
            };
            clock.read(set(2 * CLOCK_READING_PERIOD_NS));
            let found_ns = clock
                .time_ns(reading(2 * CLOCK_READING_PERIOD_NS).ticks, i64::MAX)
                .unwrap();
            assert_eq!(found_ns, START_NS + 2 * CLOCK_READING_PERIOD_NS + step_ns);
        }
    }
}
