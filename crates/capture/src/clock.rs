//! The clocks that engines pace and stamp by. The only place of this crate that asks the system for the time.

use rustix::time::{ClockId, Timespec, clock_gettime};

/// Nanoseconds in a second.
pub(crate) const SECOND_NS: i64 = 1_000_000_000;

/// Readings of two clocks that are further apart are taken again: a tenth of what packets may take to their place, and far more than
/// a thread takes that is not descheduled.
pub(crate) const APART_NS_MAX: i64 = 1_000_000;

/// How often they are taken: who is descheduled each time shall not be held up for ever.
const READINGS_MAX: usize = 8;

/// Wall-clock time in ns since the UNIX epoch: the clock of the kernel's software time stamps.
pub(crate) fn realtime_ns() -> i64 {
    to_ns(clock_gettime(ClockId::Realtime))
}

/// Nanoseconds on a clock that only moves forward, for pacing and deadlines.
pub(crate) fn monotonic_ns() -> i64 {
    to_ns(clock_gettime(ClockId::Monotonic))
}

/// Both clocks at one moment. The system clock was read last: a stamp of the monotonic clock is never placed too early by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Moment {
    pub(crate) realtime_ns: i64,
    pub(crate) monotonic_ns: i64,
    /// The monotonic clock was so much further when both had been read.
    pub(crate) apart_ns: i64,
}

impl Moment {
    /// Reads both. Where the thread is descheduled between the readings they do not belong together, and are taken again.
    pub(crate) fn now() -> Self {
        Self::read(realtime_ns, monotonic_ns)
    }

    fn read(mut realtime_ns: impl FnMut() -> i64, mut monotonic_ns: impl FnMut() -> i64) -> Self {
        let mut read = || {
            let before_ns = monotonic_ns();
            Self {
                realtime_ns: realtime_ns(),
                monotonic_ns: before_ns,
                apart_ns: monotonic_ns() - before_ns,
            }
        };
        let mut moment = read();
        for _ in 1..READINGS_MAX {
            if moment.apart_ns <= APART_NS_MAX {
                break;
            }
            let again = read();
            if again.apart_ns < moment.apart_ns {
                moment = again;
            }
        }
        moment
    }

    /// What the system clock is ahead of the monotonic one.
    pub(crate) fn offset_ns(self) -> i64 {
        self.realtime_ns - self.monotonic_ns
    }
}

/// Lets the calling thread sleep until the monotonic clock shows `deadline_ns`. May return early when a signal arrives.
pub(crate) fn sleep_until(deadline_ns: i64) {
    let deadline = Timespec {
        tv_sec: deadline_ns.div_euclid(SECOND_NS),
        tv_nsec: deadline_ns.rem_euclid(SECOND_NS),
    };
    // An interrupted sleep is a short one: the caller looks at the clock anyway.
    let _ = rustix::thread::clock_nanosleep_absolute(ClockId::Monotonic, &deadline);
}

/// Seconds and nanoseconds as one number; saturates in the year 2262.
fn to_ns(time: Timespec) -> i64 {
    time.tv_sec
        .saturating_mul(SECOND_NS)
        .saturating_add(time.tv_nsec)
}

/// A `Duration` in ns; saturates at 292 years.
pub(crate) fn duration_ns(duration: std::time::Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Reads clocks of which the system's is 5 s ahead, where the thread is away so long before each reading.
    fn read(away_ns: &[i64]) -> (Moment, usize) {
        let (now_ns, readings) = (Cell::new(0), Cell::new(0));
        let read = || {
            let away_ns = away_ns.get(readings.replace(readings.get() + 1));
            now_ns.set(now_ns.get() + away_ns.copied().unwrap_or(20));
            now_ns.get()
        };
        let moment = Moment::read(|| 5 * SECOND_NS + read(), read);
        (moment, readings.get())
    }

    #[test]
    fn readings_that_do_not_belong_together_are_taken_again() {
        let ahead_ns = |moment: Moment| moment.offset_ns() - 5 * SECOND_NS;
        let (moment, readings) = read(&[]);
        assert_eq!((ahead_ns(moment), readings), (20, 3));
        // Descheduled before the second and the third reading of a clock, then not any more.
        for first in [&[20, SECOND_NS][..], &[20, 20, SECOND_NS]] {
            let (moment, readings) = read(first);
            assert_eq!((ahead_ns(moment), readings), (20, 6));
        }
        // Always: the best there is.
        let mut always = [SECOND_NS; 3 * READINGS_MAX];
        always[10] = 2 * APART_NS_MAX;
        always[11] = 2 * APART_NS_MAX;
        let (moment, readings) = read(&always);
        assert_eq!(
            (ahead_ns(moment), readings),
            (2 * APART_NS_MAX, always.len())
        );
    }
}
