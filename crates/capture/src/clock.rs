//! The clocks of the system.

use std::{fmt::Debug, time::Duration};

use rustix::time::{ClockId, Timespec, clock_gettime};

/// Nanoseconds in a second.
pub const SECOND_NS: i64 = 1_000_000_000;

/// A larger change of the difference between the real-time and the monotonic clock is a step, ns.
pub const CLOCK_STEP_NS: i64 = 100_000_000;

/// A real-time reading and a monotonic reading belong together if the monotonic readings around the
/// real-time reading are at most this far apart, ns. A thread that loses its processor in between
/// may need longer.
pub(crate) const READ_GAP_NS_MAX: i64 = CLOCK_STEP_NS / 100;

/// Largest number of attempts to read both clocks within [`READ_GAP_NS_MAX`]. The limit bounds the
/// time that a thread spends here.
const READINGS_MAX: usize = 8;

/// Two clocks that were read together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// The real-time clock, ns since the UNIX epoch. It may step. The kernel's software time stamps
    /// come from this clock.
    pub wall_ns: i64,
    /// A clock that only goes forward, ns since an arbitrary start.
    pub mono_ns: i64,
    /// The real-time clock was read at most this long before `mono_ns`, ns.
    pub read_gap_ns: i64,
}

impl Now {
    /// Whether the readings are close enough to be treated as simultaneous.
    #[must_use]
    pub fn is_one_moment(self) -> bool {
        self.read_gap_ns <= READ_GAP_NS_MAX
    }

    /// Upper bound on how far the real-time clock is ahead of the monotonic clock.
    pub(crate) fn offset_max_ns(self) -> i64 {
        self.wall_ns - (self.mono_ns - self.read_gap_ns)
    }
}

/// A source of time that tests can replace.
pub trait Clock: Send + Sync + Debug {
    /// Reads both clocks.
    fn now(&self) -> Now;

    /// Like [`Self::now`], for a thread that has read the monotonic clock at `before_ns`. If this
    /// reading is at most a millisecond old, [`SystemClock`] reads one clock less.
    fn now_since(&self, before_ns: i64) -> Now {
        let _ = before_ns;
        self.now()
    }

    /// Reads the clock that only goes forward.
    fn mono_ns(&self) -> i64 {
        self.now().mono_ns
    }
}

/// The system's clocks: `CLOCK_REALTIME` and `CLOCK_MONOTONIC`.
#[derive(Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Now {
        now()
    }

    fn now_since(&self, before_ns: i64) -> Now {
        read_together(before_ns, realtime_ns, monotonic_ns)
    }

    fn mono_ns(&self) -> i64 {
        monotonic_ns()
    }
}

/// Reads both clocks of the system.
#[must_use]
pub fn now() -> Now {
    read_together(monotonic_ns(), realtime_ns, monotonic_ns)
}

/// Reads the real-time clock alone, ns since the UNIX epoch.
#[must_use]
pub fn realtime_ns() -> i64 {
    read_ns(ClockId::Realtime)
}

/// Reads the monotonic clock alone, ns since an arbitrary start.
#[must_use]
pub fn monotonic_ns() -> i64 {
    read_ns(ClockId::Monotonic)
}

/// Reads a clock as one number of nanoseconds. Saturates at 292 years.
fn read_ns(clock: ClockId) -> i64 {
    let time = clock_gettime(clock);
    time.tv_sec
        .saturating_mul(SECOND_NS)
        .saturating_add(time.tv_nsec)
}

/// Reads the real-time clock between two readings of the monotonic clock, the first at `before_ns`.
/// Repeats this if the two are more than [`READ_GAP_NS_MAX`] apart: the thread may have lost its
/// processor in between. After [`READINGS_MAX`] attempts, returns the closest, with its gap.
fn read_together(mut before_ns: i64, wall_ns: impl Fn() -> i64, mono_ns: impl Fn() -> i64) -> Now {
    let mut read = || {
        let (wall_ns, mono_ns) = (wall_ns(), mono_ns());
        let read_gap_ns = mono_ns.saturating_sub(before_ns);
        before_ns = mono_ns;
        Now {
            wall_ns,
            mono_ns,
            read_gap_ns,
        }
    };
    let mut closest = read();
    for _ in 1..READINGS_MAX {
        if closest.is_one_moment() {
            break;
        }
        let next = read();
        if next.read_gap_ns < closest.read_gap_ns {
            closest = next;
        }
    }
    closest
}

/// Sleeps until the monotonic clock shows `deadline_ns`. May return early when a signal arrives.
pub fn sleep_until(deadline_ns: i64) {
    let deadline = Timespec {
        tv_sec: deadline_ns.div_euclid(SECOND_NS),
        tv_nsec: deadline_ns.rem_euclid(SECOND_NS),
    };
    let _ = rustix::thread::clock_nanosleep_absolute(ClockId::Monotonic, &deadline);
}

/// A duration in ns. Saturates at 292 years.
#[must_use]
pub fn duration_ns(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    const MS: i64 = 1_000_000;
    const OFFSET_NS: i64 = 1_800_000_000_000_000_000;

    /// Reads two clocks that differ by [`OFFSET_NS`] and advance by 50 ns and one of `pauses` after
    /// each reading. Returns the error of the measured offset, and whether the reading counts as
    /// one moment.
    fn read(pauses: &[i64]) -> (i64, bool) {
        let (mono, pauses) = (Cell::new(0), RefCell::new(pauses.iter()));
        let read = || {
            let now_ns = mono.get();
            let pause_ns = pauses.borrow_mut().next().copied().unwrap_or(0);
            mono.set(now_ns + 50 + pause_ns);
            now_ns
        };
        let now = read_together(read(), || OFFSET_NS + read(), read);
        let error_ns = now.wall_ns - now.mono_ns - OFFSET_NS;
        assert!(-now.read_gap_ns <= error_ns && error_ns <= 0, "{now:?}");
        assert_eq!(now.offset_max_ns() - OFFSET_NS, error_ns + now.read_gap_ns);
        (error_ns, now.is_one_moment())
    }

    #[test]
    fn a_thread_that_stands_still_between_two_readings_sees_no_step() {
        for paused in 0..4 {
            let mut pauses = [0; 4];
            pauses[paused] = 2000 * MS;
            assert_eq!(read(&pauses), (-50, true), "behind reading {paused}");
        }
        let pauses = [900 * MS, 900 * MS, 0, 900 * MS, 0, 0];
        assert_eq!(read(&pauses), (-50, true));
    }

    #[test]
    fn of_readings_far_apart_the_closest_counts() {
        let mut pauses = [300 * MS; 2 * READINGS_MAX + 1];
        (pauses[4], pauses[5]) = (2 * MS, 3 * MS);
        assert_eq!(read(&pauses), (-3 * MS - 50, false));
        // The attempts end although the readings never get closer.
        assert_eq!(read(&[300 * MS; 100]), (-300 * MS - 50, false));
    }

    #[test]
    fn a_recent_reading_of_the_monotonic_clock_saves_one() {
        for (before_ns, readings) in [(-MS / 2, 2), (-2 * MS, 4)] {
            let count = Cell::new(0);
            let read = || {
                count.set(count.get() + 1);
                50 * count.get()
            };
            assert!(read_together(before_ns, read, read).is_one_moment());
            assert_eq!(count.get(), readings);
        }
    }
}
